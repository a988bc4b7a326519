//! Messages that wait in a queue: a list for each priority, highest first, each in order. The body of
//! a saved message may be paged out; then only its entry in the list stays in memory.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::command::Clear;
use crate::model::decision::PutBack;
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::Sequence;
use crate::model::memory::MemoryGauge;
use crate::model::message::Message;
use crate::model::time::Timestamp;
use smallvec::SmallVec;

use crate::queue::levels::Levels;
use crate::queue::list::{List, ReadyEntry};
use crate::queue::loads::{LoadState, PendingLoads};

pub(crate) use crate::queue::list::Eviction;

/// A message that left the lists.
#[derive(Debug)]
pub(crate) enum Unlisted {
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

/// Entries at the head of a list among which the first one in memory stands for its oldest message.
const OLDEST_SEARCH: usize = 16;

/// The lists.
///
/// Deadlines ascend within each list as long as messages only arrive. Requeueing, and changing the
/// timeout, may break that: `disordered` is set then, and expiry looks at every entry instead of the
/// first ones. So the common case is cheap. Messages with an expiry of their own are the rare case: a long
/// queue of them is searched less often, and expires a little late. It delivers none of them late.
#[derive(Debug)]
pub(crate) struct Ready {
    levels: Levels,
    disordered: bool,
    /// When a disordered queue may be searched for expired messages again.
    search_from: Timestamp,
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
            levels: Levels::default(),
            disordered: false,
            search_from: Timestamp(0),
            bytes: 0,
            absent: 0,
            loads: PendingLoads::new(memory.clone()),
            memory,
            window: (0, 0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.levels.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Number of messages of high and of normal priority.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.levels.counts()
    }

