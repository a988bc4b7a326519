//! One client's side of MQKS: lines in, results out. No IO and no clock.
//!
//! The id of a line is what its answers carry, so a publish waits under its message's id and a consume under its
//! consumer's. A consumer gets another id on every connection: acknowledgements reach a consumer by its id from whichever
//! connection they come, and the broker may not have noticed yet that the last connection is gone.

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::mqks::answer::{Answer as Line, Delivered, Said, delivered, parse};
use mqcore_wire::mqks::arguments::{Consume, WhenUnused};
use mqcore_wire::mqks::{Lines, NAME_BYTES_MAX, encode_request};
use mqcore_wire::tmqp::{Frame, Kind};

use crate::address::{Protocol, QueueAddress};
use crate::consumption::{Consumption, UnusedQueue};
use crate::conversation::{Answer, Arrival, By, MessageId, Publication, PullAnswer, TakenUp, Tally};
use crate::error::{ClientError, Refusal};
use crate::message_id::MessageIds;
use crate::received::Received;
use crate::request::Target;
use crate::standing::Register;

/// The id of lines that ask for a heartbeat.
const KEEP_ALIVE: &[u8] = b"keep-alive";
/// The id of lines whose answers concern nobody.
const NOBODY: &[u8] = b"-";
/// How the data begins that tells what a queue is bound to.
const UPDATE: &[u8] = b"--update";
/// The number of a refusal of which only that it is one is known.
const FAILED: u16 = 1;
/// The header of a received message that names its event.
pub(crate) const TOPIC: &str = "Topic";
/// The header of a received message that says how often it was given back, if it was.
pub(crate) const RETRY: &str = "Retry";

/// Something that only this protocol has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    /// For people.
    pub(crate) operation: &'static str,
    /// For people: of whom.
    pub(crate) about: &'a str,
    /// The action.
    pub(crate) action: &'static str,
    /// It answers only if it is told to.
    pub(crate) confirm: bool,
    /// What stands behind it.
    pub(crate) data: &'a [u8],
}

#[derive(Debug)]
struct Pending<W> {
    /// The answer is a confirmation, and not what was asked for.
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
    lines: Lines,
    pending: HashMap<MessageId, Pending<W>, RandomState>,
    consumed: Register<W>,
    /// What a queue was bound to when the broker last said so.
    bound: HashMap<QueueAddress, Vec<Box<[u8]>>, RandomState>,
    /// What the consumers of this connection consume.
    consumers: HashMap<MessageId, QueueAddress, RandomState>,
    output: Vec<u8>,
    /// Kept, so that the headers of a received message cost no allocation of their own.
    headers: Vec<u8>,
    tally: Tally,
}

impl<W> Conversation<W> {
    /// One that has not begun.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: MessageIds::new(),
            open: false,
            lines: Lines::new(),
            pending: HashMap::default(),
            consumed: Register::new(),
            bound: HashMap::default(),
            consumers: HashMap::default(),
            output: Vec::new(),
            headers: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// A connection stands: begins all consumers again before anything else.
    pub(crate) fn opened(&mut self) {
        debug_assert!(self.pending.is_empty(), "what was pending ends with its connection");
        self.output.clear();
        self.lines = Lines::new();
        self.open = true;
        self.restore();
    }

    /// The connection is gone. Answers with everybody who waited.
    pub(crate) fn lost(&mut self) -> Vec<(W, Option<PullAnswer>)> {
        self.open = false;
        self.output.clear();
        self.consumers.clear();
        let pending = std::mem::take(&mut self.pending);
        let mut waiters: Vec<_> = pending.into_values().map(|pending| (pending.waiter, None)).collect();
        waiters.extend(self.consumed.lost());
        waiters
    }

