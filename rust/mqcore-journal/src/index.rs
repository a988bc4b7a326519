//! Index of the live records: their places, normally with 8 bytes per record, in leaves of sorted entries.
//!
//! Numbers arrive in ascending order and leave in roughly the same order, and records with adjacent numbers are in the same
//! segment. All entries of a leaf therefore share one segment number. It is filled at its end, emptied by marking
//! entries as removed, compacted when half of them are, and dropped with the last. A leaf with an entry that does not fit
//! the short form (a relocated record, one above 64 KiB, numbers far apart) stores all its entries in full, with 16 bytes
//! per record.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::ops::RangeInclusive;

use crate::format::Location;

/// Maximum number of entries in a leaf: 4 KiB, or 8 KiB in the full form.
const LEAF_ENTRIES_MAX: usize = 512;
/// Leaves with at most this many entries are not compacted.
const SMALL_LEAF_ENTRIES: usize = 32;

/// Maps record numbers to places.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex {
    /// Leaves by their base, which is at most the smallest number in the leaf.
    leaves: BTreeMap<u64, Leaf>,
    count: usize,
}

#[derive(Debug)]
struct Leaf {
    entries: Entries,
    live: usize,
}

#[derive(Debug)]
enum Entries {
    /// All entries are in this segment.
    Short(u32, Vec<Short>),
    Full(Vec<Full>),
}

#[derive(Debug, Clone, Copy)]
struct Short {
    /// 0 in a removed entry: no record has this offset.
    offset: u32,
    /// Distance from the leaf's base.
    delta: u16,
    length: u16,
}

#[derive(Debug, Clone, Copy)]
struct Full {
    delta: u32,
    segment: u32,
    /// 0 in a removed entry.
    offset: u32,
    length: u32,
}

impl Full {
    fn new(delta: u32, at: Location) -> Self {
        Self { delta, segment: at.segment, offset: at.offset, length: at.length }
    }

    fn location(self) -> Option<Location> {
        (self.offset != 0).then_some(Location {
            segment: self.segment,
            offset: self.offset,
            length: self.length,
        })
    }

    fn short(self, segment: u32) -> Option<Short> {
        let delta = u16::try_from(self.delta).ok()?;
        let length = u16::try_from(self.length).ok()?;
        (self.segment == segment).then_some(Short { offset: self.offset, delta, length })
    }
}

impl Entries {
    /// Creates the entries of a leaf whose base is the first entry's number.
    fn starting_with(at: Location) -> Self {
        let first = Full::new(0, at);
        match first.short(at.segment) {
            Some(short) => Self::Short(at.segment, vec![short]),
            None => Self::Full(vec![first]),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Short(_, entries) => entries.len(),
            Self::Full(entries) => entries.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Short(_, entries) => entries.capacity() * size_of::<Short>(),
            Self::Full(entries) => entries.capacity() * size_of::<Full>(),
        }
    }

    fn get(&self, position: usize) -> Full {
        match self {
            Self::Short(segment, entries) => {
                let Short { offset, delta, length } = entries[position];
                Full { delta: delta.into(), segment: *segment, offset, length: length.into() }
            }
            Self::Full(entries) => entries[position],
        }
    }

    fn iter(&self) -> impl Iterator<Item = Full> {
        (0..self.len()).map(|position| self.get(position))
    }

    /// Position of `delta`, or where it would be inserted.
    fn search(&self, delta: u32) -> Result<usize, usize> {
        match self {
            Self::Short(_, entries) => entries.binary_search_by_key(&delta, |entry| entry.delta.into()),
            Self::Full(entries) => entries.binary_search_by_key(&delta, |entry| entry.delta),
        }
    }

    fn set(&mut self, position: usize, entry: Full) {
        self.fit(entry);
        match self {
            Self::Short(segment, entries) => entries[position] = fitting(entry, *segment),
            Self::Full(entries) => entries[position] = entry,
        }
    }

    fn insert(&mut self, position: usize, entry: Full) {
        self.fit(entry);
        match self {
            Self::Short(segment, entries) => entries.insert(position, fitting(entry, *segment)),
            Self::Full(entries) => entries.insert(position, entry),
        }
    }

    /// Converts to the full form if `entry` requires it.
    fn fit(&mut self, entry: Full) {
        if let Self::Short(segment, _) = self
            && entry.short(*segment).is_none()
        {
            *self = Self::Full(self.iter().collect());
        }
    }

    fn mark_removed(&mut self, position: usize) {
        match self {
            Self::Short(_, entries) => entries[position].offset = 0,
            Self::Full(entries) => entries[position].offset = 0,
        }
    }

