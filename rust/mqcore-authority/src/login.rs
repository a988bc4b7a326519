//! From what a peer shows to who it is, or to a refusal.

use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;

use crate::credentials::{Credentials, Secret};
use crate::grants::Grants;
use crate::password::PasswordHash;
use crate::record::{Records, Token, User};
use crate::rule::Rule;
use crate::token;

/// What is known of a peer beside what it shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Applicant<'a> {
    /// The client id that it wants.
    pub id: Option<&'a str>,
    /// Its client name.
    pub name: Option<&'a str>,
    /// Its client type.
    pub kind: Option<&'a str>,
    /// Where it comes from; `None` within the process.
    pub address: Option<IpAddr>,
    /// What a verified certificate names it, each with its kind in front: `cn:worker-1`, `dns:worker.example`. Empty
    /// without one.
    pub certificate: &'a [&'a str],
}

/// Why somebody counts as somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody has to log in.
    Open,
    /// A connection within the process that owns the broker.
    Local,
    /// Showed nothing, and these rules let such peers in.
    Anonymous(Vec<Rule>),
    /// A user.
    User(Box<User>),
    /// The bearer of a token.
    Token(Box<Token>),
    /// An authenticator of the program's own let it in.
    Authenticator,
}

impl Holder {
    /// The word for it in logs.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Local => "local",
            Self::Anonymous(_) => "anonymous",
            Self::User(_) => "user",
            Self::Token(_) => "token",
            Self::Authenticator => "authenticator",
        }
    }
}

/// Who somebody is, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// For people: the user's name, the token's name, or what an authenticator said.
    pub name: Box<str>,
    /// Why.
    pub holder: Holder,
    /// What it may do.
    pub grants: Arc<Grants>,
    /// When it ends, Unix milliseconds.
    pub expires_ms: Option<u64>,
}

impl Identity {
    /// Somebody whom nobody asks who it is. It may do everything.
    #[must_use]
    pub fn trusted(holder: Holder) -> Self {
        let name = holder.as_str().into();
        Self { name, holder, grants: Arc::new(Grants::everything()), expires_ms: None }
    }

    /// The rules that it rests on.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        match &self.holder {
            Holder::User(user) => user.allow.clone(),
            Holder::Token(token) => token.allow.clone(),
            Holder::Anonymous(rules) => rules.clone(),
            Holder::Open | Holder::Local | Holder::Authenticator => vec![Rule::everything()],
        }
    }

    /// Somebody whom an authenticator let in.
    #[must_use]
    pub fn named(name: &str, rules: &[Rule]) -> Self {
        let grants = Arc::new(Grants::new(rules));
        Self { name: name.into(), holder: Holder::Authenticator, grants, expires_ms: None }
    }
}

/// Why a peer is not let in. Peers learn only whether they showed nothing, or something that does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It showed nothing.
    #[error("no credentials")]
    NoCredentials,
    /// What it showed cannot be read.
    #[error("unreadable credentials")]
    Unreadable,
    /// No such token, or not its secret.
    #[error("unknown token")]
    UnknownToken,
    /// The token was good once.
    #[error("expired token")]
    ExpiredToken,
    /// No such user, or not the password. Which of them is not said: whoever reads it could be whoever guesses.
    #[error("wrong user or password")]
    WrongPassword,
    /// Good credentials, in circumstances in which they do not count.
    #[error("not with this {0}")]
    Restricted(&'static str),
    /// Its address has guessed too often.
    #[error("too many attempts from this address")]
    TooManyAttempts,
    /// Too many others are being checked.
    #[error("too many logins at the same time")]
    Busy,
    /// An authenticator said no.
    #[error("the authenticator refused")]
    Authenticator,
    /// An authenticator raised, came too late or answered nonsense.
    #[error("the authenticator failed")]
    AuthenticatorFailed,
}

