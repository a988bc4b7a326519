//! One queue: what it is, how messages get in, how they return, and how they leave for good.
//!
//! How they are handed out is in `dispatch` (decided by a policy, at once) and `workflow` (decided step by
//! step by a handler); how deliveries end is in `settlement`.

pub(crate) mod delayed;
pub(crate) mod delivery;
pub(crate) mod dispatch;
pub(crate) mod loads;
pub(crate) mod members;
pub(crate) mod paging;
pub(crate) mod pulling;
pub(crate) mod ready;
pub(crate) mod settlement;
pub(crate) mod unique;
pub(crate) mod workflow;

use crate::context::{
    Awaiting, Context, DecisionState, ShardState, StepDecision, StepRequest, Storage, Suspended, decide,
    notify_dequeued,
};
use crate::history::LifecycleEvent;
use crate::model::client::Client;
use crate::model::command::{Acknowledgement, Clear, EventKind};
use crate::model::decision::{Acknowledge, PutBack, Step, Steps};
use crate::model::effect::{Effect, Event, Notification, Origin, Subject, Transfer};
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{ConnectionId, HandlerId, MessageNumber, QueueAddress, QueueRef, Sequence, Tag};
use crate::model::message::Message;
use crate::model::metadata::QueueMetadata;
use crate::model::options::{Durability, QueueChanges, QueueOptions, Status};
use crate::model::rate::TokenBucket;
use crate::model::record::{DeliveryProgress, Record};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{DropReason, QueueInformation, QueueStats};
use crate::model::time::Timestamp;
use crate::queue::delayed::Delayed;
use crate::queue::delivery::{Deliveries, Disposition, Released};
use crate::queue::members::{Consumer, ConsumerKey, Member, Members};
use crate::queue::pulling::Pulling;
use crate::queue::ready::{Ready, Taken};
use crate::queue::settlement::Settlement;
use crate::queue::unique::UniqueKeys;
use crate::queue::workflow::Flows;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

/// A message whose admission is not decided yet.
#[derive(Debug)]
struct Admission {
    entry: Entry,
    decision_state: DecisionState,
    verdict: Option<StepDecision>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) metadata: QueueMetadata,
    pub(crate) ready: Ready,
    /// Messages that were put back and wait for their time.
    pub(crate) delayed: Delayed,
    pub(crate) deliveries: Deliveries,
    pub(crate) flows: Flows,
    /// Ends that wait for a handler, by number.
    pub(crate) settling: HashMap<u64, Settlement>,
    /// The number of the last settlement; numbers are not used again, so late answers find nobody.
    pub(crate) settlements: u64,
    /// Messages are admitted in the order of their arrival: one that waits for its decision holds those behind.
    undecided: VecDeque<Admission>,
    /// The number of the first of `undecided`.
    first_undecided: u64,
    /// Index of the member that is next in round robin.
    pub(crate) cursor: usize,
    /// Everybody who consumes it, where it has subscriptions of its own; else those who joined the channel do.
    own: Option<Arc<Members>>,
    /// Who wants to know of each message produced.
    pub(crate) watchers: Vec<ConnectionId>,
    /// Pull requests that have not got everything yet.
    pub(crate) pulls: VecDeque<Pulling>,
    /// Messages that waited too long, until their bodies are here for whoever wants to see them.
    pub(crate) expiring: VecDeque<PagedOut>,
    /// Producers that wait to hear of messages whose bodies left memory, and they with them.
    pub(crate) debts: HashMap<Sequence, Arc<Client>>,
    /// Keys of messages of which there is one at a time.
    pub(crate) unique: UniqueKeys,
    /// The queue is in the shard's list of those with bodies that may leave memory.
    pub(crate) backlogged: bool,
    /// The queue is in the shard's list of work.
    pub(crate) scheduled: bool,
    /// The earliest moment for which the shard was told to look at this queue.
    armed: Timestamp,
    /// What was published, where that is limited and anything was.
    bucket: Option<Box<TokenBucket>>,
}

/// The steps between a message's leaving the ready list and the end of its hand-out.
const SENDING: [Step; 4] = [Step::BeginSend, Step::CanConsumerReceive, Step::ConsumerReceived, Step::EndSend];

