//! Messages whose bodies are not in memory: which leave, when they are asked for, and what becomes of those that need
//! none, or cannot be read.
//!
//! Bodies leave from the tail of a queue, and are asked for in windows ahead of its head, so that draining a long queue
//! reads the journal in long runs and never waits for single messages. Handing out stops at a body that is on its way,
//! and goes on when it is here; so order stays what it was.

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
use crate::queue::Queue;
use crate::queue::loads::LoadState;
use crate::queue::ready::{Eviction, Next, Taken};

/// Messages of one queue that are asked for at a time, at most.
const WINDOW_MESSAGES: usize = 1024;
/// Octets of these, at most, but for a single message that is larger.
const WINDOW_BYTES: u64 = 1 << 20;

impl Queue {
    /// The next message, off the list. `None`: there is none, or its body is on its way, and the queue will be put on
    /// the list of work when it is here.
    pub(crate) fn next(&mut self, newest: bool, context: &mut Context<'_>) -> Option<Entry> {
        loop {
            match self.ready.take(newest) {
                Next::Nothing => return None,
                Next::Entry(entry) => {
                    if self.ready.runs_low() {
                        self.ask_ahead(newest, context);
                    }
                    return Some(self.indebted(entry));
                }
                Next::Lost(paged_out) => self.lose(paged_out, context),
                Next::Absent => {
                    let Some(paged_out) = self.ready.take_expired(newest, context.now) else {
                        self.ask_ahead(newest, context);
                        return None;
                    };
                    self.expired_unread(paged_out, context);
                    self.go_on_expiring(context);
                }
            }
        }
    }

    /// Asks for the bodies of the next messages that are neither here nor on their way.
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

    /// Bodies came back, or could not be read.
    pub(crate) fn loaded(&mut self, messages: Vec<(Sequence, Option<Message>)>, context: &mut Context<'_>) {
        for (sequence, message) in messages {
            self.ready.loads.put(sequence, message);
        }
        self.go_on_expiring(context);
        self.schedule(context);
    }

    /// A message with the producer that waits to hear of it, which the journal does not know.
    #[inline]
    pub(crate) fn indebted(&mut self, mut entry: Entry) -> Entry {
        self.unique.page_in(entry.sequence);
        if !self.debts.is_empty()
            && let Some(producer) = self.debts.remove(&entry.sequence)
            && entry.message.producer().is_none()
        {
            entry.message = entry.message.produced_by(producer);
        }
        entry
    }

    // ---- Leaving memory ----------------------------------------------------------------------------------

    /// Notes that bodies of this queue may leave memory.
    pub(crate) fn note_backlog(&mut self, context: &mut Context<'_>) {
        if !self.backlogged && self.ready.len() > 1 {
            self.backlogged = true;
            context.state.paging.backlogs.push_back(self.metadata.queue_ref);
        }
    }

    /// Lets bodies go until the shard has few enough. False if that was not enough.
    pub(crate) fn relieve(&mut self, state: &mut ShardState) -> bool {
        let watermark = state.config.memory_watermark;
        // What is about to be handed out stays: of all queues together not more than a quarter of what is allowed.
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
        let Self { ready, debts, unique, metadata, .. } = self;
        let any_handler = !metadata.overrides.is_empty();
        let mut gone = |sequence: Sequence, answered: bool, message: &Message| {
            unique.page_out(sequence, message);
            let owed = any_handler || message.properties().pending_acknowledge;
            if !answered
                && owed
                && let Some(producer) = message.producer()
            {
                debts.insert(sequence, producer.clone());
            }
        };
        ready.evict(keep, &mut may, &mut gone);
        state.paging.bodies.evicted += evicted;
        let enough = state.paging.memory.get() <= watermark;
        // Not to be looked at in vain until something new arrives, unless some may go soon.
        self.backlogged = enough || delayed;
        enough
    }

    // ---- The end without a body --------------------------------------------------------------------------

    /// A message is dropped, which is counted, whether or not its body is here.
    pub(crate) fn discard_taken(&mut self, taken: Taken, reason: DropReason, context: &mut Context<'_>) {
        match taken {
            Taken::InMemory(entry) => {
                self.debts.remove(&entry.sequence);
                self.unique.page_in(entry.sequence);
                self.discard(entry, reason, context);
            }
            Taken::PagedOut(paged_out) => self.discard_unread(paged_out, reason, context),
        }
    }

    fn discard_unread(&mut self, paged_out: PagedOut, reason: DropReason, context: &mut Context<'_>) {
        self.metadata.stats.dropped[reason as usize] += 1;
        context.record_paged_out_event(&self.metadata.address, &paged_out, LifecycleEvent::Dropped(reason));
        self.remove_unread(paged_out, context);
    }

    /// A message leaves for good that nobody needs to read.
    pub(crate) fn remove_unread(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        self.debts.remove(&paged_out.sequence);
        self.unique.release_paged_out(paged_out.sequence);
        self.ready.loads.take(paged_out.sequence);
        self.metadata.stats.removed += 1;
        context.record_paged_out_end(&self.metadata.address, &paged_out);
        notify_paged_out_dequeued(&self.metadata, paged_out.sequence, paged_out.attempts, context);
        context.record(Record::Settle(paged_out.sequence));
    }

    /// A message whose body cannot be read. Its record is not settled: the next start may find it readable.
    pub(crate) fn lose(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        self.debts.remove(&paged_out.sequence);
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

    /// A message that waited too long, and is out of the queue already. It is read only if somebody wants to see it.
    pub(crate) fn expired_unread(&mut self, paged_out: PagedOut, context: &mut Context<'_>) {
        let decision = context.state.spec(self.metadata.handler).base.decide(Step::MessageTimedOut, true);
        let wanted = self.metadata.overrides.contains(Step::MessageTimedOut)
            || self.metadata.options.dead_letter.is_some()
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

    /// Ends the waiting of messages whose bodies are here now, in their order, and asks for the next ones.
    pub(crate) fn go_on_expiring(&mut self, context: &mut Context<'_>) {
        while let Some(paged_out) = self.expiring.front().copied() {
            if !self.ready.loads.has_answer(paged_out.sequence) {
                let wanted = self.expiring_window();
                return self.ask_for(wanted, context);
            }
            self.expiring.pop_front();
            match self.ready.loads.take(paged_out.sequence) {
                Some(LoadState::Ready(message)) => {
                    let entry = self.indebted(paged_out.with(message));
                    self.expired(entry, context);
                }
                _ => self.lose(paged_out, context),
            }
        }
    }

    /// Numbers of expired messages to be asked for: a whole window, once the last one is used up.
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

    /// Forgets the expired messages whose bodies did not come yet.
    pub(crate) fn erase_expiring(&mut self, context: &mut Context<'_>) {
        for paged_out in std::mem::take(&mut self.expiring) {
            self.discard_unread(paged_out, DropReason::Erased, context);
        }
    }
}
