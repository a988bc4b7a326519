//! ZMTP 3.0 and 3.1, the transport protocol of ZeroMQ, with the NULL security mechanism.
//!
//! ```text
//! greeting  ff, 8 bytes of anything, 7f, major, minor, mechanism (20), as-server, 31 bytes of padding
//! frame     flags, length (1, or 8 if LONG is set), body
//!           flags: 1 MORE frames of this message follow, 2 LONG, 4 COMMAND
//! command   name length (1), name, data
//! ```
//!
//! Each side sends its greeting and the command READY, then any messages and commands. A message has one or more frames.
//! Commands appear between messages. libzmq's heartbeats may also place them between the frames of one message, which the
//! decoder accepts.
//!
//! [`ZmtpDecoder`] splits the bytes after the greeting into messages and commands; [`command`] reads the commands.
//!
//! ```
//! use mqcore_wire::codec::Limits;
//! use mqcore_wire::zmtp::{Item, ZmtpDecoder, encode_message};
//!
//! let mut bytes = Vec::new();
//! encode_message(&[b"topic", b"body"], &mut bytes);
//!
//! let mut decoder = ZmtpDecoder::new();
//! let (item, consumed) = decoder.next(&bytes, &Limits::default())?.expect("the message is complete");
//! assert_eq!(consumed, bytes.len());
//! let Item::Message(parts) = item else { panic!("not a command") };
//! assert_eq!(parts.iter().collect::<Vec<_>>(), [&b"topic"[..], b"body"]);
//! # Ok::<(), mqcore_wire::error::WireError>(())
//! ```

pub mod command;

use crate::codec::Limits;
use crate::error::WireError;

/// Size of a greeting in bytes.
pub const GREETING_BYTES: usize = 64;
/// Maximum number of frames in one message.
pub const PARTS_MAX: usize = 64;
/// Maximum size of an identity in bytes.
pub const IDENTITY_BYTES_MAX: usize = 255;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

const SIGNATURE_FIRST: u8 = 0xff;
const SIGNATURE_LAST: u8 = 0x7f;
const MAJOR_AT: usize = 10;
const MECHANISM_AT: usize = 12;
const AS_SERVER_AT: usize = 32;
const MECHANISM_BYTES: usize = 20;
/// `NULL`, padded with zeros.
const MECHANISM: [u8; MECHANISM_BYTES] = {
    let mut bytes = [0; MECHANISM_BYTES];
    let name = *b"NULL";
    let mut at = 0;
    while at < name.len() {
        bytes[at] = name[at];
        at += 1;
    }
    bytes
};

/// A peer's greeting, sent before its first frame (ZMTP 3.1, "Version Negotiation").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Minor version. Subscribers send messages in version 0 and commands in version 1.
    pub minor: u8,
    /// Whether the peer acts as server. The NULL mechanism ignores it.
    pub as_server: bool,
}

impl Greeting {
    /// Decodes a greeting and returns it with its size in bytes, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`WireError::Malformed`], at the first byte that rules out a greeting of ZMTP 3 with the NULL mechanism.
    pub fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let malformed = |part, why| Err(WireError::Malformed { part, why });
        if input.first().is_some_and(|byte| *byte != SIGNATURE_FIRST)
            || input.get(MAJOR_AT - 1).is_some_and(|byte| *byte != SIGNATURE_LAST)
        {
            return malformed("greeting", "missing ZMTP signature");
        }
        if input.get(MAJOR_AT).is_some_and(|major| *major < 3) {
            return malformed("greeting", "ZMTP versions before 3.0 are not supported");
        }
        let mechanism = &input[MECHANISM_AT.min(input.len())..AS_SERVER_AT.min(input.len())];
        if !MECHANISM.starts_with(mechanism) {
            return malformed("greeting", "the only supported mechanism is NULL");
        }
        if input.get(AS_SERVER_AT).is_some_and(|byte| *byte > 1) {
            return malformed("greeting", "as-server must be 0 or 1");
        }
        let Some(greeting) = input.get(..GREETING_BYTES) else { return Ok(None) };
        let found = Self { minor: greeting[MAJOR_AT + 1], as_server: greeting[AS_SERVER_AT] == 1 };
        Ok(Some((found, GREETING_BYTES)))
    }

    /// Appends the greeting to `output`.
    pub fn encode(self, output: &mut Vec<u8>) {
        output.extend_from_slice(&[SIGNATURE_FIRST, 0, 0, 0, 0, 0, 0, 0, 0, SIGNATURE_LAST, 3, self.minor]);
        output.extend_from_slice(&MECHANISM);
        output.push(self.as_server.into());
        output.resize(output.len() + GREETING_BYTES - AS_SERVER_AT - 1, 0);
    }
}

/// A range of bytes, as offsets from the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    from: usize,
    to: usize,
}

/// The frames of one message.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    input: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Parts<'a> {
    /// Number of frames.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Returns the frame at `index`, from 0.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| &self.input[span.from..span.to])
    }

    /// Iterates over the frames in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let input = self.input;
        self.spans.iter().map(move |span| &input[span.from..span.to])
    }
}

