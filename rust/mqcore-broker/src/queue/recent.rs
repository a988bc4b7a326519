//! Ids of recent messages of a queue: another message with one of them is a duplicate.
//!
//! The record of a saved message says that its id counts. When the message leaves its queue, the id gets a
//! definition of its own, until the queue forgets it. So after a crash the queue knows the ids of exactly
//! the messages that it has, or had, as saved.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::history::LifecycleEvent;
use crate::model::entry::Entry;
use crate::model::id::Sequence;
use crate::model::message::Message;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;
use crate::queue::Queue;

/// Maximum number of ids that a queue remembers. Beyond it the oldest is forgotten.
pub(crate) const IDS_MAX: usize = 1_000_000;

/// Whether an id is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdStatus {
    No,
    /// The queue has not yet admitted the first message with this id.
    Undecided,
    Yes,
}

#[derive(Debug, Clone, Copy)]
struct RecentId {
    /// When it is forgotten; `None` while its message is not admitted.
    until: Option<Timestamp>,
    /// Whether it has a definition in the journal.
    defined: bool,
}

/// The recent ids of one queue.
#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    ids: HashMap<Arc<[u8]>, RecentId>,
    /// Ids of admitted messages in the order in which they are forgotten.
    order: BTreeSet<(Timestamp, Arc<[u8]>)>,
    /// Ids of saved messages that are in the queue.
    saved: HashMap<Sequence, Arc<[u8]>>,
}

impl RecentIds {
    fn look(&self, id: &[u8]) -> IdStatus {
        match self.ids.get(id) {
            None => IdStatus::No,
            Some(RecentId { until: None, .. }) => IdStatus::Undecided,
            Some(_) => IdStatus::Yes,
        }
    }

    fn begin(&mut self, id: &[u8]) {
        self.ids.insert(id.into(), RecentId { until: None, defined: false });
    }

    fn reject(&mut self, id: &[u8]) {
        if self.look(id) == IdStatus::Undecided {
            self.ids.remove(id);
        }
    }

    /// Remembers the id of an admitted message, unless it is known.
    fn accept(&mut self, id: &[u8], until: Timestamp, sequence: Sequence, defined: bool) {
        let known = self.ids.get_key_value(id).map(|(id, recent)| (id.clone(), recent.until.is_some()));
        let (id, is_known) = known.unwrap_or_else(|| (id.into(), false));
        if sequence.0 > 0 {
            self.saved.insert(sequence, id.clone());
        }
        if !is_known {
            self.ids.insert(id.clone(), RecentId { until: Some(until), defined });
            self.order.insert((until, id));
        }
    }

    /// A saved message leaves. Returns its id if that needs a definition now.
    fn settle(&mut self, sequence: Sequence, now: Timestamp) -> Option<(Arc<[u8]>, Timestamp)> {
        let id = self.saved.remove(&sequence)?;
        let recent = self.ids.get_mut(&id)?;
        let until = recent.until.filter(|until| *until > now && !recent.defined)?;
        recent.defined = true;
        Some((id, until))
    }

    /// Forgets ids whose time is over, and the oldest beyond the maximum. Returns those with a definition.
    fn forget_old(&mut self, now: Timestamp) -> Vec<Arc<[u8]>> {
        let mut defined = Vec::new();
        while self.order.len() > IDS_MAX || self.next() <= now {
            let Some((_, id)) = self.order.pop_first() else { break };
            if self.ids.remove(&id).is_some_and(|recent| recent.defined) {
                defined.push(id);
            }
        }
        defined
    }

    fn next(&self) -> Timestamp {
        self.order.first().map_or(Timestamp::NEVER, |(until, _)| *until)
    }

    fn defined(&self) -> impl Iterator<Item = (&Arc<[u8]>, Timestamp)> {
        let defined = self.ids.iter().filter(|(_, recent)| recent.defined);
        defined.filter_map(|(id, recent)| Some((id, recent.until?)))
    }
}

impl Queue {
    /// Whether the queue recognizes duplicates by their ids.
    #[inline]
    pub(crate) fn remembers_ids(&self) -> bool {
        !self.metadata.options.deduplication_window.is_zero()
    }

    /// Whether the queue accepted a message with this id within its window. Rejects the id while the first message
    /// with it is not admitted.
    pub(crate) fn is_duplicate(&mut self, id: &[u8], context: &mut Context<'_>) -> Result<bool, Rejection> {
        self.forget_old_ids(context);
        match self.recent.get_or_insert_default().look(id) {
            IdStatus::No => Ok(false),
            IdStatus::Yes => Ok(true),
            IdStatus::Undecided => {
                let (id, address) = (String::from_utf8_lossy(id), &self.metadata.address);
                let reason = format!(
                    "queue {address} has not yet decided about another message with the id {id}; publish it again"
                );
                Err(Rejection::new(RejectionKind::Busy, reason))
            }
        }
    }

