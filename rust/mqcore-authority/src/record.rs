//! Users and tokens as they are stored, and what they may be.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::AddressRange;
use crate::password::PasswordHash;
use crate::pattern::Pattern;
use crate::rule::Rule;
use crate::token::TokenHash;

/// Users, and tokens, at most.
pub const RECORDS_MAX: usize = 10_000;
/// Rules, patterns or address ranges of one record at most.
pub const LIST_MAX: usize = 256;
/// Bytes of the name of a user or a token at most.
pub const NAME_BYTES_MAX: usize = 64;

/// Under which circumstances credentials count. An empty list restricts nothing; of a list, one must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restrictions {
    /// Client ids that the peer may take.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_ids: Vec<Pattern>,
    /// Client names that it may take.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<Pattern>,
    /// Client types that it may have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_types: Vec<Pattern>,
    /// Where it may come from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
}

/// A person, or a program with a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Unique among users.
    pub name: String,
    /// The hash of the password; without one, nobody logs in with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordHash>,
    /// A name in a client certificate that is as good as the password: `cn:worker-1`, `dns:*.workers.example`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Pattern>,
    /// What the user may do.
    pub allow: Vec<Rule>,
    /// Under which circumstances.
    #[serde(default)]
    pub restrict: Restrictions,
}

/// A word that lets a program in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Unique; a part of the token itself.
    pub id: String,
    /// For people.
    pub name: String,
    /// The hash of the secret.
    pub hash: TokenHash,
    /// What its bearer may do.
    pub allow: Vec<Rule>,
    /// From when on it is worth nothing, Unix milliseconds; `None`: it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Under which circumstances it counts.
    #[serde(default)]
    pub restrict: Restrictions,
}

/// All that is known about who may do what.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Records {
    /// Users.
    pub users: Vec<User>,
    /// Tokens.
    pub tokens: Vec<Token>,
    /// What peers without credentials may do. Empty: they are refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub anonymous: Vec<Rule>,
}

/// Why records cannot be used together, or one of them not at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A name that cannot be one.
    #[error(
        "{name:?} cannot be the name of a user or a token: 1 to {NAME_BYTES_MAX} bytes, no ':', no control characters"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// An id that no token can have.
    #[error("{id:?} is no id of a token: letters and digits, at most {NAME_BYTES_MAX}")]
    Id {
        /// The id.
        id: String,
    },
    /// Two of one name.
    #[error("there is {what} already")]
    Exists {
        /// For example `a user "ann"`.
        what: String,
    },
    /// None of that name.
    #[error("there is no {what}")]
    Missing {
        /// For example `user "ann"`.
        what: String,
    },
    /// More than can be kept.
    #[error("{what}: at most {most} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
}

impl Restrictions {
    /// What is not as it must be; `None` if all is.
    pub(crate) fn violated(
        &self,
        id: Option<&str>,
        name: Option<&str>,
        kind: Option<&str>,
        address: Option<IpAddr>,
    ) -> Option<&'static str> {
        let one_of = |patterns: &[Pattern], value: Option<&str>| {
            let value = value.unwrap_or_default();
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(value.as_bytes()))
        };
        let from = |address: IpAddr| self.addresses.iter().any(|range| range.contains(address));
        if !one_of(&self.client_ids, id) {
            Some("client id")
        } else if !one_of(&self.client_names, name) {
            Some("client name")
        } else if !one_of(&self.client_types, kind) {
            Some("client type")
        } else if !self.addresses.is_empty() && !address.is_some_and(from) {
            Some("address")
        } else {
            None
        }
    }

    fn check(&self) -> Result<(), RecordError> {
        let lists =
            [self.client_ids.len(), self.client_names.len(), self.client_types.len(), self.addresses.len()];
        at_most("restrictions of one kind", lists.into_iter().max().unwrap_or(0), LIST_MAX)
    }
}

