//! Users and tokens as stored, and their limits.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::AddressRange;
use crate::password::PasswordHash;
use crate::pattern::Pattern;
use crate::rule::PermissionRule;
use crate::token::TokenHash;

/// Maximum number of users, and of tokens.
pub const RECORDS_MAX: usize = 10_000;
/// Maximum number of rules, patterns or address ranges in one record.
pub const LIST_MAX: usize = 256;
/// Maximum size in bytes of the name of a user or token.
pub const NAME_BYTES_MAX: usize = 64;

/// Conditions on the use of credentials. An empty list restricts nothing; otherwise one entry of each list must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restrictions {
    /// Permitted client ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_ids: Vec<Pattern>,
    /// Permitted client names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<Pattern>,
    /// Permitted client types.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_types: Vec<Pattern>,
    /// Permitted peer addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
}

/// A user: a person, or a program with a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Name, unique among users.
    pub name: String,
    /// Password hash; without one, the user cannot log in with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordHash>,
    /// Name in a client certificate that replaces the password: `cn:worker-1`, `dns:*.workers.example`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Pattern>,
    /// Permissions.
    pub allow: Vec<PermissionRule>,
    /// Conditions.
    #[serde(default)]
    pub restrict: Restrictions,
}

/// An access token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Unique id, which is part of the token's text.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Hash of the secret.
    pub hash: TokenHash,
    /// Permissions.
    pub allow: Vec<PermissionRule>,
    /// Time of expiry in milliseconds since the Unix epoch; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Conditions.
    #[serde(default)]
    pub restrict: Restrictions,
}

/// All users and tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Records {
    /// Users.
    pub users: Vec<User>,
    /// Tokens.
    pub tokens: Vec<Token>,
    /// Permissions of peers without credentials. Empty: such peers are rejected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub anonymous: Vec<PermissionRule>,
}

/// Why records are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityRecordError {
    /// Invalid name.
    #[error(
        "{name:?} is not a valid name of a user or token: expected 1 to {NAME_BYTES_MAX} bytes without ':' and control characters"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Invalid token id.
    #[error("{id:?} is not a valid token id: expected at most {NAME_BYTES_MAX} letters and digits")]
    Id {
        /// The id.
        id: String,
    },
    /// The name or id already exists.
    #[error("{what} already exists")]
    Exists {
        /// For example `a user "ann"`.
        what: String,
    },
    /// The name or id does not exist.
    #[error("{what} does not exist")]
    Missing {
        /// For example `user "ann"`.
        what: String,
    },
    /// A limit is exceeded.
    #[error("too many {what}: at most {most} are allowed")]
    TooMany {
        /// Limited items.
        what: &'static str,
        /// Maximum number.
        most: usize,
    },
}

impl Restrictions {
    /// Returns the name of the first violated condition, or `None`.
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

    /// Returns what `other` restricts less than this, or `None` if every peer that meets `other` meets this too.
    #[must_use]
    pub fn widened_by(&self, other: &Self) -> Option<&'static str> {
        fn is_wider<T>(own: &[T], other: &[T], covers: fn(&T, &T) -> bool) -> bool {
            let is_covered = |entry: &T| own.iter().any(|own| covers(own, entry));
            !own.is_empty() && (other.is_empty() || !other.iter().all(is_covered))
        }
        if is_wider(&self.client_ids, &other.client_ids, Pattern::covers) {
            Some("client ids")
        } else if is_wider(&self.client_names, &other.client_names, Pattern::covers) {
            Some("client names")
        } else if is_wider(&self.client_types, &other.client_types, Pattern::covers) {
            Some("client types")
        } else if is_wider(&self.addresses, &other.addresses, AddressRange::covers) {
            Some("addresses")
        } else {
            None
        }
    }

    fn check(&self) -> Result<(), AuthorityRecordError> {
        let lists =
            [self.client_ids.len(), self.client_names.len(), self.client_types.len(), self.addresses.len()];
        at_most("restrictions of one kind", lists.into_iter().max().unwrap_or(0), LIST_MAX)
    }
}

