//! Messages that wait in a queue: two lists, high priority first, each in order. The body of a saved
//! message may be paged out; then only its entry in the list stays in memory.

use std::collections::VecDeque;
use std::ops::Range;

use crate::model::command::Clear;
use crate::model::decision::PutBack;
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{MessageNumber, Sequence};
use crate::model::memory::MemoryGauge;
use crate::model::message::Message;
use crate::model::time::Timestamp;
use crate::queue::loads::{LoadState, PendingLoads};

/// A message that left the lists.
#[derive(Debug)]
pub(crate) enum Taken {
    InMemory(Entry),
    PagedOut(PagedOut),
}

/// The next message.
#[derive(Debug)]
pub(crate) enum Next {
    /// There is none.
    Nothing,
    /// This one, removed from the list.
    Entry(Entry),
    /// Its body is not in memory yet. It stays on the list.
    Absent,
    /// Its body could not be read. Removed from the list.
    Lost(PagedOut),
}

/// An entry of a list: 40 bytes, whether or not the body is in memory.
#[derive(Debug)]
struct ReadyEntry {
    message: Option<Message>,
    deadline: Timestamp,
    sequence: Sequence,
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

fn units(bytes: u64) -> u16 {
    u16::try_from(bytes.div_ceil(SIZE_UNIT)).unwrap_or(u16::MAX)
}

impl ReadyEntry {
    fn of(entry: Entry) -> Self {
        let Entry { message, deadline, attempts, requeues, sequence, saved, answered, number } = entry;
        let size = units(message.memory_bytes() as u64);
        let flags = (u8::from(saved) * SAVED) | (u8::from(answered) * ANSWERED);
        Self { message: Some(message), deadline, sequence, number, attempts, requeues, size, flags }
    }

    fn of_paged_out(paged_out: PagedOut) -> Self {
        let PagedOut { deadline, attempts, requeues, sequence, answered, number, bytes } = paged_out;
        let flags = SAVED | (u8::from(answered) * ANSWERED);
        Self { message: None, deadline, sequence, number, attempts, requeues, size: units(bytes), flags }
    }

    fn is_saved(&self) -> bool {
        self.flags & SAVED != 0
    }

    /// Bytes that its message takes in memory once it is loaded.
    fn full_bytes(&self) -> u64 {
        if self.size == u16::MAX { SIZE_MAX } else { u64::from(self.size) * SIZE_UNIT }
    }

    /// Bytes of its message that are in memory.
    fn bytes(&self) -> u64 {
        self.message.as_ref().map_or(0, |message| message.memory_bytes() as u64)
    }

    fn paged_out(&self) -> PagedOut {
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

    fn entry(self, message: Message) -> Entry {
        Entry {
            message,
            deadline: self.deadline,
            attempts: self.attempts,
            requeues: self.requeues,
            sequence: self.sequence,
            number: self.number,
            saved: self.is_saved(),
            answered: self.flags & ANSWERED != 0,
        }
    }
}

/// One list.
#[derive(Debug, Default)]
struct List {
    cards: VecDeque<ReadyEntry>,
    /// The position of the first entry. Positions do not change while other entries are added and
    /// removed.
    first: i64,
    /// Ranges of positions without bodies that could leave memory, in order. A hint that avoids
    /// scanning paged-out entries again; entries may be missing here, and are then scanned once more.
    cold: Vec<Range<i64>>,
}

/// Maximum number of such ranges.
const COLD_MAX: usize = 64;

impl List {
    fn push_front(&mut self, card: ReadyEntry) {
        // The position may be that of an entry that was removed.
        if let Some(cold) = self.cold.first_mut() {
            cold.start = cold.start.max(self.first);
        }
        self.first -= 1;
        self.cards.push_front(card);
    }