impl Refusal {
    /// Whether coming back later may help.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::TooManyAttempts | Self::Busy)
    }

    /// What the peer is told.
    #[must_use]
    pub const fn for_peer(self) -> &'static str {
        match self {
            Self::NoCredentials => {
                "this broker wants to know who you are: show a token, or a user and a password"
            }
            Self::TooManyAttempts => "too many attempts from this address; wait a while",
            Self::Busy => "too many logins at the same time; try again",
            _ => "these credentials do not let you in",
        }
    }
}

/// How far a login is.
#[derive(Debug)]
pub enum Progress {
    /// It is over.
    Done(Result<Identity, Refusal>),
    /// A password has to be checked, which takes long.
    Check(PasswordCheck),
}

/// A password to be checked. For a user that does not exist there is one too, and nothing that can be seen from outside
/// differs.
pub struct PasswordCheck {
    hash: PasswordHash,
    password: Secret,
    /// What holds if the password is right.
    outcome: Result<Identity, Refusal>,
}

impl fmt::Debug for PasswordCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordCheck(…)")
    }
}

impl PasswordCheck {
    /// Checks it. Takes tens of milliseconds and as many mebibytes.
    ///
    /// # Errors
    /// [`Refusal`] for a wrong password, and for a right one that does not count here.
    pub fn finish(self) -> Result<Identity, Refusal> {
        if self.hash.verify(self.password.expose()) { self.outcome } else { Err(Refusal::WrongPassword) }
    }
}

impl Records {
    /// Finds out who `applicant` is. `now_ms` is Unix milliseconds.
    #[must_use]
    pub fn log_in(&self, credentials: &Credentials, applicant: &Applicant<'_>, now_ms: u64) -> Progress {
        match credentials {
            Credentials::None => Progress::Done(self.without_credentials(applicant)),
            Credentials::Unreadable => Progress::Done(Err(Refusal::Unreadable)),
            Credentials::Token(secret) => Progress::Done(self.by_token(secret.expose(), applicant, now_ms)),
            Credentials::Password { user, password } => {
                Progress::Check(self.by_password(user, password.clone(), applicant))
            }
        }
    }

    fn without_credentials(&self, applicant: &Applicant<'_>) -> Result<Identity, Refusal> {
        let certified = |user: &&User| {
            let wanted = user.certificate.as_ref();
            wanted.is_some_and(|wanted| {
                applicant.certificate.iter().any(|name| wanted.matches(name.as_bytes()))
            })
        };
        if let Some(user) = self.users.iter().find(certified) {
            return admit_user(user, applicant);
        }
        if self.is_empty() {
            return Ok(Identity::trusted(Holder::Open));
        }
        if self.anonymous.is_empty() {
            return Err(Refusal::NoCredentials);
        }
        Ok(Identity {
            name: "anonymous".into(),
            holder: Holder::Anonymous(self.anonymous.clone()),
            grants: Arc::new(Grants::new(&self.anonymous)),
            expires_ms: None,
        })
    }

    fn by_token(&self, text: &str, applicant: &Applicant<'_>, now_ms: u64) -> Result<Identity, Refusal> {
        let (id, secret) = token::split(text).ok_or(Refusal::UnknownToken)?;
        let found = self.tokens.iter().find(|token| token.id == id);
        let token = found.filter(|token| token.hash.is_of(secret)).ok_or(Refusal::UnknownToken)?;
        if token.expires_ms.is_some_and(|expires| expires <= now_ms) {
            return Err(Refusal::ExpiredToken);
        }
        check(&token.restrict, applicant)?;
        Ok(Identity {
            name: token.name.as_str().into(),
            grants: Arc::new(Grants::new(&token.allow)),
            expires_ms: token.expires_ms,
            holder: Holder::Token(Box::new(token.clone())),
        })
    }

