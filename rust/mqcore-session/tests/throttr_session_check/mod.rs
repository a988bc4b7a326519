//! Checks the invariants of a Throttr session for any bytes and any events, as one function.
//!
//! Used by the tests of this crate and by the fuzz target `throttr_session`, so an input that either finds can be added
//! to the corpus and becomes a plain test. The check panics if an invariant is violated.
//!
//! The input is a script (see [`check`]). Two sessions run it, each on a store of its own: one receives each piece
//! whole, the other byte by byte. Both must send the same commands to the broker and the same output to the peer. A
//! session whose peer has closed its side and has all its answers must be closing.

use std::collections::{BTreeSet, VecDeque};
use std::hash::RandomState;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{ConnectionId, RequestId, TopicName};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_limiter::limiter::{Limiter, LimiterConfig};
use mqcore_limiter::time::Nanos;
use mqcore_session::permission::{Permission, PermissionSubject, Permissions};
use mqcore_session::session::{Session, SessionConfig};
use mqcore_session::throttr::ThrottrSession;
use mqcore_session::throttr::listener::ThrottrTerms;
use mqcore_session::throttr::shared::ThrottrShared;
use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::{Dialect, Family, Width};

/// Maximum bytes of a request: small, so that scripts reach the limit.
const FRAME_BYTES_MAX: u64 = 5_000;
/// Start time of the scripts, in Unix nanoseconds.
const START: u64 = 1_800_000_000_000_000_000;

/// Runs the script in `input`. The first byte selects: bits 0-1 the width, bit 2 the edition, bit 3 whether the peer
/// may access some keys only, bit 4 whether values wrap, bit 5 whether requests are counted. The following steps, by
/// their first byte:
///
/// | byte | step |
/// |---|---|
/// | 0-159 | that many of the following bytes arrive |
/// | 160-191 | the broker answers a request; bit 0 selects success or failure, bits 1-4 which request |
/// | 192-207 | time passes |
/// | 208-223 | a message is published to a subscribed channel, selected by number |
/// | 224-254 | the following bytes up to the next 255 or the end arrive |
/// | 255 | the peer closes its side |
pub(crate) fn check(input: &[u8]) {
    let Some((&choice, mut rest)) = input.split_first() else { return };
    let mut play = Play::new(choice);
    while let Some((&step, behind)) = rest.split_first() {
        rest = play.step(step, behind);
    }
    play.end();
}

struct Play {
    whole: Side,
    bytes: Side,
    now: u64,
    /// Requests that the broker has not answered: their number and the reply on success.
    open: VecDeque<(RequestId, Reply)>,
    topics: Vec<TopicName>,
}

impl Play {
    fn new(choice: u8) -> Self {
        let seed = RandomState::new();
        let side = |by_bytes| Side::new(choice, &seed, by_bytes);
        let mut play = Self {
            whole: side(false),
            bytes: side(true),
            now: START,
            open: VecDeque::new(),
            topics: Vec::new(),
        };
        for side in [&mut play.whole, &mut play.bytes] {
            side.session.open(false, &mut side.commands);
        }
        play.compare();
        play
    }

    fn step<'a>(&mut self, step: u8, behind: &'a [u8]) -> &'a [u8] {
        match step {
            0..=159 => {
                let (piece, rest) = behind.split_at(behind.len().min(step.into()));
                self.both(|side| side.arrive(piece));
                return rest;
            }
            160..=191 => self.answer(usize::from(step >> 1 & 15), step & 1 == 0),
            192..=207 => {
                let nanos = [1, 1_000, 1_000_000, 1_048_576, 999_999_999, 1_000_000_000, 60_000_000_000];
                self.now += nanos[usize::from(step & 15) % nanos.len()] * u64::from(step & 15).max(1);
            }
            208..=223 => self.publish(usize::from(step & 15)),
            224..=254 => {
                let end = behind.iter().position(|&byte| byte == 255).unwrap_or(behind.len());
                self.both(|side| side.arrive(&behind[..end]));
                return &behind[end..];
            }
            255 => self.both(Side::hang_up),
        }
        behind
    }

    fn answer(&mut self, which: usize, yes: bool) {
        if self.open.is_empty() {
            return;
        }
        let Some((request, reply)) = self.open.remove(which % self.open.len()) else { return };
        let result =
            if yes { Ok(reply) } else { Err(Rejection::new(RejectionKind::LimitExceeded, "too much")) };
        self.both(|side| side.tell(Event::Answered(request, result.clone())));
    }

    fn publish(&mut self, which: usize) {
        let Some(topic) = self.topics.get(which).cloned() else { return };
        let message = Message::from_parts(b"", b"", &vec![7; which * 50], <_>::default(), None);
        self.both(|side| side.tell(Event::Published { topic: topic.clone(), message: message.clone() }));
    }

    fn both(&mut self, act: impl Fn(&mut Side)) {
        for side in [&mut self.whole, &mut self.bytes] {
            side.session.set_time(|| Nanos(self.now));
            act(side);
            side.go_on();
        }
        self.compare();
    }

    /// Both sides have the same output and commands; the commands wait for the broker.
    fn compare(&mut self) {
        assert_eq!(self.whole.failed, self.bytes.failed);
        assert_eq!(self.whole.output, self.bytes.output);
        assert_eq!(self.whole.session.is_closing(), self.bytes.session.is_closing());
        self.bytes.output.clear();
        self.whole.output.clear();
        let commands = std::mem::take(&mut self.whole.commands);
        let others = std::mem::take(&mut self.bytes.commands);
        assert_eq!(commands.len(), others.len());
        for (command, other) in commands.iter().zip(&others) {
            let (question, topic) = question(command);
            assert_eq!((question.0, topic), (self::question(other).0.0, self::question(other).1));
            if let (Command::Request(_, request), Some(topic)) = (command, topic)
                && matches!(**request, Request::SubscribeTopic { .. })
                && !self.topics.contains(topic)
            {
                self.topics.push(topic.clone());
            }
            self.open.push_back(question);
        }
    }

    /// The broker answers all open requests, and the peer closes its side: no answer may be missing then.
    fn end(&mut self) {
        self.both(Side::hang_up);
        while !self.open.is_empty() {
            self.answer(0, true);
        }
        assert!(self.whole.session.is_closing(), "everything was said and answered");
        for side in [&mut self.whole, &mut self.bytes] {
            side.session.leave(&mut Vec::new());
        }
    }
}

