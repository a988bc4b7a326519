//! One conversation: what the peer sends, what the broker answers.

mod requests;
mod schedules;
mod topics;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::{Event, Publication, Reply};
use mqcore_broker::model::id::{QueueAddress, RequestId};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::eventmq::{self, Command as Said};
use mqcore_wire::zmtp::command::{Command as Control, Ready, SocketType};
use mqcore_wire::zmtp::{Cutter, Greeting, Item, encode_message};

use super::client::Intake;
use super::ids::MessageIds;
use super::listener::{EventmqTerms, Role};
use super::pending::{Asked, Pending};
use super::shared::{EventmqShared, Registration, Scheduler};
use super::worker::Work;
use super::{client, job};
use crate::request_error::{ErrorNumbers, RequestError};
use crate::session::{Session, SessionConfig, SessionError};

/// How often workers and schedulers hear something.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// How long they may be silent. They are to say something every 3 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Bytes of the command that ends the handshake, at most.
pub const READY_BYTES_MAX: u32 = 512;
/// Topics that a subscriber may want; more are refused.
pub const TOPICS_MAX: usize = mqcore_broker::model::topic::PATTERNS_MAX;

/// How far the conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing came yet.
    Silent,
    /// We have greeted, and wait for the peer's greeting.
    Greeting,
    /// Both have; the peer has not said what its socket is.
    Shaking,
    /// The broker was asked to take the peer; nothing is read until it answers.
    Introduced,
    /// The peer is a client.
    Open,
    /// Nothing is read or written any more.
    Over,
}

/// What the peer has become.
#[derive(Debug)]
enum Part {
    /// Nothing but what its listener is for.
    None,
    /// It wants to be a worker; its queues are being asked.
    Joining { id: Box<[u8]>, work: Box<Work>, open: usize },
    /// It is one.
    Worker(Box<Work>),
    /// It keeps schedules.
    Scheduler(Registration<Scheduler>),
}

/// One conversation.
#[derive(Debug)]
pub struct EventmqSession {
    config: SessionConfig,
    exchange: Arc<EventmqShared>,
    role: Role,
    stage: Stage,
    client: Option<Arc<Client>>,
    cutter: Cutter,
    identity: Box<[u8]>,
    part: Part,
    ids: MessageIds,
    intake: Intake,
    pending: Pending,
    /// How often each topic is wanted, as subscribers count.
    topics: BTreeMap<Box<[u8]>, u32>,
    /// What the session wants although its peer said nothing.
    wanted: Vec<Command>,
    /// Until when the handshake may last.
    deadline: Timestamp,
    heartbeat_at: Timestamp,
    heard_at: Timestamp,
    numbers: ErrorNumbers,
    request_errors: Vec<RequestError>,
    ignored: u64,
    stops_broker: bool,
    /// Answers without which a client that says nothing more may not leave: its jobs may still come back.
    fences: Option<usize>,
}

impl EventmqSession {
    /// The session of a connection that was opened just now.
    #[must_use]
    pub fn new(
        terms: EventmqTerms,
        exchange: &Arc<EventmqShared>,
        config: SessionConfig,
        now: Timestamp,
    ) -> Self {
        Self {
            exchange: Arc::clone(exchange),
            role: terms.role,
            stage: Stage::Silent,
            client: None,
            cutter: Cutter::new(),
            identity: Box::default(),
            part: Part::None,
            ids: MessageIds::new(config.connection, exchange.seed),
            intake: Intake::default(),
            pending: Pending::default(),
            topics: BTreeMap::new(),
            wanted: Vec::new(),
            deadline: now.after(config.handshake_timeout),
            heartbeat_at: Timestamp::NEVER,
            heard_at: now,
            numbers: ErrorNumbers::new(config.connection),
            request_errors: Vec::new(),
            ignored: 0,
            stops_broker: false,
            fences: None,
            config,
        }
    }