    /// Drops a duplicate. Its producer gets the confirmation of the first message with its id.
    pub(crate) fn drop_duplicate(&mut self, message: Message, answers: bool, context: &mut Context<'_>) {
        context.finish_passed_on(&message);
        self.metadata.stats.dropped[DropReason::Duplicate as usize] += 1;
        if answers {
            let mut entry = Entry::new(message.clone(), Timestamp::NEVER);
            self.answer_producer(&mut entry, None, None, true, context);
        }
        context.record_undeliverable(
            &self.metadata.address,
            message,
            LifecycleEvent::Produced,
            DropReason::Duplicate,
        );
    }

    /// A message arrived and waits for the decision about its admission.
    pub(crate) fn begin_id(&mut self, message: &Message) {
        if message.properties().remembered {
            self.recent.get_or_insert_default().begin(message.id());
        }
    }

    /// A message was not admitted, so another one with its id is not a duplicate.
    pub(crate) fn reject_id(&mut self, message: &Message) {
        if message.properties().remembered
            && let Some(recent) = &mut self.recent
        {
            recent.reject(message.id());
        }
    }

    /// A message was admitted.
    pub(crate) fn accept_id(&mut self, entry: &Entry, context: &mut Context<'_>) {
        if entry.message.properties().remembered {
            let until = context.now.after(self.metadata.options.deduplication_window);
            let recent = self.recent.get_or_insert_default();
            recent.accept(entry.message.id(), until, entry.sequence, false);
            self.arm(until, context);
        }
    }

    /// Restores the id of a message that left before the restart, or that is still in the queue.
    pub(crate) fn restore_id(
        &mut self,
        id: &[u8],
        until: Timestamp,
        sequence: Sequence,
        context: &mut Context<'_>,
    ) {
        let defined = sequence == Sequence(0);
        if until > context.now && self.remembers_ids() {
            self.recent.get_or_insert_default().accept(id, until, sequence, defined);
            self.arm(until, context);
        } else if defined {
            context.record(Record::ForgetId(self.metadata.address.clone(), id.into()));
        }
    }

    /// A saved message leaves the queue: its id needs a definition before its record is settled.
    pub(crate) fn keep_id(&mut self, sequence: Sequence, context: &mut Context<'_>) {
        if let Some(recent) = &mut self.recent
            && let Some((id, until)) = recent.settle(sequence, context.now)
        {
            context.record(Record::RememberId(self.metadata.address.clone(), id, until));
        }
    }

    /// Forgets ids whose time is over.
    pub(crate) fn forget_old_ids(&mut self, context: &mut Context<'_>) {
        let Some(recent) = &mut self.recent else { return };
        for id in recent.forget_old(context.now) {
            context.record(Record::ForgetId(self.metadata.address.clone(), id));
        }
    }

    /// Forgets all ids: the queue is removed, or recognizes duplicates no longer.
    pub(crate) fn forget_ids(&mut self, context: &mut Context<'_>) {
        let Some(recent) = self.recent.take() else { return };
        for (id, _) in recent.defined() {
            context.record(Record::ForgetId(self.metadata.address.clone(), id.clone()));
        }
    }

    /// Records all definitions of ids once more.
    pub(crate) fn record_ids(&self, context: &mut Context<'_>) {
        for (id, until) in self.recent.iter().flat_map(|recent| recent.defined()) {
            context.record(Record::RememberId(self.metadata.address.clone(), id.clone(), until));
        }
    }

    /// When the next id is forgotten.
    pub(crate) fn next_forgotten_id(&self) -> Timestamp {
        self.recent.as_ref().map_or(Timestamp::NEVER, |recent| recent.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_maximum_the_oldest_id_is_forgotten() {
        let mut recent = RecentIds::default();
        let (now, max) = (Timestamp(0), IDS_MAX as u64);
        for number in 1..=max {
            recent.accept(&number.to_le_bytes(), Timestamp(number), Sequence(0), true);
        }
        assert!(recent.forget_old(now).is_empty(), "the maximum itself is allowed");
        for number in max + 1..=max + 2 {
            recent.accept(&number.to_le_bytes(), Timestamp(number), Sequence(0), true);
        }
        let oldest = [1_u64, 2].map(|number| Arc::from(number.to_le_bytes()));
        assert_eq!(recent.forget_old(now), oldest);
        assert_eq!((recent.ids.len(), recent.order.len()), (IDS_MAX, IDS_MAX));
    }
}
