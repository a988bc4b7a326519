//! TMQP/2.0 frames (Twino MQ 3.0, section "Protocol Frame"): layout, flags and lengths.
//!
//! All integers are little-endian. A frame has this layout:
//!
//! ```text
//! 0  first acquirer 0x80 | high priority 0x40 | type 0x3F
//! 1  pending response 0x80 | pending acknowledge 0x40 | has header 0x20 | hops (TTL) 0x1F
//! 2  message id length      3  source length      4  target length
//! 5  content type (2)       7  payload length (1, and 0, 2, 4 or 8 more)
//!    message id, source, target, [header length (2), header text], payload
//! ```
//!
//! The payload length byte holds lengths up to 252 directly. The values 253, 254 and 255 announce that the length follows
//! in two, four or eight bytes. The decoder accepts the longer forms for small lengths too; the encoder always writes
//! the shortest form.
//!
//! Submodules read the content of the parts: [`header`] reads header text, [`hello`] the body of the first frame, and
//! [`operation`] the operation and status codes in the content type.
//!
//! ```
//! use mqcore_wire::codec::Limits;
//! use mqcore_wire::tmqp::{Frame, Kind, decode, encode};
//!
//! let frame = Frame { target: b"orders", payload: b"hello", ..Frame::new(Kind::QUEUE) };
//! let mut bytes = Vec::new();
//! encode(&frame, &mut bytes);
//!
//! let limits = Limits::default();
//! assert_eq!(decode(&bytes, &limits), Ok(Some((frame, bytes.len()))));
//! assert_eq!(decode(&bytes[..10], &limits), Ok(None), "more bytes are needed");
//! ```

pub mod header;
pub mod hello;
pub mod operation;

use crate::codec::Limits;
use crate::error::WireError;

/// The eight bytes that open a connection ("Version and Handshaking"): the client sends them and the server echoes them.
pub const PREAMBLE: [u8; 8] = *b"TMQP/2.0";
/// The older preamble. The server accepts it and echoes it unchanged.
pub const PREAMBLE_V1: [u8; 8] = *b"TMQ/1.01";
/// A PING frame, always exactly these bytes ("PING and PONG Messages").
pub const PING: [u8; 8] = [0x89, 0xFF, 0, 0, 0, 0, 0, 0];
/// A PONG frame, always exactly these bytes.
pub const PONG: [u8; 8] = [0x8A, 0xFF, 0, 0, 0, 0, 0, 0];
/// Initial hop count (the document's TTL) of a frame that originates here.
pub const HOPS_FRESH: u8 = 16;
/// Largest hop count: the field has five bits.
pub const HOPS_MAX: u8 = 31;
/// Maximum size in bytes of a message id, source or target: each length field has one byte.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum size of header text in bytes: the length field has two bytes.
pub const HEADER_BYTES_MAX: usize = 65_535;

/// Bytes before the extended payload length.
const FIXED_BYTES: usize = 8;
/// Size of the fixed part with the longest extended payload length.
const FIXED_BYTES_MAX: usize = FIXED_BYTES + 8;

const FIRST_ACQUIRER: u8 = 0x80;
const HIGH_PRIORITY: u8 = 0x40;
const KIND_MASK: u8 = 0x3F;
const PENDING_RESPONSE: u8 = 0x80;
const PENDING_ACKNOWLEDGE: u8 = 0x40;
const HAS_HEADER: u8 = 0x20;
const HOPS_MASK: u8 = 0x1F;

/// Payload length bytes which announce that the length follows in two, four or eight bytes.
const LENGTH_IN_2: u8 = 253;
const LENGTH_IN_4: u8 = 254;
const LENGTH_IN_8: u8 = 255;

/// The message type, six bits ("Message Types").
///
/// Unknown values are preserved, because a receiver ignores such frames instead of failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// Custom messages; the broker ignores them.
    pub const OTHER: Self = Self(0x00);
    /// The sender is about to close the connection.
    pub const TERMINATE: Self = Self(0x08);
    /// Heartbeat request.
    pub const PING: Self = Self(0x09);
    /// Heartbeat response.
    pub const PONG: Self = Self(0x0A);
    /// A server operation, including Hello.
    pub const SERVER: Self = Self(0x10);
    /// A message published to a queue or delivered from one.
    pub const QUEUE: Self = Self(0x11);
    /// A direct message from one client to another.
    pub const DIRECT: Self = Self(0x12);
    /// A positive or negative acknowledgement.
    pub const ACKNOWLEDGE: Self = Self(0x13);
    /// The response to an operation or to a direct message.
    pub const RESPONSE: Self = Self(0x14);
    /// A consumer's request to pull messages.
    pub const PULL: Self = Self(0x15);
    /// A subscription to an event, or the notification of one.
    pub const EVENT: Self = Self(0x16);
    /// A message published to a router.
    pub const ROUTER: Self = Self(0x17);

    /// Whether the has-header bit is meaningful. PING and PONG set every flag bit and carry no header.
    #[inline]
    const fn may_have_header(self) -> bool {
        self.0 != Self::PING.0 && self.0 != Self::PONG.0
    }
}

