//! One conversation: what the peer sends, what the broker answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{ClientPattern, Command, Request};
use mqcore_broker::model::effect::{Event, Publication, Reply};
use mqcore_broker::model::id::{QueueAddress, RequestId, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::subscription::{QueueSubscription, Settling, Terms as SubscriptionTerms};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::eventmq::{
    self, Case, Command as Said, Mistake, PeerKind, Schedule, encode_heartbeat, queues,
};
use mqcore_wire::zmtp::command::{Command as Control, Ready, SocketType, subscription};
use mqcore_wire::zmtp::{Cutter, Greeting, Item, Parts, encode_message};

use super::EventmqProtocol;
use super::client::Intake;
use super::ids::MessageIds;
use super::listener::{EventmqTerms, Role};
use super::pending::{Asked, Pending};
use super::schedules::ScheduleRequest;
use super::shared::{EventmqShared, Registration, Scheduler};
use super::worker::Work;
use super::{client, job, schedules};
use crate::protocol::ProtocolFactory;
use crate::request_error::{ErrorNumbers, RequestError};
use crate::session::{Session, SessionConfig, SessionError};

/// How often workers and schedulers hear something.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// How long they may be silent. They are to say something every 3 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Octets of the command that ends the handshake, at most.
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

    // --- what the peer says ---------------------------------------------------------------------------------------

    fn control(
        &mut self,
        body: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let control = Control::parse(body)?;
        match (self.stage, control) {
            (Stage::Shaking, Control::Ready(ready)) => return self.shake(ready, commands),
            (Stage::Shaking, Control::Error(_)) => self.stage = Stage::Over,
            (Stage::Shaking, _) => {
                return Err(SessionError::Misbehaved("the handshake ends with READY".into()));
            }
            (_, Control::Ping { context, .. }) => Control::Pong(context).encode(output),
            (_, Control::Subscribe(topic)) => self.subscribe(topic, commands),
            (_, Control::Cancel(topic)) => self.cancel(topic, commands),
            (_, Control::Ready(_)) => {
                return Err(SessionError::Misbehaved("the handshake is over".into()));
            }
            (_, Control::Error(_)) => self.stage = Stage::Over,
            (_, Control::Pong(_) | Control::Other(_)) => self.ignore(),
        }
        Ok(())
    }

    fn ignore(&mut self) {
        self.ignored += 1;
        self.exchange.count(|counters| &counters.ignored);
    }

    /// Records a failed request: the protocol has no error message for its peer.
    fn fail(&mut self, id: &[u8], reason: String, now: Timestamp) {
        let number = self.numbers.next(now);
        self.request_errors.push(RequestError { number, request: id.into(), reason });
    }

    fn message(
        &mut self,
        parts: Parts<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        if self.role == Role::Subscribe {
            return match parts.get(0).and_then(subscription) {
                Some(Control::Subscribe(topic)) => self.subscribe(topic, commands),
                Some(Control::Cancel(topic)) => self.cancel(topic, commands),
                _ => self.ignore(),
            };
        }
        let case = if self.role == Role::Backend { Case::Any } else { Case::Exact };
        let id = parts.get(3).unwrap_or_default();
        let id = &id[..id.len().min(eventmq::NAME_BYTES_MAX)];
        let done = match eventmq::parse(parts, case) {
            Ok(message) => match self.role {
                Role::Backend => self.worker_says(message, now, commands, output),
                Role::Frontend => self.client_says(message, now, commands, output),
                Role::Admin => self.administrator_says(&message, commands, output),
                Role::Publish | Role::Subscribe => self.publisher_says(&message, commands),
            },
            // Programs say more than they know: the original's command line greets with words of its own.
            Err(Mistake::UnknownCommand(_) | Mistake::Incomplete(_)) => {
                self.ignore();
                Ok(())
            }
            Err(mistake) => Err(mistake.to_string()),
        };
        if let Err(why) = done {
            self.fail(id, why, now);
        }
    }

    fn worker_says(
        &mut self,
        message: eventmq::Message<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        match (message.command, &mut self.part) {
            (Said::Ready, Part::Worker(work)) => work.ready(),
            (Said::Reply { body, request: Some(request) }, Part::Worker(work)) => {
                let Some(client) = &self.client else { return Ok(()) };
                if !work.result(request, body, client, now, commands) {
                    self.ignore();
                }
            }
            (Said::Reply { request: None, .. }, _) => {
                return Err("the result of a job is followed by the id of its request".to_owned());
            }
            // As any message, it says that the worker is there; and a queue that was not told of room is told now.
            (Said::Heartbeat, Part::Worker(work)) => work.has_room |= work.slots().free() > 0,
            (Said::Inform { queues, kind: PeerKind::Worker, counts }, _) => {
                return self.join(message.id, queues, counts, now, commands, output);
            }
            (Said::Inform { kind: PeerKind::Scheduler, .. }, _) => {
                return Err("schedulers join at the frontend".to_owned());
            }
            (Said::Kbye | Said::Kbai | Said::Disconnect, Part::Worker(work)) => work.leave(),
            _ => self.ignore(),
        }
        Ok(())
    }

    fn client_says(
        &mut self,
        message: eventmq::Message<'_>,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let id = message.id;
        match message.command {
            Said::Request(job) => {
                let Some(client) = &self.client else { return Ok(()) };
                self.intake.request(id, &job, client, commands)
            }
            Said::Schedule(schedule) => self.schedule(id, &schedule, true, commands),
            Said::Unschedule(schedule) => self.schedule(id, &schedule, false, commands),
            Said::Publish { topic, body, .. } => self.publish(id, topic, body, commands),
            Said::Inform { kind: PeerKind::Scheduler, .. } => {
                let Some(client) = &self.client else { return Ok(()) };
                if !matches!(self.part, Part::Scheduler(_)) {
                    let registration = self.exchange.join_scheduler(&self.identity, &client.id, now);
                    self.part = Part::Scheduler(registration);
                }
                self.acknowledge(id, now, output);
                Ok(())
            }
            Said::Inform { kind: PeerKind::Worker, .. } => Err("workers join at the backend".to_owned()),
            Said::Disconnect => {
                Err("a broker is stopped at its administrative side, not by its clients".to_owned())
            }
            Said::Kbye | Said::Kbai => {
                self.part = Part::None;
                self.heartbeat_at = Timestamp::NEVER;
                Ok(())
            }
            Said::Heartbeat => Ok(()),
            _ => {
                self.ignore();
                Ok(())
            }
        }
    }

    fn administrator_says(
        &mut self,
        message: &eventmq::Message<'_>,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let is_admin = self.client.as_ref().is_some_and(|client| client.admin);
        match message.command {
            Said::Status | Said::ShowWorkers | Said::ShowSchedulers | Said::Disconnect if !is_admin => {
                let why = "only an administrator may ask for this";
                deny(&Rejection::new(RejectionKind::Unauthorized, why), output);
                return Err(why.to_owned());
            }
            Said::Status => self.ask_status(commands, output),
            Said::ShowWorkers => {
                let text = self.exchange.show_workers();
                self.reply(text.as_bytes(), None, output);
            }
            Said::ShowSchedulers => {
                let text = self.exchange.show_schedulers();
                self.reply(text.as_bytes(), None, output);
            }
            Said::Disconnect => {
                let id = message.id;
                eventmq::Message { id: self.ids.next(), command: Said::Ack(id) }.encode(output);
                self.stops_broker = true;
            }
            _ => self.ignore(),
        }
        Ok(())
    }

    fn publisher_says(
        &mut self,
        message: &eventmq::Message<'_>,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        match message.command {
            Said::Publish { topic, body, .. } => self.publish(message.id, topic, body, commands),
            _ => {
                self.ignore();
                Ok(())
            }
        }
    }

    // --- workers ----------------------------------------------------------------------------------------------------

    fn join(
        &mut self,
        id: &[u8],
        listed: &[u8],
        counts: bool,
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        let listed = queues::parse(listed).map_err(|mistake| mistake.to_string())?;
        match &self.part {
            Part::None => {}
            Part::Worker(work) if work.worker().queues == listed => {
                self.acknowledge(id, now, output);
                return Ok(());
            }
            _ => return Err("a worker that serves other queues than before connects anew".to_owned()),
        }
        let mut addresses = Vec::new();
        for queue in &listed {
            let address = QueueAddress::parse(&queue.name)
                .map_err(|error| format!("{:?} cannot be a queue: {error}", queue.name))?;
            addresses.push(address);
        }
        let weights: Vec<_> = listed.iter().map(|queue| queue.weight).collect();
        let slots = self.exchange.new_slots();
        let connection = self.config.connection;
        let registration = self.exchange.join_worker(connection, &self.identity, listed, slots, now);
        let work = Box::new(Work::new(&self.exchange, registration, addresses, counts));
        for (served, weight) in work.served().iter().zip(weights) {
            let terms = SubscriptionTerms {
                settling: Settling::Explicit,
                told: EventmqProtocol::DELIVERIES.is_by_session(),
                weight,
                slots: Some(Arc::clone(work.slots())),
                ..SubscriptionTerms::default()
            };
            let subscription = QueueSubscription {
                queue: served.address.clone(),
                tag: served.tag,
                terms,
                create: Some(Box::new(self.exchange.made_for_jobs())),
                name: None,
                binding: None,
                told: false,
            };
            let number = self.pending.expect(Asked::Subscription, 1);
            commands
                .push(Command::Request(number, Box::new(Request::SubscribeQueue(Box::new(subscription)))));
        }
        let open = work.served().len();
        self.part = Part::Joining { id: id.into(), work, open };
        Ok(())
    }

    /// One of a worker's queues has answered; with the last one it has joined.
    fn subscribed(
        &mut self,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let Part::Joining { open, .. } = &mut self.part else { return Ok(()) };
        if let Err(rejection) = answer {
            // It would wait for ever for queues that it does not get.
            deny(&rejection, output);
            return Err(SessionError::Misbehaved(rejection.to_string().into()));
        }
        *open -= 1;
        if *open == 0
            && let Part::Joining { id, work, .. } = std::mem::replace(&mut self.part, Part::None)
        {
            self.part = Part::Worker(work);
            self.acknowledge(&id, now, output);
        }
        Ok(())
    }

    /// Whoever joins hears that it has, and at once a heartbeat: the original's workers begin with the first one.
    fn acknowledge(&mut self, id: &[u8], now: Timestamp, output: &mut Vec<u8>) {
        eventmq::Message { id: self.ids.next(), command: Said::Ack(id) }.encode(output);
        self.heartbeat(now, output);
    }

    fn heartbeat(&mut self, now: Timestamp, output: &mut Vec<u8>) {
        encode_heartbeat(self.ids.next(), now.0, output);
        self.heartbeat_at = now.after(HEARTBEAT_INTERVAL);
    }

    fn reply(&mut self, body: &[u8], request: Option<&[u8]>, output: &mut Vec<u8>) {
        let command = Said::Reply { body, request };
        eventmq::Message { id: self.ids.next(), command }.encode(output);
    }

    // --- schedules --------------------------------------------------------------------------------------------------

    /// Schedules are kept by the scheduler that joined last, where there is one that can; else by this broker. All of them end
    /// one.
    fn schedule(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let schedulers = self.exchange.schedulers();
        if self.exchange.schedules().is_some() {
            let request = ScheduleRequest {
                id: id.into(),
                queue: schedule.queue.into(),
                headers: schedule.headers.into(),
                wishes: Headers::parse(schedule.headers),
                interval: schedule.interval.map(Into::into),
                job: schedule.body.into(),
                cron: schedule.cron.map(Into::into),
            };
            if request.job.len() > schedules::JOB_BYTES_MAX {
                let most = schedules::JOB_BYTES_MAX;
                return Err(format!("a job that is scheduled has at most {most} octets"));
            }
            let kept_here = begins && (schedulers.is_empty() || request.needs_broker());
            // Whoever had it before has it no longer: each schedule is kept by one.
            let queue = self.intake.address(schedule.queue);
            let number = self.pending.expect(Asked::Schedule(Box::new(request), kept_here), 1);
            commands.push(Command::Request(number, Box::new(Request::MayPublish { queue })));
            if kept_here {
                self.tell_schedulers(id, schedule, false, commands);
                return Ok(());
            }
        } else if schedulers.is_empty() {
            return Err("nobody keeps schedules: no scheduler is connected".to_owned());
        } else if begins && (schedule.interval.is_none() || schedule.cron.is_none()) {
            // In the document's form the original's scheduler would die of it.
            return Err(
                "a schedule needs an interval and a cron expression, of which one may be empty".to_owned()
            );
        }
        self.tell_schedulers(id, schedule, begins, commands);
        Ok(())
    }

    /// Passes a schedule on to the scheduler that joined last, or its end to all of them.
    fn tell_schedulers(
        &mut self,
        id: &[u8],
        schedule: &Schedule<'_>,
        begins: bool,
        commands: &mut Vec<Command>,
    ) {
        let (interval, cron) = (schedule.interval.or(Some(b"-1")), schedule.cron.or(Some(b"")));
        let schedule = Schedule { interval, cron, ..*schedule };
        let command = if begins { Said::Schedule(schedule) } else { Said::Unschedule(schedule) };
        let mut octets = Vec::new();
        eventmq::Message { id, command }.encode(&mut octets);
        let most = if begins { 1 } else { usize::MAX };
        for scheduler in self.exchange.schedulers().into_iter().take(most) {
            let properties = Properties { hops: 16, ..Properties::default() };
            let message = Message::from_parts(id, b"", &octets, properties, self.client.clone());
            commands.push(Command::Direct { to: ClientPattern::Id(scheduler), message });
        }
    }

    /// The broker has said whether the client may publish to the queue of a schedule.
    fn keep_schedule(
        &mut self,
        request: ScheduleRequest,
        begins: bool,
        answer: Result<Reply, Rejection>,
        now: Timestamp,
    ) {
        let Some(keeper) = self.exchange.schedules() else { return };
        let id = request.id.clone();
        let done = match answer {
            Err(rejection) if rejection.kind != RejectionKind::NotFound => Err(rejection),
            // Its runs go where any job for an unknown queue goes, or to a queue that is there by then.
            _ if begins => keeper.schedule(request),
            _ => keeper.unschedule(request),
        };
        if let Err(rejection) = done {
            self.fail(&id, rejection.to_string(), now);
        }
    }

    /// What a client said, for this scheduler. Clients of other protocols may say anything; it must be one of these two.
    fn for_scheduler(&mut self, message: &Message, output: &mut Vec<u8>) {
        let mut cutter = Cutter::new();
        let body = message.body();
        let is_schedule = match cutter.next(body, &self.config.limits) {
            Ok(Some((Item::Message(parts), consumed))) if consumed == body.len() => {
                let command = eventmq::parse(parts, Case::Exact).map(|message| message.command);
                matches!(command, Ok(Said::Schedule(_) | Said::Unschedule(_)))
            }
            _ => false,
        };
        if is_schedule && matches!(self.part, Part::Scheduler(_)) {
            output.extend_from_slice(body);
        } else {
            self.ignore();
        }
    }

    // --- topics -----------------------------------------------------------------------------------------------------

    fn publish(
        &mut self,
        id: &[u8],
        topic: &[u8],
        body: &[u8],
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let mut headers = Vec::new();
        if !topic.iter().any(u8::is_ascii_control) {
            headers = [b"Topic:", topic, b"\r\n"].concat();
        }
        let properties = Properties { hops: 16, ..Properties::default() };
        let message = Message::from_parts(id, &headers, body, properties, self.client.clone());
        let topic = TopicName::new(topic).map_err(|error| error.to_string())?;
        commands.push(Command::PublishTopic { topic, message, to_producer: false, answer: None });
        Ok(())
    }

    fn subscribe(&mut self, topic: &[u8], commands: &mut Vec<Command>) {
        // No topic has a name that long.
        let Ok(prefix) = TopicName::new(topic) else { return self.ignore() };
        if self.role != Role::Subscribe
            || (self.topics.len() >= TOPICS_MAX && !self.topics.contains_key(topic))
        {
            return self.ignore();
        }
        let wanted = self.topics.entry(topic.into()).or_default();
        *wanted = wanted.saturating_add(1);
        if *wanted == 1 {
            let pattern = TopicPattern::Prefix(prefix);
            let told = EventmqProtocol::PUBLICATIONS.is_by_session();
            self.ask_every_shard(Request::SubscribeTopic { pattern, told }, commands);
        }
    }

    fn cancel(&mut self, topic: &[u8], commands: &mut Vec<Command>) {
        let Ok(prefix) = TopicName::new(topic) else { return self.ignore() };
        let Some(wanted) = self.topics.get_mut(topic) else { return self.ignore() };
        *wanted -= 1;
        if *wanted == 0 {
            self.topics.remove(topic);
            let pattern = TopicPattern::Prefix(prefix);
            self.ask_every_shard(Request::UnsubscribeTopic { pattern }, commands);
        }
    }

    fn ask_every_shard(&mut self, request: Request, commands: &mut Vec<Command>) {
        let number = self.pending.expect(Asked::Topic, self.config.shards.max(1));
        commands.push(Command::Request(number, Box::new(request)));
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
