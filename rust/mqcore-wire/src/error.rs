//! What can be wrong with bytes: every decoder's one error type, and how a peer's octets are shown in one.

use std::fmt;

/// A peer broke its protocol. The connection it came from cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame is larger than the listener accepts.
    #[error("{part} of {size} octets is larger than the limit of {max}")]
    TooLarge {
        /// Which part of the frame: `"frame"`, `"header"`, ...
        part: &'static str,
        /// What the peer announced.
        size: u64,
        /// What the listener allows.
        max: u64,
    },
    /// The bytes cannot be a frame, whatever follows them.
    #[error("malformed {part}: {why}")]
    Malformed {
        /// Which part of the frame.
        part: &'static str,
        /// What was expected instead.
        why: &'static str,
    },
}

/// The beginning of something a peer wrote, safe to be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown(Box<str>);

impl Shown {
    const OCTETS_MAX: usize = 64;

    /// At most 64 octets of `octets`, with everything unprintable escaped.
    pub fn new(octets: &[u8]) -> Self {
        let mut text = octets[..octets.len().min(Self::OCTETS_MAX)].escape_ascii().to_string();
        if octets.len() > Self::OCTETS_MAX {
            text.push_str("...");
        }
        Self(text.into())
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
