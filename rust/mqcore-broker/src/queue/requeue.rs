//! Storing messages, requeueing them, and removing them for good.

use crate::context::Context;
use crate::context::decide::notify_dequeued;
use crate::history::LifecycleEvent;
use crate::model::command::Clear;
use crate::model::decision::PutBack;
use crate::model::entry::Entry;
use crate::model::options::Status;
use crate::model::record::{DeliveryProgress, Record};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::dead_letters::Destination;
use crate::queue::delayed::{Awaits, Due};
use crate::queue::delivery::{Disposition, Released};
use crate::queue::members::Members;
use crate::queue::ready::Unlisted;

impl Queue {
    /// A newer message replaces the message in a cache queue. `by_saved`: the newer one is saved. An unsaved one replaces a
    /// saved one until the next start only.
    pub(crate) fn replace_cached(&mut self, by_saved: bool, context: &mut Context<'_>) {
        if by_saved {
            self.settle_retained(context);
        }
        for replaced in self.ready.clear(Clear { high_priority: true, normal: true }) {
            match replaced {
                Unlisted::InMemory(mut entry) => {
                    if entry.is_recorded() && !by_saved {
                        self.retained = std::mem::take(&mut entry.sequence);
                    }
                    self.replace(entry, context);
                }
                Unlisted::PagedOut(paged_out) => {
                    context.record_paged_out_event(
                        &self.metadata.address,
                        &paged_out,
                        LifecycleEvent::Replaced,
                    );
                    if by_saved {
                        self.remove_paged_out(paged_out, context);
                    } else {
                        self.retained = paged_out.sequence;
                        self.note_paged_out_removed(&paged_out, context);
                    }
                }
            }
        }
    }

    /// Settles the saved message that an unsaved one replaced: a restart must not bring it back any more.
    pub(crate) fn settle_retained(&mut self, context: &mut Context<'_>) {
        let sequence = std::mem::take(&mut self.retained);
        if sequence.0 > 0 {
            self.keep_id(sequence, context);
            context.record(Record::Settle(sequence));
        }
    }

    /// After messages were taken out of the queue. An empty cache must stay empty: what its last message had replaced must
    /// not return at a restart.
    pub(crate) fn settle_retained_if_empty(&mut self, context: &mut Context<'_>) {
        if self.ready.is_empty() {
            self.settle_retained(context);
        }
    }

    pub(crate) fn store(&mut self, entry: Entry, members: &Members, context: &mut Context<'_>) {
        self.store_at(entry, PutBack::End, members, context);
    }

    /// Stores or delivers a message as the queue's status requires.
    pub(crate) fn store_at(
        &mut self,
        entry: Entry,
        position: PutBack,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        match self.metadata.options.status {
            Status::Broadcast => self.broadcast(entry, members, context),
            Status::Stopped => self.discard(entry, DropReason::Erased, context),
            Status::Cache => {
                self.replace_cached(entry.is_recorded(), context);
                self.keep(entry, position, context);
            }
            Status::Push | Status::RoundRobin | Status::Pull | Status::Paused => {
                match entry.message.terms().not_before(entry.message.received()) {
                    until if until > context.now => {
                        let level = entry.level();
                        let taken = self.page_out_delayed(entry, until, context);
                        self.delay(taken, level, until, Awaits::Attempt(position), context);
                    }
                    _ => self.keep(entry, position, context),
                }
            }
        }
    }

    pub(crate) fn keep(&mut self, entry: Entry, position: PutBack, context: &mut Context<'_>) {
        self.arm(entry.deadline, context);
        let saved = entry.saved;
        if position == PutBack::Start {
            self.ready.push_front(entry);
        } else {
            self.ready.push_back(entry);
        }
        if saved {
            self.note_backlog(context);
        }
        self.schedule(context);
    }

