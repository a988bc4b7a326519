//! The life of every message, written down step by step for whoever looks at it later.
//!
//! Steps are encoded where they happen, into one block for all that a turn of the shard does: nothing is allocated, sent
//! or locked for a single step. A block names a queue or a client once and points at it from then on, and can be read
//! without any other block.
//!
//! ```text
//! block:  version u8, milliseconds since 1970 varint, operations
//! time    0x01  milliseconds since the last one varint
//! queue   0x02  length varint, "channel/id"                          the next queue's number, from 0
//! client  0x03  id, name, type, protocol: each length varint, text   the next client's number, from 0
//! started 0x04                                                       the shard has just started
//! gap     0x05  steps varint                                         so many steps were not written down
//! step    0x20 + kind, flags u8, queue varint, number (difference, zigzag) varint, attempt varint,
//!         header octets varint, body octets varint,
//!         [producer varint] [consumer varint] [reason: length varint, text] [target queue varint]
//!         [id: length varint, octets] [properties u8, content type u16, headers, body]
//! ```
//!
//! Names that are missing have length 0. What is in brackets is there if a flag says so.

pub mod packing;

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use crate::model::client::Client;
use crate::model::config::HistoryOptions;
use crate::model::decision::PutBack;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, MessageNumber, QueueAddress};
use crate::model::message::Message;
use crate::model::record::RecordError;
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;

/// A step of a message's life. The numbers are on the disk: never change one, never use one again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LifecycleKind {
    /// A producer brought it and it passed the limits. Its content is told here.
    Produced = 0,
    /// It came from another queue, as a dead letter. Its content is told here.
    Arrived = 1,
    /// The journal had it when the shard started.
    Restored = 2,
    /// It is durable, as its queue understands that, or its handler saved it.
    Saved = 3,
    /// It was handed to one consumer.
    Delivered = 4,
    /// A consumer acknowledged it.
    Acked = 5,
    /// A consumer refused it; the reason is the consumer's.
    Nacked = 6,
    /// A consumer did not acknowledge it in time.
    TimedOut = 7,
    /// A consumer's connection ended while it had the message.
    ConsumerLost = 8,
    /// It waited too long in its queue.
    Expired = 9,
    /// It returned to its queue; the reason says where: `start` or `end`.
    Requeued = 10,
    /// It moved to its queue's dead-letter queue, the target; the reason is that of a drop.
    DeadLettered = 11,
    /// It was dropped; the reason is one of [`DropReason`]. Not final: only one consumer missed it.
    Dropped = 12,
    /// A newer message took its place in a cache.
    Replaced = 13,
    /// It left its queue as it should; a step of its own only where none of the others was the last one.
    Done = 14,
    /// The shard started. What was not restored from then on, and had not left its queue, was in memory only.
    Started = 30,
    /// Steps are missing here: so many could not be written down.
    Gap = 31,
}

impl LifecycleKind {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Produced,
        Self::Arrived,
        Self::Restored,
        Self::Saved,
        Self::Delivered,
        Self::Acked,
        Self::Nacked,
        Self::TimedOut,
        Self::ConsumerLost,
        Self::Expired,
        Self::Requeued,
        Self::DeadLettered,
        Self::Dropped,
        Self::Replaced,
        Self::Done,
        Self::Started,
        Self::Gap,
    ];

    /// As tables spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Produced => "produced",
            Self::Arrived => "arrived",
            Self::Restored => "restored",
            Self::Saved => "saved",
            Self::Delivered => "delivered",
            Self::Acked => "acked",
            Self::Nacked => "nacked",
            Self::TimedOut => "timed-out",
            Self::ConsumerLost => "consumer-lost",
            Self::Expired => "expired",
            Self::Requeued => "put-back",
            Self::DeadLettered => "dead-lettered",
            Self::Dropped => "dropped",
            Self::Replaced => "replaced",
            Self::Done => "done",
            Self::Started => "started",
            Self::Gap => "gap",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code && !kind.is_of_a_shard())
    }

    /// About a shard, not about a message: such a step has no queue and no number.
    pub fn is_of_a_shard(self) -> bool {
        matches!(self, Self::Started | Self::Gap)
    }
}