/// The number of a request, the reply on success, and its topic.
fn question(command: &Command) -> ((RequestId, Reply), Option<&TopicName>) {
    match command {
        Command::PublishTopic { topic, answer: Some(number), .. } => {
            ((*number, Reply::Published(1)), Some(topic))
        }
        Command::Request(number, request) => match &**request {
            Request::SubscribeTopic { pattern: TopicPattern::Exact(topic), .. }
            | Request::UnsubscribeTopic { pattern: TopicPattern::Exact(topic) } => {
                ((*number, Reply::Done), Some(topic))
            }
            other => panic!("nothing asks for {other:?}"),
        },
        other => panic!("nothing asks for {other:?}"),
    }
}

/// Decides by the first byte of a key: granted, denied, or either of them after an authorizer was asked.
#[derive(Debug, Default)]
struct Judge {
    decided: Mutex<BTreeSet<Vec<u8>>>,
    wanted: Mutex<Vec<Vec<u8>>>,
}

impl Permissions for Judge {
    fn decide(&self, wanted: PermissionSubject<'_>) -> Permission {
        let PermissionSubject::Key(key) = wanted else { return Permission::Denied };
        let first = key.first().copied().unwrap_or(0) & 3;
        if first & 2 != 0 && !self.decided.lock().unwrap().contains(key) {
            self.wanted.lock().unwrap().push(key.to_vec());
            return Permission::Undecided;
        }
        if first & 1 == 0 { Permission::Granted } else { Permission::Denied }
    }
}

/// One of the two sessions.
struct Side {
    session: ThrottrSession,
    judge: Arc<Judge>,
    by_bytes: bool,
    unread: Vec<u8>,
    commands: Vec<Command>,
    output: Vec<u8>,
    failed: bool,
    ended: bool,
}

impl Side {
    fn new(choice: u8, seed: &RandomState, by_bytes: bool) -> Self {
        let limiter = Arc::new(Limiter::new(LimiterConfig::default(), seed.clone()));
        let directory = Arc::new(ThrottrShared::new(limiter, 0, Nanos(START), [1, 2]));
        let family = if choice & 4 == 0 { Family::V71 } else { Family::V73 };
        let terms = ThrottrTerms {
            dialect: Dialect { width: Width::ALL[usize::from(choice & 3)], family },
            saturate: choice & 16 != 0,
            metrics: choice & 32 == 0,
            persist: false,
        };
        let config = SessionConfig {
            connection: ConnectionId(1),
            shards: 3,
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
        let at = Nanos(START);
        let mut session = ThrottrSession::new(terms, &directory, &config, at, Timestamp(START / 1_000_000));
        let judge = Arc::new(Judge::default());
        if choice & 8 != 0 {
            let permissions: Arc<dyn Permissions> = Arc::<Judge>::clone(&judge);
            session.restrict(permissions);
        }
        Self {
            session,
            judge,
            by_bytes,
            unread: Vec::new(),
            commands: Vec::new(),
            output: Vec::new(),
            failed: false,
            ended: false,
        }
    }

    fn arrive(&mut self, piece: &[u8]) {
        if self.ended {
            return;
        }
        let size = if self.by_bytes { 1 } else { piece.len().max(1) };
        for part in piece.chunks(size) {
            self.unread.extend_from_slice(part);
            self.go_on();
        }
    }

    fn hang_up(&mut self) {
        self.ended = true;
    }

    fn tell(&mut self, event: Event) {
        if !self.failed {
            self.session.event(event, Timestamp(0), &mut self.output).expect("nothing ends it here");
        }
    }

    /// Reads, writes and makes pending decisions until nothing changes any more.
    fn go_on(&mut self) {
        while !self.failed {
            let left = self.unread.len();
            let read = if self.ended { ThrottrSession::receive_last } else { ThrottrSession::receive };
            match read(&mut self.session, &self.unread, Timestamp(0), &mut self.commands, &mut self.output) {
                Ok(consumed) => drop(self.unread.drain(..consumed)),
                Err(_) => self.failed = true,
            }
            assert!(self.session.needed(&self.unread) as u64 <= FRAME_BYTES_MAX + 1);
            let mut pumped = false;
            while self.session.has_more() {
                self.session.pump(&mut self.output);
                pumped = true;
            }
            let wanted = std::mem::take(&mut *self.judge.wanted.lock().unwrap());
            let asked = !wanted.is_empty();
            self.judge.decided.lock().unwrap().extend(wanted);
            if self.unread.len() == left && !pumped && !asked {
                return;
            }
        }
    }
}
