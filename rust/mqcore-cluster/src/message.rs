//! What nodes tell each other beside the messages that they pass on.
//!
//! The frames that are passed on are those of the clients, hop count apart. Their numbers travel beside them, in frames of
//! type 0x00: those mean nothing to a peer that does not know them, which ignores them.

use mqcore_wire::tmqp::{Frame, Kind, encode};

/// The `Client-Type` of a node that dials.
pub const CLIENT_TYPE: &str = "server";
/// The property of a Hello, and the header of its answer, that says: numbers are understood here. Its value is [`VERSION`].
pub const VERSION_KEY: &str = "Mqcore-Node";
/// The one version there is.
pub const VERSION: &str = "1";
/// The property of a Hello that gives the epoch of the numbers, decimal.
pub const EPOCH_KEY: &str = "Mqcore-Node-Epoch";
/// The property of a Hello that gives the host of the dialling node.
pub const HOST_KEY: &str = "Mqcore-Node-Host";
/// The header of an answer to Hello: the name of the node that answers.
pub const NAME_KEY: &str = "Mqcore-Node-Name";
/// The header of an answer to Hello: the id of the node that answers.
pub const ID_KEY: &str = "Mqcore-Node-Id";

/// The target of the frames that carry numbers.
const TARGET: &[u8] = b"mqcore-node";
const POSITION: u16 = 1;
const CONFIRM: u16 = 2;

/// What one node tells another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkMessage {
    /// From a slave: the next frame that is passed on has this number, and each one behind it the next.
    Position(u64),
    /// From a master: everything up to and including this number is where it belongs, as safe as the queue keeps it.
    Confirm(u64),
}

impl LinkMessage {
    /// Appends the frame.
    pub fn encode(self, output: &mut Vec<u8>) {
        let (content_type, number) = match self {
            Self::Position(number) => (POSITION, number),
            Self::Confirm(number) => (CONFIRM, number),
        };
        let payload = &number.to_le_bytes();
        encode(&Frame { content_type, target: TARGET, payload, ..Frame::new(Kind::OTHER) }, output);
    }

    /// Reads a frame; `None`: it is nothing of this kind, and to be ignored like every frame of type 0x00.
    #[must_use]
    pub fn read(frame: &Frame<'_>) -> Option<Self> {
        if frame.kind != Kind::OTHER || frame.target != TARGET {
            return None;
        }
        let number = u64::from_le_bytes(frame.payload.try_into().ok()?);
        match frame.content_type {
            POSITION => Some(Self::Position(number)),
            CONFIRM => Some(Self::Confirm(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mqcore_wire::codec::Limits;
    use mqcore_wire::tmqp::decode;

    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        for message in [LinkMessage::Position(1), LinkMessage::Confirm(u64::MAX)] {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let (frame, size) = decode(&bytes, &Limits::default()).expect("a frame").expect("whole");
            assert_eq!((LinkMessage::read(&frame), size), (Some(message), bytes.len()));
            assert_eq!(LinkMessage::read(&Frame { payload: b"short", ..frame }), None);
            assert_eq!(LinkMessage::read(&Frame { target: b"x", ..frame }), None);
            assert_eq!(LinkMessage::read(&Frame { content_type: 9, ..frame }), None);
        }
    }
}