impl Records {
    /// Whether nobody was ever named who could log in: then a broker that listens on loopback lets everybody do everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.tokens.is_empty() && self.anonymous.is_empty()
    }

    /// Whether all of it can be kept and used.
    ///
    /// # Errors
    /// [`RecordError`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), RecordError> {
        at_most("users", self.users.len(), RECORDS_MAX)?;
        at_most("tokens", self.tokens.len(), RECORDS_MAX)?;
        at_most("rules of anonymous peers", self.anonymous.len(), LIST_MAX)?;
        let mut names = std::collections::HashSet::new();
        for user in &self.users {
            check_name(&user.name)?;
            at_most("rules of one user", user.allow.len(), LIST_MAX)?;
            user.restrict.check()?;
            if !names.insert(&user.name) {
                return Err(RecordError::Exists { what: format!("a user {:?}", user.name) });
            }
        }
        let mut ids = std::collections::HashSet::new();
        for token in &self.tokens {
            check_name(&token.name)?;
            check_id(&token.id)?;
            at_most("rules of one token", token.allow.len(), LIST_MAX)?;
            token.restrict.check()?;
            if !ids.insert(&token.id) {
                return Err(RecordError::Exists { what: format!("a token with the id {:?}", token.id) });
            }
        }
        Ok(())
    }

    /// Both together: what a configuration says and what a store has.
    ///
    /// # Errors
    /// [`RecordError`] if they name the same user or token.
    pub fn joined(mut self, other: Self) -> Result<Self, RecordError> {
        self.users.extend(other.users);
        self.tokens.extend(other.tokens);
        self.anonymous.extend(other.anonymous);
        self.check()?;
        Ok(self)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// [`RecordError`] if there is one of that name, or the record cannot be kept.
    pub fn add_user(&mut self, user: User) -> Result<(), RecordError> {
        self.users.push(user);
        self.check().inspect_err(|_| drop(self.users.pop()))
    }

    /// Replaces the password of a user.
    ///
    /// # Errors
    /// [`RecordError::Missing`] if there is none of that name.
    pub fn set_password(&mut self, name: &str, password: PasswordHash) -> Result<(), RecordError> {
        let user = self.users.iter_mut().find(|user| user.name == name);
        user.ok_or_else(|| no_user(name))?.password = Some(password);
        Ok(())
    }

    /// Removes a user.
    ///
    /// # Errors
    /// [`RecordError::Missing`] if there is none of that name.
    pub fn remove_user(&mut self, name: &str) -> Result<(), RecordError> {
        let at = self.users.iter().position(|user| user.name == name).ok_or_else(|| no_user(name))?;
        self.users.remove(at);
        Ok(())
    }

    /// Adds a token.
    ///
    /// # Errors
    /// [`RecordError`] if there is one of that id, or the record cannot be kept.
    pub fn add_token(&mut self, token: Token) -> Result<(), RecordError> {
        self.tokens.push(token);
        self.check().inspect_err(|_| drop(self.tokens.pop()))
    }

    /// Removes the token of this id.
    ///
    /// # Errors
    /// [`RecordError::Missing`] if there is none.
    pub fn remove_token(&mut self, id: &str) -> Result<(), RecordError> {
        let missing = || RecordError::Missing { what: format!("token with the id {id:?}") };
        let at = self.tokens.iter().position(|token| token.id == id).ok_or_else(missing)?;
        self.tokens.remove(at);
        Ok(())
    }
}

fn no_user(name: &str) -> RecordError {
    RecordError::Missing { what: format!("user {name:?}") }
}

fn at_most(what: &'static str, given: usize, most: usize) -> Result<(), RecordError> {
    if given > most { Err(RecordError::TooMany { what, most }) } else { Ok(()) }
}

/// A colon ends a name where it stands before a password.
fn check_name(name: &str) -> Result<(), RecordError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && !name.contains(|character: char| character == ':' || character.is_control()) {
        Ok(())
    } else {
        Err(RecordError::Name { name: name.to_owned() })
    }
}

fn check_id(id: &str) -> Result<(), RecordError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&id.len());
    if fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        Ok(())
    } else {
        Err(RecordError::Id { id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> User {
        User {
            name: name.into(),
            password: None,
            certificate: None,
            allow: Vec::new(),
            restrict: Restrictions::default(),
        }
    }

    #[test]
    fn a_name_is_taken_once_and_a_refused_record_leaves_nothing() {
        let mut records = Records::default();
        assert!(records.is_empty());
        records.add_user(user("ann")).unwrap();
        assert!(matches!(records.add_user(user("ann")), Err(RecordError::Exists { .. })));
        for name in ["", "a:b", "a\tb", &"x".repeat(65)] {
            assert!(matches!(records.add_user(user(name)), Err(RecordError::Name { .. })), "{name}");
        }
        assert_eq!(records.users.len(), 1);
        assert!(!records.is_empty());
        records.remove_user("ann").unwrap();
        assert!(matches!(records.remove_user("ann"), Err(RecordError::Missing { .. })));
    }

    #[test]
    fn lists_are_bounded() {
        let mut records = Records::default();
        let mut greedy = user("ann");
        greedy.allow = vec![Rule::everything(); LIST_MAX + 1];
        assert!(matches!(records.add_user(greedy), Err(RecordError::TooMany { .. })));
    }

    #[test]
    fn of_each_list_of_restrictions_one_must_match() {
        let restrict = Restrictions {
            client_names: vec!["worker-*".parse().unwrap(), "boss".parse().unwrap()],
            addresses: vec!["10.0.0.0/8".parse().unwrap()],
            ..Restrictions::default()
        };
        let inside = Some("10.1.2.3".parse().unwrap());
        assert_eq!(restrict.violated(None, Some("worker-1"), None, inside), None);
        assert_eq!(restrict.violated(None, Some("boss"), None, inside), None);
        assert_eq!(restrict.violated(None, Some("Boss"), None, inside), Some("client name"));
        assert_eq!(restrict.violated(None, None, None, inside), Some("client name"));
        assert_eq!(restrict.violated(None, Some("boss"), None, None), Some("address"));
        assert_eq!(
            restrict.violated(None, Some("boss"), None, Some("11.0.0.1".parse().unwrap())),
            Some("address")
        );
        assert_eq!(Restrictions::default().violated(None, None, None, None), None);
    }
}
