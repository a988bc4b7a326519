//! One conversation: input from the peer, events from the broker.

use std::sync::Arc;

use mqcore_broker::model::bindings::{QueueBinding, QueueBindings, UnusedPolicy};
use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Acknowledgement, Command, MessageId, Nack, Request};
use mqcore_broker::model::effect::{Event, Reply};
use mqcore_broker::model::id::{QueueAddress, RequestId, Tag};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::subscription::{QueueSubscription, Remote, Settling, Terms};
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::mqks::answer::{encode_done, encode_failed, encode_update};
use mqcore_wire::mqks::arguments::{Consume, Rebind, WhenUnused};
use mqcore_wire::mqks::{
    AckScope, Line, Lines, MqksAction, id_of_beginning, is_http_request, message_id, parse,
};

use super::consumers::Consumers;
use super::names::EventNames;
use super::pending::{PendingRequest, PendingRequests};
use super::{consumers, delivery, names, pending, statistics};
use crate::request_error::{ErrorNumbers, RequestError};
use crate::session::{Session, SessionConfig, SessionError};

/// Maximum consumers of one connection; further ones are rejected.
pub const CONSUMERS_MAX: usize = consumers::CONSUMERS_MAX;
/// Maximum unanswered requests of one connection; at this many the session stops reading.
pub const OPEN_REQUESTS_MAX: usize = pending::OPEN_MAX;

/// The stage of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No input has arrived yet.
    Silent,
    /// The broker decides whether to accept the peer; the session reads nothing until it answers.
    Introduced,
    /// The peer is a client.
    Open,
    /// The peer has closed its side: the session answers its requests and ends.
    Finishing,
    /// The session reads and writes nothing any more.
    Over,
}

/// One MQKS conversation.
#[derive(Debug)]
pub struct MqksSession {
    config: SessionConfig,
    stage: Stage,
    client: Option<Arc<Client>>,
    lines: Lines,
    events: EventNames,
    consumers: Consumers,
    pending: PendingRequests,
    numbers: ErrorNumbers,
    request_errors: Vec<RequestError>,
    /// The id of the first line: the answer to the login names it.
    first: Box<[u8]>,
    /// The first line contained credentials and is not answered yet.
    shows: bool,
}

impl MqksSession {
    /// The session of a connection that was opened just now.
    #[must_use]
    pub fn new(config: SessionConfig, _now: Timestamp) -> Self {
        Self {
            stage: Stage::Silent,
            client: None,
            lines: Lines::new(),
            events: EventNames::default(),
            consumers: Consumers::default(),
            pending: PendingRequests::default(),
            numbers: ErrorNumbers::new(config.connection),
            request_errors: Vec::new(),
            first: Box::default(),
            shows: false,
            config,
        }
    }

