//! Messages that arrive: checks, the handler's decision, and where they are stored.

use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;
use crate::context::commits::Storage;
use crate::context::decide::{DecisionState, StepDecision, StepRequest, decide};
use crate::context::questions::Suspended;
use crate::history::LifecycleEvent;
use crate::model::command::EventKind;
use crate::model::decision::{Acknowledge, Decision, PutBack, Step};
use crate::model::effect::{CopyOrigin, Event, Notification, Subject};
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::QueueAddress;
use crate::model::message::Message;
use crate::model::observation::ObservedSubject;
use crate::model::options::Status;
use crate::model::rate::TokenBucket;
use crate::model::record::{DeliveryProgress, PutTerms, Record};
use crate::model::rejection::{RejectReason, Rejection, RejectionKind};
use crate::model::stats::DropReason;
use crate::model::time::Timestamp;
use crate::queue::admission_error::AdmissionError;
use crate::queue::delayed::Awaits;
use crate::queue::members::Members;
use crate::queue::ready::Unlisted;
use crate::queue::{Admission, Queue};

impl Queue {
    /// A producer publishes a message.
    pub(crate) fn publish(&mut self, mut message: Message, members: &Members, context: &mut Context<'_>) {
        match self.admit_new(&mut message, context) {
            Ok(true) => {}
            Ok(false) => return self.drop_duplicate(message, true, context),
            Err(rejection) => {
                context.state.counters.refused += 1;
                return self.reject(message, rejection, context);
            }
        }
        let message = self.with_id(message, context);
        let deadline = self.deadline_of(&message, context.now);
        self.take(Entry::new(message, deadline), None, members, context);
    }

    /// Publishes a copy of a message. It is decided about and saved like any other message. Its producer gets no
    /// confirmation from this queue, which instead reports to the `origin` of the copy.
    pub(crate) fn publish_copy(
        &mut self,
        mut message: Message,
        origin: Option<CopyOrigin>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        match self.admit_new(&mut message, context) {
            Ok(true) => {}
            Ok(false) => {
                if let Some(origin) = origin {
                    context.report_copy(origin, Ok(()));
                }
                return self.drop_duplicate(message, false, context);
            }
            Err(rejection) => {
                context.reject_passed_on(&message, &rejection);
                if let Some(origin) = origin {
                    context.report_copy(origin, Err(rejection));
                }
                self.metadata.stats.dropped[DropReason::Limit as usize] += 1;
                return context.record_undeliverable(
                    &self.metadata.address,
                    message,
                    LifecycleEvent::Produced,
                    DropReason::Limit,
                );
            }
        }
        let message = self.with_id(message, context);
        let deadline = self.deadline_of(&message, context.now);
        let entry = Entry { answered: true, ..Entry::new(message, deadline) };
        self.take(entry, origin, members, context);
    }

    /// Publishes a message from a router. Only the router learns of a rejection. `answers`: the
    /// producer gets a confirmation.
    pub(crate) fn publish_routed(
        &mut self,
        mut message: Message,
        answers: bool,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        if !self.admit_new(&mut message, context)? {
            self.drop_duplicate(message, answers, context);
            return Ok(());
        }
        let message = self.with_id(message, context);
        let deadline = self.deadline_of(&message, context.now);
        let entry = Entry { answered: !answers, ..Entry::new(message, deadline) };
        self.take(entry, None, members, context);
        Ok(())
    }

