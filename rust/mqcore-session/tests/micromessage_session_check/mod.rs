//! Checks the invariants of a MicroMessage2 session for any input and any events, as one function.
//!
//! Used by the tests of this crate and by the fuzz target `micromessage_session`. A script is a sequence of steps: a
//! byte that selects the step, a byte with a length, and that many bytes. The check panics if an invariant is violated.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Deliver, Event, Recipients, Reply};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId, Tag, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_session::extension::ExtensionFailure;
use mqcore_session::micromessage::{MicroMessageSession, OPEN_COMMANDS_MAX, OPEN_FRAMES_MAX};
use mqcore_session::session::{Session, SessionConfig};
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::{self, Handshake, HandshakeInput};
use mqcore_wire::micromessage::{Assembled, Assembly, Frame, decode};

/// Extensions that a script can agree on, by number.
const AGREED: [&str; 5] = [
    "",
    "batch-ack:max-count=3;x-nack;pub-sub;x-mqcore",
    "ack;pub-sub",
    "json;dotnet;pub-sub;x-note",
    "batch-ack;dotnet;pub-sub;x-mqcore",
];

/// A session under a script, and the state of its peer.
struct Play {
    session: MicroMessageSession,
    now: Timestamp,
    unread: Vec<u8>,
    heard: Vec<u8>,
    /// The server's message of the handshake was received.
    shaken: bool,
    ended: bool,
    /// Numbers of requests that the broker has not answered.
    asked: Vec<RequestId>,
    tags: Vec<Tag>,
    published: Vec<Message>,
    client: Arc<Client>,
    delivered: u64,
    acknowledged: u64,
}

/// Plays a script.
pub(crate) fn check(script: &[u8]) {
    let mut play = Play::new();
    let mut rest = script;
    while let [step, length, more @ ..] = rest {
        let (bytes, after) = more.split_at(more.len().min((*length).into()));
        play.step(*step, bytes);
        if play.ended {
            return;
        }
        rest = after;
    }
}

impl Play {
    fn new() -> Self {
        let now = Timestamp(1_795_216_278_000);
        let config = SessionConfig {
            connection: ConnectionId(1),
            shards: 2,
            limits: Limits { frame_bytes_max: 4096, ..Limits::default() },
            login_bytes_max: 1 << 16,
            answer_bytes_max: 1 << 23,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            admin: false,
            peer: Arc::default(),
            node: None,
        };
        let client = Client {
            connection: ConnectionId(1),
            id: "c".into(),
            authenticated: false,
            name: None,
            kind: None,
            protocol: "mm2",
            admin: false,
            user: None,
            connected_at: now,
            data: None,
        };
        let vendors: Arc<[Box<str>]> = Arc::new(["x-note".into()]);
        Self {
            session: MicroMessageSession::new(config, Arc::default(), vendors, now),
            now,
            unread: Vec::new(),
            heard: Vec::new(),
            shaken: false,
            ended: false,
            asked: Vec::new(),
            tags: vec![Tag(1)],
            published: Vec::new(),
            client: Arc::new(client),
            delivered: 0,
            acknowledged: 0,
        }
    }

    fn step(&mut self, step: u8, bytes: &[u8]) {
        let pick = usize::from(bytes.first().copied().unwrap_or_default());
        match step % 12 {
            0..=3 => self.receive(bytes),
            4 => self.agree(AGREED[pick % AGREED.len()]),
            5 => self.event(Event::Welcomed(Arc::clone(&self.client))),
            6 => {
                let message = self.message(bytes);
                let deliver = Deliver {
                    queue: Arc::new(QueueAddress::parse("orders").unwrap()),
                    message,
                    to: Recipients::One(ConnectionId(1)),
                    acknowledge: self.session.agreement().acknowledging().is_some(),
                    hide_source: false,
                    first: true,
                    tag: self.tags[pick % self.tags.len()],
                    attempt: 1,
                    by_queue: false,
                    requeues: 0,
                    name: None,
                };
                self.event(Event::Delivered(deliver));
            }
            7 => {
                let message = self.message(bytes);
                self.event(Event::Published { topic: TopicName::new(b"t").unwrap(), message });
            }
            8 if !self.asked.is_empty() => {
                let number = self.asked.remove(pick % self.asked.len());
                let refused = Rejection::new(RejectionKind::NotFound, "no");
                self.event(Event::Answered(
                    number,
                    if pick % 5 == 4 { Err(refused) } else { Ok(Reply::Done) },
                ));
            }
            9 if !self.published.is_empty() => {
                let message = self.published.remove(pick % self.published.len());
                let queue = Arc::new(QueueAddress::parse("orders").unwrap());
                let negative = (pick % 5 == 4).then(|| "none".into());
                self.event(Event::Acknowledged { queue, message, negative, relayed: None });
            }
            // Only a peer that agreed on extensions can have sent them a request.
            10 if self.session.client().is_some() => {
                let answer = match pick % 4 {
                    3 => Err(ExtensionFailure::Failed("no".into())),
                    count => Ok(vec![bytes.to_vec(); count]),
                };
                let id = pick as u8 % self.session.agreement().len().max(1) + 1;
                let result = self.session.extension_answered(id, answer, &mut self.heard);
                self.look(result.is_err());
            }
            11 => {
                self.now = self.now.after(Duration::from_secs(pick as u64));
                if self.session.next_timeout() <= self.now {
                    let result = self.session.timeout(self.now, &mut self.heard);
                    self.look(result.is_err());
                }
            }
            _ => {}
        }
    }

