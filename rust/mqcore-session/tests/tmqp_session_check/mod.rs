//! Checks the invariants of a TMQP session for any bytes and any events, as one function.
//!
//! Used by the tests of this crate and by the fuzz target `tmqp_session`, so an input that either finds can be added to
//! the corpus and becomes a plain test. The check panics if an invariant is violated.
//!
//! The input is a script (see [`check`]). Two sessions run it: one receives each piece whole, the other byte by byte.
//! Both must send the same commands to the broker and the same output to the peer. The output must be whole frames, and
//! the input bounds the size of output and commands.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Acknowledgement, ClientPattern, Command, EventKind, Request};
use mqcore_broker::model::effect::{Deliver, Event, Notification, PullOutcome, Recipients, Reply, Subject};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId, Tag};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::options::{ChannelOptions, QueueOptions, Status};
use mqcore_broker::model::page::ListPage;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::stats::{ChannelInformation, ClientInformation, QueueInformation, QueueStats};
use mqcore_broker::model::time::Timestamp;
use mqcore_session::any::{AnySession, Protocol};
use mqcore_session::session::{Session, SessionConfig, SessionError};
use mqcore_session::tmqp::COPIES_MAX;
use mqcore_session::tmqp::{delivery_size, encode_delivery};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::{self, PREAMBLE};

/// A Hello of the client `cli`, as an original client sends it.
const HELLO: &[u8] = b"\x90\x10\x06\x03\x00\x65\x00\x1aid-001cliCONNECT /\r\nClient-Id: cli";

const SHARDS: usize = 3;
/// Maximum bytes of a frame: small, so that scripts reach the limits.
const FRAME_BYTES_MAX: u64 = 100_000;
/// Maximum bytes that answer one frame, besides the parts that the answer repeats.
const ANSWER_BYTES_MAX: usize = 4096;
/// Maximum items of a list in one event, and bytes of an item.
const ITEMS_MAX: usize = 2;
const ITEM_BYTES_MAX: usize = 2048;
/// Maximum commands whose events are outstanding; later ones are forgotten, as by a broker that drops them.
const OPEN_MAX: usize = 1000;

/// Runs the script in `input`. Its steps, by their first byte:
///
/// | byte | step |
/// |---|---|
/// | 0-127 | that many of the following bytes arrive |
/// | 128-191 | the broker answers a command; bits 0-3 select how, bits 4-5 which one |
/// | 192-207 | time passes, and the timeout runs if it is due |
/// | 208-215 | preamble and Hello arrive, and the client is accepted |
/// | 216-223 | an event arrives that the client did not ask for |
/// | 224-254 | the following bytes up to the next 255 or the end arrive |
/// | 255 | the server stops |
pub(crate) fn check(input: &[u8]) {
    let mut play = Play::new();
    let mut rest = input;
    while let Some((&step, behind)) = rest.split_first() {
        rest = play.step(step, behind);
    }
}

struct Play {
    whole: Side,
    bytes: Side,
    now: Timestamp,
    /// Commands that no event has answered yet.
    open: Vec<Command>,
    /// The sessions' output so far, from here on unread.
    said: Vec<u8>,
    echoed: bool,
    /// Items of lists that events may have had so far.
    items: usize,
}

impl Play {
    fn new() -> Self {
        let now = Timestamp(1_800_000_000_000);
        Self {
            whole: Side::new(now, false),
            bytes: Side::new(now, true),
            now,
            open: Vec::new(),
            said: Vec::new(),
            echoed: false,
            items: 0,
        }
    }

