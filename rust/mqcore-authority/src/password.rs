//! Passwords, hashed with Argon2id and never stored in clear text.

use std::fmt;
use std::str::FromStr;

use argon2::password_hash::phc;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use serde::{Deserialize, Serialize};

/// Maximum size of a password in bytes. Limits the cost of hashing.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Minimum size of a new password in bytes.
pub const PASSWORD_BYTES_MIN: usize = 8;
/// Maximum memory for one password check, in KiB. Checked when a hash is stored, not when a user logs in.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;
/// Maximum number of passes over that memory.
const PASSES_MAX: u32 = 64;

/// A password hash with its salt and cost parameters, in PHC format: `$argon2id$v=19$m=19456,t=2,p=1$...`.
///
/// `Debug` reveals nothing, unlike `as_str`, which the store uses.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(Box<str>);

/// Why a password or a hash is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// The password is too short.
    #[error("a password must have at least {PASSWORD_BYTES_MIN} bytes")]
    TooShort,
    /// The password is too long.
    #[error("a password must have at most {PASSWORD_BYTES_MAX} bytes")]
    TooLong,
    /// The hash has another format or excessive cost parameters.
    #[error(
        "expected an Argon2id hash in PHC format ($argon2id$v=19$m=...,t=...,p=...$salt$hash) with at most 1 GiB and 64 passes"
    )]
    NoHash,
    /// Hashing failed, for lack of memory.
    #[error("the password could not be hashed")]
    Failed,
}

impl PasswordHash {
    /// Hashes `password` with Argon2's default parameters (19 MiB, 2 passes). `salt` must be fresh random bytes. Takes tens of
    /// milliseconds.
    ///
    /// # Errors
    /// [`PasswordError`] if the password is too short or too long, or hashing fails.
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

    /// Whether `password` matches. Takes as long as hashing, whatever the result.
    #[must_use]
    pub fn verify(&self, password: &str) -> bool {
        password.len() <= PASSWORD_BYTES_MAX
            && phc::PasswordHash::new(&self.0)
                .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
    }

    /// Cost of a check for comparison: memory times passes.
    pub(crate) fn cost(&self) -> u64 {
        let params = phc::PasswordHash::new(&self.0).ok().and_then(|hash| Params::try_from(&hash).ok());
        params.map_or(0, |params| u64::from(params.m_cost()) * u64::from(params.t_cost()))
    }

    /// The hash in PHC format.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A hash without a known password, checked for unknown users so that this takes equally long.
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
    fn only_the_same_password_matches_its_hash() {
        let hash = PasswordHash::of("correct horse", *b"0123456789abcdef").unwrap();
        assert!(hash.verify("correct horse"));
        assert!(!hash.verify("correct horsf"));
        assert!(!hash.verify(""));
        assert!(!hash.as_str().contains("horse"));
        assert_eq!(hash.as_str().parse::<PasswordHash>().unwrap(), hash);
        assert_ne!(hash, PasswordHash::of("correct horse", *b"0123456789abcdeg").unwrap());
    }

    #[test]
    fn decoy_costs_as_much_as_a_real_hash_and_never_matches() {
        let decoy: PasswordHash = PasswordHash::decoy().as_str().parse().unwrap();
        assert!(!decoy.verify("nobody has this1"));
        assert_eq!(decoy.cost(), PasswordHash::of("12345678", [1; 16]).unwrap().cost());
        assert!(decoy.cost() > 0);
    }

    #[test]
    fn password_length_is_limited() {
        assert_eq!(PasswordHash::of("1234567", [0; 16]), Err(PasswordError::TooShort));
        assert_eq!(PasswordHash::of(&"x".repeat(1025), [0; 16]), Err(PasswordError::TooLong));
    }

    #[test]
    fn other_algorithms_and_excessive_costs_are_rejected() {
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
