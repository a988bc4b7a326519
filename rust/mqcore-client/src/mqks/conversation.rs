//! The client side of MQKS: turns lines into results. It has no IO and no clock.
//!
//! Answers carry the id of their line, so a publish waits under its message's id and a consume under its consumer's id.
//! A consumer gets a new id on every connection: the broker accepts acknowledgements for a consumer id from any
//! connection, and may not have detected the loss of the previous one.

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::mqks::answer::{AnswerResult, DeliveryLine, ServerLine, delivered, parse};
use mqcore_wire::mqks::arguments::{Consume, WhenUnused};
use mqcore_wire::mqks::{Lines, NAME_BYTES_MAX, STARTED, encode_request, message_id};
use mqcore_wire::tmqp::{Frame, Kind};

use crate::address::{Protocol, QueueAddress};
use crate::consumption::{Consumption, UnusedQueue};
use crate::conversation::{
    AckedBy, ConversationCounts, FrameEvent, IntentState, MessageId, PullAnswer, QueueMessage, RequestAnswer,
};
use crate::error::{ClientError, Refusal};
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::Target;
use crate::standing::{Ended, Leaving, Register};

/// The id of heartbeat lines.
const KEEP_ALIVE: &[u8] = b"keep-alive";
/// The id of `prefetch` lines, to which servers other than mqcore answer with an error.
const PREFETCH: &[u8] = b"prefetch";
/// The id of lines whose answers are ignored.
const NOBODY: &[u8] = b"-";
/// Prefix of data that lists the bindings of a queue.
const UPDATE: &[u8] = b"--update";
/// The status of refusals, whose MQKS numbers have no status.
const FAILED: u16 = 1;
/// The header of a received message with its event.
pub(crate) const TOPIC: &str = "Topic";
/// The header of a received message with the number of times it was requeued, if any.
pub(crate) const RETRY: &str = "Retry";

/// A request of MQKS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MqksRequest<'a> {
    /// The operation for error texts.
    pub(crate) operation: &'static str,
    /// The target for error texts.
    pub(crate) about: &'a str,
    /// The action.
    pub(crate) action: &'static str,
    /// Whether the action needs `--confirm` to be answered.
    pub(crate) confirm: bool,
    /// The data after the action.
    pub(crate) data: &'a [u8],
}

#[derive(Debug)]
struct PendingRequest<W> {
    /// Whether the answer is a confirmation without data.
    confirms: bool,
    operation: &'static str,
    about: Target,
    waiter: W,
}

/// The conversation over all connections of one client.
#[derive(Debug)]
pub(crate) struct Conversation<W> {
    limits: Limits,
    ids: MessageIds,
    open: bool,
    /// Whether the broker may know prefetch: it has not answered with an error.
    limits_deliveries: bool,
    lines: Lines,
    pending: HashMap<MessageId, PendingRequest<W>, RandomState>,
    consumed: Register<W>,
    /// Bindings of each queue in the broker's last update.
    bound: HashMap<QueueAddress, Vec<Box<[u8]>>, RandomState>,
    /// Queues of the consumers of this connection.
    consumers: HashMap<MessageId, QueueAddress, RandomState>,
    output: Vec<u8>,
    /// Reused for the headers of received messages, to save an allocation each.
    headers: Vec<u8>,
    tally: ConversationCounts,
}

