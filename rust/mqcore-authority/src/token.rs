//! Access tokens: long random strings. A token is shown once when it is created; only its hash is stored.
//!
//! A token has the form `mqt_ID_SECRET`. The id finds its record. The secret has 256 random bits and cannot be guessed, so a
//! fast hash is sufficient.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::hexadecimal;

/// Prefix of every token, by which people and secret scanners recognize it.
pub const PREFIX: &str = "mqt_";
/// Number of random bytes in a token.
pub const ENTROPY_BYTES: usize = 38;

const ID_BYTES: usize = 6;

/// The SHA-256 hash of a token's secret.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenHash([u8; 32]);

/// The text is not a token hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token hash must have 64 hexadecimal digits")]
pub struct TokenHashError;

/// A newly created token.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Id: twelve hexadecimal digits.
    pub id: String,
    /// Complete token, to be shown once.
    pub text: String,
    /// Hash to store.
    pub hash: TokenHash,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Minted").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Creates a token from fresh random bytes.
#[must_use]
pub fn mint(entropy: [u8; ENTROPY_BYTES]) -> NewToken {
    let (id, secret) = entropy.split_at(ID_BYTES);
    let id = hexadecimal::encode(id);
    let secret = URL_SAFE_NO_PAD.encode(secret);
    let hash = TokenHash::of(&secret);
    NewToken { text: format!("{PREFIX}{id}_{secret}"), id, hash }
}

/// Splits a token into id and secret; `None` if it is not a token.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(PREFIX)?.split_once('_').filter(|(id, secret)| !id.is_empty() && !secret.is_empty())
}

impl TokenHash {
    fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Whether this is the hash of `secret`. Compares in constant time.
    pub(crate) fn is_of(&self, secret: &str) -> bool {
        Self::of(secret).0.ct_eq(&self.0).into()
    }
}

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, TokenHashError> {
        hexadecimal::decode(text).map(Self).ok_or(TokenHashError)
    }
}

impl TryFrom<String> for TokenHash {
    type Error = TokenHashError;

    fn try_from(text: String) -> Result<Self, TokenHashError> {
        text.parse()
    }
}

impl From<TokenHash> for String {
    fn from(hash: TokenHash) -> Self {
        hexadecimal::encode(&hash.0)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_found_by_its_id_and_verified_by_its_secret() {
        let minted = mint([7; ENTROPY_BYTES]);
        assert!(minted.text.starts_with("mqt_070707070707_"));
        let (id, secret) = split(&minted.text).unwrap();
        assert_eq!(id, minted.id);
        assert!(minted.hash.is_of(secret));
        assert!(!minted.hash.is_of(&secret[1..]));
        assert!(!minted.text.contains(':'), "a colon would make it a user and a password");
    }

    #[test]
    fn secret_may_contain_the_separator() {
        let minted = mint([0xff; ENTROPY_BYTES]);
        assert!(minted.text.ends_with("___w") || minted.text.matches('_').count() > 2);
        let (id, secret) = split(&minted.text).unwrap();
        assert_eq!(id, minted.id);
        assert!(minted.hash.is_of(secret));
    }

    #[test]
    fn text_of_another_form_is_not_a_token() {
        for text in ["", "mqt_", "mqt_abc", "mqt__x", "mqt_x_", "MQT_a_b", "Bearer mqt_a_b"] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn debug_output_hides_the_secret_and_its_hash() {
        let minted = mint([9; ENTROPY_BYTES]);
        let shown = format!("{minted:?} {:?}", minted.hash);
        assert!(!shown.contains(split(&minted.text).unwrap().1));
        assert!(!shown.contains(&String::from(minted.hash)));
        assert!(shown.contains(&minted.id), "the id says which token it is");
    }
}
