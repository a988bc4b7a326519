//! One conversation: input from the peer, events from the broker.

mod administrators;
mod ending;
mod ledger;
mod rejections;
mod requests;
mod schedules;
mod topics;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::{Event, Publication, Reply};
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::eventmq::{self, EmqpCommand};
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand};
use mqcore_wire::zmtp::{Greeting, Item, ZmtpDecoder, encode_message};

use super::client::Intake;
use super::ids::MessageIds;
use super::job;
use super::listener::{EventmqTerms, Role};
use super::pending::{PendingRequests, RequestSubject};
use super::shared::{EventmqShared, Registration, Scheduler};
use super::worker::Work;
use crate::request_error::{ErrorNumbers, RequestError};
use crate::session::{Session, SessionConfig, SessionError};

/// Interval of heartbeats to workers and schedulers.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum time without input from workers and schedulers. They have to send something every 3 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of the command that ends the handshake.
pub const READY_BYTES_MAX: u32 = 512;
/// Default of the topics of a subscriber; further ones are rejected.
pub const TOPICS_MAX: usize = mqcore_broker::model::topic::PATTERNS_MAX;

/// The stage of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No input has arrived yet.
    Silent,
    /// The session has sent its greeting and waits for the peer's.
    Greeting,
    /// Both greetings are sent; the peer has not announced its socket type yet.
    Shaking,
    /// The broker decides whether to accept the peer; the session reads nothing until it answers.
    Introduced,
    /// The peer is a client.
    Open,
    /// The session reads and writes nothing any more.
    Over,
}

/// The role that the peer has taken.
#[derive(Debug)]
enum Part {
    /// No role beyond the one of its listener.
    None,
    /// It has asked to be a worker; its subscriptions are not confirmed yet. Its `slots` count from then on, so that it
    /// gets no job before the ACK.
    Joining { id: Box<[u8]>, work: Box<Work>, open: usize, slots: u32 },
    /// It is a worker.
    Worker(Box<Work>),
    /// It has asked to be a scheduler; the broker checks whether it may.
    Applying,
    /// It is a scheduler.
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
    decoder: ZmtpDecoder,
    identity: Box<[u8]>,
    part: Part,
    ids: MessageIds,
    intake: Intake,
    pending: PendingRequests,
    /// Number of subscriptions of each topic: subscribers count them.
    topics: BTreeMap<Box<[u8]>, u32>,
    /// Commands that do not come from the peer's input.
    wanted: Vec<Command>,
    /// Commands for when the connection is closed.
    farewells: Vec<Command>,
    /// Deadline of the handshake.
    deadline: Timestamp,
    heartbeat_at: Timestamp,
    heard_at: Timestamp,
    numbers: ErrorNumbers,
    request_errors: Vec<RequestError>,
    ignored: u64,
    stops_broker: bool,
    /// The peer has closed its side, and all its messages are read.
    has_ended: bool,
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
            decoder: ZmtpDecoder::new(),
            identity: Box::default(),
            part: Part::None,
            ids: MessageIds::new(config.connection, exchange.seed),
            intake: Intake::default(),
            pending: PendingRequests::default(),
            topics: BTreeMap::new(),
            wanted: Vec::new(),
            farewells: Vec::new(),
            deadline: now.after(config.handshake_timeout),
            heartbeat_at: Timestamp::NEVER,
            heard_at: now,
            numbers: ErrorNumbers::new(config.connection),
            request_errors: Vec::new(),
            ignored: 0,
            stops_broker: false,
            has_ended: false,
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

    /// The session sends its greeting as soon as any input arrives: peers wait for it.
    fn greet(&mut self, output: &mut Vec<u8>) {
        Greeting { minor: 0, as_server: false }.encode(output);
        self.stage = Stage::Greeting;
    }

    /// An accepted peer receives READY, a rejected one ERROR instead. So the frames that a peer sends after the READY
    /// are not lost with a connection that is rejected.
    fn welcome(&mut self, client: Arc<Client>, output: &mut Vec<u8>) {
        ZmtpCommand::Ready(Ready { socket: self.socket(), identity: b"", token: b"" }).encode(output);
        self.client = Some(client);
        self.stage = Stage::Open;
        self.finish();
    }

