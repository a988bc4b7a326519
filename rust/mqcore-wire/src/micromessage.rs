//! MicroMessage2 frames, and the reassembly of messages that span several frames.
//!
//! All integers are unsigned and big-endian. A frame begins with a byte of flags ("Flag values"):
//!
//! ```text
//! 1 COMMAND   2 EXTENSION   4 ERROR   none of them: MESSAGE (from a server) or SEND (from a client)
//! 8 LARGE_PAYLOAD: the payload length has four bytes instead of one   16 CONTINUED: more frames follow
//!
//! MESSAGE, SEND   flags, sequence (2), destination length (1), destination, properties length (2), properties,
//!                 payload length (1 or 4), payload
//! COMMAND, ERROR  flags, payload length (1 or 4), payload
//! EXTENSION       flags, extension id (1), payload length (1 or 4), payload
//! ```
//!
//! The handshake before the first frame has its own layout: [`handshake`]. [`command`], [`properties`] and [`filter`] parse
//! payloads and properties. The rules that both sides of a connection follow are implemented once: what they agree on
//! ([`negotiation`], [`extension`]), which messages are unacknowledged ([`window`]), and how a side reports an error
//! ([`failure`]).

pub mod command;
pub mod content;
pub mod extension;
pub mod failure;
pub mod field;
pub mod filter;
pub mod handshake;
pub mod negotiation;
pub mod properties;
pub mod window;

use crate::codec::Limits;
use crate::error::WireError;

/// Maximum payload of an encoded frame in bytes. [`encode_split`] splits larger payloads.
pub const FRAGMENT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of a destination in bytes: its length field has one byte.
pub const DESTINATION_BYTES_MAX: usize = 255;
/// Maximum size of properties in bytes: their length field has two bytes.
pub const PROPERTIES_BYTES_MAX: usize = 65_535;

const COMMAND: u8 = 1;
const EXTENSION: u8 = 2;
const ERROR: u8 = 4;
const LARGE_PAYLOAD: u8 = 8;
const CONTINUED: u8 = 16;
const TYPE_MASK: u8 = COMMAND | EXTENSION | ERROR;
const RESERVED: u8 = 0xE0;

/// Largest payload with a one-byte length.
const SMALL_MAX: usize = 255;

/// A MicroMessage2 frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message, or a fragment of one.
    Message(MessageFrame<'a>),
    /// A command that configures the connection.
    Command {
        /// Payload, for [`command::parse`].
        payload: &'a [u8],
    },
    /// A frame of an extension.
    Extension {
        /// Position of the extension in the final handshake message, from 1.
        id: u8,
        /// Payload, defined by the extension.
        payload: &'a [u8],
    },
    /// The sender closes the connection because of an error.
    Error {
        /// Human-readable text.
        text: &'a [u8],
    },
}

/// A MESSAGE or SEND frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFrame<'a> {
    /// More frames of the same message follow.
    pub continued: bool,
    /// Sequence number, from 1 in each direction. 65,535 is followed by 1.
    pub sequence: u16,
    /// Destination: a queue name, or `topic/` and a topic name.
    pub destination: &'a [u8],
    /// Properties, for [`properties::parse`].
    pub properties: &'a [u8],
    /// The message body, or a fragment of it.
    pub payload: &'a [u8],
}

/// Returns the sequence number that follows `sequence`.
pub fn next_sequence(sequence: u16) -> u16 {
    sequence.checked_add(1).unwrap_or(1)
}

/// Decodes the frame at the front of `input` and returns it with its size in bytes, or `None` if more bytes are needed.
///
/// `extensions` is the number of negotiated extensions. Frames of other extensions are rejected.
///
/// # Errors
/// - [`WireError::Malformed`]: the flags or the extension id are invalid.
/// - [`WireError::TooLarge`]: the frame exceeds `limits.frame_bytes_max`, or its properties exceed
///   `limits.header_bytes_max`.
pub fn decode<'a>(
    input: &'a [u8],
    extensions: u8,
    limits: &Limits,
) -> Result<Option<(Frame<'a>, usize)>, WireError> {
    let mut reader = FrameReader { input, at: 0 };
    let Some(frame) = read(&mut reader, extensions, limits)? else { return Ok(None) };
    Ok(Some((frame, reader.at)))
}