impl PartialEq for Parts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// An element of the stream after the greeting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Item<'a> {
    /// A message.
    Message(Parts<'a>),
    /// A command's body, for [`command::ZmtpCommand::parse`].
    Command(&'a [u8]),
}

/// Splits a byte stream into messages and commands.
///
/// It remembers the frames of an incomplete message, so it scans a message that arrives in small pieces only once.
#[derive(Debug, Default)]
pub struct ZmtpDecoder {
    spans: Vec<Span>,
    /// Bytes of the frames in `spans` and of the commands between them.
    scanned: usize,
    /// The message in `spans` was returned to the caller.
    done: bool,
}

/// The header of a frame.
struct FrameHeader {
    flags: u8,
    /// Offset of the body.
    from: usize,
    /// Announced end of the body.
    to: u64,
}

impl FrameHeader {
    /// Returns `None` if the header is incomplete.
    fn read(input: &[u8], from: usize) -> Result<Option<Self>, WireError> {
        let Some(&flags) = input.get(from) else { return Ok(None) };
        let malformed = |why| Err(WireError::Malformed { part: "flags", why });
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return malformed("reserved bits are set");
        }
        if flags & COMMAND != 0 && flags & MORE != 0 {
            return malformed("a command has one frame");
        }
        let (begin, length) = if flags & LONG == 0 {
            let Some(length) = input.get(from + 1) else { return Ok(None) };
            (from + 2, u64::from(*length))
        } else {
            let Some(bytes) = input.get(from + 1..from + 9) else { return Ok(None) };
            let bytes = bytes.try_into().expect("the range has eight bytes");
            (from + 9, u64::from_be_bytes(bytes))
        };
        Ok(Some(Self { flags, from: begin, to: (begin as u64).saturating_add(length) }))
    }

    fn is_command(&self) -> bool {
        self.flags & COMMAND != 0
    }

    /// Applies the header limit to a command and the frame limit to a message, including all its previous frames.
    fn check(&self, limits: &Limits) -> Result<(), WireError> {
        let length = self.to - self.from as u64;
        if self.is_command() && length > limits.header_bytes_max.into() {
            let max = limits.header_bytes_max.into();
            return Err(WireError::TooLarge { part: "command", size: length, max });
        }
        if self.to > limits.frame_bytes_max {
            return Err(WireError::TooLarge { part: "message", size: self.to, max: limits.frame_bytes_max });
        }
        Ok(())
    }
}

impl ZmtpDecoder {
    /// Creates a decoder at the beginning of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the next item and the number of bytes that the caller must remove from the front of `input`.
    ///
    /// That number is 0 for a command inside a message. `None` means that more bytes are needed. Call it again with the same
    /// bytes and more after them, or with the bytes that remain after the removal.
    ///
    /// # Errors
    /// - [`WireError::Malformed`]: the flags are invalid.
    /// - [`WireError::TooLarge`]: a message with all its frames exceeds `limits.frame_bytes_max`, a command exceeds
    ///   `limits.header_bytes_max`, or a message has more than [`PARTS_MAX`] frames.
    pub fn next<'a>(
        &'a mut self,
        input: &'a [u8],
        limits: &Limits,
    ) -> Result<Option<(Item<'a>, usize)>, WireError> {
        if self.done {
            self.done = false;
            self.scanned = 0;
            self.spans.clear();
        }
        loop {
            let Some(head) = FrameHeader::read(input, self.scanned)? else { return Ok(None) };
            head.check(limits)?;
            if head.to > input.len() as u64 {
                return Ok(None);
            }
            let span = Span { from: head.from, to: head.to as usize };
            if head.is_command() {
                let body = &input[span.from..span.to];
                if self.spans.is_empty() {
                    return Ok(Some((Item::Command(body), span.to)));
                }
                self.scanned = span.to;
                return Ok(Some((Item::Command(body), 0)));
            }
            if self.spans.len() == PARTS_MAX {
                let max = PARTS_MAX as u64;
                return Err(WireError::TooLarge { part: "number of frames", size: max + 1, max });
            }
            self.spans.push(span);
            self.scanned = span.to;
            if head.flags & MORE == 0 {
                self.done = true;
                let parts = Parts { input, spans: &self.spans };
                return Ok(Some((Item::Message(parts), self.scanned)));
            }
        }
    }

    /// Returns the input size in bytes that the next step requires, or 0 if it is not known yet.
    ///
    /// The result never exceeds the limit.
    pub fn needed(&self, input: &[u8], limits: &Limits) -> usize {
        let scanned = if self.done { 0 } else { self.scanned };
        match FrameHeader::read(input, scanned) {
            Ok(Some(head)) if head.check(limits).is_ok() => head.to as usize,
            _ => 0,
        }
    }
}

/// Appends one frame of a message to `output`. `more` announces that further frames follow.
pub fn encode_part(body: &[u8], more: bool, output: &mut Vec<u8>) {
    encode_head(if more { MORE } else { 0 }, body.len(), output);
    output.extend_from_slice(body);
}

/// Appends a message to `output`. Without frames, it appends nothing.
pub fn encode_message(parts: &[&[u8]], output: &mut Vec<u8>) {
    for (index, part) in parts.iter().enumerate() {
        encode_part(part, index + 1 < parts.len(), output);
    }
}

fn encode_head(flags: u8, length: usize, output: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(length) => output.extend_from_slice(&[flags, length]),
        Err(_) => {
            output.push(flags | LONG);
            output.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}
