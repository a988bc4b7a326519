//! Messages that wait in a queue: two lists, high priority first, each in order.

use std::collections::VecDeque;

use crate::command::Clear;
use crate::id::{MessageNumber, Sequence};
use crate::message::Message;
use crate::time::Timestamp;

/// A message with what its queue remembers of it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    /// When it has waited too long; [`Timestamp::NEVER`] if it may wait for ever.
    pub(crate) deadline: Timestamp,
    /// How often it was handed out.
    pub(crate) attempts: u16,
    /// How often it was put back.
    pub(crate) put_backs: u16,
    /// Under which number the journal has it; 0 if it does not.
    pub(crate) sequence: Sequence,
    /// Under which number the history knows it; 0 without a history.
    pub(crate) number: MessageNumber,
    /// It is durable, as its queue understands that.
    pub(crate) saved: bool,
    /// Its producer was told its fate: that happens once.
    pub(crate) answered: bool,
}

impl Entry {
    pub(crate) fn new(message: Message, deadline: Timestamp) -> Self {
        Self {
            message,
            deadline,
            attempts: 0,
            put_backs: 0,
            sequence: Sequence(0),
            number: MessageNumber(0),
            saved: false,
            answered: false,
        }
    }

    fn is_high(&self) -> bool {
        self.message.properties().high_priority
    }
}

/// The two lists.
///
/// Deadlines ascend within each list as long as messages only arrive; putting back and changing the timeout
/// may break that. `disordered` says that it is broken, and then expiry looks at every entry instead of the
/// first ones. So the common case costs nothing, and the rare one is still exact.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    high: VecDeque<Entry>,
    normal: VecDeque<Entry>,
    disordered: bool,
    bytes: u64,
}

impl Ready {
    pub(crate) fn len(&self) -> usize {
        self.high.len() + self.normal.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.high.is_empty() && self.normal.is_empty()
    }

    /// How many there are of high priority, and how many others.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.high.len() as u64, self.normal.len() as u64)
    }

    /// Octets that the waiting messages keep in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push_back(&mut self, entry: Entry) {
        self.bytes += entry.message.memory_bytes() as u64;
        let list = if entry.is_high() { &mut self.high } else { &mut self.normal };
        self.disordered |= list.back().is_some_and(|last| last.deadline > entry.deadline);
        list.push_back(entry);
    }

    pub(crate) fn push_front(&mut self, entry: Entry) {
        self.bytes += entry.message.memory_bytes() as u64;
        let list = if entry.is_high() { &mut self.high } else { &mut self.normal };
        self.disordered |= list.front().is_some_and(|first| first.deadline < entry.deadline);
        list.push_front(entry);
    }

    /// The next to be handed out: the oldest of the highest priority, or the newest of it.
    pub(crate) fn pop(&mut self, newest: bool) -> Option<Entry> {
        let list = if self.high.is_empty() { &mut self.normal } else { &mut self.high };
        let entry = if newest { list.pop_back() } else { list.pop_front() }?;
        self.bytes -= entry.message.memory_bytes() as u64;
        if self.is_empty() {
            self.disordered = false;
            self.release();
        }
        Some(entry)
    }

    /// A look at the newest message, for caches.
    pub(crate) fn newest(&self) -> Option<&Entry> {
        self.high.back().or(self.normal.back())
    }

    /// All of them, in the order in which they would be handed out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.high.iter().chain(&self.normal)
    }

    /// Takes out what `clear` names; returns it.
    pub(crate) fn clear(&mut self, clear: Clear) -> Vec<Entry> {
        let mut taken = Vec::new();
        if clear.high_priority {
            taken.extend(self.high.drain(..));
        }
        if clear.normal {
            taken.extend(self.normal.drain(..));
        }
        self.bytes -= taken.iter().map(|entry| entry.message.memory_bytes() as u64).sum::<u64>();
        self.release();
        taken
    }

    /// Takes out everything whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<Entry> {
        let mut expired = Vec::new();
        for list in [&mut self.high, &mut self.normal] {
            if self.disordered {
                let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(list).into_iter().partition(|entry| entry.deadline <= now);
                expired.extend(gone);
                *list = kept;
            } else {
                while list.front().is_some_and(|entry| entry.deadline <= now) {
                    expired.extend(list.pop_front());
                }
            }
        }
        self.bytes -= expired.iter().map(|entry| entry.message.memory_bytes() as u64).sum::<u64>();
        self.disordered = self.disordered
            && ![&self.high, &self.normal]
                .into_iter()
                .all(|list| list.iter().is_sorted_by_key(|e| e.deadline));
        expired
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Timestamp {
        let lists = [&self.high, &self.normal];
        let earliest = if self.disordered {
            lists.into_iter().flatten().map(|entry| entry.deadline).min()
        } else {
            lists.into_iter().filter_map(VecDeque::front).map(|entry| entry.deadline).min()
        };
        earliest.unwrap_or(Timestamp::NEVER)
    }

    /// Gives memory back after a large backlog went.
    fn release(&mut self) {
        const KEPT: usize = 1024;
        for list in [&mut self.high, &mut self.normal] {
            if list.is_empty() && list.capacity() > KEPT {
                list.shrink_to(KEPT);
            }
        }
    }
}
