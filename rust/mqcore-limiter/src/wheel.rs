//! A hierarchical timing wheel that finds the entries due next. Its lists run through the entries themselves.
//!
//! There are eight levels of 64 slots. A slot of the lowest level is one *tick*, about a millisecond; each further level is
//! 64 times coarser. An entry waits in the lowest level whose current round contains its deadline, and moves down when its
//! slot comes up. Insertion, removal and finding the next slot take a few steps, however many entries there are.
//!
//! The wheel only determines when memory is released. The deadline alone determines whether an entry is valid.

use crate::arena::{Arena, NONE};
use crate::entry::{Entry, ListLinks};
use crate::time::Nanos;

/// A tick is 2^20 ns.
const TICK_BITS: u32 = 20;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 8;

/// Maximum number of entries of one list that are compared to find the one due first.
const COMPARED_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Wheel {
    /// All slots up to this tick have come up.
    elapsed: u64,
    /// Bit `n`: slot `n` of the level is not empty.
    occupied: [u64; LEVELS],
    /// First entries, by level and slot. Empty until the first insertion, so that a small store uses little memory.
    heads: Vec<u32>,
    /// First of the entries whose slot came up and that were not examined yet.
    due: u32,
}

/// The tick at whose beginning a deadline has passed.
#[inline]
const fn tick(deadline: Nanos) -> u64 {
    (deadline.0 >> TICK_BITS) + 1
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self { elapsed: 0, occupied: [0; LEVELS], heads: Vec::new(), due: NONE }
    }

    /// Inserts an entry that is in no list.
    pub(crate) fn insert(&mut self, place: u32, entries: &mut Arena<Entry>) {
        let tick = tick(entries.get(place).deadline);
        if tick <= self.elapsed {
            let first = self.due;
            self.due = place;
            return push_front(place, first, entries);
        }
        if self.heads.is_empty() {
            self.heads = vec![NONE; LEVELS * SLOTS];
        }
        let slot = self.slot_of(tick);
        self.occupied[slot / SLOTS] |= 1 << (slot % SLOTS);
        let first = std::mem::replace(&mut self.heads[slot], place);
        entries.get_mut(place).slot = slot as u16;
        push_front(place, first, entries);
    }

    /// Slot of a future tick.
    #[inline]
    fn slot_of(&self, tick: u64) -> usize {
        // The highest differing bit is in the digit that selects the slot.
        let level = ((63 - (self.elapsed ^ tick).leading_zeros()) / SLOT_BITS) as usize;
        let digit = (tick >> (level as u32 * SLOT_BITS)) as usize % SLOTS;
        level * SLOTS + digit
    }

    /// Moves an entry whose deadline changed to its new slot. Usually it stays: a bucket used a million times a second changes
    /// its slot a thousand times.
    #[inline]
    pub(crate) fn move_to_deadline(&mut self, place: u32, entries: &mut Arena<Entry>) {
        let entry = entries.get(place);
        let tick = tick(entry.deadline);
        // A due entry still names the slot that it left. That slot is not used again before all due entries are processed.
        if tick <= self.elapsed || self.slot_of(tick) != usize::from(entry.slot) {
            self.remove(place, entries);
            self.insert(place, entries);
        }
    }

    /// Removes an entry from its list.
    pub(crate) fn remove(&mut self, place: u32, entries: &mut Arena<Entry>) {
        let entry = entries.get_mut(place);
        let ListLinks { previous, next } = std::mem::take(&mut entry.wheel);
        let slot = usize::from(entry.slot);
        if next != NONE {
            entries.get_mut(next).wheel.previous = previous;
        }
        if previous != NONE {
            entries.get_mut(previous).wheel.next = next;
        } else if self.due == place {
            self.due = next;
        } else {
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
            }
        }
    }

    /// Examines up to `budget` entries whose slot has come up by `now`, and returns one that has expired. Moving entries to
    /// lower levels also uses the budget. `None`: the budget is used up, or nothing more is due.
    pub(crate) fn next_expired(
        &mut self,
        now: Nanos,
        budget: &mut usize,
        entries: &mut Arena<Entry>,
    ) -> Option<u32> {
        let now = now.0 >> TICK_BITS;
        while *budget > 0 {
            if self.due == NONE {
                match self.next_slot() {
                    Some((slot, begins)) if begins <= now => self.come_up(slot, begins),
                    _ => {
                        // No occupied slot begins before `now`, so this moves no entry.
                        self.elapsed = self.elapsed.max(now);
                        return None;
                    }
                }
            }
            *budget -= 1;
            let place = self.due;
            if tick(entries.get(place).deadline) <= now {
                return Some(place);
            }
            self.remove(place, entries);
            self.insert(place, entries);
        }
        None
    }

    /// Whether any entry must be examined by `now`.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        let now = now.0 >> TICK_BITS;
        self.due != NONE || self.next_slot().is_some_and(|(_, begins)| begins <= now)
    }

    /// Returns the entry that is due first, except those in `keep`. The result is exact for up to a few entries per slot.
    /// Otherwise its deadline is within 1/64 of the time until the earliest deadline.
    pub(crate) fn soonest(&self, keep: &[u32], entries: &Arena<Entry>) -> Option<u32> {
        if let Some(place) = soonest_of(self.due, keep, entries) {
            return Some(place);
        }
        // Entries on a lower level are due before all entries on a higher one.
        for level in 0..LEVELS {
            let mut occupied = self.occupied[level];
            while occupied != 0 {
                let digit = occupied.trailing_zeros() as usize;
                occupied &= occupied - 1;
                let head = self.heads[level * SLOTS + digit];
                if let Some(place) = soonest_of(head, keep, entries) {
                    return Some(place);
                }
            }
        }
        None
    }

    /// The next slot to come up and its tick. On each level, only slots in the future are occupied.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|occupied| *occupied != 0)?;
        let digit = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * SLOT_BITS;
        let round = self.elapsed >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
        Some((level * SLOTS + digit, round + ((digit as u64) << shift)))
    }

    /// Makes all entries of a slot due at once, in constant time.
    fn come_up(&mut self, slot: usize, begins: u64) {
        self.elapsed = begins;
        self.due = std::mem::replace(&mut self.heads[slot], NONE);
        self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
    }
}