    fn step<'a>(&mut self, step: u8, behind: &'a [u8]) -> &'a [u8] {
        match step {
            0..=127 => {
                let (piece, rest) = behind.split_at(behind.len().min(step.into()));
                self.arrive(piece);
                return rest;
            }
            128..=191 => self.answer((step >> 4) & 3, step & 15),
            192..=207 => self.wait(step & 15),
            208..=215 => {
                self.arrive(&[&PREAMBLE, HELLO].concat());
                self.answer(0, 0);
            }
            216..=223 => self.happen(step & 7),
            224..=254 => {
                let end = behind.iter().position(|&byte| byte == 255).unwrap_or(behind.len());
                self.arrive(&behind[..end]);
                return &behind[end..];
            }
            255 => self.both(|side, _| {
                side.session.shutdown(&mut side.output);
                Ok(())
            }),
        }
        behind
    }

    fn arrive(&mut self, piece: &[u8]) {
        let arriving = self.whole.unread.len() + piece.len();
        self.both(|side, now| side.arrive(piece, now));
        let commands = std::mem::take(&mut self.whole.commands);
        let other = std::mem::take(&mut self.bytes.commands);
        assert_eq!(describe_all(&commands), describe_all(&other));
        // Each frame has at least eight bytes, and is one command and its copies.
        assert!(commands.len() <= (arriving / 8 + 1) * (1 + COPIES_MAX));
        let carried: usize = commands.iter().filter_map(carried_bytes).sum();
        assert!(carried <= arriving + COPIES_MAX * FRAME_BYTES_MAX as usize);
        self.open.extend(commands);
        self.open.truncate(OPEN_MAX);
    }

    /// The broker answers one of the open commands.
    fn answer(&mut self, which: u8, how: u8) {
        if self.open.is_empty() {
            return;
        }
        let index = match which {
            0 => 0,
            1 => self.open.len() - 1,
            other => usize::from(other) % self.open.len(),
        };
        let (events, is_over) = answers(&self.open[index], how, self.now);
        if is_over {
            self.open.remove(index);
        }
        for event in events {
            self.tell(&event);
        }
    }

    fn tell(&mut self, event: &Event) {
        self.both(|side, now| side.session.event(event.clone(), now, &mut side.output));
        self.continue_lists();
        // After an event the caller offers unread input again.
        self.arrive(&[]);
    }

    /// The requests for further pages, and for lists that waited, go to the broker.
    fn continue_lists(&mut self) {
        self.items += ITEMS_MAX;
        self.both(|side, _| {
            side.commands.extend(side.session.take_commands());
            Ok(())
        });
        let commands = std::mem::take(&mut self.whole.commands);
        assert_eq!(describe_all(&commands), describe_all(&std::mem::take(&mut self.bytes.commands)));
        assert!(commands.len() <= 1, "one page at a time");
        self.open.extend(commands);
        self.open.truncate(OPEN_MAX);
    }

    fn happen(&mut self, what: u8) {
        let unknown = RequestId(u32::from(what) * 1000);
        let events = match what {
            0 => vec![Event::Answered(unknown, Ok(Reply::Done))],
            1 => vec![Event::PullEnded { request: unknown, outcome: PullOutcome::Empty }],
            2 => vec![Event::Refused(Rejection::new(RejectionKind::Failed, ""))],
            3 => EventKind::ALL.into_iter().map(occurred).collect(),
            _ => {
                let message = Message::from_parts(b"M", b"", b"", <_>::default(), None);
                vec![Event::Responded(message.clone()), Event::DirectAcknowledged(message)]
            }
        };
        for event in events {
            self.tell(&event);
        }
    }

    fn wait(&mut self, how: u8) {
        let seconds = [0, 1, 5, 9, 10, 11, 30, 59, 60, 61, 70, 100, 1000, 100_000, 10_000_000, 1 << 40];
        self.now = self.now.after(Duration::from_secs(seconds[usize::from(how)]));
        self.both(|side, now| {
            let due = side.session.next_timeout();
            let before = side.output.len();
            let result = side.session.timeout(now, &mut side.output);
            if now < due {
                assert!(result.is_ok() && side.output.len() == before, "nothing was due");
            } else if result.is_ok() {
                assert!(
                    side.session.next_timeout() > now || due == Timestamp::NEVER,
                    "it would ring for ever"
                );
            }
            result
        });
    }

    /// Both sides do the same; their output and their failure must be the same too.
    fn both(&mut self, act: impl Fn(&mut Side, Timestamp) -> Result<(), SessionError>) {
        for side in [&mut self.whole, &mut self.bytes] {
            if side.over.is_none() {
                side.over = act(side, self.now).err();
            }
            assert!(side.over.is_none() || side.session.is_closing(), "who failed is closing");
            assert!(side.session.needed(&side.unread) as u64 <= FRAME_BYTES_MAX);
        }
        assert_eq!(self.whole.over, self.bytes.over);
        assert_eq!(self.whole.session.is_closing(), self.bytes.session.is_closing());
        assert_eq!(self.whole.session.next_timeout(), self.bytes.session.next_timeout());
        assert_eq!(self.whole.session.ignored_frames(), self.bytes.session.ignored_frames());
        assert_eq!(self.whole.output, self.bytes.output);
        self.bytes.output.clear();
        self.said.append(&mut self.whole.output);
        self.read_what_was_said();
    }

    /// The output is the preamble, and then whole frames.
    fn read_what_was_said(&mut self) {
        let mut rest = &self.said[..];
        if !self.echoed && !rest.is_empty() {
            assert!(rest.starts_with(&tmqp::PREAMBLE) || rest.starts_with(&tmqp::PREAMBLE_V1));
            rest = &rest[PREAMBLE.len()..];
            self.echoed = true;
        }
        while !rest.is_empty() {
            let limits = Limits { frame_bytes_max: u64::MAX, ..Limits::default() };
            let (frame, size) = tmqp::decode(rest, &limits).expect("a frame").expect("a whole frame");
            let answers = ANSWER_BYTES_MAX + self.items * ITEM_BYTES_MAX;
            assert!(frame.payload.len() <= FRAME_BYTES_MAX as usize + answers);
            rest = &rest[size..];
        }
        self.said.clear();
    }
}