    pub(crate) fn take(
        &mut self,
        mut entry: Entry,
        origin: Option<CopyOrigin>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        self.unique.take(&entry.message);
        context.state.unsaved.enter(&mut entry);
        entry.message.received_at(context.now);
        self.begin_id(&entry.message);
        self.metadata.stats.received += 1;
        self.metadata.stats.last_received_ms = context.now.0;
        entry.number = context.number();
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Produced);
        let mut decision_state = DecisionState::default();
        if self.undecided.is_empty() && !self.metadata.overrides.contains(Step::ReceivedFromProducer) {
            // No message waits for a decision and usually no handler is asked, so this message need not
            // wait in line.
            let step_request =
                StepRequest::new(Step::ReceivedFromProducer, Suspended::Admission(self.first_undecided));
            if let Some(step_decision) =
                decide(&mut self.metadata, &mut decision_state, &mut entry, step_request, context)
            {
                return self.admit_one(entry, origin, step_decision, members, context);
            }
            self.undecided.push_back(Admission { entry, decision_state, step_decision: None, origin });
            return;
        }
        self.undecided.push_back(Admission { entry, decision_state, step_decision: None, origin });
        self.consider(self.undecided.len() - 1, context);
        self.admit(members, context);
    }

    /// Restores a message from the journal at start. Messages arrive in queue order, and their bodies
    /// stay in the journal until they are needed. One that `is_held` was moved here, and its previous
    /// queue has not settled it.
    pub(crate) fn restore(
        &mut self,
        mut paged_out: PagedOut,
        terms: PutTerms,
        (progress, received): (DeliveryProgress, Timestamp),
        is_held: bool,
        context: &mut Context<'_>,
    ) {
        let not_before = progress.not_before.max(terms.not_before);
        // It has waited while the broker was down. The clock may have been set back meanwhile.
        let since = received.min(context.now).max(terms.not_before);
        paged_out.deadline = self.deadline(since).min(terms.expires);
        self.metadata.stats.received += 1;
        match self.metadata.options.status {
            Status::Stopped => {
                return self.discard_taken(Unlisted::PagedOut(paged_out), DropReason::Erased, context);
            }
            _ if is_held => return self.hold_restored_arrival(paged_out, terms.level),
            Status::Cache => self.replace_cached(true, context),
            _ if not_before > context.now => {
                let position = if progress.rank < 0 { PutBack::Start } else { PutBack::End };
                let awaits = Awaits::Attempt(position);
                return self.delay(Unlisted::PagedOut(paged_out), terms.level, not_before, awaits, context);
            }
            _ => {}
        }
        self.arm(paged_out.deadline, context);
        self.ready.push_paged_out(paged_out, terms.level, PutBack::End);
        self.schedule(context);
    }

    /// Whether the queue would take a message published now, as far as that is known before a handler
    /// decides.
    pub(crate) fn would_take(&self, message: &Message, context: &Context<'_>) -> Result<(), AdmissionError> {
        self.check(message, context)?;
        let Some(rate) = self.metadata.options.publish_limit else { return Ok(()) };
        let retry = match TokenBucket::wait(self.bucket.as_deref(), rate, context.now) {
            Some(Duration::ZERO) => return Ok(()),
            Some(wait) => format!("retry after {:.3} s", wait.as_secs_f64()),
            None => "the limit allows no messages".into(),
        };
        let address = &self.metadata.address;
        let reason = format!("publish limit of queue {address} reached ({rate}); {retry}");
        Err(AdmissionError::new(RejectReason::PublishLimit, RejectionKind::LimitExceeded, reason))
    }

    /// Whether a published message is new; otherwise it is a duplicate, which needs no room. Marks a new one if its id
    /// counts.
    #[inline]
    fn admit_new(&mut self, message: &mut Message, context: &mut Context<'_>) -> Result<bool, Rejection> {
        if !self.remembers_ids() || message.id().is_empty() {
            return self.admit_published(message, context).map(|()| true);
        }
        if self.is_duplicate(message.id(), context)? {
            return Ok(false);
        }
        self.admit_published(message, context)?;
        *message = message.remembered();
        Ok(true)
    }

    /// Like [`Queue::would_take`], and counts the message toward the rate limit. Only published
    /// messages count: not transferred or requeued ones.
    pub(crate) fn admit_published(
        &mut self,
        message: &Message,
        context: &Context<'_>,
    ) -> Result<(), Rejection> {
        self.would_take(message, context).map_err(|error| {
            self.metadata.stats.count_rejected(error.reason);
            error.rejection
        })?;
        if let Some(rate) = self.metadata.options.publish_limit {
            self.bucket.get_or_insert_with(|| Box::new(TokenBucket::new(rate))).take(rate, context.now);
        }
        Ok(())
    }

    pub(crate) fn check(&self, message: &Message, context: &Context<'_>) -> Result<(), AdmissionError> {
        let metadata = &self.metadata;
        if let Some(key) = &metadata.missing_handler {
            let reason = format!(
                "delivery handler {key:?} of queue {} is not registered, so the queue accepts no messages; start the \
                 broker with the handler, or choose another one for the queue",
                metadata.address
            );
            return Err(AdmissionError::new(RejectReason::Handler, RejectionKind::Busy, reason));
        }
        self.check_room(message)?;
        self.check_memory(message, context)?;
        if let Some(key) = self.unique.conflict(message) {
            let key = String::from_utf8_lossy(key);
            let reason =
                format!("queue {} already has a message with the unique key {key}", metadata.address);
            return Err(AdmissionError::new(RejectReason::UniqueKey, RejectionKind::AlreadyExists, reason));
        }
        self.check_storage(context)?;
        if self.undecided.len() >= context.state.config.undecided_max {
            let (waiting, address) = (self.undecided.len(), &metadata.address);
            let reason = format!(
                "{waiting} messages of queue {address} wait for its delivery handler; try again later"
            );
            return Err(AdmissionError::new(RejectReason::Handler, RejectionKind::Busy, reason));
        }
        Ok(())
    }

    /// Whether the queue's options leave room for the message.
    pub(super) fn check_room(&self, message: &Message) -> Result<(), AdmissionError> {
        let options = &self.metadata.options;
        let refuse = |reason, kind, text: String| Err(AdmissionError::new(reason, kind, text));
        let address = &self.metadata.address;
        if options.status == Status::Stopped {
            return refuse(
                RejectReason::Stopped,
                RejectionKind::QueueStopped,
                format!("queue {address} is stopped and takes no messages; give it another status first"),
            );
        }
        let immediate = matches!(options.status, Status::Broadcast | Status::Cache);
        if immediate && message.terms().delay.is_some_and(|delay| !delay.is_zero()) {
            let status = options.status.as_str();
            let reason = format!(
                "queue {address} has the status {status} and cannot delay messages; publish without a delay"
            );
            return refuse(RejectReason::Delay, RejectionKind::Unacceptable, reason);
        }
        let size = message.body().len() as u64;
        if options.message_size_limit > 0 && size > options.message_size_limit {
            let limit = options.message_size_limit;
            let reason = format!(
                "a body of {size} bytes exceeds the limit of queue {address} ({limit} bytes); send less or raise the limit"
            );
            return refuse(RejectReason::MessageSize, RejectionKind::LimitExceeded, reason);
        }
        let stored = (self.ready.len() + self.delayed.len() + self.undecided.len() + self.moving()) as u64;
        let limited = options.message_limit > 0 && options.status != Status::Cache;
        if limited && stored >= options.message_limit {
            return refuse(
                RejectReason::MessageLimit,
                RejectionKind::LimitExceeded,
                format!(
                    "queue {address} is full ({stored} messages); try again when consumers have caught up"
                ),
            );
        }
        Ok(())
    }

    /// A policy that promises to save messages rejects messages that it cannot save.
    pub(crate) fn check_storage(&self, context: &Context<'_>) -> Result<(), AdmissionError> {
        let refuse = |kind, text| Err(AdmissionError::new(RejectReason::Storage, kind, text));
        let metadata = &self.metadata;
        let asks = metadata.overrides.contains(Step::ReceivedFromProducer)
            || metadata.overrides.contains(Step::SaveMessage);
        let base = &context.state.spec(metadata.handler).base;
        if asks || !base.refuse_unsaved {
            return Ok(());
        }
        match &context.state.commits.storage {
            Storage::Ready => Ok(()),
            Storage::Absent => {
                let reason = format!(
                    "queue {} saves its messages (policy {}), and this broker keeps nothing on disk: start it \
                     with a data directory or choose another policy",
                    metadata.address, base.key
                );
                refuse(RejectionKind::Unacceptable, reason)
            }
            Storage::Refusing(why) => refuse(RejectionKind::Busy, not_saved(&metadata.address, why)),
        }
    }

    pub(crate) fn reject(&self, message: Message, rejection: Rejection, context: &mut Context<'_>) {
        context.reject_passed_on(&message, &rejection);
        if let Some(producer) = message.producer() {
            let to = producer.connection;
            let queue = (*self.metadata.address).clone();
            context.notify(to, Event::PublishRefused { queue, message, rejection });
        }
    }

    pub(crate) fn with_id(&self, message: Message, context: &mut Context<'_>) -> Message {
        if !message.id().is_empty() || !self.metadata.options.use_message_id {
            return message;
        }
        let id = context.state.next_id();
        message.with_id(id.as_bytes())
    }

    pub(crate) fn deadline(&self, now: Timestamp) -> Timestamp {
        match self.metadata.options.message_timeout {
            timeout if timeout.is_zero() => Timestamp::NEVER,
            timeout => now.after(timeout),
        }
    }

    /// When a published message expires: by the queue's timeout, which begins when its delay ends, or
    /// earlier if its own expiry is earlier.
    fn deadline_of(&self, message: &Message, now: Timestamp) -> Timestamp {
        if !message.properties().terms {
            return self.deadline(now);
        }
        let terms = message.terms();
        self.deadline(now.max(terms.not_before(now))).min(terms.expires(now))
    }

    /// Decides about a message, or asks the handler.
    pub(crate) fn consider(&mut self, index: usize, context: &mut Context<'_>) {
        let number = self.first_undecided + index as u64;
        let Admission { entry, decision_state, step_decision, .. } = &mut self.undecided[index];
        let step_request = StepRequest::new(Step::ReceivedFromProducer, Suspended::Admission(number));
        *step_decision = decide(&mut self.metadata, decision_state, entry, step_request, context);
    }

    /// Takes the answer about a message's admission.
    pub(crate) fn admission_answered(
        &mut self,
        number: u64,
        answer: Option<Decision>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let Some(index) = number.checked_sub(self.first_undecided).map(|index| index as usize) else {
            return;
        };
        let Some(admission) = self.undecided.get_mut(index) else { return };
        admission.decision_state.answered(&mut self.metadata, &mut admission.entry, answer, context);
        // A message whose producer waits is rejected instead. It must not be saved before, or a crash might bring it back.
        if answer.is_none() && !is_awaited(&admission.entry, admission.origin) {
            let policy = context.state.spec(self.metadata.handler).base;
            admission.decision_state.keep_safely(policy.decide(Step::ReceivedFromProducer, true));
        }
        self.consider(index, context);
        self.admit(members, context);
    }

    /// Admits messages from the front as long as they are decided.
    pub(crate) fn admit(&mut self, members: &Members, context: &mut Context<'_>) {
        while self.undecided.front().is_some_and(|admission| admission.step_decision.is_some()) {
            let Some(Admission { entry, step_decision: Some(step_decision), origin, .. }) =
                self.undecided.pop_front()
            else {
                unreachable!("the front was looked at")
            };
            self.first_undecided += 1;
            self.admit_one(entry, origin, step_decision, members, context);
        }
    }

    pub(crate) fn admit_one(
        &mut self,
        mut entry: Entry,
        origin: Option<CopyOrigin>,
        step_decision: StepDecision,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        if self.failed_to_save(&entry, origin, step_decision, context) {
            self.reject_id(&entry.message);
            let why = match &context.state.commits.storage {
                _ if self.metadata.overrides.contains(Step::SaveMessage) => {
                    let key = &context.state.spec(self.metadata.handler).key;
                    format!("save_message of delivery handler {key:?} failed or returned false").into()
                }
                Storage::Refusing(why) => why.clone(),
                Storage::Absent => "the broker has no data directory".into(),
                Storage::Ready => "the journal failed".into(),
            };
            let rejection = Rejection::new(RejectionKind::Busy, not_saved(&self.metadata.address, &why));
            match origin {
                Some(origin) => context.report_copy(origin, Err(rejection)),
                None => self.reject(entry.message.clone(), rejection, context),
            }
            return self.discard(entry, DropReason::Refused, context);
        }
        if step_decision.failed && owes_answer(&entry, origin, step_decision) {
            self.reject_id(&entry.message);
            let (spec, address) = (context.state.spec(self.metadata.handler), &self.metadata.address);
            let reason = format!(
                "delivery handler {:?} of queue {address} raised, returned no decision, or did not answer within {} s, \
                 so the broker did not take the message; the broker's log has the reason",
                spec.key,
                spec.timeout.as_secs_f64()
            );
            let rejection = Rejection::new(RejectionKind::Busy, reason);
            match origin {
                Some(origin) => context.report_copy(origin, Err(rejection)),
                None => self.reject(entry.message.clone(), rejection, context),
            }
            return self.discard(entry, DropReason::Refused, context);
        }
        if let Some(origin) = origin {
            context.report_copy(origin, self.admitted(step_decision.decision));
        }
        context.finish_passed_on(&entry.message);
        if self.admitted(step_decision.decision).is_ok() {
            self.accept_id(&entry, context);
        } else {
            self.reject_id(&entry.message);
        }
        self.acknowledge(&mut entry, step_decision, None, "none", context);
        if step_decision.decision.allow {
            self.announce(&entry, context);
            if step_decision.decision.put_back == PutBack::Start {
                self.rank_first(&entry, context);
            }
            self.store_at(entry, step_decision.decision.put_back, members, context);
        } else if step_decision.decision.put_back == PutBack::No {
            self.reject_admission(entry, context);
        } else {
            self.store_at(entry, step_decision.decision.put_back, members, context);
        }
    }

    /// Whether a decided message stays in the queue.
    fn admitted(&self, decision: Decision) -> Result<(), Rejection> {
        if decision.allow || decision.put_back != PutBack::No {
            return Ok(());
        }
        let reason = format!("the delivery handler of queue {} refused the message", self.metadata.address);
        Err(Rejection::new(RejectionKind::Unacceptable, reason))
    }

    /// Whether the policy promised to save the message and saving failed: then the message is rejected. So is one that a
    /// handler wanted to save and to confirm, if its producer waits for that.
    pub(crate) fn failed_to_save(
        &self,
        entry: &Entry,
        origin: Option<CopyOrigin>,
        step_decision: StepDecision,
        context: &Context<'_>,
    ) -> bool {
        let decision = step_decision.decision;
        let base = &context.state.spec(self.metadata.handler).base;
        if step_decision.failed && decision.save && !entry.saved {
            return base.refuse_unsaved;
        }
        if decision.acknowledge != Acknowledge::IfSaved || entry.saved {
            return false;
        }
        if step_decision.own {
            // A run of a schedule or a message of a downstream broker is sent again, unless the program itself could not save it.
            let is_sent_again =
                entry.message.ticket().is_some() && !self.metadata.overrides.contains(Step::SaveMessage);
            return decision.save && (is_sent_again || is_awaited(entry, origin));
        }
        base.refuse_unsaved
    }

    /// Records that a saved message precedes all others, also after a restart.
    fn rank_first(&self, entry: &Entry, context: &mut Context<'_>) {
        if entry.sequence.0 > 0 {
            let rank = -((context.state.commits.sequence.0 + 1) as i64);
            let progress = DeliveryProgress { rank, ..DeliveryProgress::default() };
            context.record(Record::Touch(entry.sequence, progress));
        }
    }

    /// A producer that waits is notified even if the handler did not ask for it; otherwise it would only see a timeout.
    pub(crate) fn reject_admission(&mut self, mut entry: Entry, context: &mut Context<'_>) {
        self.answer_producer(&mut entry, Some("refused"), None, true, context);
        self.discard(entry, DropReason::Refused, context);
    }

    pub(crate) fn announce(&self, entry: &Entry, context: &mut Context<'_>) {
        if !self.metadata.message_observers.is_empty() {
            context.observe(self.metadata.message_observers, Step::MessageProduced, || {
                ObservedSubject::Message {
                    queue: self.metadata.address.clone(),
                    status: self.metadata.options.status,
                    message: entry.message.clone(),
                    saved: entry.saved,
                }
            });
        }
        if self.watchers.is_empty() {
            return;
        }
        let notification = Arc::new(Notification {
            kind: EventKind::MessageProduced,
            channel: Some(self.metadata.address.channel.clone()),
            queue: Some(self.metadata.address.id),
            subject: Subject::Message {
                id: entry.message.id().into(),
                saved: entry.saved,
                producer: entry.message.producer().cloned(),
            },
        });
        for watcher in &self.watchers {
            context.notify(*watcher, Event::Notified(notification.clone()));
        }
    }

    /// Messages that wait for a handler to decide their admission.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &Entry> {
        self.undecided.iter().map(|admission| &admission.entry)
    }
}

fn not_saved(queue: &QueueAddress, why: &str) -> String {
    format!("queue {queue} could not save the message and rejected it: {why}; try again later")
}

/// Whether a client waits for a confirmation of the message, or of a topic's message of which this is a copy.
fn is_awaited(entry: &Entry, origin: Option<CopyOrigin>) -> bool {
    let by_producer = !entry.answered
        && entry.message.properties().pending_acknowledge
        && entry.message.producer().is_some();
    by_producer || origin.is_some()
}

/// Whether a client waits for a confirmation that this decision does not bring.
fn owes_answer(entry: &Entry, origin: Option<CopyOrigin>, step_decision: StepDecision) -> bool {
    let decision = step_decision.decision;
    decision.allow && decision.acknowledge == Acknowledge::None && is_awaited(entry, origin)
}