    fn may_read(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Finishing) && !self.pending.holds()
    }

    /// The first line of a peer that has to log in has a limit of its own.
    fn limits(&self) -> Limits {
        let Limits { frame_bytes_max, .. } = self.config.limits;
        match self.stage {
            Stage::Silent => Limits {
                frame_bytes_max: frame_bytes_max.min(self.config.login_bytes_max.into()),
                ..self.config.limits
            },
            _ => self.config.limits,
        }
    }

    /// Asks the broker to accept the peer, with the credentials in its first line. The line is read again afterwards.
    fn arrive(&mut self, line: &[u8], commands: &mut Vec<Command>) {
        let Line { id, action, .. } = parse(line);
        self.first = id.into();
        let mut introduction = Introduction::default();
        if let Ok(MqksAction::Auth { credentials }) = action {
            self.shows = true;
            introduction.token = Some(String::from_utf8_lossy(credentials).into_owned());
        }
        commands.push(Command::Introduce(Box::new(introduction)));
        self.stage = Stage::Introduced;
    }

    /// Refuses a peer that speaks HTTP. Any web page can make a browser POST to this port, and the lines of the body would
    /// be requests.
    fn close_http(&mut self, first_line: &[u8]) -> Result<(), SessionError> {
        if !is_http_request(first_line) {
            return Ok(());
        }
        self.stage = Stage::Over;
        Err(WireError::Malformed {
            part: "line",
            why: "this is an HTTP request, but the listener speaks MQKS",
        }
        .into())
    }

    /// Executes a line.
    fn line(&mut self, line: &[u8], now: Timestamp, commands: &mut Vec<Command>, output: &mut Vec<u8>) {
        let Line { id, confirm, action } = parse(line);
        let Some(client) = self.client.clone() else { return };
        let done = match action {
            Err(mistake) => Err(mistake.to_string()),
            Ok(MqksAction::Publish { event, data }) => {
                self.publish(&client, id, event, data, confirm, commands);
                Ok(())
            }
            Ok(MqksAction::Consume(consume)) => self.consume(id, &consume, confirm, commands),
            Ok(MqksAction::Rebind(rebind)) => self.rebind(id, &rebind, confirm, commands),
            Ok(MqksAction::Ack { consumer, which }) => {
                self.settle(id, consumer, which, None, confirm, commands, output);
                Ok(())
            }
            Ok(MqksAction::Reject { consumer, which }) => {
                self.settle(id, consumer, which, Some("rejected"), confirm, commands, output);
                Ok(())
            }
            Ok(MqksAction::DeleteConsumer { consumer, started: Some(started) })
                if !self.consumers.of(consumer).is_empty() =>
            {
                for (queue, tag) in self.consumers.of(consumer) {
                    let request = Request::UnsubscribeQueue { queue, tag, started: Some(started) };
                    let asked = PendingRequest { silent_if_missing: true, ..PendingRequest::new(id, false) };
                    self.change(asked, request, commands);
                }
                self.consumers.forget(consumer);
                if confirm {
                    encode_done(id, b"", output);
                }
                Ok(())
            }
            Ok(MqksAction::Working { consumer, message }) => {
                for (queue, tag) in self.consumers.of(consumer) {
                    let message_id = MessageId::from_slice(&message_id::read(message));
                    commands.push(Command::Extend { queue, tag, message_id });
                }
                Ok(())
            }
            Ok(MqksAction::DeleteConsumer { consumer, .. }) => {
                self.consumers.forget(consumer);
                let request = Request::ToSubscriptions { name: consumer.into(), what: Remote::Unsubscribe };
                let asked = PendingRequest { silent_if_missing: true, ..PendingRequest::new(id, confirm) };
                self.change(asked, request, commands);
                Ok(())
            }
            Ok(MqksAction::DeleteQueue { queue }) => {
                match names::queue(queue) {
                    Ok(queue) => {
                        self.change(PendingRequest::new(id, confirm), Request::DropQueue { queue }, commands)
                    }
                    // No queue can have this name, so there is nothing to delete.
                    Err(_) if confirm => encode_done(id, b"", output),
                    Err(_) => {}
                }
                Ok(())
            }
            Ok(MqksAction::Prefetch { consumer, count }) => {
                self.prefetch(id, (consumer, count), confirm, commands, output);
                Ok(())
            }
            Ok(MqksAction::Ping { data }) => {
                encode_done(id, data, output);
                Ok(())
            }
            Ok(MqksAction::Eval { worker, code }) => self.evaluate(id, worker, code, commands),
            Ok(MqksAction::Auth { .. }) if std::mem::take(&mut self.shows) => {
                encode_done(id, b"", output);
                Ok(())
            }
            Ok(MqksAction::Auth { .. }) => {
                Err("auth is valid only in the first line of a connection".to_owned())
            }
        };
        if let Err(why) = done {
            self.fail(id, why, now, output);
        }
    }

    /// Answers with an error number, and records the reason for the log.
    fn fail(&mut self, id: &[u8], why: String, now: Timestamp, output: &mut Vec<u8>) {
        let number = self.numbers.next(now);
        encode_failed(id, number.as_bytes(), output);
        self.request_errors.push(RequestError { number, request: id.into(), reason: why });
    }

    fn publish(
        &mut self,
        client: &Arc<Client>,
        id: &[u8],
        event: &[u8],
        data: &[u8],
        confirm: bool,
        commands: &mut Vec<Command>,
    ) {
        let topic = self.events.topic(event);
        let message = delivery::message(id, event, data, client);
        let answer = confirm.then(|| self.pending.expect(PendingRequest::new(id, true)));
        commands.push(Command::PublishTopic { topic, message, to_producer: true, answer });
    }

    fn consume(
        &mut self,
        id: &[u8],
        consume: &Consume<'_>,
        confirm: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let queue = names::queue(consume.queue)?;
        let tag = self.consumers.add(id, &queue, consume.manual_ack)?;
        let binding = QueueBinding {
            replace: (!consume.replace.is_empty()).then(|| names::topics(&consume.replace)),
            add: names::topics(&consume.add),
            unused: Some(unused(consume.when_unused)),
            ..QueueBinding::default()
        };
        let subscription = QueueSubscription {
            binding: Some(Box::new(binding)),
            notify_self: consume.adds,
            ..self.subscription(id, queue.clone(), tag)
        };
        let asked = PendingRequest { consumes: Some((queue, tag)), ..PendingRequest::new(id, confirm) };
        self.change(asked, Request::SubscribeQueue(Box::new(subscription)), commands);
        Ok(())
    }

    /// A subscription for a consumer, on its terms, that leaves the bindings of the queue unchanged.
    fn subscription(&self, id: &[u8], queue: QueueAddress, tag: Tag) -> QueueSubscription {
        let consumer = self.consumers.get(&queue, tag);
        let settling = match consumer {
            Some(consumer) if consumer.manual_ack => Settling::Explicit,
            _ => Settling::AtOnce,
        };
        let window = consumer.map_or(0, |consumer| consumer.prefetch);
        QueueSubscription {
            terms: Terms { settling, window, in_order: true, ..Terms::default() },
            queue,
            tag,
            create: Some(Box::new(made_by_consumers())),
            name: Some(id.into()),
            binding: None,
            notify_self: false,
        }
    }

    fn prefetch(
        &mut self,
        id: &[u8],
        (consumer, count): (&[u8], u32),
        confirm: bool,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        for (queue, tag) in self.consumers.set_prefetch(consumer, count) {
            let subscription = self.subscription(consumer, queue, tag);
            self.change(
                PendingRequest::new(id, false),
                Request::SubscribeQueue(Box::new(subscription)),
                commands,
            );
        }
        if confirm {
            encode_done(id, b"", output);
        }
    }

    fn rebind(
        &mut self,
        id: &[u8],
        rebind: &Rebind<'_>,
        confirm: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let queue = names::queue(rebind.queue)?;
        let binding = QueueBinding {
            replace: rebind.replace.as_deref().map(names::topics),
            remove: names::topics(&rebind.remove),
            remove_matching: names::masks(&rebind.remove_masks),
            add: names::topics(&rebind.add),
            unused: None,
        };
        let request = Request::RebindQueue { queue, binding: Box::new(binding) };
        self.change(PendingRequest::new(id, confirm), request, commands);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "they are the words of one line, and where the answer goes"
    )]
    fn settle(
        &mut self,
        id: &[u8],
        consumer: &[u8],
        which: AckScope<'_>,
        negative: Option<&str>,
        confirm: bool,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        let own = self.consumers.of(consumer);
        if own.is_empty() {
            // An acknowledgement for another client's consumer, or for none.
            let message_id = match which {
                AckScope::One(word) => Some(MessageId::from_slice(&message_id::read(word))),
                AckScope::All => None,
            };
            let what = Remote::Settle { message_id, negative: negative.map(Into::into) };
            return self.ask_all(
                id,
                confirm,
                Request::ToSubscriptions { name: consumer.into(), what },
                commands,
            );
        }
        for (queue, tag) in own {
            commands.push(settlement(queue, tag, which, negative));
        }
        if confirm {
            encode_done(id, b"", output);
        }
    }

    fn evaluate(
        &mut self,
        id: &[u8],
        worker: Option<u32>,
        code: &[u8],
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        if worker.is_some_and(|worker| worker != 0) {
            return Err(format!("there is one worker, number 0, and not {}", worker.unwrap_or_default()));
        }
        let statistics = Some(statistics::find(code)?);
        let asked = PendingRequest { statistics, ..PendingRequest::new(id, true) };
        self.ask(asked, Request::ObjectCounts, commands);
        Ok(())
    }

    /// Sends a request to the broker. Errors are always answered, success only if the peer asked for it.
    fn ask(&mut self, mut asked: PendingRequest, request: Request, commands: &mut Vec<Command>) {
        asked.parts = request.answers(self.config.shards.max(1));
        let number = self.pending.expect(asked);
        commands.push(Command::Request(number, Box::new(request)));
    }

    /// Sends a request that the peer's next lines rely on: a message that it publishes after a consume must find the
    /// queue, although another shard may publish it.
    fn change(&mut self, asked: PendingRequest, request: Request, commands: &mut Vec<Command>) {
        self.ask(PendingRequest { holds: true, ..asked }, request, commands);
    }

    /// Asks every shard for a consumer that one of them may have. If none has it, the peer gets no answer.
    fn ask_all(&mut self, id: &[u8], confirm: bool, request: Request, commands: &mut Vec<Command>) {
        self.ask(
            PendingRequest { silent_if_missing: true, ..PendingRequest::new(id, confirm) },
            request,
            commands,
        );
    }

    fn answered(
        &mut self,
        number: RequestId,
        part: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        let Some((asked, answer)) = self.pending.answered(number, part) else { return };
        match answer {
            Ok(Reply::ObjectCounts(counts)) => {
                let values = asked.statistics.map(|statistics| statistics.of(&counts)).unwrap_or_default();
                encode_done(&asked.id, values.as_bytes(), output);
            }
            Ok(_) if asked.confirm => encode_done(&asked.id, b"", output),
            Ok(_) => {}
            Err(rejection) if asked.silent_if_missing && rejection.kind != RejectionKind::Unauthorized => {}
            Err(rejection) => {
                if let Some((queue, tag)) = &asked.consumes {
                    self.consumers.ended(queue, *tag);
                }
                self.fail(&asked.id, rejection.to_string(), now, output);
            }
        }
    }

    fn rebound(&self, tag: Tag, bindings: &QueueBindings, output: &mut Vec<u8>) {
        let Some(consumer) = self.consumers.get(&bindings.queue, tag) else { return };
        let queue = names::shown(&bindings.queue);
        let events: Vec<_> = bindings.topics.iter().map(|topic| topic.as_bytes()).collect();
        let when_unused = when_unused(bindings.unused);
        encode_update(&consumer.id, queue.as_bytes(), &events, when_unused, consumer.manual_ack, output);
    }

    /// The peer has closed its side: the conversation ends as soon as everything is answered.
    fn finish(&mut self) {
        if self.stage == Stage::Finishing && self.pending.is_empty() {
            self.stage = Stage::Over;
        }
    }
}

