//! Frames between a broker and its upstream broker, besides the forwarded frames.

use mqcore_cluster::message::{CLIENT_TYPE, EPOCH_KEY, ID_KEY, LinkMessage, NAME_KEY, VERSION, VERSION_KEY};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, AnswerError, Hello};
use mqcore_wire::tmqp::{self, Frame, Kind, header, operation};
pub use mqcore_wire::tmqp::{PING, PONG};

/// Maximum bytes of the answer to an introduction.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// An upstream broker sends confirmations and little else.
const LIMITS: Limits = Limits { frame_bytes_max: 1024 * 1024, header_bytes_max: 65_535 };

/// How a broker introduces itself to an upstream broker.
#[derive(Clone, Copy)]
pub struct NodeIntroduction<'a> {
    /// Its id among nodes.
    pub id: &'a str,
    /// Its display name.
    pub name: &'a str,
    /// The epoch of the numbers of its frames.
    pub epoch: u64,
    /// The token that the upstream broker requires.
    pub token: Option<&'a str>,
}

impl NodeIntroduction<'_> {
    /// The first bytes of the connection.
    ///
    /// # Errors
    /// [`LinkError::Malformed`] if a value does not fit the protocol's Hello.
    pub fn encode(&self) -> Result<Vec<u8>, LinkError> {
        let epoch = self.epoch.to_string();
        let hello = Hello {
            client_id: Some(self.id),
            client_name: Some(self.name),
            client_type: Some(CLIENT_TYPE),
            client_token: self.token,
            properties: vec![(VERSION_KEY, VERSION), (EPOCH_KEY, &*epoch)],
            ..Hello::default()
        };
        hello::opening(&hello, b"node-hello").map_err(|error| LinkError::Malformed(error.to_string()))
    }
}

/// The answer of an upstream broker that accepts a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// Whether it confirms the numbers of frames.
    pub numbered: bool,
    /// Its id; empty if it gives none.
    pub id: String,
    /// Its display name; empty if it gives none.
    pub name: String,
}

/// Why a link cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The upstream broker rejects the token.
    #[error("it refused this node's token")]
    Unauthorized,
    /// The upstream broker rejects this broker for another reason.
    #[error("it refused this node with {code}: {reason}")]
    Rejected {
        /// The status of its answer.
        code: u16,
        /// The body of its answer.
        reason: String,
    },
    /// A value does not fit the protocol, or the peer sent a malformed frame.
    #[error("{0}")]
    Malformed(String),
}

/// Input of a broker from its upstream broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkInput {
    /// It wants a [`PONG`].
    Ping,
    /// It answers a [`PING`].
    Pong,
    /// It stops.
    Terminate,
    /// It stored all frames up to and including this number.
    Confirm(u64),
    /// Another frame, for example an answer of an original broker to a forwarded frame.
    Other,
}

/// Reads the answer to an introduction and its size in bytes; `None` until it is complete.
///
/// # Errors
/// [`LinkError`] if the broker rejects, or the answer is malformed.
pub fn read_acceptance(input: &[u8]) -> Result<Option<(Acceptance, usize)>, LinkError> {
    let limits = Limits { frame_bytes_max: ANSWER_BYTES_MAX, ..Limits::default() };
    let answer = hello::answer(input, &limits);
    let answer = answer.map_err(|error: AnswerError| LinkError::Malformed(error.to_string()))?;
    let Some((frame, size)) = answer else { return Ok(None) };
    if frame.kind != Kind::SERVER || frame.content_type != operation::ACCEPTED {
        return Err(match frame.content_type {
            operation::status::UNAUTHORIZED => LinkError::Unauthorized,
            code => LinkError::Rejected { code, reason: String::from_utf8_lossy(frame.payload).into_owned() },
        });
    }
    let text = |key| {
        let value = header::header_value(frame.headers, key).unwrap_or_default();
        String::from_utf8_lossy(value).trim().to_owned()
    };
    let numbered = text(VERSION_KEY) == VERSION;
    Ok(Some((Acceptance { numbered, id: text(ID_KEY), name: text(NAME_KEY) }, size)))
}

/// Reads the next input and its size in bytes; `None` until it is complete.
///
/// # Errors
/// [`LinkError::Malformed`] if the frame is malformed or larger than 1 MiB.
pub fn read_input(input: &[u8]) -> Result<Option<(LinkInput, usize)>, LinkError> {
    let frame = tmqp::decode(input, &LIMITS).map_err(|error| LinkError::Malformed(error.to_string()))?;
    let Some((frame, size)) = frame else { return Ok(None) };
    let input = match (frame.kind, LinkMessage::read(&frame)) {
        (Kind::PING, _) => LinkInput::Ping,
        (Kind::PONG, _) => LinkInput::Pong,
        (Kind::TERMINATE, _) => LinkInput::Terminate,
        (_, Some(LinkMessage::Confirm(through))) => LinkInput::Confirm(through),
        _ => LinkInput::Other,
    };
    Ok(Some((input, size)))
}

/// Appends the number of the next forwarded frame; the following ones ascend by one.
pub fn encode_position(number: u64, output: &mut Vec<u8>) {
    LinkMessage::Position(number).encode(output);
}

/// Appends the end of a link.
pub fn encode_terminate(output: &mut Vec<u8>) {
    tmqp::encode(&Frame::new(Kind::TERMINATE), output);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of an upstream broker, after its preamble.
    fn answered(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = tmqp::PREAMBLE.to_vec();
        tmqp::encode(frame, &mut bytes);
        bytes
    }

    #[test]
    fn acceptance_is_read_once_it_is_complete() {
        let headers = format!("{VERSION_KEY}:{VERSION}\r\n{ID_KEY}:up\r\n{NAME_KEY}: Up \r\n");
        let frame = Frame {
            content_type: operation::ACCEPTED,
            headers: headers.as_bytes(),
            ..Frame::new(Kind::SERVER)
        };
        let bytes = answered(&frame);
        for end in 0..bytes.len() {
            assert_eq!(read_acceptance(&bytes[..end]), Ok(None));
        }
        let expected = Acceptance { numbered: true, id: "up".into(), name: "Up".into() };
        assert_eq!(read_acceptance(&bytes), Ok(Some((expected, bytes.len()))));
    }

    #[test]
    fn rejection_gives_its_reason() {
        let refused = |content_type| {
            let frame = Frame { content_type, payload: b"full", ..Frame::new(Kind::SERVER) };
            read_acceptance(&answered(&frame)).expect_err("a rejection")
        };
        assert_eq!(refused(operation::status::UNAUTHORIZED), LinkError::Unauthorized);
        assert_eq!(refused(500), LinkError::Rejected { code: 500, reason: "full".into() });
        let other = read_acceptance(b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(other, Err(LinkError::Malformed(_))), "{other:?}");
    }

    #[test]
    fn every_kind_of_input_is_recognized() {
        let mut confirm = Vec::new();
        LinkMessage::Confirm(7).encode(&mut confirm);
        let mut terminate = Vec::new();
        encode_terminate(&mut terminate);
        let mut position = Vec::new();
        encode_position(1, &mut position);
        for (bytes, expected) in [
            (&PING[..], LinkInput::Ping),
            (&PONG, LinkInput::Pong),
            (&terminate, LinkInput::Terminate),
            (&confirm, LinkInput::Confirm(7)),
            (&position, LinkInput::Other),
        ] {
            assert_eq!(read_input(bytes), Ok(Some((expected, bytes.len()))));
            assert_eq!(read_input(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }
}
