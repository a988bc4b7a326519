//! Messages that downstream brokers pass on: numbered by the sender, so that a message that arrives
//! twice is taken once.
//!
//! A sender numbers its messages in ascending order and sends unconfirmed ones again. Each number is
//! new, pending, or done. Done numbers are recorded with the messages: a saved message carries its
//! number in its own record, and before that record may be removed, the sender's [`IntakeProgress`] is
//! recorded behind it. So after a crash a number is known exactly if the effects of its message are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The sender id of this broker's own schedules. No other broker may use it.
pub const SCHEDULES: &str = "*schedules*";

/// Identifies a message of a downstream broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Id of the sender.
    pub node: Arc<str>,
    /// The sender's count. A sender that forgets what it sent begins a new count with a larger epoch.
    pub epoch: u64,
    /// Number of the message.
    pub number: u64,
}

/// The state of an arriving number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Never seen: process it.
    New,
    /// Seen before and not decided yet: it will be confirmed later.
    Pending,
    /// Seen before and done: confirm it again.
    Done,
    /// An earlier number was deferred: this one must arrive again after that one.
    Later,
}

/// Which numbers of a sender are done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntakeProgress {
    /// The sender's count.
    pub epoch: u64,
    /// All numbers up to this one that will ever arrive are done.
    pub through: u64,
    /// Larger numbers that are done.
    pub above: BTreeSet<u64>,
}

impl IntakeProgress {
    fn knows(&self, number: u64) -> bool {
        number <= self.through || self.above.contains(&number)
    }
}

/// Maximum length of a range of done numbers in a record. A longer one in a damaged record would take all memory.
pub(crate) const RANGE_MAX: u64 = 1 << 20;

/// Returns the ranges of successive numbers, of at most [`RANGE_MAX`]: the first and the last of each.
pub(crate) fn ranges(numbers: &BTreeSet<u64>) -> impl Iterator<Item = (u64, u64)> {
    let mut rest = numbers.iter().copied().peekable();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let mut last = first;
        while let Some(next) = rest.next_if(|next| *next == last + 1 && *next - first < RANGE_MAX) {
            last = next;
        }
        Some((first, last))
    })
}

/// One sender.
#[derive(Debug, Default)]
struct Sender {
    done: IntakeProgress,
    /// Whether a record names its current count. Otherwise only saved messages do, of which the largest epoch is the current one.
    is_recorded: bool,
    /// Numbers that are not decided yet.
    pending: BTreeSet<u64>,
    /// Deferred numbers, which will arrive again.
    owed: BTreeSet<u64>,
    /// The highest number that arrived since this process started, other than behind a deferred one. Senders send in ascending
    /// order, so every number that will arrive here was taken up to this one; above it, numbers between those known to be done
    /// may still be missing.
    highest: u64,
    /// Numbers that became done since the progress was last recorded.
    fresh: Vec<u64>,
}

impl Sender {
    fn advance(&mut self) {
        let open = [self.pending.first(), self.owed.first()].into_iter().flatten().min();
        self.done.through = open.map_or(self.highest, |first| first - 1).max(self.done.through);
        self.done.above = self.done.above.split_off(&(self.done.through + 1));
    }
}

/// Progress of all senders.
#[derive(Debug, Default)]
pub struct Intake {
    senders: BTreeMap<Arc<str>, Sender>,
    /// Senders with new progress.
    dirty: Vec<Arc<str>>,
    /// Senders that were forgotten and whose recorded progress must be removed.
    forgotten: Vec<Arc<str>>,
}

/// Maximum number of senders. Beyond it, the sender with the smallest epoch, which began to count
/// first, is forgotten.
pub const SENDERS_MAX: usize = 1024;

impl Intake {
    /// No senders.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a ticket belongs to the current count of its sender.
    #[must_use]
    pub fn is_current(&self, ticket: &Ticket) -> bool {
        self.senders.get(&ticket.node).is_some_and(|sender| sender.done.epoch == ticket.epoch)
    }