impl Records {
    /// Whether no one can log in. A broker that listens on loopback then allows everything to all clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.tokens.is_empty() && self.anonymous.is_empty()
    }

    /// Validates all records.
    ///
    /// # Errors
    /// [`AuthorityRecordError`] for the first problem.
    pub fn check(&self) -> Result<(), AuthorityRecordError> {
        at_most("users", self.users.len(), RECORDS_MAX)?;
        at_most("tokens", self.tokens.len(), RECORDS_MAX)?;
        at_most("rules of anonymous peers", self.anonymous.len(), LIST_MAX)?;
        let mut names = std::collections::HashSet::new();
        for user in &self.users {
            check_name(&user.name)?;
            at_most("rules of one user", user.allow.len(), LIST_MAX)?;
            user.restrict.check()?;
            if !names.insert(&user.name) {
                return Err(AuthorityRecordError::Exists { what: format!("a user {:?}", user.name) });
            }
        }
        let mut ids = std::collections::HashSet::new();
        for token in &self.tokens {
            check_name(&token.name)?;
            check_id(&token.id)?;
            at_most("rules of one token", token.allow.len(), LIST_MAX)?;
            token.restrict.check()?;
            if !ids.insert(&token.id) {
                return Err(AuthorityRecordError::Exists {
                    what: format!("a token with the id {:?}", token.id),
                });
            }
        }
        Ok(())
    }

    /// Combines the records of the configuration with those of a store.
    ///
    /// # Errors
    /// [`AuthorityRecordError`] if both contain the same user or token, or a limit is exceeded.
    pub fn joined(mut self, other: Self) -> Result<Self, AuthorityRecordError> {
        self.users.extend(other.users);
        self.tokens.extend(other.tokens);
        self.anonymous.extend(other.anonymous);
        self.check()?;
        Ok(self)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// [`AuthorityRecordError`] if the name exists, or the record is invalid.
    pub fn add_user(&mut self, user: User) -> Result<(), AuthorityRecordError> {
        self.users.push(user);
        self.check().inspect_err(|_| drop(self.users.pop()))
    }

    /// Sets the password of a user.
    ///
    /// # Errors
    /// [`AuthorityRecordError::Missing`] if the user does not exist.
    pub fn set_password(&mut self, name: &str, password: PasswordHash) -> Result<(), AuthorityRecordError> {
        let user = self.users.iter_mut().find(|user| user.name == name);
        user.ok_or_else(|| no_user(name))?.password = Some(password);
        Ok(())
    }

    /// Removes a user.
    ///
    /// # Errors
    /// [`AuthorityRecordError::Missing`] if the user does not exist.
    pub fn remove_user(&mut self, name: &str) -> Result<(), AuthorityRecordError> {
        let at = self.users.iter().position(|user| user.name == name).ok_or_else(|| no_user(name))?;
        self.users.remove(at);
        Ok(())
    }

    /// Adds a token.
    ///
    /// # Errors
    /// [`AuthorityRecordError`] if the id exists, or the record is invalid.
    pub fn add_token(&mut self, token: Token) -> Result<(), AuthorityRecordError> {
        self.tokens.push(token);
        self.check().inspect_err(|_| drop(self.tokens.pop()))
    }

    /// Removes the token with this id.
    ///
    /// # Errors
    /// [`AuthorityRecordError::Missing`] if the token does not exist.
    pub fn remove_token(&mut self, id: &str) -> Result<(), AuthorityRecordError> {
        let missing = || AuthorityRecordError::Missing { what: format!("token with the id {id:?}") };
        let at = self.tokens.iter().position(|token| token.id == id).ok_or_else(missing)?;
        self.tokens.remove(at);
        Ok(())
    }
}

fn no_user(name: &str) -> AuthorityRecordError {
    AuthorityRecordError::Missing { what: format!("user {name:?}") }
}

fn at_most(what: &'static str, given: usize, most: usize) -> Result<(), AuthorityRecordError> {
    if given > most { Err(AuthorityRecordError::TooMany { what, most }) } else { Ok(()) }
}

/// A name must not contain a colon, which separates it from the password in credentials.
fn check_name(name: &str) -> Result<(), AuthorityRecordError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && !name.contains(|character: char| character == ':' || character.is_control()) {
        Ok(())
    } else {
        Err(AuthorityRecordError::Name { name: name.to_owned() })
    }
}

fn check_id(id: &str) -> Result<(), AuthorityRecordError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&id.len());
    if fits && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        Ok(())
    } else {
        Err(AuthorityRecordError::Id { id: id.to_owned() })
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
    fn names_are_unique_and_a_rejected_record_is_not_stored() {
        let mut records = Records::default();
        assert!(records.is_empty());
        records.add_user(user("ann")).unwrap();
        assert!(matches!(records.add_user(user("ann")), Err(AuthorityRecordError::Exists { .. })));
        for name in ["", "a:b", "a\tb", &"x".repeat(65)] {
            assert!(matches!(records.add_user(user(name)), Err(AuthorityRecordError::Name { .. })), "{name}");
        }
        assert_eq!(records.users.len(), 1);
        assert!(!records.is_empty());
        records.remove_user("ann").unwrap();
        assert!(matches!(records.remove_user("ann"), Err(AuthorityRecordError::Missing { .. })));
    }

    #[test]
    fn new_password_replaces_that_of_its_user_only() {
        let hash = |salt| PasswordHash::of("correct horse", [salt; 16]).unwrap();
        let mut records = Records::default();
        for (name, salt) in [("ann", 1), ("bob", 2), ("eve", 3)] {
            records.add_user(User { password: Some(hash(salt)), ..user(name) }).unwrap();
        }
        records.set_password("bob", hash(4)).unwrap();
        let passwords: Vec<_> = records.users.iter().map(|user| user.password.clone()).collect();
        assert_eq!(passwords, [Some(hash(1)), Some(hash(4)), Some(hash(3))]);
        let missing = records.set_password("joe", hash(5));
        assert!(matches!(missing, Err(AuthorityRecordError::Missing { .. })));
    }

    #[test]
    fn lists_are_bounded() {
        let mut records = Records::default();
        let mut greedy = user("ann");
        greedy.allow = vec![PermissionRule::everything(); LIST_MAX + 1];
        assert!(matches!(records.add_user(greedy), Err(AuthorityRecordError::TooMany { .. })));
    }

    #[test]
    fn one_entry_of_each_restriction_must_match() {
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