    /// Asks for every consumer that the broker has not been asked for on this connection, or has refused.
    pub(crate) fn restore(&mut self) {
        for queue in self.consumed.missing() {
            self.begin_consumer(&queue);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// How many wait for an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Publishes an event. With a waiter, a confirmation is asked for.
    pub(crate) fn publish(
        &mut self,
        publication: &Publication<'_>,
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
            let pending = Pending { confirms: true, operation: "publish to", about, waiter };
            self.pending.insert(id.clone(), pending);
        }
        Ok(id)
    }

    /// Asks something that is answered once.
    pub(crate) fn question(&mut self, question: &Question<'_>, waiter: W) -> Result<MessageId, ClientError> {
        if question.data.iter().any(|octet| matches!(octet, b'\n' | b'\t')) {
            return Err(ClientError::invalid("request", "line ends and TABs cannot be said in MQKS"));
        }
        let id = self.ids.next();
        encode_request(&id, question.action, question.confirm, &[question.data], &mut self.output);
        let about = Target::Name(question.about.into());
        let pending = Pending { confirms: question.confirm, operation: question.operation, about, waiter };
        self.pending.insert(id.clone(), pending);
        Ok(id)
    }

    /// Somebody wants to consume, until [`Conversation::give_up`] as many times.
    pub(crate) fn take_up(
        &mut self,
        consumption: &Consumption,
        waiter: W,
    ) -> Result<TakenUp<W>, ClientError> {
        check_consumption(consumption)?;
        let queue = &consumption.queue;
        if self.consumed.join(consumption)? {
            self.begin_consumer(queue);
        }
        Ok(self.consumed.wait(queue, self.ids.next(), waiter))
    }

    /// Somebody wants it no more. The last one ends the consumer.
    pub(crate) fn give_up(&mut self, consumption: &Consumption) {
        let ended = self.consumed.leave(&consumption.queue);
        if self.consumed.consumption(&consumption.queue).is_none() {
            self.bound.remove(&consumption.queue);
        }
        if let (Some(consumer), true) = (ended, self.open) {
            self.consumers.remove(&consumer);
            encode_request(NOBODY, "delete_consumer", false, &[&consumer], &mut self.output);
        }
    }

    /// Acknowledges a message, or gives it back to its queue. A consumer that ended has given back what it had.
    pub(crate) fn settle(&mut self, message: &Received, reject: bool) {
        let Ok(channel) = str::from_utf8(message.target()) else { return };
        let place = Place { channel, id: message.content_type() };
        if let Some(consumer) = self.consumed.id(&place) {
            let action = if reject { "reject" } else { "ack" };
            encode_request(NOBODY, action, false, &[consumer, message.id()], &mut self.output);
        }
    }

    /// Asks for a heartbeat.
    pub(crate) fn ping(&mut self) {
        encode_request(KEEP_ALIVE, "ping", false, &[b"."], &mut self.output);
    }

    /// Nobody waits for this any more.
    pub(crate) fn forget(&mut self, id: &[u8]) -> Option<PullAnswer> {
        if self.pending.remove(id).is_none() {
            self.consumed.forget(id);
        }
        None
    }

    /// Reads the line at the front of `input`, and tells how many bytes it took. `None`: its end is not there.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<Option<(Arrival<W>, usize)>, WireError> {
        let Some((_, size)) = self.lines.next(input, &self.limits)? else { return Ok(None) };
        // Not what the codec found, which for the sake of requests is without the spaces at its end: here they are the
        // message's own.
        let Some(Line { id, said }) = parse(&input[..size - 1]) else { return Err(no_answer()) };
        let arrival = match said {
            Said::Done(data) => self.done(id, data)?,
            Said::Failed(error) => self.failed(id, error),
        };
        Ok(Some((arrival, size)))
    }

    fn done(&mut self, id: &[u8], data: &[u8]) -> Result<Arrival<W>, WireError> {
        if let Some(queue) = self.consumers.get(id) {
            if data.is_empty() {
                return Ok(self.consumed.agreed(queue));
            }
            if let Some(events) = data.strip_prefix(UPDATE) {
                let queue = queue.clone();
                return Ok(self.updated(&queue, events));
            }
            let delivered = delivered(data).ok_or_else(no_answer)?;
            return self.received(&queue.clone(), &delivered).map(Arrival::Delivery);
        }
        let Some(pending) = self.pending.remove(id) else {
            // Deliveries to a consumer that has just ended, and confirmations that nobody waited for.
            self.tally.late_answers += u64::from(id != KEEP_ALIVE && data.is_empty());
            return Ok(Arrival::Nothing);
        };
        let answer = if pending.confirms {
            Answer::Confirmed(By::Server)
        } else {
            Answer::Response(Received::copy(&Frame { payload: data, ..Frame::new(Kind::RESPONSE) }))
        };
        Ok(Arrival::Settled(pending.waiter, Ok(answer)))
    }

    /// The broker tells what the queue is bound to: that is what it is to be bound to after a reconnect.
    fn updated(&mut self, queue: &QueueAddress, words: &[u8]) -> Arrival<W> {
        let words = words.split(|octet| *octet == b' ').filter(|word| !word.is_empty());
        // The first is the queue itself; flags are this consumer's own.
        let events = words.skip(1).filter(|word| !word.starts_with(b"--"));
        self.bound.insert(queue.clone(), events.map(Box::from).collect());
        Arrival::Nothing
    }

