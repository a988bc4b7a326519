//! Authentication: from a peer's credentials to its identity, or to a rejection.

use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;

use crate::credentials::{Credentials, Secret};
use crate::grants::Grants;
use crate::password::PasswordHash;
use crate::record::{Records, Restrictions, Token, User};
use crate::rule::PermissionRule;
use crate::token;

/// A peer that logs in: everything known about it besides its credentials.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoginPeer<'a> {
    /// Requested client id.
    pub id: Option<&'a str>,
    /// Client name.
    pub name: Option<&'a str>,
    /// Client type.
    pub kind: Option<&'a str>,
    /// Peer address; `None` for a connection within the process.
    pub address: Option<IpAddr>,
    /// Names from a verified client certificate, each with a prefix for its type: `cn:worker-1`, `dns:worker.example`. Empty
    /// without a certificate.
    pub certificate: &'a [&'a str],
}

/// The source of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentitySource {
    /// No login is required.
    Open,
    /// A connection within the process that owns the broker.
    Local,
    /// The peer has no credentials; these rules apply to such peers.
    Anonymous(Vec<PermissionRule>),
    /// A user.
    User(Box<User>),
    /// The holder of a token.
    Token(Box<Token>),
    /// The program's authenticator accepted the peer.
    Authenticator,
}

impl IdentitySource {
    /// Name used in logs.
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

/// An authenticated identity with its permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Display name: the user's name, the token's name, or the name from an authenticator.
    pub name: Box<str>,
    /// Source of the identity.
    pub holder: IdentitySource,
    /// Permissions.
    pub grants: Arc<Grants>,
    /// Time of expiry in milliseconds since the Unix epoch; `None`: never.
    pub expires_ms: Option<u64>,
}

impl Identity {
    /// Creates an identity with all permissions, for a peer that need not log in.
    #[must_use]
    pub fn trusted(holder: IdentitySource) -> Self {
        let name = holder.as_str().into();
        Self { name, holder, grants: Arc::new(Grants::everything()), expires_ms: None }
    }

    /// The rules that grant the permissions.
    #[must_use]
    pub fn rules(&self) -> Vec<PermissionRule> {
        match &self.holder {
            IdentitySource::User(user) => user.allow.clone(),
            IdentitySource::Token(token) => token.allow.clone(),
            IdentitySource::Anonymous(rules) => rules.clone(),
            IdentitySource::Open | IdentitySource::Local | IdentitySource::Authenticator => {
                vec![PermissionRule::everything()]
            }
        }
    }

    /// The conditions on the use of its credentials; `None`: it has none of its own.
    #[must_use]
    pub fn restrictions(&self) -> Option<&Restrictions> {
        match &self.holder {
            IdentitySource::User(user) => Some(&user.restrict),
            IdentitySource::Token(token) => Some(&token.restrict),
            _ => None,
        }
    }

    /// Creates the identity of a peer that an authenticator accepted.
    #[must_use]
    pub fn named(name: &str, rules: &[PermissionRule]) -> Self {
        let grants = Arc::new(Grants::new(rules));
        Self { name: name.into(), holder: IdentitySource::Authenticator, grants, expires_ms: None }
    }
}

/// Why a login was rejected. The peer only learns whether it sent no credentials or invalid ones; see
/// [`LoginRejection::for_peer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginRejection {
    /// The peer sent no credentials.
    #[error("no credentials")]
    NoCredentials,
    /// The credentials are malformed.
    #[error("malformed credentials")]
    Unreadable,
    /// The token does not exist, or its secret is wrong.
    #[error("unknown token")]
    UnknownToken,
    /// The token has expired.
    #[error("expired token")]
    ExpiredToken,
    /// The user does not exist, or the password is wrong. The text does not distinguish them, so that an attacker learns nothing.
    #[error("wrong user or password")]
    WrongPassword,
    /// The credentials are valid, but restricted to other circumstances.
    #[error("credentials not valid for this {0}")]
    Restricted(&'static str),
    /// The address has used up its password checks.
    #[error("too many attempts from this address")]
    TooManyAttempts,
    /// Too many logins are in progress.
    #[error("too many logins at the same time")]
    Busy,
    /// The authenticator rejected the credentials.
    #[error("rejected by the authenticator")]
    Authenticator,
    /// The authenticator raised an exception, exceeded its timeout or returned an invalid value.
    #[error("authenticator failure")]
    AuthenticatorFailed,
}