/// One of the two sessions.
struct Side {
    session: AnySession,
    by_bytes: bool,
    unread: Vec<u8>,
    commands: Vec<Command>,
    output: Vec<u8>,
    over: Option<SessionError>,
}

impl Side {
    fn new(now: Timestamp, by_bytes: bool) -> Self {
        let config = SessionConfig {
            connection: ConnectionId(1),
            shards: SHARDS,
            limits: Limits { frame_bytes_max: FRAME_BYTES_MAX, ..Limits::default() },
            login_bytes_max: 1 << 16,
            answer_bytes_max: 1 << 23,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            admin: true,
            peer: Arc::default(),
            node: None,
        };
        Self {
            session: AnySession::new(Protocol::Tmqp, config, now),
            by_bytes,
            unread: Vec::new(),
            commands: Vec::new(),
            output: Vec::new(),
            over: None,
        }
    }

    fn arrive(&mut self, piece: &[u8], now: Timestamp) -> Result<(), SessionError> {
        let size = if self.by_bytes { 1 } else { piece.len().max(1) };
        self.read(now)?;
        for part in piece.chunks(size) {
            self.unread.extend_from_slice(part);
            self.read(now)?;
        }
        Ok(())
    }

    fn read(&mut self, now: Timestamp) -> Result<(), SessionError> {
        let consumed = self.session.receive(&self.unread, now, &mut self.commands, &mut self.output)?;
        assert!(consumed <= self.unread.len());
        self.unread.drain(..consumed);
        Ok(())
    }
}

