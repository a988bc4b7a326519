//! The lifecycle of every message, recorded event by event.
//!
//! Events are encoded where they happen, into one block for all events of a call: no event costs an
//! allocation, a lock or a message to another task. A block names a queue or a client once and refers
//! to it by number from then on. Every block can be read on its own.
//!
//! ```text
//! block:  version u8 (3 with restored, else 1), milliseconds since 1970 varint, operations
//! time    0x01  milliseconds since the last time varint
//! queue   0x02  length varint, "channel/id"                          gets the next queue number, from 0
//! client  0x03  id, name, type, protocol: each length varint, text   gets the next client number, from 0
//! started 0x04                                                       the shard has just started
//! gap     0x05  steps varint                                         this many steps were not recorded
//! restored 0x06  queue varint, ranges                                the shard restored these messages of a queue at start
//! step    0x20 + kind, flags u8, queue varint, number (difference, zigzag) varint, attempt varint,
//!         header bytes varint, body bytes varint,
//!         [producer varint] [consumer varint] [reason: length varint, text] [target queue varint]
//!         [id: length varint, bytes] [properties u8, content type u16, headers, body]
//! ```
//!
//! A missing name has length 0. A flag tells whether a part in brackets is present. For `ranges`, see [`ranges`]. Versions
//! before the operation `restored` wrote a step of that kind for each message.

mod format;
pub(crate) mod log;
pub mod packing;
pub mod ranges;
pub mod reader;

use std::sync::Arc;

use crate::history::ranges::NumberRanges;
use crate::model::client::Client;
use crate::model::decision::PutBack;
use crate::model::id::{MessageNumber, QueueAddress};
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;

/// The kind of a lifecycle step. The numbers are stored on disk: never change or reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LifecycleKind {
    /// A producer published the message and it passed the limits. This step carries the content.
    Produced = 0,
    /// The message arrived from another queue. This step carries the content.
    Arrived = 1,
    /// The shard restored messages of the queue from its journal at start. One step stands for all of them; in a history
    /// of an earlier version, for one message.
    Restored = 2,
    /// The message is durable at its queue's level, or its handler saved it.
    Saved = 3,
    /// The message was delivered to one consumer.
    Delivered = 4,
    /// A consumer acknowledged the message.
    Acked = 5,
    /// A consumer negatively acknowledged the message and gave the reason.
    Nacked = 6,
    /// A consumer did not acknowledge the message in time.
    TimedOut = 7,
    /// A consumer's connection ended while the message was in flight.
    ConsumerLost = 8,
    /// The message waited in its queue for longer than its timeout.
    Expired = 9,
    /// The message was requeued; the reason is the position: `start` or `end`.
    Requeued = 10,
    /// The message moved to the dead-letter queue, which is the target; the reason is that of a drop.
    DeadLettered = 11,
    /// The message was dropped; the reason is a [`DropReason`]. If the step is not final, only one
    /// consumer missed the message.
    Dropped = 12,
    /// A newer message replaced this one in a cache queue.
    Replaced = 13,
    /// The message left its queue normally. Recorded as a step of its own only if no other step was
    /// final.
    Done = 14,
    /// An operator moved the message to another queue, which is the target.
    Moved = 15,
    /// The shard started. Messages that were not restored after this step and had not left their queues
    /// were in memory only.
    Started = 30,
    /// Some steps could not be recorded here; `missing` counts them.
    Gap = 31,
}

impl LifecycleKind {
    /// All variants.
    pub const ALL: [Self; 18] = [
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
        Self::Moved,
        Self::Started,
        Self::Gap,
    ];

    /// The name used in tables and on the wire.
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
            Self::Moved => "moved",
            Self::Started => "started",
            Self::Gap => "gap",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code && !kind.is_of_a_shard())
    }

    /// Whether the step is about a shard, not about a message. Such a step has no queue and no number.
    pub fn is_of_a_shard(self) -> bool {
        matches!(self, Self::Started | Self::Gap)
    }
}

/// Encoded steps of one call, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The encoded steps; [`each_step`](crate::history::reader::each_step) reads them.
    pub bytes: Vec<u8>,
    /// Number of steps in the block.
    pub steps: u64,
    /// Time of the first step.
    pub time: Timestamp,
}