/// Steps of one turn, or a part of them, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What [`steps`] reads.
    pub bytes: Vec<u8>,
    /// How many steps are in it.
    pub steps: u64,
    /// When the first of them happened.
    pub time: Timestamp,
}

const VERSION: u8 = 1;
const HISTORY: &str = "block of history";
/// A block that has grown beyond this is closed, in octets.
const BLOCK_BYTES: usize = 256 * 1024;
/// Message numbers are reserved in stretches of so many, so that reserving costs nothing.
const NUMBERS_RESERVED: u64 = 1 << 32;

const TIME: u8 = 0x01;
const QUEUE: u8 = 0x02;
const CLIENT: u8 = 0x03;
const STARTED: u8 = 0x04;
const GAP: u8 = 0x05;
const STEP: u8 = 0x20;

const FINAL: u8 = 1;
const PRODUCER: u8 = 1 << 1;
const CONSUMER: u8 = 1 << 2;
const REASON: u8 = 1 << 3;
const TARGET: u8 = 1 << 4;
const ID: u8 = 1 << 5;
const CONTENT: u8 = 1 << 6;
/// With `CONTENT`: the body was left out.
const NO_BODY: u8 = 1 << 7;

// ---- Writing ---------------------------------------------------------------------------------------------

impl Block {
    /// The block that stands for steps that could not be written down.
    pub fn gap(now: Timestamp, steps: u64) -> Self {
        let mut bytes = vec![VERSION];
        push(&mut bytes, now.0);
        bytes.push(GAP);
        push(&mut bytes, steps);
        Self { bytes, steps: 1, time: now }
    }
}