    fn by_password(&self, name: &str, password: Secret, applicant: &Applicant<'_>) -> PasswordCheck {
        let user = self.users.iter().find(|user| user.name == name);
        let known = user.and_then(|user| Some((user.password.clone()?, admit_user(user, applicant))));
        let (hash, outcome) = known.unwrap_or_else(|| (self.decoy(), Err(Refusal::WrongPassword)));
        PasswordCheck { hash, password, outcome }
    }

    /// A hash that costs as much as that of any user. Should somebody's own password open it, nobody is let in by it.
    fn decoy(&self) -> PasswordHash {
        let hashes = self.users.iter().filter_map(|user| user.password.as_ref());
        hashes.max_by_key(|hash| hash.cost()).cloned().unwrap_or_else(PasswordHash::decoy)
    }

    /// Whether what `identity` rests on is still as it was: its record, unchanged, and its time.
    #[must_use]
    pub fn uphold(&self, identity: &Identity, now_ms: u64) -> bool {
        let in_time = identity.expires_ms.is_none_or(|expires| expires > now_ms);
        in_time
            && match &identity.holder {
                Holder::Local | Holder::Authenticator => true,
                Holder::Open => self.is_empty(),
                Holder::Anonymous(rules) => self.anonymous == *rules,
                Holder::User(user) => self.users.iter().any(|known| known == &**user),
                Holder::Token(token) => self.tokens.iter().any(|known| known == &**token),
            }
    }
}

fn admit_user(user: &User, applicant: &Applicant<'_>) -> Result<Identity, Refusal> {
    check(&user.restrict, applicant)?;
    Ok(Identity {
        name: user.name.as_str().into(),
        grants: Arc::new(Grants::new(&user.allow)),
        holder: Holder::User(Box::new(user.clone())),
        expires_ms: None,
    })
}

