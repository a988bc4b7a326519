//! The contract that every codec in this crate follows, and the size limits it enforces.
//!
//! A codec is a pair of pure functions over bytes. `decode(input, limits)` returns
//!
//! * `Ok(Some((frame, consumed)))`: a complete frame that borrows from `input`, and its size in bytes;
//! * `Ok(None)`: the input is a valid prefix of a frame and more bytes are needed (never an error);
//! * `Err(WireError)`: no continuation can make the input a valid frame.
//!
//! A decoder compares every announced size with [`Limits`] before it uses that size for anything.

/// Maximum sizes of a frame and its parts. Each listener has one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a whole frame in bytes, including its fixed part. Default 64 MiB.
    pub frame_bytes_max: u64,
    /// Maximum size of a frame's header block in bytes. Default 65,535, the largest that TMQP can express.
    pub header_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame_bytes_max: 64 * 1024 * 1024, header_bytes_max: 65_535 }
    }
}