impl LoginRejection {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::TooManyAttempts | Self::Busy)
    }

    /// The text sent to the peer.
    #[must_use]
    pub const fn for_peer(self) -> &'static str {
        match self {
            Self::NoCredentials => "login required: send a token, or a user name and a password",
            Self::TooManyAttempts => "too many attempts from this address; wait and try again",
            Self::Busy => "too many logins at the same time; try again",
            _ => "invalid credentials",
        }
    }
}

/// The state of a login.
#[derive(Debug)]
pub enum LoginProgress {
    /// The login is complete.
    Done(Result<Identity, LoginRejection>),
    /// A password must be checked, which takes tens of milliseconds.
    Check(PasswordCheck),
}

/// A pending password check. It also exists for an unknown user, so that a peer cannot distinguish the two cases by their
/// timing.
pub struct PasswordCheck {
    hash: PasswordHash,
    password: Secret,
    /// Result of the login if the password is correct.
    outcome: Result<Identity, LoginRejection>,
}

impl fmt::Debug for PasswordCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordCheck(…)")
    }
}

impl PasswordCheck {
    /// Checks the password. Takes tens of milliseconds and tens of MiB of memory.
    ///
    /// # Errors
    /// [`LoginRejection`] if the password is wrong, or correct but restricted to other circumstances.
    pub fn finish(self) -> Result<Identity, LoginRejection> {
        if self.hash.verify(self.password.expose()) {
            self.outcome
        } else {
            Err(LoginRejection::WrongPassword)
        }
    }
}

impl Records {
    /// Begins a login. `now_ms` is the time in milliseconds since the Unix epoch.
    #[must_use]
    pub fn log_in(&self, credentials: &Credentials, peer: &LoginPeer<'_>, now_ms: u64) -> LoginProgress {
        match credentials {
            Credentials::None => LoginProgress::Done(self.without_credentials(peer)),
            Credentials::Unreadable => LoginProgress::Done(Err(LoginRejection::Unreadable)),
            Credentials::Token(secret) => LoginProgress::Done(self.by_token(secret.expose(), peer, now_ms)),
            Credentials::Password { user, password } => {
                LoginProgress::Check(self.by_password(user, password.clone(), peer))
            }
        }
    }

    fn without_credentials(&self, peer: &LoginPeer<'_>) -> Result<Identity, LoginRejection> {
        let certified = |user: &&User| {
            let wanted = user.certificate.as_ref();
            wanted.is_some_and(|wanted| peer.certificate.iter().any(|name| wanted.matches(name.as_bytes())))
        };
        if let Some(user) = self.users.iter().find(certified) {
            return admit_user(user, peer);
        }
        if self.is_empty() {
            return Ok(Identity::trusted(IdentitySource::Open));
        }
        if self.anonymous.is_empty() {
            return Err(LoginRejection::NoCredentials);
        }
        Ok(Identity {
            name: "anonymous".into(),
            holder: IdentitySource::Anonymous(self.anonymous.clone()),
            grants: Arc::new(Grants::new(&self.anonymous)),
            expires_ms: None,
        })
    }

    fn by_token(&self, text: &str, peer: &LoginPeer<'_>, now_ms: u64) -> Result<Identity, LoginRejection> {
        let (id, secret) = token::split(text).ok_or(LoginRejection::UnknownToken)?;
        let found = self.tokens.iter().find(|token| token.id == id);
        let token = found.filter(|token| token.hash.is_of(secret)).ok_or(LoginRejection::UnknownToken)?;
        if token.expires_ms.is_some_and(|expires| expires <= now_ms) {
            return Err(LoginRejection::ExpiredToken);
        }
        check(&token.restrict, peer)?;
        Ok(Identity {
            name: token.name.as_str().into(),
            grants: Arc::new(Grants::new(&token.allow)),
            expires_ms: token.expires_ms,
            holder: IdentitySource::Token(Box::new(token.clone())),
        })
    }

