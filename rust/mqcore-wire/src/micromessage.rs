//! MicroMessage2 frames, and the messages that several of them make.
//!
//! All integers are unsigned and big-endian. A frame begins with an octet of flags:
//!
//! ```text
//! 1 COMMAND   2 EXTENSION   4 ERROR   none of them: MESSAGE (from a server) or SEND (from a client)
//! 8 LARGE_PAYLOAD: the payload's length has four octets, not one      16 CONTINUED: more frames follow
//!
//! MESSAGE, SEND   flags, sequence (2), destination length (1), destination, properties length (2), properties,
//!                 payload length (1 or 4), payload
//! COMMAND, ERROR  flags, payload length (1 or 4), payload
//! EXTENSION       flags, extension id (1), payload length (1 or 4), payload
//! ```
//!
//! The handshake before the first frame has its own layout: [`handshake`]. What stands inside payloads and properties is read by
//! [`command`], [`properties`] and [`filter`]. Rules that both sides of a connection follow live here once: what is agreed on
//! ([`negotiation`], [`extension`]), who still owes an acknowledgement ([`window`]), and how a side gives up ([`failure`]).

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

/// Octets of payload that a frame we write carries at most; larger payloads are split.
pub const FRAGMENT_BYTES_MAX: usize = 1024 * 1024;
/// Octets of a destination, at most: its length has one octet.
pub const DESTINATION_BYTES_MAX: usize = 255;
/// Octets of properties, at most: their length has two octets.
pub const PROPERTIES_BYTES_MAX: usize = 65_535;

const COMMAND: u8 = 1;
const EXTENSION: u8 = 2;
const ERROR: u8 = 4;
const LARGE_PAYLOAD: u8 = 8;
const CONTINUED: u8 = 16;
const TYPE_MASK: u8 = COMMAND | EXTENSION | ERROR;
const RESERVED: u8 = 0xE0;

/// The largest payload whose length fits into one octet.
const SMALL_MAX: usize = 255;

/// One frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message or a part of one.
    Message(MessageFrame<'a>),
    /// How the connection is to be used.
    Command {
        /// To be read by [`command::parse`].
        payload: &'a [u8],
    },
    /// Something of an extension.
    Extension {
        /// Its place in the last message of the handshake, from 1.
        id: u8,
        /// What it says.
        payload: &'a [u8],
    },
    /// The connection ends; why.
    Error {
        /// Text for people.
        text: &'a [u8],
    },
}

/// A MESSAGE or SEND frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFrame<'a> {
    /// More frames of the same message follow.
    pub continued: bool,
    /// Its number, counted from 1 in each direction; 65,535 is followed by 1.
    pub sequence: u16,
    /// For whom: a queue's name, or `topic/` and a topic's.
    pub destination: &'a [u8],
    /// To be read by [`properties::parse`].
    pub properties: &'a [u8],
    /// The message, or a part of it.
    pub payload: &'a [u8],
}

/// The sequence number behind `sequence`.
pub fn next_sequence(sequence: u16) -> u16 {
    sequence.checked_add(1).unwrap_or(1)
}

/// Reads the frame at the front of `input`; tells how many octets it takes. `None`: more are needed.
///
/// `extensions` is how many extensions were agreed: frames of others are refused.
///
/// # Errors
/// At the first octet that proves that this is no frame, or that it exceeds `limits`: `frame_bytes_max` for a whole
/// frame, `header_bytes_max` for properties.
pub fn decode<'a>(
    input: &'a [u8],
    extensions: u8,
    limits: &Limits,
) -> Result<Option<(Frame<'a>, usize)>, WireError> {
    let mut reader = Reader { input, at: 0 };
    let Some(frame) = read(&mut reader, extensions, limits)? else { return Ok(None) };
    Ok(Some((frame, reader.at)))
}

/// How many octets the frame at the front of `input` has; 0 if that is not known yet.
///
/// # Errors
/// As [`decode`].
pub fn needed(input: &[u8], extensions: u8, limits: &Limits) -> Result<usize, WireError> {
    let mut reader = Reader { input, at: 0 };
    let whole = read(&mut reader, extensions, limits)?;
    Ok(if whole.is_some() { reader.at } else { reader.needed() })
}

fn read<'a>(
    reader: &mut Reader<'a>,
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
                let why = "no extension was agreed under this number";
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
        return refuse("a frame has one type");
    }
    if flags & CONTINUED != 0 && flags & TYPE_MASK != 0 {
        return refuse("only messages are continued");
    }
    Ok(())
}

fn read_message<'a>(
    reader: &mut Reader<'a>,
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

/// Walks over a frame. Where octets are missing it stays behind the front, and `at` says how far it would go.
struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at + length;
        let taken = self.input.get(self.at..end);
        self.at = end;
        taken
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|octets| octets[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|octets| u16::from_be_bytes([octets[0], octets[1]]))
    }

    fn payload(&mut self, large: bool, limits: &Limits) -> Result<Option<&'a [u8]>, WireError> {
        let length = if large {
            self.take(4).map(|octets| u32::from_be_bytes([octets[0], octets[1], octets[2], octets[3]]))
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

    /// How long the input must be for the part that was missing to be there.
    fn needed(&self) -> usize {
        self.at
    }
}

/// Appends a frame. A payload of more than 255 octets gets the long form of its length.
///
/// # Panics
/// If a destination or properties are longer than their length can say: that is a fault of the caller, never of a
/// peer.
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
    let destination = u8::try_from(message.destination.len()).expect("destinations have at most 255 octets");
    output.push(destination);
    output.extend_from_slice(message.destination);
    let properties = u16::try_from(message.properties.len()).expect("properties have at most 65535 octets");
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
            u32::try_from(payload.len()).expect("payloads are split long before four octets overflow");
        output.extend_from_slice(&length.to_be_bytes());
    } else {
        output.push(payload.len() as u8);
    }
    output.extend_from_slice(payload);
}

/// Appends a whole message in as many frames as it takes: all with the same number and destination, the properties
/// only in the first.
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

/// Joins the frames of messages that come in parts.
#[derive(Debug)]
pub struct Assembly {
    open: Option<Joined>,
    payload_bytes_max: u64,
}

/// A message that came in several frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The number of its last frame.
    pub sequence: u16,
    /// The destination in its first frame.
    pub destination: Box<[u8]>,
    /// The properties in its first frame.
    pub properties: Box<[u8]>,
    /// All parts.
    pub payload: Vec<u8>,
}

/// What a frame made of the message it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled<'a> {
    /// It was all of it.
    Whole(MessageFrame<'a>),
    /// It was the last of several.
    Joined(Joined),
    /// Others follow.
    Unfinished,
}

impl Assembly {
    /// For messages of so many octets of payload at most, all their parts together.
    pub fn new(payload_bytes_max: u64) -> Self {
        Self { open: None, payload_bytes_max }
    }

    /// A message was begun and is not finished: then nothing but its other parts and frames of extensions may come.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if all parts together exceed the limit; [`WireError::Malformed`] if a part names another
    /// destination than the first one, so that two messages would become one.
    pub fn push<'a>(&mut self, frame: MessageFrame<'a>) -> Result<Assembled<'a>, WireError> {
        if let Some(open) = &self.open
            && !frame.destination.is_empty()
            && *frame.destination != *open.destination
        {
            let why = "another message began before this one's last part";
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
