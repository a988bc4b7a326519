//! The store's public interface. Threads share it, and each call is one atomic step.
//!
//! ```
//! use std::hash::RandomState;
//!
//! use mqcore_limiter::limiter::{Limiter, LimiterConfig};
//! use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
//! use mqcore_limiter::time::{Nanos, Ttl};
//!
//! let limiter = Limiter::new(LimiterConfig::default(), RandomState::new());
//! let minute = Ttl { unit: 5, amount: 1 };
//! let rule = Rule { algorithm: Algorithm::FixedWindow, limit: 2, cost: 1, period: minute };
//! let now = Nanos(1);
//!
//! assert!(limiter.consume(b"user:7", &rule, ConsumeMode::Take, 64, now)?.allowed);
//! assert!(limiter.consume(b"user:7", &rule, ConsumeMode::Take, 64, now)?.allowed);
//! let decision = limiter.consume(b"user:7", &rule, ConsumeMode::Take, 64, now)?;
//! assert!(!decision.allowed);
//! assert_eq!(decision.retry_after, minute.nanos());
//! # Ok::<(), mqcore_limiter::rule::RuleError>(())
//! ```

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::change::{EntryChange, PersistentEntry};
use crate::creation::Creation;
use crate::hasher::KeyHasher;
use crate::listing::Listing;
use crate::owner::KeyOwner;
use crate::rule::{ConsumeMode, LimitDecision, Rule, RuleError};
use crate::shard::{HashedKey, NewEntry, PendingDecision, Shard, entry_bytes};
use crate::time::{Nanos, Ttl};

pub use crate::run::StepRun;
pub use crate::shard::{Adjust, CounterView, EntryProperties, StoreTotals};
pub use crate::uses::Usage;

/// Number of shards of a store. A fuzzer gets few, because its scripts create and list many stores, and their findings do not
/// depend on the number.
#[allow(unexpected_cfgs, reason = "cargo-fuzz sets it")]
pub const SHARDS: usize = if cfg!(fuzzing) { 4 } else { 64 };

/// Maximum size of a key in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// Maximum number of keys in one [`Limiter::consume_all`].
pub const RULES_MAX: usize = 32;

/// Maximum number of entries evicted by one call. A buffer that still does not fit is rejected.
const EVICTED_MAX: usize = 128;

/// Number of expired entries examined per creation. More than one, so that a store without other sweeps does not fill up with
/// expired entries.
const SWEPT_PER_CREATION: usize = 4;

/// Configuration of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterConfig {
    /// Maximum number of entries. When it is reached, a new entry evicts the one that expires soonest. Default 16,777,216.
    pub keys_max: u64,
    /// Maximum memory in bytes: 120 per entry, plus long keys and buffers. Default 2 GiB.
    pub bytes_max: u64,
    /// Maximum number of entries of one owner. Further ones are rejected. Default 8,388,608.
    pub keys_per_user_max: u64,
    /// Whether to count reads and writes of each entry, which costs 40 bytes per entry. Default true.
    pub metrics: bool,
}

impl Default for LimiterConfig {
    fn default() -> Self {
        Self { keys_max: 1 << 24, bytes_max: 2 << 30, keys_per_user_max: 1 << 23, metrics: true }
    }
}

/// A store of counters and buffers. Share it as `Arc<Limiter>`.
#[derive(Debug)]
pub struct Limiter {
    shards: Box<[Padded]>,
    hasher: KeyHasher,
    config: LimiterConfig,
    keys: AtomicU64,
    bytes: AtomicU64,
    sequence: AtomicU64,
    /// Entries that were rejected because of their owner's limit.
    rejected: AtomicU64,
}

/// Keeps the locks of two shards out of the same cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// The result of [`Limiter::get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferView<'a> {
    /// Unit of the time to live.
    pub unit: u8,
    /// Time of expiry.
    pub deadline: Nanos,
    /// Content; empty for a counter.
    pub value: &'a [u8],
}

#[inline]
pub(crate) const fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

/// Limits the width of a counter to 64 bits.
#[inline]
const fn clamp_bits(made: EntryProperties) -> EntryProperties {
    EntryProperties { bits: if made.bits == 0 || made.bits > 64 { 64 } else { made.bits }, ..made }
}