/// A TMQP frame that borrows from the buffer it was decoded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Deliver to the first free consumer only. Byte 0, bit 0x80.
    pub first_acquirer: bool,
    /// High priority. Byte 0, bit 0x40.
    pub high_priority: bool,
    /// Message type. Byte 0, low six bits.
    pub kind: Kind,
    /// The sender expects a response. Byte 1, bit 0x80.
    pub pending_response: bool,
    /// The sender expects an acknowledgement. Byte 1, bit 0x40.
    pub pending_acknowledge: bool,
    /// Remaining hops (the document's TTL), as sent. Byte 1, low five bits.
    pub hops: u8,
    /// Queue id, operation or status code, depending on [`Frame::kind`].
    pub content_type: u16,
    /// Message id: UTF-8, at most 255 bytes.
    pub id: &'a [u8],
    /// Client id of the sender, at most 255 bytes.
    pub source: &'a [u8],
    /// Target channel, client, router or event, at most 255 bytes.
    pub target: &'a [u8],
    /// Header text: `key:value` lines that end with CR LF. Empty means no header.
    pub headers: &'a [u8],
    /// Message body.
    pub payload: &'a [u8],
}

impl Frame<'static> {
    /// Creates a frame of type `kind` without flags, with [`HOPS_FRESH`] hops and all parts empty.
    ///
    /// Use it with struct update syntax: `Frame { target, payload, ..Frame::new(Kind::QUEUE) }`.
    #[inline]
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            first_acquirer: false,
            high_priority: false,
            kind,
            pending_response: false,
            pending_acknowledge: false,
            hops: HOPS_FRESH,
            content_type: 0,
            id: &[],
            source: &[],
            target: &[],
            headers: &[],
            payload: &[],
        }
    }
}

impl Frame<'_> {
    /// Checks that every part fits its field on the wire.
    ///
    /// Call it before [`encode`] if a part comes from outside, for example from another protocol.
    ///
    /// # Errors
    ///
    /// - [`WireError::TooLarge`]: a part is longer than its length field can express.
    /// - [`WireError::Malformed`]: the type exceeds six bits, the hop count exceeds five bits, or a PING or PONG has header
    ///   text.
    pub fn check(&self) -> Result<(), WireError> {
        fits("message id", self.id, NAME_BYTES_MAX)?;
        fits("source", self.source, NAME_BYTES_MAX)?;
        fits("target", self.target, NAME_BYTES_MAX)?;
        fits("header", self.headers, HEADER_BYTES_MAX)?;
        if self.kind.0 > KIND_MASK {
            return Err(WireError::Malformed { part: "message type", why: "a message type has six bits" });
        }
        if self.hops > HOPS_MAX {
            return Err(WireError::Malformed { part: "hop count", why: "a hop count has five bits" });
        }
        if !self.kind.may_have_header() && !self.headers.is_empty() {
            return Err(WireError::Malformed { part: "header", why: "PING and PONG carry no header" });
        }
        Ok(())
    }

    /// Number of bytes that [`encode`] appends for this frame.
    #[inline]
    #[must_use]
    pub fn encoded_size(&self) -> usize {
        self.head_size(self.payload.len() as u64) + self.payload.len()
    }

    /// Number of bytes that [`encode_head`] appends for this frame with a payload of `payload_size` bytes.
    #[inline]
    #[must_use]
    pub fn head_size(&self, payload_size: u64) -> usize {
        let header = if self.headers.is_empty() { 0 } else { 2 + self.headers.len() };
        let length = extended_length_bytes(shortest_length_byte(payload_size));
        FIXED_BYTES + length + self.id.len() + self.source.len() + self.target.len() + header
    }
}