    /// The session of a connection that shares nothing with others.
    #[must_use]
    pub fn alone(config: SessionConfig, now: Timestamp) -> Self {
        let seed = config.connection.0 ^ now.0 << 20;
        Self::new(EventmqTerms::default(), &Arc::new(EventmqShared::new(seed, None)), config, now)
    }

    fn socket(&self) -> SocketType {
        if self.role == Role::Subscribe { SocketType::Pub } else { SocketType::Router }
    }

    fn may_read(&self) -> bool {
        self.stage == Stage::Open && !self.pending.holds() && !self.intake.holds()
    }

    // --- the handshake --------------------------------------------------------------------------------------------

    /// We speak first as soon as anything comes: peers wait for it.
    fn greet(&mut self, output: &mut Vec<u8>) {
        Greeting { minor: 0, as_server: false }.encode(output);
        self.stage = Stage::Greeting;
    }

    /// Who is let in hears READY; who is not, ERROR in its place. So what a peer sends behind our READY is not lost with a
    /// connection that is refused.
    fn welcome(&mut self, client: Arc<Client>, output: &mut Vec<u8>) {
        Control::Ready(Ready { socket: self.socket(), identity: b"", token: b"" }).encode(output);
        self.client = Some(client);
        self.stage = Stage::Open;
        self.finish();
    }

    /// The peer says what its socket is. Without a token it comes in as nobody in particular.
    fn shake(&mut self, ready: Ready<'_>, commands: &mut Vec<Command>) -> Result<(), SessionError> {
        if !self.socket().talks_to(ready.socket) {
            let (own, other) = (self.socket().as_str(), ready.socket.as_str());
            let why = format!("a {other} socket does not talk to a {own} socket");
            return Err(SessionError::Misbehaved(why.into()));
        }
        self.identity = ready.identity.into();
        let name = str::from_utf8(ready.identity).ok();
        let name = name.filter(|name| !name.chars().any(char::is_control)).map(str::to_owned);
        let token = (!ready.token.is_empty()).then(|| String::from_utf8_lossy(ready.token).into_owned());
        let kind = Some(format!("eventmq-{}", self.role.as_str()));
        let introduction = Introduction { name, kind, token, ..Introduction::default() };
        commands.push(Command::Introduce(Box::new(introduction)));
        self.stage = Stage::Introduced;
        Ok(())
    }

    // --- administrators ---------------------------------------------------------------------------------------------

    /// Asks each queue that some worker serves how much waits in it.
    fn ask_status(&mut self, commands: &mut Vec<Command>, output: &mut Vec<u8>) {
        let names = self.exchange.queue_names();
        let addresses = names.into_iter().filter_map(|name| Some((QueueAddress::parse(&name).ok()?, name)));
        let asked = self.pending.begin_status(addresses, commands);
        if !asked {
            let text = self.exchange.status(&[]);
            self.reply(text.as_bytes(), None, output);
        }
    }

    fn answered(
        &mut self,
        number: RequestId,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        match self.pending.answered(number) {
            None => {}
            Some((Asked::Subscription, _)) => return self.subscribed(answer, now, output),
            Some((Asked::DefaultQueue, _)) => {
                let refused = answer.as_ref().err().cloned();
                for message in self.intake.default_made(answer, &mut self.wanted) {
                    if let Some(rejection) = &refused {
                        self.lost(&message, rejection, now, output);
                    }
                }
                self.finish();
            }
            Some((Asked::Waiting(name), _)) => {
                let waiting = match answer {
                    Ok(Reply::Queue(queue)) => queue.high_priority + queue.normal,
                    _ => 0,
                };
                if let Some((all, askers)) = self.pending.counted(name, waiting) {
                    let text = self.exchange.status(&all);
                    for _ in 0..askers {
                        self.reply(text.as_bytes(), None, output);
                    }
                }
            }
            Some((Asked::Schedule(request, begins), _)) => self.keep_schedule(*request, begins, answer, now),
            Some((Asked::Fence, _)) => {
                self.fences = self.fences.map(|fences| fences.saturating_sub(1));
                self.finish();
            }
            // Part by part; what one shard refuses, all do.
            Some((Asked::Topic, last)) => {
                if let Err(rejection) = answer
                    && last
                    && rejection.kind != RejectionKind::NotFound
                {
                    deny(&rejection, output);
                    self.fail(b"", rejection.to_string(), now);
                }
            }
        }
        Ok(())
    }