    fn by_password(&self, name: &str, password: Secret, peer: &LoginPeer<'_>) -> PasswordCheck {
        let user = self.users.iter().find(|user| user.name == name);
        let known = user.and_then(|user| Some((user.password.clone()?, admit_user(user, peer))));
        let (hash, outcome) = known.unwrap_or_else(|| (self.decoy(), Err(LoginRejection::WrongPassword)));
        PasswordCheck { hash, password, outcome }
    }

    /// Returns a hash at least as expensive as any user's. Its password is useless, because the result is always a rejection.
    fn decoy(&self) -> PasswordHash {
        let hashes = self.users.iter().filter_map(|user| user.password.as_ref());
        hashes.max_by_key(|hash| hash.cost()).cloned().unwrap_or_else(PasswordHash::decoy)
    }

    /// Whether an identity is still valid: it has not expired, and its user or token has not changed.
    #[must_use]
    pub fn uphold(&self, identity: &Identity, now_ms: u64) -> bool {
        let in_time = identity.expires_ms.is_none_or(|expires| expires > now_ms);
        in_time
            && match &identity.holder {
                IdentitySource::Local | IdentitySource::Authenticator => true,
                IdentitySource::Open => self.is_empty(),
                IdentitySource::Anonymous(rules) => self.anonymous == *rules,
                IdentitySource::User(user) => self.users.iter().any(|known| known == &**user),
                IdentitySource::Token(token) => self.tokens.iter().any(|known| known == &**token),
            }
    }
}

fn admit_user(user: &User, peer: &LoginPeer<'_>) -> Result<Identity, LoginRejection> {
    check(&user.restrict, peer)?;
    Ok(Identity {
        name: user.name.as_str().into(),
        grants: Arc::new(Grants::new(&user.allow)),
        holder: IdentitySource::User(Box::new(user.clone())),
        expires_ms: None,
    })
}

