//! The store as its users see it: shared by threads, each call one atomic step.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::change::{Change, Kept};
use crate::listing::Listing;
use crate::rule::{Mode, Rule, RuleError, Verdict};
use crate::shard::{Hashed, Pending, Shard, Terms, entry_bytes};
use crate::time::{Nanos, Ttl};

pub use crate::shard::{Adjust, Counter, Made, Totals};
pub use crate::uses::Uses;

/// Parts of a store. Few for a fuzzer, whose scripts make one store each and list it again and again: what they look for does
/// not depend on how many there are, and how many scripts it plays in a second does.
#[allow(unexpected_cfgs, reason = "cargo-fuzz sets it")]
pub const SHARDS: usize = if cfg!(fuzzing) { 4 } else { 64 };

/// Bytes of a key at most.
pub const KEY_BYTES_MAX: usize = 255;

/// Keys that one call can spend from.
pub const RULES_MAX: usize = 32;

/// Entries that are evicted for one call at most. A buffer for which this makes no room is refused.
const EVICTED_MAX: usize = 128;

/// Expired entries that are looked at when one is created: more than come in, so that a store that nobody else sweeps
/// does not fill up with them.
const SWEPT_PER_CREATION: usize = 4;

/// Steps for which one caller keeps the lock of a shard at most: a few microseconds.
const RUN_STEPS_MAX: usize = 64;

/// What a store is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Entries at most; at this number a new one takes the place of the one that expires soonest. Default 16,777,216.
    pub keys_max: u64,
    /// Bytes at most: 120 an entry, long keys and buffers besides. Default 2 GiB.
    pub bytes_max: u64,
    /// Whether reads and writes of each entry are counted, which costs 40 bytes an entry. Default yes.
    pub metrics: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { keys_max: 1 << 24, bytes_max: 2 << 30, metrics: true }
    }
}

/// A store. Cheap to share: `Arc<Limiter>`.
#[derive(Debug)]
pub struct Limiter {
    shards: Box<[Padded]>,
    hasher: RandomState,
    config: Config,
    keys: AtomicU64,
    bytes: AtomicU64,
    sequence: AtomicU64,
}

/// Locks of two shards are not in one cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// What GET tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer<'a> {
    /// The unit of the time to live.
    pub unit: u8,
    /// When it expires.
    pub deadline: Nanos,
    /// What it holds; nothing for a counter.
    pub value: &'a [u8],
}

#[inline]
const fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

/// Where a counter wraps at most.
#[inline]
const fn clamp_bits(made: Made) -> Made {
    Made { bits: if made.bits == 0 || made.bits > 64 { 64 } else { made.bits }, ..made }
}