impl Limiter {
    /// Creates an empty store.
    #[must_use]
    pub fn new(config: LimiterConfig, hasher: impl Into<KeyHasher>) -> Self {
        let hasher = hasher.into();
        let shard = |_| Padded(Mutex::new(Shard::new(hasher.clone(), config.metrics)));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher,
            config,
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
            rejected: AtomicU64::new(0),
        }
    }

    /// The configuration of this store.
    #[must_use]
    pub const fn config(&self) -> &LimiterConfig {
        &self.config
    }

    /// A shard stays consistent after a panic, so a poisoned lock is still usable.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn hashed<'a>(&self, key: &'a [u8]) -> HashedKey<'a> {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        HashedKey { key, hash: hasher.finish() }
    }

    /// Runs one step on the shard of a key, and updates the totals of the store.
    #[inline]
    fn with<T>(&self, key: &[u8], step: impl FnOnce(&mut Shard, HashedKey<'_>) -> T) -> T {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        self.counted(&mut shard, |shard| step(shard, hashed))
    }

    /// Runs one step on a shard, and updates the totals of the store. Steps must not contain each other: what the inner one
    /// changes would count twice.
    #[inline]
    pub(crate) fn counted<T>(&self, shard: &mut Shard, step: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.totals;
        let result = step(shard);
        self.count(before, shard);
        result
    }

    /// Updates the totals of the store by what a shard has changed since it had the totals `before`.
    #[inline]
    fn count(&self, before: StoreTotals, shard: &Shard) {
        let after = shard.totals;
        if before.bytes != after.bytes {
            // Two's complement: adding a negative difference subtracts.
            self.keys.fetch_add(after.keys().wrapping_sub(before.keys()), Ordering::Relaxed);
            self.bytes.fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        }
    }

    /// Whether `keys` more entries of `bytes` in total would exceed a limit.
    pub(crate) fn is_full(&self, keys: u64, bytes: u64) -> bool {
        self.keys.load(Ordering::Relaxed).saturating_add(keys) > self.config.keys_max
            || self.bytes.load(Ordering::Relaxed).saturating_add(bytes) > self.config.bytes_max
    }

    /// Makes room for new entries by removing expired entries first and then those that expire soonest, from this shard and, if
    /// it has none, from others. Never removes the entries in `keep`. Returns false if the store is still full.
    pub(crate) fn make_room(
        &self,
        shard: &mut Shard,
        keys: u64,
        bytes: u64,
        keep: &[u32],
        now: Nanos,
    ) -> bool {
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

    /// Never waits for a lock: a thread that holds the lock of one shard must not wait for another.
    fn evict_elsewhere(&self, now: Nanos) -> bool {
        self.shards.iter().any(|shard| match shard.0.try_lock() {
            Ok(mut shard) => self.counted(&mut shard, |shard| shard.evict(&[], now)),
            Err(_) => false,
        })
    }

    /// Begins a run of several steps by one caller.
    #[inline]
    #[must_use]
    pub const fn run(&self) -> StepRun<'_> {
        StepRun::new(self)
    }

    #[inline]
    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    // --- counters and buffers -----------------------------------------------------------------------------------

    /// Takes a place for a new entry of this owner.
    #[inline]
    pub(crate) fn take_place(&self, owner: Option<&Arc<KeyOwner>>) -> bool {
        let taken = owner.is_none_or(|owner| owner.take());
        if !taken {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Number of entries that were rejected because their owner had [`LimiterConfig::keys_per_user_max`] of them.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Creates a counter. Returns false, without a change, if the key exists or its owner may have no more keys. A counter
    /// that would expire immediately is not stored.
    pub fn insert<'a>(
        &self,
        key: &[u8],
        quota: u64,
        made: impl Into<Creation<'a>>,
        ttl: Ttl,
        now: Nanos,
    ) -> bool {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        if let Some(place) = self.counted(&mut shard, |shard| shard.find(hashed, now)) {
            shard.count_read(place, now);
            return false;
        }
        let deadline = now.after(ttl.nanos());
        if deadline > now {
            let Creation { properties, owner } = made.into();
            if !self.take_place(owner) {
                return false;
            }
            self.make_room(&mut shard, 1, entry_bytes(key), &[], now);
            let terms = NewEntry { made: clamp_bits(properties), unit: ttl.unit, deadline };
            let sequence = self.next_sequence();
            let place = self.counted(&mut shard, |shard| shard.insert(hashed, quota, terms, sequence, now));
            shard.own(place, owner);
        }
        true
    }

    /// Reads a counter. A buffer reads as a counter with quota 0.
    #[must_use]
    pub fn query(&self, key: &[u8], now: Nanos) -> Option<CounterView> {
        self.with(key, |shard, key| shard.query(key, now))
    }

    /// Changes a quota. Returns false, without a change, if the counter does not exist or would become negative.
    pub fn adjust_quota(&self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.with(key, |shard, key| shard.adjust_quota(key, adjust, by, now))
    }

    /// Changes a time to live, in the unit with which the entry was created. If the new deadline has passed, the entry expires
    /// immediately. Returns false if the entry does not exist, or is a sliding window or bucket.
    pub fn adjust_ttl(&self, key: &[u8], adjust: Adjust, by: u64, now: Nanos) -> bool {
        self.with(key, |shard, key| shard.adjust_ttl(key, adjust, by, now))
    }

    /// Deletes a counter or buffer. Returns false if it does not exist.
    pub fn purge(&self, key: &[u8], now: Nanos) -> bool {
        self.with(key, |shard, key| shard.purge(key, now))
    }

    /// Creates a buffer, persistent if `kept`, or replaces its value, unit and deadline. Returns false, without a change, if the
    /// key belongs to a counter or the store has no room.
    pub fn set(&self, key: &[u8], value: &[u8], kept: bool, ttl: Ttl, now: Nanos) -> bool {
        self.set_for(None, key, value, kept, ttl, now)
    }

    /// Like [`Limiter::set`], for an owner. Returns false as well if the owner may have no more keys.
    pub fn set_for(
        &self,
        owner: Option<&Arc<KeyOwner>>,
        key: &[u8],
        value: &[u8],
        kept: bool,
        ttl: Ttl,
        now: Nanos,
    ) -> bool {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        let deadline = now.after(ttl.nanos());
        let mut is_new = false;
        if deadline > now {
            let held = self.counted(&mut shard, |shard| shard.held(hashed, now));
            is_new = held.is_none();
            if is_new && !self.take_place(owner) {
                return false;
            }
            let (keep, held): (&[u32], u64) = match &held {
                Some((place, held)) => (std::slice::from_ref(place), *held),
                None => (&[], 0),
            };
            let (keys, fixed) = if keep.is_empty() { (1, entry_bytes(key)) } else { (0, 0) };
            let bytes = (fixed + value.len() as u64).saturating_sub(held);
            if bytes > 0 && !self.make_room(&mut shard, keys, bytes, keep, now) {
                if let Some(owner) = owner.filter(|_| is_new) {
                    owner.give_back();
                }
                return false;
            }
        }
        let terms = NewEntry { made: EntryProperties { bits: 64, kept }, unit: ttl.unit, deadline };
        let sequence = self.next_sequence();
        self.counted(&mut shard, |shard| {
            let done = shard.set(hashed, value, terms, sequence, now);
            if is_new && let Some(place) = shard.find(hashed, now) {
                shard.own(place, owner);
            }
            done
        })
    }

    /// Reads a buffer under its shard's lock, so `read` should only copy. A counter reads as an empty buffer.
    pub fn get<T>(&self, key: &[u8], now: Nanos, read: impl FnOnce(Option<BufferView<'_>>) -> T) -> T {
        self.with(key, |shard, key| {
            let found = shard.get(key, now);
            read(found.map(|(unit, deadline, value)| BufferView { unit, deadline, value }))
        })
    }

    /// Returns the usage of an entry, by full minutes; zeros without metrics.
    #[must_use]
    pub fn stat(&self, key: &[u8], now: Nanos) -> Option<Usage> {
        self.with(key, |shard, key| shard.stat(key, now))
    }

    // --- rules --------------------------------------------------------------------------------------------------

    /// Applies a rule to a key: creates, checks and subtracts in one step. `made` applies to an entry that this call creates.
    ///
    /// # Errors
    /// [`RuleError`] if the rule cannot be applied. Nothing has changed then.
    pub fn consume<'a>(
        &self,
        key: &[u8],
        rule: &Rule,
        mode: ConsumeMode,
        made: impl Into<Creation<'a>>,
        now: Nanos,
    ) -> Result<LimitDecision, RuleError> {
        let hashed = self.hashed(key);
        let mut shard = self.lock(shard_of(hashed.hash));
        self.consume_in(&mut shard, hashed, rule, mode, made.into(), now)
    }

    #[inline]
    pub(crate) fn consume_in(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        rule: &Rule,
        mode: ConsumeMode,
        made: Creation<'_>,
        now: Nanos,
    ) -> Result<LimitDecision, RuleError> {
        let mut uncounted = shard.totals;
        let verdict = self.judge_and_apply(shard, &mut uncounted, (key, rule, mode), made, now);
        self.count(uncounted, shard);
        verdict
    }

    /// Making room is a step of its own, which counts by itself: `uncounted` are the totals since which the changes of this
    /// one do not count yet.
    #[inline]
    fn judge_and_apply(
        &self,
        shard: &mut Shard,
        uncounted: &mut StoreTotals,
        (key, rule, mode): (HashedKey<'_>, &Rule, ConsumeMode),
        made: Creation<'_>,
        now: Nanos,
    ) -> Result<LimitDecision, RuleError> {
        let pending = shard.judge(key, rule, mode, now)?;
        if pending.may_create() {
            shard.disown_expired(&pending);
            if !self.take_place(made.owner) {
                return Err(RuleError::OwnerFull);
            }
        }
        if pending.after.is_some() && pending.place.or(pending.expired).is_none() {
            self.count(*uncounted, shard);
            self.make_room(shard, 1, entry_bytes(key.key), &[], now);
            *uncounted = shard.totals;
        }
        self.apply_in(shard, key, rule, &pending, made, now);
        Ok(pending.verdict)
    }

    /// Applies a decision, for which the owner has taken a place if it may create an entry. Returns the place of the entry
    /// that it created, if any.
    #[inline]
    pub(crate) fn apply_in(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        rule: &Rule,
        pending: &PendingDecision,
        made: Creation<'_>,
        now: Nanos,
    ) -> Option<u32> {
        let properties = clamp_bits(made.properties);
        let created = shard.apply(key, rule, pending, properties, || self.next_sequence(), now);
        match (created, made.owner) {
            (Some(place), owner) => shard.own(place, owner),
            (None, Some(owner)) if pending.may_create() => owner.give_back(),
            (None, _) => {}
        }
        created
    }

    // --- housekeeping -------------------------------------------------------------------------------------------

    /// Removes expired entries from one of the [`SHARDS`], examining at most `budget` entries. Returns true if there may be
    /// more.
    ///
    /// Sweeping only releases memory; answers are correct without it.
    pub fn sweep(&self, shard: usize, now: Nanos, budget: usize) -> bool {
        let mut shard = self.lock(shard % SHARDS);
        self.counted(&mut shard, |shard| shard.sweep(now, budget))
    }

    /// Sums up the contents of all shards. Expired entries count until they are removed.
    #[must_use]
    pub fn totals(&self) -> StoreTotals {
        (0..SHARDS).map(|shard| self.lock(shard).totals).fold(StoreTotals::default(), |sum, part| {
            StoreTotals {
                counters: sum.counters + part.counters,
                buffers: sum.buffers + part.buffers,
                buffer_bytes: sum.buffer_bytes + part.buffer_bytes,
                bytes: sum.bytes + part.bytes,
                expired: sum.expired + part.expired,
                evicted: sum.evicted + part.evicted,
            }
        })
    }

    /// Number of entries, without taking a lock.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Begins an iteration over all entries that exist now.
    #[must_use]
    pub fn list(self: &Arc<Self>) -> Listing {
        Listing::new(Arc::clone(self), self.sequence.load(Ordering::Relaxed).saturating_sub(1))
    }

    // --- persistence --------------------------------------------------------------------------------------------

    /// Starts recording the changes of persistent entries for [`Limiter::fetch_changes`], beginning with all entries that exist
    /// and were not restored.
    pub fn watch_changes(&self) {
        (0..SHARDS).for_each(|shard| self.lock(shard).watch_changes());
    }

    /// Stops recording changes.
    pub fn forget_changes(&self) {
        (0..SHARDS).for_each(|shard| self.lock(shard).forget_changes());
    }

    /// Upper bound on the number of unfetched changes in one of the [`SHARDS`]. It never exceeds the number of entries in the
    /// shard plus those fetched from it.
    #[must_use]
    pub fn unfetched(&self, shard: usize) -> usize {
        self.lock(shard % SHARDS).unfetched()
    }

    /// Passes up to `max` changes of one of the [`SHARDS`] to `give`, with the latest state of each entry once; fewer if they
    /// contain long buffers. Returns false when there are no more. Runs under the shard's lock.
    pub fn fetch_changes(&self, shard: usize, max: usize, give: impl FnMut(EntryChange)) -> bool {
        self.lock(shard % SHARDS).fetch_changes(max, give)
    }

    /// Gives no new entry a sequence up to `last`. Default: sequences begin at 1.
    pub fn skip_sequences(&self, last: u64) {
        self.sequence.fetch_max(last.saturating_add(1), Ordering::Relaxed);
    }

    /// Restores a persisted entry. Call it in the order of the sequences, before anything else is stored. Returns false if the
    /// entry has expired or its key exists.
    pub fn restore(&self, kept: &PersistentEntry, now: Nanos) -> bool {
        self.sequence.fetch_max(kept.sequence.saturating_add(1), Ordering::Relaxed);
        self.with(&kept.key, |shard, key| shard.restore(key, kept, now))
    }
}