    fn message(&self, bytes: &[u8]) -> Message {
        let headers: &[u8] = if bytes.len().is_multiple_of(2) {
            b"Mm2-Properties:a:N1\r\n"
        } else {
            b"Mm2-Type:T\r\nKey:v\r\n"
        };
        Message::from_parts(&[b'i'; 8], headers, bytes, Properties::default(), None)
    }

    fn agree(&mut self, required: &str) {
        let required = required.as_bytes();
        let said = Handshake { major: 1, minor: 0, flags: 0, identity: b"p", required, optional: b"" };
        let mut bytes = Vec::new();
        handshake::encode(&said, &mut bytes);
        self.receive(&bytes);
        if !self.ended {
            self.receive(&bytes);
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut commands = Vec::new();
        let result = self.session.receive(&self.unread, self.now, &mut commands, &mut self.heard);
        let in_force = self.session.client().is_some();
        for command in commands {
            match command {
                Command::Introduce(_) => assert!(!in_force, "introduced twice"),
                _ if !in_force => panic!("a stranger asks for {command:?}"),
                Command::Request(number, request) => {
                    self.asked.push(number);
                    if let Request::SubscribeQueue(subscription) = *request {
                        self.tags.push(subscription.tag);
                    }
                }
                Command::Publish { message, .. } => self.published.push(message),
                Command::PublishTopic { answer, .. } => self.asked.extend(answer),
                Command::Acknowledge(_) => self.acknowledged += 1,
                other => panic!("it never asks for {other:?}"),
            }
        }
        match result {
            Ok(consumed) => {
                assert!(consumed <= self.unread.len());
                self.unread.drain(..consumed);
            }
            Err(_) => return self.look(true),
        }
        assert!(self.session.take_vendor_frames().len() <= OPEN_FRAMES_MAX);
        self.look(false);
    }

    fn event(&mut self, event: Event) {
        let result = self.session.event(event, self.now, &mut self.heard);
        let failed = result.is_err();
        if !failed {
            self.session.events_done(&mut self.heard);
        }
        self.look(failed);
        if !self.ended {
            self.receive(&[]);
        }
    }

    /// Reads the session's output.
    fn look(&mut self, failed: bool) {
        let heard = std::mem::take(&mut self.heard);
        let mut rest = &heard[..];
        if !self.shaken
            && !rest.is_empty()
            && let Ok(Some((opening, size))) = handshake::decode(rest, &Limits::default())
        {
            self.shaken = matches!(opening, HandshakeInput::Handshake(_));
            rest = &rest[size..];
        }
        let mut assembly = Assembly::new(1 << 20);
        let mut last_word = false;
        while !rest.is_empty() {
            assert!(!last_word, "something comes behind an error");
            let (frame, size) =
                decode(rest, 255, &Limits::default()).unwrap().expect("whole frames are written");
            rest = &rest[size..];
            match frame {
                Frame::Message(part) => {
                    if let Assembled::Whole(_) | Assembled::Joined(_) = assembly.push(part).unwrap() {
                        self.delivered += 1;
                    }
                }
                Frame::Error { text } => {
                    assert!(text.len() <= 255 && std::str::from_utf8(text).is_ok());
                    last_word = true;
                }
                Frame::Command { .. } | Frame::Extension { .. } => {}
            }
        }
        self.ended = failed || self.session.is_closing();
        assert!(self.asked.len() <= OPEN_COMMANDS_MAX + 32_767);
        assert!(self.acknowledged <= self.delivered, "more is settled than was handed out");
    }
}