/// The broker's possible answers to a command, and whether the answer is complete.
fn answers(command: &Command, how: u8, now: Timestamp) -> (Vec<Event>, bool) {
    match command {
        Command::Introduce(introduction) => {
            let id = introduction.id.clone().unwrap_or_else(|| "made".to_owned());
            let event = match how {
                0..=12 => Event::Welcomed(client(&id, now)),
                13 => Event::Refused(rejection(13)),
                _ => Event::Refused(Rejection::new(RejectionKind::Unauthorized, "no")),
            };
            (vec![event], true)
        }
        Command::Publish { queue, message } => (vec![published(queue, message, how)], true),
        Command::Route { router, message } => {
            let refusal = (how & 1 == 0).then(|| rejection(how));
            (vec![Event::Routed { router: router.clone(), message: message.clone(), refusal }], true)
        }
        Command::PassedOn(passed_on) => {
            let number = passed_on.ticket.number;
            let event = match how {
                0..=13 => Event::Confirmed(vec![number]),
                _ => Event::Deferred(number, rejection(how)),
            };
            (vec![event], true)
        }
        Command::PublishTopic { topic, message, answer, .. } => {
            let mut events = vec![Event::Published { topic: topic.clone(), message: message.clone() }];
            let reply = if how < 12 { Ok(Reply::Published(u32::from(how & 1))) } else { Err(rejection(how)) };
            events.extend(answer.map(|request| Event::Answered(request, reply)));
            (events, true)
        }
        Command::Acknowledge(word) => {
            let message = Message::from_parts(&word.message_id, b"", b"", <_>::default(), None);
            let relayed = Some(Box::new((word.clone(), Some("consumer".into()))));
            let own = word.negative().map(Into::into);
            let negative = if how & 1 == 0 { own } else { Some("none".into()) };
            (
                vec![Event::Acknowledged { queue: Arc::new(word.queue.clone()), message, negative, relayed }],
                true,
            )
        }
        Command::AcknowledgeAll { .. } | Command::RoomFor { .. } => {
            unreachable!("consumers of this protocol settle one by one and share no slots")
        }
        Command::Extend { .. } => (Vec::new(), true),
        Command::Pull(pull) => pulled(pull.request, how),
        Command::Direct { to, message } => {
            let (to, message) = (to.clone(), message.clone());
            let event = match how & 1 {
                0 => Event::Direct { to, message },
                _ => Event::DirectRefused { to, message, rejection: rejection(how) },
            };
            (vec![event], true)
        }
        Command::AcknowledgeDirect { message, .. } => {
            (vec![Event::DirectAcknowledged(message.clone())], true)
        }
        Command::Respond { message, .. } => (vec![Event::Responded(message.clone())], true),
        Command::Custom(message) => (vec![Event::Custom(message.clone())], true),
        Command::Request(request, _) => {
            let reply = if how < 10 { Ok(reply(how, now)) } else { Err(rejection(how)) };
            // One part at a time, so that other steps can happen in between; the script decides how often.
            (vec![Event::Answered(*request, reply)], how & 1 == 0)
        }
    }
}

fn published(queue: &QueueAddress, message: &Message, how: u8) -> Event {
    let (shared, message) = (Arc::new(queue.clone()), message.clone());
    if how & 8 != 0 {
        let deliver = Deliver {
            queue: shared.clone(),
            message: message.clone(),
            to: Recipients::One(ConnectionId(1)),
            acknowledge: how & 1 != 0,
            hide_source: how & 2 != 0,
            first: how & 4 != 0,
            tag: Tag::CHANNEL,
            attempt: 1,
            by_queue: false,
            requeues: 0,
            name: None,
        };
        let mut output = Vec::new();
        encode_delivery(&deliver, how & 4 != 0, &mut output);
        assert_eq!(output.len(), delivery_size(&deliver));
        let (frame, size) = tmqp::decode(&output, &Limits::default()).unwrap().unwrap();
        assert_eq!(size, output.len());
        assert_eq!(
            (frame.id, frame.headers, frame.payload),
            (message.id(), message.headers(), message.body())
        );
    }
    match how & 3 {
        0 => Event::Acknowledged { queue: shared, message, negative: None, relayed: None },
        1 => Event::Acknowledged { queue: shared, message, negative: Some("a\r\nb".into()), relayed: None },
        _ => Event::PublishRefused { queue: queue.clone(), message, rejection: rejection(how) },
    }
}