impl Queue {
    pub(crate) fn new(
        address: QueueAddress,
        channel: usize,
        options: QueueOptions,
        state: &mut ShardState,
    ) -> Self {
        let queue_ref = QueueRef { channel, queue: address.id, serial: state.next_serial() };
        let seed = state.config.seed ^ queue_ref.serial;
        let mut queue = Self {
            metadata: QueueMetadata {
                address: Arc::new(address),
                queue_ref,
                options,
                handler: HandlerId(0),
                overrides: Steps::NONE,
                stats: QueueStats::default(),
            },
            ready: Ready::new(state.memory.clone()),
            delayed: Delayed::default(),
            deliveries: Deliveries::new(seed),
            flows: Flows::default(),
            settling: HashMap::default(),
            settlements: 0,
            undecided: VecDeque::new(),
            first_undecided: 0,
            cursor: 0,
            own: None,
            watchers: Vec::new(),
            pulls: VecDeque::new(),
            expiring: VecDeque::new(),
            debts: HashMap::default(),
            unique: UniqueKeys::default(),
            backlogged: false,
            scheduled: false,
            armed: Timestamp::NEVER,
            bucket: None,
        };
        queue.choose_handler(state);
        queue
    }

    /// Finds the handler that the options name; the server's if they name none.
    pub(crate) fn choose_handler(&mut self, state: &ShardState) {
        let named = self.metadata.options.delivery_handler.as_deref();
        let handler = named
            .and_then(|key| state.handler(key))
            .or_else(|| state.handler(&state.config.delivery_handler))
            .unwrap_or(HandlerId(0));
        self.metadata.handler = handler;
        self.metadata.overrides = state.spec(handler).overrides;
    }

    /// Whether hand-outs have to be asked about.
    pub(crate) fn asks_while_sending(&self, state: &ShardState) -> bool {
        SENDING.into_iter().any(|step| self.metadata.overrides.contains(step))
            || state.spec(self.metadata.handler).base.sent.save
    }

    pub(crate) fn information(&self) -> QueueInformation {
        let (high_priority, normal) = self.waiting();
        QueueInformation {
            queue: (*self.metadata.address).clone(),
            options: self.metadata.options.clone(),
            high_priority,
            normal,
            in_flight: self.deliveries.open() as u64,
            undecided: self.undecided.len() as u64,
            unsettled: (self.deliveries.messages() + self.expiring() + self.held_by_pulls()) as u64,
            memory_bytes: self.ready.bytes() + self.delayed.bytes() + self.deliveries.bytes(),
            stats: self.metadata.stats,
        }
    }

