//! What was taken for masters and is not confirmed by all of them, in order.
//!
//! The log is the index. Whoever owns it may keep payloads elsewhere too (a journal); then those that do not fit the cache
//! are let go here and read back when they are sent.

use std::collections::BTreeMap;

/// A set of masters, one bit each, by their place in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Masters(pub u32);

/// Masters of one node at most.
pub const MASTERS_MAX: usize = 32;

impl Masters {
    /// Just this one.
    #[must_use]
    pub const fn one(index: usize) -> Self {
        Self(1 << index)
    }

    /// Adds one.
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Takes one out.
    pub fn remove(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    /// Whether this one is in it.
    #[must_use]
    pub const fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Whether none is.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Bounds of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether messages are kept for a master that is away. Default no: they are dropped, and counted.
    pub keep: bool,
    /// Bytes of payloads at most. With `keep`, the oldest are dropped beyond it, and counted; without, producers wait
    /// ([`OutgoingLog::has_room`]). Default 1 GiB with `keep`, else 64 MiB.
    pub bytes_max: u64,
    /// With `keep`: milliseconds after which a message is dropped, and counted. `None`: never. Default `None`.
    pub age_max_ms: Option<u64>,
    /// Bytes of payloads held in memory at most, where the owner has them elsewhere too. Default 8 MiB.
    pub cache_bytes_max: u64,
}

impl LogOptions {
    /// The defaults with or without keeping.
    #[must_use]
    pub const fn new(keep: bool) -> Self {
        let bytes_max = if keep { 1 << 30 } else { 64 << 20 };
        Self { keep, bytes_max, age_max_ms: None, cache_bytes_max: 8 << 20 }
    }
}

/// What was not passed on to a master, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// It was away, and messages are not kept.
    pub away: u64,
    /// It was away, and more was kept than may be.
    pub full: u64,
    /// It was away, and they became too old.
    pub old: u64,
}

/// A message on its way.
#[derive(Debug)]
pub struct Outgoing<P> {
    /// Who has not confirmed it.
    pub waiting: Masters,
    /// Bytes of the payload.
    pub bytes: u32,
    /// When it was taken, Unix milliseconds.
    pub taken_ms: u64,
    /// `None`: the owner has it elsewhere.
    pub payload: Option<P>,
}

#[derive(Debug, Default)]
struct Target {
    here: bool,
    messages: u64,
    bytes: u64,
    confirmed: u64,
    dropped: Dropped,
}

/// Everything on its way to any master. Numbers ascend over all masters together, so each sees some of them.
#[derive(Debug)]
pub struct OutgoingLog<P> {
    options: LogOptions,
    next: u64,
    entries: BTreeMap<u64, Outgoing<P>>,
    targets: Vec<Target>,
    bytes: u64,
    /// With `keep`: the owner's journal has everything below this number. What it does not have yet is not sent, because its
    /// number might be given again after a crash.
    committed: u64,
    cached: u64,
    /// No payload below this number is in the cache.
    cached_from: u64,
}

impl<P: Clone> OutgoingLog<P> {
    /// An empty log that goes on with the number `next`, for so many masters, all of them away.
    ///
    /// # Panics
    /// With more than [`MASTERS_MAX`] masters: the configuration is checked before.
    #[must_use]
    pub fn new(options: LogOptions, masters: usize, next: u64) -> Self {
        assert!(masters <= MASTERS_MAX, "a configuration names at most {MASTERS_MAX} masters");
        let targets = (0..masters).map(|_| Target::default()).collect();
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

    /// Numbers below `next` were given before, and are not given again.
    pub fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
        self.committed = self.committed.max(self.next);
    }

    /// Everything that was taken so far is in the owner's journal, and may be sent.
    pub fn commit(&mut self) {
        self.committed = self.committed.max(self.next);
    }

    /// A message that was there when the owner started.
    pub fn restore(&mut self, number: u64, waiting: Masters, bytes: u32, taken_ms: u64) {
        self.skip_to(number + 1);
        self.insert(number, Outgoing { waiting, bytes, taken_ms, payload: None });
    }

    fn insert(&mut self, number: u64, entry: Outgoing<P>) {
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

    /// Whether another message may be taken now. Always, where messages are kept: there the oldest go instead.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.options.keep || self.bytes < self.options.bytes_max
    }

