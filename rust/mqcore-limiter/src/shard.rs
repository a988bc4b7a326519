//! One part of the store: entries, the index of their keys, the wheel of their deadlines, and the list of their order.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::arena::{Arena, NONE};
use crate::change::{Change, Content, Kept};
use crate::entry::{Entry, Kind, Links, Marks, SHORT_KEY};
use crate::index::Index;
use crate::listing::Listed;
use crate::rule::{Algorithm, Bucket, Mode, Rule, RuleError, Sliding, State, Verdict};
use crate::time::Nanos;
use crate::uses::{UseCounts, Uses};
use crate::wheel::Wheel;

/// What an entry is reckoned at besides a long key and what a cell holds.
const ENTRY_BYTES: u64 = 120;

/// What the entry of a key is reckoned at without what a buffer holds.
#[inline]
pub(crate) const fn entry_bytes(key: &[u8]) -> u64 {
    if key.len() <= SHORT_KEY { ENTRY_BYTES } else { ENTRY_BYTES + key.len() as u64 }
}

/// Bytes of a buffer for which whoever fetches changes gets one less of them at once.
const BUFFER_STEP_BYTES: usize = 4096;

/// What does not fit into an entry.
#[derive(Debug, Default)]
enum Cell {
    #[default]
    Free,
    Buffer(Box<[u8]>),
    Sliding(Sliding),
    Bucket(Bucket),
}

const _: () = assert!(size_of::<Cell>() == 64, "a cell is one cache line");

/// Which entries are where, and what they hold.
#[derive(Debug)]
pub(crate) struct Shard {
    hasher: RandomState,
    entries: Arena<Entry>,
    long_keys: Arena<Box<[u8]>>,
    cells: Arena<Cell>,
    /// Beside `entries`; `None` without metrics.
    uses: Option<Arena<UseCounts>>,
    index: Index,
    wheel: Wheel,
    first: u32,
    last: u32,
    /// Where listings stand; a place that no listing uses is `None`.
    cursors: Vec<Option<Cursor>>,
    /// `None`: nobody fetches changes.
    changes: Option<Changes>,
    pub(crate) totals: Totals,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// The next entry; [`NONE`] at the end.
    at: u32,
    /// The last entry when the listing began; nothing behind it belongs to it.
    until: u64,
}

#[derive(Debug, Default)]
struct Changes {
    changed: Vec<u32>,
    removed: Vec<u64>,
}

/// How much a part holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Counters, sliding windows and buckets.
    pub counters: u64,
    /// Buffers.
    pub buffers: u64,
    /// Bytes in buffers.
    pub buffer_bytes: u64,
    /// What all of it is reckoned at, bytes.
    pub bytes: u64,
    /// Entries taken away because their time had come.
    pub expired: u64,
    /// Entries taken away although it had not, because a ceiling was reached.
    pub evicted: u64,
}

impl Totals {
    /// Counters and buffers.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.counters + self.buffers
    }
}

/// What QUERY tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// What is left; 0 for a buffer.
    pub quota: u64,
    /// The unit of the time to live.
    pub unit: u8,
    /// When it expires.
    pub deadline: Nanos,
}

/// How a number is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adjust {
    /// Replace it.
    Patch,
    /// Add to it. A quota wraps at the width of its counter.
    Increase,
    /// Add to it, and stay at the largest value instead of wrapping.
    Raise,
    /// Subtract from it. A quota never goes below zero: the change is refused.
    Decrease,
}

/// What an entry gets that a call creates. From a number: so many bits, and not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Made {
    /// Bits of a counter: where it wraps.
    pub bits: u8,
    /// Whether its changes are told to [`Limiter::fetch_changes`](crate::limiter::Limiter::fetch_changes).
    pub kept: bool,
}

impl From<u8> for Made {
    fn from(bits: u8) -> Self {
        Self { bits, kept: false }
    }
}

const fn marks_of(kept: bool) -> Marks {
    if kept { Marks::KEPT } else { Marks::NONE }
}

/// A key with what follows from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashed<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
}

