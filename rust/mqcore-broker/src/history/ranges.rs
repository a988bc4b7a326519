//! Sets of message numbers as ranges of consecutive numbers, in blocks of history.
//!
//! ```text
//! ranges: count varint, then for each range, in ascending order:
//!         distance of its first number from the last number of the previous range (of the first range: from 0) varint,
//!         further numbers in the range varint
//! ```

use crate::history::format::push;
use crate::history::reader::{malformed, varint};
use crate::model::record::RecordError;

/// A range of numbers, as its first and its last one.
pub type NumberRange = (u64, u64);

/// A set of numbers that grows.
#[derive(Debug, Default)]
pub(crate) struct NumberSet {
    ranges: Vec<NumberRange>,
}

impl NumberSet {
    /// Adds a number that the set does not contain. Numbers in ascending order need the least memory.
    pub(crate) fn add(&mut self, number: u64) {
        match self.ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => self.ranges.push((number, number)),
        }
    }

    /// The numbers as ranges in ascending order, as few as possible.
    pub(crate) fn into_ranges(mut self) -> Vec<NumberRange> {
        self.ranges.sort_unstable();
        let mut joined: Vec<NumberRange> = Vec::new();
        for (first, last) in self.ranges {
            match joined.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                _ => joined.push((first, last)),
            }
        }
        joined
    }
}

/// Encodes ranges, which are in ascending order.
pub(super) fn push_ranges(bytes: &mut Vec<u8>, ranges: &[NumberRange]) {
    push(bytes, ranges.len() as u64);
    let mut before = 0;
    for (first, last) in ranges {
        push(bytes, first - before);
        push(bytes, last - first);
        before = *last;
    }
}

/// A set of message numbers, read from a block. It is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRanges<'a> {
    encoded: &'a [u8],
    count: u64,
}

impl<'a> NumberRanges<'a> {
    /// Reads ranges, and returns the bytes after them.
    pub(super) fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), RecordError> {
        let (ranges, encoded) = varint(bytes)?;
        let (mut rest, mut before, mut count) = (encoded, 0, 0_u64);
        for _ in 0..ranges {
            let ((first, last), after) = next(rest, before)?;
            // Ranges are disjoint and do not contain 0, so that there are fewer than 2^64 numbers.
            count += last - first + 1;
            (rest, before) = (after, last);
        }
        if ranges == 0 {
            return Err(malformed("a set of numbers is empty"));
        }
        Ok((Self { encoded: &encoded[..encoded.len() - rest.len()], count }, rest))
    }

    /// Number of numbers in all ranges.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = NumberRange> + use<'a> {
        let (mut rest, mut before) = (self.encoded, 0);
        std::iter::from_fn(move || {
            let (range, after) = next(rest, before).ok()?;
            (rest, before) = (after, range.1);
            Some(range)
        })
    }

    /// The smallest number.
    pub fn first(&self) -> u64 {
        self.iter().next().map_or(0, |(first, _)| first)
    }

    /// The largest number.
    pub fn last(&self) -> u64 {
        self.iter().last().map_or(0, |(_, last)| last)
    }
}

fn next(bytes: &[u8], before: u64) -> Result<(NumberRange, &[u8]), RecordError> {
    let (distance, bytes) = varint(bytes)?;
    let (further, bytes) = varint(bytes)?;
    let first = before.checked_add(distance).filter(|_| distance > 0);
    let range = first.and_then(|first| Some((first, first.checked_add(further)?)));
    range.map(|range| (range, bytes)).ok_or(malformed("ranges of numbers are not in order"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(numbers: &[u64]) -> (Vec<NumberRange>, u64) {
        let mut set = NumberSet::default();
        numbers.iter().for_each(|number| set.add(*number));
        let ranges = set.into_ranges();
        let mut bytes = Vec::new();
        push_ranges(&mut bytes, &ranges);
        bytes.push(7);
        let (read, rest) = NumberRanges::read(&bytes).expect("just encoded");
        assert_eq!((read.iter().collect::<Vec<_>>(), rest), (ranges.clone(), &[7][..]));
        assert_eq!((read.first(), read.last()), (ranges[0].0, ranges[ranges.len() - 1].1));
        (ranges, read.count())
    }

    #[test]
    fn ranges_are_as_few_as_possible_in_any_order() {
        assert_eq!(there_and_back(&[1, 2, 3]), (vec![(1, 3)], 3));
        assert_eq!(there_and_back(&[9, 3, 1, 2, 10, 7]), (vec![(1, 3), (7, 7), (9, 10)], 6));
        assert_eq!(there_and_back(&[5, 4, 6]), (vec![(4, 6)], 3));
        assert_eq!(there_and_back(&[u64::MAX, 1]), (vec![(1, 1), (u64::MAX, u64::MAX)], 2));
        let (ranges, count) = there_and_back(&(1..=10_000).collect::<Vec<_>>());
        assert_eq!((ranges, count), (vec![(1, 10_000)], 10_000));
    }

    #[test]
    fn malformed_ranges_are_errors() {
        for (bytes, why) in [
            (&[0][..], "empty"),
            (&[1, 0, 3], "order"),
            (&[2, 1, 1, 0, 0], "order"),
            (&[1, 1], "truncated"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 1], "truncated"),
            (&[2, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0], "order"),
        ] {
            let error = NumberRanges::read(bytes).expect_err("malformed").to_string();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
    }
}
