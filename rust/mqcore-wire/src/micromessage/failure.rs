//! Protocol errors: the content of an ERROR frame, a machine-readable code followed by text for people.

use super::{Frame, encode};
use crate::error::WireError;

/// Maximum size in bytes of an ERROR frame's text. Some peers read no more.
pub const TEXT_BYTES_MAX: usize = 255;

/// Machine-readable error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorToken {
    /// The protocol version is not supported.
    Version,
    /// The extensions are incompatible.
    Extension,
    /// The bytes are not valid MicroMessage2.
    Malformed,
    /// Something exceeds its limit.
    TooLarge,
    /// The frame is not allowed in this state.
    Unexpected,
    /// The command does not exist.
    UnknownCommand,
    /// A filter is invalid.
    BadFilter,
    /// An acknowledgement, or a missing one, violates the agreement.
    Ack,
    /// The queue or topic does not exist.
    Destination,
    /// The queue is stopped.
    Stopped,
    /// The request is valid, but impossible in the current state.
    Unacceptable,
    /// A consumer or a delivery handler rejected the message.
    Rejected,
    /// It is impossible now, but may be possible later.
    Busy,
    /// The peer lacks permission.
    Auth,
    /// A quota is exceeded.
    Limit,
    /// A time limit was exceeded.
    Timeout,
    /// The broker is shutting down.
    Shutdown,
    /// An internal error of the sender.
    Internal,
}

impl ErrorToken {
    /// Returns the code as written at the beginning of the text.
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
            Self::Stopped => "stopped",
            Self::Unacceptable => "unacceptable",
            Self::Rejected => "rejected",
            Self::Busy => "busy",
            Self::Auth => "auth",
            Self::Limit => "limit",
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
            Self::Internal => "internal",
        }
    }
}

/// The reason for which a side closes the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", token.as_str())]
pub struct ProtocolFailure {
    /// Machine-readable code.
    pub token: ErrorToken,
    /// Human-readable reason, with the correction if there is one.
    pub why: String,
}

impl ProtocolFailure {
    /// Creates a failure.
    pub fn new(token: ErrorToken, why: impl Into<String>) -> Self {
        Self { token, why: why.into() }
    }

    /// Appends the ERROR frame, the last frame of its sender. Text beyond [`TEXT_BYTES_MAX`] is cut at a character boundary.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let text = self.to_string();
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(fits).unwrap_or(0);
        encode(&Frame::Error { text: &text.as_bytes()[..end] }, output);
    }
}

impl From<WireError> for ProtocolFailure {
    fn from(error: WireError) -> Self {
        let token = match error {
            WireError::TooLarge { .. } => ErrorToken::TooLarge,
            WireError::Malformed { .. } => ErrorToken::Malformed,
        };
        Self::new(token, error.to_string())
    }
}
