//! One shard of the store: entries, the index of their keys, the wheel of their deadlines, and the list in order of creation.

mod listing;
mod persistence;
mod rules;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::arena::{Arena, NONE};
use crate::entry::{Entry, EntryKind, ListLinks, PersistenceMarks, SHORT_KEY};
use crate::hasher::KeyHasher;
use crate::index::HashIndex;
use crate::owner::KeyOwner;
use crate::rule::{Bucket, Sliding};
use crate::time::Nanos;
use crate::uses::{Usage, UsageCounter};
use crate::wheel::Wheel;

pub(crate) use rules::PendingDecision;

/// Accounted size of an entry in bytes, without a long key and the content of its cell.
const ENTRY_BYTES: u64 = 120;

/// Accounted size of an entry in bytes, without the content of a buffer.
#[inline]
pub(crate) const fn entry_bytes(key: &[u8]) -> u64 {
    if key.len() <= SHORT_KEY { ENTRY_BYTES } else { ENTRY_BYTES + key.len() as u64 }
}

/// A fetch of changes returns one change less per this many bytes of buffer content.
const BUFFER_STEP_BYTES: usize = 4096;

/// Content that does not fit into an entry.
#[derive(Debug, Default)]
enum Cell {
    #[default]
    Free,
    Buffer(Box<[u8]>),
    Sliding(Sliding),
    Bucket(Bucket),
}

const _: () = assert!(size_of::<Cell>() == 64, "a cell is one cache line");

/// The entries of one shard, and the structures that find them.
#[derive(Debug)]
pub(crate) struct Shard {
    hasher: KeyHasher,
    entries: Arena<Entry>,
    long_keys: Arena<Box<[u8]>>,
    cells: Arena<Cell>,
    /// Parallel to `entries`; `None` without metrics.
    uses: Option<Arena<UsageCounter>>,
    /// Parallel to `entries`, as far as entries have owners.
    owners: Arena<Option<Arc<KeyOwner>>>,
    /// Number of entries with owners.
    owned: u64,
    index: HashIndex,
    wheel: Wheel,
    first: u32,
    last: u32,
    /// Positions of the open listings; `None` in an unused slot.
    cursors: Vec<Option<Cursor>>,
    /// `None`: changes are not recorded.
    changes: Option<Changes>,
    pub(crate) totals: StoreTotals,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// Next entry; [`NONE`] at the end.
    at: u32,
    /// Last sequence when the listing began. Later entries do not belong to it.
    until: u64,
}

#[derive(Debug, Default)]
struct Changes {
    changed: Vec<u32>,
    removed: Vec<u64>,
}

/// The contents of a shard or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreTotals {
    /// Number of counters, sliding windows and buckets.
    pub counters: u64,
    /// Number of buffers.
    pub buffers: u64,
    /// Bytes in buffers.
    pub buffer_bytes: u64,
    /// Accounted size of everything in bytes.
    pub bytes: u64,
    /// Number of entries removed because they expired.
    pub expired: u64,
    /// Number of entries evicted before they expired, because a limit was reached.
    pub evicted: u64,
}

impl StoreTotals {
    /// Number of counters and buffers.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.counters + self.buffers
    }
}

/// The result of [`Limiter::query`](crate::limiter::Limiter::query).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterView {
    /// Remaining quota; 0 for a buffer.
    pub quota: u64,
    /// Unit of the time to live.
    pub unit: u8,
    /// Time of expiry.
    pub deadline: Nanos,
}

/// How a number is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adjust {
    /// Replace it.
    Patch,
    /// Add to it. A quota wraps around at the width of its counter.
    Increase,
    /// Add to it, saturating at the largest value.
    Raise,
    /// Subtract from it. The change fails if a quota would become negative.
    Decrease,
}

/// Properties of an entry that a call may create. Converts from a number of bits, for an entry that is not persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryProperties {
    /// Width of the counter in bits, at which it wraps around.
    pub bits: u8,
    /// Whether the entry is persistent: [`Limiter::fetch_changes`](crate::limiter::Limiter::fetch_changes) reports its changes.
    pub kept: bool,
}