fn pulled(request: RequestId, how: u8) -> (Vec<Event>, bool) {
    let message = |headers: &[u8]| Message::from_parts(b"P", headers, b"body", <_>::default(), None);
    let outcome = [
        PullOutcome::Complete,
        PullOutcome::Empty,
        PullOutcome::Unacceptable,
        PullOutcome::Unauthorized,
        PullOutcome::NoChannel,
        PullOutcome::NoQueue,
    ];
    let one = |headers: &[u8], left| Event::Pulled {
        request,
        message: message(headers),
        acknowledge: how & 1 != 0,
        hide_source: false,
        first: true,
        attempt: 1,
        index: 1,
        count: 2,
        left,
    };
    match how {
        0..=5 => (vec![Event::PullEnded { request, outcome: outcome[usize::from(how)] }], true),
        6 => (vec![Event::Cached { request, message: message(b"a:b\r\n"), hide_source: false }], true),
        7 => (vec![one(&vec![b'h'; 65_535], Some((1, 2)))], false),
        8..=11 => (vec![one(b"own", None)], false),
        _ => (vec![one(b"", Some((u64::MAX, 0)))], false),
    }
}

fn rejection(how: u8) -> Rejection {
    let kind = match how & 3 {
        0 => RejectionKind::Failed,
        1 => RejectionKind::NotFound,
        2 => RejectionKind::LimitExceeded,
        _ => RejectionKind::Busy,
    };
    Rejection::new(kind, if how & 4 == 0 { "because" } else { "line\r\nbreak" })
}

fn client(id: &str, now: Timestamp) -> Arc<Client> {
    Arc::new(Client {
        connection: ConnectionId(1),
        id: id.into(),
        authenticated: false,
        name: Some("name".into()),
        kind: None,
        protocol: "tmqp",
        admin: true,
        user: None,
        connected_at: now,
        data: None,
    })
}

fn reply(how: u8, now: Timestamp) -> Reply {
    let address = QueueAddress::parse("ch/1").expect("a good name");
    let channel = || ChannelInformation {
        channel: address.channel.clone(),
        options: ChannelOptions::default(),
        queues: vec![1],
        active_clients: 1,
    };
    let queue = || QueueInformation {
        queue: address.clone(),
        options: QueueOptions::default(),
        high_priority: 0,
        normal: 0,
        missing_handler: None,
        consumers: 0,
        delayed: 0,
        next_attempt_ms: 0,
        in_flight: 0,
        undecided: 0,
        unsettled: 0,
        oldest_ms: 0,
        memory_bytes: 0,
        stats: QueueStats::default(),
        processed_in: None,
    };
    match how {
        0..=2 => Reply::Done,
        3 => Reply::Channel(Box::new(channel())),
        4 => Reply::Channels(vec![channel(), channel()].into()),
        5 => Reply::Queue(Box::new(queue())),
        6 => Reply::Queues(vec![queue()].into()),
        7 => Reply::Clients(vec![ClientInformation { client: client("x", now), online_ms: 1 }].into()),
        8 => Reply::Channels(ListPage { items: vec![channel()], next: Some("ch".into()) }),
        _ => Reply::Nodes(Vec::new().into()),
    }
}