    /// When the oldest of the first messages of all priorities arrived, among those in memory.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let arrived = |list: &List| {
            let messages = list.cards.iter().take(OLDEST_SEARCH).filter_map(|card| card.message.as_ref());
            messages.map(Message::received).next()
        };
        self.levels.iter().filter_map(arrived).min()
    }

    /// Memory of the waiting messages in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.loads.bytes()
    }

    pub(crate) fn push_back(&mut self, entry: Entry) {
        let level = entry.level();
        self.push(ReadyEntry::of(entry), level, PutBack::End);
    }

    pub(crate) fn push_front(&mut self, entry: Entry) {
        let level = entry.level();
        self.push(ReadyEntry::of(entry), level, PutBack::Start);
    }

    /// Adds a paged-out message at the start or the end.
    pub(crate) fn push_paged_out(&mut self, paged_out: PagedOut, level: u8, position: PutBack) {
        self.push(ReadyEntry::of_paged_out(paged_out), level, position);
    }

    #[inline]
    fn push(&mut self, card: ReadyEntry, level: u8, position: PutBack) {
        self.count_in(&card);
        let list = self.levels.of(level);
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
        let list = self.levels.first();
        let card = if newest { list.cards.back() } else { list.cards.front() };
        let Some(card) = card else { return Next::Nothing };
        if card.message.is_none() && !self.loads.has_answer(card.sequence) {
            return Next::Absent;
        }
        let Some(card) = list.pop(newest) else { return Next::Nothing };
        match self.leave(card) {
            Unlisted::InMemory(entry) => Next::Entry(entry),
            Unlisted::PagedOut(paged_out) => Next::Lost(paged_out),
        }
    }

    /// Removes the next message if it is paged out and its deadline has passed.
    pub(crate) fn take_expired(&mut self, newest: bool, now: Timestamp) -> Option<PagedOut> {
        let list = self.levels.first();
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
            self.levels.release();
        }
    }

    /// Turns a removed entry into a message, with its body if it is in memory.
    #[inline]
    fn leave(&mut self, mut card: ReadyEntry) -> Unlisted {
        self.count_out(&card);
        let shelved = if card.message.is_none() { self.loads.take(card.sequence) } else { None };
        match (card.message.take(), shelved) {
            (Some(message), _) | (None, Some(LoadState::Ready(message))) => {
                Unlisted::InMemory(card.entry(message))
            }
            _ => Unlisted::PagedOut(card.paged_out()),
        }
    }

    /// Keeps only the newest message, in memory or not, and returns all others.
    pub(crate) fn keep_newest(&mut self) -> Vec<Unlisted> {
        let level = self.levels.first_level();
        let Some(newest) = self.levels.of(level).pop(true) else { return Vec::new() };
        self.count_out(&newest);
        let others = self.clear(Clear { high_priority: true, normal: true });
        self.push(newest, level, PutBack::End);
        others
    }

    /// The newest message, for caches, with its body if it is in memory.
    pub(crate) fn newest(&self) -> Option<(PagedOut, Option<&Message>)> {
        let card = self.levels.iter().find_map(|list| list.cards.back())?;
        let message = card.message.as_ref().or_else(|| self.loads.look(card.sequence));
        Some((card.paged_out(), message))
    }

    /// Removes the newest message if it turned out to be unreadable.
    pub(crate) fn take_lost_newest(&mut self) -> Option<PagedOut> {
        let list = self.levels.first();
        let card = list.cards.back()?;
        if card.message.is_some() || !self.loads.is_lost(card.sequence) {
            return None;
        }
        let card = list.pop(true)?;
        match self.leave(card) {
            Unlisted::PagedOut(paged_out) => Some(paged_out),
            Unlisted::InMemory(_) => None,
        }
    }

    /// All messages in the order of delivery, with their bodies if they are in memory.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PagedOut, bool, Option<&Message>)> {
        self.levels.iter().flat_map(|list| &list.cards).map(|card| {
            let message = card.message.as_ref().or_else(|| self.loads.look(card.sequence));
            (card.paged_out(), card.is_saved(), message)
        })
    }

    /// Removes and returns the messages that `clear` selects.
    pub(crate) fn clear(&mut self, clear: Clear) -> Vec<Unlisted> {
        let mut taken = Vec::new();
        for list in self.levels.take(clear) {
            taken.extend(list.cards.into_iter().map(|card| self.leave(card)));
        }
        taken
    }

    /// Removes and returns everything whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<Unlisted> {
        if self.disordered && now < self.search_from {
            return Vec::new();
        }
        let mut expired = Vec::new();
        for list in self.levels.iter_mut() {
            if self.disordered {
                let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(&mut list.cards).into_iter().partition(|card| card.deadline <= now);
                *list = List::of(kept);
                expired.extend(gone);
            } else {
                while list.cards.front().is_some_and(|card| card.deadline <= now) {
                    expired.extend(list.pop(false));
                }
            }
        }
        if self.disordered {
            self.disordered =
                !self.levels.iter().all(|list| list.cards.iter().is_sorted_by_key(|card| card.deadline));
            self.search_from = now.after(Duration::from_millis(self.len() as u64 / SEARCHED_PER_MS));
        }
        expired.into_iter().map(|card| self.leave(card)).collect()
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Timestamp {
        let lists = self.levels.iter();
        let earliest = if self.disordered {
            let earliest = lists.flat_map(|list| &list.cards).map(|card| card.deadline).min();
            earliest.map(|earliest| earliest.max(self.search_from))
        } else {
            lists.filter_map(|list| list.cards.front()).map(|card| card.deadline).min()
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
        let Self { levels, loads, .. } = self;
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
            let _ = levels.iter().flat_map(|list| list.cards.iter().rev()).all(&mut look);
        } else {
            let _ = levels.iter().flat_map(|list| &list.cards).all(&mut look);
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
        let Self { levels, bytes, absent, memory, .. } = self;
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
                    gone(card.sequence, card.is_answered(), &message);
                }
            }
            step_decision
        };
        let mut left = keep;
        let kept: SmallVec<[usize; 2]> = levels
            .iter()
            .map(|list| {
                let kept = left.min(list.cards.len());
                left -= kept;
                kept
            })
            .collect();
        for (list, kept) in levels.iter_mut().rev().zip(kept.into_iter().rev()) {
            list.evict(kept, &mut leave);
        }
    }
}

/// Maximum number of messages at the head that never leave memory.
const HEAD_MAX: u64 = 256;
/// Number of messages of a disordered queue that are searched for each millisecond that passes, so that
/// searching takes a small part of the time.
const SEARCHED_PER_MS: u64 = 10_000;

impl Drop for Ready {
    fn drop(&mut self) {
        let cards = self.levels.iter().flat_map(|list| &list.cards);
        self.memory.subtract(cards.filter(|card| card.is_saved()).map(ReadyEntry::bytes).sum());
    }
}

#[cfg(test)]
mod tests {
    use mqcore_testkit::Random;

