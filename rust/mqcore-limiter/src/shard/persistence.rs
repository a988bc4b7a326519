//! Changes of a shard for persistence, and the restoration of entries.

use super::{BUFFER_STEP_BYTES, Cell, Changes, HashedKey, Shard};
use crate::arena::NONE;
use crate::change::{EntryChange, PersistentContent, PersistentEntry};
use crate::entry::{Entry, EntryKind, PersistenceMarks};
use crate::rule::{Bucket, Sliding};
use crate::time::Nanos;

impl Shard {
    /// Starts recording changes, beginning with all existing entries.
    pub(crate) fn watch_changes(&mut self) {
        self.changes = Some(Changes::default());
        let mut place = self.first;
        while place != NONE {
            self.changed(place);
            place = self.entries.get(place).order.next;
        }
    }

    /// Stops recording changes.
    pub(crate) fn forget_changes(&mut self) {
        let Some(changes) = self.changes.take() else { return };
        for place in changes.changed {
            // A recording that begins later lists it again.
            let entry = self.entries.get_mut(place);
            entry.marks = entry.marks.without(PersistenceMarks::LISTED);
        }
    }

    /// Upper bound on the number of unfetched changes.
    pub(crate) fn unfetched(&self) -> usize {
        self.changes.as_ref().map_or(0, |changes| changes.changed.len() + changes.removed.len())
    }

    /// Passes up to `max` changes to `give`, fewer if they contain long buffers. Returns false when there are no more.
    pub(crate) fn fetch_changes(&mut self, max: usize, mut give: impl FnMut(EntryChange)) -> bool {
        let mut left = max;
        while left > 0 {
            left -= 1;
            let Some(changes) = &mut self.changes else { return false };
            if let Some(sequence) = changes.removed.pop() {
                give(EntryChange::Remove(sequence));
            } else if let Some(place) = changes.changed.pop() {
                let entry = self.entries.get_mut(place);
                entry.marks = entry.marks.without(PersistenceMarks::LISTED);
                // Skips a place whose entry was removed, or is now used by an entry that is not persistent.
                if entry.kind != EntryKind::Free && entry.marks.has(PersistenceMarks::KEPT) {
                    entry.marks = entry.marks.with(PersistenceMarks::FETCHED);
                    let kept = self.kept(place);
                    if let PersistentContent::Buffer(value) = &kept.content {
                        left = left.saturating_sub(value.len() / BUFFER_STEP_BYTES);
                    }
                    give(EntryChange::Put(kept));
                }
            } else {
                return false;
            }
        }
        true
    }

    fn kept(&self, place: u32) -> PersistentEntry {
        let entry = self.entries.get(place);
        let cell = || self.cells.get(entry.value as u32);
        let content = match entry.kind {
            EntryKind::Free | EntryKind::Counter => {
                PersistentContent::Counter { quota: entry.value, bits: entry.bits }
            }
            EntryKind::Buffer | EntryKind::Sliding | EntryKind::Bucket => match cell() {
                Cell::Free => PersistentContent::Buffer(Box::default()),
                Cell::Buffer(value) => PersistentContent::Buffer(value.clone()),
                Cell::Sliding(Sliding { start, period, limit, current, previous }) => {
                    PersistentContent::Sliding {
                        start: *start,
                        period: period.number(),
                        limit: *limit,
                        current: *current,
                        previous: *previous,
                    }
                }
                Cell::Bucket(bucket) => {
                    let Bucket { at, period, limit, missing } = *bucket;
                    PersistentContent::Bucket { at, period: period.number(), limit: limit.number(), missing }
                }
            },
        };
        let key = self.key_of(entry).into();
        PersistentEntry { sequence: entry.sequence, key, unit: entry.unit, deadline: entry.deadline, content }
    }

    /// Restores a persisted entry. Returns false if its key exists or it has expired.
    pub(crate) fn restore(&mut self, key: HashedKey<'_>, kept: &PersistentEntry, now: Nanos) -> bool {
        if kept.deadline <= now || self.find(key, now).is_some() {
            return false;
        }
        let (kind, value, bits) = match &kept.content {
            PersistentContent::Counter { quota, bits } => (EntryKind::Counter, *quota, *bits),
            PersistentContent::Buffer(value) => {
                (EntryKind::Buffer, self.cell(Cell::Buffer(value.clone())), 0)
            }
            PersistentContent::Sliding { start, period, limit, current, previous } => {
                let (current, previous) = (*current, *previous);
                let fresh = Sliding::new(*start, (*period).max(1), *limit);
                (EntryKind::Sliding, self.cell(Cell::Sliding(Sliding { current, previous, ..fresh })), 0)
            }
            PersistentContent::Bucket { at, period, limit, missing } => {
                let full = Bucket::full(*at, (*period).max(1), *limit);
                (EntryKind::Bucket, self.cell(Cell::Bucket(Bucket { missing: *missing, ..full })), 0)
            }
        };
        let (deadline, unit) = (kept.deadline, kept.unit);
        // The disk already has this entry. Marking it as listed prevents its creation from being recorded as a change.
        let known = PersistenceMarks::KEPT.with(PersistenceMarks::FETCHED);
        let entry = Entry {
            value,
            deadline,
            kind,
            unit,
            bits,
            marks: known.with(PersistenceMarks::LISTED),
            ..Entry::default()
        };
        let place = self.create(key, entry, kept.sequence, now);
        self.entries.get_mut(place).marks = known;
        true
    }
}