impl<W> Conversation<W> {
    /// Creates a conversation without a connection.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: MessageIds::new(),
            open: false,
            limits_deliveries: true,
            lines: Lines::new(),
            pending: HashMap::default(),
            consumed: Register::new(),
            bound: HashMap::default(),
            consumers: HashMap::default(),
            output: Vec::new(),
            headers: Vec::new(),
            tally: ConversationCounts::default(),
        }
    }

    /// Starts a connection, and restores all consumers first.
    pub(crate) fn opened(&mut self) {
        debug_assert!(self.pending.is_empty(), "requests end with their connection");
        self.output.clear();
        self.lines = Lines::new();
        self.open = true;
        self.limits_deliveries = true;
        self.restore();
    }

    /// Ends the connection. Returns all waiters.
    pub(crate) fn lost(&mut self) -> Vec<(W, Option<PullAnswer>)> {
        self.open = false;
        self.output.clear();
        self.consumers.clear();
        let pending = std::mem::take(&mut self.pending);
        let mut waiters: Vec<_> = pending.into_values().map(|pending| (pending.waiter, None)).collect();
        waiters.extend(self.consumed.lost());
        waiters
    }

    /// Requests every consumer that is not yet requested on this connection, or was refused.
    pub(crate) fn restore(&mut self) {
        for queue in self.consumed.missing() {
            self.begin_consumer(&queue);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn tally(&self) -> ConversationCounts {
        self.tally
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Publishes an event. With a waiter, requests a confirmation.
    pub(crate) fn publish(
        &mut self,
        publication: &QueueMessage<'_>,
        waiter: Option<W>,
    ) -> Result<MessageId, ClientError> {
        check_publication(publication)?;
        let id = self.id_for(publication.id)?;
        let event = publication.queue.name();
        let size = id.len() + event.len() + publication.body.len() + " publish --confirm  \n".len();
        if size as u64 > self.limits.frame_bytes_max {
            let limit = self.limits.frame_bytes_max;
            return Err(ClientError::TooLarge { part: "message", size: size as u64, limit });
        }
        let data = [event.as_bytes(), publication.body];
        encode_request(&id, "publish", waiter.is_some(), &data, &mut self.output);
        if let Some(waiter) = waiter {
            let about = Target::plain(publication.queue);
            let pending = PendingRequest { confirms: true, operation: "publish to", about, waiter };
            self.pending.insert(id.clone(), pending);
        }
        Ok(id)
    }

    /// Sends a request with one answer.
    pub(crate) fn question(
        &mut self,
        question: &MqksRequest<'_>,
        waiter: W,
    ) -> Result<MessageId, ClientError> {
        if question.data.iter().any(|byte| matches!(byte, b'\n' | b'\t')) {
            return Err(ClientError::invalid("request", "MQKS cannot transmit line ends and tabs"));
        }
        let id = self.ids.next();
        encode_request(&id, question.action, question.confirm, &[question.data], &mut self.output);
        let about = Target::Name(question.about.into());
        let pending =
            PendingRequest { confirms: question.confirm, operation: question.operation, about, waiter };
        self.pending.insert(id.clone(), pending);
        Ok(id)
    }

    /// Adds a user of a consumed queue. Each call needs a [`Conversation::give_up`].
    pub(crate) fn take_up(
        &mut self,
        consumption: &Consumption,
        waiter: W,
    ) -> Result<IntentState<W>, ClientError> {
        check_consumption(consumption)?;
        let queue = &consumption.queue;
        if self.consumed.join(consumption)? {
            self.begin_consumer(queue);
        } else {
            self.change_prefetch(queue);
        }
        Ok(self.consumed.wait(queue, self.ids.next(), waiter))
    }

    /// Removes a user, whose program has `started` messages that it has not settled. The last one ends the consumer.
    pub(crate) fn give_up(&mut self, consumption: &Consumption, started: usize) {
        let Leaving::Ended(ended) = self.consumed.leave(consumption) else {
            return self.change_prefetch(&consumption.queue);
        };
        self.bound.remove(&consumption.queue);
        if let Some(ended) = ended {
            self.end_consumer(&ended, started);
        }
    }

    /// Ends all consumers, because the client closes. `started`: how many messages of a queue the program has and has not
    /// settled.
    pub(crate) fn leave_all(&mut self, started: impl Fn(&QueueAddress) -> usize) {
        for (queue, ended) in self.consumed.end_all() {
            self.end_consumer(&ended, started(&queue));
        }
    }

    /// The program dropped a message without settling it. The broker requeues it when the consumer ends.
    pub(crate) fn dropped(&mut self, message: &Received) {
        let Ok(channel) = str::from_utf8(message.target()) else { return };
        self.consumed.dropped(&Place { channel, id: message.content_type() });
    }

    /// Asks for the whole acknowledge timeout again. Returns whether the broker knows this request.
    pub(crate) fn extend(&mut self, message: &Received) -> bool {
        let Ok(channel) = str::from_utf8(message.target()) else { return false };
        let consumer = self.consumed.id(&Place { channel, id: message.content_type() });
        let (Some(consumer), true) = (consumer, self.limits_deliveries) else { return false };
        let id = message_id::write(message.id());
        encode_request(NOBODY, "working", false, &[consumer, &id], &mut self.output);
        true
    }

    fn end_consumer(&mut self, ended: &Ended, started: usize) {
        if !self.open {
            return;
        }
        self.consumers.remove(&ended.id);
        let mut data = vec![&ended.id[..]];
        // The attempts of messages that the program did not get do not count.
        let flag = [STARTED, (started + ended.dropped).to_string().as_bytes()].concat();
        if ended.manual_ack && self.limits_deliveries {
            data.push(&flag);
        }
        encode_request(NOBODY, "delete_consumer", false, &data, &mut self.output);
    }

    /// Writes the line with the prefetch of a consumer, which is in force or about to start.
    fn change_prefetch(&mut self, queue: &QueueAddress) {
        if let (Some((consumer, prefetch)), true) =
            (self.consumed.prefetch(queue), self.limits_deliveries && self.open)
        {
            let number = prefetch.to_string();
            encode_request(PREFETCH, "prefetch", false, &[consumer, number.as_bytes()], &mut self.output);
        }
    }

    /// Acknowledges or requeues a message. The broker has already requeued messages of an ended consumer.
    pub(crate) fn settle(&mut self, message: &Received, reject: bool) {
        let Ok(channel) = str::from_utf8(message.target()) else { return };
        let place = Place { channel, id: message.content_type() };
        if let Some(consumer) = self.consumed.id(&place) {
            let action = if reject { "reject" } else { "ack" };
            let id = message_id::write(message.id());
            encode_request(NOBODY, action, false, &[consumer, &id], &mut self.output);
        }
    }

    /// Sends a heartbeat request.
    pub(crate) fn ping(&mut self) {
        encode_request(KEEP_ALIVE, "ping", false, &[b"."], &mut self.output);
    }

    /// Every caller that waits for an answer to its request, with the id of the request.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (&MessageId, &W)> {
        self.pending.iter().map(|(id, pending)| (id, &pending.waiter))
    }

    /// Forgets a request.
    pub(crate) fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        if self.pending.remove(id).is_none() {
            self.consumed.forget(id);
        }
        None
    }

    /// Handles the line at the front of `input`, and returns its size in bytes. `None`: the line is incomplete.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<Option<(FrameEvent<W>, usize)>, WireError> {
        let Some((_, size)) = self.lines.next(input, &self.limits)? else { return Ok(None) };
        // Parses the input, because the codec strips trailing spaces, which here belong to the message.
        let Some(ServerLine { id, said }) = parse(&input[..size - 1]) else { return Err(no_answer()) };
        let arrival = match said {
            AnswerResult::Done(data) => self.done(id, data)?,
            AnswerResult::Failed(error) => self.failed(id, error),
        };
        Ok(Some((arrival, size)))
    }

    fn done(&mut self, id: &[u8], data: &[u8]) -> Result<FrameEvent<W>, WireError> {
        if let Some(queue) = self.consumers.get(id) {
            if data.is_empty() {
                return Ok(self.consumed.agreed(queue));
            }
            if let Some(events) = data.strip_prefix(UPDATE) {
                let queue = queue.clone();
                return Ok(self.updated(&queue, events));
            }
            let delivered = delivered(data).ok_or_else(no_answer)?;
            return self.received(&queue.clone(), &delivered).map(FrameEvent::Delivery);
        }
        let Some(pending) = self.pending.remove(id) else {
            // Deliveries to an ended consumer, and confirmations without a waiter.
            self.tally.late_answers += u64::from(id != KEEP_ALIVE && data.is_empty());
            return Ok(FrameEvent::Nothing);
        };
        let answer = if pending.confirms {
            RequestAnswer::Confirmed(AckedBy::Server)
        } else {
            RequestAnswer::Response(Received::copy(&Frame { payload: data, ..Frame::new(Kind::RESPONSE) }))
        };
        Ok(FrameEvent::Settled(pending.waiter, Ok(answer)))
    }

    /// Stores the bindings of a queue, which the client restores after a reconnect.
    fn updated(&mut self, queue: &QueueAddress, words: &[u8]) -> FrameEvent<W> {
        let words = words.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        // The first word is the queue itself; flags belong to this consumer.
        let events = words.skip(1).filter(|word| !word.starts_with(b"--"));
        self.bound.insert(queue.clone(), events.map(Box::from).collect());
        FrameEvent::Nothing
    }

    fn received(
        &mut self,
        queue: &QueueAddress,
        delivered: &DeliveryLine<'_>,
    ) -> Result<Received, WireError> {
        let id = message_id::read(delivered.message);
        for (part, name) in [("message id", &*id), ("event", delivered.event)] {
            if name.len() > NAME_BYTES_MAX {
                let (size, max) = (name.len() as u64, NAME_BYTES_MAX as u64);
                return Err(WireError::TooLarge { part, size, max });
            }
        }
        self.headers.clear();
        for part in [TOPIC.as_bytes(), b":", delivered.event, b"\r\n"] {
            self.headers.extend_from_slice(part);
        }
        if delivered.retry > 0 {
            self.headers.extend_from_slice(format!("{RETRY}:{}\r\n", delivered.retry).as_bytes());
        }
        let manual = self.consumed.consumption(queue).is_some_and(|one| one.terms.manual_ack);
        let received = Received::copy(&Frame {
            id: &id,
            target: queue.channel().as_bytes(),
            content_type: queue.id(),
            headers: &self.headers,
            payload: delivered.data,
            pending_acknowledge: manual,
            ..Frame::new(Kind::QUEUE)
        });
        Ok(received.with_attempt(delivered.retry.saturating_add(1)))
    }

    fn failed(&mut self, id: &[u8], error: &[u8]) -> FrameEvent<W> {
        let refusal = |operation, target| {
            let error = String::from_utf8_lossy(error);
            let reason = format!("error {error}; see 'mqcore errors {error}'").into();
            ClientError::from(Refusal { code: FAILED, operation, target, reason, queue_stopped: false })
        };
        if let Some(queue) = self.consumers.remove(id) {
            let refused = refusal("consume", queue.name().into());
            return self.consumed.refused(&queue, &refused);
        }
        match self.pending.remove(id) {
            Some(pending) => {
                let refused = refusal(pending.operation, pending.about.to_text());
                FrameEvent::Settled(pending.waiter, Err(refused))
            }
            None if id == PREFETCH => {
                self.limits_deliveries = false;
                FrameEvent::Nothing
            }
            None => {
                // The broker reports errors even without `--confirm`.
                self.tally.refused_unconfirmed += 1;
                FrameEvent::Nothing
            }
        }
    }

    /// Writes the line that starts the consumer of a queue, with the bindings of the broker's last update.
    fn begin_consumer(&mut self, queue: &QueueAddress) {
        let Some(consumption) = self.consumed.consumption(queue) else { return };
        let id = self.ids.next();
        let (name, terms) = (queue.name(), &consumption.terms);
        let own = [name.as_bytes()];
        let mut consume = Consume {
            queue: name.as_bytes(),
            when_unused: when_unused(terms.delete_unused),
            manual_ack: terms.manual_ack,
            ..Consume::default()
        };
        match self.bound.get(queue) {
            Some(events) => consume.replace = events.iter().map(|event| &event[..]).collect(),
            None => {
                consume.replace = terms.events.as_deref().map(bytes).unwrap_or_default();
                let by_name = terms.events.is_none() && terms.add_events.is_empty();
                consume.add = if by_name { own.to_vec() } else { bytes(&terms.add_events) };
                consume.adds = !consume.add.is_empty();
            }
        }
        let mut data = Vec::new();
        consume.encode(&mut data);
        self.consumed.asked(queue, id.clone(), false);
        // Before the consumer starts, so that the first messages are limited too.
        self.change_prefetch(queue);
        encode_request(&id, "consume", true, &[&data], &mut self.output);
        self.consumers.insert(id, queue.clone());
    }

    fn id_for(&mut self, given: Option<&str>) -> Result<MessageId, ClientError> {
        let Some(given) = given else { return Ok(self.ids.next()) };
        let breaks = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
        if given.is_empty() || given.len() > NAME_BYTES_MAX || given.contains(breaks) {
            let why = format!("{given:?} must have 1 to 255 bytes and no white space in MQKS");
            return Err(ClientError::invalid("message id", why));
        }
        let id = MessageId::from_slice(given.as_bytes());
        if self.pending.contains_key(&id) {
            let why = format!("{given:?} waits for its answer; use another id");
            return Err(ClientError::invalid("message id", why));
        }
        Ok(id)
    }
}

