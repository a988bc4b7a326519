//! Messages in flight: which consumers have them, since when, until when.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use slab::Slab;

use crate::model::client::Client;
use crate::model::decision::PutBack;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, Tag};
use crate::model::time::Timestamp;
use crate::queue::members::{Consumer, ConsumerKey};

/// Up to this number of deliveries, nearly all of their data is in the cache.
const CACHED: usize = 512;

/// A message in flight. It stays here until every holder has released it: each consumer that has not
/// settled, and the workflow while it runs.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) entry: Entry,
    /// Number of holders.
    pub(crate) holders: u32,
    /// Whether a consumer acknowledged it positively.
    pub(crate) acked: bool,
    /// The position at which it is requeued when the last holder releases it.
    pub(crate) requeue: PutBack,
    /// Whether a handler itself decided to requeue it, which applies even if another consumer
    /// acknowledged.
    pub(crate) requeued_by_handler: bool,
    /// Its fate if no consumer acknowledges it and it is not requeued.
    pub(crate) disposition: Disposition,
}

/// How to finish a message that no consumer acknowledged and that is not requeued. The largest value of
/// all consumers applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disposition {
    /// No consumer rejected it: removed as if it had been acknowledged.
    Done,
    /// Rejected: counted as dropped.
    Refused,
    /// A consumer rejected it for good: dead-lettered.
    Failed,
}

/// A message whose last holder has released it.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) held: Outstanding,
    /// If it is requeued, it is not delivered before this time.
    pub(crate) not_before: Timestamp,
    /// A consumer returned it before its program saw it: when it may be delivered again, unless another consumer or a handler
    /// has decided what happens to it.
    pub(crate) unstarted: Option<Timestamp>,
    /// Why the last delivery that failed did so.
    pub(crate) error: Option<Box<str>>,
}

/// Remarks of consumers about a message: see [`Released`].
#[derive(Debug, Default)]
struct Remarks {
    not_before: Timestamp,
    unstarted: Option<Timestamp>,
    error: Option<Box<str>>,
}

/// A delivery to one consumer.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The key of its message. A queue has no 2^32 messages in flight: they would need more than a terabyte.
    outstanding: u32,
    /// The lower half of the time when it was made.
    at_ms: u32,
    pub(crate) consumer: Arc<Consumer>,
    serial: u64,
}

impl Delivery {
    /// The key of its message.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding as usize
    }

    /// How long ago it was made, in milliseconds; 0 if the clock was set back, or after more than 24 days.
    pub(crate) fn age_ms(&self, now: Timestamp) -> u64 {
        let age = (now.0 as u32).wrapping_sub(self.at_ms) as i32;
        age.try_into().unwrap_or_default()
    }
}

/// All deliveries of a queue.
#[derive(Debug)]
pub(crate) struct Deliveries {
    outstanding: Slab<Outstanding>,
    deliveries: Slab<Delivery>,
    /// Keys of `deliveries` by message id.
    by_message: HashTable<usize>,
    /// Deadlines in order, since all deliveries of a queue have the same timeout. Settled deliveries
    /// leave stale entries behind, which the serial detects.
    deadlines: VecDeque<(Timestamp, usize, u64)>,
    /// Remarks of consumers about messages of `outstanding`, by their number; usually about few.
    remarks: HashMap<usize, Remarks>,
    /// Later deadlines of deliveries whose consumers asked for more time, by serial. Their entries in `deadlines`
    /// are replaced when they come due.
    extended: HashMap<u64, Timestamp>,
    serial: u64,
    hasher: FixedState,
    /// The latest delivery that each consumer that works in order has settled, by serial, and when.
    progress: HashMap<ConsumerKey, (u64, Timestamp)>,
    /// Unsettled deliveries of each consumer whose number is limited, and places reserved for it by deliveries
    /// that a handler still decides about.
    windows: HashMap<ConsumerKey, u32>,
}

