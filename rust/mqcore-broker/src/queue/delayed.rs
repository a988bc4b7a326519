//! Requeued messages that must not be delivered before a given time.

use std::collections::BTreeMap;

use crate::model::command::Clear;
use crate::model::time::Timestamp;
use crate::queue::ready::Taken;

/// Delayed messages of one queue by time; equal times in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    waiting: BTreeMap<(Timestamp, u64), Waiting>,
    serial: u64,
    /// How many of them have high priority.
    high: u64,
}

/// A delayed message, whose body may be paged out. Bodies are not paged out while they are here: there
/// are usually so few that searching for them would cost more.
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

    /// Number of messages of high and of normal priority.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.high, self.waiting.len() as u64 - self.high)
    }

    /// Their memory in bytes. Visits every message.
    pub(crate) fn bytes(&self) -> u64 {
        let read = self.waiting.values().filter_map(|waiting| match &waiting.taken {
            Taken::InMemory(entry) => Some(entry.message.memory_bytes() as u64),
            Taken::PagedOut(_) => None,
        });
        read.sum()
    }

    /// The earliest time; [`Timestamp::NEVER`] if there is no message.
    pub(crate) fn next(&self) -> Timestamp {
        self.waiting.first_key_value().map_or(Timestamp::NEVER, |((time, _), _)| *time)
    }

    /// All messages with their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Taken)> {
        self.waiting.iter().map(|((time, _), waiting)| (*time, &waiting.taken))
    }

    pub(crate) fn insert(&mut self, until: Timestamp, taken: Taken, high: bool) {
        self.serial += 1;
        self.high += u64::from(high);
        self.waiting.insert((until, self.serial), Waiting { taken, high });
    }

    /// Removes the first message whose time has come; also returns whether its priority is high.
    pub(crate) fn due(&mut self, now: Timestamp) -> Option<(Taken, bool)> {
        if self.next() > now {
            return None;
        }
        let (_, Waiting { taken, high }) = self.waiting.pop_first()?;
        self.high -= u64::from(high);
        Some((taken, high))
    }

    /// Removes the messages that `clear` selects.
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
