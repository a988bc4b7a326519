//! Which live record stands where: 16 bytes a record, in leaves of sorted entries.
//!
//! Numbers arrive in ascending order and leave in about the same order. So a leaf is filled at its end and emptied by
//! marking entries as gone; it is squeezed when half of them are, and dropped with the last.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::ops::RangeInclusive;

use crate::format::Location;

/// Entries in a leaf: 8 KiB.
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

#[derive(Debug, Default)]
struct Leaf {
    entries: Vec<Entry>,
    live: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// From the leaf's number.
    delta: u32,
    segment: u32,
    /// 0 in an entry that is gone: no record stands there.
    offset: u32,
    length: u32,
}

impl Entry {
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
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What the index takes, in bytes, without the allocator's own.
    pub(crate) fn bytes(&self) -> usize {
        let entries: usize = self.leaves.values().map(|leaf| leaf.entries.capacity()).sum();
        entries * size_of::<Entry>() + self.leaves.len() * size_of::<(u64, Leaf)>()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Location> {
        let (base, leaf) = self.leaves.range(..=number).next_back()?;
        let delta = u32::try_from(number - base).ok()?;
        let at = leaf.entries.binary_search_by_key(&delta, |entry| entry.delta).ok()?;
        leaf.entries[at].location()
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
        let found = match leaf.entries.last() {
            Some(last) if last.delta < delta => Err(leaf.entries.len()),
            _ => leaf.entries.binary_search_by_key(&delta, |entry| entry.delta),
        };
        match found {
            Ok(position) => {
                let old = leaf.entries[position].location();
                leaf.entries[position] = Entry::new(delta, at);
                let added = usize::from(old.is_none());
                leaf.live += added;
                self.count += added;
                old
            }
            Err(position) if leaf.entries.len() < LEAF => {
                leaf.entries.insert(position, Entry::new(delta, at));
                leaf.live += 1;
                self.count += 1;
                None
            }
            Err(position) if position == leaf.entries.len() => self.insert_leaf(number, at),
            Err(_) => {
                self.split(base);
                self.insert(number, at)
            }
        }
    }

    fn insert_leaf(&mut self, number: u64, at: Location) -> Option<Location> {
        self.leaves.insert(number, Leaf { entries: vec![Entry::new(0, at)], live: 1 });
        self.count += 1;
        None
    }

    /// Moves the upper half of a full leaf into one of its own.
    fn split(&mut self, base: u64) {
        let Some(leaf) = self.leaves.get_mut(&base) else { return };
        let mut upper = leaf.entries.split_off(leaf.entries.len() / 2);
        let shift = upper[0].delta;
        for entry in &mut upper {
            entry.delta -= shift;
        }
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
            let start = leaf.entries.partition_point(|entry| base + u64::from(entry.delta) < *range.start());
            for entry in &mut leaf.entries[start..] {
                let number = base + u64::from(entry.delta);
                if number > *range.end() {
                    break;
                }
                if let Some(at) = entry.location() {
                    entry.offset = 0;
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
            leaf.entries.retain(|entry| entry.offset != 0);
            leaf.entries.shrink_to_fit();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> Location {
        Location { segment: 1, offset, length: 9 }
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
    fn takes_sixteen_bytes_a_record_and_gives_them_back() {
        let mut index = Index::default();
        for number in 0..100_000 {
            index.insert(number, at(1));
        }
        assert!(index.bytes() < 100_000 * 17, "{}", index.bytes());
        index.remove_range(0..=99_900, |_, _| {});
        assert!(index.bytes() < 10_000, "{}", index.bytes());
    }
}
