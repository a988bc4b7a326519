//! Messages that arrive from other queues: dead letters, and messages that an operator moves.

use std::sync::Arc;

use crate::context::Context;
use crate::context::commits::{Awaiting, Storage};
use crate::context::decide::DecisionState;
use crate::history::LifecycleEvent;
use crate::model::decision::{Decision, PutBack};
use crate::model::effect::Effect;
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{QueueAddress, Sequence};
use crate::model::message::Message;
use crate::model::options::{Durability, Status};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::transfer::{ArrivedMessage, Transfer, TransferEnd, TransferSource, TransferredPut};
use crate::queue::members::Members;
use crate::queue::moves::Arriving;
use crate::queue::ready::Unlisted;
use crate::queue::{Admission, Queue};

impl Queue {
    /// Takes a message from another queue: without asking its handler and without a confirmation, if there
    /// is room. A message that was saved there, or whose new queue saves messages, is saved here; only then
    /// does the other queue forget it, and do consumers get it.
    pub(crate) fn transfer(&mut self, transfer: Transfer, members: &Members, context: &mut Context<'_>) {
        if transfer.departure.is_some()
            && let Err(rejection) = self.check_arrival(&transfer.message, context)
        {
            context.effects.push(Effect::Transferred(Box::new(transfer_end(&transfer, Err(rejection)))));
            return;
        }
        let end = transfer_end(&transfer, Ok(None));
        let Transfer { message, origin, from, departure, .. } = transfer;
        let number = context.number();
        let mut entry = Entry { answered: true, number, ..Entry::new(message, self.deadline(context.now)) };
        entry.message.received_at(context.now);
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Arrived);
        context.state.unsaved.enter(&mut entry);
        self.metadata.stats.received += 1;
        if departure.is_none() && self.check_room(&entry.message).is_err() {
            context.effects.push(Effect::Transferred(Box::new(end)));
            self.discard(entry, DropReason::Limit, context);
            return;
        }
        if origin.is_none() && departure.is_some() {
            context.effects.push(Effect::Transferred(Box::new(end.clone())));
        }
        if context.state.commits.storage != Storage::Ready {
            // A record of the old queue stays: after a restart the message may be duplicated, but it is
            // not lost.
            return self.store(entry, members, context);
        }
        if let Some(origin) = origin {
            let (queue, message) = (self.metadata.address.clone(), entry.message.clone());
            let source = TransferSource { origin, queue: Arc::clone(&from) };
            let put = TransferredPut { queue, message, received: context.now, number, source };
            entry.sequence = context.record(Record::PutTransferred(Box::new(put))).unwrap_or_default();
            context.saved_without_waiting(&mut entry);
            self.metadata.stats.saved += 1;
            context.record_event(&self.metadata.address, &entry, LifecycleEvent::Saved);
            let (shard, queue) = (context.state.config.shard, Arc::clone(&self.metadata.address));
            let arrival = departure.map(|_| ArrivedMessage { shard, queue, sequence: entry.sequence });
            let is_held = arrival.is_some();
            let end = TransferEnd { result: Ok(arrival), ..end };
            context.state.commits.wait(Durability::Fsync, Awaiting::Transfer(Box::new(end)));
            if is_held {
                return self.hold_arrival(entry, from);
            }
            return self.store(entry, members, context);
        }
        if !self.metadata.policy_saves && self.metadata.missing_handler.is_none() {
            return self.store(entry, members, context);
        }
        // Not "allow": it was announced when its producer published it.
        let decision = Decision { save: true, put_back: PutBack::End, ..Decision::REFUSE };
        let decision_state = DecisionState::decided(decision);
        self.undecided.push_back(Admission { entry, decision_state, step_decision: None, origin: None });
        self.consider(self.undecided.len() - 1, context);
        self.admit(members, context);
    }

    /// Whether a message may move here: there is room, and it can be saved as it must be.
    fn check_arrival(&self, message: &Message, context: &Context<'_>) -> Result<(), Rejection> {
        self.check_room(message).map_err(|error| error.rejection)?;
        match &context.state.commits.storage {
            Storage::Absent | Storage::Ready => Ok(()),
            Storage::Refusing(why) => {
                let reason = format!("queue {} cannot save a moved message: {why}", self.metadata.address);
                Err(Rejection::new(RejectionKind::Busy, reason))
            }
        }
    }

    /// Takes a moved message that the journal has saved here, and holds it until its previous queue has settled it.
    pub(crate) fn hold_arrival(&mut self, entry: Entry, from: Arc<QueueAddress>) {
        self.moves.get_or_insert_default().arriving.insert(entry.sequence, Arriving::Saved(entry, from));
    }

    /// Holds a moved message of an earlier run of the broker, in the same way.
    pub(crate) fn hold_restored_arrival(&mut self, paged_out: PagedOut, level: u8) {
        let moves = self.moves.get_or_insert_default();
        moves.arriving.insert(paged_out.sequence, Arriving::Restored(paged_out, level));
    }

    /// Gives a moved message back that the journal could not save here.
    pub(crate) fn give_up_arrival(&mut self, sequence: Sequence, context: &mut Context<'_>) {
        let arrived = self.moves.as_mut().and_then(|moves| moves.arriving.remove(&sequence));
        if let Some(Arriving::Saved(entry, from)) = arrived {
            self.metadata.stats.moved += 1;
            context.record_event(&self.metadata.address, &entry, LifecycleEvent::Moved(&from));
            self.remove(entry, context);
        }
        self.forget_moves();
    }

    /// The previous queue has settled a moved message, so consumers may get it.
    pub(crate) fn release(&mut self, sequence: Sequence, members: &Members, context: &mut Context<'_>) {
        let arrived = self.moves.as_mut().and_then(|moves| moves.arriving.remove(&sequence));
        match arrived {
            Some(Arriving::Saved(entry, _)) => self.store(entry, members, context),
            Some(Arriving::Restored(paged_out, level)) => self.store_paged_out(paged_out, level, context),
            None => {}
        }
        self.forget_moves();
    }

    /// Puts a message without its body at the end of the queue.
    fn store_paged_out(&mut self, paged_out: PagedOut, level: u8, context: &mut Context<'_>) {
        match self.metadata.options.status {
            Status::Stopped => {
                return self.discard_taken(Unlisted::PagedOut(paged_out), DropReason::Erased, context);
            }
            Status::Cache => self.replace_cached(true, context),
            _ => {}
        }
        self.arm(paged_out.deadline, context);
        self.ready.push_paged_out(paged_out, level, PutBack::End);
        self.schedule(context);
    }
}

/// The end of a transfer for its previous queue.
pub(crate) fn transfer_end(
    transfer: &Transfer,
    result: Result<Option<ArrivedMessage>, Rejection>,
) -> TransferEnd {
    TransferEnd { origin: transfer.origin, departure: transfer.departure, result }
}

/// Releases a message in its new queue when its record here is settled for good.
pub(crate) fn release_once_settled(arrival: ArrivedMessage, context: &mut Context<'_>) {
    let commits = &mut context.state.commits;
    if commits.storage == Storage::Ready && commits.has_unsynced_records() {
        // The record may have been written earlier, without a sync.
        commits.wait_for_records(Awaiting::Release(Box::new(arrival)));
    } else {
        context.effects.push(Effect::Release(Box::new(arrival)));
    }
}
