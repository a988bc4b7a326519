//! The context of every step of a call: the time, the state of the shard, and the effects.

pub(crate) mod commits;
pub(crate) mod confirmations;
pub(crate) mod decide;
pub(crate) mod questions;
pub(crate) mod state;

use std::sync::Arc;

use crate::context::commits::{Awaiting, Storage};
use crate::context::confirmations::Confirmation;
use crate::context::state::ShardState;
use crate::history::LifecycleEvent;
use crate::model::config::HandlerSpec;
use crate::model::decision::Step;
use crate::model::definition::{channel_key, queue_key, router_key};
use crate::model::effect::{CopyOrigin, Effect, Event, Forwarded};
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{ConnectionId, HandlerId, MessageNumber, QueueAddress, Sequence};
use crate::model::intake::Ticket;
use crate::model::message::Message;
use crate::model::names::NameLimit;
use crate::model::observation::{Observation, ObservedSubject, Observers};
use crate::model::options::Durability;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::router::RouterDefinition;
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;

/// The data that one call into the shard works on.
pub(crate) struct Context<'a> {
    pub(crate) now: Timestamp,
    pub(crate) state: &'a mut ShardState,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Context<'_> {
    /// Appends a record if there is a journal, and returns its sequence.
    pub(crate) fn record(&mut self, record: Record) -> Option<Sequence> {
        if self.state.commits.storage == Storage::Absent {
            return None;
        }
        if self.state.intake.is_dirty() && matches!(record, Record::Settle(_)) {
            // The settled record may be the only one that identifies the downstream broker's message.
            self.write_intake();
        }
        self.state.commits.sequence.0 += 1;
        let sequence = self.state.commits.sequence;
        if record.changes_definitions() {
            self.state.commits.definition_changed();
        }
        match &record {
            Record::DefineChannel(name, _) => self.state.commits.defined(channel_key(name)),
            Record::DefineQueue(queue, _) => self.state.commits.defined(queue_key(queue)),
            Record::DefineRouter(router) => self.state.commits.defined(router_key(&router.name)),
            _ => {}
        }
        self.effects.push(Effect::Record(sequence, record));
        Some(sequence)
    }

    /// Records a router. If its record is the latest and still to be written, it gets the new state, so that a series of
    /// changes of a router with thousands of bindings costs one record, not one for each change.
    pub(crate) fn record_router(&mut self, router: RouterDefinition) {
        let latest = self.effects.iter_mut().rev().find_map(|effect| match effect {
            Effect::Record(_, record) => Some(record),
            _ => None,
        });
        match latest {
            Some(Record::DefineRouter(recorded)) if recorded.name == router.name => **recorded = router,
            _ => drop(self.record(Record::DefineRouter(Box::new(router)))),
        }
    }

    /// Notes that the latest record saves this message, and that nothing waits for the commit.
    pub(crate) fn saved_without_waiting(&mut self, entry: &mut Entry) {
        entry.saved = true;
        self.state.unsaved.leave(entry);
        let bytes = entry.message.memory_bytes() as u64;
        self.state.commits.lag(bytes);
        self.state.unsaved.add(bytes);
    }

    /// Rejects a change of definitions that the journal cannot save: it would be undone by a restart.
    pub(crate) fn check_definitions(&self) -> Result<(), Rejection> {
        match &self.state.commits.storage {
            Storage::Absent | Storage::Ready => Ok(()),
            Storage::Refusing(why) => {
                let reason = format!("nothing was changed, because the change cannot be saved: {why}");
                Err(Rejection::new(RejectionKind::Busy, reason))
            }
        }
    }

    /// Rejects a message that relies on all queues, routers and bindings of the shard, while some of their definitions may
    /// be lost.
    pub(crate) fn check_nothing_is_lost(&self) -> Result<(), Rejection> {
        match &self.state.commits.lost {
            None => Ok(()),
            Some(why) => {
                let reason = format!("queues or bindings that take this message may be lost: {why}");
                Err(Rejection::new(RejectionKind::Busy, reason))
            }
        }
    }

    /// The rejection of a message whose queue or router does not exist. It may be one whose definition is lost, and exist
    /// again later.
    pub(crate) fn missing(&self, not_found: Rejection) -> Rejection {
        self.check_nothing_is_lost().err().unwrap_or(not_found)
    }

    /// Counts and returns the rejection of a channel or queue that a limit does not admit.
    pub(crate) fn not_created(&mut self, limit: &NameLimit) -> Rejection {
        if matches!(limit, NameLimit::Created { .. }) {
            self.state.counters.creations_rejected += 1;
        }
        limit.rejection()
    }

    /// Like [`Self::check_definitions`], unless the definition exists and is saved. One that the journal rejected exists in
    /// memory only.
    pub(crate) fn check_definition(&self, exists: bool, key: &[u8]) -> Result<(), Rejection> {
        if exists && !self.state.commits.is_unsaved(key) { Ok(()) } else { self.check_definitions() }
    }

    /// Records that a downstream broker begins a new count of its messages.
    pub(crate) fn begin_intake(&mut self, ticket: &Ticket) {
        let progress = self.state.intake.begin(ticket);
        self.record(Record::DefineIntake(Arc::clone(&ticket.node), progress));
    }

    /// Notes that a message from a downstream broker reached its queue, or was dropped for good.
    pub(crate) fn finish_passed_on(&mut self, message: &Message) {
        if let Some(ticket) = message.ticket() {
            self.state.intake.done(ticket);
        }
    }

    /// Notes that a message from a downstream broker was rejected: for good, or only for now if the
    /// queue is busy.
    pub(crate) fn reject_passed_on(&mut self, message: &Message, rejection: &Rejection) {
        if let Some(ticket) = message.ticket() {
            self.settle_passed_on(ticket, Some(rejection));
        }
    }

    /// Notes that a message from a downstream broker is done, or was rejected: for good, or only for now if `rejection` says
    /// busy.
    pub(crate) fn settle_passed_on(&mut self, ticket: &Ticket, rejection: Option<&Rejection>) {
        let Some(rejection) = rejection.filter(|rejection| rejection.kind == RejectionKind::Busy) else {
            return self.state.intake.done(ticket);
        };
        self.state.intake.defer(ticket);
        if let Some(link) = self.state.links.get(&ticket.node).copied() {
            self.notify(link, Event::Deferred(ticket.number, rejection.clone()));
        }
    }

    /// Records which messages of downstream brokers are done, and confirms them once the record is
    /// safe.
    pub(crate) fn write_intake(&mut self) {
        for node in self.state.intake.take_forgotten() {
            self.record(Record::RemoveIntake(node));
        }
        for (node, progress, numbers) in self.state.intake.flush() {
            let link = self.state.links.get(&node).copied();
            self.record(Record::DefineIntake(node, progress));
            let Some(link) = link.filter(|_| !numbers.is_empty()) else { continue };
            if self.state.commits.storage == Storage::Ready {
                self.state.commits.wait(Durability::Os, Awaiting::Confirm(link, numbers));
            } else {
                self.notify(link, Event::Confirmed(numbers));
            }
        }
    }

    /// Whether lifecycle events are recorded, in the history or as spans.
    pub(crate) fn records_events(&self) -> bool {
        self.state.history.is_some() || self.state.spans.is_some()
    }

    /// Records a lifecycle event of a message, if there is a history or if its trace is recorded.
    pub(crate) fn record_event(
        &mut self,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
    ) {
        self.record_event_since(queue, entry, what, self.now);
    }

    /// Records an event that ends a delivery, which began at `since`.
    #[inline]
    pub(crate) fn record_event_since(
        &mut self,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
        since: Timestamp,
    ) {
        // Inlined, because it happens several times for each message and most brokers record nothing.
        if self.records_events() {
            self.write_event(queue, entry, what, since);
        }
    }

    #[inline(never)]
    fn write_event(
        &mut self,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
        since: Timestamp,
    ) {
        if let Some(history) = &mut self.state.history {
            history.write(self.now, queue, entry, what);
        }
        if let Some(spans) = &mut self.state.spans {
            spans.write(self.now, queue, entry, what, since);
        }
    }

    /// Records a lifecycle event of a paged-out message, whose id and sizes are unknown here.
    pub(crate) fn record_paged_out_event(
        &mut self,
        queue: &Arc<QueueAddress>,
        paged_out: &PagedOut,
        what: LifecycleEvent<'_>,
    ) {
        if self.state.history.is_some() {
            self.record_event(queue, &paged_out.bare(), what);
        }
    }

    /// Records that a paged-out message left its queue for good.
    pub(crate) fn record_paged_out_end(&mut self, queue: &Arc<QueueAddress>, paged_out: &PagedOut) {
        if self.state.history.is_some() {
            self.record_end(queue, &paged_out.bare());
        }
    }

    /// Records that a message was dropped on arrival, because its queue does not exist or has no room.
    pub(crate) fn record_undeliverable(
        &mut self,
        queue: &QueueAddress,
        message: Message,
        came: LifecycleEvent<'_>,
        reason: DropReason,
    ) {
        if self.records_events() {
            let (number, queue) = (self.number(), Arc::new(queue.clone()));
            let entry = Entry { number, ..Entry::new(message, Timestamp::NEVER) };
            self.record_event(&queue, &entry, came);
            self.record_event(&queue, &entry, LifecycleEvent::Dropped(reason));
            self.record_end(&queue, &entry);
        }
    }

    /// Records that a message left its queue for good, if there is a history.
    pub(crate) fn record_end(&mut self, queue: &Arc<QueueAddress>, entry: &Entry) {
        if let Some(history) = &mut self.state.history {
            history.end(self.now, queue, entry);
        }
    }

    /// The number of a new message, or 0 without a history. The journal reserves numbers before they
    /// are used.
    pub(crate) fn number(&mut self) -> MessageNumber {
        let Some(history) = &mut self.state.history else { return MessageNumber(0) };
        let number = history.number();
        if let Some(reserved) = history.reserve() {
            self.record(Record::Numbers(reserved));
        }
        number
    }

    /// Forwards something to the shard with this number, which may be this shard.
    pub(crate) fn forward(&mut self, shard: usize, what: Forwarded) {
        self.state.counters.forwards += 1;
        self.effects.push(Effect::Forward(shard, what));
    }

    /// Reports that a queue took and saved its copy of a topic's message, or rejected it.
    pub(crate) fn report_copy(&mut self, origin: CopyOrigin, result: Result<(), Rejection>) {
        if origin.shard != self.state.config.shard {
            return self.forward(origin.shard, Forwarded::CopyReport { origin, result });
        }
        match self.state.confirmations.report(origin.confirmation, result) {
            None => {}
            Some(Confirmation::Answer(connection, answer)) => self.notify(connection, answer),
            Some(Confirmation::PassedOn(ticket, result)) => {
                self.settle_passed_on(&ticket, result.as_ref().err());
            }
        }
    }

    /// Notifies the event handlers among `observers` that hear about `step`.
    pub(crate) fn observe(
        &mut self,
        observers: Observers,
        step: Step,
        subject: impl FnOnce() -> ObservedSubject,
    ) {
        let state = &*self.state;
        let hearing = observers.only(|handler| state.spec(handler).overrides.contains(step));
        if !hearing.is_empty() {
            self.observed(hearing.iter(), step, subject());
        }
    }

    /// Notifies all event handlers that hear about `step`, which concerns no channel.
    pub(crate) fn observe_everywhere(&mut self, step: Step, subject: impl FnOnce() -> ObservedSubject) {
        let hears = |spec: &&HandlerSpec| spec.overrides.contains(step);
        if self.state.handlers.iter().any(|spec| hears(&spec)) {
            let places = self.state.handlers.iter().enumerate().filter(|(_, spec)| hears(spec));
            let handlers: Vec<_> = places.map(|(place, _)| HandlerId(place as u16)).collect();
            self.observed(handlers.into_iter(), step, subject());
        }
    }

    fn observed(&mut self, handlers: impl Iterator<Item = HandlerId>, step: Step, subject: ObservedSubject) {
        let subject = Arc::new(subject);
        let observation = |handler| Observation { handler, step, subject: Arc::clone(&subject) };
        self.effects.extend(handlers.map(observation).map(Effect::Observe));
    }

    pub(crate) fn notify(&mut self, to: ConnectionId, event: Event) {
        self.effects.push(Effect::Notify(to, event));
    }
}
