//! Recording lifecycle events: one block for all events of a call.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use crate::history::format::*;
use crate::history::ranges::{NumberRange, push_ranges};
use crate::history::{Block, LifecycleEvent, LifecycleKind};
use crate::model::client::Client;
use crate::model::config::HistoryOptions;
use crate::model::decision::PutBack;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, MessageNumber, QueueAddress};
use crate::model::message::Message;
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;

/// A block is closed when it exceeds this size in bytes.
const BLOCK_BYTES: usize = 256 * 1024;

/// Message numbers are reserved in ranges of this size, so that a reservation costs next to nothing.
pub(super) const NUMBERS_RESERVED: u64 = 1 << 32;

/// Maximum number of ranges in one step, so that no step becomes much larger than a block.
const RANGES_MAX: usize = 64 * 1024;

impl Block {
    /// A block for steps that could not be recorded.
    pub fn gap(now: Timestamp, steps: u64) -> Self {
        let mut bytes = vec![VERSION];
        push(&mut bytes, now.0);
        bytes.push(GAP);
        push(&mut bytes, steps);
        Self { bytes, steps: 1, time: now }
    }
}

/// The history of a shard, encoded into blocks.
#[derive(Debug)]
pub(crate) struct HistoryLog {
    options: HistoryOptions,
    next: MessageNumber,
    /// The journal knows that numbers below this one are used.
    reserved: u64,
    bytes: Vec<u8>,
    steps: u64,
    begun: Timestamp,
    now: Timestamp,
    /// The number of the message of the last step, and the position of that step's flags.
    last: (MessageNumber, usize),
    /// Kept alive so that no other queue gets the memory address of a queue that this block names.
    queues: Vec<Arc<QueueAddress>>,
    queue_numbers: HashMap<usize, u64>,
    clients: HashMap<ConnectionId, u64>,
    /// The queue and the clients used last: most steps are about the same ones.
    last_queue: (usize, u64),
    last_producer: (ConnectionId, u64),
    last_consumer: (ConnectionId, u64),
    full: Vec<Block>,
    /// Size of the last block in bytes. The next one is usually as large, so reserving this much avoids
    /// growing step by step.
    expected_bytes: usize,
}

/// An address at which no queue can be.
const NO_ADDRESS: usize = 0;

const NO_CLIENT: ConnectionId = ConnectionId(u64::MAX);

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
            last_queue: (NO_ADDRESS, 0),
            last_producer: (NO_CLIENT, 0),
            last_consumer: (NO_CLIENT, 0),
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

    /// Marks numbers below this one as used.
    pub(crate) fn skip(&mut self, to: MessageNumber) {
        self.next = self.next.max(to);
    }

    /// The number up to which the journal must reserve now, if it must.
    pub(crate) fn reserve(&mut self) -> Option<MessageNumber> {
        if self.next.0.saturating_add(NUMBERS_RESERVED / 2) < self.reserved {
            return None;
        }
        self.reserved = self.next.0.saturating_add(NUMBERS_RESERVED);
        Some(MessageNumber(self.reserved))
    }

    /// The number up to which the journal has reserved.
    pub(crate) fn reserved(&self) -> MessageNumber {
        MessageNumber(self.reserved)
    }

    /// Records that the shard has started.
    pub(crate) fn started(&mut self, now: Timestamp) {
        self.at(now);
        self.bytes.push(STARTED);
        self.steps += 1;
    }

    /// Records that the shard restored the messages of a queue with these numbers, which are in ascending order.
    pub(crate) fn restored(&mut self, now: Timestamp, queue: &Arc<QueueAddress>, numbers: &[NumberRange]) {
        for ranges in numbers.chunks(RANGES_MAX) {
            self.at(now);
            let queue = self.queue(queue);
            self.bytes[0] = VERSION_RESTORED;
            self.bytes.push(RESTORED);
            push(&mut self.bytes, queue);
            push_ranges(&mut self.bytes, ranges);
            self.last = (MessageNumber(0), 0);
            self.steps += 1;
        }
    }

    /// Moves the closed blocks and the current block to `into`.
    pub(crate) fn take(&mut self, into: &mut Vec<Block>) {
        self.close();
        into.append(&mut self.full);
    }

    /// Records that a message left its queue for good: as a flag of the last step if that was about the
    /// same message.
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
            LifecycleEvent::Moved(target) => {
                (LifecycleKind::Moved, Details { target: Some(target), flags: ID, ..Details::default() })
            }
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

    /// Begins a block if there is none, closes a full one, and sets the time.
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
        // A single large body says nothing about the next block.
        self.expected_bytes = bytes.len().min(BLOCK_BYTES);
        self.full.push(Block { bytes, steps: std::mem::take(&mut self.steps), time: self.begun });
        self.last = (MessageNumber(0), 0);
        self.queues.clear();
        self.queue_numbers.clear();
        self.clients.clear();
        self.last_queue = (NO_ADDRESS, 0);
        (self.last_producer, self.last_consumer) = ((NO_CLIENT, 0), (NO_CLIENT, 0));
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

/// The optional parts of a step.
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
