//! What a peer shows to be let in, read from the one text that most protocols have room for.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Text that must not appear anywhere: its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for those who compare it.
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

/// What a peer shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing.
    None,
    /// A token.
    Token(Secret),
    /// A user's name and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// Something that cannot be read.
    Unreadable,
}

impl Credentials {
    /// Reads a token as peers send it: `Bearer TOKEN` or the token alone; `Basic` and base64 of `user:password`, as HTTP has
    /// it, or `user:password` itself. No token has a colon.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        let text = text.unwrap_or_default().trim();
        if text.is_empty() {
            return Self::None;
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
    fn tokens_and_passwords_are_told_apart() {
        let token = Credentials::Token(Secret::new("mqt_1_2"));
        assert_eq!(Credentials::read(Some("mqt_1_2")), token);
        assert_eq!(Credentials::read(Some("Bearer mqt_1_2")), token);
        assert_eq!(Credentials::read(Some("bearer  mqt_1_2 ")), token);
        assert_eq!(Credentials::read(Some("ann:se:cret")), pair("ann", "se:cret"));
        assert_eq!(Credentials::read(Some("Basic YW5uOnNlOmNyZXQ=")), pair("ann", "se:cret"));
        assert_eq!(Credentials::read(None), Credentials::None);
        assert_eq!(Credentials::read(Some("  ")), Credentials::None);
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_something_else() {
        for text in ["Basic !", "Basic YW5u", "Basic /w=="] {
            assert_eq!(Credentials::read(Some(text)), Credentials::Unreadable, "{text}");
        }
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let shown = format!("{:?}", pair("ann", "hunter2"));
        assert!(shown.contains("ann") && !shown.contains("hunter2"));
    }
}
