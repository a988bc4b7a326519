//! Messages whose bodies are not in memory: which bodies leave, when they are loaded, and what happens
//! to messages that need no body or cannot be loaded.
//!
//! Bodies leave from the tail of a queue and are loaded in windows ahead of its head. So draining a
//! long queue reads the journal in long runs and never waits for single messages. Delivery stops at a
//! body that is being loaded, and continues when it is ready; so the order does not change.

use std::time::Duration;

use crate::context::Context;
use crate::context::decide::notify_paged_out_dequeued;
use crate::context::state::ShardState;
use crate::history::LifecycleEvent;
use crate::model::decision::{Acknowledge, PutBack, Step};
use crate::model::effect::{Effect, Load};
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::Sequence;
use crate::model::message::Message;
use crate::model::record::Record;
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::dead_letters::Destination;
use crate::queue::loads::LoadState;
use crate::queue::ready::{Eviction, Next, Unlisted};

/// Maximum number of messages of one queue that are requested at a time.
const WINDOW_MESSAGES: usize = 1024;
/// Maximum bytes requested at a time, except for a single larger message.
const WINDOW_BYTES: u64 = 1 << 20;
/// The longest delay for which the body of a saved message stays in memory.
const KEPT_DELAY: Duration = Duration::from_secs(1);

impl Queue {
    /// Removes and returns the next message. `None`: there is none, or its body is being loaded; then
    /// the queue gets back on the list of work when the body is ready.
    pub(crate) fn next(&mut self, newest: bool, context: &mut Context<'_>) -> Option<Entry> {
        loop {
            match self.ready.take(newest) {
                Next::Nothing => return None,
                Next::Entry(entry) => {
                    if self.ready.runs_low() {
                        self.ask_ahead(newest, context);
                    }
                    return Some(self.with_producer(entry));
                }
                Next::Lost(paged_out) => self.drop_unreadable(paged_out, context),
                Next::Absent => {
                    let Some(paged_out) = self.ready.take_expired(newest, context.now) else {
                        self.ask_ahead(newest, context);
                        return None;
                    };
                    self.expired_paged_out(paged_out, context);
                    self.continue_expiring(context);
                }
            }
        }
    }

    /// Requests the bodies of the next messages that are neither in memory nor requested.
    pub(crate) fn ask_ahead(&mut self, newest: bool, context: &mut Context<'_>) {
        let wanted = self.ready.want(newest, WINDOW_MESSAGES, WINDOW_BYTES);
        self.ask_for(wanted, context);
    }

    fn ask_for(&mut self, sequences: Vec<Sequence>, context: &mut Context<'_>) {
        if !sequences.is_empty() {
            context.state.paging.loading += sequences.len() as u64;
            context.effects.push(Effect::Load(Load { queue_ref: self.metadata.queue_ref, sequences }));
        }
    }

    /// Takes loaded bodies; `None` for those that could not be read.
    pub(crate) fn loaded(&mut self, messages: Vec<(Sequence, Option<Message>)>, context: &mut Context<'_>) {
        for (sequence, message) in messages {
            self.ready.loads.put(sequence, message);
        }
        self.continue_expiring(context);
        self.schedule(context);
    }

    /// Adds the producer that waits for a confirmation, which the journal does not know.
    #[inline]
    pub(crate) fn with_producer(&mut self, mut entry: Entry) -> Entry {
        self.unique.page_in(entry.sequence);
        if !self.waiting_producers.is_empty()
            && let Some(producer) = self.waiting_producers.remove(&entry.sequence)
            && entry.message.producer().is_none()
        {
            entry.message = entry.message.produced_by(producer);
        }
        entry
    }

    /// Notes that bodies of this queue may leave memory.
    pub(crate) fn note_backlog(&mut self, context: &mut Context<'_>) {
        if !self.backlogged && self.ready.len() > 1 {
            self.backlogged = true;
            context.state.paging.backlogs.push_back(self.metadata.queue_ref);
        }
    }

