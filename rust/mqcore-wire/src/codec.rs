//! What every codec of this crate promises, and the limits that it is given.
//!
//! A codec is a pair of functions of bytes. `decode(input, limits)` answers
//!
//! * `Ok(Some((frame, consumed)))`: a whole frame that borrows from `input`;
//! * `Ok(None)`: the bytes so far are fine, more are needed (never an error);
//! * `Err(WireError)`: no further bytes can make this a frame.
//!
//! Nothing that a peer announces sizes anything before it was compared with [`Limits`].

/// How large the parts of a frame may be. One value a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Octets of a whole frame, its fixed part included. Default 64 MiB.
    pub frame_bytes_max: u64,
    /// Octets of the header block of a frame. Default 64 KiB - 1, the most that TMQP can express.
    pub header_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame_bytes_max: 64 * 1024 * 1024, header_bytes_max: 65_535 }
    }
}
