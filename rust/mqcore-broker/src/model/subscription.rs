//! Subscriptions: how a connection consumes one queue, several times if it wants to, without joining its channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::model::bindings::QueueBinding;
use crate::model::command::MessageId;
use crate::model::id::{QueueAddress, Tag};
use crate::model::options::QueueChanges;

/// How deliveries to a consumer are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Settling {
    /// As the queue's options say: that is so for everybody who joined the channel.
    #[default]
    AsQueue,
    /// Handed out is acknowledged.
    AtOnce,
    /// The consumer acknowledges each delivery, whatever the queue's options say; what it refuses, or loses with its
    /// connection, goes back.
    Explicit,
}

/// On which terms a subscription gets messages.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// How its deliveries are settled.
    pub settling: Settling,
    /// Deliveries that it may have unsettled at once; zero: no limit. Default zero.
    pub window: u32,
    /// How long a delivery may stay unsettled with [`Settling::Explicit`]; `None`: as long as it takes. Default `None`.
    pub timeout: Option<Duration>,
    /// Whether each delivery is an `Event::Delivered` for the session, which numbers or counts them, instead of being encoded
    /// without it. Default no.
    pub told: bool,
    /// Where the queue gives each message to one consumer: those with a larger weight come first, as long as one of them can
    /// take more. Looked at only where some consumer has `slots`. Default 0.
    pub weight: i32,
    /// Room that several subscriptions of a consumer share, whatever queues and shards they are of; each delivery takes
    /// one. `None`, the default: the window alone counts.
    pub slots: Option<Arc<Slots>>,
}

/// How many more deliveries a consumer can take, all its subscriptions together.
///
/// The one thing that shards share about consumers: a slot is taken by whichever shard comes first, and never twice. Whoever gives
/// slots has to tell the queues of it, by `Command::RoomFor`.
#[derive(Debug, Default)]
pub struct Slots {
    free: AtomicU32,
    /// When one was taken last, by `clock`.
    used: AtomicU64,
    /// Counts what is taken of all who share it, so that whoever had to wait longest is known.
    clock: Arc<AtomicU64>,
}

/// So many are never free: nobody gets anything any more.
const CLOSED: u32 = u32::MAX;

impl Slots {
    /// None yet, to be compared with others of the same clock.
    #[must_use]
    pub fn new(clock: Arc<AtomicU64>) -> Self {
        Self { free: AtomicU32::new(0), used: AtomicU64::new(0), clock }
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        match self.free.load(Ordering::Acquire) {
            CLOSED => 0,
            free => free,
        }
    }

    /// Takes all, and has none any more.
    pub fn close(&self) {
        self.free.store(CLOSED, Ordering::Release);
    }

    /// Adds one, but to no more than `most`; how many are free then. `None` if there are so many already, or they are closed.
    pub fn give(&self, most: u32) -> Option<u32> {
        let more = |free: u32| (free < most && free != CLOSED).then(|| free + 1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|before| before + 1)
    }

    /// When one was taken last; 0: never.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes one, until the guard is dropped or spent.
    pub(crate) fn take(self: &Arc<Self>) -> Option<TakenSlot> {
        let less = |free: u32| if free == CLOSED { None } else { free.checked_sub(1) };
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        self.used.store(1 + self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(TakenSlot(Some(Arc::clone(self))))
    }
}

/// A slot that was taken for a message on its way.
#[derive(Debug)]
pub(crate) struct TakenSlot(Option<Arc<Slots>>);

impl TakenSlot {
    /// The message was handed out: the consumer gives the slot again when it can take another one.
    pub(crate) fn spend(mut self) {
        self.0 = None;
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.give(CLOSED);
        }
    }
}

/// A connection wants to consume a queue.
#[derive(Debug, Clone)]
pub struct QueueSubscription {
    /// The queue.
    pub queue: QueueAddress,
    /// The session's name for it, not [`Tag::CHANNEL`]. Deliveries carry it. Subscribing again with the same tag changes the terms.
    pub tag: Tag,
    /// On which terms.
    pub terms: Terms,
    /// Channel and queue are created if they are missing, the queue with these options; `None`: as the broker's configuration
    /// says.
    pub create: Option<Box<QueueChanges>>,
    /// A name by which any connection can settle its deliveries or end it; not unique.
    pub name: Option<Box<[u8]>>,
    /// Changes what the queue is bound to before the subscription is answered.
    pub binding: Option<Box<QueueBinding>>,
    /// Whether this subscription too is told of that change, as all others are.
    pub told: bool,
}

/// What any connection may do to the subscriptions of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// Acknowledge, or refuse if a reason is given, one delivery or all.
    Settle {
        /// `None`: all.
        message_id: Option<MessageId>,
        /// Why not; `None`: they were processed.
        negative: Option<Box<str>>,
    },
    /// End them.
    Unsubscribe,
}
