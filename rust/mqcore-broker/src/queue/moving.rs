//! Moves of stored messages to other queues, in two phases, so that a crash neither loses nor duplicates one.
//!
//! A message that leaves stays in its queue as a departure while the other queue saves it; its record
//! there names the record here. Then this queue settles its record, and only after that do consumers of
//! the other queue get the message. A crash in between leaves two records, of which the next start
//! keeps the one in the new queue. A queue that rejects a message sends it back.

use std::sync::Arc;

use crate::context::Context;
use crate::context::commits::{Awaiting, Storage};
use crate::history::LifecycleEvent;
use crate::model::effect::{Effect, Event, Reply};
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, RequestId};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::transfer::{
    Departure, MOVED_AT_ONCE_MAX, MoveMessages, MoveReport, MoveTarget, Origin, Transfer,
};
use crate::queue::Queue;
use crate::queue::moves::{Arriving, Moves, Moving};
use crate::queue::ready::Unlisted;
use crate::queue::transferred::{moved_message, origin_of};

/// Maximum departures of a queue at a time. It bounds the memory that a move takes.
const DEPARTING_MAX: usize = 256;

impl Queue {
    /// Messages that are moving from or to this queue.
    pub(crate) fn moving(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.messages())
    }

    /// Whether a move waits to be continued.
    pub(crate) fn has_moves(&self) -> bool {
        self.moves.as_ref().is_some_and(|moves| !moves.requests.is_empty())
    }

    /// Begins to move stored messages to other queues. It is answered when the moved ones are safe there.
    pub(crate) fn move_messages(
        &mut self,
        client: ConnectionId,
        request: RequestId,
        wanted: MoveMessages,
        context: &mut Context<'_>,
    ) {
        let report = MoveReport::default();
        let moving = Moving { client, request, wanted, left: None, staying: Vec::new(), report };
        self.moves.get_or_insert_default().requests.push_back(moving);
        self.continue_moves(context);
    }

    /// Lets messages leave as far as their bodies are in memory, and answers moves that have ended.
    pub(crate) fn continue_moves(&mut self, context: &mut Context<'_>) {
        while let Some(mut moving) = self.moves.as_mut().and_then(|moves| moves.requests.pop_front()) {
            if self.has_more_to_move(&mut moving, context) {
                if let Some(moves) = &mut self.moves {
                    moves.requests.push_front(moving);
                }
                return;
            }
            self.end_move(moving, context);
        }
        self.forget_moves();
    }

    /// Lets messages of a move leave. False when it has ended.
    fn has_more_to_move(&mut self, moving: &mut Moving, context: &mut Context<'_>) -> bool {
        let waiting = self.ready.len() as u64;
        let most = u64::from(moving.wanted.max.min(MOVED_AT_ONCE_MAX));
        let mut left = moving.left.unwrap_or(waiting.min(most));
        while left > 0 && moving.report.rejection.is_none() && self.departing() < DEPARTING_MAX {
            let Some(entry) = self.next(false, context) else {
                if self.ready.is_empty() {
                    left = 0;
                    break;
                }
                // Its body is being loaded, which puts the queue back on the list of work.
                moving.left = Some(left);
                return true;
            };
            left -= 1;
            if entry.deadline <= context.now {
                self.expired(entry, context);
            } else {
                self.depart(entry, moving, context);
            }
        }
        if moving.staying.is_empty() {
            self.settle_retained_if_empty(context);
        }
        moving.left = Some(left);
        self.departing() > 0 || (left > 0 && moving.report.rejection.is_none())
    }

    fn departing(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.departing.len())
    }

    /// Sends a message on its way, unless it stays.
    fn depart(&mut self, entry: Entry, moving: &mut Moving, context: &mut Context<'_>) {
        let Moves { departing, departures, .. } = self.moves.get_or_insert_default().as_mut();
        *departures += 1;
        let number = *departures;
        let MoveMessages { to, ids, .. } = &moving.wanted;
        if !ids.is_empty() && !ids.iter().any(|id| **id == *entry.message.id()) {
            moving.staying.push((number, entry));
            return;
        }
        let target = match to {
            MoveTarget::Queue(queue) => Some(queue.clone()),
            MoveTarget::Origin => origin_of(&entry.message),
            MoveTarget::Nowhere => {
                moving.report.moved += 1;
                return self.discard(entry, DropReason::Erased, context);
            }
        };
        let Some(target) = target else {
            moving.report.without_origin += 1;
            moving.staying.push((number, entry));
            return;
        };
        let shard = context.state.config.shard;
        let sequence = entry.sequence;
        let transfer = Transfer {
            from: Arc::clone(&self.metadata.address),
            message: moved_message(&entry.message, &target, *to == MoveTarget::Origin),
            origin: (sequence.0 > 0).then_some(Origin { shard, sequence }),
            departure: Some(Departure { shard, queue_ref: self.metadata.queue_ref, number }),
            to: target.clone(),
        };
        departing.insert(number, (entry, Arc::new(target)));
        context.effects.push(Effect::Transfer(Box::new(transfer)));
    }

    /// A message has left, or its target rejects it. Its move is the first one: that lasts until all its messages
    /// have left or are back.
    pub(crate) fn departed(&mut self, number: u64, result: Result<(), Rejection>, context: &mut Context<'_>) {
        let Some(Moves { requests, departing, .. }) = self.moves.as_deref_mut() else { return };
        let Some(moving) = requests.front_mut() else { return };
        let Some((entry, to)) = departing.remove(&number) else { return };
        match result {
            Ok(()) => {
                moving.report.moved += 1;
                self.metadata.stats.moved += 1;
                context.record_event(&self.metadata.address, &entry, LifecycleEvent::Moved(&to));
                self.remove(entry, context);
            }
            Err(rejection) => {
                moving.staying.push((number, entry));
                moving.report.rejection.get_or_insert(rejection);
            }
        }
        self.schedule(context);
    }

    /// Returns the messages that stay to their places, and answers.
    fn end_move(&mut self, moving: Moving, context: &mut Context<'_>) {
        let Moving { client, request, mut staying, mut report, .. } = moving;
        staying.sort_unstable_by_key(|(number, _)| *number);
        for (_, entry) in staying.into_iter().rev() {
            self.return_to_head(entry, context);
        }
        self.schedule(context);
        let (high, normal) = self.waiting();
        report.left = high + normal;
        let result = match report.rejection.take() {
            Some(rejection) if report.moved == 0 => Err(rejection),
            rejection => Ok(Reply::Moved(Box::new(MoveReport { rejection, ..report }))),
        };
        answer(client, Event::Answered(request, result), context);
    }

    /// Ends all moves, because the messages of the queue are erased. Messages that are leaving count as erased too;
    /// their new queue keeps what it has saved.
    pub(crate) fn end_moves(&mut self, context: &mut Context<'_>) {
        let Some(moves) = self.moves.take() else { return };
        let Moves { requests, departing, arriving, .. } = *moves;
        let mut erased: Vec<Unlisted> =
            departing.into_values().map(|(entry, _)| Unlisted::InMemory(entry)).collect();
        erased.extend(arriving.into_values().map(|arriving| match arriving {
            Arriving::Saved(entry, _) => Unlisted::InMemory(entry),
            Arriving::Restored(paged_out, _) => Unlisted::PagedOut(paged_out),
        }));
        for moving in requests {
            erased.extend(moving.staying.into_iter().map(|(_, entry)| Unlisted::InMemory(entry)));
            let reason = format!("the messages of queue {} were erased", self.metadata.address);
            let rejection = Rejection::new(RejectionKind::NotFound, reason);
            let result = match moving.report {
                MoveReport { moved: 0, .. } => Err(rejection),
                report => Ok(Reply::Moved(Box::new(MoveReport { rejection: Some(rejection), ..report }))),
            };
            answer(moving.client, Event::Answered(moving.request, result), context);
        }
        for taken in erased {
            self.discard_taken(taken, DropReason::Erased, context);
        }
    }

    pub(super) fn forget_moves(&mut self) {
        if self.moves.as_ref().is_some_and(|moves| moves.is_empty()) {
            self.moves = None;
        }
    }
}

/// Answers when everything that the move did is saved.
fn answer(client: ConnectionId, event: Event, context: &mut Context<'_>) {
    let commits = &mut context.state.commits;
    if commits.storage == Storage::Ready && commits.has_unsynced_records() {
        commits.wait_for_records(Awaiting::Answer(client, event));
    } else {
        context.effects.push(Effect::Notify(client, event));
    }
}
