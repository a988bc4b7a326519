//! Messages that were put back and are not to be handed out before their time.

use std::collections::BTreeMap;

use crate::model::command::Clear;
use crate::model::time::Timestamp;
use crate::queue::ready::Taken;

/// Those of one queue, by their time; of equal times the one first that came first.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    waiting: BTreeMap<(Timestamp, u64), Waiting>,
    serial: u64,
    /// How many of them have high priority.
    high: u64,
}

/// A message, whose body may have left memory. What is here does not leave it: so few wait for a time as a rule that looking for
/// them would cost more.
#[derive(Debug)]
struct Waiting {
    taken: Taken,
    high: bool,
}

impl Delayed {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many there are of high priority, and how many others.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.high, self.waiting.len() as u64 - self.high)
    }

    /// Octets that they keep in memory. Walks over all.
    pub(crate) fn bytes(&self) -> u64 {
        let read = self.waiting.values().filter_map(|waiting| match &waiting.taken {
            Taken::InMemory(entry) => Some(entry.message.memory_bytes() as u64),
            Taken::PagedOut(_) => None,
        });
        read.sum()
    }

    /// When the first of them is due; [`Timestamp::NEVER`] without one.
    pub(crate) fn next(&self) -> Timestamp {
        self.waiting.first_key_value().map_or(Timestamp::NEVER, |((time, _), _)| *time)
    }

    /// All of them, with their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Taken)> {
        self.waiting.iter().map(|((time, _), waiting)| (*time, &waiting.taken))
    }

    pub(crate) fn insert(&mut self, until: Timestamp, taken: Taken, high: bool) {
        self.serial += 1;
        self.high += u64::from(high);
        self.waiting.insert((until, self.serial), Waiting { taken, high });
    }

    /// The first of those whose time has come, and whether its priority is high.
    pub(crate) fn due(&mut self, now: Timestamp) -> Option<(Taken, bool)> {
        if self.next() > now {
            return None;
        }
        let (_, Waiting { taken, high }) = self.waiting.pop_first()?;
        self.high -= u64::from(high);
        Some((taken, high))
    }

    /// Takes out those that `clear` is about.
    pub(crate) fn clear(&mut self, clear: Clear) -> Vec<Taken> {
        let is_about = |waiting: &Waiting| if waiting.high { clear.high_priority } else { clear.normal };
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (cleared, left) = all.partition(|(_, waiting)| is_about(waiting));
        self.waiting = left;
        let cleared: BTreeMap<_, Waiting> = cleared;
        self.high -= cleared.values().filter(|waiting| waiting.high).count() as u64;
        cleared.into_values().map(|waiting| waiting.taken).collect()
    }
}
