//! The error type shared by all decoders, and a printable excerpt of a peer's bytes.

use std::fmt;

/// A protocol violation by the peer. The connection cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame is larger than the listener accepts.
    #[error("{part} of {size} bytes exceeds the limit of {max} bytes")]
    TooLarge {
        /// Which part of the frame: `"frame"`, `"header"`, ...
        part: &'static str,
        /// Size in bytes that the peer announced.
        size: u64,
        /// Largest size in bytes that the listener accepts.
        max: u64,
    },
    /// No continuation can make these bytes a valid frame.
    #[error("malformed {part}: {why}")]
    Malformed {
        /// Which part of the frame is malformed.
        part: &'static str,
        /// Expected content.
        why: &'static str,
    },
}

/// The first bytes that a peer sent, escaped so that they are safe to log.
#[derive(Clone, PartialEq, Eq)]
pub struct EscapedBytes(Box<str>);

impl EscapedBytes {
    const BYTES_MAX: usize = 64;

    /// Takes at most the first 64 bytes of `bytes` and escapes everything unprintable.
    pub fn new(bytes: &[u8]) -> Self {
        let mut text = bytes[..bytes.len().min(Self::BYTES_MAX)].escape_ascii().to_string();
        if bytes.len() > Self::BYTES_MAX {
            text.push_str("...");
        }
        Self(text.into())
    }
}

impl fmt::Display for EscapedBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for EscapedBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