    /// Messages whose admission is not decided yet.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &Entry> {
        self.undecided.iter().map(|admission| &admission.entry)
    }

    /// Messages in the queue, those of high priority and the others; also those that wait for their time.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let ((high, normal), (high_delayed, normal_delayed)) = (self.ready.counts(), self.delayed.counts());
        (high + high_delayed, normal + normal_delayed)
    }

    // ---- Consumers ---------------------------------------------------------------------------------------

    /// Its own list of consumers, if it has one. Sharing it costs one count for each call into the queue, and only for
    /// queues that have it.
    pub(crate) fn own(&self) -> Option<Arc<Members>> {
        self.own.clone()
    }

    /// Subscriptions of its own, apart from those who joined the channel.
    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &Member> {
        let own = self.own.as_deref().map(Members::list).unwrap_or_default();
        own.iter().filter(|member| member.consumer.tag != Tag::CHANNEL)
    }

    /// Whether this subscription is there and has this name.
    pub(crate) fn has_subscription(&self, key: ConsumerKey, name: &[u8]) -> bool {
        self.subscriptions()
            .any(|member| member.consumer.key() == key && member.consumer.name.as_deref() == Some(name))
    }

    /// Somebody consumes this queue on terms of its own.
    pub(crate) fn subscribe(
        &mut self,
        consumer: Arc<Consumer>,
        channel: &Members,
        context: &mut Context<'_>,
    ) {
        let own = self.own.get_or_insert_with(|| Arc::new(channel.clone()));
        Arc::make_mut(own).join(consumer, context.now);
        self.schedule(context);
    }

    /// A subscription ends; what it has not settled goes back. `false` if there is none.
    pub(crate) fn unsubscribe(
        &mut self,
        consumer: ConnectionId,
        tag: Tag,
        context: &mut Context<'_>,
    ) -> bool {
        if !self.leave_own((consumer, tag)) {
            return false;
        }
        self.consumer_lost(consumer, Some(tag), context);
        self.schedule(context);
        true
    }

    /// All subscriptions of a connection end.
    pub(crate) fn forget_subscriber(&mut self, consumer: ConnectionId) {
        let tags: Vec<_> = self
            .subscriptions()
            .filter(|member| member.consumer.client.connection == consumer)
            .map(|member| member.consumer.tag)
            .collect();
        for tag in tags {
            self.leave_own((consumer, tag));
        }
    }

    /// Somebody joined the channel.
    pub(crate) fn joined(&mut self, client: &Arc<Client>, context: &mut Context<'_>) {
        if let Some(own) = &mut self.own {
            Arc::make_mut(own).join(Consumer::of_channel(client.clone()), context.now);
        }
        self.schedule(context);
    }

    /// Somebody left the channel, where it stood at `position`.
    pub(crate) fn left(&mut self, connection: ConnectionId, position: usize, context: &mut Context<'_>) {
        if self.own.is_some() {
            self.leave_own((connection, Tag::CHANNEL));
        } else if position < self.cursor {
            // The one behind the cursor moved up by one place.
            self.cursor -= 1;
        }
        self.schedule(context);
    }

    fn leave_own(&mut self, key: ConsumerKey) -> bool {
        let Some(own) = &mut self.own else { return false };
        let Some(position) = Arc::make_mut(own).leave(key) else { return false };
        if position < self.cursor {
            self.cursor -= 1;
        }
        if !own.has_tagged() {
            // From here on the channel's list says the same, in the same order.
            self.own = None;
        }
        true
    }

    /// The queue goes: its subscriptions end, and who has one is told.
    pub(crate) fn end_subscriptions(&mut self, context: &mut Context<'_>) {
        let Some(own) = self.own.take() else { return };
        for consumer in own.tagged() {
            let queue = (*self.metadata.address).clone();
            context.notify(consumer.client.connection, Event::SubscriptionEnded { queue, tag: consumer.tag });
        }
    }

    /// No message is in it, anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.delayed.is_empty()
            && self.deliveries.messages() == 0
            && self.undecided.is_empty()
            && self.settling.is_empty()
            && self.expiring.is_empty()
            && self.held_by_pulls() == 0
    }

    /// Messages whose waiting time is over, while their handler decides what becomes of them.
    fn expiring(&self) -> usize {
        self.settling.values().filter(|settlement| settlement.is_expiry()).count() + self.expiring.len()
    }

    // ---- In ----------------------------------------------------------------------------------------------

    /// A producer brings a message.
    pub(crate) fn publish(&mut self, message: Message, members: &Members, context: &mut Context<'_>) {
        if let Err(rejection) = self.admit_published(&message, context) {
            context.state.refused += 1;
            self.refuse(message, rejection, context);
            return;
        }
        let message = self.with_id(message, context);
        let entry = Entry::new(message, self.deadline(context.now));
        self.take(entry, members, context);
    }

    /// A copy of a message that was published elsewhere: it is decided about and saved as any other, but its producer
    /// does not know of it and hears nothing.
    pub(crate) fn publish_copy(&mut self, message: Message, members: &Members, context: &mut Context<'_>) {
        if self.admit_published(&message, context).is_err() {
            self.metadata.stats.dropped[DropReason::Limit as usize] += 1;
            return context.record_undeliverable(
                &self.metadata.address,
                message,
                LifecycleEvent::Produced,
                DropReason::Limit,
            );
        }
        let message = self.with_id(message, context);
        let entry = Entry { answered: true, ..Entry::new(message, self.deadline(context.now)) };
        self.take(entry, members, context);
    }

    /// A message that a router brings. Refused, nobody is told but the router. `answers`: its producer hears what becomes
    /// of it.
    pub(crate) fn publish_routed(
        &mut self,
        message: Message,
        answers: bool,
        members: &Members,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        self.admit_published(&message, context)?;
        let message = self.with_id(message, context);
        let entry = Entry { answered: !answers, ..Entry::new(message, self.deadline(context.now)) };
        self.take(entry, members, context);
        Ok(())
    }

    fn take(&mut self, mut entry: Entry, members: &Members, context: &mut Context<'_>) {
        self.unique.take(&entry.message);
        self.metadata.stats.received += 1;
        self.metadata.stats.last_received_ms = context.now.0;
        entry.number = context.number();
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Produced);
        let mut decision_state = DecisionState::default();
        if self.undecided.is_empty() && !self.metadata.overrides.contains(Step::ReceivedFromProducer) {
            // Nobody is ahead and, as a rule, nobody is asked: no need to queue up for a decision.
            let step_request =
                StepRequest::new(Step::ReceivedFromProducer, Suspended::Admission(self.first_undecided));
            if let Some(verdict) =
                decide(&mut self.metadata, &mut decision_state, &mut entry, step_request, context)
            {
                return self.admit_one(entry, verdict, members, context);
            }
            self.undecided.push_back(Admission { entry, decision_state, verdict: None });
            return;
        }
        self.undecided.push_back(Admission { entry, decision_state, verdict: None });
        self.consider(self.undecided.len() - 1, context);
        self.admit(members, context);
    }

    /// A message comes from another queue: nobody is asked, nobody is answered, only room counts. If it was
    /// saved there it is saved here, and only then may the other queue forget it.
    pub(crate) fn transfer(
        &mut self,
        message: Message,
        origin: Option<Origin>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let number = context.number();
        let mut entry = Entry { answered: true, number, ..Entry::new(message, self.deadline(context.now)) };
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Arrived);
        self.metadata.stats.received += 1;
        if self.check(&entry.message, context).is_err() {
            context.effects.extend(origin.map(Effect::Transferred));
            self.discard(entry, DropReason::Limit, context);
            return;
        }
        if let Some(origin) = origin.filter(|_| context.state.storage == Storage::Ready) {
            let (queue, message) = (self.metadata.address.clone(), entry.message.clone());
            let put = Record::Put { queue, message, received: context.now, number };
            entry.sequence = context.record(put).unwrap_or_default();
            entry.saved = true;
            self.metadata.stats.saved += 1;
            context.record_event(&self.metadata.address, &entry, LifecycleEvent::Saved);
            context.state.wait(Durability::Fsync, Awaiting::Transfer(origin));
        }
        self.store(entry, members, context);
    }

    /// A message that the journal had when the broker started. Messages come in the order of their places, and stay in
    /// the journal until they are wanted.
    pub(crate) fn restore(
        &mut self,
        mut paged_out: PagedOut,
        high: bool,
        not_before: Timestamp,
        context: &mut Context<'_>,
    ) {
        paged_out.deadline = self.deadline(context.now);
        self.metadata.stats.received += 1;
        if paged_out.number == MessageNumber(0) {
            paged_out.number = context.number();
        }
        context.record_paged_out_event(&self.metadata.address, &paged_out, LifecycleEvent::Restored);
        match self.metadata.options.status {
            Status::Stopped => {
                return self.discard_taken(Taken::PagedOut(paged_out), DropReason::Erased, context);
            }
            Status::Cache => self.replace_cached(context),
            _ if not_before > context.now => {
                return self.delay(Taken::PagedOut(paged_out), high, not_before, context);
            }
            _ => {}
        }
        self.arm(paged_out.deadline, context);
        self.ready.push_unread(paged_out, high);
        self.schedule(context);
    }

    /// Something newer takes the place of what a cache holds.
    fn replace_cached(&mut self, context: &mut Context<'_>) {
        for replaced in self.ready.clear(Clear { high_priority: true, normal: true }) {
            match replaced {
                Taken::InMemory(entry) => self.replace(entry, context),
                Taken::PagedOut(paged_out) => {
                    context.record_paged_out_event(
                        &self.metadata.address,
                        &paged_out,
                        LifecycleEvent::Replaced,
                    );
                    self.remove_unread(paged_out, context);
                }
            }
        }
    }

    /// Whether the queue takes what is published now, as far as that can be said before anybody is asked.
    pub(crate) fn would_take(&self, message: &Message, context: &Context<'_>) -> Result<(), Rejection> {
        self.check(message, context)?;
        let Some(rate) = self.metadata.options.publish_limit else { return Ok(()) };
        let retry = match TokenBucket::wait(self.bucket.as_deref(), rate, context.now) {
            Some(Duration::ZERO) => return Ok(()),
            Some(wait) => format!("retry after {:.3} s", wait.as_secs_f64()),
            None => "it takes nothing".into(),
        };
        let address = &self.metadata.address;
        let reason = format!("publish limit of queue {address} reached ({rate}); {retry}");
        Err(Rejection::new(RejectionKind::LimitExceeded, reason))
    }

    /// The same, and what is taken counts. Only what is published does: not what comes from another queue of this broker,
    /// or comes back.
    fn admit_published(&mut self, message: &Message, context: &Context<'_>) -> Result<(), Rejection> {
        self.would_take(message, context)?;
        if let Some(rate) = self.metadata.options.publish_limit {
            self.bucket.get_or_insert_with(|| Box::new(TokenBucket::new(rate))).take(rate, context.now);
        }
        Ok(())
    }

    fn check(&self, message: &Message, context: &Context<'_>) -> Result<(), Rejection> {
        let options = &self.metadata.options;
        let refuse = |kind, reason: String| Err(Rejection::new(kind, reason));
        let address = &self.metadata.address;
        if options.status == Status::Stopped {
            return refuse(
                RejectionKind::Unauthorized,
                format!("queue {address} is stopped and takes no messages; give it another status first"),
            );
        }
        let size = message.body().len() as u64;
        if options.message_size_limit > 0 && size > options.message_size_limit {
            let limit = options.message_size_limit;
            let reason = format!("a body of {size} octets is larger than queue {address} takes ({limit})");
            return refuse(RejectionKind::LimitExceeded, reason);
        }
        if let Some(key) = self.unique.conflict(message) {
            let key = String::from_utf8_lossy(key);
            let reason = format!("queue {address} has a message with the unique key {key} already");
            return refuse(RejectionKind::AlreadyExists, reason);
        }
        self.check_storage(context)?;
        let stored = (self.ready.len() + self.delayed.len() + self.undecided.len()) as u64;
        let limited = options.message_limit > 0 && options.status != Status::Cache;
        if limited && stored >= options.message_limit {
            return refuse(
                RejectionKind::LimitExceeded,
                format!("queue {address} is full ({stored} messages)"),
            );
        }
        if self.undecided.len() >= context.state.config.undecided_max {
            let waiting = self.undecided.len();
            let reason =
                format!("{waiting} messages of queue {address} wait for its handler; try again later");
            return refuse(RejectionKind::Busy, reason);
        }
        Ok(())
    }

    /// A policy that promises "saved" takes nothing that it could not save.
    fn check_storage(&self, context: &Context<'_>) -> Result<(), Rejection> {
        let metadata = &self.metadata;
        let asks = metadata.overrides.contains(Step::ReceivedFromProducer)
            || metadata.overrides.contains(Step::SaveMessage);
        let base = &context.state.spec(metadata.handler).base;
        if asks || !base.refuse_unsaved {
            return Ok(());
        }
        match &context.state.storage {
            Storage::Ready => Ok(()),
            Storage::Absent => {
                let reason = format!(
                    "queue {} saves its messages (policy {}), and this broker keeps nothing on disk: start it \
                     with a data directory or choose another policy",
                    metadata.address, base.key
                );
                Err(Rejection::new(RejectionKind::Unacceptable, reason))
            }
            Storage::Refusing(why) => {
                Err(Rejection::new(RejectionKind::Busy, not_saved(&metadata.address, why)))
            }
        }
    }

    fn refuse(&self, message: Message, rejection: Rejection, context: &mut Context<'_>) {
        context.reject_passed_on(&message, &rejection);
        if let Some(producer) = message.producer() {
            let to = producer.connection;
            let queue = (*self.metadata.address).clone();
            context.notify(to, Event::PublishRefused { queue, message, rejection });
        }
    }

    fn with_id(&self, message: Message, context: &mut Context<'_>) -> Message {
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

    /// Gets the verdict of an undecided message, or asks for it.
    fn consider(&mut self, index: usize, context: &mut Context<'_>) {
        let number = self.first_undecided + index as u64;
        let Admission { entry, decision_state, verdict } = &mut self.undecided[index];
        let step_request = StepRequest::new(Step::ReceivedFromProducer, Suspended::Admission(number));
        *verdict = decide(&mut self.metadata, decision_state, entry, step_request, context);
    }

    /// An answer about an undecided message came.
    pub(crate) fn admission_answered(
        &mut self,
        number: u64,
        answer: Option<crate::model::decision::Decision>,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        let Some(index) = number.checked_sub(self.first_undecided).map(|index| index as usize) else {
            return;
        };
        let Some(admission) = self.undecided.get_mut(index) else { return };
        admission.decision_state.answered(&mut self.metadata, &mut admission.entry, answer, context);
        self.consider(index, context);
        self.admit(members, context);
    }

    /// Admits from the front whatever is decided.
    fn admit(&mut self, members: &Members, context: &mut Context<'_>) {
        while self.undecided.front().is_some_and(|admission| admission.verdict.is_some()) {
            let Some(Admission { entry, verdict: Some(verdict), .. }) = self.undecided.pop_front() else {
                unreachable!("the front was looked at")
            };
            self.first_undecided += 1;
            self.admit_one(entry, verdict, members, context);
        }
    }

    fn admit_one(
        &mut self,
        mut entry: Entry,
        verdict: StepDecision,
        members: &Members,
        context: &mut Context<'_>,
    ) {
        if self.broke_promise(&entry, verdict, context) {
            let why = match &context.state.storage {
                Storage::Refusing(why) => why.clone(),
                Storage::Absent | Storage::Ready => "the journal failed".into(),
            };
            let rejection = Rejection::new(RejectionKind::Busy, not_saved(&self.metadata.address, &why));
            self.refuse(entry.message.clone(), rejection, context);
            return self.discard(entry, DropReason::Refused, context);
        }
        context.finish_passed_on(&entry.message);
        self.acknowledge(&mut entry, verdict, None, "none", context);
        if verdict.decision.allow {
            self.announce(&entry, context);
            self.store(entry, members, context);
        } else if verdict.decision.put_back == PutBack::No {
            self.refuse_admission(entry, context);
        } else {
            self.store_at(entry, verdict.decision.put_back, members, context);
        }
    }

    /// Whether a policy wanted the message saved and that failed: then it is not taken.
    fn broke_promise(&self, entry: &Entry, verdict: StepDecision, context: &Context<'_>) -> bool {
        verdict.decision.acknowledge == Acknowledge::IfSaved
            && !entry.saved
            && !verdict.own
            && context.state.spec(self.metadata.handler).base.refuse_unsaved
    }

    /// A producer that waits is told that its message went nowhere, even if the handler did not say so:
    /// otherwise it would learn it from a timeout.
    fn refuse_admission(&mut self, mut entry: Entry, context: &mut Context<'_>) {
        self.answer_producer(&mut entry, Some("refused"), None, true, context);
        self.discard(entry, DropReason::Refused, context);
    }

    fn announce(&self, entry: &Entry, context: &mut Context<'_>) {
        if self.watchers.is_empty() {
            return;
        }
        let occurrence = Arc::new(Notification {
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
            context.notify(*watcher, Event::Notified(occurrence.clone()));
        }
    }

    fn store(&mut self, entry: Entry, members: &Members, context: &mut Context<'_>) {
        self.store_at(entry, PutBack::End, members, context);
    }

    /// Puts a message where its queue's status wants it.
    fn store_at(&mut self, entry: Entry, position: PutBack, members: &Members, context: &mut Context<'_>) {
        match self.metadata.options.status {
            Status::Broadcast => self.broadcast(entry, members, context),
            Status::Stopped => self.discard(entry, DropReason::Erased, context),
            Status::Cache => {
                self.replace_cached(context);
                self.keep(entry, position, context);
            }
            Status::Push | Status::RoundRobin | Status::Pull | Status::Paused => {
                self.keep(entry, position, context)
            }
        }
    }

    fn keep(&mut self, entry: Entry, position: PutBack, context: &mut Context<'_>) {
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

    // ---- Back --------------------------------------------------------------------------------------------

    /// Returns a message to the queue, unless it was put back too often. It is not handed out before `not_before`.
    pub(crate) fn put_back(
        &mut self,
        mut entry: Entry,
        position: PutBack,
        not_before: Timestamp,
        context: &mut Context<'_>,
    ) {
        entry.requeues = entry.requeues.saturating_add(1);
        if entry.requeues > self.metadata.options.put_back_limit {
            self.bury(entry, DropReason::Limit, context);
            return;
        }
        if entry.deadline <= context.now {
            // It could wait no longer even before it was handed out.
            self.expired(entry, context);
            return;
        }
        match self.metadata.options.status {
            Status::Stopped => return self.discard(entry, DropReason::Erased, context),
            // The cache holds something newer by now; and what is not stored cannot return.
            Status::Cache if !self.ready.is_empty() => {
                return self.discard(entry, DropReason::Erased, context);
            }
            Status::Broadcast => return self.discard(entry, DropReason::NoConsumer, context),
            _ => {}
        }
        self.metadata.stats.put_back += 1;
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Requeued(position));
        if entry.sequence.0 > 0 {
            // Larger than all ranks so far, or smaller: as the sequence of this very record is new, so is it.
            let rank = (context.state.sequence.0 + 1) as i64;
            let rank = if position == PutBack::Start { -rank } else { rank };
            let (attempts, requeues) = (entry.attempts, entry.requeues);
            let not_before = if not_before > context.now { not_before } else { Timestamp(0) };
            context.record(Record::Touch(
                entry.sequence,
                DeliveryProgress { attempts, requeues, rank, not_before },
            ));
        }
        if not_before > context.now && self.metadata.options.status != Status::Cache {
            let high = entry.message.properties().high_priority;
            return self.delay(Taken::InMemory(entry), high, not_before, context);
        }
        self.keep(entry, position, context);
    }

    /// Keeps a message until its time.
    fn delay(&mut self, taken: Taken, high: bool, until: Timestamp, context: &mut Context<'_>) {
        self.delayed.insert(until, taken, high);
        self.arm(until, context);
    }

    /// Messages whose time has come join the others, behind them.
    fn end_delays(&mut self, context: &mut Context<'_>) {
        while let Some((taken, high)) = self.delayed.due(context.now) {
            match self.metadata.options.status {
                Status::Broadcast => self.discard_taken(taken, DropReason::NoConsumer, context),
                Status::Cache if !self.ready.is_empty() => {
                    self.discard_taken(taken, DropReason::Erased, context);
                }
                _ => match taken {
                    Taken::InMemory(entry) => self.keep(entry, PutBack::End, context),
                    Taken::PagedOut(paged_out) => {
                        self.arm(paged_out.deadline, context);
                        self.ready.push_unread(paged_out, high);
                        self.schedule(context);
                    }
                },
            }
        }
    }

    /// Moves a message that failed for good to the dead-letter queue, or drops it.
    pub(crate) fn bury(&mut self, mut entry: Entry, reason: DropReason, context: &mut Context<'_>) {
        let Some(to) = self.metadata.options.dead_letter.clone() else {
            self.discard(entry, reason, context);
            return;
        };
        let message = dead_letter(&entry, &self.metadata.address, &to, reason);
        self.metadata.stats.dead_lettered += 1;
        context.record_event(
            &self.metadata.address,
            &entry,
            LifecycleEvent::DeadLettered(reason, &Arc::new(to.clone())),
        );
        // Its record here stays until the other queue has it.
        let sequence = std::mem::take(&mut entry.sequence);
        let shard = context.state.config.shard;
        let origin = (sequence.0 > 0).then_some(Origin { shard, sequence });
        context.effects.push(Effect::Transfer(Transfer { to, message, origin }));
        self.remove(entry, context);
    }

    // ---- Out ---------------------------------------------------------------------------------------------

    /// A message is dropped, which is counted.
    pub(crate) fn discard(&mut self, entry: Entry, reason: DropReason, context: &mut Context<'_>) {
        self.metadata.stats.dropped[reason as usize] += 1;
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Dropped(reason));
        self.remove(entry, context);
    }

    /// A newer message takes this one's place in a cache, which is no drop.
    fn replace(&mut self, entry: Entry, context: &mut Context<'_>) {
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Replaced);
        self.remove(entry, context);
    }

    /// A message leaves for good.
    #[expect(clippy::needless_pass_by_value, reason = "taking it is what makes it the end")]
    pub(crate) fn remove(&mut self, entry: Entry, context: &mut Context<'_>) {
        self.metadata.stats.removed += 1;
        self.unique.release(&entry.message);
        context.record_end(&self.metadata.address, &entry);
        if entry.sequence.0 > 0 {
            context.record(Record::Settle(entry.sequence));
        }
        notify_dequeued(&self.metadata, &entry, context);
    }

    /// The last holder of a message let go.
    pub(crate) fn close(&mut self, Released { held, not_before }: Released, context: &mut Context<'_>) {
        if held.put_back != PutBack::No && (held.put_back_own || !held.acked) {
            self.put_back(held.entry, held.put_back, not_before, context);
        } else if held.acked {
            self.remove(held.entry, context);
        } else {
            match held.ending {
                Disposition::Done => self.remove(held.entry, context),
                Disposition::Refused => self.discard(held.entry, DropReason::Refused, context),
                Disposition::Failed => self.bury(held.entry, DropReason::Limit, context),
            }
        }
        // Whoever waits for acknowledgements may go on now.
        self.schedule(context);
    }

    /// Removes stored messages; returns how many there were.
    pub(crate) fn clear(&mut self, clear: Clear, context: &mut Context<'_>) -> u64 {
        let mut cleared = self.ready.clear(clear);
        cleared.extend(self.delayed.clear(clear));
        let count = cleared.len() as u64;
        for taken in cleared {
            self.discard_taken(taken, DropReason::Erased, context);
        }
        // A pull may have waited for what is gone now.
        self.schedule(context);
        count
    }

    /// Forgets everything: stored, undecided and handed out.
    pub(crate) fn erase(&mut self, context: &mut Context<'_>) {
        self.clear(Clear { high_priority: true, normal: true }, context);
        for mut admission in std::mem::take(&mut self.undecided) {
            self.first_undecided += 1;
            context.finish_passed_on(&admission.entry.message);
            self.answer_producer(&mut admission.entry, Some("erased"), None, true, context);
            self.discard(admission.entry, DropReason::Erased, context);
        }
        self.flows.forget();
        self.end_pulls(context);
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

    // ---- Telling the producer ----------------------------------------------------------------------------

    /// Carries out the acknowledge part of a verdict.
    pub(crate) fn acknowledge(
        &self,
        entry: &mut Entry,
        verdict: StepDecision,
        relayed: Option<(Acknowledgement, Box<str>)>,
        reason: &str,
        context: &mut Context<'_>,
    ) {
        let negative = match verdict.decision.acknowledge {
            Acknowledge::None => return,
            Acknowledge::IfSaved if !entry.saved => return,
            Acknowledge::IfSaved | Acknowledge::Always => None,
            Acknowledge::Negative => Some(reason),
        };
        self.answer_producer(entry, negative, relayed, !verdict.own, context);
    }

    /// Tells a message's producer its fate, once. `if_asked`: only a producer that asked for it.
    fn answer_producer(
        &self,
        entry: &mut Entry,
        negative: Option<&str>,
        relayed: Option<(Acknowledgement, Box<str>)>,
        if_asked: bool,
        context: &mut Context<'_>,
    ) {
        if entry.answered || (if_asked && !entry.message.properties().pending_acknowledge) {
            return;
        }
        let Some(producer) = entry.message.producer() else { return };
        entry.answered = true;
        let hidden = self.metadata.options.hide_client_names;
        // A consumer's word is relayed only if it says what was decided.
        let relayed = relayed
            .filter(|(word, _)| word.refusal.is_some() == negative.is_some())
            .map(|(word, consumer)| Box::new((word, (!hidden).then_some(consumer))));
        let to = producer.connection;
        let event = Event::Acknowledged {
            queue: self.metadata.address.clone(),
            message: entry.message.clone(),
            negative: negative.map(Into::into),
            relayed,
        };
        context.notify(to, event);
    }

    // ---- Options and time --------------------------------------------------------------------------------

    /// Changes options, the status among them.
    pub(crate) fn update(&mut self, changes: &QueueChanges, context: &mut Context<'_>) {
        let before = self.metadata.options.status;
        changes.apply_to(&mut self.metadata.options);
        self.choose_handler(context.state);
        let status = self.metadata.options.status;
        match status {
            _ if status == before => {}
            Status::Stopped => self.erase(context),
            Status::Cache => self.keep_latest(context),
            _ => {}
        }
        self.schedule(context);
    }

    fn keep_latest(&mut self, context: &mut Context<'_>) {
        for taken in self.ready.keep_newest() {
            self.discard_taken(taken, DropReason::Erased, context);
        }
    }

    /// Puts the queue on the shard's list of work, if it is not there.
    pub(crate) fn schedule(&mut self, context: &mut Context<'_>) {
        if !self.scheduled && (!self.ready.is_empty() || !self.pulls.is_empty()) {
            self.scheduled = true;
            context.state.work.push_back(self.metadata.queue_ref);
        }
    }

    /// Makes sure that the shard looks at this queue at `deadline` or before.
    pub(crate) fn arm(&mut self, deadline: Timestamp, context: &mut Context<'_>) {
        if deadline < self.armed {
            context.state.timers.remove(&(self.armed, self.metadata.queue_ref));
            context.state.timers.insert((deadline, self.metadata.queue_ref));
            self.armed = deadline;
        }
    }

    /// The moment for which this queue was armed has come.
    pub(crate) fn timeout(&mut self, context: &mut Context<'_>) {
        self.armed = Timestamp::NEVER;
        self.end_delays(context);
        self.expire(context);
        self.time_out_deliveries(context);
        let next = self.ready.next_deadline().min(self.deliveries.next_deadline()).min(self.delayed.next());
        self.arm(next, context);
    }

    /// The moment it is armed for, to be taken off the list when the queue goes.
    pub(crate) fn armed(&self) -> Timestamp {
        self.armed
    }
}

fn not_saved(queue: &QueueAddress, why: &str) -> String {
    format!("queue {queue} could not save the message and did not take it: {why}; try again later")
}

/// The message as it arrives in the dead-letter queue: its own headers, and where it came from and why.
fn dead_letter(entry: &Entry, from: &QueueAddress, to: &QueueAddress, reason: DropReason) -> Message {
    let message = &entry.message;
    let mut headers = message.headers().to_vec();
    let told = format!(
        "Dead-Letter-Reason:{}\r\nDead-Letter-Queue:{from}\r\nDead-Letter-Attempts:{}\r\n",
        reason.as_str(),
        entry.attempts
    );
    // A header block cannot grow beyond 65,535 octets; a full one keeps what its producer said.
    if headers.len() + told.len() <= usize::from(u16::MAX) {
        headers.extend_from_slice(told.as_bytes());
    }
    let properties = crate::model::message::Properties {
        content_type: to.id,
        pending_acknowledge: false,
        pending_response: false,
        // Here its key says nothing; two that failed are two.
        unique: false,
        ..message.properties()
    };
    Message::from_parts(message.id(), &headers, message.body(), properties, message.producer().cloned())
}