    /// Pages out bodies until the shard is below its watermark. False if that was not enough.
    pub(crate) fn page_out_excess(&mut self, state: &mut ShardState) -> bool {
        let watermark = state.config.memory_watermark;
        // Messages that will be delivered soon stay in memory: over all queues at most a quarter of the
        // watermark.
        let keep = self.ready.head((watermark / 4 / state.paging.memory.queues().max(1)).min(WINDOW_BYTES));
        let gauge = state.paging.memory.clone();
        let (mut evicted, mut delayed) = (0, false);
        let mut may = |sequence| {
            if gauge.get() <= watermark {
                Eviction::Enough
            } else if state.commits.is_committed(sequence) {
                evicted += 1;
                Eviction::Done
            } else {
                delayed = true;
                Eviction::NotYet
            }
        };
        let Self { ready, waiting_producers, unique, metadata, .. } = self;
        let any_handler = !metadata.overrides.is_empty();
        let mut gone = |sequence: Sequence, answered: bool, message: &Message| {
            unique.page_out(sequence, message);
            let owed = any_handler || message.properties().pending_acknowledge;
            if !answered
                && owed
                && let Some(producer) = message.producer()
            {
                waiting_producers.insert(sequence, producer.clone());
            }
        };
        ready.evict(keep, &mut may, &mut gone);
        state.paging.bodies.evicted += evicted;
        let enough = state.paging.memory.get() <= watermark;
        // Avoids looking again until a new message arrives, unless some body may leave soon.
        self.backlogged = enough || delayed;
        enough
    }

    /// Pages out a message that waits until then for its next attempt, unless there are few of them. Those in memory are found
    /// by their ids.
    pub(crate) fn page_out_returned(
        &mut self,
        entry: Entry,
        until: Timestamp,
        context: &mut Context<'_>,
    ) -> Unlisted {
        if self.delayed.bytes() + entry.message.memory_bytes() as u64 <= WINDOW_BYTES {
            return Unlisted::InMemory(entry);
        }
        self.page_out_delayed(entry, until, context)
    }

    /// Pages out a message that is not delivered before `until`, if it is saved and the delay is long: there may be many
    /// of them.
    pub(crate) fn page_out_delayed(
        &mut self,
        entry: Entry,
        until: Timestamp,
        context: &mut Context<'_>,
    ) -> Unlisted {
        let is_long = until.since(context.now) > KEPT_DELAY;
        if !is_long || !entry.is_recorded() || !context.state.commits.is_committed(entry.sequence) {
            return Unlisted::InMemory(entry);
        }
        let Entry { message, deadline, attempts, requeues, sequence, answered, number, .. } = entry;
        self.unique.page_out(sequence, &message);
        let owed = !self.metadata.overrides.is_empty() || message.properties().pending_acknowledge;
        if !answered
            && owed
            && let Some(producer) = message.producer()
        {
            self.waiting_producers.insert(sequence, producer.clone());
        }
        context.state.paging.bodies.evicted += 1;
        let bytes = message.memory_bytes() as u64;
        Unlisted::PagedOut(PagedOut { deadline, attempts, requeues, sequence, answered, number, bytes })
    }

    /// Drops and counts a message, in memory or paged out.
    pub(crate) fn discard_taken(&mut self, taken: Unlisted, reason: DropReason, context: &mut Context<'_>) {
        match taken {
            Unlisted::InMemory(entry) => {
                self.waiting_producers.remove(&entry.sequence);
                self.unique.page_in(entry.sequence);
                self.discard(entry, reason, context);
            }
            Unlisted::PagedOut(paged_out) => self.discard_unread(paged_out, reason, context),
        }
    }

    fn discard_unread(&mut self, paged_out: PagedOut, reason: DropReason, context: &mut Context<'_>) {
        self.metadata.stats.dropped[reason as usize] += 1;
        context.record_paged_out_event(&self.metadata.address, &paged_out, LifecycleEvent::Dropped(reason));
        self.remove_paged_out(paged_out, context);
    }

