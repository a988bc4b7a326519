//! A million entries, and which of them are due.
//!
//! Entries are found by who they are, and stand in a heap by when they are due. An entry that goes leaves its place in the
//! heap behind, which is passed over when it comes up; when half of the heap is such places, it is made anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::plan::{CATCH_UP_MS_MAX, CatchUp, LATE_MS_MAX, Plan, State, When};

/// Who an entry is: a hash of what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub [u8; 20]);

impl std::fmt::Display for EntryId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A text that is no [`EntryId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a schedule has 40 hexadecimal digits")]
pub struct EntryIdError;

/// Reads what [`EntryId`] is displayed as.
impl std::str::FromStr for EntryId {
    type Err = EntryIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; 20];
        let (digits, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() || digits.len() != id.len() {
            return Err(EntryIdError);
        }
        for (byte, digits) in id.iter_mut().zip(digits) {
            let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
            let value = high.zip(low).map(|(high, low)| high * 16 + low).ok_or(EntryIdError)?;
            *byte = value as u8;
        }
        Ok(Self(id))
    }
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Entry<T> {
    /// Who it is.
    pub id: EntryId,
    /// What is planned.
    pub plan: Plan,
    /// How far it is.
    pub state: State,
    /// What its owner knows of it.
    pub what: T,
}

/// Something happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing<T> {
    /// Whose.
    pub id: EntryId,
    /// What its owner knows of it.
    pub what: T,
    /// When it was due, in milliseconds since the epoch.
    pub due_ms: u64,
    /// Its number; ascends without gaps.
    pub fence: u64,
    /// How far the entry is behind it. `None`: this was the last time, and the entry is gone.
    pub state: Option<State>,
}

#[derive(Debug)]
struct Slot<T> {
    /// Grows with each entry that the slot has had, and each time that one of them got another place in the heap.
    serial: u32,
    entry: Option<Entry<T>>,
}

/// What comes up when: the due time, the slot, and its serial.
type Place = Reverse<(u64, u32, u32)>;

/// All entries.
#[derive(Debug)]
pub struct Scheduler<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots by who is in them.
    index: HashTable<u32>,
    hasher: RandomState,
    heap: BinaryHeap<Place>,
    /// Due times that were left out, and how often the broker found such.
    skipped: u64,
}

impl<T> Default for Scheduler<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            heap: BinaryHeap::new(),
            skipped: 0,
        }
    }
}

impl<T: Clone> Scheduler<T> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// How often due times of an entry were left out because they had been missed.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    fn find(&self, id: &EntryId) -> Option<u32> {
        let is_it =
            |slot: &u32| self.slots[*slot as usize].entry.as_ref().is_some_and(|entry| entry.id == *id);
        self.index.find(self.hasher.hash_one(id), is_it).copied()
    }

    /// An entry.
    #[must_use]
    pub fn get(&self, id: &EntryId) -> Option<&Entry<T>> {
        self.slots[self.find(id)? as usize].entry.as_ref()
    }

    /// Adds an entry, in the place of the one of its id, which is handed back.
    ///
    /// # Panics
    /// With more than 4,294,967,295 entries; owners limit them far below that.
    pub fn insert(&mut self, entry: Entry<T>) -> Option<Entry<T>> {
        let before = self.remove(&entry.id);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { serial: 0, entry: None });
            u32::try_from(self.slots.len() - 1).expect("owners limit entries")
        });
        let hash = self.hasher.hash_one(entry.id);
        let place = &mut self.slots[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        self.heap.push(Reverse((entry.state.due_ms, slot, place.serial)));
        place.entry = Some(entry);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, slot, |slot| {
            slots[*slot as usize].entry.as_ref().map_or(0, |entry| hasher.hash_one(entry.id))
        });
        before
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: &EntryId) -> Option<Entry<T>> {
        let slots = &self.slots;
        let is_it = |slot: &u32| slots[*slot as usize].entry.as_ref().is_some_and(|entry| entry.id == *id);
        let found = self.index.find_entry(self.hasher.hash_one(id), is_it).ok()?;
        let (slot, _) = found.remove();
        self.free.push(slot);
        let entry = self.slots[slot as usize].entry.take();
        if self.heap.len() > 64 && self.heap.len() > 2 * self.index.len() {
            self.tidy();
        }
        entry
    }

    /// Makes the heap anew, without the places of entries that are gone.
    fn tidy(&mut self) {
        let slots = &self.slots;
        self.heap.retain(|Reverse((_, slot, serial))| {
            let slot = &slots[*slot as usize];
            slot.serial == *serial && slot.entry.is_some()
        });
        self.heap.shrink_to(2 * self.index.len());
    }

    /// When the next entry is due, in milliseconds since the epoch. May be too early, if that entry is gone.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Tells what happens up to now, the earliest first, at most `max` times. Entries go on to their next due time.
    pub fn take_due(&mut self, now_ms: u64, max: usize, firings: &mut Vec<Firing<T>>) {
        let until = firings.len() + max;
        while firings.len() < until
            && let Some(Reverse((due, slot, serial))) = self.heap.peek().copied()
            && due <= now_ms
        {
            self.heap.pop();
            let place = &mut self.slots[slot as usize];
            let Some(entry) = place.entry.as_mut().filter(|_| place.serial == serial) else { continue };
            let (fires, skips) = entry.advance(now_ms);
            self.skipped += u64::from(skips);
            let goes_on = entry.state.due_ms != u64::MAX;
            let id = entry.id;
            if goes_on {
                self.heap.push(Reverse((entry.state.due_ms, slot, serial)));
            }
            firings.extend(fires);
            if !goes_on {
                self.remove(&id);
            }
        }
    }

    /// The clock was set back to `now_ms`. Intervals go on from there: what is due later than its interval is due after that.
    /// Moments that a cron expression names have been already, and do not happen twice: they wait until the clock has come to
    /// where it was.
    pub fn set_back(&mut self, now_ms: u64) {
        for (number, slot) in (0..).zip(&mut self.slots) {
            let Some(entry) = &mut slot.entry else { continue };
            let When::Every(interval) = &entry.plan.when else { continue };
            let latest = now_ms.saturating_add(*interval);
            if entry.state.due_ms > latest {
                entry.state.due_ms = latest;
                // Its place of before is passed over when it comes up.
                slot.serial = slot.serial.wrapping_add(1);
                self.heap.push(Reverse((latest, number, slot.serial)));
            }
        }
        if self.heap.len() > 64 && self.heap.len() > 2 * self.index.len() {
            self.tidy();
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry<T>> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }

    /// The `max` entries that are due next, the next one first.
    #[must_use]
    pub fn upcoming(&self, max: usize) -> Vec<&Entry<T>> {
        let order = |entry: &&Entry<T>| (entry.state.due_ms, entry.id);
        let mut all: Vec<_> = self.iter().collect();
        if max < all.len() {
            if max > 0 {
                all.select_nth_unstable_by_key(max - 1, order);
            }
            all.truncate(max);
        }
        all.sort_unstable_by_key(order);
        all
    }
}

impl<T: Clone> Entry<T> {
    /// Its due time has come: tells whether it happens, and whether due times are left out. It is due at `u64::MAX` if this was
    /// the last time.
    fn advance(&mut self, now_ms: u64) -> (Option<Firing<T>>, bool) {
        let Plan { when, catch_up, .. } = &self.plan;
        let due = self.state.due_ms;
        let kept = match catch_up {
            CatchUp::None | CatchUp::Latest => when.latest(due, now_ms),
            CatchUp::All if now_ms - due > CATCH_UP_MS_MAX => {
                let from = when.from(due, now_ms - CATCH_UP_MS_MAX);
                from.filter(|from| *from <= now_ms).unwrap_or_else(|| when.latest(due, now_ms))
            }
            CatchUp::All => due,
        };
        let too_late = *catch_up == CatchUp::None && now_ms - kept > LATE_MS_MAX;
        let next = when.after(kept).unwrap_or(u64::MAX);
        if too_late {
            self.state.due_ms = next;
            return (None, true);
        }
        self.state.fence += 1;
        self.state.left = self.state.left.and_then(|left| NonZeroU32::new(left.get() - 1));
        let is_last = self.plan.runs.is_some() && self.state.left.is_none();
        self.state.due_ms = if is_last { u64::MAX } else { next };
        let state = (self.state.due_ms != u64::MAX).then_some(self.state);
        let firing =
            Firing { id: self.id, what: self.what.clone(), due_ms: kept, fence: self.state.fence, state };
        (Some(firing), kept != due)
    }
}
