//! What an ERROR frame says: a word that programs can tell apart, and a sentence for people.

use super::{Frame, encode};
use crate::error::WireError;

/// Octets of an ERROR frame's text that we write at most: some peers read no more.
pub const TEXT_BYTES_MAX: usize = 255;

/// What went wrong, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Token {
    /// The peer's version is not spoken here.
    Version,
    /// The extensions do not fit together.
    Extension,
    /// The octets are not of this protocol.
    Malformed,
    /// Something is larger than its limit.
    TooLarge,
    /// It may not be said now.
    Unexpected,
    /// There is no such command.
    UnknownCommand,
    /// A filter cannot be meant.
    BadFilter,
    /// An acknowledgement, or the lack of one, breaks the agreement.
    Ack,
    /// There is no such queue or topic, or it takes nothing.
    Destination,
    /// It is not allowed.
    Auth,
    /// It is more than is allowed.
    Limit,
    /// It took too long.
    Timeout,
    /// The broker stops.
    Shutdown,
    /// The fault is the other side's.
    Internal,
}

impl Token {
    /// As it stands in front of the text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Extension => "extension",
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::Unexpected => "unexpected",
            Self::UnknownCommand => "unknown-command",
            Self::BadFilter => "bad-filter",
            Self::Ack => "ack",
            Self::Destination => "destination",
            Self::Auth => "auth",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
            Self::Internal => "internal",
        }
    }
}

/// Why a side ends the conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", token.as_str())]
pub struct Failure {
    /// In one word.
    pub token: Token,
    /// What was wrong and what to do.
    pub why: String,
}

impl Failure {
    /// A failure.
    pub fn new(token: Token, why: impl Into<String>) -> Self {
        Self { token, why: why.into() }
    }

    /// Appends the ERROR frame that says it: the last one of its side. A long text is cut between characters.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let text = self.to_string();
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(fits).unwrap_or(0);
        encode(&Frame::Error { text: &text.as_bytes()[..end] }, output);
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let token = match error {
            WireError::TooLarge { .. } => Token::TooLarge,
            WireError::Malformed { .. } => Token::Malformed,
        };
        Self::new(token, error.to_string())
    }
}