impl Deliveries {
    /// Message ids come from peers, so their hash is keyed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            outstanding: Slab::new(),
            deliveries: Slab::new(),
            by_message: HashTable::new(),
            deadlines: VecDeque::new(),
            remarks: HashMap::default(),
            extended: HashMap::default(),
            serial: 0,
            hasher: FixedState::with_seed(seed),
            progress: HashMap::default(),
            windows: HashMap::default(),
        }
    }

    /// Number of unsettled deliveries.
    pub(crate) fn open(&self) -> usize {
        self.deliveries.len()
    }

    /// Number of messages in flight.
    pub(crate) fn messages(&self) -> usize {
        self.outstanding.len()
    }

    /// Their memory in bytes. Visits every message.
    pub(crate) fn bytes(&self) -> u64 {
        self.outstanding.iter().map(|(_, o)| o.entry.message.memory_bytes() as u64).sum()
    }

    /// All messages in flight and their consumers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Entry, impl Fn() -> Vec<Arc<Client>>)> {
        self.outstanding.iter().map(move |(key, held)| {
            let consumers = move || {
                let those = self.deliveries.iter().filter(|(_, delivery)| delivery.outstanding() == key);
                those.map(|(_, delivery)| delivery.consumer.client.clone()).collect()
            };
            (&held.entry, consumers)
        })
    }

    /// Adds a message with one holder, the caller.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) -> usize {
        self.outstanding.insert(Outstanding {
            entry,
            holders: 1,
            acked: false,
            requeue: PutBack::No,
            requeued_by_handler: false,
            disposition: Disposition::Done,
        })
    }

    pub(crate) fn get(&self, outstanding: usize) -> &Outstanding {
        &self.outstanding[outstanding]
    }

    pub(crate) fn get_mut(&mut self, outstanding: usize) -> &mut Outstanding {
        &mut self.outstanding[outstanding]
    }

    /// If the message is requeued, it must not be delivered before this time.
    pub(crate) fn postpone(&mut self, outstanding: usize, until: Timestamp) {
        let remarks = self.remarks.entry(outstanding).or_default();
        remarks.not_before = until.max(remarks.not_before);
    }

    /// A consumer returned the message before its program saw it. It may be delivered again from this time on.
    pub(crate) fn return_unstarted(&mut self, outstanding: usize, not_before: Timestamp) {
        let remarks = self.remarks.entry(outstanding).or_default();
        remarks.unstarted = remarks.unstarted.max(Some(not_before));
    }

    /// A delivery of the message failed for this reason.
    pub(crate) fn failed(&mut self, outstanding: usize, reason: &str) {
        self.remarks.entry(outstanding).or_default().error = Some(reason.into());
    }

    /// Releases one hold; the last one returns the message.
    #[inline]
    pub(crate) fn release(&mut self, outstanding: usize) -> Option<Released> {
        let held = &mut self.outstanding[outstanding];
        held.holders -= 1;
        if held.holders > 0 {
            return None;
        }
        let held = self.outstanding.remove(outstanding);
        let remarks = if self.remarks.is_empty() { None } else { self.remarks.remove(&outstanding) };
        let Remarks { not_before, unstarted, error } = remarks.unwrap_or_default();
        Some(Released { held, not_before, unstarted, error })
    }

    /// Adds a delivery to `consumer` that is made now, to acknowledge by `deadline`.
    pub(crate) fn deliver(
        &mut self,
        outstanding: usize,
        consumer: &Arc<Consumer>,
        now: Timestamp,
        deadline: Timestamp,
    ) -> usize {
        self.reserve(consumer);
        let held = &mut self.outstanding[outstanding];
        held.holders += 1;
        let hash = self.hasher.hash_one(held.entry.message.id());
        self.serial += 1;
        let serial = self.serial;
        let key = self.deliveries.insert(Delivery {
            outstanding: u32::try_from(outstanding).expect("fewer messages are in flight"),
            at_ms: now.0 as u32,
            consumer: consumer.clone(),
            serial,
        });
        let Self { by_message, outstanding: messages, deliveries, hasher, .. } = self;
        by_message.insert_unique(hash, key, |key| {
            hasher.hash_one(messages[deliveries[*key].outstanding()].entry.message.id())
        });
        if deadline < Timestamp::NEVER {
            self.schedule(deadline, key, serial);
        }
        key
    }

    /// Takes a place in the window of a consumer, if its number of deliveries is limited.
    pub(crate) fn reserve(&mut self, consumer: &Consumer) {
        if consumer.terms.window > 0 {
            *self.windows.entry(consumer.key()).or_default() += 1;
        }
    }

    /// Gives a place in the window of a consumer back.
    pub(crate) fn unreserve(&mut self, consumer: &Consumer) {
        if consumer.terms.window == 0 {
            return;
        }
        if let Some(open) = self.windows.get_mut(&consumer.key()) {
            *open -= 1;
            if *open == 0 {
                self.windows.remove(&consumer.key());
            }
        }
    }

    /// How many more deliveries `consumer` may have.
    pub(crate) fn room(&self, consumer: &Consumer) -> u32 {
        let slots = consumer.terms.slots.as_ref().map_or(u32::MAX, |slots| slots.free());
        let window = match consumer.terms.window {
            0 => u32::MAX,
            window => window.saturating_sub(self.windows.get(&consumer.key()).copied().unwrap_or(0)),
        };
        slots.min(window)
    }

    /// Whether `consumer` may have one more delivery.
    pub(crate) fn has_room(&self, consumer: &Consumer) -> bool {
        self.room(consumer) > 0
    }

    /// Reads what settling this delivery will read, so that it is in the cache by then. Does nothing if
    /// there are so few deliveries that they are cached anyway.
    pub(crate) fn look(&self, id: &[u8], consumer: ConsumerKey) {
        if self.deliveries.len() > CACHED {
            let Self { by_message, outstanding, deliveries, hasher, .. } = self;
            black_box(by_message.find(hasher.hash_one(id), is_of(id, consumer, deliveries, outstanding)));
        }
    }

    /// The deliveries of messages with this `id` to `consumer`, in no order. There are several if clients published
    /// several messages with one id.
    pub(crate) fn all_of(&self, id: &[u8], consumer: ConsumerKey) -> impl Iterator<Item = usize> {
        let Self { by_message, outstanding, deliveries, hasher, .. } = self;
        let found = by_message.iter_hash(hasher.hash_one(id)).copied();
        found.filter(is_of(id, consumer, deliveries, outstanding))
    }

    /// The consumer of a delivery.
    pub(crate) fn consumer(&self, key: usize) -> &Consumer {
        &self.deliveries[key].consumer
    }

    /// Gives a delivery that has a deadline a later one, or none: [`Timestamp::NEVER`].
    pub(crate) fn extend(&mut self, key: usize, deadline: Timestamp) {
        self.extended.insert(self.deliveries[key].serial, deadline);
    }

    /// Notes that a consumer has settled a delivery.
    pub(crate) fn progressed(&mut self, delivery: &Delivery, now: Timestamp) {
        if delivery.consumer.terms.in_order && !self.deadlines.is_empty() {
            let latest = self.progress.entry(delivery.consumer.key()).or_default();
            *latest = (delivery.serial, now).max(*latest);
        }
    }

    /// Notes that a consumer works on a delivery, so that it does not get to later ones yet.
    pub(crate) fn works_on(&mut self, key: usize, now: Timestamp) {
        let delivery = &self.deliveries[key];
        if delivery.consumer.terms.in_order {
            let latest = self.progress.entry(delivery.consumer.key()).or_default();
            *latest = (delivery.serial, now).max(*latest);
        }
    }

    /// When the consumer of a delivery last settled, or said to work on, an earlier one, if it works in order.
    pub(crate) fn progress_before(&self, key: usize) -> Option<Timestamp> {
        let delivery = &self.deliveries[key];
        let (settled, at) = self.progress.get(&delivery.consumer.key())?;
        (*settled < delivery.serial).then_some(*at)
    }

    /// Forgets the progress of a consumer that is gone; `tag`: only that of this subscription.
    pub(crate) fn forget_progress(&mut self, connection: ConnectionId, tag: Option<Tag>) {
        self.progress.retain(|of, _| of.0 != connection || tag.is_some_and(|tag| tag != of.1));
    }

    /// Removes the oldest delivery of a message `id` to `consumer`, if it exists: of several messages with one id,
    /// programs settle the earlier ones first. The caller takes over its hold on the message.
    pub(crate) fn take_oldest_of(&mut self, id: &[u8], consumer: ConsumerKey) -> Option<Delivery> {
        let oldest = self.all_of(id, consumer).min_by_key(|key| self.deliveries[*key].serial)?;
        Some(self.take(oldest))
    }

    /// Removes the latest delivery of a message `id` to `consumer`, if it exists, for one that its program has not
    /// started: of several messages with one id, programs start the earlier ones first.
    pub(crate) fn take_newest_of(&mut self, id: &[u8], consumer: ConsumerKey) -> Option<Delivery> {
        let newest = self.all_of(id, consumer).max_by_key(|key| self.deliveries[*key].serial)?;
        Some(self.take(newest))
    }

    /// Removes a delivery. The caller takes over its hold on the message.
    pub(crate) fn take(&mut self, key: usize) -> Delivery {
        let id = self.outstanding[self.deliveries[key].outstanding()].entry.message.id();
        let hash = self.hasher.hash_one(id);
        self.by_message
            .find_entry(hash, |candidate| *candidate == key)
            .expect("every delivery is in the table of ids")
            .remove();
        self.unlisted(key)
    }

    /// Removes a delivery that is no longer in the table of ids.
    fn unlisted(&mut self, key: usize) -> Delivery {
        let delivery = self.deliveries.remove(key);
        self.unreserve(&delivery.consumer);
        if !self.extended.is_empty() {
            self.extended.remove(&delivery.serial);
        }
        self.forget_stale_deadlines();
        delivery
    }

    /// A delivery whose deadline has passed.
    pub(crate) fn due(&mut self, now: Timestamp) -> Option<usize> {
        loop {
            self.forget_stale_deadlines();
            let (_, key, serial) = *self.deadlines.front().filter(|(deadline, ..)| *deadline <= now)?;
            let Some(extended) = self.extended.remove(&serial) else { return Some(key) };
            self.deadlines.pop_front();
            // The queue may have stopped requesting acknowledgements since it delivered.
            if extended < Timestamp::NEVER {
                self.schedule(extended, key, serial);
            }
        }
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Timestamp {
        // The front may be stale. Then the queue wakes up too early, which does no harm.
        self.deadlines.front().map_or(Timestamp::NEVER, |(deadline, ..)| *deadline)
    }

    /// Deliveries to one connection, oldest first; `tag`: only those of this subscription.
    pub(crate) fn of(&self, connection: ConnectionId, tag: Option<Tag>) -> Vec<usize> {
        let mut keys: Vec<_> = self
            .deliveries
            .iter()
            .filter(|(_, delivery)| delivery.consumer.client.connection == connection)
            .filter(|(_, delivery)| tag.is_none_or(|tag| delivery.consumer.tag == tag))
            .map(|(key, delivery)| (delivery.serial, key))
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// Removes everything and returns the messages.
    pub(crate) fn drain(&mut self) -> Vec<Outstanding> {
        self.deliveries.clear();
        self.windows.clear();
        self.progress.clear();
        self.remarks.clear();
        self.extended.clear();
        self.by_message.clear();
        self.deadlines.clear();
        self.outstanding.drain().collect()
    }

    fn schedule(&mut self, deadline: Timestamp, key: usize, serial: u64) {
        if self.deadlines.back().is_some_and(|(last, ..)| *last > deadline) {
            // Needed only after the timeout was shortened, until the older deliveries are settled.
            let at = self.deadlines.partition_point(|(other, ..)| *other <= deadline);
            self.deadlines.insert(at, (deadline, key, serial));
        } else {
            self.deadlines.push_back((deadline, key, serial));
        }
    }

    /// Stale entries at the front are removed at no cost; those behind one slow consumer are removed
    /// when they are the majority.
    fn forget_stale_deadlines(&mut self) {
        let Self { deadlines, deliveries, .. } = self;
        let live = |(_, key, serial): &(Timestamp, usize, u64)| {
            deliveries.get(*key).is_some_and(|delivery| delivery.serial == *serial)
        };
        if deadlines.len() > 2 * deliveries.len() + 1024 {
            deadlines.retain(live);
        }
        while deadlines.front().is_some_and(|entry| !live(entry)) {
            deadlines.pop_front();
        }
    }
}

/// Whether a key is that of the delivery of the message `id` to `consumer`.
fn is_of(
    id: &[u8],
    consumer: ConsumerKey,
    deliveries: &Slab<Delivery>,
    outstanding: &Slab<Outstanding>,
) -> impl Fn(&usize) -> bool {
    move |key| {
        let delivery = &deliveries[*key];
        delivery.consumer.key() == consumer && outstanding[delivery.outstanding()].entry.message.id() == id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tens_of_thousands_of_deliveries_are_made_of_stays_small() {
        // Lookups are in random order, so each additional byte takes a larger share of the cache.
        assert_eq!(size_of::<Outstanding>(), 48);
        assert_eq!(size_of::<Delivery>(), 24);
    }
}