fn push_front(place: u32, first: u32, entries: &mut Arena<Entry>) {
    entries.get_mut(place).wheel = ListLinks { previous: NONE, next: first };
    if first != NONE {
        entries.get_mut(first).wheel.previous = place;
    }
}

fn soonest_of(head: u32, keep: &[u32], entries: &Arena<Entry>) -> Option<u32> {
    let mut place = head;
    let mut found: Option<(Nanos, u32)> = None;
    for _ in 0..COMPARED_MAX + keep.len() {
        if place == NONE {
            break;
        }
        let entry = entries.get(place);
        if found.is_none_or(|(deadline, _)| entry.deadline < deadline) && !keep.contains(&place) {
            found = Some((entry.deadline, place));
        }
        place = entry.wheel.next;
    }
    found.map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Timed {
        wheel: Wheel,
        entries: Arena<Entry>,
    }

    impl Timed {
        fn new() -> Self {
            Self { wheel: Wheel::new(), entries: Arena::new() }
        }

        fn add(&mut self, deadline: u64) -> u32 {
            let place = self.entries.insert(Entry { deadline: Nanos(deadline), ..Entry::default() });
            self.wheel.insert(place, &mut self.entries);
            place
        }

        fn expire(&mut self, now: u64, mut budget: usize) -> Vec<u32> {
            let mut expired = Vec::new();
            while let Some(place) = self.wheel.next_expired(Nanos(now), &mut budget, &mut self.entries) {
                self.wheel.remove(place, &mut self.entries);
                expired.push(place);
            }
            expired
        }
    }

    #[test]
    fn entry_without_expiry_stays() {
        let mut timed = Timed::new();
        timed.add(u64::MAX);
        assert!(timed.expire(u64::MAX - 1, 1000).is_empty());
    }

    #[test]
    fn entries_due_at_once_expire_in_bounded_steps() {
        let mut timed = Timed::new();
        for _ in 0..10_000 {
            timed.add(5_000_000_000);
        }
        let now = 6_000_000_000;
        let mut steps = 0;
        let mut taken = 0;
        while timed.wheel.is_due(Nanos(now)) {
            let step = timed.expire(now, 100).len();
            assert!(step <= 100);
            taken += step;
            steps += 1;
        }
        assert_eq!(taken, 10_000);
        assert!(steps < 400, "{steps}");
    }

    proptest! {
        #[test]
        fn entries_expire_within_two_ticks_of_their_deadline_and_never_early(
            deadlines in proptest::collection::vec(prop_oneof![0_u64..5_000_000, 0_u64..4_000_000_000_000, any::<u64>()], 1..60),
            steps in proptest::collection::vec((1_u64..3_000_000_000_000, 1_usize..40), 1..60),
            taken_out in proptest::collection::vec(any::<proptest::sample::Index>(), 0..10),
        ) {
            let mut timed = Timed::new();
            let places: Vec<u32> = deadlines.iter().map(|deadline| timed.add(*deadline)).collect();
            let mut left: std::collections::BTreeMap<u32, u64> = places.iter().copied().zip(deadlines.iter().copied()).collect();
            for index in taken_out {
                let place = *index.get(&places);
                if left.remove(&place).is_some() {
                    timed.wheel.remove(place, &mut timed.entries);
                }
            }
            let mut now = 0_u64;
            for (step, budget) in steps {
                now = now.saturating_add(step);
                let mut rounds = 0;
                loop {
                    for place in timed.expire(now, budget) {
                        let deadline = left.remove(&place).unwrap();
                        prop_assert!(deadline <= now);
                    }
                    rounds += 1;
                    prop_assert!(rounds < 10_000);
                    if !timed.wheel.is_due(Nanos(now)) { break; }
                }
                let tick = 1 << TICK_BITS;
                prop_assert!(left.values().all(|deadline| deadline.saturating_add(2 * tick) > now));
                let first = left.values().min().copied();
                let found = timed.wheel.soonest(&[], &timed.entries).map(|place| timed.entries.get(place).deadline.0);
                prop_assert_eq!(found.is_some(), first.is_some());
                if let (Some(found), Some(first)) = (found, first) {
                    prop_assert!(found.saturating_sub(now) <= first.saturating_sub(now).saturating_add(first.saturating_sub(now) / 8).saturating_add(64 * tick) || left.len() > COMPARED_MAX || found == first, "{found} and {first} at {now}");
                }
            }
        }
    }
}
