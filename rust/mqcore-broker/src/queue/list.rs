//! One list of waiting messages, in order. Entries of messages whose bodies are paged out stay in it.

use std::collections::VecDeque;
use std::ops::Range;

use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{MessageNumber, Sequence};
use crate::model::message::Message;
use crate::model::time::Timestamp;

/// An entry of a list: 40 bytes, whether or not the body is in memory.
#[derive(Debug)]
pub(super) struct ReadyEntry {
    pub(super) message: Option<Message>,
    pub(super) deadline: Timestamp,
    pub(super) sequence: Sequence,
    number: MessageNumber,
    attempts: u16,
    requeues: u16,
    /// Size of the message in units of [`SIZE_UNIT`], rounded up; the maximum stands for anything
    /// larger.
    size: u16,
    flags: u8,
}

const SIZE_UNIT: u64 = 64;
/// The size in bytes that the maximum stands for.
const SIZE_MAX: u64 = 64 << 20;
const SAVED: u8 = 1;
const ANSWERED: u8 = 2;
const COUNTED: u8 = 4;

fn units(bytes: u64) -> u16 {
    u16::try_from(bytes.div_ceil(SIZE_UNIT)).unwrap_or(u16::MAX)
}

impl ReadyEntry {
    pub(super) fn of(entry: Entry) -> Self {
        let Entry { message, deadline, attempts, requeues, sequence, saved, answered, number, counted } =
            entry;
        let size = units(message.memory_bytes() as u64);
        let flags =
            (u8::from(saved) * SAVED) | (u8::from(answered) * ANSWERED) | (u8::from(counted) * COUNTED);
        Self { message: Some(message), deadline, sequence, number, attempts, requeues, size, flags }
    }

    pub(super) fn of_paged_out(paged_out: PagedOut) -> Self {
        let PagedOut { deadline, attempts, requeues, sequence, answered, number, bytes } = paged_out;
        let flags = SAVED | (u8::from(answered) * ANSWERED);
        Self { message: None, deadline, sequence, number, attempts, requeues, size: units(bytes), flags }
    }

    pub(super) fn is_saved(&self) -> bool {
        self.flags & SAVED != 0
    }

    /// Bytes that its message takes in memory once it is loaded.
    pub(super) fn full_bytes(&self) -> u64 {
        if self.size == u16::MAX { SIZE_MAX } else { u64::from(self.size) * SIZE_UNIT }
    }

    /// Bytes of its message that are in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.message.as_ref().map_or(0, |message| message.memory_bytes() as u64)
    }

    pub(super) fn paged_out(&self) -> PagedOut {
        PagedOut {
            deadline: self.deadline,
            attempts: self.attempts,
            requeues: self.requeues,
            sequence: self.sequence,
            answered: self.flags & ANSWERED != 0,
            number: self.number,
            bytes: self.full_bytes(),
        }
    }

    /// Whether its producer got its confirmation.
    pub(super) fn is_answered(&self) -> bool {
        self.flags & ANSWERED != 0
    }

    pub(super) fn entry(self, message: Message) -> Entry {
        Entry {
            message,
            deadline: self.deadline,
            attempts: self.attempts,
            requeues: self.requeues,
            sequence: self.sequence,
            number: self.number,
            saved: self.is_saved(),
            answered: self.flags & ANSWERED != 0,
            counted: self.flags & COUNTED != 0,
        }
    }
}

/// One list.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) cards: VecDeque<ReadyEntry>,
    /// The position of the first entry. Positions do not change while other entries are added and
    /// removed.
    first: i64,
    /// Ranges of positions without bodies that could leave memory, in order. A hint that avoids
    /// scanning paged-out entries again; entries may be missing here, and are then scanned once more.
    pub(super) cold: Vec<Range<i64>>,
}

/// Maximum number of such ranges.
const COLD_MAX: usize = 64;

impl List {
    /// A list of these entries.
    pub(super) fn of(cards: VecDeque<ReadyEntry>) -> Self {
        Self { cards, ..Self::default() }
    }

    pub(super) fn push_front(&mut self, card: ReadyEntry) {
        // The position may be that of an entry that was removed.
        if let Some(cold) = self.cold.first_mut() {
            cold.start = cold.start.max(self.first);
        }
        self.first -= 1;
        self.cards.push_front(card);
    }

    pub(super) fn pop(&mut self, newest: bool) -> Option<ReadyEntry> {
        let card = if newest {
            let card = self.cards.pop_back()?;
            let end = self.end();
            while self.cold.last().is_some_and(|last| last.end > end) {
                let Some(last) = self.cold.pop() else { break };
                if last.start < end {
                    self.cold.push(last.start..end);
                }
            }
            card
        } else {
            let card = self.cards.pop_front()?;
            self.first += 1;
            card
        };
        if self.cold.first().is_some_and(|cold| cold.end <= self.first) {
            self.cold.remove(0);
        }
        Some(card)
    }

    fn end(&self) -> i64 {
        self.first + self.cards.len() as i64
    }

    /// Offers bodies from the last entry down to, but not including, the first `keep`, until `leave`
    /// reports that it is enough.
    pub(super) fn evict(&mut self, keep: usize, leave: &mut dyn FnMut(&mut ReadyEntry) -> Eviction) {
        let floor = self.first + keep as i64;
        let mut end = self.end();
        let mut at = end;
        let mut found = Vec::new();
        loop {
            while let Some(cold) = self.cold.pop_if(|cold| cold.end >= at) {
                at = at.min(cold.start);
            }
            if at <= floor {
                break;
            }
            let card = &mut self.cards[(at - 1 - self.first) as usize];
            if card.message.is_some() {
                match leave(card) {
                    Eviction::Done => {}
                    Eviction::Enough => break,
                    Eviction::NotYet => {
                        found.push(at..end);
                        end = at - 1;
                    }
                }
            }
            at -= 1;
        }
        found.push(at..end);
        found.into_iter().for_each(|cold| self.remember(cold));
    }

    fn remember(&mut self, cold: Range<i64>) {
        if cold.start < cold.end {
            let place = self.cold.partition_point(|known| known.start < cold.start);
            self.cold.insert(place, cold);
            if self.cold.len() > COLD_MAX {
                self.cold.remove(0);
            }
        }
    }
}

/// The decision about a body that could be paged out.
pub(crate) enum Eviction {
    Done,
    Enough,
    /// It may leave later: its record is not committed.
    NotYet,
}
