//! Subscriptions: a connection consumes a queue, possibly several times, without joining its channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::model::bindings::QueueBinding;
use crate::model::command::MessageId;
use crate::model::id::{ChannelName, QueueAddress, Tag};
use crate::model::options::QueueChanges;

/// How deliveries to a consumer are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Settling {
    /// As the queue's options say, as for all members of the channel.
    #[default]
    AsQueue,
    /// Delivery counts as acknowledgement.
    AtOnce,
    /// The consumer acknowledges each delivery, whatever the queue's options say. Deliveries that it rejects, or that
    /// are unsettled when its connection is lost, are requeued.
    Explicit,
}

/// The terms of a subscription.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// How its deliveries are settled.
    pub settling: Settling,
    /// Maximum number of unsettled deliveries; 0: no limit. Default: 0.
    pub window: u32,
    /// Time to settle a delivery with [`Settling::Explicit`]; `None`, the default: no limit.
    pub timeout: Option<Duration>,
    /// Whether it processes its deliveries in order: the time to settle a delivery begins again when it settles an
    /// earlier one, or says that it works on an earlier one. Default: no.
    pub in_order: bool,
    /// For queues that deliver each message to one consumer: a free consumer with a larger weight comes
    /// first. Used only if some consumer has `slots`. Default: 0.
    pub weight: i32,
    /// Slots that several subscriptions of a consumer share, across queues and shards; each delivery
    /// takes one. `None`, the default: only the window limits deliveries.
    pub slots: Option<Arc<Slots>>,
}

/// How many more deliveries a consumer can take, over all its subscriptions.
///
/// This is the only state of a consumer that shards share: whichever shard comes first takes a slot,
/// and no slot is taken twice. After giving slots, send `Command::RoomFor` to the queues.
#[derive(Debug, Default)]
pub struct Slots {
    free: AtomicU32,
    /// When a slot was last taken, by `clock`.
    used: AtomicU64,
    /// Counts the slots taken by all consumers that share it, so that the consumer that waited longest
    /// is known.
    clock: Arc<AtomicU64>,
}

/// Marks closed slots: no more deliveries. No consumer has this many free slots.
const CLOSED: u32 = u32::MAX;

impl Slots {
    /// No free slots. Slots with the same clock can be compared.
    #[must_use]
    pub fn new(clock: Arc<AtomicU64>) -> Self {
        Self { free: AtomicU32::new(0), used: AtomicU64::new(0), clock }
    }

    /// Number of free slots.
    pub fn free(&self) -> u32 {
        match self.free.load(Ordering::Acquire) {
            CLOSED => 0,
            free => free,
        }
    }

    /// Takes all slots for good.
    pub fn close(&self) {
        self.free.store(CLOSED, Ordering::Release);
    }

    /// Adds a slot, up to `most`, and returns the number of free slots. `None` if there are that many
    /// already, or the slots are closed.
    pub fn give(&self, most: u32) -> Option<u32> {
        let more = |free: u32| (free < most && free != CLOSED).then(|| free + 1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|before| before + 1)
    }

    /// When a slot was last taken; 0: never.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes a slot. It is free again when the guard is dropped, unless it is spent.
    pub(crate) fn take(self: &Arc<Self>) -> Option<ReservedSlot> {
        let less = |free: u32| if free == CLOSED { None } else { free.checked_sub(1) };
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        self.used.store(1 + self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(ReservedSlot(Some(Arc::clone(self))))
    }
}

/// A slot taken for a message that is being delivered.
#[derive(Debug)]
pub(crate) struct ReservedSlot(Option<Arc<Slots>>);

impl ReservedSlot {
    /// Keeps the slot taken: the message was delivered. The consumer gives it back when it can take
    /// another message.
    pub(crate) fn spend(mut self) {
        self.0 = None;
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.give(CLOSED);
        }
    }
}

/// A request to consume a queue.
#[derive(Debug, Clone)]
pub struct QueueSubscription {
    /// The queue.
    pub queue: QueueAddress,
    /// The session's tag for it, not [`Tag::CHANNEL`]. Deliveries carry it. Subscribing again with the
    /// same tag changes the terms.
    pub tag: Tag,
    /// The terms.
    pub terms: Terms,
    /// `Some`: creates a missing channel and queue, the queue with these options. `None`: the broker's
    /// configuration decides.
    pub create: Option<Box<QueueChanges>>,
    /// A name by which any connection can settle its deliveries or end it; not unique.
    pub name: Option<Box<[u8]>>,
    /// A change of the queue's topics, made before the subscription is answered.
    pub binding: Option<Box<QueueBinding>>,
    /// Whether this subscription is notified of that change too, like all others.
    pub notify_self: bool,
}

/// A request to join a channel for some of its queues. The client counts as a client of the channel and may
/// pull from all of its queues, but consumes only those that it named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueJoin {
    /// The channel.
    pub channel: ChannelName,
    /// The queues to consume, added to those of earlier joins. A missing queue is created if the configuration
    /// allows it. Empty: the client joins in order to pull, and stays when it consumes no queue any more.
    pub queues: Vec<u16>,
    /// Maximum number of unsettled deliveries of each of these queues; 0: no limit. Replaces the limit of earlier
    /// joins, for later deliveries.
    pub prefetch: u32,
}

/// The result of a [`QueueJoin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedQueues {
    /// The request.
    pub join: QueueJoin,
    /// For each of its queues, the time to acknowledge a delivery; `None` if the queue requests no
    /// acknowledgement.
    pub acknowledge_timeouts: Vec<Option<Duration>>,
}

/// A request of any connection about the subscriptions with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// Settle one delivery or all: acknowledge, or reject if a reason is given.
    Settle {
        /// `None`: all.
        message_id: Option<MessageId>,
        /// The reason; `None`: they were processed.
        negative: Option<Box<str>>,
    },
    /// End the subscriptions.
    Unsubscribe,
}
