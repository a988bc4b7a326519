//! Messages taken for upstream brokers that not all of them have confirmed, in order.
//!
//! The log is an index. Its owner may also store the payloads in a journal; payloads that do not fit the cache are then
//! dropped here, and read back when they are sent.

use std::collections::BTreeMap;

/// A set of upstream brokers, one bit each, by their index in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamSet(pub u32);

/// Maximum number of upstream brokers of one node.
pub const UPSTREAMS_MAX: usize = 32;

impl UpstreamSet {
    /// Creates a set with one broker.
    #[must_use]
    pub const fn one(index: usize) -> Self {
        Self(1 << index)
    }

    /// Adds a broker.
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Removes a broker.
    pub fn remove(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    /// Whether the set contains a broker.
    #[must_use]
    pub const fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Limits of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether messages are stored for a broker that is disconnected. Default false: they are dropped and counted.
    pub keep: bool,
    /// Maximum size of all payloads in bytes. With `keep`, the oldest are dropped beyond it and counted; without, producers
    /// wait ([`OutgoingLog::has_room`]). Default 1 GiB with `keep`, otherwise 64 MiB.
    pub bytes_max: u64,
    /// With `keep`: age in milliseconds at which a message is dropped and counted. `None`: never. Default `None`.
    pub age_max_ms: Option<u64>,
    /// Maximum size in bytes of payloads in memory, if the owner also stores them elsewhere. Default 8 MiB.
    pub cache_bytes_max: u64,
}

impl LogOptions {
    /// Returns the defaults with or without `keep`.
    #[must_use]
    pub const fn new(keep: bool) -> Self {
        let bytes_max = if keep { 1 << 30 } else { 64 << 20 };
        Self { keep, bytes_max, age_max_ms: None, cache_bytes_max: 8 << 20 }
    }
}

/// Numbers of messages dropped for one upstream broker, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropCounts {
    /// The broker was disconnected, and messages are not stored.
    pub away: u64,
    /// The broker was disconnected, and the size limit was exceeded.
    pub full: u64,
    /// The broker was disconnected, and the age limit was exceeded.
    pub old: u64,
}

/// An outgoing message.
#[derive(Debug)]
pub struct OutgoingMessage<P> {
    /// Brokers that have not confirmed the message.
    pub waiting: UpstreamSet,
    /// Size of the payload in bytes.
    pub bytes: u32,
    /// Time of its arrival, in milliseconds since the Unix epoch.
    pub taken_ms: u64,
    /// Payload; `None` if it is only in the owner's storage.
    pub payload: Option<P>,
}

#[derive(Debug, Default)]
struct UpstreamBacklog {
    here: bool,
    messages: u64,
    bytes: u64,
    confirmed: u64,
    dropped: DropCounts,
}

/// All outgoing messages. All upstream brokers share one sequence of numbers, so each sees some of them.
#[derive(Debug)]
pub struct OutgoingLog<P> {
    options: LogOptions,
    next: u64,
    entries: BTreeMap<u64, OutgoingMessage<P>>,
    targets: Vec<UpstreamBacklog>,
    bytes: u64,
    /// With `keep`: all numbers below this one are in the owner's journal. Later messages are not sent yet, because their
    /// numbers might be assigned again after a crash.
    committed: u64,
    cached: u64,
    /// The cache contains no payload below this number.
    cached_from: u64,
}

impl<P: Clone> OutgoingLog<P> {
    /// Creates an empty log for `upstreams` brokers, all disconnected. The first message gets the number `next`.
    ///
    /// # Panics
    /// If there are more than [`UPSTREAMS_MAX`] brokers; the configuration is validated earlier.
    #[must_use]
    pub fn new(options: LogOptions, upstreams: usize, next: u64) -> Self {
        assert!(upstreams <= UPSTREAMS_MAX, "a configuration names at most {UPSTREAMS_MAX} upstream brokers");
        let targets = (0..upstreams).map(|_| UpstreamBacklog::default()).collect();
        let next = next.max(1);
        let committed = if options.keep { next } else { u64::MAX };
        Self {
            options,
            next,
            entries: BTreeMap::new(),
            targets,
            bytes: 0,
            committed,
            cached: 0,
            cached_from: 0,
        }
    }