/// What happened to a message, beside what its queue knows of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LifecycleEvent<'a> {
    Produced,
    Arrived,
    Restored,
    Saved,
    Delivered(&'a Client),
    Acked(&'a Client),
    Nacked(&'a Client, &'a str),
    TimedOut(&'a Client),
    ConsumerLost(&'a Client),
    Expired,
    Requeued(PutBack),
    DeadLettered(DropReason, &'a Arc<QueueAddress>),
    Dropped(DropReason),
    /// A consumer that did not keep up went without it.
    Missed(&'a Client),
    Replaced,
}

/// The history of a shard, as it is being written.
#[derive(Debug)]
pub(crate) struct HistoryLog {
    options: HistoryOptions,
    next: MessageNumber,
    /// Numbers below this are known to the journal as used.
    reserved: u64,
    bytes: Vec<u8>,
    steps: u64,
    begun: Timestamp,
    now: Timestamp,
    /// The number of the last step, and where its flags are.
    last: (MessageNumber, usize),
    /// Held, so that no other queue gets the address in memory of one that this block names.
    queues: Vec<Arc<QueueAddress>>,
    queue_numbers: HashMap<usize, u64>,
    clients: HashMap<ConnectionId, u64>,
    /// The queue and the clients used last, as most steps are about the same ones.
    last_queue: (usize, u64),
    last_producer: (ConnectionId, u64),
    last_consumer: (ConnectionId, u64),
    full: Vec<Block>,
    /// Octets of the last block: the next one is as large as a rule, and then needs not grow step by step.
    expected_bytes: usize,
}

/// Where no queue's address can be in memory.
const NOWHERE: usize = 0;
const NOBODY: ConnectionId = ConnectionId(u64::MAX);

impl HistoryLog {
    pub(crate) fn new(options: HistoryOptions) -> Self {
        Self {
            options,
            next: MessageNumber(1),
            reserved: 0,
            bytes: Vec::new(),
            steps: 0,
            begun: Timestamp(0),
            now: Timestamp(0),
            last: (MessageNumber(0), 0),
            queues: Vec::new(),
            queue_numbers: HashMap::new(),
            clients: HashMap::new(),
            last_queue: (NOWHERE, 0),
            last_producer: (NOBODY, 0),
            last_consumer: (NOBODY, 0),
            full: Vec::new(),
            expected_bytes: 0,
        }
    }

    /// A number that no other message of this shard has had.
    pub(crate) fn number(&mut self) -> MessageNumber {
        let number = self.next;
        self.next.0 += 1;
        number
    }

    /// Numbers below this one are used.
    pub(crate) fn skip(&mut self, to: MessageNumber) {
        self.next = self.next.max(to);
    }

    /// Numbers up to this one have to be reserved now, if any.
    pub(crate) fn reserve(&mut self) -> Option<MessageNumber> {
        if self.next.0.saturating_add(NUMBERS_RESERVED / 2) < self.reserved {
            return None;
        }
        self.reserved = self.next.0.saturating_add(NUMBERS_RESERVED);
        Some(MessageNumber(self.reserved))
    }

    /// What is reserved, to be said again.
    pub(crate) fn reserved(&self) -> MessageNumber {
        MessageNumber(self.reserved)
    }

    /// The shard has started.
    pub(crate) fn started(&mut self, now: Timestamp) {
        self.at(now);
        self.bytes.push(STARTED);
        self.steps += 1;
    }

    /// Takes what was written since the last time.
    pub(crate) fn take(&mut self, into: &mut Vec<Block>) {
        self.close();
        into.append(&mut self.full);
    }

    /// A message left for good: the step before says so, if it was about the same message.
    pub(crate) fn end(&mut self, now: Timestamp, queue: &Arc<QueueAddress>, entry: &Entry) {
        let (number, flags) = self.last;
        if number == entry.number && !self.bytes.is_empty() {
            self.bytes[flags] |= FINAL;
        } else {
            self.step(now, queue, entry, LifecycleKind::Done, Details { flags: FINAL, ..Details::default() });
        }
    }

    pub(crate) fn write(
        &mut self,
        now: Timestamp,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
    ) {
        let by = |consumer| Details { consumer: Some(consumer), ..Details::default() };
        let content = Details { flags: ID | CONTENT, ..Details::default() };
        let (kind, details) = match what {
            LifecycleEvent::Produced => (LifecycleKind::Produced, content),
            LifecycleEvent::Arrived => (LifecycleKind::Arrived, content),
            LifecycleEvent::Restored => {
                (LifecycleKind::Restored, Details { flags: ID, ..Details::default() })
            }
            LifecycleEvent::Saved => (LifecycleKind::Saved, Details::default()),
            LifecycleEvent::Delivered(consumer) => (LifecycleKind::Delivered, by(consumer)),
            LifecycleEvent::Acked(consumer) => (LifecycleKind::Acked, by(consumer)),
            LifecycleEvent::Nacked(consumer, reason) => {
                (LifecycleKind::Nacked, Details { reason, flags: ID, ..by(consumer) })
            }
            LifecycleEvent::TimedOut(consumer) => {
                (LifecycleKind::TimedOut, Details { flags: ID, ..by(consumer) })
            }
            LifecycleEvent::ConsumerLost(consumer) => {
                (LifecycleKind::ConsumerLost, Details { flags: ID, ..by(consumer) })
            }
            LifecycleEvent::Expired => (LifecycleKind::Expired, Details { flags: ID, ..Details::default() }),
            LifecycleEvent::Requeued(position) => {
                let reason = if position == PutBack::Start { "start" } else { "end" };
                (LifecycleKind::Requeued, Details { reason, ..Details::default() })
            }
            LifecycleEvent::DeadLettered(reason, target) => (
                LifecycleKind::DeadLettered,
                Details { reason: reason.as_str(), target: Some(target), flags: ID, ..Details::default() },
            ),
            LifecycleEvent::Dropped(reason) => {
                (LifecycleKind::Dropped, Details { reason: reason.as_str(), flags: ID, ..Details::default() })
            }
            LifecycleEvent::Missed(consumer) => (
                LifecycleKind::Dropped,
                Details { reason: DropReason::Slow.as_str(), flags: ID, ..by(consumer) },
            ),
            LifecycleEvent::Replaced => (LifecycleKind::Replaced, Details::default()),
        };
        self.step(now, queue, entry, kind, details);
    }

    fn step(
        &mut self,
        now: Timestamp,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        kind: LifecycleKind,
        details: Details<'_>,
    ) {
        self.at(now);
        let message = &entry.message;
        let queue = self.queue(queue);
        let producer = message.producer().map(|producer| self.producer(producer));
        let consumer = details.consumer.map(|consumer| self.consumer(consumer));
        let target = details.target.map(|target| self.queue(target));
        let left_out = details.flags & CONTENT != 0 && !self.options.bodies;
        let mut flags = details.flags;
        for (flag, on) in [
            (PRODUCER, producer.is_some()),
            (CONSUMER, consumer.is_some()),
            (REASON, !details.reason.is_empty()),
            (TARGET, target.is_some()),
            (NO_BODY, left_out),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let bytes = &mut self.bytes;
        bytes.push(STEP + kind as u8);
        let flags_at = bytes.len();
        bytes.push(flags);
        push(bytes, queue);
        push(bytes, zigzag(entry.number.0.wrapping_sub(self.last.0.0)));
        push(bytes, u64::from(entry.attempts));
        push(bytes, message.headers().len() as u64);
        push(bytes, message.body().len() as u64);
        for reference in [producer, consumer].into_iter().flatten() {
            push(bytes, reference);
        }
        if flags & REASON != 0 {
            push_text(bytes, details.reason.as_bytes());
        }
        if let Some(target) = target {
            push(bytes, target);
        }
        if flags & ID != 0 {
            push_text(bytes, message.id());
        }
        if flags & CONTENT != 0 {
            push_content(bytes, message, left_out);
        }
        self.last = (entry.number, flags_at);
        self.steps += 1;
    }

    /// Begins a block if none is begun, closes one that is full, and sets its time.
    fn at(&mut self, now: Timestamp) {
        if self.bytes.len() >= BLOCK_BYTES {
            self.close();
        }
        if self.bytes.is_empty() {
            self.bytes.reserve(self.expected_bytes);
            self.bytes.push(VERSION);
            push(&mut self.bytes, now.0);
            (self.begun, self.now) = (now, now);
        } else if now != self.now {
            self.bytes.push(TIME);
            push(&mut self.bytes, now.0.saturating_sub(self.now.0));
            self.now = self.now.max(now);
        }
    }

    fn close(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        // A single large body says nothing of the next block.
        self.expected_bytes = bytes.len().min(BLOCK_BYTES);
        self.full.push(Block { bytes, steps: std::mem::take(&mut self.steps), time: self.begun });
        self.last = (MessageNumber(0), 0);
        self.queues.clear();
        self.queue_numbers.clear();
        self.clients.clear();
        self.last_queue = (NOWHERE, 0);
        (self.last_producer, self.last_consumer) = ((NOBODY, 0), (NOBODY, 0));
    }

    fn queue(&mut self, queue: &Arc<QueueAddress>) -> u64 {
        let pointer = Arc::as_ptr(queue).addr();
        if self.last_queue.0 == pointer {
            return self.last_queue.1;
        }
        let number = self.queue_numbers.get(&pointer).copied().unwrap_or_else(|| {
            let number = self.queues.len() as u64;
            self.queues.push(Arc::clone(queue));
            self.queue_numbers.insert(pointer, number);
            self.bytes.push(QUEUE);
            push_text(&mut self.bytes, queue.to_string().as_bytes());
            number
        });
        self.last_queue = (pointer, number);
        number
    }

    fn producer(&mut self, client: &Client) -> u64 {
        if self.last_producer.0 != client.connection {
            self.last_producer = (client.connection, self.client(client));
        }
        self.last_producer.1
    }

    fn consumer(&mut self, client: &Client) -> u64 {
        if self.last_consumer.0 != client.connection {
            self.last_consumer = (client.connection, self.client(client));
        }
        self.last_consumer.1
    }

    fn client(&mut self, client: &Client) -> u64 {
        if let Some(number) = self.clients.get(&client.connection) {
            return *number;
        }
        let number = self.clients.len() as u64;
        self.clients.insert(client.connection, number);
        self.bytes.push(CLIENT);
        let (name, kind) = (client.name.as_deref(), client.kind.as_deref());
        for text in [&*client.id, name.unwrap_or_default(), kind.unwrap_or_default(), client.protocol] {
            push_text(&mut self.bytes, text.as_bytes());
        }
        number
    }
}

/// What a step says beside what all say.
#[derive(Debug, Clone, Copy, Default)]
struct Details<'a> {
    flags: u8,
    consumer: Option<&'a Client>,
    reason: &'a str,
    target: Option<&'a Arc<QueueAddress>>,
}

fn push_content(bytes: &mut Vec<u8>, message: &Message, left_out: bool) {
    let properties = message.properties();
    bytes.push(u8::from(properties.high_priority));
    bytes.extend_from_slice(&properties.content_type.to_le_bytes());
    bytes.extend_from_slice(message.headers());
    if !left_out {
        bytes.extend_from_slice(message.body());
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
    push(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// Seven bits an octet, the lowest first; the highest bit says that more follow.
pub(crate) fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Small differences in either direction become small numbers.
fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    ((signed << 1) ^ (signed >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

// ---- Reading ---------------------------------------------------------------------------------------------

/// One step, read back. Borrows from its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleStep<'a> {
    /// What happened.
    pub kind: LifecycleKind,
    /// When, Unix milliseconds.
    pub time: Timestamp,
    /// Where, `channel/id`; empty for a step of the shard.
    pub queue: &'a str,
    /// To which message; unique within the shard, 0 for a step of the shard.
    pub number: MessageNumber,
    /// How often the message had been handed out, this time included.
    pub attempt: u16,
    /// Whether the message left its queue with this step.
    pub last: bool,
    /// Octets of the message's headers.
    pub header_bytes: u64,
    /// Octets of its body.
    pub body_bytes: u64,
    /// Who published it, if that client is known in this run of the broker.
    pub producer: Option<ClientView<'a>>,
    /// Which consumer it is about.
    pub consumer: Option<ClientView<'a>>,
    /// Why, in the words of [`LifecycleKind`].
    pub reason: Option<&'a str>,
    /// To which queue it went.
    pub target: Option<&'a str>,
    /// The message's id. Not told by the frequent steps: saved, delivered, acknowledged, put back, done.
    pub id: Option<&'a [u8]>,
    /// What was published.
    pub content: Option<ContentView<'a>>,
    /// For a gap: how many steps are missing.
    pub missing: u64,
}

/// A client as a block names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientView<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its name; empty if it has none.
    pub name: &'a str,
    /// Its type; empty if it has none.
    pub kind: &'a str,
    /// What it speaks.
    pub protocol: &'a str,
}

/// What was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentView<'a> {
    /// Before all that are not.
    pub high_priority: bool,
    /// As sender and receiver agreed.
    pub content_type: u16,
    /// Header text, `key:value` lines ended by CR LF.
    pub headers: &'a [u8],
    /// `None`: it was left out, as the options say.
    pub body: Option<&'a [u8]>,
}

/// Shows every step of a block in its order. What was shown before an error is sound. A block that comes from a disk may
/// be packed: [`unpack`](crate::history::packing::unpack) it first.
///
/// # Errors
/// [`RecordError`] for a later version's block, and for what is none.
pub fn each_step<'a>(block: &'a [u8], show: &mut dyn FnMut(LifecycleStep<'a>)) -> Result<(), RecordError> {
    let mut reader = Reader { rest: block };
    match reader.octet()? {
        VERSION => {}
        version => return Err(RecordError::Version { what: HISTORY, version }),
    }
    let mut now = Timestamp(reader.varint()?);
    let mut number = MessageNumber(0);
    let (mut queues, mut clients) = (Vec::new(), Vec::new());
    while !reader.rest.is_empty() {
        let of_shard = |kind, missing| LifecycleStep { missing, ..LifecycleStep::of(kind, now) };
        match reader.octet()? {
            TIME => now = Timestamp(now.0.saturating_add(reader.varint()?)),
            QUEUE => queues.push(reader.text()?),
            CLIENT => {
                let (id, name) = (reader.text()?, reader.text()?);
                clients.push(ClientView { id, name, kind: reader.text()?, protocol: reader.text()? });
            }
            STARTED => show(of_shard(LifecycleKind::Started, 0)),
            GAP => show(of_shard(LifecycleKind::Gap, reader.varint()?)),
            code => {
                let kind = code.checked_sub(STEP).and_then(LifecycleKind::from_code);
                let kind = kind.ok_or(malformed("a step of no known kind"))?;
                let step = reader.step(
                    LifecycleStep { number, ..LifecycleStep::of(kind, now) },
                    &queues,
                    &clients,
                )?;
                number = step.number;
                show(step);
            }
        }
    }
    Ok(())
}

impl LifecycleStep<'_> {
    fn of(kind: LifecycleKind, time: Timestamp) -> Self {
        Self {
            kind,
            time,
            queue: "",
            number: MessageNumber(0),
            attempt: 0,
            last: false,
            header_bytes: 0,
            body_bytes: 0,
            producer: None,
            consumer: None,
            reason: None,
            target: None,
            id: None,
            content: None,
            missing: 0,
        }
    }
}

pub(crate) fn malformed(why: &'static str) -> RecordError {
    RecordError::Malformed { what: HISTORY, why }
}

/// A number as [`push`] writes it, and what stands behind it.
pub(crate) fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), RecordError> {
    let mut reader = Reader { rest: bytes };
    Ok((reader.varint()?, reader.rest))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The rest of a step; `before` has the kind, the time, and the number of the step before.
    fn step(
        &mut self,
        before: LifecycleStep<'a>,
        queues: &[&'a str],
        clients: &[ClientView<'a>],
    ) -> Result<LifecycleStep<'a>, RecordError> {
        let flags = self.octet()?;
        let queue = look_up(queues, self.varint()?)?;
        let number = MessageNumber(before.number.0.wrapping_add(unzigzag(self.varint()?)));
        let attempt = u16::try_from(self.varint()?).map_err(|_| malformed("an attempt beyond 65535"))?;
        let (header_bytes, body_bytes) = (self.varint()?, self.varint()?);
        let mut client = |flag| -> Result<Option<ClientView<'a>>, RecordError> {
            (flags & flag != 0).then(|| look_up(clients, self.varint()?)).transpose()
        };
        let (producer, consumer) = (client(PRODUCER)?, client(CONSUMER)?);
        let reason = (flags & REASON != 0).then(|| self.text()).transpose()?;
        let target = (flags & TARGET != 0).then(|| look_up(queues, self.varint()?)).transpose()?;
        let id = (flags & ID != 0).then(|| self.bytes()).transpose()?;
        let content =
            (flags & CONTENT != 0).then(|| self.content(flags, header_bytes, body_bytes)).transpose()?;
        Ok(LifecycleStep {
            queue,
            number,
            attempt,
            last: flags & FINAL != 0,
            header_bytes,
            body_bytes,
            producer,
            consumer,
            reason,
            target,
            id,
            content,
            ..before
        })
    }

    fn content(
        &mut self,
        flags: u8,
        header_bytes: u64,
        body_bytes: u64,
    ) -> Result<ContentView<'a>, RecordError> {
        let properties = self.octet()?;
        let content_type = u16::from_le_bytes([self.octet()?, self.octet()?]);
        let headers = self.take(header_bytes)?;
        let body = (flags & NO_BODY == 0).then(|| self.take(body_bytes)).transpose()?;
        Ok(ContentView { high_priority: properties & 1 != 0, content_type, headers, body })
    }

    fn octet(&mut self) -> Result<u8, RecordError> {
        let (octet, rest) = self.rest.split_first().ok_or(malformed("it ends too early"))?;
        self.rest = rest;
        Ok(*octet)
    }

    fn varint(&mut self) -> Result<u64, RecordError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let octet = self.octet()?;
            let bits = u64::from(octet & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if octet & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number of more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], RecordError> {
        let length = usize::try_from(length).map_err(|_| malformed("it ends too early"))?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = self.varint()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a name is not UTF-8"))
    }
}

fn look_up<T: Copy>(names: &[T], number: u64) -> Result<T, RecordError> {
    let index = usize::try_from(number).ok();
    index.and_then(|index| names.get(index)).copied().ok_or(malformed("it names what it did not define"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::message::Properties;

    fn client(number: u64) -> Arc<Client> {
        Arc::new(Client {
            connection: ConnectionId(number),
            id: format!("client-{number}").into(),
            name: Some("shop".into()),
            kind: None,
            protocol: "tmqp",
            admin: false,
            connected_at: Timestamp(0),
        })
    }

    fn entry(number: u64, producer: &Arc<Client>, body: &[u8]) -> Entry {
        let properties = Properties { high_priority: true, content_type: 7, ..Properties::default() };
        let message = Message::from_parts(b"id", b"A:1\r\n", body, properties, Some(producer.clone()));
        Entry { number: MessageNumber(number), ..Entry::new(message, Timestamp::NEVER) }
    }

    fn blocks(log: &mut HistoryLog) -> Vec<Block> {
        let mut blocks = Vec::new();
        log.take(&mut blocks);
        blocks
    }

    fn address(text: &str) -> Arc<QueueAddress> {
        Arc::new(QueueAddress::parse(text).expect("a good name"))
    }

    #[test]
    fn a_block_gives_back_every_step_as_it_happened() {
        let (producer, consumer) = (client(1), client(2));
        let (queue, dead) = (address("orders/7"), address("dead/0"));
        let mut log = HistoryLog::new(HistoryOptions::default());
        log.started(Timestamp(1000));
        let mut first = entry(5, &producer, b"body");
        log.write(Timestamp(1000), &queue, &first, LifecycleEvent::Produced);
        first.attempts = 1;
        log.write(Timestamp(1003), &queue, &first, LifecycleEvent::Delivered(&consumer));
        log.write(Timestamp(1003), &queue, &first, LifecycleEvent::Nacked(&consumer, "no"));
        log.write(Timestamp(1004), &queue, &first, LifecycleEvent::DeadLettered(DropReason::Limit, &dead));
        log.end(Timestamp(1004), &queue, &first);
        log.end(Timestamp(1004), &queue, &entry(4, &producer, b""));
        let mut blocks = blocks(&mut log);
        assert_eq!((blocks.len(), blocks[0].steps, blocks[0].time), (1, 6, Timestamp(1000)));
        blocks.push(Block::gap(Timestamp(1009), 3));
        let mut steps = Vec::new();
        for block in &blocks {
            each_step(&block.bytes, &mut |step| steps.push(step)).expect("just written");
        }
        let recorded: Vec<_> =
            steps.iter().map(|s| (s.kind, s.time.0, s.queue, s.number.0, s.last)).collect();
        assert_eq!(
            recorded,
            [
                (LifecycleKind::Started, 1000, "", 0, false),
                (LifecycleKind::Produced, 1000, "orders/7", 5, false),
                (LifecycleKind::Delivered, 1003, "orders/7", 5, false),
                (LifecycleKind::Nacked, 1003, "orders/7", 5, false),
                (LifecycleKind::DeadLettered, 1004, "orders/7", 5, true),
                (LifecycleKind::Done, 1004, "orders/7", 4, true),
                (LifecycleKind::Gap, 1009, "", 0, false),
            ]
        );
        let content =
            ContentView { high_priority: true, content_type: 7, headers: b"A:1\r\n", body: Some(b"body") };
        assert_eq!((steps[1].content, steps[1].id), (Some(content), Some(&b"id"[..])));
        let who = ClientView { id: "client-2", name: "shop", kind: "", protocol: "tmqp" };
        assert_eq!((steps[2].consumer, steps[2].attempt, steps[2].body_bytes), (Some(who), 1, 4));
        assert_eq!((steps[3].reason, steps[4].target), (Some("no"), Some("dead/0")));
        assert_eq!(steps[6].missing, 3);
    }

    #[test]
    fn bodies_are_left_out_where_that_is_asked_for_and_their_size_is_told() {
        let mut log = HistoryLog::new(HistoryOptions { bodies: false });
        log.write(Timestamp(1), &address("a/0"), &entry(1, &client(1), b"secret"), LifecycleEvent::Produced);
        let block = blocks(&mut log).remove(0);
        assert!(!block.bytes.windows(6).any(|bytes| bytes == b"secret"));
        let mut seen = Vec::new();
        each_step(&block.bytes, &mut |step| seen.push((step.body_bytes, step.content.map(|c| c.body))))
            .expect("just written");
        assert_eq!(seen, [(6, Some(None))]);
    }

    #[test]
    fn a_full_block_is_followed_by_one_that_can_be_read_alone() {
        let (producer, queue) = (client(1), address("a/0"));
        let mut log = HistoryLog::new(HistoryOptions::default());
        let body = vec![b'x'; 100_000];
        for number in 1..=7 {
            log.write(Timestamp(number), &queue, &entry(number, &producer, &body), LifecycleEvent::Produced);
        }
        let blocks = blocks(&mut log);
        assert_eq!(blocks.iter().map(|block| block.steps).collect::<Vec<_>>(), [3, 3, 1]);
        let mut numbers = Vec::new();
        for block in blocks.iter().rev() {
            each_step(&block.bytes, &mut |step| {
                assert_eq!((step.queue, step.producer.map(|who| who.id)), ("a/0", Some("client-1")));
                numbers.push((step.number.0, step.time.0));
            })
            .expect("just written");
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=7).map(|number| (number, number)).collect::<Vec<_>>());
    }

    #[test]
    fn a_cut_or_changed_block_is_an_error_or_something_else_but_never_a_panic() {
        let (producer, queue) = (client(1), address("a/0"));
        let mut log = HistoryLog::new(HistoryOptions::default());
        let sample = entry(9, &producer, b"body");
        log.write(Timestamp(1), &queue, &sample, LifecycleEvent::Produced);
        log.write(Timestamp(2), &queue, &sample, LifecycleEvent::Acked(&producer));
        let bytes = blocks(&mut log).remove(0).bytes;
        for cut in 0..bytes.len() {
            let _ = each_step(&bytes[..cut], &mut |_| {});
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[cut] ^= change;
                let _ = each_step(&changed, &mut |_| {});
            }
        }
        assert_eq!(each_step(&[2, 0], &mut |_| {}), Err(RecordError::Version { what: HISTORY, version: 2 }));
        assert!(each_step(&[], &mut |_| {}).is_err());
    }

    #[test]
    fn numbers_are_reserved_long_before_they_are_used() {
        let mut log = HistoryLog::new(HistoryOptions::default());
        let first = log.reserve().expect("nothing is reserved yet");
        assert!(first.0 > NUMBERS_RESERVED / 2);
        assert_eq!(log.reserve(), None);
        log.skip(MessageNumber(first.0 - 10));
        assert!(log.reserve().expect("they run out") > first);
        assert_eq!(log.number(), MessageNumber(first.0 - 10));
    }
}