    /// Whether what the peer said last counts even if it is gone by now.
    fn sends_jobs(&self) -> bool {
        matches!(self.role, Role::Frontend | Role::Publish)
            && matches!(self.stage, Stage::Introduced | Stage::Open)
    }

    /// A client's last word was read: it goes as soon as none of its jobs can come back.
    fn finish(&mut self) {
        if self.stage == Stage::Open && self.fences == Some(0) && !self.intake.holds() {
            self.stage = Stage::Over;
        }
    }

    /// The broker has answered for a result that was put into a queue. False if the message is none.
    fn result_kept(&mut self, message: &Message, now: Timestamp) -> bool {
        let Part::Worker(work) = &mut self.part else { return false };
        work.result_kept(message, now, &mut self.wanted)
    }

    /// A message could not be put where it should.
    fn refused(
        &mut self,
        queue: &QueueAddress,
        message: &Message,
        rejection: &Rejection,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        if message.properties().unique && rejection.kind == RejectionKind::AlreadyExists {
            return self.duplicate(message, rejection, output);
        }
        let asks = self.intake.refused(queue, message, rejection, &mut self.wanted);
        match asks {
            client::Refused::FellBack => self.exchange.count(|counters| &counters.fallen_back),
            client::Refused::NeedsDefault => {
                let number = self.pending.expect(Asked::DefaultQueue, 1);
                let changes = self.exchange.made_for_jobs();
                let request = Request::CreateQueue { queue: client::default_queue(), changes };
                self.wanted.push(Command::Request(number, Box::new(request)));
            }
            client::Refused::Waits => {}
            client::Refused::Lost => self.lost(message, rejection, now, output),
        }
    }

    /// No queue takes a job. Its client hears that it may not do that, if it wants to hear what becomes of it.
    fn lost(&mut self, message: &Message, rejection: &Rejection, now: Timestamp, output: &mut Vec<u8>) {
        if rejection.kind == RejectionKind::Unauthorized && job::wants_result(message) {
            let result = job::failure("Denied", &rejection.reason);
            self.reply(result.as_bytes(), Some(message.id()), output);
        }
        self.fail(message.id(), rejection.to_string(), now);
    }

    /// A job of its key waits or runs already, which is what its client wanted to know.
    fn duplicate(&mut self, message: &Message, rejection: &Rejection, output: &mut Vec<u8>) {
        self.exchange.count(|counters| &counters.duplicates);
        if job::wants_result(message) {
            let result = job::failure("Duplicate", &rejection.reason);
            self.reply(result.as_bytes(), Some(message.id()), output);
        }
    }

    /// Something came, so the peer is there.
    fn heard(&mut self, now: Timestamp) {
        self.heard_at = now;
        match &self.part {
            Part::Worker(work) => work.worker().heard(now),
            Part::Scheduler(registration) => registration.heard(now),
            Part::None | Part::Joining { .. } => {}
        }
    }

    fn limits(&self) -> Limits {
        match self.stage {
            Stage::Open => self.config.limits,
            _ => Limits { frame_bytes_max: READY_BYTES_MAX.into(), header_bytes_max: READY_BYTES_MAX },
        }
    }

