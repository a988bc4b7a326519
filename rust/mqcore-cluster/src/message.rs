//! Control messages between nodes.
//!
//! Forwarded frames are the clients' frames with a reduced hop count. Their numbers are sent separately, in frames of type
//! 0x00, which peers without this extension ignore.

use mqcore_wire::tmqp::{Frame, Kind, encode};

/// `Client-Type` of a node that connects.
pub const CLIENT_TYPE: &str = "server";
/// Property of a Hello, and header of its response, that announces support for numbers. Its value is [`VERSION`].
pub const VERSION_KEY: &str = "Mqcore-Node";
/// The only version.
pub const VERSION: &str = "1";
/// Property of a Hello with the epoch of the numbers, in decimal.
pub const EPOCH_KEY: &str = "Mqcore-Node-Epoch";
/// Property of a Hello with the host of the connecting node.
pub const HOST_KEY: &str = "Mqcore-Node-Host";
/// Header of the response to Hello with the name of the responding node.
pub const NAME_KEY: &str = "Mqcore-Node-Name";
/// Header of the response to Hello with the id of the responding node.
pub const ID_KEY: &str = "Mqcore-Node-Id";

/// Target of the frames with numbers.
const TARGET: &[u8] = b"mqcore-node";
const POSITION: u16 = 1;
const CONFIRM: u16 = 2;

/// A control message between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkMessage {
    /// From downstream: the next forwarded frame has this number, and the following ones ascend by one.
    Position(u64),
    /// From upstream: all frames up to and including this number are stored as safely as their queues require.
    Confirm(u64),
}

impl LinkMessage {
    /// Appends the message as a frame.
    pub fn encode(self, output: &mut Vec<u8>) {
        let (content_type, number) = match self {
            Self::Position(number) => (POSITION, number),
            Self::Confirm(number) => (CONFIRM, number),
        };
        let payload = &number.to_le_bytes();
        encode(&Frame { content_type, target: TARGET, payload, ..Frame::new(Kind::OTHER) }, output);
    }

    /// Parses a frame. `None`: it is not a control message, and must be ignored like all frames of type 0x00.
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
    fn control_messages_survive_a_round_trip() {
        for message in [LinkMessage::Position(1), LinkMessage::Confirm(u64::MAX)] {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let (frame, size) =
                decode(&bytes, &Limits::default()).expect("a valid frame").expect("a complete frame");
            assert_eq!((LinkMessage::read(&frame), size), (Some(message), bytes.len()));
            assert_eq!(LinkMessage::read(&Frame { payload: b"short", ..frame }), None);
            assert_eq!(LinkMessage::read(&Frame { target: b"x", ..frame }), None);
            assert_eq!(LinkMessage::read(&Frame { content_type: 9, ..frame }), None);
        }
    }
}