fn check(restrict: &crate::record::Restrictions, applicant: &Applicant<'_>) -> Result<(), Refusal> {
    match restrict.violated(applicant.id, applicant.name, applicant.kind, applicant.address) {
        None => Ok(()),
        Some(what) => Err(Refusal::Restricted(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::record::Restrictions;
    use crate::resource::Resource;

    fn records() -> (Records, String) {
        let minted = token::mint([3; token::ENTROPY_BYTES]);
        let token = Token {
            id: minted.id,
            name: "deploy".into(),
            hash: minted.hash,
            allow: vec!["push:orders/*".parse().unwrap()],
            expires_ms: Some(1000),
            restrict: Restrictions {
                client_types: vec!["robot".parse().unwrap()],
                ..Restrictions::default()
            },
        };
        let user = User {
            name: "ann".into(),
            password: Some(PasswordHash::of("correct horse", [5; 16]).unwrap()),
            certificate: Some("cn:ann".parse().unwrap()),
            allow: vec![Rule::everything()],
            restrict: Restrictions::default(),
        };
        (Records { users: vec![user], tokens: vec![token], anonymous: Vec::new() }, minted.text)
    }

    fn log_in(
        records: &Records,
        text: &str,
        applicant: &Applicant<'_>,
        now_ms: u64,
    ) -> Result<Identity, Refusal> {
        match records.log_in(&Credentials::read(Some(text)), applicant, now_ms) {
            Progress::Done(result) => result,
            Progress::Check(check) => check.finish(),
        }
    }

    const ROBOT: Applicant<'_> =
        Applicant { id: None, name: None, kind: Some("robot"), address: None, certificate: &[] };

    #[test]
    fn a_token_lets_in_until_it_expires_and_where_it_counts() {
        let (records, token) = records();
        let identity = log_in(&records, &token, &ROBOT, 999).unwrap();
        assert_eq!((&*identity.name, identity.holder.as_str()), ("deploy", "token"));
        assert!(identity.grants.allow(Action::Push, &Resource::Queue("orders", 1)));
        assert!(!identity.grants.allow(Action::Pull, &Resource::Queue("orders", 1)));
        assert_eq!(log_in(&records, &token, &ROBOT, 1000), Err(Refusal::ExpiredToken));
        let human = Applicant { kind: Some("human"), ..ROBOT };
        assert_eq!(log_in(&records, &token, &human, 0), Err(Refusal::Restricted("client type")));
        let other = format!("{token}x");
        assert_eq!(log_in(&records, &other, &ROBOT, 0), Err(Refusal::UnknownToken));
        assert_eq!(log_in(&records, "mqt_ffffffffffff_x", &ROBOT, 0), Err(Refusal::UnknownToken));
        assert_eq!(log_in(&records, "anything", &ROBOT, 0), Err(Refusal::UnknownToken));
    }

    #[test]
    fn a_password_lets_its_user_in_and_a_stranger_is_checked_as_long() {
        let (records, _) = records();
        assert_eq!(&*log_in(&records, "ann:correct horse", &ROBOT, 0).unwrap().name, "ann");
        assert_eq!(log_in(&records, "ann:wrong horse", &ROBOT, 0), Err(Refusal::WrongPassword));
        // The decoy is the hash of a real user, but its password opens nothing under another name.
        assert_eq!(log_in(&records, "bob:correct horse", &ROBOT, 0), Err(Refusal::WrongPassword));
        let stranger = records.log_in(&Credentials::read(Some("bob:x")), &ROBOT, 0);
        assert!(matches!(stranger, Progress::Check(_)));
    }

    #[test]
    fn without_credentials_nobody_gets_in_unless_rules_say_so() {
        let (mut records, _) = records();
        assert_eq!(log_in(&records, "", &ROBOT, 0), Err(Refusal::NoCredentials));
        records.anonymous = vec!["pull:public/*".parse().unwrap()];
        let identity = log_in(&records, "", &ROBOT, 0).unwrap();
        assert!(identity.grants.allow(Action::Pull, &Resource::Queue("public", 1)));
        assert!(!identity.grants.allow(Action::Push, &Resource::Queue("public", 1)));
        // Wrong credentials never count as none.
        assert_eq!(log_in(&records, "nonsense", &ROBOT, 0), Err(Refusal::UnknownToken));
    }

    #[test]
    fn a_certificate_is_as_good_as_a_password() {
        let (records, _) = records();
        let applicant = Applicant { certificate: &["dns:laptop", "cn:ann"], ..ROBOT };
        assert_eq!(&*log_in(&records, "", &applicant, 0).unwrap().name, "ann");
        let applicant = Applicant { certificate: &["cn:annabel", "dns:cn:ann"], ..ROBOT };
        assert_eq!(log_in(&records, "", &applicant, 0), Err(Refusal::NoCredentials));
    }

    #[test]
    fn an_identity_falls_with_what_it_rests_on() {
        let (records, token) = records();
        let bearer = log_in(&records, &token, &ROBOT, 0).unwrap();
        let user = log_in(&records, "ann:correct horse", &ROBOT, 0).unwrap();
        assert!(records.uphold(&bearer, 999) && records.uphold(&user, 999));
        assert!(!records.uphold(&bearer, 1000));
        let mut changed = records.clone();
        changed.tokens[0].allow.clear();
        assert!(!changed.uphold(&bearer, 0));
        assert!(changed.uphold(&user, 0));
        changed.remove_user("ann").unwrap();
        assert!(!changed.uphold(&user, 0));
        let open = Identity::trusted(Holder::Open);
        assert!(Records::default().uphold(&open, 0) && !records.uphold(&open, 0));
        assert!(records.uphold(&Identity::trusted(Holder::Local), 0));
    }

    #[test]
    fn what_peers_are_told_does_not_tell_them_what_was_wrong() {
        let told = [
            Refusal::UnknownToken,
            Refusal::ExpiredToken,
            Refusal::WrongPassword,
            Refusal::Restricted("address"),
        ];
        assert!(told.iter().all(|refusal| refusal.for_peer() == Refusal::Authenticator.for_peer()));
    }
}