    /// Declares that the numbers below `next` are already used.
    pub fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
        self.committed = self.committed.max(self.next);
    }

    /// Declares that all messages taken so far are in the owner's journal and may be sent.
    pub fn commit(&mut self) {
        self.committed = self.committed.max(self.next);
    }

    /// Adds a message that the owner recovered at start.
    pub fn restore(&mut self, number: u64, waiting: UpstreamSet, bytes: u32, taken_ms: u64) {
        self.skip_to(number + 1);
        self.insert(number, OutgoingMessage { waiting, bytes, taken_ms, payload: None });
    }

    fn insert(&mut self, number: u64, entry: OutgoingMessage<P>) {
        let bytes = u64::from(entry.bytes);
        for (index, target) in self.targets.iter_mut().enumerate() {
            if entry.waiting.contains(index) {
                target.messages += 1;
                target.bytes += bytes;
            }
        }
        self.bytes += bytes;
        if entry.payload.is_some() {
            self.cached += bytes;
        }
        self.entries.insert(number, entry);
    }

    /// Whether another message may be taken now. Always true with `keep`, because the oldest messages are dropped instead.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.options.keep || self.bytes < self.options.bytes_max
    }

    /// Takes a message for these brokers. Returns its number, and the brokers for which it was taken. `None`: all of them are
    /// disconnected.
    pub fn take(
        &mut self,
        mut upstreams: UpstreamSet,
        payload: P,
        bytes: u32,
        now_ms: u64,
    ) -> Option<(u64, UpstreamSet)> {
        if !self.options.keep {
            for (index, target) in self.targets.iter_mut().enumerate() {
                if upstreams.contains(index) && !target.here {
                    target.dropped.away += 1;
                    upstreams.remove(index);
                }
            }
        }
        if upstreams.is_empty() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.insert(
            number,
            OutgoingMessage { waiting: upstreams, bytes, taken_ms: now_ms, payload: Some(payload) },
        );
        Some((number, upstreams))
    }

    /// Drops the oldest payloads that do not fit the cache. Only for owners that also store them elsewhere.
    pub fn trim_cache(&mut self) {
        while self.cached > self.options.cache_bytes_max {
            let Some((number, entry)) = self.entries.range_mut(self.cached_from..).next() else { return };
            self.cached_from = number + 1;
            if entry.payload.take().is_some() {
                self.cached -= u64::from(entry.bytes);
            }
        }
    }

    /// Returns the first message for a broker after the number `after` that may be sent.
    #[must_use]
    pub fn next_for(&self, upstream: usize, after: u64) -> Option<(u64, &OutgoingMessage<P>)> {
        let mut rest = self.entries.range(after + 1..self.committed.max(after + 1));
        rest.find(|(_, entry)| entry.waiting.contains(upstream)).map(|(number, entry)| (*number, entry))
    }

    /// Handles a confirmation up to and including `through`. Returns the numbers that all brokers have now confirmed.
    pub fn confirm(&mut self, upstream: usize, through: u64) -> Vec<u64> {
        let Some(target) = self.targets.get_mut(upstream) else { return Vec::new() };
        let from = target.confirmed + 1;
        target.confirmed = target.confirmed.max(through);
        if through < from {
            return Vec::new();
        }
        let waits = |(number, entry): (&u64, &OutgoingMessage<P>)| {
            entry.waiting.contains(upstream).then_some(*number)
        };
        let confirmed: Vec<_> = self.entries.range(from..=through).filter_map(waits).collect();
        self.release(upstream, &confirmed)
    }

    /// Removes a broker from these messages. Returns the numbers that no other broker waits for.
    fn release(&mut self, upstream: usize, numbers: &[u64]) -> Vec<u64> {
        let mut settled = Vec::new();
        for number in numbers {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            entry.waiting.remove(upstream);
            let bytes = u64::from(entry.bytes);
            self.targets[upstream].messages -= 1;
            self.targets[upstream].bytes -= bytes;
            if entry.waiting.is_empty() {
                self.bytes -= bytes;
                if entry.payload.is_some() {
                    self.cached -= bytes;
                }
                self.entries.remove(number);
                settled.push(*number);
            }
        }
        settled
    }

    /// Drops the oldest messages that exceed the limits. Returns their numbers.
    pub fn enforce(&mut self, now_ms: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        if !self.options.keep {
            return gone;
        }
        while let Some((number, entry)) = self.entries.first_key_value() {
            let full = self.bytes > self.options.bytes_max;
            let old = self.options.age_max_ms.is_some_and(|age| entry.taken_ms.saturating_add(age) <= now_ms);
            if !full && !old {
                break;
            }
            let (number, waiting) = (*number, entry.waiting);
            for upstream in 0..self.targets.len() {
                if waiting.contains(upstream) {
                    let dropped = &mut self.targets[upstream].dropped;
                    *(if full { &mut dropped.full } else { &mut dropped.old }) += 1;
                    gone.extend(self.release(upstream, &[number]));
                }
            }
        }
        gone
    }

    /// Reports that a broker connected or disconnected. Messages already taken for it remain and are resent.
    pub fn set_here(&mut self, upstream: usize, here: bool) {
        if let Some(target) = self.targets.get_mut(upstream) {
            target.here = here;
        }
    }

    /// Last number that a broker confirmed.
    #[must_use]
    pub fn confirmed(&self, upstream: usize) -> u64 {
        self.targets.get(upstream).map_or(0, |target| target.confirmed)
    }

    /// Returns the number of unconfirmed messages of a broker, their size in bytes, and what was dropped for it.
    #[must_use]
    pub fn backlog(&self, upstream: usize) -> (u64, u64, DropCounts) {
        let target = &self.targets[upstream];
        (target.messages, target.bytes, target.dropped)
    }

    /// Number that the next message will get.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(options: LogOptions) -> OutgoingLog<&'static str> {
        OutgoingLog::new(options, 2, 1)
    }

    const BOTH: UpstreamSet = UpstreamSet(3);

    #[test]
    fn message_is_released_when_all_brokers_confirmed_it() {
        let mut log = log(LogOptions::new(true));
        assert_eq!(log.take(BOTH, "a", 1, 0), Some((1, BOTH)));
        assert_eq!(log.take(UpstreamSet::one(1), "b", 1, 0), Some((2, UpstreamSet::one(1))));
        assert!(log.next_for(0, 0).is_none(), "its number could be assigned again after a crash");
        log.commit();
        assert_eq!(log.next_for(0, 0).map(|(number, _)| number), Some(1));
        assert_eq!(log.next_for(0, 1).map(|(number, _)| number), None);
        assert_eq!(log.next_for(1, 1).map(|(number, _)| number), Some(2));
        assert_eq!(log.confirm(1, 2), [2]);
        assert_eq!(log.confirm(1, 1), [], "an old confirmation changes nothing");
        assert_eq!((log.confirmed(0), log.confirmed(1), log.confirmed(2)), (0, 2, 0));
        assert_eq!(log.confirm(0, 9), [1]);
        assert_eq!(
            (log.backlog(0), log.backlog(1)),
            ((0, 0, DropCounts::default()), (0, 0, DropCounts::default()))
        );
        assert_eq!(log.next_number(), 3);
    }

    #[test]
    fn without_storage_messages_for_disconnected_brokers_are_dropped_and_counted() {
        let mut log = log(LogOptions { bytes_max: 2, ..LogOptions::new(false) });
        assert_eq!(log.take(BOTH, "a", 1, 0), None);
        log.set_here(0, true);
        assert_eq!(log.take(BOTH, "b", 2, 0), Some((1, UpstreamSet::one(0))));
        assert!(!log.has_room(), "producers wait for a connected broker");
        assert_eq!((log.backlog(0).2.away, log.backlog(1).2.away), (1, 2));
        log.set_here(0, false);
        assert!(log.next_for(0, 0).is_some(), "messages taken earlier are sent after it reconnects");
    }

    #[test]
    fn storage_is_bounded_by_size_and_age_and_drops_are_counted() {
        let options = LogOptions { bytes_max: 3, age_max_ms: Some(10), ..LogOptions::new(true) };
        let mut log = log(options);
        for now in [0, 1, 5, 6] {
            log.take(BOTH, "x", 1, now);
        }
        assert_eq!(log.enforce(6), [1], "four bytes exceed the limit by one");
        assert_eq!(log.enforce(11), [2]);
        assert_eq!(log.enforce(14), []);
        let dropped = DropCounts { away: 0, full: 1, old: 1 };
        assert_eq!((log.backlog(0), log.backlog(1)), ((2, 2, dropped), (2, 2, dropped)));
    }

    #[test]
    fn cache_drops_the_oldest_payloads_first() {
        let mut log = log(LogOptions { cache_bytes_max: 2, ..LogOptions::new(true) });
        log.restore(7, BOTH, 1, 0);
        for payload in ["a", "b", "c"] {
            log.take(BOTH, payload, 1, 0);
        }
        log.commit();
        log.trim_cache();
        let payloads: Vec<_> =
            (7..=10).map(|n| log.next_for(0, n - 1).and_then(|(_, e)| e.payload)).collect();
        assert_eq!(payloads, [None, None, Some("b"), Some("c")]);
        assert_eq!(log.confirm(0, 8), [], "the other broker has not confirmed them");
        assert_eq!(log.confirm(1, 10), [7, 8]);
    }
}