/// A borrowed key for maps with [`QueueAddress`], with the same hash.
#[derive(Hash)]
struct Place<'a> {
    channel: &'a str,
    id: u16,
}

impl Equivalent<QueueAddress> for Place<'_> {
    fn equivalent(&self, queue: &QueueAddress) -> bool {
        self.id == queue.id() && *self.channel == **queue.channel()
    }
}

/// Names as byte slices.
pub(super) fn bytes(names: &[String]) -> Vec<&[u8]> {
    names.iter().map(|name| name.as_bytes()).collect()
}

fn no_answer() -> WireError {
    WireError::Malformed { part: "line", why: "neither an answer nor a message" }
}

fn when_unused(unused: UnusedQueue) -> WhenUnused {
    match unused {
        UnusedQueue::Stays => WhenUnused::Keep,
        UnusedQueue::Deleted(after) if after.is_zero() => WhenUnused::Delete,
        UnusedQueue::Deleted(after) => WhenUnused::DeleteAfter(after.as_secs_f64()),
    }
}

fn lacks(what: &str, instead: &'static str) -> ClientError {
    ClientError::NotSupported { what: what.into(), protocol: Protocol::Mqks.name(), instead }
}

/// Rejects publications that a line cannot represent.
fn check_publication(publication: &QueueMessage<'_>) -> Result<(), ClientError> {
    if !publication.headers.is_empty() {
        return Err(lacks("headers and copies", "use TMQP (tmqp://) instead"));
    }
    if publication.high_priority {
        return Err(lacks("priorities", "use TMQP (tmqp://) instead"));
    }
    let body = publication.body;
    let why = if body.is_empty() {
        "it is empty; MQKS has no empty messages"
    } else if body.iter().any(|byte| matches!(byte, b'\n' | b'\t')) {
        "it contains line ends or tabs, which MQKS cannot transmit; encode it as JSON"
    } else if body.last().is_some_and(|byte| matches!(byte, b' ' | b'\r' | 0x0b | 0x0c)) {
        "it ends with white space, which MQKS strips; encode it as JSON"
    } else {
        return Ok(());
    };
    Err(ClientError::invalid("body", why))
}

fn check_consumption(consumption: &Consumption) -> Result<(), ClientError> {
    let terms = &consumption.terms;
    if terms.filter.is_some() {
        return Err(lacks("filters", "use MicroMessage2 (mm2://) instead"));
    }
    for event in terms.events.iter().flatten().chain(&terms.add_events) {
        QueueAddress::plain(event)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
