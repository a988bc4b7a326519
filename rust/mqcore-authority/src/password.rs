//! Passwords: hashed with Argon2id, never kept.

use std::fmt;
use std::str::FromStr;

use argon2::password_hash::phc;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use serde::{Deserialize, Serialize};

/// Bytes of a password at most: enough for any sentence, and nobody can make the server hash a book.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Bytes of a password at least, when one is set.
pub const PASSWORD_BYTES_MIN: usize = 8;
/// Memory that checking one password may take, KiB. More is refused when it is stored, not when somebody logs in.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;
/// Passes over that memory at most.
const PASSES_MAX: u32 = 64;

/// The hash of a password with its salt and its costs, in PHC form: `$argon2id$v=19$m=19456,t=2,p=1$...`.
///
/// `Debug` and `Display`, which the store needs, are not the same: logs show nothing of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(Box<str>);

/// Why something is no password, or no hash of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// Too short to be one.
    #[error("a password has at least {PASSWORD_BYTES_MIN} bytes")]
    TooShort,
    /// Too long to be hashed.
    #[error("a password has at most {PASSWORD_BYTES_MAX} bytes")]
    TooLong,
    /// Not what `PasswordHash::of` makes.
    #[error(
        "this is no Argon2id hash in PHC form ($argon2id$v=19$m=...,t=...,p=...$salt$hash) of bearable cost"
    )]
    NoHash,
    /// The algorithm failed, for want of memory.
    #[error("the password could not be hashed")]
    Failed,
}

impl PasswordHash {
    /// Hashes `password` with the algorithm's own defaults (19 MiB, 2 passes). `salt` are fresh random bytes. Takes tens of
    /// milliseconds.
    ///
    /// # Errors
    /// [`PasswordError`] for a password that is too short or too long.
    pub fn of(password: &str, salt: [u8; 16]) -> Result<Self, PasswordError> {
        match password.len() {
            0..PASSWORD_BYTES_MIN => return Err(PasswordError::TooShort),
            PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX => {}
            _ => return Err(PasswordError::TooLong),
        }
        let hash: phc::PasswordHash = Argon2::default()
            .hash_password_with_salt(password.as_bytes(), &salt)
            .map_err(|_| PasswordError::Failed)?;
        Ok(Self(hash.to_string().into()))
    }

    /// Whether `password` is the one. Takes as long as `of` did, whatever the answer.
    #[must_use]
    pub fn verify(&self, password: &str) -> bool {
        password.len() <= PASSWORD_BYTES_MAX
            && phc::PasswordHash::new(&self.0)
                .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
    }

    /// Memory times passes: what checking it costs, for comparing.
    pub(crate) fn cost(&self) -> u64 {
        let params = phc::PasswordHash::new(&self.0).ok().and_then(|hash| Params::try_from(&hash).ok());
        params.map_or(0, |params| u64::from(params.m_cost()) * u64::from(params.t_cost()))
    }

    /// The text that is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A hash of no password, to be checked against where there is no user: so that this takes as long.
    pub(crate) fn decoy() -> Self {
        Self("$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5IGhhcyB0aGlzMQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".into())
    }
}

impl FromStr for PasswordHash {
    type Err = PasswordError;

    fn from_str(text: &str) -> Result<Self, PasswordError> {
        let hash = phc::PasswordHash::new(text).map_err(|_| PasswordError::NoHash)?;
        let params = Params::try_from(&hash).map_err(|_| PasswordError::NoHash)?;
        let bearable = params.m_cost() <= MEMORY_KIB_MAX && params.t_cost() <= PASSES_MAX;
        let whole = hash.salt.is_some() && hash.hash.is_some() && hash.algorithm.as_str() == "argon2id";
        if bearable && whole { Ok(Self(text.into())) } else { Err(PasswordError::NoHash) }
    }
}

impl TryFrom<String> for PasswordHash {
    type Error = PasswordError;

    fn try_from(text: String) -> Result<Self, PasswordError> {
        text.parse()
    }
}

impl From<PasswordHash> for String {
    fn from(hash: PasswordHash) -> Self {
        hash.0.into()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_known_again_and_no_other() {
        let hash = PasswordHash::of("correct horse", *b"0123456789abcdef").unwrap();
        assert!(hash.verify("correct horse"));
        assert!(!hash.verify("correct horsf"));
        assert!(!hash.verify(""));
        assert!(!hash.as_str().contains("horse"));
        assert_eq!(hash.as_str().parse::<PasswordHash>().unwrap(), hash);
        assert_ne!(hash, PasswordHash::of("correct horse", *b"0123456789abcdeg").unwrap());
    }

    #[test]
    fn nobody_has_the_decoy_and_it_costs_as_much_as_a_real_one() {
        let decoy: PasswordHash = PasswordHash::decoy().as_str().parse().unwrap();
        assert!(!decoy.verify("nobody has this1"));
        assert_eq!(decoy.cost(), PasswordHash::of("12345678", [1; 16]).unwrap().cost());
        assert!(decoy.cost() > 0);
    }

    #[test]
    fn passwords_have_a_least_and_a_greatest_length() {
        assert_eq!(PasswordHash::of("1234567", [0; 16]), Err(PasswordError::TooShort));
        assert_eq!(PasswordHash::of(&"x".repeat(1025), [0; 16]), Err(PasswordError::TooLong));
    }

    #[test]
    fn hashes_of_other_sorts_and_of_unbearable_cost_are_refused() {
        let salted = "c29tZXNhbHRzb21lc2FsdA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for text in [
            "",
            "hunter2",
            "$argon2id$v=19$m=19456,t=2,p=1",
            &format!("$argon2i$v=19$m=19456,t=2,p=1${salted}"),
            &format!("$argon2id$v=19$m=4194304,t=2,p=1${salted}"),
            &format!("$argon2id$v=19$m=19456,t=4000000,p=1${salted}"),
        ] {
            assert_eq!(text.parse::<PasswordHash>(), Err(PasswordError::NoHash), "{text}");
        }
    }
}