fn check(restrict: &Restrictions, peer: &LoginPeer<'_>) -> Result<(), LoginRejection> {
    match restrict.violated(peer.id, peer.name, peer.kind, peer.address) {
        None => Ok(()),
        Some(what) => Err(LoginRejection::Restricted(what)),
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
            allow: vec![PermissionRule::everything()],
            restrict: Restrictions::default(),
        };
        (Records { users: vec![user], tokens: vec![token], anonymous: Vec::new() }, minted.text)
    }

    fn log_in(
        records: &Records,
        text: &str,
        peer: &LoginPeer<'_>,
        now_ms: u64,
    ) -> Result<Identity, LoginRejection> {
        match records.log_in(&Credentials::read(Some(text)), peer, now_ms) {
            LoginProgress::Done(result) => result,
            LoginProgress::Check(check) => check.finish(),
        }
    }

    const ROBOT: LoginPeer<'_> =
        LoginPeer { id: None, name: None, kind: Some("robot"), address: None, certificate: &[] };

    #[test]
    fn token_is_valid_until_it_expires_and_within_its_restrictions() {
        let (records, token) = records();
        let identity = log_in(&records, &token, &ROBOT, 999).unwrap();
        assert_eq!((&*identity.name, identity.holder.as_str()), ("deploy", "token"));
        assert!(identity.grants.allow(Action::Push, &Resource::Queue("orders", 1)));
        assert!(!identity.grants.allow(Action::Pull, &Resource::Queue("orders", 1)));
        assert_eq!(log_in(&records, &token, &ROBOT, 1000), Err(LoginRejection::ExpiredToken));
        let human = LoginPeer { kind: Some("human"), ..ROBOT };
        assert_eq!(log_in(&records, &token, &human, 0), Err(LoginRejection::Restricted("client type")));
        let other = format!("{token}x");
        assert_eq!(log_in(&records, &other, &ROBOT, 0), Err(LoginRejection::UnknownToken));
        assert_eq!(log_in(&records, "mqt_ffffffffffff_x", &ROBOT, 0), Err(LoginRejection::UnknownToken));
        assert_eq!(log_in(&records, "anything", &ROBOT, 0), Err(LoginRejection::UnknownToken));
    }

    #[test]
    fn password_check_takes_equally_long_for_unknown_users() {
        let (records, _) = records();
        assert_eq!(&*log_in(&records, "ann:correct horse", &ROBOT, 0).unwrap().name, "ann");
        assert_eq!(log_in(&records, "ann:wrong horse", &ROBOT, 0), Err(LoginRejection::WrongPassword));
        // The decoy is the hash of a real user, but its password opens nothing under another name.
        assert_eq!(log_in(&records, "bob:correct horse", &ROBOT, 0), Err(LoginRejection::WrongPassword));
        let stranger = records.log_in(&Credentials::read(Some("bob:x")), &ROBOT, 0);
        assert!(matches!(stranger, LoginProgress::Check(_)));
    }

    #[test]
    fn unknown_user_is_checked_against_the_most_expensive_hash() {
        let (mut records, _) = records();
        let ann = records.users.remove(0);
        // Memory times passes: the second one costs the most, although the third one needs more memory.
        for (name, cost) in [("ann", "m=19456,t=2"), ("bob", "m=9728,t=8"), ("eve", "m=32768,t=1")] {
            let hash = format!("$argon2id$v=19${cost},p=1$c29tZXNhbHRzb21lc2FsdA${}", "A".repeat(43));
            let password = Some(hash.parse().unwrap());
            records.users.push(User { name: name.into(), password, ..ann.clone() });
        }
        let LoginProgress::Check(check) = records.log_in(&Credentials::read(Some("joe:x")), &ROBOT, 0) else {
            panic!("a login with a password needs a check");
        };
        assert_eq!(Some(check.hash), records.users[1].password);
    }

    #[test]
    fn peers_without_credentials_are_rejected_unless_anonymous_rules_exist() {
        let (mut records, _) = records();
        assert_eq!(log_in(&records, "", &ROBOT, 0), Err(LoginRejection::NoCredentials));
        records.anonymous = vec!["pull:public/*".parse().unwrap()];
        let identity = log_in(&records, "", &ROBOT, 0).unwrap();
        assert!(identity.grants.allow(Action::Pull, &Resource::Queue("public", 1)));
        assert!(!identity.grants.allow(Action::Push, &Resource::Queue("public", 1)));
        // Invalid credentials are never treated as missing ones.
        assert_eq!(log_in(&records, "nonsense", &ROBOT, 0), Err(LoginRejection::UnknownToken));
    }

    #[test]
    fn certificate_can_replace_the_password() {
        let (records, _) = records();
        let peer = LoginPeer { certificate: &["dns:laptop", "cn:ann"], ..ROBOT };
        assert_eq!(&*log_in(&records, "", &peer, 0).unwrap().name, "ann");
        let peer = LoginPeer { certificate: &["cn:annabel", "dns:cn:ann"], ..ROBOT };
        assert_eq!(log_in(&records, "", &peer, 0), Err(LoginRejection::NoCredentials));
    }

    #[test]
    fn identity_is_invalid_after_its_record_changed_or_expired() {
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
        let open = Identity::trusted(IdentitySource::Open);
        assert!(Records::default().uphold(&open, 0) && !records.uphold(&open, 0));
        assert!(records.uphold(&Identity::trusted(IdentitySource::Local), 0));
    }

    #[test]
    fn rejection_text_does_not_reveal_the_reason() {
        let rejections = [
            LoginRejection::UnknownToken,
            LoginRejection::ExpiredToken,
            LoginRejection::WrongPassword,
            LoginRejection::Restricted("address"),
        ];
        assert!(
            rejections.iter().all(|refusal| refusal.for_peer() == LoginRejection::Authenticator.for_peer())
        );
    }
}
