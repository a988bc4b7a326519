//! What can be wrong with bytes: every decoder's one error type.

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