    fn read(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let mut consumed = 0;
        if self.stage == Stage::Silent && !input.is_empty() {
            self.greet(output);
        }
        if self.stage == Stage::Greeting {
            match Greeting::decode(input)? {
                Some((_, size)) => {
                    consumed = size;
                    self.stage = Stage::Shaking;
                }
                None => return Ok(0),
            }
        }
        // The cutter lends out what it found; meanwhile the session has none.
        let mut cutter = std::mem::take(&mut self.cutter);
        let result = loop {
            if !self.may_read() && self.stage != Stage::Shaking {
                break Ok(consumed);
            }
            match cutter.next(&input[consumed..], &self.limits()) {
                Ok(Some((Item::Message(_), _))) if self.stage == Stage::Shaking => {
                    break Err(SessionError::Misbehaved("the handshake ends with READY".into()));
                }
                Ok(Some((Item::Message(parts), size))) => {
                    self.message(parts, now, commands, output);
                    consumed += size;
                }
                Ok(Some((Item::Command(body), size))) => match self.control(body, commands, output) {
                    Ok(()) => consumed += size,
                    Err(error) => break Err(error),
                },
                Ok(None) => break Ok(consumed),
                Err(error) => break Err(error.into()),
            }
        };
        self.cutter = cutter;
        result
    }
}

/// ZMTP's word for a refusal: the status code, by which programs tell why, and what people read.
fn deny(rejection: &Rejection, output: &mut Vec<u8>) {
    let reason = format!("{} {rejection}", rejection.kind.code());
    Control::Error(reason.as_bytes()).encode(output);
}