/// Options of queues that consumers create: round robin, requeued without a limit.
fn made_by_consumers() -> QueueChanges {
    QueueChanges {
        status: Some(Status::RoundRobin),
        request_acknowledge: Some(false),
        put_back_limit: Some(u16::MAX),
        ..QueueChanges::default()
    }
}

fn settlement(queue: QueueAddress, tag: Tag, which: AckScope<'_>, negative: Option<&str>) -> Command {
    match which {
        AckScope::All => Command::AcknowledgeAll { queue, tag, negative: negative.map(Into::into) },
        AckScope::One(word) => Command::Acknowledge(Acknowledgement {
            tag,
            queue,
            message_id: MessageId::from_slice(&message_id::read(word)),
            refusal: Nack::of(negative),
            headers: Box::default(),
            hops: 0,
            first_acquirer: false,
        }),
    }
}

fn unused(when: WhenUnused) -> UnusedPolicy {
    match when {
        WhenUnused::Keep => UnusedPolicy::Keep,
        WhenUnused::Delete => UnusedPolicy::Delete,
        WhenUnused::DeleteAfter(seconds) => {
            UnusedPolicy::DeleteAfter(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default())
        }
    }
}

fn when_unused(unused: UnusedPolicy) -> WhenUnused {
    match unused {
        UnusedPolicy::Keep => WhenUnused::Keep,
        UnusedPolicy::Delete => WhenUnused::Delete,
        UnusedPolicy::DeleteAfter(time) => WhenUnused::DeleteAfter(time.as_secs_f64()),
    }
}

