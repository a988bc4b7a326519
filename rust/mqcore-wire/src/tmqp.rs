//! TMQP/2.0 frames (Twino MQ 3.0): layout, flags, lengths.
//!
//! All integers are little-endian. A frame is
//!
//! ```text
//! 0  first acquirer 0x80 | high priority 0x40 | type 0x3F
//! 1  pending response 0x80 | pending acknowledge 0x40 | has header 0x20 | hops (TTL) 0x1F
//! 2  message id length      3  source length      4  target length
//! 5  content type (2)       7  payload length (1, and 0, 2, 4 or 8 more)
//!    message id, source, target, [header length (2), header text], payload
//! ```
//!
//! The payload length octet is the length itself up to 252; 253, 254 and 255 say that it follows in two, four or
//! eight octets. A reader takes the longer forms for small lengths too; a writer always picks the shortest.
//!
//! What stands inside the parts is read by [`header`] (header text), [`hello`] (the first frame's body) and
//! [`operation`] (the numbers in the content type of server operations and of their answers).

pub mod header;
pub mod hello;
pub mod operation;

use crate::codec::Limits;
use crate::error::WireError;

/// The eight octets that open a connection, sent by the client and echoed by the server.
pub const PREAMBLE: [u8; 8] = *b"TMQP/2.0";
/// The older preamble, accepted and echoed as it came.
pub const PREAMBLE_V1: [u8; 8] = *b"TMQ/1.01";
/// A PING, always these octets.
pub const PING: [u8; 8] = [0x89, 0xFF, 0, 0, 0, 0, 0, 0];
/// A PONG, always these octets.
pub const PONG: [u8; 8] = [0x8A, 0xFF, 0, 0, 0, 0, 0, 0];
/// Hops (the document's TTL) of a frame that starts here.
pub const HOPS_FRESH: u8 = 16;
/// The most that the five bits of the hop count hold.
pub const HOPS_MAX: u8 = 31;
/// Octets of a message id, a source or a target, at most: the length has one octet.
pub const NAME_BYTES_MAX: usize = 255;
/// Octets of header text, at most: the length has two octets.
pub const HEADER_BYTES_MAX: usize = 65_535;

/// Octets before the extended payload length.
const FIXED_BYTES: usize = 8;
/// The fixed part and the longest extended payload length.
const FIXED_BYTES_MAX: usize = FIXED_BYTES + 8;

const FIRST_ACQUIRER: u8 = 0x80;
const HIGH_PRIORITY: u8 = 0x40;
const KIND_MASK: u8 = 0x3F;
const PENDING_RESPONSE: u8 = 0x80;
const PENDING_ACKNOWLEDGE: u8 = 0x40;
const HAS_HEADER: u8 = 0x20;
const HOPS_MASK: u8 = 0x1F;

/// Payload length octets that announce a length in the octets that follow.
const LENGTH_IN_2: u8 = 253;
const LENGTH_IN_4: u8 = 254;
const LENGTH_IN_8: u8 = 255;

/// The message type, 6 bits. Unknown values are kept: a reader ignores them, it does not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// Custom messages; ignored by the broker.
    pub const OTHER: Self = Self(0x00);
    /// The connection is about to close.
    pub const TERMINATE: Self = Self(0x08);
    /// Keep-alive request.
    pub const PING: Self = Self(0x09);
    /// Keep-alive answer.
    pub const PONG: Self = Self(0x0A);
    /// An operation on the server, and Hello.
    pub const SERVER: Self = Self(0x10);
    /// A message into or out of a queue.
    pub const QUEUE: Self = Self(0x11);
    /// A message from client to client.
    pub const DIRECT: Self = Self(0x12);
    /// Positive or negative acknowledgement.
    pub const ACKNOWLEDGE: Self = Self(0x13);
    /// Answer to an operation or to a direct message.
    pub const RESPONSE: Self = Self(0x14);
    /// A consumer asks for messages.
    pub const PULL: Self = Self(0x15);
    /// Subscription to, or notice of, an event.
    pub const EVENT: Self = Self(0x16);
    /// A message to a router.
    pub const ROUTER: Self = Self(0x17);

    /// Whether the has-header bit means anything. PING and PONG set every flag bit and carry no header.
    #[inline]
    const fn may_have_header(self) -> bool {
        self.0 != Self::PING.0 && self.0 != Self::PONG.0
    }
}