/// Decodes one frame from the front of `input`. [`crate::codec`] describes the result.
///
/// The hop count is returned as sent. The session ignores frames without remaining hops.
///
/// # Errors
///
/// - [`WireError::TooLarge`]: an announced size exceeds `limits`. It is reported as soon as the length bytes have arrived.
/// - [`WireError::Malformed`]: the has-header bit is set but the header length is zero.
#[inline]
pub fn decode<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<(Frame<'a>, usize)>, WireError> {
    let Some(fixed) = input.first_chunk::<FIXED_BYTES>() else { return Ok(None) };
    let Some(extent) = measure(fixed, input, limits)? else { return Ok(None) };
    let Some(frame) = input.get(..extent.total) else { return Ok(None) };

    let (names, rest) = frame[extent.names_at..].split_at(extent.names);
    let (id, names) = names.split_at(usize::from(fixed[2]));
    let (source, target) = names.split_at(usize::from(fixed[3]));
    let (headers, payload) = rest[extent.header_length_bytes..].split_at(extent.headers);
    let [first, second, ..] = *fixed;
    let frame = Frame {
        first_acquirer: first & FIRST_ACQUIRER != 0,
        high_priority: first & HIGH_PRIORITY != 0,
        kind: Kind(first & KIND_MASK),
        pending_response: second & PENDING_RESPONSE != 0,
        pending_acknowledge: second & PENDING_ACKNOWLEDGE != 0,
        hops: second & HOPS_MASK,
        content_type: u16::from_le_bytes([fixed[5], fixed[6]]),
        id,
        source,
        target,
        headers,
        payload,
    };
    Ok(Some((frame, extent.total)))
}

/// Returns the total size in bytes of the frame at the front of `input`, or 0 while too little has arrived to know it.
///
/// A connection uses this to size its read buffer after [`decode`] returned `None`. The result never exceeds `limits`, but
/// the peer chose it, so a careful reader grows its buffer only as bytes arrive.
///
/// # Errors
///
/// The same as [`decode`].
#[inline]
pub fn needed(input: &[u8], limits: &Limits) -> Result<usize, WireError> {
    let Some(fixed) = input.first_chunk::<FIXED_BYTES>() else { return Ok(0) };
    Ok(measure(fixed, input, limits)?.map_or(0, |extent| extent.total))
}

/// Appends `frame` to `output`.
///
/// The has-header bit follows from `frame.headers`. To send a heartbeat, write [`PING`] or [`PONG`] instead: peers expect
/// all flag bits to be set in them.
///
/// # Panics
///
/// In debug builds, if [`Frame::check`] rejects the frame; that is a bug in the caller. Release builds truncate each part to
/// what its length field can express, because a wrapped length would let the peer read the rest as the next frame.
#[inline]
pub fn encode(frame: &Frame<'_>, output: &mut Vec<u8>) {
    output.reserve(frame.encoded_size());
    encode_head(frame, frame.payload.len() as u64, output);
    output.extend_from_slice(frame.payload);
}

/// Appends everything that precedes the payload, for a caller that sends the payload itself.
///
/// Exactly `payload_size` bytes of payload must follow. `frame.payload` is ignored.
///
/// # Panics
///
/// The same as [`encode`].
#[inline]
pub fn encode_head(frame: &Frame<'_>, payload_size: u64, output: &mut Vec<u8>) {
    debug_assert_eq!(frame.check(), Ok(()), "the frame has a part that cannot be encoded");
    let id = clip(frame.id, NAME_BYTES_MAX);
    let source = clip(frame.source, NAME_BYTES_MAX);
    let target = clip(frame.target, NAME_BYTES_MAX);
    let headers = if frame.kind.may_have_header() { clip(frame.headers, HEADER_BYTES_MAX) } else { &[] };
    let length_byte = shortest_length_byte(payload_size);
    let fixed_bytes = FIXED_BYTES + extended_length_bytes(length_byte);

    let mut fixed = [0; FIXED_BYTES_MAX];
    fixed[0] = flag(frame.first_acquirer, FIRST_ACQUIRER)
        | flag(frame.high_priority, HIGH_PRIORITY)
        | (frame.kind.0 & KIND_MASK);
    fixed[1] = flag(frame.pending_response, PENDING_RESPONSE)
        | flag(frame.pending_acknowledge, PENDING_ACKNOWLEDGE)
        | flag(!headers.is_empty(), HAS_HEADER)
        | frame.hops.min(HOPS_MAX);
    // Truncated above, so none of the three casts loses bits.
    fixed[2..5].copy_from_slice(&[id.len() as u8, source.len() as u8, target.len() as u8]);
    fixed[5..7].copy_from_slice(&frame.content_type.to_le_bytes());
    fixed[7] = length_byte;
    fixed[8..].copy_from_slice(&payload_size.to_le_bytes());

    output.reserve(frame.head_size(payload_size));
    output.extend_from_slice(&fixed[..fixed_bytes]);
    output.extend_from_slice(id);
    output.extend_from_slice(source);
    output.extend_from_slice(target);
    if !headers.is_empty() {
        output.extend_from_slice(&(headers.len() as u16).to_le_bytes());
        output.extend_from_slice(headers);
    }
}