/// The event of a message, apart from what its queue knows about it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LifecycleEvent<'a> {
    Produced,
    Arrived,
    Saved,
    Delivered(&'a Client),
    Acked(&'a Client),
    Nacked(&'a Client, &'a str),
    TimedOut(&'a Client),
    ConsumerLost(&'a Client),
    Expired,
    Requeued(PutBack),
    DeadLettered(DropReason, &'a Arc<QueueAddress>),
    Moved(&'a Arc<QueueAddress>),
    Dropped(DropReason),
    /// One consumer was too slow and missed the message.
    Missed(&'a Client),
    Replaced,
}

/// One step, read from a block and borrowing from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleStep<'a> {
    /// The kind of event.
    pub kind: LifecycleKind,
    /// When it happened, in Unix milliseconds.
    pub time: Timestamp,
    /// The queue, `channel/id`; empty for a step of the shard.
    pub queue: &'a str,
    /// The message; unique within the shard, 0 for a step of the shard. If the step stands for several messages, the first.
    pub number: MessageNumber,
    /// Deliveries of the message so far, this one included.
    pub attempt: u16,
    /// Whether the message left its queue for good with this step.
    pub last: bool,
    /// Size of the headers in bytes.
    pub header_bytes: u64,
    /// Size of the body in bytes.
    pub body_bytes: u64,
    /// The producer, if that client is known in this run of the broker.
    pub producer: Option<ClientView<'a>>,
    /// The consumer that the step concerns.
    pub consumer: Option<ClientView<'a>>,
    /// The reason, as described at [`LifecycleKind`].
    pub reason: Option<&'a str>,
    /// The queue that the message moved to.
    pub target: Option<&'a str>,
    /// The message id. Frequent steps leave it out: saved, delivered, acknowledged, requeued, done.
    pub id: Option<&'a [u8]>,
    /// The published content.
    pub content: Option<ContentView<'a>>,
    /// For a gap: the number of missing steps.
    pub missing: u64,
    /// For a restart: the numbers of all messages that the step stands for. `None` in steps of one message.
    pub numbers: Option<NumberRanges<'a>>,
}

/// A client as a block describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientView<'a> {
    /// Client id.
    pub id: &'a str,
    /// Client name; empty if the client has none.
    pub name: &'a str,
    /// Client type; empty if the client has none.
    pub kind: &'a str,
    /// Protocol name.
    pub protocol: &'a str,
}

/// The published content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentView<'a> {
    /// Whether the message goes ahead of messages of normal priority.
    pub high_priority: bool,
    /// Content type, agreed on by sender and receiver.
    pub content_type: u16,
    /// Header text: `key:value` lines, each ended by CR LF.
    pub headers: &'a [u8],
    /// The body; `None` if the history options leave bodies out.
    pub body: Option<&'a [u8]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::format::HISTORY;
    use crate::history::log::*;
    use crate::history::reader::*;
    use crate::model::config::HistoryOptions;
    use crate::model::entry::Entry;
    use crate::model::id::ConnectionId;
    use crate::model::message::Message;
    use crate::model::message::Properties;
    use crate::model::record::RecordError;

    fn client(number: u64) -> Arc<Client> {
        Arc::new(Client {
            connection: ConnectionId(number),
            id: format!("client-{number}").into(),
            authenticated: false,
            name: Some("shop".into()),
            kind: None,
            protocol: "tmqp",
            admin: false,
            user: None,
            connected_at: Timestamp(0),
            data: None,
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
    fn one_step_names_all_messages_that_a_queue_restored() {
        let (producer, queue, other) = (client(1), address("a/0"), address("b/0"));
        let mut log = HistoryLog::new(HistoryOptions::default());
        log.started(Timestamp(5));
        log.restored(Timestamp(5), &queue, &[(3, 10_002), (20_000, 20_000)]);
        log.restored(Timestamp(5), &other, &[(1, 2)]);
        // The end of a message is never a flag of such a step.
        log.end(Timestamp(5), &queue, &entry(3, &producer, b""));
        let block = blocks(&mut log).remove(0);
        assert_eq!((block.steps, block.bytes[0]), (4, 3));
        let mut steps = Vec::new();
        each_step(&block.bytes, &mut |step| {
            let numbers = step.numbers.map(|numbers| (numbers.count(), numbers.iter().collect::<Vec<_>>()));
            steps.push((step.kind, step.queue, step.number.0, step.last, numbers));
        })
        .expect("just written");
        let ranges = vec![(3, 10_002), (20_000, 20_000)];
        assert_eq!(
            steps,
            [
                (LifecycleKind::Started, "", 0, false, None),
                (LifecycleKind::Restored, "a/0", 3, false, Some((10_001, ranges))),
                (LifecycleKind::Restored, "b/0", 1, false, Some((2, vec![(1, 2)]))),
                (LifecycleKind::Done, "a/0", 3, true, None),
            ]
        );
        for cut in 0..block.bytes.len() {
            let _ = each_step(&block.bytes[..cut], &mut |_| {});
        }
    }

    #[test]
    fn very_many_ranges_are_several_steps_in_blocks_of_their_own() {
        let queue = address("a/0");
        let ranges: Vec<_> = (0..200_000).map(|number| (1 + number * 2, 1 + number * 2)).collect();
        let mut log = HistoryLog::new(HistoryOptions::default());
        log.restored(Timestamp(5), &queue, &ranges);
        let (mut steps, mut found) = (0, Vec::new());
        for block in blocks(&mut log) {
            assert!(block.bytes.len() < 1 << 20);
            each_step(&block.bytes, &mut |step| {
                steps += 1;
                found.extend(step.numbers.expect("it has them").iter());
            })
            .expect("just written");
        }
        assert_eq!((steps, found), (4, ranges));
    }

    #[test]
    fn history_without_bodies_records_their_sizes() {
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
        assert_eq!(each_step(&[4, 0], &mut |_| {}), Err(RecordError::Version { what: HISTORY, version: 4 }));
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