/// Returns the size in bytes that the input must reach before [`decode`] can make progress.
///
/// # Errors
/// The same as [`decode`].
pub fn needed(input: &[u8], extensions: u8, limits: &Limits) -> Result<usize, WireError> {
    let mut reader = FrameReader { input, at: 0 };
    let whole = read(&mut reader, extensions, limits)?;
    Ok(if whole.is_some() { reader.at } else { reader.needed() })
}

fn read<'a>(
    reader: &mut FrameReader<'a>,
    extensions: u8,
    limits: &Limits,
) -> Result<Option<Frame<'a>>, WireError> {
    let Some(flags) = reader.u8() else { return Ok(None) };
    check_flags(flags)?;
    let large = flags & LARGE_PAYLOAD != 0;
    match flags & TYPE_MASK {
        0 => read_message(reader, flags, limits),
        EXTENSION => {
            let Some(id) = reader.u8() else { return Ok(None) };
            if id == 0 || id > extensions {
                let why = "no extension with this number was negotiated";
                return Err(WireError::Malformed { part: "extension id", why });
            }
            Ok(reader.payload(large, limits)?.map(|payload| Frame::Extension { id, payload }))
        }
        COMMAND => Ok(reader.payload(large, limits)?.map(|payload| Frame::Command { payload })),
        _ => Ok(reader.payload(large, limits)?.map(|text| Frame::Error { text })),
    }
}

fn check_flags(flags: u8) -> Result<(), WireError> {
    let refuse = |why| Err(WireError::Malformed { part: "flags", why });
    if flags & RESERVED != 0 {
        return refuse("reserved bits are set");
    }
    if (flags & TYPE_MASK).count_ones() > 1 {
        return refuse("more than one frame type is set");
    }
    if flags & CONTINUED != 0 && flags & TYPE_MASK != 0 {
        return refuse("only message frames can be continued");
    }
    Ok(())
}

fn read_message<'a>(
    reader: &mut FrameReader<'a>,
    flags: u8,
    limits: &Limits,
) -> Result<Option<Frame<'a>>, WireError> {
    let Some(sequence) = reader.u16() else { return Ok(None) };
    let Some(length) = reader.u8() else { return Ok(None) };
    let Some(destination) = reader.take(length.into()) else { return Ok(None) };
    let Some(length) = reader.u16() else { return Ok(None) };
    if u32::from(length) > limits.header_bytes_max {
        let (size, max) = (length.into(), limits.header_bytes_max.into());
        return Err(WireError::TooLarge { part: "properties", size, max });
    }
    let Some(properties) = reader.take(length.into()) else { return Ok(None) };
    let continued = flags & CONTINUED != 0;
    let payload = reader.payload(flags & LARGE_PAYLOAD != 0, limits)?;
    Ok(payload.map(|payload| {
        Frame::Message(MessageFrame { continued, sequence, destination, properties, payload })
    }))
}

/// A cursor over a frame. If bytes are missing, `at` moves beyond the end of the input to where the missing part would end.
struct FrameReader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> FrameReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at + length;
        let taken = self.input.get(self.at..end);
        self.at = end;
        taken
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn payload(&mut self, large: bool, limits: &Limits) -> Result<Option<&'a [u8]>, WireError> {
        let length = if large {
            self.take(4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        } else {
            self.u8().map(u32::from)
        };
        let Some(length) = length else { return Ok(None) };
        let size = self.at as u64 + u64::from(length);
        if size > limits.frame_bytes_max {
            return Err(WireError::TooLarge { part: "frame", size, max: limits.frame_bytes_max });
        }
        Ok(self.take(length as usize))
    }

    /// Size that the input must have to contain the missing part.
    fn needed(&self) -> usize {
        self.at
    }
}

/// Appends a frame. Payloads of more than 255 bytes get a four-byte length.
///
/// # Panics
/// If the destination or the properties exceed what their length fields can express. That is a bug in the caller and never
/// caused by a peer.
pub fn encode(frame: &Frame<'_>, output: &mut Vec<u8>) {
    match *frame {
        Frame::Message(message) => encode_message(&message, output),
        Frame::Command { payload } => {
            output.push(COMMAND | large(payload));
            encode_payload(payload, output);
        }
        Frame::Extension { id, payload } => {
            output.extend_from_slice(&[EXTENSION | large(payload), id]);
            encode_payload(payload, output);
        }
        Frame::Error { text } => {
            output.push(ERROR | large(text));
            encode_payload(text, output);
        }
    }
}

