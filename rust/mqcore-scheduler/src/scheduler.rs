//! A set of up to a million entries, and which of them are due.
//!
//! Entries are indexed by id and ordered by due time in a heap. A removed entry leaves its item in the heap, which is skipped
//! when it comes up. When half of the heap consists of such items, the heap is rebuilt.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::plan::{CATCH_UP_MS_MAX, CatchUp, LATE_MS_MAX, Plan, PlanProgress, Recurrence};

/// Id of an entry: a hash of what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub [u8; 20]);

impl std::fmt::Display for EntryId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// The text is not an [`EntryId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a schedule must have 40 hexadecimal digits")]
pub struct EntryIdError;

/// Parses the `Display` form of an [`EntryId`].
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

/// A scheduled entry.
#[derive(Debug, Clone)]
pub struct ScheduleEntry<T> {
    /// Id.
    pub id: EntryId,
    /// Plan.
    pub plan: Plan,
    /// Progress.
    pub state: PlanProgress,
    /// Data of the owner.
    pub what: T,
}

/// A run that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing<T> {
    /// Id of the entry.
    pub id: EntryId,
    /// Data of the owner.
    pub what: T,
    /// Due time, in milliseconds since the Unix epoch.
    pub due_ms: u64,
    /// Number of the run, ascending without gaps.
    pub fence: u64,
    /// Progress after this run. `None`: this was the last run, and the entry was removed.
    pub state: Option<PlanProgress>,
}

#[derive(Debug)]
struct EntrySlot<T> {
    /// Incremented for each new entry in the slot, and each time its entry moves in the heap.
    serial: u32,
    entry: Option<ScheduleEntry<T>>,
}

/// An item of the heap: due time, slot, and the slot's serial.
type HeapItem = Reverse<(u64, u32, u32)>;

/// All entries of one owner.
///
/// ```
/// use mqcore_scheduler::plan::{CatchUp, Plan, Recurrence};
/// use mqcore_scheduler::scheduler::{EntryId, ScheduleEntry, Scheduler};
///
/// let plan =
///     Plan { when: Recurrence::every(1000)?, catch_up: CatchUp::default(), at_once: false, runs: None };
/// let mut scheduler = Scheduler::default();
/// scheduler.insert(ScheduleEntry { id: EntryId([1; 20]), state: plan.begin(0)?, plan, what: "report" });
///
/// let mut firings = Vec::new();
/// scheduler.take_due(1000, 10, &mut firings);
/// assert_eq!((firings[0].what, firings[0].due_ms, firings[0].fence), ("report", 1000, 1));
/// assert_eq!(scheduler.next_due(), Some(2000));
/// # Ok::<(), mqcore_scheduler::plan::PlanError>(())
/// ```
#[derive(Debug)]
pub struct Scheduler<T> {
    slots: Vec<EntrySlot<T>>,
    free: Vec<u32>,
    /// Slots by the id of their entry.
    index: HashTable<u32>,
    hasher: RandomState,
    heap: BinaryHeap<HeapItem>,
    /// How often missed runs were skipped.
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
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// How often missed runs of an entry were skipped.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    fn find(&self, id: &EntryId) -> Option<u32> {
        let is_it =
            |slot: &u32| self.slots[*slot as usize].entry.as_ref().is_some_and(|entry| entry.id == *id);
        self.index.find(self.hasher.hash_one(id), is_it).copied()
    }

    /// Returns an entry.
    #[must_use]
    pub fn get(&self, id: &EntryId) -> Option<&ScheduleEntry<T>> {
        self.slots[self.find(id)? as usize].entry.as_ref()
    }

    /// Adds an entry and returns the one with the same id that it replaces.
    ///
    /// # Panics
    /// If there are more than 4,294,967,295 entries; owners limit them far below that.
    pub fn insert(&mut self, entry: ScheduleEntry<T>) -> Option<ScheduleEntry<T>> {
        let before = self.remove(&entry.id);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(EntrySlot { serial: 0, entry: None });
            u32::try_from(self.slots.len() - 1).expect("owners limit the number of entries")
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

    /// Removes and returns an entry.
    pub fn remove(&mut self, id: &EntryId) -> Option<ScheduleEntry<T>> {
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

    /// Rebuilds the heap without the items of removed entries.
    fn tidy(&mut self) {
        let slots = &self.slots;
        self.heap.retain(|Reverse((_, slot, serial))| {
            let slot = &slots[*slot as usize];
            slot.serial == *serial && slot.entry.is_some()
        });
        self.heap.shrink_to(2 * self.index.len());
    }

    /// Returns the next due time in milliseconds since the Unix epoch. It may be too early if that entry was removed.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Appends up to `max` runs that are due at `now_ms`, earliest first, and advances their entries to the next due time.
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

    /// Handles a system clock that was set back to `now_ms`.
    ///
    /// Intervals continue from the new time: an entry is due after at most one interval. Cron times that already passed do not
    /// run again: their entries wait until the clock reaches the old time.
    pub fn set_back(&mut self, now_ms: u64) {
        for (number, slot) in (0..).zip(&mut self.slots) {
            let Some(entry) = &mut slot.entry else { continue };
            let Recurrence::Every(interval) = &entry.plan.when else { continue };
            let latest = now_ms.saturating_add(*interval);
            if entry.state.due_ms > latest {
                entry.state.due_ms = latest;
                // The old heap item is skipped when it comes up.
                slot.serial = slot.serial.wrapping_add(1);
                self.heap.push(Reverse((latest, number, slot.serial)));
            }
        }
        if self.heap.len() > 64 && self.heap.len() > 2 * self.index.len() {
            self.tidy();
        }
    }

    /// Iterates over all entries in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &ScheduleEntry<T>> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }

    /// Returns the `max` entries that are due next, in order.
    #[must_use]
    pub fn upcoming(&self, max: usize) -> Vec<&ScheduleEntry<T>> {
        let order = |entry: &&ScheduleEntry<T>| (entry.state.due_ms, entry.id);
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

impl<T: Clone> ScheduleEntry<T> {
    /// Advances an entry whose due time has come. Returns the run, if any, and whether missed runs were skipped. After the last
    /// run, the due time is `u64::MAX`.
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