    /// Removes a paged-out message for good, if nothing needs its body.
    pub(crate) fn remove_paged_out(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        self.note_paged_out_removed(&paged_out, context);
        self.keep_id(paged_out.sequence, context);
        context.record(Record::Settle(paged_out.sequence));
    }

    /// Notes that a paged-out message left the queue.
    pub(crate) fn note_paged_out_removed(&mut self, paged_out: &PagedOut, context: &mut Context<'_>) {
        self.waiting_producers.remove(&paged_out.sequence);
        self.unique.release_paged_out(paged_out.sequence);
        self.ready.loads.take(paged_out.sequence);
        self.metadata.stats.removed += 1;
        context.record_paged_out_end(&self.metadata.address, paged_out);
        notify_paged_out_dequeued(&self.metadata, paged_out.sequence, paged_out.attempts, context);
    }

    /// A message whose body cannot be read. Its record is not settled, because the next start may be
    /// able to read it.
    pub(crate) fn drop_unreadable(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        self.waiting_producers.remove(&paged_out.sequence);
        self.unique.release_paged_out(paged_out.sequence);
        self.metadata.stats.dropped[DropReason::Unreadable as usize] += 1;
        self.metadata.stats.removed += 1;
        context.record_paged_out_event(
            &self.metadata.address,
            &paged_out,
            LifecycleEvent::Dropped(DropReason::Unreadable),
        );
        context.record_paged_out_end(&self.metadata.address, &paged_out);
        context.state.paging.bodies.unreadable += 1;
    }

    /// An expired message that has left the lists. It is loaded only if a handler or producer needs it.
    pub(crate) fn expired_paged_out(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        let decision = context.state.spec(self.metadata.handler).base.decide(Step::MessageTimedOut, true);
        let wanted = self.metadata.overrides.contains(Step::MessageTimedOut)
            || self.destination(DropReason::Expired) != Destination::Nowhere
            || decision.put_back != PutBack::No
            || decision.acknowledge != Acknowledge::None;
        if wanted {
            self.expiring.push_back(paged_out);
        } else {
            self.metadata.stats.timed_out += 1;
            context.record_paged_out_event(&self.metadata.address, &paged_out, LifecycleEvent::Expired);
            self.discard_unread(paged_out, DropReason::Expired, context);
        }
    }

    /// Expires messages whose bodies are ready, in their order, and requests the next ones.
    pub(crate) fn continue_expiring(&mut self, context: &mut Context<'_>) {
        while let Some(paged_out) = self.expiring.front().copied() {
            if !self.ready.loads.has_answer(paged_out.sequence) {
                let wanted = self.expiring_window();
                return self.ask_for(wanted, context);
            }
            self.expiring.pop_front();
            match self.ready.loads.take(paged_out.sequence) {
                Some(LoadState::Ready(message)) => {
                    let entry = self.with_producer(paged_out.with(message));
                    self.expired(entry, context);
                }
                _ => self.drop_unreadable(paged_out, context),
            }
        }
    }

    /// Sequences of expired messages to request: a whole window, once the last one is used up.
    fn expiring_window(&mut self) -> Vec<Sequence> {
        let mut bytes = 0;
        let window = self.expiring.iter().take(WINDOW_MESSAGES).take_while(|paged_out| {
            let first = bytes == 0;
            bytes += paged_out.bytes;
            first || bytes <= WINDOW_BYTES
        });
        let sequences: Vec<Sequence> = window.map(|paged_out| paged_out.sequence).collect();
        sequences.into_iter().filter(|sequence| self.ready.loads.ask(*sequence)).collect()
    }

    /// Drops expired messages whose bodies have not arrived.
    pub(crate) fn erase_expiring(&mut self, context: &mut Context<'_>) {
        for paged_out in std::mem::take(&mut self.expiring) {
            self.discard_unread(paged_out, DropReason::Erased, context);
        }
    }
}