impl Session for EventmqSession {
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.heard(now);
        let result = self.read(input, now, commands, output);
        if let Part::Worker(work) = &mut self.part {
            work.announce_room(commands);
        }
        // ZMTP's own word for it, which the peer may log.
        let reason = match &result {
            Ok(_) | Err(SessionError::Wire(WireError::Malformed { part: "greeting", .. })) => None,
            Err(error @ SessionError::Wire(_)) if self.stage != Stage::Silent => Some(error.to_string()),
            Err(error) if self.stage == Stage::Shaking => Some(error.to_string()),
            Err(_) => None,
        };
        if let Some(reason) = reason {
            Control::Error(reason.as_bytes()).encode(output);
        }
        if result.is_err() {
            self.stage = Stage::Over;
            self.part = Part::None;
        }
        result
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let consumed = self.receive(input, now, commands, output)?;
        // Clients that send one job and close at once are the rule.
        if consumed == input.len() && self.sends_jobs() && self.fences.is_none() {
            let channels: Vec<_> = self.intake.recent().map(|queue| queue.channel.clone()).collect();
            self.fences = Some(channels.len());
            for channel in channels {
                let number = self.pending.expect(Asked::Fence, 1);
                commands.push(Command::Request(number, Box::new(Request::Leave { channel })));
            }
            self.finish();
        }
        Ok(consumed)
    }

    fn outlives_input(&self) -> bool {
        self.sends_jobs()
    }

    fn needed(&self, input: &[u8]) -> usize {
        match self.stage {
            Stage::Silent | Stage::Greeting | Stage::Shaking => 0,
            _ if self.may_read() => self.cutter.needed(input, &self.config.limits),
            _ => input.len(),
        }
    }

    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match event {
            Event::Welcomed(client) if self.stage == Stage::Introduced => self.welcome(client, output),
            Event::Refused(rejection) if self.stage == Stage::Introduced => {
                deny(&rejection, output);
                self.stage = Stage::Over;
            }
            Event::Delivered(deliver) => {
                if let Part::Worker(work) | Part::Joining { work, .. } = &mut self.part {
                    work.take(&deliver, now, &mut self.wanted, output);
                    work.announce_room(&mut self.wanted);
                }
            }
            Event::Acknowledged { message, negative, .. } => {
                let is_result = self.result_kept(&message, now);
                match negative {
                    None if is_result => {}
                    // It was handed to a worker, or is as safe as its queue's policy promises.
                    None => self.reply(message.id(), None, output),
                    Some(why) if is_result => {
                        self.fail(message.id(), format!("the result was not kept: {why}"), now);
                    }
                    Some(why) => {
                        self.fail(message.id(), format!("the job was not done: {why}"), now);
                    }
                }
            }
            // The result of a job.
            Event::Responded(message) => self.reply(message.body(), Some(message.id()), output),
            Event::PublishRefused { message, rejection, .. } if self.result_kept(&message, now) => {
                self.fail(message.id(), format!("the result was not kept: {rejection}"), now);
            }
            Event::PublishRefused { queue, message, rejection } => {
                self.refused(&queue, &message, &rejection, now, output);
            }
            Event::TopicRefused { message, rejection } => {
                self.fail(message.id(), rejection.to_string(), now);
            }
            Event::Answered(number, answer) => return self.answered(number, answer, now, output),
            Event::Direct { message, .. } => self.for_scheduler(&message, output),
            Event::DirectRefused { message, rejection, .. } => {
                self.fail(message.id(), rejection.to_string(), now);
            }
            Event::SubscriptionEnded { queue, .. } => {
                self.fail(b"", format!("queue {queue} was removed while a worker served it"), now);
            }
            // What other protocols' clients ask for cannot concern this one.
            _ => {}
        }
        Ok(())
    }

    fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.wanted)
    }

    fn take_request_errors(&mut self) -> Vec<RequestError> {
        std::mem::take(&mut self.request_errors)
    }

    fn ignored_frames(&self) -> u64 {
        self.ignored
    }

    fn stops_broker(&self) -> bool {
        self.stops_broker
    }

    fn next_timeout(&self) -> Timestamp {
        match (self.stage, &self.part) {
            (Stage::Over, _) => Timestamp::NEVER,
            (Stage::Silent | Stage::Greeting | Stage::Shaking | Stage::Introduced, _) => self.deadline,
            (Stage::Open, Part::None | Part::Joining { .. }) => Timestamp::NEVER,
            (Stage::Open, Part::Scheduler(_)) => self.heartbeat_at.min(self.heard_at.after(SILENCE_MAX)),
            (Stage::Open, Part::Worker(work)) => {
                self.heartbeat_at.min(self.heard_at.after(SILENCE_MAX)).min(work.next_timeout())
            }
        }
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        if self.stage == Stage::Over {
            return Ok(());
        }
        if self.stage != Stage::Open {
            if now < self.deadline {
                return Ok(());
            }
            self.stage = Stage::Over;
            return Err(SessionError::HandshakeTimeout(self.config.handshake_timeout));
        }
        let mut reminders = false;
        match &mut self.part {
            Part::None | Part::Joining { .. } => return Ok(()),
            Part::Scheduler(_) => {}
            Part::Worker(work) => {
                reminders = work.timeout(now, &mut self.wanted);
                work.announce_room(&mut self.wanted);
                if work.worker().is_displaced() {
                    self.stage = Stage::Over;
                    self.part = Part::None;
                    let why = "a new connection has joined under its identity";
                    return Err(SessionError::Misbehaved(why.into()));
                }
            }
        }
        if now >= self.heard_at.after(SILENCE_MAX) {
            self.stage = Stage::Over;
            self.part = Part::None;
            return Err(SessionError::PingTimeout(SILENCE_MAX));
        }
        if reminders || now >= self.heartbeat_at {
            self.heartbeat(now, output);
        }
        Ok(())
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        let stays = match &self.part {
            Part::Worker(work) => !work.leaving,
            Part::Scheduler(_) => true,
            Part::None | Part::Joining { .. } => false,
        };
        if stays {
            eventmq::Message { id: self.ids.next(), command: Said::Kbye }.encode(output);
        }
        self.stage = Stage::Over;
        self.part = Part::None;
    }

    fn client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    fn is_closing(&self) -> bool {
        self.stage == Stage::Over
    }
}

/// Subscribers get a topic's message as two frames: the topic, and the message.
pub fn encode_publication(publication: &Publication, output: &mut Vec<u8>) {
    encode_message(&[publication.topic.as_bytes(), publication.message.body()], output);
}