/// One frame, borrowing from the buffer it was decoded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Octet 0, 0x80.
    pub first_acquirer: bool,
    /// Octet 0, 0x40.
    pub high_priority: bool,
    /// Octet 0, low six bits.
    pub kind: Kind,
    /// Octet 1, 0x80.
    pub pending_response: bool,
    /// Octet 1, 0x40.
    pub pending_acknowledge: bool,
    /// Octet 1, low five bits: the document's TTL, a hop count, exactly as it stands in the bytes.
    pub hops: u8,
    /// Queue id, operation or status code.
    pub content_type: u16,
    /// Message id, UTF-8, at most 255 octets.
    pub id: &'a [u8],
    /// Who sent it.
    pub source: &'a [u8],
    /// Channel, client, router or event.
    pub target: &'a [u8],
    /// Header text: `key:value` lines ended by CR LF. Empty: no header.
    pub headers: &'a [u8],
    /// The body.
    pub payload: &'a [u8],
}

impl Frame<'static> {
    /// A frame of this kind that starts here: no flags, [`HOPS_FRESH`], every part empty.
    ///
    /// Meant for `Frame { target, payload, ..Frame::new(Kind::QUEUE) }`.
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
    /// Whether every part fits its place on the wire.
    ///
    /// To be asked before [`encode`] when a part comes from outside, another protocol for example.
    ///
    /// # Errors
    ///
    /// [`WireError::TooLarge`] for a part longer than its length field can say; [`WireError::Malformed`] for a
    /// kind of more than six bits, a hop count of more than five, and header text in a PING or PONG.
    pub fn check(&self) -> Result<(), WireError> {
        fits("message id", self.id, NAME_BYTES_MAX)?;
        fits("source", self.source, NAME_BYTES_MAX)?;
        fits("target", self.target, NAME_BYTES_MAX)?;
        fits("header", self.headers, HEADER_BYTES_MAX)?;
        if self.kind.0 > KIND_MASK {
            return Err(WireError::Malformed { part: "kind", why: "a message type has six bits" });
        }
        if self.hops > HOPS_MAX {
            return Err(WireError::Malformed { part: "hops", why: "a hop count has five bits" });
        }
        if !self.kind.may_have_header() && !self.headers.is_empty() {
            return Err(WireError::Malformed { part: "header", why: "PING and PONG carry none" });
        }
        Ok(())
    }

    /// Octets that [`encode`] appends for this frame.
    #[inline]
    #[must_use]
    pub fn encoded_size(&self) -> usize {
        self.head_size(self.payload.len() as u64) + self.payload.len()
    }

    /// Octets that [`encode_head`] appends for this frame.
    #[inline]
    #[must_use]
    pub fn head_size(&self, payload_size: u64) -> usize {
        let header = if self.headers.is_empty() { 0 } else { 2 + self.headers.len() };
        let length = extended_length_bytes(shortest_length_octet(payload_size));
        FIXED_BYTES + length + self.id.len() + self.source.len() + self.target.len() + header
    }
}

/// Reads one frame from the front of `input`. See [`crate::codec`] for the contract.
///
/// Hops are given as they stand: that a frame without hops left is to be ignored is the session's business.
///
/// # Errors
///
/// [`WireError::TooLarge`] as soon as the octets that announce a size beyond `limits` are there, and
/// [`WireError::Malformed`] for a has-header bit with a header length of zero.
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

/// How many octets the frame at the front of `input` has in all, or 0 while too few are there to know.
///
/// For a connection that found [`decode`] unfinished and wants to size its buffer: what is answered is within
/// `limits`, and is still a peer's word, so a careful reader grows towards it as octets really arrive.
///
/// # Errors
///
/// As [`decode`].
#[inline]
pub fn needed(input: &[u8], limits: &Limits) -> Result<usize, WireError> {
    let Some(fixed) = input.first_chunk::<FIXED_BYTES>() else { return Ok(0) };
    Ok(measure(fixed, input, limits)?.map_or(0, |extent| extent.total))
}

/// Appends `frame` to `output`.
///
/// The has-header bit follows from `frame.headers`, so PING and PONG as peers know them, with every flag set, are not
/// written by this: send [`PING`] and [`PONG`].
///
/// A frame that [`Frame::check`] refuses is a bug of the caller: it panics in a debug build. In a release build the
/// parts are clipped to what their length fields can say, because a length that wrapped around would let the rest
/// of the part be read as the next frame.
#[inline]
pub fn encode(frame: &Frame<'_>, output: &mut Vec<u8>) {
    output.reserve(frame.encoded_size());
    encode_head(frame, frame.payload.len() as u64, output);
    output.extend_from_slice(frame.payload);
}