/// Offsets and sizes of a frame's parts. Every size in it was checked against the limits.
struct Extent {
    /// Offset of the message id: after the fixed part and the extended payload length.
    names_at: usize,
    /// Total bytes of message id, source and target.
    names: usize,
    /// Bytes of the header length field: 2, or 0 without a header.
    header_length_bytes: usize,
    /// Bytes of header text.
    headers: usize,
    /// Bytes of the whole frame.
    total: usize,
}

/// Reads the length fields. Returns `None` if one of them has not arrived yet.
#[inline]
fn measure(fixed: &[u8; FIXED_BYTES], input: &[u8], limits: &Limits) -> Result<Option<Extent>, WireError> {
    let Some((length_bytes, payload)) = payload_length(fixed[7], input) else { return Ok(None) };
    let names_at = FIXED_BYTES + length_bytes;
    let names = usize::from(fixed[2]) + usize::from(fixed[3]) + usize::from(fixed[4]);
    let has_header = fixed[1] & HAS_HEADER != 0 && Kind(fixed[0] & KIND_MASK).may_have_header();
    if !has_header {
        let total = within_limit(names_at + names, payload, limits)?;
        return Ok(Some(Extent { names_at, names, header_length_bytes: 0, headers: 0, total }));
    }
    // A header has two length bytes and at least one byte of text. Rejecting an oversized frame here avoids waiting for
    // up to 765 bytes of names before the header length arrives.
    let header_at = names_at + names;
    within_limit(header_at + 3, payload, limits)?;
    let Some(length) = input.get(header_at..header_at + 2) else { return Ok(None) };
    let headers = usize::from(u16::from_le_bytes([length[0], length[1]]));
    header_within_limit(headers, limits)?;
    let total = within_limit(header_at + 2 + headers, payload, limits)?;
    Ok(Some(Extent { names_at, names, header_length_bytes: 2, headers, total }))
}

/// Size of the extended payload length field, and the payload length. `None` if the field is incomplete.
#[inline]
fn payload_length(byte: u8, input: &[u8]) -> Option<(usize, u64)> {
    if byte < LENGTH_IN_2 {
        return Some((0, u64::from(byte)));
    }
    let bytes = extended_length_bytes(byte);
    let mut length = [0; 8];
    length[..bytes].copy_from_slice(input.get(FIXED_BYTES..FIXED_BYTES + bytes)?);
    Some((bytes, u64::from_le_bytes(length)))
}

/// Size in bytes of the extended payload length that the payload length byte announces.
#[inline]
const fn extended_length_bytes(byte: u8) -> usize {
    match byte {
        LENGTH_IN_2 => 2,
        LENGTH_IN_4 => 4,
        LENGTH_IN_8 => 8,
        _ => 0,
    }
}

/// The payload length byte for `size` in its shortest form.
#[inline]
const fn shortest_length_byte(size: u64) -> u8 {
    match size {
        0..=252 => size as u8,
        253..=0xFFFF => LENGTH_IN_2,
        0x1_0000..=0xFFFF_FFFF => LENGTH_IN_4,
        _ => LENGTH_IN_8,
    }
}

/// Returns the frame size if it is acceptable. The sum saturates, because a peer may announce 2^64 - 1 bytes.
#[inline]
fn within_limit(head: usize, payload: u64, limits: &Limits) -> Result<usize, WireError> {
    let total = (head as u64).saturating_add(payload);
    // No buffer in memory can be larger, whatever the configured limit is.
    let max = limits.frame_bytes_max.min(isize::MAX as u64);
    if total > max {
        return Err(too_large("frame", total, max));
    }
    Ok(total as usize)
}

#[inline]
fn header_within_limit(headers: usize, limits: &Limits) -> Result<(), WireError> {
    if headers as u64 > u64::from(limits.header_bytes_max) {
        return Err(too_large("header", headers as u64, u64::from(limits.header_bytes_max)));
    }
    if headers == 0 {
        return Err(empty_header());
    }
    Ok(())
}

#[cold]
fn too_large(part: &'static str, size: u64, max: u64) -> WireError {
    WireError::TooLarge { part, size, max }
}

#[cold]
fn empty_header() -> WireError {
    WireError::Malformed {
        part: "header",
        why: "the has-header bit requires at least one byte of header text",
    }
}

fn fits(part: &'static str, bytes: &[u8], max: usize) -> Result<(), WireError> {
    if bytes.len() > max { Err(too_large(part, bytes.len() as u64, max as u64)) } else { Ok(()) }
}

#[inline]
fn clip(bytes: &[u8], max: usize) -> &[u8] {
    &bytes[..bytes.len().min(max)]
}

#[inline]
const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}