    fn received(&mut self, queue: &QueueAddress, delivered: &Delivered<'_>) -> Result<Received, WireError> {
        for (part, name) in [("message id", delivered.message), ("event", delivered.event)] {
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
        Ok(Received::copy(&Frame {
            id: delivered.message,
            target: queue.channel().as_bytes(),
            content_type: queue.id(),
            headers: &self.headers,
            payload: delivered.data,
            pending_acknowledge: manual,
            ..Frame::new(Kind::QUEUE)
        }))
    }

    fn failed(&mut self, id: &[u8], error: &[u8]) -> Arrival<W> {
        let refusal = |operation, target| {
            let error = String::from_utf8_lossy(error);
            let reason = format!("error {error}; 'mqcore errors {error}' says why").into();
            ClientError::from(Refusal { code: FAILED, operation, target, reason })
        };
        if let Some(queue) = self.consumers.remove(id) {
            let refused = refusal("consume", queue.name().into());
            return self.consumed.refused(&queue, &refused);
        }
        match self.pending.remove(id) {
            Some(pending) => {
                let refused = refusal(pending.operation, pending.about.to_text());
                Arrival::Settled(pending.waiter, Err(refused))
            }
            None => {
                // Errors are told whether or not somebody asked to know that it was done.
                self.tally.refused_unconfirmed += 1;
                Arrival::Nothing
            }
        }
    }

    /// Writes the line that begins the consumer of a queue, bound to what it was when the broker last said so.
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
                consume.replace = terms.events.as_deref().map(octets).unwrap_or_default();
                let by_name = terms.events.is_none() && terms.add_events.is_empty();
                consume.add = if by_name { own.to_vec() } else { octets(&terms.add_events) };
                consume.adds = !consume.add.is_empty();
            }
        }
        let mut data = Vec::new();
        consume.encode(&mut data);
        encode_request(&id, "consume", true, &[&data], &mut self.output);
        self.consumed.asked(queue, id.clone(), false);
        self.consumers.insert(id, queue.clone());
    }

    fn id_for(&mut self, given: Option<&str>) -> Result<MessageId, ClientError> {
        let Some(given) = given else { return Ok(self.ids.next()) };
        let breaks = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
        if given.is_empty() || given.len() > NAME_BYTES_MAX || given.contains(breaks) {
            let why = format!("{given:?}: in MQKS it has 1 to 255 bytes and no white space");
            return Err(ClientError::invalid("message id", why));
        }
        let id = MessageId::from_slice(given.as_bytes());
        if self.pending.contains_key(&id) {
            let why = format!("{given:?} is waiting for its answer; ids are unique");
            return Err(ClientError::invalid("message id", why));
        }
        Ok(id)
    }
}

/// A queue as a message names it: found under its [`QueueAddress`], whose hash is that of the same parts.
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

/// Names as a line has them.
pub(super) fn octets(names: &[String]) -> Vec<&[u8]> {
    names.iter().map(|name| name.as_bytes()).collect()
}

fn no_answer() -> WireError {
    WireError::Malformed { part: "line", why: "it is neither an answer nor a message" }
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

/// Refuses what a line cannot say, or would say otherwise than it was meant.
fn check_publication(publication: &Publication<'_>) -> Result<(), ClientError> {
    if !publication.headers.is_empty() {
        return Err(lacks("headers and copies", "TMQP has; connect to tmqp://"));
    }
    if publication.high_priority {
        return Err(lacks("priorities", "TMQP has; connect to tmqp://"));
    }
    let body = publication.body;
    let why = if body.is_empty() {
        "it is empty, and MQKS has no empty messages"
    } else if body.iter().any(|octet| matches!(octet, b'\n' | b'\t')) {
        "it has line ends or TABs in it, which MQKS cannot say; JSON escapes them"
    } else if body.last().is_some_and(|octet| matches!(octet, b' ' | b'\r' | 0x0b | 0x0c)) {
        "it ends with white space, which MQKS takes for a part of the line's end"
    } else {
        return Ok(());
    };
    Err(ClientError::invalid("body", why))
}

fn check_consumption(consumption: &Consumption) -> Result<(), ClientError> {
    let terms = &consumption.terms;
    if terms.filter.is_some() {
        return Err(lacks("filters", "MicroMessage2 has; connect to mm2://"));
    }
    for event in terms.events.iter().flatten().chain(&terms.add_events) {
        QueueAddress::plain(event)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