fn encode_message(message: &MessageFrame<'_>, output: &mut Vec<u8>) {
    let continued = if message.continued { CONTINUED } else { 0 };
    output.push(continued | large(message.payload));
    output.extend_from_slice(&message.sequence.to_be_bytes());
    let destination = u8::try_from(message.destination.len()).expect("destinations have at most 255 bytes");
    output.push(destination);
    output.extend_from_slice(message.destination);
    let properties = u16::try_from(message.properties.len()).expect("properties have at most 65535 bytes");
    output.extend_from_slice(&properties.to_be_bytes());
    output.extend_from_slice(message.properties);
    encode_payload(message.payload, output);
}

fn large(payload: &[u8]) -> u8 {
    if payload.len() > SMALL_MAX { LARGE_PAYLOAD } else { 0 }
}

fn encode_payload(payload: &[u8], output: &mut Vec<u8>) {
    if payload.len() > SMALL_MAX {
        let length =
            u32::try_from(payload.len()).expect("payloads are split before their length exceeds four bytes");
        output.extend_from_slice(&length.to_be_bytes());
    } else {
        output.push(payload.len() as u8);
    }
    output.extend_from_slice(payload);
}

/// Appends a message, split into as many frames as needed. All frames have the same sequence number and destination; only
/// the first has the properties.
pub fn encode_split(
    sequence: u16,
    destination: &[u8],
    properties: &[u8],
    payload: &[u8],
    output: &mut Vec<u8>,
) {
    let mut rest = payload;
    let mut properties = properties;
    loop {
        let (part, after) = rest.split_at(rest.len().min(FRAGMENT_BYTES_MAX));
        let continued = !after.is_empty();
        encode_message(&MessageFrame { continued, sequence, destination, properties, payload: part }, output);
        if !continued {
            return;
        }
        rest = after;
        properties = &[];
    }
}

/// Reassembles messages that span several frames.
#[derive(Debug)]
pub struct Assembly {
    open: Option<Joined>,
    payload_bytes_max: u64,
}

/// A message reassembled from several frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Sequence number of the last frame.
    pub sequence: u16,
    /// Destination of the first frame.
    pub destination: Box<[u8]>,
    /// Properties of the first frame.
    pub properties: Box<[u8]>,
    /// Concatenated payloads of all frames.
    pub payload: Vec<u8>,
}

/// The result of adding a frame to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled<'a> {
    /// The frame is a complete message.
    Whole(MessageFrame<'a>),
    /// The frame completes a message of several frames.
    Joined(Joined),
    /// More frames follow.
    Unfinished,
}

impl Assembly {
    /// Creates an assembly for messages of at most `payload_bytes_max` bytes of payload in all their frames.
    pub fn new(payload_bytes_max: u64) -> Self {
        Self { open: None, payload_bytes_max }
    }

    /// Whether a message is incomplete. Until it is complete, only its other frames and extension frames may follow.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Memory of the incomplete message in bytes; 0 without one.
    pub fn unfinished_bytes(&self) -> usize {
        let size = |open: &Joined| open.destination.len() + open.properties.len() + open.payload.capacity();
        self.open.as_ref().map_or(0, size)
    }

    /// Adds a frame to the current message.
    ///
    /// # Errors
    /// - [`WireError::TooLarge`]: the payloads of all frames together exceed the limit.
    /// - [`WireError::Malformed`]: the frame names a different destination than the first frame, so two messages would be
    ///   merged.
    pub fn push<'a>(&mut self, frame: MessageFrame<'a>) -> Result<Assembled<'a>, WireError> {
        if let Some(open) = &self.open
            && !frame.destination.is_empty()
            && *frame.destination != *open.destination
        {
            let why = "a frame with another destination arrived before the last frame of this message";
            return Err(WireError::Malformed { part: "message", why });
        }
        let before = self.open.as_ref().map_or(0, |open| open.payload.len());
        let size = (before + frame.payload.len()) as u64;
        if size > self.payload_bytes_max {
            return Err(WireError::TooLarge { part: "message", size, max: self.payload_bytes_max });
        }
        if self.open.is_none() && !frame.continued {
            return Ok(Assembled::Whole(frame));
        }
        let open = self.open.get_or_insert_with(|| Joined {
            sequence: frame.sequence,
            destination: frame.destination.into(),
            properties: frame.properties.into(),
            payload: Vec::new(),
        });
        open.payload.extend_from_slice(frame.payload);
        open.sequence = frame.sequence;
        if frame.continued {
            return Ok(Assembled::Unfinished);
        }
        Ok(self.open.take().map_or(Assembled::Unfinished, Assembled::Joined))
    }
}
