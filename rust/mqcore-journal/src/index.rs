//! Which live record stands where: 8 bytes a record as a rule, in leaves of sorted entries.
//!
//! Numbers arrive in ascending order and leave in about the same order, and records of neighbouring numbers stand in one
//! segment. So a leaf knows the segment for all of its entries, is filled at its end, emptied by marking entries as gone,
//! squeezed when half of them are, and dropped with the last. A leaf with something that does not fit the short form
//! (a record that housekeeping moved, one above 64 KiB, numbers far apart) keeps everything in full, 16 bytes a record.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::ops::RangeInclusive;

use crate::format::Location;

/// Entries in a leaf: 4 KiB, or 8 KiB in full.
const LEAF: usize = 512;
/// Leaves smaller than this are not worth squeezing.
const SMALL: usize = 32;

/// Numbers to places.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By a number that is not larger than any in the leaf.
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
    /// All in one segment.
    Short(u32, Vec<Short>),
    Full(Vec<Full>),
}

#[derive(Debug, Clone, Copy)]
struct Short {
    /// 0 in an entry that is gone: no record stands there.
    offset: u32,
    /// From the leaf's number.
    delta: u16,
    length: u16,
}

#[derive(Debug, Clone, Copy)]
struct Full {
    delta: u32,
    segment: u32,
    /// As in the short form.
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
    /// The first entry of a leaf, which is the leaf's own number.
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

    /// Where `delta` stands, or would stand.
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

    /// Takes the full form if `entry` needs it.
    fn fit(&mut self, entry: Full) {
        if let Self::Short(segment, _) = self
            && entry.short(*segment).is_none()
        {
            *self = Self::Full(self.iter().collect());
        }
    }

    fn take_out(&mut self, position: usize) {
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

    /// The upper half, with deltas from its own first number, which comes with it.
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

/// An entry of which was made sure before that it has the short form.
fn fitting(entry: Full, segment: u32) -> Short {
    entry.short(segment).unwrap_or(Short { offset: 0, delta: 0, length: 0 })
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What the index takes, in bytes, without the allocator's own.
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

    /// Sets a number's place; answers the one that it had.
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
            Err(position) if position == length && (length == LEAF || !leaf.takes(delta, at)) => {
                self.insert_leaf(number, at)
            }
            Err(position) if length < LEAF => {
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

    /// Moves the upper half of a full leaf into one of its own.
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

    /// Removes all numbers of a range, and tells each with its place, in order.
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
                    leaf.entries.take_out(position);
                    leaf.live -= 1;
                    gone(number, at);
                }
            }
            self.count -= before - leaf.live;
            if leaf.live == 0 || (leaf.entries.len() > SMALL && leaf.live < leaf.entries.len() / 2) {
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

    /// All numbers from `first` on with their places, in order.
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
    /// Whether something new at the end can be kept in the form that the leaf has. A leaf that is not short any more
    /// does not grow in full where a short one can be begun.
    fn takes(&self, delta: u32, at: Location) -> bool {
        let entry = Full::new(delta, at);
        match &self.entries {
            Entries::Short(segment, _) => entry.short(*segment).is_some(),
            // Large or scattered records stay together; others begin a leaf of their own.
            Entries::Full(entries) => entries.len() < SMALL || Full::new(0, at).short(at.segment).is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments that roll, and a large record now and then.
    fn at(offset: u32) -> Location {
        let length = if offset.is_multiple_of(97) { 70_000 } else { 9 };
        Location { segment: 1 + offset / 700, offset, length }
    }

    #[test]
    fn agrees_with_a_plain_map_whatever_comes_and_goes() {
        let mut index = Index::default();
        let mut model = BTreeMap::new();
        let mut random = 7_u64;
        for step in 1..60_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (roll, pick) = (random >> 60, (random >> 20) % 5000);
            // Numbers far apart do not fit one leaf.
            let number = if roll == 15 { pick << 33 } else { pick };
            match roll {
                0..=8 | 15 => assert_eq!(index.insert(number, at(step)), model.insert(number, at(step))),
                9..=12 => assert_eq!(index.remove(number), model.remove(&number)),
                13 => {
                    let range = number..=number + (random >> 40) % 300;
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
    fn takes_eight_bytes_a_record_in_a_row_and_gives_them_back() {
        let mut index = Index::default();
        for number in 0..100_000 {
            // As publishing and settling in turn use numbers up, and segments of 16 MiB.
            let at = Location { segment: number as u32 / 16_000, offset: 128, length: 1024 };
            index.insert(number * 2, at);
        }
        assert!(index.bytes() < 100_000 * 9, "{}", index.bytes());
        index.remove_range(0..=199_800, |_, _| {});
        assert!(index.bytes() < 10_000, "{}", index.bytes());
    }

    #[test]
    fn a_record_that_moved_is_found_at_its_new_place_with_its_neighbours_at_theirs() {
        let mut index = Index::default();
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
