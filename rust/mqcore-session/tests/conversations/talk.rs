//! One conversation under test, and functions to read it.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{ChannelName, ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::ChannelOptions;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::stats::ChannelInformation;
use mqcore_broker::model::time::Timestamp;
use mqcore_session::any::{AnySession, Protocol};
use mqcore_session::session::{Session, SessionConfig, SessionError};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE};

pub(crate) const START: Timestamp = Timestamp(1_800_000_000_000);

/// A session, its unread bytes, and the time.
pub(crate) struct Talk {
    pub(crate) session: AnySession,
    pub(crate) now: Timestamp,
    unread: Vec<u8>,
}

pub(crate) fn config() -> SessionConfig {
    SessionConfig {
        connection: ConnectionId(1),
        shards: 4,
        limits: Limits::default(),
        login_bytes_max: 1 << 16,
        answer_bytes_max: 1 << 23,
        handshake_timeout: Duration::from_secs(10),
        ping_interval: Duration::from_secs(60),
        pong_timeout: Duration::from_secs(10),
        admin: true,
        peer: Arc::default(),
        node: None,
    }
}

impl Talk {
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: SessionConfig) -> Self {
        Self { session: AnySession::new(Protocol::Tmqp, config, START), now: START, unread: Vec::new() }
    }

    /// A conversation after its handshake; the client's id is `cli`, its name `nm`, its type `ty`.
    pub(crate) fn open() -> Self {
        Self::open_with(config())
    }

    pub(crate) fn open_with(config: SessionConfig) -> Self {
        let mut talk = Self::with(config);
        talk.receive(&PREAMBLE);
        talk.receive(&vector("V06"));
        talk.event(Event::Welcomed(client("cli")));
        talk
    }

    /// Passes bytes to the session; returns its commands for the broker and its output.
    pub(crate) fn try_receive(&mut self, bytes: &[u8]) -> Result<(Vec<Command>, Vec<u8>), SessionError> {
        self.unread.extend_from_slice(bytes);
        let (mut commands, mut output) = (Vec::new(), Vec::new());
        let consumed = self.session.receive(&self.unread, self.now, &mut commands, &mut output)?;
        self.unread.drain(..consumed);
        Ok((commands, output))
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) -> (Vec<Command>, Vec<u8>) {
        self.try_receive(bytes).expect("nothing is wrong with these bytes")
    }

    /// The session's output for these bytes, which cause no command.
    pub(crate) fn answer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (commands, output) = self.receive(bytes);
        assert!(commands.is_empty(), "{commands:?}");
        output
    }

    /// The only command for these bytes, which cause no output.
    pub(crate) fn command(&mut self, bytes: &[u8]) -> Command {
        let (mut commands, output) = self.receive(bytes);
        assert_eq!((commands.len(), output), (1, Vec::new()), "{commands:?}");
        commands.remove(0)
    }

    pub(crate) fn request(&mut self, bytes: &[u8]) -> (RequestId, Request) {
        match self.command(bytes) {
            Command::Request(id, request) => (id, *request),
            other => panic!("{other:?}"),
        }
    }

    /// Passes an event to the session; returns its output.
    pub(crate) fn event(&mut self, event: Event) -> Vec<u8> {
        let mut output = Vec::new();
        self.session.event(event, self.now, &mut output).unwrap();
        output
    }

    pub(crate) fn reply(&mut self, request: RequestId, answer: Result<Reply, Rejection>) -> Vec<u8> {
        self.event(Event::Answered(request, answer))
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
    }

    /// Passes the session's timeout; returns its output.
    pub(crate) fn timeout(&mut self) -> Result<Vec<u8>, SessionError> {
        let mut output = Vec::new();
        self.session.timeout(self.now, &mut output)?;
        Ok(output)
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread.len()
    }
}

pub(crate) fn client(id: &str) -> Arc<Client> {
    Arc::new(Client {
        connection: ConnectionId(1),
        id: id.into(),
        authenticated: false,
        name: Some("nm".into()),
        kind: Some("ty".into()),
        protocol: "tmqp",
        admin: true,
        user: None,
        connected_at: START,
        data: None,
    })
}

pub(crate) fn introduction(commands: Vec<Command>) -> Introduction {
    match <[Command; 1]>::try_from(commands) {
        Ok([Command::Introduce(introduction)]) => *introduction,
        other => panic!("{other:?}"),
    }
}

/// The bytes of a vector.
pub(crate) fn vector(name: &str) -> Vec<u8> {
    let lines = include_str!("../../../../tests/vectors/tmqp.jsonl").lines();
    let vector = lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|vector| vector["name"] == name)
        .unwrap_or_else(|| panic!("no vector {name}"));
    let hex = vector["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

pub(crate) fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    tmqp::encode(frame, &mut bytes);
    bytes
}

/// Decodes bytes that contain exactly one frame.
pub(crate) fn only_frame(bytes: &[u8]) -> Frame<'_> {
    let (frame, size) = tmqp::decode(bytes, &Limits::default()).unwrap().expect("a whole frame");
    assert_eq!(size, bytes.len(), "something follows {frame:?}");
    frame
}

pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Some((frame, size)) = tmqp::decode(bytes, &Limits::default()).unwrap() {
        frames.push(frame);
        bytes = &bytes[size..];
    }
    assert!(bytes.is_empty());
    frames
}

pub(crate) fn is_generated(id: &[u8]) -> bool {
    id.len() == 32 && id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn queue(text: &str) -> QueueAddress {
    QueueAddress::parse(text).unwrap()
}

pub(crate) fn channel(text: &str) -> ChannelName {
    ChannelName::new(text).unwrap()
}

/// A message from `producer`, with fifteen hops left.
pub(crate) fn message(id: &str, producer: &str, headers: &str, body: &str) -> Message {
    let properties = Properties { hops: 15, ..Properties::default() };
    message_with(properties, id, producer, headers, body)
}

pub(crate) fn message_with(
    properties: Properties,
    id: &str,
    producer: &str,
    headers: &str,
    body: &str,
) -> Message {
    let producer = Some(client(producer));
    Message::from_parts(id.as_bytes(), headers.as_bytes(), body.as_bytes(), properties, producer)
}

pub(crate) fn rejection(kind: RejectionKind) -> Rejection {
    Rejection::new(kind, "because")
}

/// A channel with two queues and two clients.
pub(crate) fn channel_information(name: &str) -> ChannelInformation {
    ChannelInformation {
        channel: channel(name),
        options: ChannelOptions::default(),
        queues: vec![1, 7],
        active_clients: 2,
    }
}

/// The JSON that answers a list operation if one shard returns `part` and the others nothing.
pub(crate) fn list_text(operation_code: u16, part: Reply) -> String {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&encoded(&operation(operation_code, "ch")));
    let mut output = talk.reply(request, Ok(part));
    while output.is_empty() {
        output = talk.reply(request, Ok(Reply::Done));
    }
    let frame = only_frame(&output);
    assert_eq!(frame.content_type, 0);
    String::from_utf8(frame.payload.to_vec()).unwrap()
}

/// A server operation of the client, with id `q`, that asks for an answer.
pub(crate) fn operation<'a>(code: u16, target: &'a str) -> Frame<'a> {
    Frame {
        pending_response: true,
        content_type: code,
        id: b"q",
        source: b"cli",
        target: target.as_bytes(),
        ..Frame::new(Kind::SERVER)
    }
}
