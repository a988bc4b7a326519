//! Credentials of a peer, parsed from the single text field that most protocols have.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Secret text. Its `Debug` output reveals nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret, for comparison.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// Credentials of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    None,
    /// An access token.
    Token(Secret),
    /// A user name and a password.
    Password {
        /// User name.
        user: String,
        /// Password.
        password: Secret,
    },
    /// Malformed credentials.
    Unreadable,
}

impl Credentials {
    /// Parses credentials as peers send them: `Bearer TOKEN` or the token alone; HTTP's `Basic` with base64 of
    /// `user:password`, or `user:password` itself. A token never contains a colon. Empty text means none; white space
    /// alone is malformed.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Self::None };
        let text = text.trim();
        if text.is_empty() {
            return Self::Unreadable;
        }
        if let Some(encoded) = after_word(text, "basic") {
            let decoded =
                STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            return decoded.as_deref().and_then(Self::pair).unwrap_or(Self::Unreadable);
        }
        let text = after_word(text, "bearer").unwrap_or(text).trim();
        Self::pair(text).unwrap_or_else(|| Self::Token(Secret::new(text)))
    }

    fn pair(text: &str) -> Option<Self> {
        let (user, password) = text.split_once(':')?;
        Some(Self::Password { user: user.to_owned(), password: Secret::new(password) })
    }
}

fn after_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = text.split_once(' ')?;
    first.eq_ignore_ascii_case(word).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(user: &str, password: &str) -> Credentials {
        Credentials::Password { user: user.into(), password: Secret::new(password) }
    }

    #[test]
    fn tokens_and_passwords_are_distinguished() {
        let token = Credentials::Token(Secret::new("mqt_1_2"));
        assert_eq!(Credentials::read(Some("mqt_1_2")), token);
        assert_eq!(Credentials::read(Some("Bearer mqt_1_2")), token);
        assert_eq!(Credentials::read(Some("bearer  mqt_1_2 ")), token);
        assert_eq!(Credentials::read(Some("ann:se:cret")), pair("ann", "se:cret"));
        assert_eq!(Credentials::read(Some("Basic YW5uOnNlOmNyZXQ=")), pair("ann", "se:cret"));
        assert_eq!(Credentials::read(None), Credentials::None);
        assert_eq!(Credentials::read(Some("")), Credentials::None);
    }

    #[test]
    fn malformed_credentials_are_not_taken_for_a_token() {
        for text in ["Basic !", "Basic YW5u", "Basic /w==", " ", "\t \n"] {
            assert_eq!(Credentials::read(Some(text)), Credentials::Unreadable, "{text}");
        }
    }

    #[test]
    fn debug_output_hides_secrets() {
        let shown = format!("{:?}", pair("ann", "hunter2"));
        assert_eq!(shown, r#"Password { user: "ann", password: Secret(…) }"#);
    }
}