impl Session for MqksSession {
    #[inline]
    fn set_time(&mut self, now: impl FnOnce() -> Nanos) {
        self.numbers.set_time(now());
    }

    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let mut consumed = 0;
        while self.may_read() || self.stage == Stage::Silent {
            match self.lines.next(&input[consumed..], &self.limits()) {
                Ok(Some((line, _))) if self.stage == Stage::Silent => {
                    self.close_http(line)?;
                    self.arrive(line, commands);
                }
                Ok(Some((line, size))) => {
                    self.line(line, now, commands, output);
                    consumed += size;
                }
                Ok(None) => break,
                Err(error) => {
                    if let WireError::TooLarge { .. } = error {
                        self.fail(id_of_beginning(&input[consumed..]), error.to_string(), now, output);
                    }
                    self.stage = Stage::Over;
                    return Err(error.into());
                }
            }
        }
        Ok(consumed)
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let consumed = self.receive(input, now, commands, output)?;
        if self.stage == Stage::Silent
            && let Some(line) = Lines::last(input)
        {
            self.close_http(line)?;
            self.arrive(line, commands);
        }
        if !self.may_read() && (consumed < input.len() || self.stage != Stage::Open) {
            return Ok(consumed);
        }
        if let Some(line) = Lines::last(&input[consumed..]) {
            self.line(line, now, commands, output);
        }
        self.stage = Stage::Finishing;
        self.finish();
        Ok(input.len())
    }

    fn outlives_input(&self) -> bool {
        matches!(self.stage, Stage::Introduced | Stage::Finishing) || self.pending.holds()
    }

    fn needed(&self, input: &[u8]) -> usize {
        // The length of a line is not known before its end has arrived.
        if self.may_read() || self.stage == Stage::Silent { 0 } else { input.len() }
    }

    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match event {
            Event::Welcomed(client) if self.stage == Stage::Introduced => {
                self.client = Some(client);
                self.stage = Stage::Open;
            }
            Event::Refused(rejection) if self.stage == Stage::Introduced => {
                let first = std::mem::take(&mut self.first);
                self.fail(&first, rejection.to_string(), now, output);
                self.stage = Stage::Over;
            }
            Event::Answered(number, part) => self.answered(number, part, now, output),
            // Errors are answered even if the peer did not ask for a confirmation.
            Event::TopicRefused { message, rejection } => {
                self.fail(message.id(), rejection.to_string(), now, output);
            }
            Event::BindingsChanged { tag, bindings } => self.rebound(tag, &bindings, output),
            Event::SubscriptionEnded { queue, tag } => self.consumers.ended(&queue, tag),
            // Requests of other protocols' clients.
            _ => {}
        }
        self.finish();
        Ok(())
    }

    fn take_request_errors(&mut self) -> Vec<RequestError> {
        std::mem::take(&mut self.request_errors)
    }

    fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }

    fn timeout(&mut self, _now: Timestamp, _output: &mut Vec<u8>) -> Result<(), SessionError> {
        Ok(())
    }

    fn shutdown(&mut self, _output: &mut Vec<u8>) {
        // The protocol has no message for it; closing the connection is enough.
        self.stage = Stage::Over;
    }

    fn client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    fn is_closing(&self) -> bool {
        self.stage == Stage::Over
    }
}