    /// Begins a new count of a sender, also with a smaller epoch, since a clock may have been set back: the caller knows which
    /// connection is the latest. Returns its progress, which must be recorded before any message of the count. Otherwise a crash
    /// leaves messages of several counts, of which no record says which one is current.
    pub fn begin(&mut self, ticket: &Ticket) -> IntakeProgress {
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&ticket.node) {
            self.forget_oldest();
        }
        let done = IntakeProgress { epoch: ticket.epoch, ..IntakeProgress::default() };
        let sender = Sender { done: done.clone(), is_recorded: true, ..Sender::default() };
        self.senders.insert(Arc::clone(&ticket.node), sender);
        done
    }

    /// Registers an arriving number of a current count. After [`Arrival::New`], the caller must call [`Intake::done`] or
    /// [`Intake::defer`] eventually.
    pub fn arrive(&mut self, ticket: &Ticket) -> Arrival {
        debug_assert!(self.is_current(ticket), "a new count begins before its first number arrives");
        let sender = self.senders.entry(Arc::clone(&ticket.node)).or_default();
        let number = ticket.number;
        let follows_owed = sender.owed.first().is_some_and(|owed| number > *owed);
        if sender.done.knows(number) {
            // Behind a deferred number, those before this one may be `Later`, and so not taken.
            if !follows_owed {
                sender.highest = sender.highest.max(number);
            }
            return Arrival::Done;
        }
        if follows_owed {
            return Arrival::Later;
        }
        if !sender.pending.insert(number) {
            return Arrival::Pending;
        }
        sender.owed.remove(&number);
        sender.highest = sender.highest.max(number);
        Arrival::New
    }

    fn forget_oldest(&mut self) {
        let idle = self.senders.iter().filter(|(node, sender)| {
            ***node != *SCHEDULES && sender.pending.is_empty() && sender.fresh.is_empty()
        });
        let oldest = idle.min_by_key(|(_, sender)| sender.done.epoch).map(|(node, _)| Arc::clone(node));
        if let Some(node) = oldest {
            self.senders.remove(&node);
            self.forgotten.push(node);
        }
    }

    /// Senders that were forgotten since the last call.
    pub fn take_forgotten(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.forgotten)
    }

    /// Marks a number as done: its message reached its queue, or was dropped for good.
    pub fn done(&mut self, ticket: &Ticket) {
        let Some(sender) = self.senders.get_mut(&ticket.node) else { return };
        if sender.done.epoch != ticket.epoch || !sender.pending.remove(&ticket.number) {
            return;
        }
        sender.done.above.insert(ticket.number);
        sender.advance();
        self.refresh(&ticket.node, ticket.number);
    }

    /// Confirms a number again that was done before.
    pub fn again(&mut self, ticket: &Ticket) {
        self.refresh(&Arc::clone(&ticket.node), ticket.number);
    }

    fn refresh(&mut self, node: &Arc<str>, number: u64) {
        let Some(sender) = self.senders.get_mut(node) else { return };
        if sender.fresh.is_empty() && !self.dirty.contains(node) {
            self.dirty.push(Arc::clone(node));
        }
        sender.fresh.push(number);
    }

    /// Marks a number as deferred: it must arrive again.
    pub fn defer(&mut self, ticket: &Ticket) {
        let Some(sender) = self.senders.get_mut(&ticket.node) else { return };
        if sender.done.epoch == ticket.epoch && sender.pending.remove(&ticket.number) {
            sender.owed.insert(ticket.number);
        }
    }

    /// Whether [`Intake::flush`] would return anything.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Senders with new progress since the last call: what to record, and which numbers to confirm once
    /// it is recorded.
    pub fn flush(&mut self) -> Vec<(Arc<str>, IntakeProgress, Vec<u64>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let fresh = dirty.into_iter().filter_map(|node| {
            let sender = self.senders.get_mut(&node)?;
            let fresh = std::mem::take(&mut sender.fresh);
            Some((node, sender.done.clone(), fresh))
        });
        fresh.collect()
    }

    /// Restores a sender's recorded progress at start.
    pub fn restore(&mut self, node: Arc<str>, done: IntakeProgress) {
        let highest = done.through;
        self.senders.insert(node, Sender { done, highest, is_recorded: true, ..Sender::default() });
    }

    /// Restores the ticket of a saved message at start, unless it belongs to an earlier count of its sender. Call it after all
    /// [`Intake::restore`]. A sender without a record was forgotten, or wrote to an earlier version.
    pub fn restore_saved(&mut self, ticket: &Ticket) {
        let sender = self.senders.entry(Arc::clone(&ticket.node)).or_default();
        if !sender.is_recorded && ticket.epoch > sender.done.epoch {
            let done = IntakeProgress { epoch: ticket.epoch, ..IntakeProgress::default() };
            *sender = Sender { done, ..Sender::default() };
        }
        if ticket.epoch == sender.done.epoch && ticket.number > sender.done.through {
            sender.done.above.insert(ticket.number);
            // So far only the message's own record contains that, and the record may be removed before the number
            // arrives again.
            if !self.dirty.contains(&ticket.node) {
                self.dirty.push(Arc::clone(&ticket.node));
            }
        }
    }

    /// Which numbers of a sender are done.
    #[must_use]
    pub fn progress(&self, node: &str) -> Option<&IntakeProgress> {
        self.senders.get(node).map(|sender| &sender.done)
    }

    /// All senders and their progress.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &IntakeProgress)> {
        self.senders.iter().map(|(node, sender)| (node, &sender.done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(epoch: u64, number: u64) -> Ticket {
        Ticket { node: "n".into(), epoch, number }
    }

    fn arrive(intake: &mut Intake, ticket: &Ticket) -> Arrival {
        if !intake.is_current(ticket) {
            intake.begin(ticket);
        }
        intake.arrive(ticket)
    }

    #[test]
    fn a_number_is_taken_once_whatever_order_decisions_come_in() {
        let mut intake = Intake::new();
        for number in [1, 4, 6] {
            assert_eq!(arrive(&mut intake, &ticket(1, number)), Arrival::New);
        }
        intake.done(&ticket(1, 4));
        assert_eq!(arrive(&mut intake, &ticket(1, 1)), Arrival::Pending);
        assert_eq!(arrive(&mut intake, &ticket(1, 4)), Arrival::Done);
        let expected = IntakeProgress { epoch: 1, through: 0, above: [4].into() };
        assert_eq!(intake.flush(), [("n".into(), expected, vec![4])]);
        intake.done(&ticket(1, 1));
        intake.done(&ticket(1, 6));
        let expected = IntakeProgress { epoch: 1, through: 6, above: BTreeSet::new() };
        assert_eq!(intake.flush(), [("n".into(), expected, vec![1, 6])]);
        assert!(!intake.is_dirty());
    }

    #[test]
    fn deferred_number_blocks_confirmation_until_it_arrives_again() {
        let mut intake = Intake::new();
        arrive(&mut intake, &ticket(1, 1));
        arrive(&mut intake, &ticket(1, 2));
        intake.defer(&ticket(1, 1));
        intake.done(&ticket(1, 2));
        assert_eq!(intake.progress("n").map(|done| done.through), Some(0));
        assert_eq!(arrive(&mut intake, &ticket(1, 3)), Arrival::Later, "it would overtake");
        assert_eq!(arrive(&mut intake, &ticket(1, 1)), Arrival::New);
    }

    #[test]
    fn numbers_between_a_deferred_and_a_known_one_are_still_taken() {
        let mut intake = Intake::new();
        // A crash kept the message of number 6, and nothing else.
        intake.restore("n".into(), IntakeProgress { epoch: 1, through: 0, above: [6].into() });
        for number in [1, 2, 3] {
            assert_eq!(arrive(&mut intake, &ticket(1, number)), Arrival::New);
        }
        intake.done(&ticket(1, 1));
        intake.done(&ticket(1, 2));
        intake.defer(&ticket(1, 3));
        assert_eq!(
            [4, 5, 6].map(|n| arrive(&mut intake, &ticket(1, n))),
            [Arrival::Later, Arrival::Later, Arrival::Done]
        );
        assert_eq!(arrive(&mut intake, &ticket(1, 3)), Arrival::New);
        intake.done(&ticket(1, 3));
        assert_eq!(intake.progress("n").map(|done| done.through), Some(3));
        for number in [4, 5] {
            assert_eq!(arrive(&mut intake, &ticket(1, number)), Arrival::New, "{number} was never taken");
            intake.done(&ticket(1, number));
        }
        assert_eq!(arrive(&mut intake, &ticket(1, 6)), Arrival::Done);
    }

    #[test]
    fn another_counting_begins_anew() {
        let mut intake = Intake::new();
        arrive(&mut intake, &ticket(5, 9));
        intake.done(&ticket(5, 9));
        assert_eq!(arrive(&mut intake, &ticket(6, 1)), Arrival::New);
        intake.done(&ticket(5, 9));
        assert_eq!(intake.progress("n").map(|done| done.epoch), Some(6));
    }

    #[test]
    fn after_a_crash_messages_of_earlier_counts_are_not_those_of_the_current_one() {
        for current in [4, 6] {
            let mut intake = Intake::new();
            let recorded = intake.begin(&ticket(current, 1));
            intake = Intake::new();
            intake.restore("n".into(), recorded);
            for epoch in [5, current] {
                intake.restore_saved(&ticket(epoch, epoch));
            }
            assert_eq!(intake.arrive(&ticket(current, current)), Arrival::Done, "epoch {current}");
            assert_eq!(intake.arrive(&ticket(current, 5)), Arrival::New, "epoch {current}");
        }
    }

    #[test]
    fn after_a_crash_saved_messages_name_the_count_of_a_sender_without_a_record() {
        let mut intake = Intake::new();
        for epoch in [5, 7, 6] {
            intake.restore_saved(&ticket(epoch, epoch));
        }
        assert!(intake.is_current(&ticket(7, 1)));
        assert_eq!(intake.arrive(&ticket(7, 7)), Arrival::Done);
        assert_eq!(intake.arrive(&ticket(7, 8)), Arrival::New);
    }

    #[test]
    fn only_so_many_senders_are_remembered() {
        let mut intake = Intake::new();
        for sender in 0..=SENDERS_MAX as u64 {
            let ticket = Ticket { node: format!("n{sender}").into(), epoch: 10 + sender, number: 1 };
            arrive(&mut intake, &ticket);
            intake.done(&ticket);
            intake.flush();
        }
        assert_eq!(intake.all().count(), SENDERS_MAX);
        assert_eq!(intake.take_forgotten(), ["n0".into()]);
    }

    #[test]
    fn senders_with_unfinished_work_and_schedules_are_not_forgotten() {
        let mut intake = Intake::new();
        let of = |node: &str, epoch: u64| Ticket { node: node.into(), epoch, number: 1 };
        let schedules = of(SCHEDULES, 1);
        let (pending, fresh) = (of("pending", 2), of("fresh", 3));
        for ticket in [&schedules, &fresh] {
            arrive(&mut intake, ticket);
            intake.done(ticket);
        }
        arrive(&mut intake, &pending);
        intake.flush();
        intake.again(&fresh);
        for sender in 3..=SENDERS_MAX as u64 {
            let ticket = of(&format!("n{sender}"), 10 + sender);
            arrive(&mut intake, &ticket);
            intake.done(&ticket);
        }
        // All those are unfinished as well, until they are recorded.
        arrive(&mut intake, &of("one more", 1 << 32));
        assert!(intake.take_forgotten().is_empty());
        intake.flush();
        intake.again(&fresh);
        arrive(&mut intake, &of("another one", 1 << 33));
        assert_eq!(intake.take_forgotten(), ["n3".into()], "the oldest that is idle");
    }

    #[test]
    fn after_a_crash_saved_messages_and_what_was_written_down_tell_what_is_done() {
        let mut intake = Intake::new();
        intake.restore("n".into(), IntakeProgress { epoch: 2, through: 10, above: [12].into() });
        intake.restore_saved(&ticket(2, 14));
        intake.restore_saved(&ticket(1, 99));
        assert!(intake.is_dirty(), "the record of 14 may go before it comes again");
        let expected = IntakeProgress { epoch: 2, through: 10, above: [12, 14].into() };
        assert_eq!(intake.flush(), [("n".into(), expected, Vec::new())]);
        let known: Vec<_> = [10, 11, 12, 13, 14].map(|number| arrive(&mut intake, &ticket(2, number))).into();
        assert_eq!(known, [Arrival::Done, Arrival::New, Arrival::Done, Arrival::New, Arrival::Done]);
    }

    #[test]
    fn what_is_known_beyond_a_gap_after_a_crash_does_not_close_the_gap() {
        let mut intake = Intake::new();
        intake.restore("n".into(), IntakeProgress { epoch: 1, through: 27, above: [30].into() });
        assert_eq!(arrive(&mut intake, &ticket(1, 28)), Arrival::New);
        intake.done(&ticket(1, 28));
        assert_eq!(arrive(&mut intake, &ticket(1, 29)), Arrival::New, "it was lost in the crash");
        intake.done(&ticket(1, 29));
        assert_eq!(arrive(&mut intake, &ticket(1, 30)), Arrival::Done);
    }
}