    fn squeeze(&mut self) {
        match self {
            Self::Short(_, entries) => {
                entries.retain(|entry| entry.offset != 0);
                entries.shrink_to_fit();
            }
            Self::Full(entries) => {
                entries.retain(|entry| entry.offset != 0);
                entries.shrink_to_fit();
            }
        }
    }

    /// Splits off the upper half, with deltas relative to its first number. Returns that number's old delta and the half.
    fn split(&mut self) -> (u32, Self) {
        let at = self.len() / 2;
        match self {
            Self::Short(segment, entries) => {
                let mut upper = entries.split_off(at);
                let shift = upper[0].delta;
                upper.iter_mut().for_each(|entry| entry.delta -= shift);
                (shift.into(), Self::Short(*segment, upper))
            }
            Self::Full(entries) => {
                let mut upper = entries.split_off(at);
                let shift = upper[0].delta;
                upper.iter_mut().for_each(|entry| entry.delta -= shift);
                (shift, Self::Full(upper))
            }
        }
    }
}

/// Converts an entry that is known to fit the short form.
fn fitting(entry: Full, segment: u32) -> Short {
    entry.short(segment).unwrap_or(Short { offset: 0, delta: 0, length: 0 })
}

impl RecordIndex {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Memory used, in bytes, without the allocator's overhead.
    pub(crate) fn bytes(&self) -> usize {
        let entries: usize = self.leaves.values().map(|leaf| leaf.entries.bytes()).sum();
        entries + self.leaves.len() * size_of::<(u64, Leaf)>()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Location> {
        let (base, leaf) = self.leaves.range(..=number).next_back()?;
        let delta = u32::try_from(number - base).ok()?;
        let at = leaf.entries.search(delta).ok()?;
        leaf.entries.get(at).location()
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Sets the place of a number and returns its previous place.
    pub(crate) fn insert(&mut self, number: u64, at: Location) -> Option<Location> {
        let Some((&base, leaf)) = self.leaves.range_mut(..=number).next_back() else {
            return self.insert_leaf(number, at);
        };
        let Ok(delta) = u32::try_from(number - base) else { return self.insert_leaf(number, at) };
        let length = leaf.entries.len();
        let last = length.checked_sub(1).map(|last| leaf.entries.get(last));
        let found = match last {
            Some(last) if last.delta < delta => Err(length),
            _ => leaf.entries.search(delta),
        };
        match found {
            Ok(position) => {
                let old = leaf.entries.get(position).location();
                leaf.entries.set(position, Full::new(delta, at));
                let added = usize::from(old.is_none());
                leaf.live += added;
                self.count += added;
                old
            }
            Err(position) if position == length && (length == LEAF_ENTRIES_MAX || !leaf.takes(delta, at)) => {
                self.insert_leaf(number, at)
            }
            Err(position) if length < LEAF_ENTRIES_MAX => {
                leaf.entries.insert(position, Full::new(delta, at));
                leaf.live += 1;
                self.count += 1;
                None
            }
            Err(_) => {
                self.split(base);
                self.insert(number, at)
            }
        }
    }

    fn insert_leaf(&mut self, number: u64, at: Location) -> Option<Location> {
        self.leaves.insert(number, Leaf { entries: Entries::starting_with(at), live: 1 });
        self.count += 1;
        None
    }

    /// Moves the upper half of a full leaf to a new one.
    fn split(&mut self, base: u64) {
        let Some(leaf) = self.leaves.get_mut(&base) else { return };
        let (shift, upper) = leaf.entries.split();
        let live = upper.iter().filter(|entry| entry.offset != 0).count();
        leaf.live -= live;
        self.leaves.insert(base + u64::from(shift), Leaf { entries: upper, live });
        if self.leaves.get(&base).is_some_and(|leaf| leaf.live == 0) {
            self.leaves.remove(&base);
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Location> {
        let mut removed = None;
        self.remove_range(number..=number, |_, at| removed = Some(at));
        removed
    }

    /// Removes all numbers of a range and calls `gone` with each and its place, in order.
    pub(crate) fn remove_range(&mut self, range: RangeInclusive<u64>, mut gone: impl FnMut(u64, Location)) {
        let from = self.leaves.range(..=*range.start()).next_back().map_or(*range.start(), |(&base, _)| base);
        let mut squeeze = Vec::new();
        for (&base, leaf) in self.leaves.range_mut(from..=*range.end()) {
            let before = leaf.live;
            let first = u32::try_from(range.start().saturating_sub(base)).unwrap_or(u32::MAX);
            let (Ok(start) | Err(start)) = leaf.entries.search(first);
            for position in start..leaf.entries.len() {
                let entry = leaf.entries.get(position);
                let number = base + u64::from(entry.delta);
                if number > *range.end() {
                    break;
                }
                if let Some(at) = entry.location() {
                    leaf.entries.mark_removed(position);
                    leaf.live -= 1;
                    gone(number, at);
                }
            }
            self.count -= before - leaf.live;
            if leaf.live == 0
                || (leaf.entries.len() > SMALL_LEAF_ENTRIES && leaf.live < leaf.entries.len() / 2)
            {
                squeeze.push(base);
            }
        }
        for base in squeeze {
            self.squeeze(base);
        }
    }

    fn squeeze(&mut self, base: u64) {
        let Some(leaf) = self.leaves.get_mut(&base) else { return };
        if leaf.live == 0 {
            self.leaves.remove(&base);
        } else {
            leaf.entries.squeeze();
        }
    }

    /// Iterates over all numbers from `first` on with their places, in order.
    pub(crate) fn iter_from(&self, first: u64) -> impl Iterator<Item = (u64, Location)> {
        let from = self.leaves.range(..=first).next_back().map_or(first, |(&base, _)| base);
        self.leaves.range(from..).flat_map(move |(&base, leaf)| {
            leaf.entries.iter().filter_map(move |entry| {
                let number = base + u64::from(entry.delta);
                Some((number, entry.location()?)).filter(|_| number >= first)
            })
        })
    }
}

impl Leaf {
    /// Whether a new entry can be appended in the leaf's current form. A leaf in full form does not grow if a new leaf could
    /// use the short form.
    fn takes(&self, delta: u32, at: Location) -> bool {
        let entry = Full::new(delta, at);
        match &self.entries {
            Entries::Short(segment, _) => entry.short(*segment).is_some(),
            // Large or scattered records stay together; others begin a new leaf.
            Entries::Full(entries) => {
                entries.len() < SMALL_LEAF_ENTRIES || Full::new(0, at).short(at.segment).is_none()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mqcore_testkit::Random;

    use super::*;

    /// Places in several segments, with an occasional large record.
    fn at(offset: u32) -> Location {
        let length = if offset.is_multiple_of(97) { 70_000 } else { 9 };
        Location { segment: 1 + offset / 700, offset, length }
    }

    #[test]
    fn index_agrees_with_a_map_under_random_changes() {
        let mut index = RecordIndex::default();
        let mut model = BTreeMap::new();
        let mut random = Random::new(7);
        for step in 1..60_000_u32 {
            let (roll, pick) = (random.below(16), random.below(5000));
            // Numbers this far apart do not fit into one leaf.
            let number = if roll == 15 { pick << 33 } else { pick };
            match roll {
                0..=8 | 15 => assert_eq!(index.insert(number, at(step)), model.insert(number, at(step))),
                9..=12 => assert_eq!(index.remove(number), model.remove(&number)),
                13 => {
                    let range = number..=number + random.below(300);
                    let mut gone = Vec::new();
                    index.remove_range(range.clone(), |number, _| gone.push(number));
                    let expected: Vec<u64> = model.range(range).map(|(&number, _)| number).collect();
                    model.retain(|number, _| !expected.contains(number));
                    assert_eq!(gone, expected);
                }
                _ => assert_eq!(index.get(number), model.get(&number).copied()),
            }
            assert_eq!(index.len(), model.len());
        }
        assert!(index.iter_from(0).eq(model.iter().map(|(&number, &at)| (number, at))));
        assert!(index.iter_from(2500).eq(model.range(2500..).map(|(&number, &at)| (number, at))));
    }

    #[test]
    fn index_takes_eight_bytes_per_consecutive_record_and_releases_them() {
        let mut index = RecordIndex::default();
        for number in 0..100_000 {
            // Alternating puts and settlements use up numbers like this, in segments of 16 MiB.
            let at = Location { segment: number as u32 / 16_000, offset: 128, length: 1024 };
            index.insert(number * 2, at);
        }
        assert!((100_000 * 8..100_000 * 9).contains(&index.bytes()), "{}", index.bytes());
        index.remove_range(0..=199_800, |_, _| {});
        assert!(index.bytes() < 10_000, "{}", index.bytes());
    }

    #[test]
    fn moved_record_is_found_at_its_new_place() {
        let mut index = RecordIndex::default();
        let place = |segment, number: u64| Location { segment, offset: 128 + number as u32 * 8, length: 8 };
        for number in 0..300 {
            index.insert(number, place(1, number));
        }
        assert_eq!(index.insert(150, place(9, 150)), Some(place(1, 150)));
        assert!(
            (0..300)
                .all(|number| index.get(number) == Some(place(if number == 150 { 9 } else { 1 }, number)))
        );
    }
}
