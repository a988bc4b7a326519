//! ZMTP 3.0 and 3.1: what ZeroMQ peers put on TCP, with the mechanism NULL.
//!
//! ```text
//! greeting  ff, 8 octets of anything, 7f, major, minor, mechanism (20), as-server, 31 octets of filler
//! frame     flags, length (1, or 8 where LONG is set), body
//!           flags: 1 MORE frames of this message follow, 2 LONG, 4 COMMAND
//! command   name length (1), name, data
//! ```
//!
//! Each side sends its greeting, then the command READY, then messages and commands as it likes. A message is one frame or
//! several. Commands stand between messages; where libzmq's heartbeats put them between the frames of one, they are understood
//! too.
//!
//! [`Cutter`] cuts what comes behind the greeting into messages and commands, [`command`] reads the latter.

pub mod command;

use crate::codec::Limits;
use crate::error::WireError;

/// Octets of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Frames of one message, at most.
pub const PARTS_MAX: usize = 64;
/// Octets of an identity, at most.
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
/// `NULL`, filled up.
const MECHANISM: [u8; MECHANISM_BYTES] = {
    let mut octets = [0; MECHANISM_BYTES];
    let name = *b"NULL";
    let mut at = 0;
    while at < name.len() {
        octets[at] = name[at];
        at += 1;
    }
    octets
};

/// What a peer says before its first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The minor version: 0 subscribes by messages, 1 by commands.
    pub minor: u8,
    /// Whether the peer takes the server's part, which means nothing to NULL.
    pub as_server: bool,
}

impl Greeting {
    /// Reads a greeting; tells how many octets it takes. `None`: more are needed.
    ///
    /// # Errors
    /// [`WireError::Malformed`] at the first octet that proves that this is none, is of an older protocol, or wants another
    /// mechanism than NULL.
    pub fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let malformed = |part, why| Err(WireError::Malformed { part, why });
        if input.first().is_some_and(|octet| *octet != SIGNATURE_FIRST)
            || input.get(MAJOR_AT - 1).is_some_and(|octet| *octet != SIGNATURE_LAST)
        {
            return malformed("greeting", "it does not begin with the signature of ZMTP");
        }
        if input.get(MAJOR_AT).is_some_and(|major| *major < 3) {
            return malformed("greeting", "versions before 3.0 are not spoken");
        }
        let mechanism = &input[MECHANISM_AT.min(input.len())..AS_SERVER_AT.min(input.len())];
        if !MECHANISM.starts_with(mechanism) {
            return malformed("greeting", "the only mechanism is NULL");
        }
        if input.get(AS_SERVER_AT).is_some_and(|octet| *octet > 1) {
            return malformed("greeting", "as-server is 0 or 1");
        }
        let Some(greeting) = input.get(..GREETING_BYTES) else { return Ok(None) };
        let found = Self { minor: greeting[MAJOR_AT + 1], as_server: greeting[AS_SERVER_AT] == 1 };
        Ok(Some((found, GREETING_BYTES)))
    }

    /// Appends it.
    pub fn encode(self, output: &mut Vec<u8>) {
        output.extend_from_slice(&[SIGNATURE_FIRST, 0, 0, 0, 0, 0, 0, 0, 0, SIGNATURE_LAST, 3, self.minor]);
        output.extend_from_slice(&MECHANISM);
        output.push(self.as_server.into());
        output.resize(output.len() + GREETING_BYTES - AS_SERVER_AT - 1, 0);
    }
}

/// Where something stands in the octets, from their front.
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
    /// How many.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// One of them, from 0.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| &self.input[span.from..span.to])
    }

    /// All, in their order.
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

/// What stands between the greeting and the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Item<'a> {
    /// A message.
    Message(Parts<'a>),
    /// A command, to be read by [`command::Command::parse`].
    Command(&'a [u8]),
}

/// Cuts a stream of octets into messages and commands. It remembers the frames of an unfinished message, so that one that
/// arrives in small pieces is looked at once and not once a piece.
#[derive(Debug, Default)]
pub struct Cutter {
    spans: Vec<Span>,
    /// Octets of the frames in `spans`, and of the commands between them.
    scanned: usize,
    /// The message in `spans` was handed out.
    done: bool,
}

/// The first octets of a frame.
struct Head {
    flags: u8,
    /// Where the body begins.
    from: usize,
    /// Where it ends, as was announced.
    to: u64,
}

impl Head {
    /// `None`: it is not whole.
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
            let Some(octets) = input.get(from + 1..from + 9) else { return Ok(None) };
            let octets = octets.try_into().expect("the range has eight octets");
            (from + 9, u64::from_be_bytes(octets))
        };
        Ok(Some(Self { flags, from: begin, to: (begin as u64).saturating_add(length) }))
    }

    fn is_command(&self) -> bool {
        self.flags & COMMAND != 0
    }

    /// A command has the bound of a header, a message with everything in it that of a frame.
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

impl Cutter {
    /// At the beginning of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is at the front of `input`, and how many octets it takes with it, which are 0 for a command inside of a message.
    /// `None`: more is needed. Call it again with the same octets and more behind them, or with what is left without those
    /// that were taken.
    ///
    /// # Errors
    /// At the first octet that proves that this is no frame, or exceeds `limits`: `frame_bytes_max` for a message with all its
    /// frames, `header_bytes_max` for a command; also for more than [`PARTS_MAX`] frames.
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
            let Some(head) = Head::read(input, self.scanned)? else { return Ok(None) };
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

    /// How many octets there must be for the next step, as far as that is known; 0 if it is not. Never more than the limit.
    pub fn needed(&self, input: &[u8], limits: &Limits) -> usize {
        let scanned = if self.done { 0 } else { self.scanned };
        match Head::read(input, scanned) {
            Ok(Some(head)) if head.check(limits).is_ok() => head.to as usize,
            _ => 0,
        }
    }
}

/// Appends one frame of a message.
pub fn encode_part(body: &[u8], more: bool, output: &mut Vec<u8>) {
    encode_head(if more { MORE } else { 0 }, body.len(), output);
    output.extend_from_slice(body);
}

/// Appends a message; one without frames is nothing.
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