    /// Requeues a message, unless it was requeued too often. It is not delivered before `not_before`. `error`: why its last
    /// delivery failed.
    pub(crate) fn requeue(
        &mut self,
        mut entry: Entry,
        position: PutBack,
        not_before: Timestamp,
        error: Option<&str>,
        context: &mut Context<'_>,
    ) {
        entry.requeues = entry.requeues.saturating_add(1);
        let too_often = entry.requeues > self.metadata.options.put_back_limit;
        if too_often && self.destination(DropReason::Limit) != Destination::Here {
            self.dead_letter(entry, DropReason::Limit, error, context);
            return;
        }
        self.put_back(entry, position, not_before, context);
    }

    /// Requeues a message whose attempts are counted. It is not delivered before `not_before`.
    pub(crate) fn put_back(
        &mut self,
        entry: Entry,
        position: PutBack,
        not_before: Timestamp,
        context: &mut Context<'_>,
    ) {
        if entry.deadline <= context.now {
            // Its timeout passed while it was in flight.
            self.expired(entry, context);
            return;
        }
        match self.metadata.options.status {
            Status::Stopped => return self.discard(entry, DropReason::Erased, context),
            // The cache has a newer message by now, and a message that is not stored cannot be
            // requeued.
            Status::Cache if !self.ready.is_empty() => {
                return self.discard(entry, DropReason::Erased, context);
            }
            Status::Broadcast => return self.discard(entry, DropReason::NoConsumer, context),
            _ => {}
        }
        self.metadata.stats.requeued += 1;
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Requeued(position));
        if entry.sequence.0 > 0 {
            // Larger than all ranks so far, or smaller: the sequence of this record is new, so the rank
            // is new too.
            let rank = (context.state.commits.sequence.0 + 1) as i64;
            let rank = if position == PutBack::Start { -rank } else { rank };
            let (attempts, requeues) = (entry.attempts, entry.requeues);
            let not_before = if not_before > context.now { not_before } else { Timestamp(0) };
            context.record(Record::Touch(
                entry.sequence,
                DeliveryProgress { attempts, requeues, rank, not_before },
            ));
        }
        if not_before > context.now && self.metadata.options.status != Status::Cache {
            let level = entry.level();
            let taken = self.page_out_returned(entry, not_before, context);
            return self.delay(taken, level, not_before, Awaits::Attempt(position), context);
        }
        self.keep(entry, position, context);
    }

    /// Keeps a message until its time, or until it expires.
    pub(crate) fn delay(
        &mut self,
        taken: Unlisted,
        level: u8,
        until: Timestamp,
        awaits: Awaits,
        context: &mut Context<'_>,
    ) {
        let deadline = match &taken {
            Unlisted::InMemory(entry) => entry.deadline,
            Unlisted::PagedOut(paged_out) => paged_out.deadline,
        };
        let until = until.min(deadline);
        self.delayed.insert(until, taken, level, awaits);
        self.arm(until, context);
    }

    /// Returns messages whose time has come to their queue.
    pub(crate) fn end_delays(&mut self, context: &mut Context<'_>) {
        let mut due = Vec::new();
        while let Some(next) = self.delayed.due(context.now) {
            due.push(next);
        }
        self.return_due(due, context);
    }

    /// Offers the messages that all consumers refused once more, because the consumers changed.
    pub(crate) fn offer_refused(&mut self, context: &mut Context<'_>) {
        let refused = self.delayed.refused();
        self.return_due(refused, context);
    }

    fn return_due(&mut self, due: Vec<Due>, context: &mut Context<'_>) {
        let (first, last): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.position == PutBack::Start);
        // The last one of those that return to the start is put there first.
        for Due { taken, level, position } in first.into_iter().rev().chain(last) {
            match self.metadata.options.status {
                Status::Broadcast => self.discard_taken(taken, DropReason::NoConsumer, context),
                Status::Cache if !self.ready.is_empty() => {
                    self.discard_taken(taken, DropReason::Erased, context);
                }
                _ => match taken {
                    Unlisted::InMemory(entry) => self.keep(entry, position, context),
                    Unlisted::PagedOut(paged_out) => {
                        self.arm(paged_out.deadline, context);
                        self.ready.push_paged_out(paged_out, level, position);
                        self.schedule(context);
                    }
                },
            }
        }
    }

    /// Drops a message and counts it.
    pub(crate) fn discard(&mut self, entry: Entry, reason: DropReason, context: &mut Context<'_>) {
        self.metadata.stats.dropped[reason as usize] += 1;
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Dropped(reason));
        self.remove(entry, context);
    }

    /// A newer message replaces this one in a cache, which does not count as a drop.
    pub(crate) fn replace(&mut self, entry: Entry, context: &mut Context<'_>) {
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Replaced);
        self.remove(entry, context);
    }

    /// Removes a message for good.
    #[expect(clippy::needless_pass_by_value, reason = "taking it is what makes it the end")]
    pub(crate) fn remove(&mut self, entry: Entry, context: &mut Context<'_>) {
        self.note_removed(&entry, context);
    }

    /// Notes that a message left the queue for good.
    pub(crate) fn note_removed(&mut self, entry: &Entry, context: &mut Context<'_>) {
        self.metadata.stats.removed += 1;
        self.unique.release(&entry.message);
        context.state.unsaved.left(entry);
        context.record_end(&self.metadata.address, entry);
        if entry.sequence.0 > 0 {
            self.keep_id(entry.sequence, context);
            context.record(Record::Settle(entry.sequence));
        }
        notify_dequeued(&self.metadata, entry, context);
    }

    /// Finishes a message whose last holder has released it.
    pub(crate) fn close(
        &mut self,
        Released { held, not_before, unstarted, error }: Released,
        context: &mut Context<'_>,
    ) {
        let error = error.as_deref();
        if held.requeue != PutBack::No && (held.requeued_by_handler || !held.acked) {
            self.requeue(held.entry, held.requeue, not_before, error, context);
        } else if held.acked {
            self.remove(held.entry, context);
        } else {
            match (held.disposition, unstarted) {
                (Disposition::Done, Some(until)) => self.requeue_unstarted(held.entry, until, context),
                (Disposition::Done, None) => self.remove(held.entry, context),
                (Disposition::Refused, _) => self.discard(held.entry, DropReason::Refused, context),
                (Disposition::Failed, _) => self.dead_letter(held.entry, DropReason::Limit, error, context),
            }
        }
        // Messages that waited for the acknowledgement may be delivered now.
        self.schedule(context);
    }

    /// Removes stored messages and returns their number.
    pub(crate) fn clear(&mut self, clear: Clear, context: &mut Context<'_>) -> u64 {
        let mut cleared = self.ready.clear(clear);
        cleared.extend(self.delayed.clear(clear));
        let count = cleared.len() as u64;
        for taken in cleared {
            self.discard_taken(taken, DropReason::Erased, context);
        }
        self.settle_retained_if_empty(context);
        // A pull may have waited for a message that is gone now.
        self.schedule(context);
        count
    }

    /// Drops all messages: stored, undecided and in flight.
    pub(crate) fn erase(&mut self, context: &mut Context<'_>) {
        self.clear(Clear { high_priority: true, normal: true }, context);
        for mut admission in std::mem::take(&mut self.undecided) {
            self.first_undecided += 1;
            context.finish_passed_on(&admission.entry.message);
            self.reject_id(&admission.entry.message);
            self.answer_producer(&mut admission.entry, Some("erased"), None, true, context);
            if let Some(origin) = admission.origin {
                let reason = format!("queue {} was removed", self.metadata.address);
                context.report_copy(origin, Err(Rejection::new(RejectionKind::NotFound, reason)));
            }
            self.discard(admission.entry, DropReason::Erased, context);
        }
        for copy in self.flows.forget() {
            self.deliveries.release(copy);
        }
        self.end_pulls(context);
        self.end_moves(context);
        self.erase_expiring(context);
        for settlement in std::mem::take(&mut self.settling).into_values() {
            if let Some(entry) = settlement.into_expired() {
                self.discard(entry, DropReason::Erased, context);
            }
        }
        for held in self.deliveries.drain() {
            self.discard(held.entry, DropReason::Erased, context);
        }
    }
}