    /// Takes a message for these masters; its number, and for whom it really is. `None`: for nobody, all of them are away.
    pub fn take(
        &mut self,
        mut masters: Masters,
        payload: P,
        bytes: u32,
        now_ms: u64,
    ) -> Option<(u64, Masters)> {
        if !self.options.keep {
            for (index, target) in self.targets.iter_mut().enumerate() {
                if masters.contains(index) && !target.here {
                    target.dropped.away += 1;
                    masters.remove(index);
                }
            }
        }
        if masters.is_empty() {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.insert(number, Outgoing { waiting: masters, bytes, taken_ms: now_ms, payload: Some(payload) });
        Some((number, masters))
    }

    /// Lets go of payloads that do not fit the cache, oldest first. Only for an owner that has them elsewhere too.
    pub fn trim_cache(&mut self) {
        while self.cached > self.options.cache_bytes_max {
            let Some((number, entry)) = self.entries.range_mut(self.cached_from..).next() else { return };
            self.cached_from = number + 1;
            if entry.payload.take().is_some() {
                self.cached -= u64::from(entry.bytes);
            }
        }
    }

    /// The first message for a master behind the number `after` that may be sent.
    #[must_use]
    pub fn next_for(&self, master: usize, after: u64) -> Option<(u64, &Outgoing<P>)> {
        let mut rest = self.entries.range(after + 1..self.committed.max(after + 1));
        rest.find(|(_, entry)| entry.waiting.contains(master)).map(|(number, entry)| (*number, entry))
    }

    /// A master confirmed everything up to and including `through`. Answers with the numbers that nobody waits for any more.
    pub fn confirm(&mut self, master: usize, through: u64) -> Vec<u64> {
        let Some(target) = self.targets.get_mut(master) else { return Vec::new() };
        let from = target.confirmed + 1;
        target.confirmed = target.confirmed.max(through);
        if through < from {
            return Vec::new();
        }
        let waits = |(number, entry): (&u64, &Outgoing<P>)| entry.waiting.contains(master).then_some(*number);
        let confirmed: Vec<_> = self.entries.range(from..=through).filter_map(waits).collect();
        self.release(master, &confirmed)
    }

    /// Takes a master off these messages; answers with those that nobody waits for any more.
    fn release(&mut self, master: usize, numbers: &[u64]) -> Vec<u64> {
        let mut settled = Vec::new();
        for number in numbers {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            entry.waiting.remove(master);
            let bytes = u64::from(entry.bytes);
            self.targets[master].messages -= 1;
            self.targets[master].bytes -= bytes;
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

    /// Drops, oldest first, what is beyond the bounds of keeping. Answers with the numbers that are gone.
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
            for master in 0..self.targets.len() {
                if waiting.contains(master) {
                    let dropped = &mut self.targets[master].dropped;
                    *(if full { &mut dropped.full } else { &mut dropped.old }) += 1;
                    gone.extend(self.release(master, &[number]));
                }
            }
        }
        gone
    }

    /// A master is there, or away. What was taken before for one that goes stays: it is sent again.
    pub fn set_here(&mut self, master: usize, here: bool) {
        if let Some(target) = self.targets.get_mut(master) {
            target.here = here;
        }
    }

    /// Up to where a master has confirmed.
    #[must_use]
    pub fn confirmed(&self, master: usize) -> u64 {
        self.targets.get(master).map_or(0, |target| target.confirmed)
    }

    /// Messages that a master has not confirmed, their bytes, and what was dropped for it.
    #[must_use]
    pub fn backlog(&self, master: usize) -> (u64, u64, Dropped) {
        let target = &self.targets[master];
        (target.messages, target.bytes, target.dropped)
    }

    /// The number that the next message will get.
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

    const BOTH: Masters = Masters(3);

    #[test]
    fn a_message_stays_until_all_its_masters_confirmed() {
        let mut log = log(LogOptions::new(true));
        assert_eq!(log.take(BOTH, "a", 1, 0), Some((1, BOTH)));
        assert_eq!(log.take(Masters::one(1), "b", 1, 0), Some((2, Masters::one(1))));
        assert!(log.next_for(0, 0).is_none(), "its number could be given again after a crash");
        log.commit();
        assert_eq!(log.next_for(0, 0).map(|(number, _)| number), Some(1));
        assert_eq!(log.next_for(0, 1).map(|(number, _)| number), None);
        assert_eq!(log.next_for(1, 1).map(|(number, _)| number), Some(2));
        assert_eq!(log.confirm(1, 2), [2]);
        assert_eq!(log.confirm(1, 1), [], "an old word changes nothing");
        assert_eq!(log.confirm(0, 9), [1]);
        assert_eq!(
            (log.backlog(0), log.backlog(1)),
            ((0, 0, Dropped::default()), (0, 0, Dropped::default()))
        );
        assert_eq!(log.next_number(), 3);
    }

    #[test]
    fn without_keeping_a_master_that_is_away_gets_nothing_and_that_is_counted() {
        let mut log = log(LogOptions { bytes_max: 2, ..LogOptions::new(false) });
        assert_eq!(log.take(BOTH, "a", 1, 0), None);
        log.set_here(0, true);
        assert_eq!(log.take(BOTH, "b", 2, 0), Some((1, Masters::one(0))));
        assert!(!log.has_room(), "producers wait for a master that is there");
        assert_eq!((log.backlog(0).2.away, log.backlog(1).2.away), (1, 2));
        log.set_here(0, false);
        assert!(log.next_for(0, 0).is_some(), "what was taken for it is sent when it is back");
    }

    #[test]
    fn keeping_is_bounded_by_size_and_age_and_drops_are_counted() {
        let options = LogOptions { bytes_max: 3, age_max_ms: Some(10), ..LogOptions::new(true) };
        let mut log = log(options);
        for now in [0, 1, 5, 6] {
            log.take(BOTH, "x", 1, now);
        }
        assert_eq!(log.enforce(6), [1], "four bytes are one too many");
        assert_eq!(log.enforce(11), [2]);
        assert_eq!(log.enforce(14), []);
        let dropped = Dropped { away: 0, full: 1, old: 1 };
        assert_eq!((log.backlog(0), log.backlog(1)), ((2, 2, dropped), (2, 2, dropped)));
    }

    #[test]
    fn the_cache_lets_go_of_the_oldest_payloads_only() {
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
        assert_eq!(log.confirm(0, 8), [], "the other one still waits");
        assert_eq!(log.confirm(1, 10), [7, 8]);
    }
}
