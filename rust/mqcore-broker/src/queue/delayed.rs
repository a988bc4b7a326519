//! Messages that must not be delivered before a given time: those that their producers delay, requeued
//! ones that wait for their next attempt, and those that all consumers refused. Other messages pass them.

use std::collections::BTreeMap;

use crate::model::command::Clear;
use crate::model::decision::PutBack;
use crate::model::terms::LEVEL_HIGH_MIN;
use crate::model::time::Timestamp;
use crate::queue::ready::Unlisted;

/// Delayed messages of one queue by time; equal times in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    waiting: BTreeMap<(Timestamp, u64), DelayedMessage>,
    serial: u64,
    /// How many of them have high priority.
    high: u64,
    /// How many of them were refused by all consumers.
    refused: u64,
    /// Memory of the bodies that are not paged out.
    bytes: u64,
}

/// The event that a message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// Its next attempt. Then it returns to this end of its queue.
    Attempt(PutBack),
    /// A consumer that takes it, or its time. Then it returns to the start of its queue.
    Consumer,
}

/// A delayed message. Its body may be paged out before it is inserted here, and not later.
#[derive(Debug)]
struct DelayedMessage {
    taken: Unlisted,
    level: u8,
    awaits: Awaits,
}

impl DelayedMessage {
    fn is_high(&self) -> bool {
        self.level >= LEVEL_HIGH_MIN
    }

    fn bytes(&self) -> u64 {
        match &self.taken {
            Unlisted::InMemory(entry) => entry.message.memory_bytes() as u64,
            Unlisted::PagedOut(_) => 0,
        }
    }
}

/// A message whose time has come.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) taken: Unlisted,
    /// Its priority.
    pub(crate) level: u8,
    /// The end of the queue to which it returns.
    pub(crate) position: PutBack,
}

impl From<DelayedMessage> for Due {
    fn from(DelayedMessage { taken, level, awaits }: DelayedMessage) -> Self {
        let position = match awaits {
            Awaits::Attempt(position) => position,
            Awaits::Consumer => PutBack::Start,
        };
        Self { taken, level, position }
    }
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

    /// Their memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The earliest time; [`Timestamp::NEVER`] if there is no message.
    pub(crate) fn next(&self) -> Timestamp {
        self.waiting.first_key_value().map_or(Timestamp::NEVER, |((time, _), _)| *time)
    }

    /// All messages with their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Unlisted)> {
        self.waiting.iter().map(|((time, _), waiting)| (*time, &waiting.taken))
    }

    pub(crate) fn insert(&mut self, until: Timestamp, taken: Unlisted, level: u8, awaits: Awaits) {
        self.serial += 1;
        let waiting = DelayedMessage { taken, level, awaits };
        self.high += u64::from(waiting.is_high());
        self.refused += u64::from(awaits == Awaits::Consumer);
        self.bytes += waiting.bytes();
        self.waiting.insert((until, self.serial), waiting);
    }

    /// Removes the first message whose time has come.
    pub(crate) fn due(&mut self, now: Timestamp) -> Option<Due> {
        if self.next() > now {
            return None;
        }
        let (_, waiting) = self.waiting.pop_first()?;
        self.count_out(&waiting);
        Some(waiting.into())
    }

    /// Removes the messages that all consumers refused.
    pub(crate) fn refused(&mut self) -> Vec<Due> {
        if self.refused == 0 {
            return Vec::new();
        }
        self.take(|waiting| waiting.awaits == Awaits::Consumer).into_iter().map(Due::from).collect()
    }

    /// Removes the messages that `clear` selects.
    pub(crate) fn clear(&mut self, clear: Clear) -> Vec<Unlisted> {
        let cleared = self.take(|waiting| if waiting.is_high() { clear.high_priority } else { clear.normal });
        cleared.into_iter().map(|waiting| waiting.taken).collect()
    }

    fn take(&mut self, selects: impl Fn(&DelayedMessage) -> bool) -> Vec<DelayedMessage> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left) = all.partition(|(_, waiting)| selects(waiting));
        self.waiting = left;
        let taken: Vec<_> = BTreeMap::into_values(taken).collect();
        taken.iter().for_each(|waiting| self.count_out(waiting));
        taken
    }

    fn count_out(&mut self, waiting: &DelayedMessage) {
        self.high -= u64::from(waiting.is_high());
        self.refused -= u64::from(waiting.awaits == Awaits::Consumer);
        self.bytes -= waiting.bytes();
    }
}