    use super::*;
    use crate::model::message::Properties;
    use crate::model::terms::LEVEL_HIGH_MIN;

    fn entry(number: u64, priority: u8) -> Entry {
        let high_priority = priority >= LEVEL_HIGH_MIN;
        let properties = Properties { priority, high_priority, ..Properties::default() };
        let message = Message::from_parts(&number.to_le_bytes(), b"", &[7; 100], properties, None);
        Entry { sequence: Sequence(number), saved: true, ..Entry::new(message, Timestamp::NEVER) }
    }

    #[test]
    fn waiting_message_takes_forty_bytes_besides_its_body() {
        assert_eq!(size_of::<ReadyEntry>(), 40);
    }

    #[test]
    fn higher_priorities_come_first_and_each_keeps_its_order() {
        let mut ready = Ready::new(MemoryGauge::default());
        for (number, priority) in [(1, 0), (2, 9), (3, 255), (4, 9), (5, 200), (6, 0), (7, 255)] {
            ready.push_back(entry(number, priority));
        }
        ready.push_front(entry(8, 9));
        assert_eq!(ready.counts(), (3, 5), "from 128 on they are high");
        assert_eq!(ready.len(), 8);
        let next = |ready: &mut Ready| match ready.take(false) {
            Next::Entry(entry) => entry.sequence.0,
            other => panic!("{other:?}"),
        };
        let seen: Vec<_> = ready.iter().map(|(paged_out, ..)| paged_out.sequence.0).collect();
        let taken: Vec<_> = (0..8).map(|_| next(&mut ready)).collect();
        assert_eq!(taken, [3, 7, 5, 8, 2, 4, 1, 6]);
        assert_eq!(seen, taken);
        assert!(ready.is_empty());
        for (number, priority) in [(1, 0), (2, 9), (3, 255), (4, 200)] {
            ready.push_back(entry(number, priority));
        }
        assert_eq!(ready.clear(Clear { high_priority: true, normal: false }).len(), 2);
        assert_eq!(ready.counts(), (0, 2));
    }

    #[test]
    fn expiries_of_their_own_are_found_in_any_order() {
        let mut ready = Ready::new(MemoryGauge::default());
        for (number, deadline) in [(1, 50), (2, 10), (3, 30)] {
            ready.push_back(Entry { deadline: Timestamp(deadline), ..entry(number, 0) });
        }
        assert_eq!(ready.next_deadline(), Timestamp(10));
        assert_eq!(ready.expire(Timestamp(30)).len(), 2);
        assert_eq!(ready.next_deadline(), Timestamp(50));
        for number in 0..40_000 {
            ready.push_back(Entry { deadline: Timestamp(1000 - number % 7), ..entry(number, 0) });
        }
        assert_eq!(ready.expire(Timestamp(60)).len(), 1);
        ready.push_back(Entry { deadline: Timestamp(61), ..entry(9, 0) });
        assert_eq!(ready.expire(Timestamp(61)).len(), 0, "it was searched just before");
        assert_eq!(ready.next_deadline(), Timestamp(64), "one millisecond for each 10,000 messages");
        assert_eq!(ready.expire(Timestamp(64)).len(), 1);
    }

    #[test]
    fn bodies_are_requested_up_to_the_wanted_messages_and_bytes() {
        let mut ready = Ready::new(MemoryGauge::default());
        for number in 1..=20 {
            ready.push_back(entry(number, 0));
        }
        ready.evict(0, &mut |_| Eviction::Done, &mut |_, _, _| {});
        assert_eq!(ready.absent, 20);
        assert_eq!(ready.want(false, 20, 0), [Sequence(1)], "at least one");
        let few = ready.want(false, 20, 1000).len();
        assert!((2..=8).contains(&few), "each takes more than 100 bytes: {few}");
        assert_eq!(ready.want(false, 12, 1 << 20).len(), 12 - 1 - few);
        assert_eq!(ready.want(false, 100, 1 << 20).len(), 8);
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
                    0..3 => ready.push_back(entry(number, [0, 0, 0, 7, 255][below(5) as usize])),
                    3 => ready.push_front(entry(number, [0, 0, 0, 200, 255][below(5) as usize])),
                    4 => {
                        let newest = below(2) == 0;
                        if let Some(card) = ready.levels.first().pop(newest) {
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