impl Limiter {
    /// An empty store. `seed` keys the hashes: with one that nobody outside can know, nobody can choose keys that meet.
    #[must_use]
    pub fn new(config: Config, seed: RandomState) -> Self {
        let shard = |_| Padded(Mutex::new(Shard::new(seed.clone(), config.metrics)));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: seed,
            config,
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
        }
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// No step that could panic leaves a shard half-changed on purpose, so a poisoned lock is still taken.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn hashed<'a>(&self, key: &'a [u8]) -> Hashed<'a> {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        Hashed { key, hash: hasher.finish() }
    }

    /// Runs one step on the shard of a key, and keeps the totals of all shards in step with it.
    #[inline]
    fn with<T>(&self, key: &[u8], step: impl FnOnce(&mut Shard, Hashed<'_>) -> T) -> T {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        self.counted(&mut shard, |shard| step(shard, hashed))
    }

    #[inline]
    fn counted<T>(&self, shard: &mut Shard, step: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.totals;
        let result = step(shard);
        let after = shard.totals;
        if before.bytes != after.bytes {
            // Two's complement: adding a negative difference subtracts.
            self.keys.fetch_add(after.keys().wrapping_sub(before.keys()), Ordering::Relaxed);
            self.bytes.fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        }
        result
    }

    /// Whether `keys` more entries of `bytes` in all would be too much.
    fn is_full(&self, keys: u64, bytes: u64) -> bool {
        self.keys.load(Ordering::Relaxed).saturating_add(keys) > self.config.keys_max
            || self.bytes.load(Ordering::Relaxed).saturating_add(bytes) > self.config.bytes_max
    }

    /// Makes room for what is to come: expired entries go first, then those that expire soonest, in this shard and, when
    /// it has none, in others. Entries in `keep` stay. False if there still is none.
    fn make_room(&self, shard: &mut Shard, keys: u64, bytes: u64, keep: &[u32], now: Nanos) -> bool {
        self.counted(shard, |shard| shard.sweep(now, SWEPT_PER_CREATION));
        for _ in 0..EVICTED_MAX {
            if !self.is_full(keys, bytes) {
                return true;
            }
            if !self.counted(shard, |shard| shard.evict(keep, now)) && !self.evict_elsewhere(now) {
                return false;
            }
        }
        !self.is_full(keys, bytes)
    }

    /// Never waits: whoever holds the lock of one shard must not wait for that of another.
    fn evict_elsewhere(&self, now: Nanos) -> bool {
        self.shards.iter().any(|shard| match shard.0.try_lock() {
            Ok(mut shard) => self.counted(&mut shard, |shard| shard.evict(&[], now)),
            Err(_) => false,
        })
    }

    /// Begins several steps of one caller.
    #[inline]
    #[must_use]
    pub const fn run(&self) -> Run<'_> {
        Run { store: self, held: None, steps: 0 }
    }

    #[inline]
    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    // --- counters and buffers -----------------------------------------------------------------------------------

    /// Creates a counter of so many bits. False, and no change, if the key is taken. One that expires at once is not
    /// even stored.
    pub fn insert(&self, key: &[u8], quota: u64, made: impl Into<Made>, ttl: Ttl, now: Nanos) -> bool {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        if let Some(place) = self.counted(&mut shard, |shard| shard.find(hashed, now)) {
            shard.count_read(place, now);
            return false;
        }
        let deadline = now.after(ttl.nanos());
        if deadline > now {
            self.make_room(&mut shard, 1, entry_bytes(key), &[], now);
            let terms = Terms { made: clamp_bits(made.into()), unit: ttl.unit, deadline };
            let sequence = self.next_sequence();
            self.counted(&mut shard, |shard| shard.insert(hashed, quota, terms, sequence, now));
        }
        true
    }

    /// Reads a counter. A buffer reads as one of nothing.
    #[must_use]
    pub fn query(&self, key: &[u8], now: Nanos) -> Option<Counter> {
        self.with(key, |shard, key| shard.query(key, now))
    }

    /// Changes a quota. False, and no change, if there is no counter or it would go below zero.
    pub fn adjust_quota(&self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.with(key, |shard, key| shard.adjust_quota(key, adjust, by, now))
    }

    /// Changes a time to live, in the unit that the entry was created with. A deadline that has passed by that is one: the
    /// entry is gone at once. False if there is none, or if it belongs to a sliding window or bucket.
    pub fn adjust_ttl(&self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.with(key, |shard, key| shard.adjust_ttl(key, adjust, by, now))
    }

    /// Removes a counter or buffer. False if there is none.
    pub fn purge(&self, key: &[u8], now: Nanos) -> bool {
        self.with(key, |shard, key| shard.purge(key, now))
    }

    /// Creates a buffer, to be `kept` or not, or replaces its value, unit and deadline. False, and no change, if a counter
    /// has the key, or if the ceilings leave no room for it.
    pub fn set(&self, key: &[u8], value: &[u8], kept: bool, ttl: Ttl, now: Nanos) -> bool {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        let deadline = now.after(ttl.nanos());
        if deadline > now {
            let held = self.counted(&mut shard, |shard| shard.held(hashed, now));
            let (keep, held): (&[u32], u64) = match &held {
                Some((place, held)) => (std::slice::from_ref(place), *held),
                None => (&[], 0),
            };
            let (keys, fixed) = if keep.is_empty() { (1, entry_bytes(key)) } else { (0, 0) };
            let bytes = (fixed + value.len() as u64).saturating_sub(held);
            if bytes > 0 && !self.make_room(&mut shard, keys, bytes, keep, now) {
                return false;
            }
        }
        let terms = Terms { made: Made { bits: 64, kept }, unit: ttl.unit, deadline };
        let sequence = self.next_sequence();
        self.counted(&mut shard, |shard| shard.set(hashed, value, terms, sequence, now))
    }

    /// Reads a buffer, under its shard's lock: `read` should only copy. A counter reads as one that holds nothing.
    pub fn get<T>(&self, key: &[u8], now: Nanos, read: impl FnOnce(Option<Buffer<'_>>) -> T) -> T {
        self.with(key, |shard, key| {
            let found = shard.get(key, now);
            read(found.map(|(unit, deadline, value)| Buffer { unit, deadline, value }))
        })
    }

    /// How often an entry was used, by whole minutes; zeros without metrics.
    #[must_use]
    pub fn stat(&self, key: &[u8], now: Nanos) -> Option<Uses> {
        self.with(key, |shard, key| shard.stat(key, now))
    }

    // --- rules --------------------------------------------------------------------------------------------------

    /// Applies a rule to a key: creates, checks and subtracts in one step. `made` is what an entry gets that this creates.
    ///
    /// # Errors
    /// [`RuleError`]; nothing has changed then.
    pub fn consume(
        &self,
        key: &[u8],
        rule: &Rule,
        mode: Mode,
        made: impl Into<Made>,
        now: Nanos,
    ) -> Result<Verdict, RuleError> {
        let made = clamp_bits(made.into());
        self.with(key, |shard, key| self.consume_in(shard, key, rule, mode, made, now))
    }

    #[inline]
    fn consume_in(
        &self,
        shard: &mut Shard,
        key: Hashed<'_>,
        rule: &Rule,
        mode: Mode,
        made: Made,
        now: Nanos,
    ) -> Result<Verdict, RuleError> {
        let pending = shard.judge(key, rule, mode, now)?;
        if pending.after.is_some() && pending.place.or(pending.expired).is_none() {
            self.make_room(shard, 1, entry_bytes(key.key), &[], now);
        }
        shard.apply(key, rule, &pending, made, || self.next_sequence(), now);
        Ok(pending.verdict)
    }

    /// Applies a rule to each of several keys: all of them, or none if one refuses. Appends a verdict for each to
    /// `verdicts`, and answers whether all allowed it. If one refused, the others tell what they would have allowed.
    ///
    /// # Errors
    /// [`RuleError`]; nothing has changed and nothing was appended then.
    pub fn consume_all(
        &self,
        requests: &[(&[u8], Rule)],
        mode: Mode,
        made: impl Into<Made>,
        now: Nanos,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<bool, RuleError> {
        let made = clamp_bits(made.into());
        if requests.len() > RULES_MAX {
            return Err(RuleError::TooMany { max: RULES_MAX });
        }
        let hashed: Vec<Hashed<'_>> = requests.iter().map(|(key, _)| self.hashed(key)).collect();
        let twice =
            |(index, key): (usize, &Hashed<'_>)| hashed[..index].iter().any(|other| other.key == key.key);
        if hashed.iter().enumerate().any(twice) {
            return Err(RuleError::KeyTwice);
        }
        // Everybody takes locks in the same order.
        let mut locked: Vec<(usize, MutexGuard<'_, Shard>)> = Vec::with_capacity(requests.len());
        let mut order: Vec<usize> = hashed.iter().map(|key| shard_of(key.hash)).collect();
        order.sort_unstable();
        order.dedup();
        locked.extend(order.into_iter().map(|shard| (shard, self.lock(shard))));
        // Each was put there above.
        let place = |shard: usize| locked.binary_search_by_key(&shard, |(number, _)| *number).unwrap_or(0);
        let places: Vec<usize> = hashed.iter().map(|key| place(shard_of(key.hash))).collect();
        let mut pending: Vec<Pending> = Vec::with_capacity(requests.len());
        for ((key, place), (_, rule)) in hashed.iter().zip(&places).zip(requests) {
            let shard = &mut *locked[*place].1;
            pending.push(self.counted(shard, |shard| shard.judge(*key, rule, mode, now))?);
        }
        let allowed = pending.iter().all(|pending| pending.verdict.allowed);
        if allowed {
            let mut touched: Vec<(usize, u32)> = Vec::new();
            for (index, (key, (_, rule))) in hashed.iter().zip(requests).enumerate() {
                let shard = &mut *locked[places[index]].1;
                let made = self.counted(shard, |shard| {
                    shard.apply(*key, rule, &pending[index], made, || self.next_sequence(), now)
                });
                touched.extend(made.or(pending[index].place).map(|place| (places[index], place)));
            }
            self.make_room_after(&mut locked, &touched, now);
        } else {
            // Those that would have allowed it tell what is there without it.
            for (index, (key, (_, rule))) in hashed.iter().zip(requests).enumerate() {
                if pending[index].after.is_some() {
                    pending[index] = locked[places[index]].1.judge(*key, rule, Mode::DryRun, now)?;
                }
            }
        }
        verdicts.extend(pending.iter().map(|pending| pending.verdict));
        Ok(allowed)
    }

    /// What several keys have grown by is made up for in their shards, without touching these keys themselves.
    fn make_room_after(
        &self,
        locked: &mut [(usize, MutexGuard<'_, Shard>)],
        touched: &[(usize, u32)],
        now: Nanos,
    ) {
        for (index, (_, shard)) in locked.iter_mut().enumerate() {
            if !self.is_full(0, 0) {
                return;
            }
            let here = touched.iter().filter(|(at, _)| *at == index).map(|(_, place)| *place);
            let keep: Vec<u32> = here.collect();
            self.make_room(shard, 0, 0, &keep, now);
        }
    }

    // --- housekeeping -------------------------------------------------------------------------------------------

    /// Takes away what has expired in one of the [`SHARDS`], looking at `budget` entries at most. True if there may be
    /// more. Nobody has to call it for correct answers; it gives memory back.
    pub fn sweep(&self, shard: usize, now: Nanos, budget: usize) -> bool {
        let mut shard = self.lock(shard % SHARDS);
        self.counted(&mut shard, |shard| shard.sweep(now, budget))
    }

    /// How much is stored. Entries whose time has come count until they were taken away.
    #[must_use]
    pub fn totals(&self) -> Totals {
        (0..SHARDS).map(|shard| self.lock(shard).totals).fold(Totals::default(), |sum, part| Totals {
            counters: sum.counters + part.counters,
            buffers: sum.buffers + part.buffers,
            buffer_bytes: sum.buffer_bytes + part.buffer_bytes,
            bytes: sum.bytes + part.bytes,
            expired: sum.expired + part.expired,
            evicted: sum.evicted + part.evicted,
        })
    }

    /// How many entries there are, without waiting for any lock.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Begins to walk through everything that is stored now.
    #[must_use]
    pub fn list(self: &Arc<Self>) -> Listing {
        Listing::new(Arc::clone(self), self.sequence.load(Ordering::Relaxed).saturating_sub(1))
    }

    // --- persistence --------------------------------------------------------------------------------------------

    /// From now on changes of entries that were made to be kept are there for [`Limiter::fetch_changes`], beginning with
    /// everything that is there and was not restored.
    pub fn watch_changes(&self) {
        (0..SHARDS).for_each(|shard| self.lock(shard).watch_changes());
    }

    /// Ends that: nobody will fetch changes any more.
    pub fn forget_changes(&self) {
        (0..SHARDS).for_each(|shard| self.lock(shard).forget_changes());
    }

    /// How many changes of one of the [`SHARDS`] wait to be fetched, at most. Never more than there are entries in it and
    /// were fetched of it.
    #[must_use]
    pub fn unfetched(&self, shard: usize) -> usize {
        self.lock(shard % SHARDS).unfetched()
    }

    /// Gives out up to `max` changes of one of the [`SHARDS`], of each entry the latest state once; fewer if they are of
    /// long buffers. False when there are no more. Runs under the shard's lock.
    pub fn fetch_changes(&self, shard: usize, max: usize, give: impl FnMut(Change)) -> bool {
        self.lock(shard % SHARDS).fetch_changes(max, give)
    }

    /// Puts back what was kept. To be done in the order of the sequences, before anything else is stored. False if its
    /// time has come or its key is taken.
    pub fn restore(&self, kept: &Kept, now: Nanos) -> bool {
        self.sequence.fetch_max(kept.sequence.saturating_add(1), Ordering::Relaxed);
        self.with(&kept.key, |shard, key| shard.restore(key, kept, now))
    }
}

/// Steps that one caller makes one behind the other, as a connection does whose peer asks for many things at once. The lock
/// of a shard is kept from one to the next for as long as they fall on that shard, a few microseconds at most: a hundred
/// requests for one counter that everybody counts with take it once or twice, and its memory changes cores as seldom.
///
/// Whoever has one reaches the store through [`Run::store`] only: the store itself would wait for the lock that is held here.
#[derive(Debug)]
pub struct Run<'a> {
    store: &'a Limiter,
    held: Option<(usize, MutexGuard<'a, Shard>)>,
    steps: usize,
}

impl<'a> Run<'a> {
    /// Lets go, and answers with the store for everything that is no step here.
    #[inline]
    pub fn store(&mut self) -> &'a Limiter {
        (self.held, self.steps) = (None, 0);
        self.store
    }

    #[inline]
    fn step<T>(&mut self, key: &[u8], step: impl FnOnce(&Limiter, &mut Shard, Hashed<'_>) -> T) -> T {
        let store = self.store;
        let hashed = store.hashed(key);
        let number = shard_of(hashed.hash);
        if self.steps >= RUN_STEPS_MAX || self.held.as_ref().is_some_and(|(held, _)| *held != number) {
            self.store();
        }
        self.steps += 1;
        let (_, shard) = self.held.get_or_insert_with(|| (number, store.lock(number)));
        store.counted(shard, |shard| step(store, shard, hashed))
    }

    /// As [`Limiter::query`].
    #[inline]
    #[must_use]
    pub fn query(&mut self, key: &[u8], now: Nanos) -> Option<Counter> {
        self.step(key, |_, shard, key| shard.query(key, now))
    }

    /// As [`Limiter::adjust_quota`].
    #[inline]
    pub fn adjust_quota(&mut self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.step(key, |_, shard, key| shard.adjust_quota(key, adjust, by, now))
    }

    /// As [`Limiter::adjust_ttl`].
    pub fn adjust_ttl(&mut self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.step(key, |_, shard, key| shard.adjust_ttl(key, adjust, by, now))
    }

    /// As [`Limiter::consume`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn consume(
        &mut self,
        key: &[u8],
        rule: &Rule,
        mode: Mode,
        made: impl Into<Made>,
        now: Nanos,
    ) -> Result<Verdict, RuleError> {
        let made = clamp_bits(made.into());
        self.step(key, |store, shard, key| store.consume_in(shard, key, rule, mode, made, now))
    }
}