fn occurred(kind: EventKind) -> Event {
    let address = QueueAddress::parse("ch/1").expect("a good name");
    let subject = match kind {
        EventKind::ClientConnected | EventKind::ClientDisconnected => {
            Subject::Client { id: "c".into(), name: None, kind: None }
        }
        EventKind::ClientJoined | EventKind::ClientLeft => {
            Subject::Subscription { client_id: "c".into(), client_name: None, client_kind: None }
        }
        EventKind::ChannelCreated | EventKind::ChannelRemoved => {
            Subject::Channel { active_clients: 0, client_limit: 0 }
        }
        EventKind::QueueCreated | EventKind::QueueUpdated | EventKind::QueueRemoved => {
            Subject::Queue { tag: None, status: Status::Push, high_priority: 0, normal: 0 }
        }
        EventKind::NodeConnected | EventKind::NodeDisconnected => Subject::Node(Box::new(NodeInformation {
            id: "n".into(),
            name: "node".into(),
            host: String::new(),
            downstream: true,
            connected: true,
            lifetime_ms: 0,
        })),
        EventKind::MessageProduced => Subject::Message { id: b"M"[..].into(), saved: false, producer: None },
    };
    let (channel, queue) = (Some(address.channel), Some(address.id));
    Event::Notified(Arc::new(Notification { kind, channel, queue, subject }))
}

/// A command with all its fields, to be compared.
fn describe_all(commands: &[Command]) -> String {
    let mut text = String::new();
    for command in commands {
        describe(command, &mut text).expect("a string takes everything");
        text.push('\n');
    }
    text
}

fn describe(command: &Command, text: &mut String) -> std::fmt::Result {
    match command {
        Command::PassedOn(passed_on) => {
            write!(text, "{:?} ", passed_on.ticket)?;
            describe(&passed_on.command, text)
        }
        Command::Publish { queue, message } => {
            write!(text, "publish {queue} ")?;
            describe_message(message, text)
        }
        Command::Route { router, message } => {
            write!(text, "route {router} ")?;
            describe_message(message, text)
        }
        Command::PublishTopic { topic, message, to_producer, answer } => {
            write!(text, "publish topic {topic} {to_producer} {answer:?} ")?;
            describe_message(message, text)
        }
        Command::Direct { to, message } => {
            let (ClientPattern::Id(name) | ClientPattern::Name(name) | ClientPattern::Kind(name)) = to;
            write!(text, "direct {name} ")?;
            describe_message(message, text)
        }
        Command::AcknowledgeDirect { to, message } => {
            write!(text, "acknowledge {to} ")?;
            describe_message(message, text)
        }
        Command::Custom(message) => {
            write!(text, "custom ")?;
            describe_message(message, text)
        }
        Command::Respond { to, message } => {
            write!(text, "respond {to} ")?;
            describe_message(message, text)
        }
        Command::Acknowledge(Acknowledgement {
            tag: _,
            queue,
            message_id,
            refusal,
            headers,
            hops,
            first_acquirer,
        }) => {
            let negative = refusal.as_deref().map(|refusal| &refusal.reason);
            write!(text, "{queue} {message_id:?} {negative:?} {headers:?} {hops} {first_acquirer}")
        }
        Command::Request(number, request) => write!(text, "{number:?} {:?}", request as &Request),
        Command::Pull(_)
        | Command::Introduce(_)
        | Command::AcknowledgeAll { .. }
        | Command::Extend { .. }
        | Command::RoomFor { .. } => {
            write!(text, "{command:?}")
        }
    }
}

fn describe_message(message: &Message, text: &mut String) -> std::fmt::Result {
    let (properties, producer) = (message.properties(), message.producer().map(|producer| &producer.id));
    let bytes = [message.id(), message.headers(), message.body()].map(<[u8]>::escape_ascii);
    write!(text, "{properties:?} {producer:?} {} {} {}", bytes[0], bytes[1], bytes[2])
}

fn carried_bytes(command: &Command) -> Option<usize> {
    match command {
        Command::Publish { message, .. }
        | Command::PublishTopic { message, .. }
        | Command::Route { message, .. }
        | Command::Direct { message, .. }
        | Command::AcknowledgeDirect { message, .. }
        | Command::Respond { message, .. } => {
            Some(message.id().len() + message.headers().len() + message.body().len())
        }
        _ => None,
    }
}
