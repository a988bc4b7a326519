//! TMQP/2.0 frames (Twino MQ 3.0): layout, flags, lengths, header text.
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

/// Reads one frame from the front of `input`. See [`crate::codec`] for the contract.
pub fn decode<'a>(_input: &'a [u8], _limits: &Limits) -> Result<Option<(Frame<'a>, usize)>, WireError> {
    todo!()
}

/// Appends `frame` to `output`.
pub fn encode(_frame: &Frame<'_>, _output: &mut Vec<u8>) {
    todo!()
}