    /// The peer announces its socket type. Without a token it is an anonymous client.
    fn shake(&mut self, ready: Ready<'_>, commands: &mut Vec<Command>) -> Result<(), SessionError> {
        if !self.socket().talks_to(ready.socket) {
            let (own, other) = (self.socket().as_str(), ready.socket.as_str());
            let why = format!("a {other} socket cannot connect to a {own} socket");
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

    fn answered(
        &mut self,
        number: RequestId,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        match self.pending.answered(number) {
            None => {}
            Some((RequestSubject::Subscription, _)) => return self.subscribed(answer, now, output),
            Some((RequestSubject::Creation(queue), _)) => {
                let refused = answer.as_ref().err().cloned();
                if refused.as_ref().is_none_or(|rejection| rejection.kind == RejectionKind::AlreadyExists) {
                    // STATUS shows its jobs also while no worker serves it.
                    self.exchange.tally(&job::shown(&queue));
                }
                for message in self.intake.created(&queue, answer, &mut self.wanted) {
                    if let Some(rejection) = &refused {
                        self.lost(&message, rejection, now, output);
                    }
                }
                self.finish();
            }
            Some((RequestSubject::Waiting(name), _)) => {
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
            Some((RequestSubject::Schedule(change), _)) => {
                self.schedule_allowed(*change, answer, now);
                self.finish();
            }
            Some((RequestSubject::HandOver(change, to), _)) => {
                self.hand_over(*change, to, &answer, now);
                self.finish();
            }
            Some((RequestSubject::Ledger(check), _)) => {
                self.ledger_allowed(*check, answer, now, output);
                self.finish();
            }
            Some((RequestSubject::Told(message), _)) => self.told_allowed(&message, answer, output),
            Some((RequestSubject::Progress(report), _)) => self.progress_published(&report, &answer, now),
            Some((RequestSubject::Scheduler(id), _)) => {
                return self.scheduler_allowed(&id, answer, now, output);
            }
            Some((RequestSubject::Administer(request, id), _)) => {
                self.administer(request, &id, answer, now, output);
            }
            Some((RequestSubject::Fence, _)) => self.finish(),
            // An answer has one part for each shard. If one shard rejects the request, all do.
            Some((RequestSubject::Topic, last)) => {
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

    /// The broker has answered for a result that was published to a queue. False if the message is not a result.
    fn result_kept(&mut self, message: &Message, now: Timestamp) -> bool {
        let Part::Worker(work) = &mut self.part else { return false };
        work.result_kept(message, now, &mut self.wanted)
    }

    /// A queue has refused a result that was published to it. False if the message is not a result.
    fn result_refused(&mut self, message: &Message, rejection: &Rejection, now: Timestamp) -> bool {
        let Part::Worker(work) = &mut self.part else { return false };
        work.result_refused(message, rejection.kind, now, &mut self.wanted)
    }

    /// Records that input arrived, so the peer is alive.
    fn heard(&mut self, now: Timestamp) {
        self.heard_at = now;
        match &self.part {
            Part::Worker(work) => work.worker().heard(now),
            Part::Scheduler(registration) => registration.heard(now),
            Part::None | Part::Applying | Part::Joining { .. } => {}
        }
    }

    /// Ends the peer's role because its connection ends. Clients hear that their jobs are lost, if no other worker gets them.
    fn resign(&mut self) {
        if let Part::Worker(work) | Part::Joining { work, .. } = std::mem::replace(&mut self.part, Part::None)
        {
            work.abandon(&mut self.farewells);
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
        // The cutter borrows the fragments from its buffer, so the session does without it meanwhile.
        let mut decoder = std::mem::take(&mut self.decoder);
        let result = loop {
            if !self.may_read() && self.stage != Stage::Shaking {
                break Ok(consumed);
            }
            match decoder.next(&input[consumed..], &self.limits()) {
                Ok(Some((Item::Message(_), _))) if self.stage == Stage::Shaking => {
                    break Err(SessionError::Misbehaved("expected READY at the end of the handshake".into()));
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
        self.decoder = decoder;
        result
    }
}

/// Rejects the peer with ZMTP's ERROR command: the status code for programs, then the reason for people.
fn deny(rejection: &Rejection, output: &mut Vec<u8>) {
    let reason = format!("{} {rejection}", rejection.kind.code());
    ZmtpCommand::Error(reason.as_bytes()).encode(output);
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
        // The reason of a ZMTP ERROR command, which the peer may log.
        let reason = match &result {
            Ok(_) | Err(SessionError::Wire(WireError::Malformed { part: "greeting", .. })) => None,
            Err(error @ SessionError::Wire(_)) if self.stage != Stage::Silent => Some(error.to_string()),
            Err(error) if self.stage == Stage::Shaking => Some(error.to_string()),
            Err(_) => None,
        };
        if let Some(reason) = reason {
            ZmtpCommand::Error(reason.as_bytes()).encode(output);
        }
        if result.is_err() {
            self.stage = Stage::Over;
            self.resign();
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
        // An incomplete frame does not count.
        let waits = consumed < input.len() && !self.may_read();
        if !waits && self.sends_jobs() {
            self.has_ended = true;
            self.finish();
            commands.append(&mut self.wanted);
        }
        Ok(consumed)
    }

    fn outlives_input(&self) -> bool {
        self.sends_jobs()
    }

    fn needed(&self, input: &[u8]) -> usize {
        match self.stage {
            Stage::Silent | Stage::Greeting | Stage::Shaking => 0,
            _ if self.may_read() => self.decoder.needed(input, &self.config.limits),
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
                    // The job was delivered to a worker, or is as safe as its queue's policy promises.
                    None => self.reply(message.id(), None, output),
                    Some(why) if is_result => {
                        self.fail(message.id(), format!("the result was not kept: {why}"), now);
                    }
                    Some(why) => {
                        self.fail(message.id(), format!("the job failed: {why}"), now);
                    }
                }
            }
            Event::Job(notice) => self.job_notice(*notice, now, output),
            // The result of a job.
            Event::Responded(message) => self.reply(message.body(), Some(message.id()), output),
            Event::PublishRefused { message, rejection, .. }
                if self.result_refused(&message, &rejection, now) =>
            {
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
            // Requests of other protocols' clients.
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
            (Stage::Open, Part::None | Part::Applying | Part::Joining { .. }) => Timestamp::NEVER,
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
            Part::None | Part::Applying | Part::Joining { .. } => return Ok(()),
            Part::Scheduler(_) => {}
            Part::Worker(work) => {
                reminders = work.timeout(now, &mut self.wanted);
                work.announce_room(&mut self.wanted);
                if work.worker().is_displaced() {
                    self.stage = Stage::Over;
                    self.resign();
                    let why = "a new connection has joined under its identity";
                    return Err(SessionError::Misbehaved(why.into()));
                }
            }
        }
        if now >= self.heard_at.after(SILENCE_MAX) {
            self.stage = Stage::Over;
            self.resign();
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
            Part::None | Part::Applying | Part::Joining { .. } => false,
        };
        if stays {
            eventmq::EmqpMessage { id: self.ids.next(), command: EmqpCommand::Kbye }.encode(output);
        }
        self.stage = Stage::Over;
        self.resign();
    }

    fn drain(&mut self, output: &mut Vec<u8>) -> bool {
        let Part::Worker(work) = &mut self.part else { return false };
        if !work.leaving {
            eventmq::EmqpMessage { id: self.ids.next(), command: EmqpCommand::Kbye }.encode(output);
            work.leave();
        }
        true
    }

    fn has_unfinished_work(&self) -> bool {
        matches!(&self.part, Part::Worker(work) if work.is_running())
    }

    fn leave(&mut self, commands: &mut Vec<Command>) {
        self.resign();
        commands.append(&mut self.farewells);
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