impl From<u8> for EntryProperties {
    fn from(bits: u8) -> Self {
        Self { bits, kept: false }
    }
}

const fn marks_of(kept: bool) -> PersistenceMarks {
    if kept { PersistenceMarks::KEPT } else { PersistenceMarks::NONE }
}

/// A key with its hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashedKey<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
}

#[inline]
fn top(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

/// Compares a short key with a stored one, without a call to `memcmp`.
#[inline]
fn is_same(stored: &[u8; SHORT_KEY], key: &[u8]) -> bool {
    if let (Some(start), Some(end)) = (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        // From eight bytes on, two overlapping words cover the whole key.
        let at = key.len() - 8;
        stored[..8] == *start && stored[at..at + 8] == *end
    } else {
        stored.iter().zip(key).all(|(stored, byte)| stored == byte)
    }
}

#[inline]
fn hash_key(hasher: &KeyHasher, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl Shard {
    pub(crate) fn new(hasher: KeyHasher, metrics: bool) -> Self {
        Self {
            hasher,
            entries: Arena::new(),
            long_keys: Arena::new(),
            cells: Arena::new(),
            uses: metrics.then(Arena::new),
            owners: Arena::new(),
            owned: 0,
            index: HashIndex::new(),
            wheel: Wheel::new(),
            first: NONE,
            last: NONE,
            cursors: Vec::new(),
            changes: None,
            totals: StoreTotals::default(),
        }
    }

    // --- looking ------------------------------------------------------------------------------------------------

    #[inline]
    fn lookup(&self, key: HashedKey<'_>) -> Option<u32> {
        self.index.find(key.hash, |place| {
            let entry = self.entries.get(place);
            match entry.long_key() {
                None => {
                    let length = usize::from(entry.key_bytes);
                    length == key.key.len() && is_same(&entry.key, key.key)
                }
                Some(long) => **self.long_keys.get(long) == *key.key,
            }
        })
    }

    /// Returns the unexpired entry of a key. Removes an expired one.
    #[inline]
    pub(crate) fn find(&mut self, key: HashedKey<'_>, now: Nanos) -> Option<u32> {
        let place = self.lookup(key)?;
        if self.entries.get(place).deadline > now {
            return Some(place);
        }
        self.expire(place);
        None
    }

    fn key_of<'a>(&'a self, entry: &'a Entry) -> &'a [u8] {
        match entry.long_key() {
            None => &entry.key[..usize::from(entry.key_bytes)],
            Some(long) => self.long_keys.get(long),
        }
    }

    #[inline]
    fn count(&mut self, place: u32, now: Nanos, reads: u32, writes: u32) {
        if let Some(uses) = &mut self.uses {
            uses.get_mut(place).count(now.minute(), reads, writes);
        }
    }

    /// Remaining quota; for windows and buckets according to the rule applied last.
    fn quota(&self, entry: &Entry, now: Nanos) -> u64 {
        match entry.kind {
            EntryKind::Counter => entry.value,
            EntryKind::Free | EntryKind::Buffer => 0,
            EntryKind::Sliding | EntryKind::Bucket => match self.cells.get(entry.value as u32) {
                Cell::Sliding(sliding) => sliding.limit.saturating_sub(sliding.used(now)),
                Cell::Bucket(bucket) => bucket.remaining(bucket.missing_at(now)),
                Cell::Free | Cell::Buffer(_) => 0,
            },
        }
    }

    pub(crate) fn query(&mut self, key: HashedKey<'_>, now: Nanos) -> Option<CounterView> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        let entry = self.entries.get(place);
        Some(CounterView { quota: self.quota(entry, now), unit: entry.unit, deadline: entry.deadline })
    }

    /// Returns unit, deadline and value of a buffer; the value is empty for a counter.
    pub(crate) fn get(&mut self, key: HashedKey<'_>, now: Nanos) -> Option<(u8, Nanos, &[u8])> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        let entry = self.entries.get(place);
        let value: &[u8] = if entry.kind == EntryKind::Buffer
            && let Cell::Buffer(value) = self.cells.get(entry.value as u32)
        {
            value
        } else {
            &[]
        };
        Some((entry.unit, entry.deadline, value))
    }

    pub(crate) fn stat(&mut self, key: HashedKey<'_>, now: Nanos) -> Option<Usage> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        Some(self.uses.as_mut().map_or(Usage::default(), |uses| uses.get_mut(place).read(now.minute())))
    }

    // --- changing -----------------------------------------------------------------------------------------------

    /// Creates an entry for a key that has none.
    fn create(&mut self, key: HashedKey<'_>, entry: Entry, sequence: u64, now: Nanos) -> u32 {
        let mut stored = [0; SHORT_KEY];
        if key.key.len() <= SHORT_KEY {
            stored[..key.key.len()].copy_from_slice(key.key);
        } else {
            let long = self.long_keys.insert(key.key.into());
            stored[..4].copy_from_slice(&long.to_le_bytes());
        }
        let place = self.entries.insert_over(|old| Entry {
            key: stored,
            marks: entry.marks.with(old.marks.only(PersistenceMarks::LISTED)),
            key_bytes: key.key.len() as u8,
            sequence,
            ..entry
        });
        let Self { index, entries, long_keys, hasher, .. } = self;
        index.insert(key.hash, place, |place| {
            let entry: &Entry = entries.get(place);
            match entry.long_key() {
                None => hash_key(hasher, &entry.key[..usize::from(entry.key_bytes)]),
                Some(long) => hash_key(hasher, long_keys.get(long)),
            }
        });
        self.wheel.insert(place, &mut self.entries);
        self.join_order(place);
        if let Some(uses) = &mut self.uses {
            uses.reach(place);
            *uses.get_mut(place) = UsageCounter::new(now.minute());
            uses.get_mut(place).count(now.minute(), 1, 1);
        }
        match entry.kind {
            EntryKind::Buffer => {
                self.totals.buffers += 1;
                self.totals.buffer_bytes += self.buffer_bytes(&entry);
            }
            _ => self.totals.counters += 1,
        }
        self.totals.bytes += entry_bytes(key.key) + self.buffer_bytes(&entry);
        self.changed(place);
        place
    }

    /// Content size of a buffer in bytes; 0 for anything else.
    fn buffer_bytes(&self, entry: &Entry) -> u64 {
        if entry.kind != EntryKind::Buffer {
            return 0;
        }
        match self.cells.get(entry.value as u32) {
            Cell::Buffer(value) => value.len() as u64,
            Cell::Free | Cell::Sliding(_) | Cell::Bucket(_) => 0,
        }
    }

    /// Sets the owner of an entry, which has taken a place for it. The former owner gets its place back.
    #[inline]
    pub(crate) fn own(&mut self, place: u32, owner: Option<&Arc<KeyOwner>>) {
        if owner.is_none() && self.owned == 0 {
            return;
        }
        self.owners.reach(place);
        self.owned += u64::from(owner.is_some());
        let former = std::mem::replace(self.owners.get_mut(place), owner.cloned());
        if let Some(former) = former {
            former.give_back();
            self.owned -= 1;
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, place: u32) {
        self.own(place, None);
        let entry = *self.entries.get(place);
        let hash = hash_key(&self.hasher, self.key_of(&entry));
        self.index.remove(hash, place);
        self.wheel.remove(place, &mut self.entries);
        self.leave_order(place);
        let held = self.buffer_bytes(&entry);
        self.totals.bytes -= ENTRY_BYTES + held;
        if entry.kind == EntryKind::Buffer {
            self.totals.buffers -= 1;
            self.totals.buffer_bytes -= held;
        } else {
            self.totals.counters -= 1;
        }
        if let Some(long) = entry.long_key() {
            self.totals.bytes -= self.long_keys.remove(long).len() as u64;
        }
        if entry.kind != EntryKind::Counter {
            self.cells.remove(entry.value as u32);
        }
        self.entries.remove(place);
        self.entries.get_mut(place).marks = entry.marks.only(PersistenceMarks::LISTED);
        if let Some(changes) = &mut self.changes
            && entry.marks.has(PersistenceMarks::FETCHED)
        {
            changes.removed.push(entry.sequence);
        }
    }

    /// Appends an entry to the list in order of creation.
    fn join_order(&mut self, place: u32) {
        let previous = std::mem::replace(&mut self.last, place);
        self.entries.get_mut(place).order = ListLinks { previous, next: NONE };
        match previous {
            NONE => self.first = place,
            previous => self.entries.get_mut(previous).order.next = place,
        }
    }

    fn leave_order(&mut self, place: u32) {
        let ListLinks { previous, next } = self.entries.get(place).order;
        match previous {
            NONE => self.first = next,
            previous => self.entries.get_mut(previous).order.next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.entries.get_mut(next).order.previous = previous,
        }
        for cursor in self.cursors.iter_mut().flatten() {
            if cursor.at == place {
                cursor.at = next;
            }
        }
    }

    fn expire(&mut self, place: u32) {
        self.remove(place);
        self.totals.expired += 1;
    }

    #[inline]
    fn changed(&mut self, place: u32) {
        if let Some(changes) = &mut self.changes {
            let entry = self.entries.get_mut(place);
            if entry.marks.has(PersistenceMarks::KEPT) && !entry.marks.has(PersistenceMarks::LISTED) {
                entry.marks = entry.marks.with(PersistenceMarks::LISTED);
                changes.changed.push(place);
            }
        }
    }

    #[inline]
    fn set_deadline(&mut self, place: u32, deadline: Nanos) {
        self.entries.get_mut(place).deadline = deadline;
        self.wheel.move_to_deadline(place, &mut self.entries);
    }

    /// Creates a counter. The key must not exist, and `deadline` must be in the future.
    pub(crate) fn insert(
        &mut self,
        key: HashedKey<'_>,
        quota: u64,
        terms: NewEntry,
        sequence: u64,
        now: Nanos,
    ) -> u32 {
        let NewEntry { made, unit, deadline } = terms;
        let EntryProperties { bits, kept } = made;
        let marks = marks_of(kept);
        let entry =
            Entry { value: quota, deadline, kind: EntryKind::Counter, unit, bits, marks, ..Entry::default() };
        self.create(key, entry, sequence, now)
    }

    /// Counts the lookup by an INSERT whose key exists.
    pub(crate) fn count_read(&mut self, place: u32, now: Nanos) {
        self.count(place, now, 1, 0);
    }

    pub(crate) fn adjust_quota(&mut self, key: HashedKey<'_>, adjust: Adjust, by: u64, now: Nanos) -> bool {
        let Some(place) = self.find(key, now) else { return false };
        let entry = self.entries.get_mut(place);
        let adjusted = match (entry.kind, adjust) {
            (EntryKind::Counter, Adjust::Patch) => Some(by & top(entry.bits)),
            (EntryKind::Counter, Adjust::Increase) => Some(entry.value.wrapping_add(by) & top(entry.bits)),
            (EntryKind::Counter, Adjust::Raise) => Some(entry.value.saturating_add(by).min(top(entry.bits))),
            (EntryKind::Counter, Adjust::Decrease) => entry.value.checked_sub(by),
            _ => None,
        };
        if let Some(value) = adjusted {
            entry.value = value;
            self.changed(place);
        }
        self.count(place, now, 1, u32::from(adjusted.is_some()));
        adjusted.is_some()
    }

    pub(crate) fn adjust_ttl(&mut self, key: HashedKey<'_>, adjust: Adjust, by: u64, now: Nanos) -> bool {
        let Some(place) = self.find(key, now) else { return false };
        let entry = self.entries.get(place);
        if !matches!(entry.kind, EntryKind::Counter | EntryKind::Buffer) {
            self.count(place, now, 1, 0);
            return false;
        }
        let nanos = crate::time::Ttl { unit: entry.unit, amount: by }.nanos();
        let deadline = match adjust {
            Adjust::Patch => now.after(nanos),
            Adjust::Increase | Adjust::Raise => entry.deadline.after(nanos),
            // Nothing finite shortens a time to live that never ends.
            Adjust::Decrease if entry.deadline == Nanos::NEVER => Nanos::NEVER,
            Adjust::Decrease => entry.deadline.before(nanos),
        };
        if deadline <= now {
            self.expire(place);
        } else {
            self.set_deadline(place, deadline);
            self.count(place, now, 1, 1);
            self.changed(place);
        }
        true
    }

    /// Replaces the content of a buffer, or creates it. The caller has made room. Returns false if the key belongs to a
    /// counter.
    pub(crate) fn set(
        &mut self,
        key: HashedKey<'_>,
        value: &[u8],
        terms: NewEntry,
        sequence: u64,
        now: Nanos,
    ) -> bool {
        let NewEntry { made, unit, deadline } = terms;
        let Some(place) = self.find(key, now) else {
            if deadline > now {
                let cell = self.cells.insert(Cell::Buffer(value.into()));
                let (value, kind) = (u64::from(cell), EntryKind::Buffer);
                let marks = marks_of(made.kept);
                let entry = Entry { value, deadline, kind, unit, marks, ..Entry::default() };
                self.create(key, entry, sequence, now);
            }
            return true;
        };
        let entry = *self.entries.get(place);
        if entry.kind != EntryKind::Buffer {
            self.count(place, now, 1, 0);
            return false;
        }
        if deadline <= now {
            self.expire(place);
            return true;
        }
        let held = self.buffer_bytes(&entry);
        *self.cells.get_mut(entry.value as u32) = Cell::Buffer(value.into());
        let added = value.len() as u64;
        self.totals.bytes = self.totals.bytes - held + added;
        self.totals.buffer_bytes = self.totals.buffer_bytes - held + added;
        self.entries.get_mut(place).unit = unit;
        self.set_deadline(place, deadline);
        self.count(place, now, 1, 1);
        self.changed(place);
        true
    }

    /// Returns the place of a key's entry and its content size in bytes.
    pub(crate) fn held(&mut self, key: HashedKey<'_>, now: Nanos) -> Option<(u32, u64)> {
        let place = self.find(key, now)?;
        Some((place, self.buffer_bytes(self.entries.get(place))))
    }

    pub(crate) fn purge(&mut self, key: HashedKey<'_>, now: Nanos) -> bool {
        let place = self.find(key, now);
        if let Some(place) = place {
            self.remove(place);
        }
        place.is_some()
    }

    // --- making room --------------------------------------------------------------------------------------------

    /// Removes expired entries, examining at most `budget` entries. Returns true if there may be more.
    pub(crate) fn sweep(&mut self, now: Nanos, mut budget: usize) -> bool {
        while let Some(place) = self.wheel.next_expired(now, &mut budget, &mut self.entries) {
            self.expire(place);
        }
        self.wheel.is_due(now)
    }

    /// Evicts the entry that expires soonest, except those in `keep`. Returns false if there is none.
    pub(crate) fn evict(&mut self, keep: &[u32], now: Nanos) -> bool {
        let Some(place) = self.wheel.soonest(keep, &self.entries) else { return false };
        if self.entries.get(place).deadline <= now {
            self.expire(place);
        } else {
            self.remove(place);
            self.totals.evicted += 1;
        }
        true
    }

    fn cell(&mut self, cell: Cell) -> u64 {
        u64::from(self.cells.insert(cell))
    }
}

/// Properties of a new entry besides its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry {
    pub(crate) made: EntryProperties,
    pub(crate) unit: u8,
    pub(crate) deadline: Nanos,
}