/// Appends everything of `frame` that goes before its payload, for a caller that sends the payload itself.
///
/// `payload_size` octets of payload must follow; `frame.payload` is not looked at. What [`encode`] says about frames
/// that [`Frame::check`] refuses holds here.
#[inline]
pub fn encode_head(frame: &Frame<'_>, payload_size: u64, output: &mut Vec<u8>) {
    debug_assert_eq!(frame.check(), Ok(()), "asked to encode what no frame can hold");
    let id = clip(frame.id, NAME_BYTES_MAX);
    let source = clip(frame.source, NAME_BYTES_MAX);
    let target = clip(frame.target, NAME_BYTES_MAX);
    let headers = if frame.kind.may_have_header() { clip(frame.headers, HEADER_BYTES_MAX) } else { &[] };
    let length_octet = shortest_length_octet(payload_size);
    let fixed_bytes = FIXED_BYTES + extended_length_bytes(length_octet);

    let mut fixed = [0; FIXED_BYTES_MAX];
    fixed[0] = flag(frame.first_acquirer, FIRST_ACQUIRER)
        | flag(frame.high_priority, HIGH_PRIORITY)
        | (frame.kind.0 & KIND_MASK);
    fixed[1] = flag(frame.pending_response, PENDING_RESPONSE)
        | flag(frame.pending_acknowledge, PENDING_ACKNOWLEDGE)
        | flag(!headers.is_empty(), HAS_HEADER)
        | frame.hops.min(HOPS_MAX);
    // Clipped above: none of the three can lose a bit.
    fixed[2..5].copy_from_slice(&[id.len() as u8, source.len() as u8, target.len() as u8]);
    fixed[5..7].copy_from_slice(&frame.content_type.to_le_bytes());
    fixed[7] = length_octet;
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

/// Where the parts of a frame lie. Made only of sizes that were compared with the limits.
struct Extent {
    /// Where the message id begins: after the fixed part and the extended payload length.
    names_at: usize,
    /// Octets of message id, source and target together.
    names: usize,
    /// Octets of the header length: 2, or 0 without header.
    header_length_bytes: usize,
    /// Octets of header text.
    headers: usize,
    /// Octets of the whole frame.
    total: usize,
}

/// Reads every length that is there. `None`: one of them has not arrived yet.
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
    // A header has at least its length octets and one of text. A frame that is too large without the rest of its
    // header is refused now, not when the header's length arrives behind 765 octets of names.
    let header_at = names_at + names;
    within_limit(header_at + 3, payload, limits)?;
    let Some(length) = input.get(header_at..header_at + 2) else { return Ok(None) };
    let headers = usize::from(u16::from_le_bytes([length[0], length[1]]));
    header_within_limit(headers, limits)?;
    let total = within_limit(header_at + 2 + headers, payload, limits)?;
    Ok(Some(Extent { names_at, names, header_length_bytes: 2, headers, total }))
}

/// How many octets the extended payload length has, and the payload length. `None`: not all of them are there.
#[inline]
fn payload_length(octet: u8, input: &[u8]) -> Option<(usize, u64)> {
    if octet < LENGTH_IN_2 {
        return Some((0, u64::from(octet)));
    }
    let bytes = extended_length_bytes(octet);
    let mut length = [0; 8];
    length[..bytes].copy_from_slice(input.get(FIXED_BYTES..FIXED_BYTES + bytes)?);
    Some((bytes, u64::from_le_bytes(length)))
}

/// Octets of extended payload length that the payload length octet announces.
#[inline]
const fn extended_length_bytes(octet: u8) -> usize {
    match octet {
        LENGTH_IN_2 => 2,
        LENGTH_IN_4 => 4,
        LENGTH_IN_8 => 8,
        _ => 0,
    }
}

/// The payload length octet of the shortest form that can say `size`.
#[inline]
const fn shortest_length_octet(size: u64) -> u8 {
    match size {
        0..=252 => size as u8,
        253..=0xFFFF => LENGTH_IN_2,
        0x1_0000..=0xFFFF_FFFF => LENGTH_IN_4,
        _ => LENGTH_IN_8,
    }
}

/// The size of a frame, once it is known to be acceptable. The sum saturates: a payload may claim 2^64 - 1 octets.
#[inline]
fn within_limit(head: usize, payload: u64, limits: &Limits) -> Result<usize, WireError> {
    let total = (head as u64).saturating_add(payload);
    // Nothing larger can lie in memory, whatever the limits say.
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
        why: "the has-header bit asks for at least one octet of header text",
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