#[inline]
fn top(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

/// Whether a short key is the one that is stored, without a call for so few bytes.
#[inline]
fn is_same(stored: &[u8; SHORT_KEY], key: &[u8]) -> bool {
    if let (Some(start), Some(end)) = (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        // From eight bytes on two words cover all of it.
        let at = key.len() - 8;
        stored[..8] == *start && stored[at..at + 8] == *end
    } else {
        stored.iter().zip(key).all(|(stored, byte)| stored == byte)
    }
}

#[inline]
fn hash_key(hasher: &RandomState, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl Shard {
    pub(crate) fn new(hasher: RandomState, metrics: bool) -> Self {
        Self {
            hasher,
            entries: Arena::new(),
            long_keys: Arena::new(),
            cells: Arena::new(),
            uses: metrics.then(Arena::new),
            index: Index::new(),
            wheel: Wheel::new(),
            first: NONE,
            last: NONE,
            cursors: Vec::new(),
            changes: None,
            totals: Totals::default(),
        }
    }

    // --- looking ------------------------------------------------------------------------------------------------

    #[inline]
    fn lookup(&self, key: Hashed<'_>) -> Option<u32> {
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

    /// The entry of a key that has not expired. One that has is taken away.
    #[inline]
    pub(crate) fn find(&mut self, key: Hashed<'_>, now: Nanos) -> Option<u32> {
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

    /// What a counter has left: for windows and buckets by the rule that was applied last.
    fn quota(&self, entry: &Entry, now: Nanos) -> u64 {
        match entry.kind {
            Kind::Counter => entry.value,
            Kind::Free | Kind::Buffer => 0,
            Kind::Sliding | Kind::Bucket => match self.cells.get(entry.value as u32) {
                Cell::Sliding(sliding) => sliding.limit.saturating_sub(sliding.used(now)),
                Cell::Bucket(bucket) => bucket.remaining(bucket.missing_at(now)),
                Cell::Free | Cell::Buffer(_) => 0,
            },
        }
    }

    pub(crate) fn query(&mut self, key: Hashed<'_>, now: Nanos) -> Option<Counter> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        let entry = self.entries.get(place);
        Some(Counter { quota: self.quota(entry, now), unit: entry.unit, deadline: entry.deadline })
    }

    /// The value of a buffer; empty for a counter.
    pub(crate) fn get(&mut self, key: Hashed<'_>, now: Nanos) -> Option<(u8, Nanos, &[u8])> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        let entry = self.entries.get(place);
        let value: &[u8] = if entry.kind == Kind::Buffer
            && let Cell::Buffer(value) = self.cells.get(entry.value as u32)
        {
            value
        } else {
            &[]
        };
        Some((entry.unit, entry.deadline, value))
    }

    pub(crate) fn stat(&mut self, key: Hashed<'_>, now: Nanos) -> Option<Uses> {
        let place = self.find(key, now)?;
        self.count(place, now, 1, 0);
        Some(self.uses.as_mut().map_or(Uses::default(), |uses| uses.get_mut(place).read(now.minute())))
    }

    // --- changing -----------------------------------------------------------------------------------------------

    /// Creates an entry for a key that has none.
    fn create(&mut self, key: Hashed<'_>, entry: Entry, sequence: u64, now: Nanos) -> u32 {
        let mut stored = [0; SHORT_KEY];
        if key.key.len() <= SHORT_KEY {
            stored[..key.key.len()].copy_from_slice(key.key);
        } else {
            let long = self.long_keys.insert(key.key.into());
            stored[..4].copy_from_slice(&long.to_le_bytes());
        }
        let place = self.entries.insert_over(|old| Entry {
            key: stored,
            marks: entry.marks.with(old.marks.only(Marks::LISTED)),
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
            *uses.get_mut(place) = UseCounts::new(now.minute());
            uses.get_mut(place).count(now.minute(), 1, 1);
        }
        match entry.kind {
            Kind::Buffer => {
                self.totals.buffers += 1;
                self.totals.buffer_bytes += self.buffer_bytes(&entry);
            }
            _ => self.totals.counters += 1,
        }
        self.totals.bytes += entry_bytes(key.key) + self.buffer_bytes(&entry);
        self.changed(place);
        place
    }

    /// Bytes that a buffer holds; 0 for anything else.
    fn buffer_bytes(&self, entry: &Entry) -> u64 {
        if entry.kind != Kind::Buffer {
            return 0;
        }
        match self.cells.get(entry.value as u32) {
            Cell::Buffer(value) => value.len() as u64,
            Cell::Free | Cell::Sliding(_) | Cell::Bucket(_) => 0,
        }
    }

    /// Takes an entry away.
    pub(crate) fn remove(&mut self, place: u32) {
        let entry = *self.entries.get(place);
        let hash = hash_key(&self.hasher, self.key_of(&entry));
        self.index.remove(hash, place);
        self.wheel.remove(place, &mut self.entries);
        self.leave_order(place);
        let held = self.buffer_bytes(&entry);
        self.totals.bytes -= ENTRY_BYTES + held;
        if entry.kind == Kind::Buffer {
            self.totals.buffers -= 1;
            self.totals.buffer_bytes -= held;
        } else {
            self.totals.counters -= 1;
        }
        if let Some(long) = entry.long_key() {
            self.totals.bytes -= self.long_keys.remove(long).len() as u64;
        }
        if entry.kind != Kind::Counter {
            self.cells.remove(entry.value as u32);
        }
        self.entries.remove(place);
        self.entries.get_mut(place).marks = entry.marks.only(Marks::LISTED);
        if let Some(changes) = &mut self.changes
            && entry.marks.has(Marks::FETCHED)
        {
            changes.removed.push(entry.sequence);
        }
    }

    /// Puts an entry behind all others.
    fn join_order(&mut self, place: u32) {
        let previous = std::mem::replace(&mut self.last, place);
        self.entries.get_mut(place).order = Links { previous, next: NONE };
        match previous {
            NONE => self.first = place,
            previous => self.entries.get_mut(previous).order.next = place,
        }
    }

    fn leave_order(&mut self, place: u32) {
        let Links { previous, next } = self.entries.get(place).order;
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
            if entry.marks.has(Marks::KEPT) && !entry.marks.has(Marks::LISTED) {
                entry.marks = entry.marks.with(Marks::LISTED);
                changes.changed.push(place);
            }
        }
    }

    #[inline]
    fn set_deadline(&mut self, place: u32, deadline: Nanos) {
        self.entries.get_mut(place).deadline = deadline;
        self.wheel.move_to_deadline(place, &mut self.entries);
    }

    /// Creates a counter. The key has no entry; `deadline` is to come.
    pub(crate) fn insert(
        &mut self,
        key: Hashed<'_>,
        quota: u64,
        terms: Terms,
        sequence: u64,
        now: Nanos,
    ) -> u32 {
        let Terms { made, unit, deadline } = terms;
        let Made { bits, kept } = made;
        let marks = marks_of(kept);
        let entry =
            Entry { value: quota, deadline, kind: Kind::Counter, unit, bits, marks, ..Entry::default() };
        self.create(key, entry, sequence, now)
    }

    /// A lookup that INSERT makes for a key that is taken.
    pub(crate) fn count_read(&mut self, place: u32, now: Nanos) {
        self.count(place, now, 1, 0);
    }

    pub(crate) fn adjust_quota(&mut self, key: Hashed<'_>, adjust: Adjust, by: u64, now: Nanos) -> bool {
        let Some(place) = self.find(key, now) else { return false };
        let entry = self.entries.get_mut(place);
        let adjusted = match (entry.kind, adjust) {
            (Kind::Counter, Adjust::Patch) => Some(by & top(entry.bits)),
            (Kind::Counter, Adjust::Increase) => Some(entry.value.wrapping_add(by) & top(entry.bits)),
            (Kind::Counter, Adjust::Raise) => Some(entry.value.saturating_add(by).min(top(entry.bits))),
            (Kind::Counter, Adjust::Decrease) => entry.value.checked_sub(by),
            _ => None,
        };
        if let Some(value) = adjusted {
            entry.value = value;
            self.changed(place);
        }
        self.count(place, now, 1, u32::from(adjusted.is_some()));
        adjusted.is_some()
    }

    pub(crate) fn adjust_ttl(&mut self, key: Hashed<'_>, adjust: Adjust, by: u64, now: Nanos) -> bool {
        let Some(place) = self.find(key, now) else { return false };
        let entry = self.entries.get(place);
        if !matches!(entry.kind, Kind::Counter | Kind::Buffer) {
            self.count(place, now, 1, 0);
            return false;
        }
        let nanos = crate::time::Ttl { unit: entry.unit, amount: by }.nanos();
        let deadline = match adjust {
            Adjust::Patch => now.after(nanos),
            Adjust::Increase | Adjust::Raise => entry.deadline.after(nanos),
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

    /// Replaces what a buffer holds, or creates it. The caller has made room. False if a counter has the key.
    pub(crate) fn set(
        &mut self,
        key: Hashed<'_>,
        value: &[u8],
        terms: Terms,
        sequence: u64,
        now: Nanos,
    ) -> bool {
        let Terms { made, unit, deadline } = terms;
        let Some(place) = self.find(key, now) else {
            if deadline > now {
                let cell = self.cells.insert(Cell::Buffer(value.into()));
                let (value, kind) = (u64::from(cell), Kind::Buffer);
                let marks = marks_of(made.kept);
                let entry = Entry { value, deadline, kind, unit, marks, ..Entry::default() };
                self.create(key, entry, sequence, now);
            }
            return true;
        };
        let entry = *self.entries.get(place);
        if entry.kind != Kind::Buffer {
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

    /// Where the entry of a key is, and how many bytes it holds as a buffer.
    pub(crate) fn held(&mut self, key: Hashed<'_>, now: Nanos) -> Option<(u32, u64)> {
        let place = self.find(key, now)?;
        Some((place, self.buffer_bytes(self.entries.get(place))))
    }

    pub(crate) fn purge(&mut self, key: Hashed<'_>, now: Nanos) -> bool {
        let place = self.find(key, now);
        if let Some(place) = place {
            self.remove(place);
        }
        place.is_some()
    }

    // --- rules --------------------------------------------------------------------------------------------------

    fn state(&self, place: u32, algorithm: Algorithm) -> Result<State, RuleError> {
        let entry = self.entries.get(place);
        match (entry.kind, algorithm) {
            (Kind::Counter, Algorithm::FixedWindow) => {
                Ok(State::Fixed { left: entry.value, deadline: entry.deadline })
            }
            (Kind::Sliding, Algorithm::SlidingWindow) | (Kind::Bucket, Algorithm::Gcra) => {
                match self.cells.get(entry.value as u32) {
                    Cell::Sliding(sliding) => Ok(State::Sliding(*sliding)),
                    Cell::Bucket(bucket) => Ok(State::Bucket(*bucket)),
                    Cell::Free | Cell::Buffer(_) => Err(RuleError::OtherKind),
                }
            }
            _ => Err(RuleError::OtherKind),
        }
    }

    /// What a rule says about a key, without any change.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        key: Hashed<'_>,
        rule: &Rule,
        mode: Mode,
        now: Nanos,
    ) -> Result<Pending, RuleError> {
        rule.check()?;
        let (place, expired) = match self.lookup(key) {
            Some(place) if self.entries.get(place).deadline > now => (Some(place), None),
            Some(place) if self.is_renewable(place, rule.algorithm) => (None, Some(place)),
            Some(place) => {
                self.expire(place);
                (None, None)
            }
            None => (None, None),
        };
        let known = place.map(|place| self.state(place, rule.algorithm)).transpose()?;
        let judged = rule.judge(known, mode, now);
        Ok(Pending { place, expired, verdict: judged.verdict, after: judged.after })
    }

    /// Whether an entry that has expired can become the one that a rule would create. Not if anybody keeps it: its end
    /// has to be told.
    #[inline]
    fn is_renewable(&self, place: u32, algorithm: Algorithm) -> bool {
        let entry = self.entries.get(place);
        let kind = match algorithm {
            Algorithm::FixedWindow => Kind::Counter,
            Algorithm::SlidingWindow => Kind::Sliding,
            Algorithm::Gcra => Kind::Bucket,
        };
        entry.kind == kind && entry.marks == Marks::NONE
    }

    /// Makes a new entry of one that has expired, of the same key and kind: as if that had been taken away and this been
    /// created, which takes twice as long. Most buckets are full again, and so have expired, whenever they are asked.
    fn renew(&mut self, place: u32, after: State, terms: Terms, sequence: u64, now: Nanos) {
        self.totals.expired += 1;
        if self.last != place {
            self.leave_order(place);
            self.join_order(place);
        }
        self.set_state(place, after);
        let Terms { made: Made { bits, kept }, unit, deadline } = terms;
        let entry = self.entries.get_mut(place);
        (entry.sequence, entry.unit, entry.bits, entry.marks) = (sequence, unit, bits, marks_of(kept));
        if let Some(uses) = &mut self.uses {
            *uses.get_mut(place) = UseCounts::new(now.minute());
        }
        self.set_deadline(place, deadline);
        self.count(place, now, 1, 1);
        self.changed(place);
    }

    /// Writes the state of an entry of its kind.
    #[inline]
    fn set_state(&mut self, place: u32, state: State) {
        let entry = self.entries.get_mut(place);
        match state {
            State::Fixed { left, .. } => entry.value = left,
            State::Sliding(sliding) => *self.cells.get_mut(entry.value as u32) = Cell::Sliding(sliding),
            State::Bucket(bucket) => *self.cells.get_mut(entry.value as u32) = Cell::Bucket(bucket),
        }
    }

    /// Carries out what a rule said. Answers with the place of an entry that this created.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        key: Hashed<'_>,
        rule: &Rule,
        pending: &Pending,
        made: Made,
        sequence: impl FnOnce() -> u64,
        now: Nanos,
    ) -> Option<u32> {
        let Some(after) = pending.after else {
            if let Some(place) = pending.place {
                self.count(place, now, 1, 0);
            }
            return None;
        };
        let (after, deadline) = after;
        if let Some(place) = pending.place {
            self.set_state(place, after);
            self.count(place, now, 1, 1);
            self.changed(place);
            if deadline <= now {
                self.expire(place);
            } else if deadline != self.entries.get(place).deadline {
                self.set_deadline(place, deadline);
            }
            return None;
        }
        if deadline <= now {
            return None;
        }
        if let Some(place) = pending.expired {
            let terms = Terms { made, unit: rule.period.unit, deadline };
            self.renew(place, after, terms, sequence(), now);
            return Some(place);
        }
        let (kind, value) = match after {
            State::Fixed { left, .. } => (Kind::Counter, left),
            State::Sliding(sliding) => (Kind::Sliding, u64::from(self.cells.insert(Cell::Sliding(sliding)))),
            State::Bucket(bucket) => (Kind::Bucket, u64::from(self.cells.insert(Cell::Bucket(bucket)))),
        };
        let unit = rule.period.unit;
        let marks = marks_of(made.kept);
        let entry = Entry { value, deadline, kind, unit, bits: made.bits, marks, ..Entry::default() };
        Some(self.create(key, entry, sequence(), now))
    }

    // --- making room --------------------------------------------------------------------------------------------

    /// Takes away what has expired, looking at `budget` entries at most. True if there may be more.
    pub(crate) fn sweep(&mut self, now: Nanos, mut budget: usize) -> bool {
        while let Some(place) = self.wheel.next_expired(now, &mut budget, &mut self.entries) {
            self.expire(place);
        }
        self.wheel.is_due(now)
    }

    /// Takes away the entry that expires soonest, apart from those in `keep`.
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

    // --- listings -----------------------------------------------------------------------------------------------

    pub(crate) fn open_cursor(&mut self, until: u64) -> usize {
        let cursor = Some(Cursor { at: self.first, until });
        if let Some(free) = self.cursors.iter().position(Option::is_none) {
            self.cursors[free] = cursor;
            return free;
        }
        self.cursors.push(cursor);
        self.cursors.len() - 1
    }

    pub(crate) fn close_cursor(&mut self, cursor: usize) {
        self.cursors[cursor] = None;
        while self.cursors.last().is_some_and(Option::is_none) {
            self.cursors.pop();
        }
    }

    /// Copies up to `max` entries that a cursor stands before, without those that have expired. False at the end.
    pub(crate) fn copy(
        &mut self,
        cursor: usize,
        max: usize,
        now: Nanos,
        count: bool,
        into: &mut VecDeque<Listed>,
    ) -> bool {
        let Some(Cursor { mut at, until }) = self.cursors[cursor] else { return false };
        for _ in 0..max {
            if at == NONE || self.entries.get(at).sequence > until {
                at = NONE;
                break;
            }
            let next = self.entries.get(at).order.next;
            if self.entries.get(at).deadline > now {
                if count {
                    self.count(at, now, 1, 0);
                }
                into.push_back(self.listed(at, now));
            }
            at = next;
        }
        self.cursors[cursor] = Some(Cursor { at, until });
        at != NONE
    }

    fn listed(&mut self, place: u32, now: Nanos) -> Listed {
        let uses = self.uses.as_mut().map_or(Uses::default(), |uses| uses.get_mut(place).read(now.minute()));
        let entry = self.entries.get(place);
        Listed {
            sequence: entry.sequence,
            key: self.key_of(entry).into(),
            buffer_bytes: (entry.kind == Kind::Buffer).then(|| self.buffer_bytes(entry)),
            unit: entry.unit,
            deadline: entry.deadline,
            quota: self.quota(entry, now),
            uses,
        }
    }

    // --- persistence --------------------------------------------------------------------------------------------

    /// From now on changes are kept until they are fetched, beginning with everything that is there.
    pub(crate) fn watch_changes(&mut self) {
        self.changes = Some(Changes::default());
        let mut place = self.first;
        while place != NONE {
            self.changed(place);
            place = self.entries.get(place).order.next;
        }
    }

    /// From now on nobody keeps anything.
    pub(crate) fn forget_changes(&mut self) {
        self.changes = None;
    }

    /// How many changes wait to be fetched, at most.
    pub(crate) fn unfetched(&self) -> usize {
        self.changes.as_ref().map_or(0, |changes| changes.changed.len() + changes.removed.len())
    }

    /// Gives out up to `max` changes, fewer if they are of long buffers. False when there are no more.
    pub(crate) fn fetch_changes(&mut self, max: usize, mut give: impl FnMut(Change)) -> bool {
        let mut left = max;
        while left > 0 {
            left -= 1;
            let Some(changes) = &mut self.changes else { return false };
            if let Some(sequence) = changes.removed.pop() {
                give(Change::Remove(sequence));
            } else if let Some(place) = changes.changed.pop() {
                let entry = self.entries.get_mut(place);
                entry.marks = entry.marks.without(Marks::LISTED);
                // Not a place whose entry is gone, or one that was taken since by an entry that nobody keeps.
                if entry.kind != Kind::Free && entry.marks.has(Marks::KEPT) {
                    entry.marks = entry.marks.with(Marks::FETCHED);
                    let kept = self.kept(place);
                    if let Content::Buffer(value) = &kept.content {
                        left = left.saturating_sub(value.len() / BUFFER_STEP_BYTES);
                    }
                    give(Change::Put(kept));
                }
            } else {
                return false;
            }
        }
        true
    }

    fn kept(&self, place: u32) -> Kept {
        let entry = self.entries.get(place);
        let cell = || self.cells.get(entry.value as u32);
        let content = match entry.kind {
            Kind::Free | Kind::Counter => Content::Counter { quota: entry.value, bits: entry.bits },
            Kind::Buffer | Kind::Sliding | Kind::Bucket => match cell() {
                Cell::Free => Content::Buffer(Box::default()),
                Cell::Buffer(value) => Content::Buffer(value.clone()),
                Cell::Sliding(Sliding { start, period, limit, current, previous }) => Content::Sliding {
                    start: *start,
                    period: period.number(),
                    limit: *limit,
                    current: *current,
                    previous: *previous,
                },
                Cell::Bucket(bucket) => {
                    let Bucket { at, period, limit, missing } = *bucket;
                    Content::Bucket { at, period: period.number(), limit: limit.number(), missing }
                }
            },
        };
        let key = self.key_of(entry).into();
        Kept { sequence: entry.sequence, key, unit: entry.unit, deadline: entry.deadline, content }
    }

    /// Puts back what was kept, unless the key is taken or its time has come. True if it is there now.
    pub(crate) fn restore(&mut self, key: Hashed<'_>, kept: &Kept, now: Nanos) -> bool {
        if kept.deadline <= now || self.find(key, now).is_some() {
            return false;
        }
        let (kind, value, bits) = match &kept.content {
            Content::Counter { quota, bits } => (Kind::Counter, *quota, *bits),
            Content::Buffer(value) => (Kind::Buffer, self.cell(Cell::Buffer(value.clone())), 0),
            Content::Sliding { start, period, limit, current, previous } => {
                let (current, previous) = (*current, *previous);
                let fresh = Sliding::new(*start, (*period).max(1), *limit);
                (Kind::Sliding, self.cell(Cell::Sliding(Sliding { current, previous, ..fresh })), 0)
            }
            Content::Bucket { at, period, limit, missing } => {
                let full = Bucket::full(*at, (*period).max(1), *limit);
                (Kind::Bucket, self.cell(Cell::Bucket(Bucket { missing: *missing, ..full })), 0)
            }
        };
        let (deadline, unit) = (kept.deadline, kept.unit);
        // It is on disk as it is here: listed already, so that creating it lists no change.
        let known = Marks::KEPT.with(Marks::FETCHED);
        let entry =
            Entry { value, deadline, kind, unit, bits, marks: known.with(Marks::LISTED), ..Entry::default() };
        let place = self.create(key, entry, kept.sequence, now);
        self.entries.get_mut(place).marks = known;
        true
    }

    fn cell(&mut self, cell: Cell) -> u64 {
        u64::from(self.cells.insert(cell))
    }
}

/// What was judged and not carried out.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) place: Option<u32>,
    /// What has expired, and becomes what is created.
    pub(crate) expired: Option<u32>,
    pub(crate) verdict: Verdict,
    /// The new state, and when it is as good as none; `None`: nothing changes.
    pub(crate) after: Option<(State, Nanos)>,
}

/// What an entry is created with besides its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) made: Made,
    pub(crate) unit: u8,
    pub(crate) deadline: Nanos,
}