    fn pop(&mut self, newest: bool) -> Option<ReadyEntry> {
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
    fn evict(&mut self, keep: usize, leave: &mut dyn FnMut(&mut ReadyEntry) -> Eviction) {
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

/// The two lists.
///
/// Deadlines ascend within each list as long as messages only arrive. Requeueing, and changing the
/// timeout, may break that: `disordered` is set then, and expiry looks at every entry instead of the
/// first ones. So the common case is cheap, and the rare one is still exact.
#[derive(Debug)]
pub(crate) struct Ready {
    high: List,
    normal: List,
    disordered: bool,
    /// Bytes of messages in the lists.
    bytes: u64,
    /// Entries whose body is not in memory.
    absent: usize,
    pub(crate) loads: PendingLoads,
    memory: MemoryGauge,
    /// Messages at the head that were in memory or requested at the last check, and how many of them
    /// are left. Messages that arrive before them are not counted, so this is an estimate.
    window: (usize, usize),
}

impl Ready {
    pub(crate) fn new(memory: MemoryGauge) -> Self {
        Self {
            high: List::default(),
            normal: List::default(),
            disordered: false,
            bytes: 0,
            absent: 0,
            loads: PendingLoads::new(memory.clone()),
            memory,
            window: (0, 0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.high.cards.len() + self.normal.cards.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.high.cards.is_empty() && self.normal.cards.is_empty()
    }

    /// Number of messages of high and of normal priority.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.high.cards.len() as u64, self.normal.cards.len() as u64)
    }

    /// Memory of the waiting messages in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.loads.bytes()
    }

    pub(crate) fn push_back(&mut self, entry: Entry) {
        let high = entry.is_high();
        self.push(ReadyEntry::of(entry), high, PutBack::End);
    }

    pub(crate) fn push_front(&mut self, entry: Entry) {
        let high = entry.is_high();
        self.push(ReadyEntry::of(entry), high, PutBack::Start);
    }

    /// Adds a paged-out message at the start or the end.
    pub(crate) fn push_paged_out(&mut self, paged_out: PagedOut, high: bool, position: PutBack) {
        self.push(ReadyEntry::of_paged_out(paged_out), high, position);
    }

    #[inline]
    fn push(&mut self, card: ReadyEntry, high: bool, position: PutBack) {
        self.count_in(&card);
        let list = if high { &mut self.high } else { &mut self.normal };
        if position == PutBack::Start {
            self.disordered |= list.cards.front().is_some_and(|first| first.deadline < card.deadline);
            list.push_front(card);
            self.window.1 += 1;
        } else {
            self.disordered |= list.cards.back().is_some_and(|last| last.deadline > card.deadline);
            list.cards.push_back(card);
        }
    }

    fn count_in(&mut self, card: &ReadyEntry) {
        let bytes = card.bytes();
        self.bytes += bytes;
        self.absent += usize::from(card.message.is_none());
        if card.is_saved() {
            self.memory.add(bytes);
        }
    }

    /// Removes the next message: the oldest of the highest priority, or the newest of it.
    #[inline]
    pub(crate) fn take(&mut self, newest: bool) -> Next {
        let list = if self.high.cards.is_empty() { &mut self.normal } else { &mut self.high };
        let card = if newest { list.cards.back() } else { list.cards.front() };
        let Some(card) = card else { return Next::Nothing };
        if card.message.is_none() && !self.loads.has_answer(card.sequence) {
            return Next::Absent;
        }
        let Some(card) = list.pop(newest) else { return Next::Nothing };
        match self.leave(card) {
            Taken::InMemory(entry) => Next::Entry(entry),
            Taken::PagedOut(paged_out) => Next::Lost(paged_out),
        }
    }

    /// Removes the next message if it is paged out and its deadline has passed.
    pub(crate) fn take_expired(&mut self, newest: bool, now: Timestamp) -> Option<PagedOut> {
        let list = if self.high.cards.is_empty() { &mut self.normal } else { &mut self.high };
        let card = if newest { list.cards.back() } else { list.cards.front() }?;
        if card.message.is_some() || card.deadline > now {
            return None;
        }
        let card = list.pop(newest)?;
        self.count_out(&card);
        Some(card.paged_out())
    }

    fn count_out(&mut self, card: &ReadyEntry) {
        let bytes = card.bytes();
        self.bytes -= bytes;
        self.absent -= usize::from(card.message.is_none());
        if card.is_saved() {
            self.memory.subtract(bytes);
        }
        self.window.1 = self.window.1.saturating_sub(1);
        if self.is_empty() {
            self.disordered = false;
            self.release();
        }
    }

    /// Turns a removed entry into a message, with its body if it is in memory.
    #[inline]
    fn leave(&mut self, mut card: ReadyEntry) -> Taken {
        self.count_out(&card);
        let shelved = if card.message.is_none() { self.loads.take(card.sequence) } else { None };
        match (card.message.take(), shelved) {
            (Some(message), _) | (None, Some(LoadState::Ready(message))) => {
                Taken::InMemory(card.entry(message))
            }
            _ => Taken::PagedOut(card.paged_out()),
        }
    }

    /// Keeps only the newest message, in memory or not, and returns all others.
    pub(crate) fn keep_newest(&mut self) -> Vec<Taken> {
        let high = !self.high.cards.is_empty();
        let list = if high { &mut self.high } else { &mut self.normal };
        let Some(newest) = list.pop(true) else { return Vec::new() };
        self.count_out(&newest);
        let others = self.clear(Clear { high_priority: true, normal: true });
        self.push(newest, high, PutBack::End);
        others
    }

    /// The newest message, for caches, with its body if it is in memory.
    pub(crate) fn newest(&self) -> Option<(PagedOut, Option<&Message>)> {
        let card = self.high.cards.back().or(self.normal.cards.back())?;
        let message = card.message.as_ref().or_else(|| self.loads.look(card.sequence));
        Some((card.paged_out(), message))
    }

    /// Removes the newest message if it turned out to be unreadable.
    pub(crate) fn take_lost_newest(&mut self) -> Option<PagedOut> {
        let list = if self.high.cards.is_empty() { &mut self.normal } else { &mut self.high };
        let card = list.cards.back()?;
        if card.message.is_some() || !self.loads.is_lost(card.sequence) {
            return None;
        }
        let card = list.pop(true)?;
        match self.leave(card) {
            Taken::PagedOut(paged_out) => Some(paged_out),
            Taken::InMemory(_) => None,
        }
    }

    /// All messages in the order of delivery, with their bodies if they are in memory.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PagedOut, bool, Option<&Message>)> {
        self.high.cards.iter().chain(&self.normal.cards).map(|card| {
            let message = card.message.as_ref().or_else(|| self.loads.look(card.sequence));
            (card.paged_out(), card.is_saved(), message)
        })
    }

    /// Removes and returns the messages that `clear` selects.
    pub(crate) fn clear(&mut self, clear: Clear) -> Vec<Taken> {
        let mut taken = Vec::new();
        for (named, high) in [(clear.high_priority, true), (clear.normal, false)] {
            if named {
                let list = std::mem::take(if high { &mut self.high } else { &mut self.normal });
                taken.extend(list.cards.into_iter().map(|card| self.leave(card)));
            }
        }
        taken
    }

    /// Removes and returns everything whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<Taken> {
        let mut expired = Vec::new();
        for high in [true, false] {
            let list = if high { &mut self.high } else { &mut self.normal };
            if self.disordered {
                let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(&mut list.cards).into_iter().partition(|card| card.deadline <= now);
                *list = List { cards: kept, ..List::default() };
                expired.extend(gone);
            } else {
                while list.cards.front().is_some_and(|card| card.deadline <= now) {
                    expired.extend(list.pop(false));
                }
            }
        }
        self.disordered = self.disordered
            && ![&self.high, &self.normal]
                .into_iter()
                .all(|list| list.cards.iter().is_sorted_by_key(|card| card.deadline));
        expired.into_iter().map(|card| self.leave(card)).collect()
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Timestamp {
        let lists = [&self.high, &self.normal];
        let earliest = if self.disordered {
            lists.into_iter().flat_map(|list| &list.cards).map(|card| card.deadline).min()
        } else {
            lists.into_iter().filter_map(|list| list.cards.front()).map(|card| card.deadline).min()
        };
        earliest.unwrap_or(Timestamp::NEVER)
    }

    /// Whether bodies at the head should be requested soon, so that delivery does not wait for them.
    pub(crate) fn runs_low(&self) -> bool {
        self.absent > 0 && self.window.1 * 2 <= self.window.0
    }

    /// Requests bodies of the next messages and returns their sequences: about as many as `messages`
    /// and `bytes` allow, at least one.
    pub(crate) fn want(&mut self, newest: bool, messages: usize, bytes: u64) -> Vec<Sequence> {
        let mut wanted = Vec::new();
        let (mut seen, mut sum) = (0, 0);
        let Self { high, normal, loads, .. } = self;
        let mut look = |card: &ReadyEntry| {
            if seen == messages || (seen > 0 && sum + card.full_bytes() > bytes) {
                return false;
            }
            seen += 1;
            sum += card.full_bytes();
            if card.message.is_none() && loads.ask(card.sequence) {
                wanted.push(card.sequence);
            }
            true
        };
        if newest {
            let _ = high.cards.iter().rev().chain(normal.cards.iter().rev()).all(&mut look);
        } else {
            let _ = high.cards.iter().chain(&normal.cards).all(&mut look);
        }
        self.window = (seen, seen);
        wanted
    }

    /// How many of the next messages stay in memory if they may take about `bytes`.
    pub(crate) fn head(&self, bytes: u64) -> usize {
        let here = (self.len() - self.absent).max(1) as u64;
        (bytes / (self.bytes / here).max(1)).clamp(1, HEAD_MAX) as usize
    }

    /// Pages out the bodies that will be delivered last, but none of the first `keep` messages. `may`
    /// decides about a body; `gone` is called for each one that left.
    pub(crate) fn evict(
        &mut self,
        keep: usize,
        may: &mut dyn FnMut(Sequence) -> Eviction,
        gone: &mut dyn FnMut(Sequence, bool, &Message),
    ) {
        let Self { high, normal, bytes, absent, memory, .. } = self;
        let mut leave = |card: &mut ReadyEntry| {
            if !card.is_saved() {
                return Eviction::Done;
            }
            let step_decision = may(card.sequence);
            if matches!(step_decision, Eviction::Done) {
                let size = card.bytes();
                if let Some(message) = card.message.take() {
                    *bytes -= size;
                    *absent += 1;
                    memory.subtract(size);
                    gone(card.sequence, card.flags & ANSWERED != 0, &message);
                }
            }
            step_decision
        };
        let kept_high = keep.min(high.cards.len());
        normal.evict(keep - kept_high, &mut leave);
        high.evict(kept_high, &mut leave);
    }

    /// Gives memory back after a large backlog is gone.
    fn release(&mut self) {
        const KEPT: usize = 1024;
        for list in [&mut self.high, &mut self.normal] {
            list.cold.clear();
            if list.cards.is_empty() && list.cards.capacity() > KEPT {
                list.cards.shrink_to(KEPT);
            }
        }
    }
}

/// Maximum number of messages at the head that never leave memory.
const HEAD_MAX: u64 = 256;

impl Drop for Ready {
    fn drop(&mut self) {
        let cards = self.high.cards.iter().chain(&self.normal.cards);
        self.memory.subtract(cards.filter(|card| card.is_saved()).map(ReadyEntry::bytes).sum());
    }
}

#[cfg(test)]
mod tests {
    use mqcore_testkit::Random;

    use super::*;
    use crate::model::message::Properties;

    fn entry(number: u64, high: bool) -> Entry {
        let properties = Properties { high_priority: high, ..Properties::default() };
        let message = Message::from_parts(&number.to_le_bytes(), b"", &[7; 100], properties, None);
        Entry { sequence: Sequence(number), saved: true, ..Entry::new(message, Timestamp::NEVER) }
    }

    #[test]
    fn waiting_message_takes_forty_bytes_besides_its_body() {
        assert_eq!(size_of::<ReadyEntry>(), 40);
    }

    #[test]
    fn bodies_leave_from_the_tail_and_none_is_overlooked_whatever_came_between() {
        let mut random = Random::new(5);
        let mut below = |bound: u64| random.below(bound);
        for _ in 0..200 {
            let memory = MemoryGauge::default();
            let mut ready = Ready::new(memory.clone());
            for number in 1..300 {
                match below(6) {
                    0..3 => ready.push_back(entry(number, below(5) == 0)),
                    3 => ready.push_front(entry(number, below(5) == 0)),
                    4 => {
                        let newest = below(2) == 0;
                        let list =
                            if ready.high.cards.is_empty() { &mut ready.normal } else { &mut ready.high };
                        if let Some(card) = list.pop(newest) {
                            ready.leave(card);
                        }
                    }
                    _ => {
                        let target = below(memory.get() + 1);
                        let keep = below(4) as usize;
                        let memory = memory.clone();
                        let mut may = |_: Sequence| match memory.get() {
                            bytes if bytes > target => Eviction::Done,
                            _ => Eviction::Enough,
                        };
                        ready.evict(keep, &mut may, &mut |_, _, _| {});
                        let here = ready.iter().skip(keep).filter(|(.., message)| message.is_some()).count();
                        assert!(memory.get() <= target || here == 0, "{here} bodies were overlooked");
                        let last = ready.iter().collect::<Vec<_>>();
                        let kept = last.iter().take(keep).filter(|(.., message)| message.is_none());
                        assert!(kept.count() <= ready.absent);
                    }
                }
                let bytes: u64 = ready.iter().filter_map(|(.., m)| m.map(|m| m.memory_bytes() as u64)).sum();
                assert_eq!((ready.bytes(), memory.get()), (bytes, bytes));
                assert_eq!(ready.iter().filter(|(.., message)| message.is_none()).count(), ready.absent);
            }
            drop(ready);
            assert_eq!(memory.get(), 0);
        }
    }
}
