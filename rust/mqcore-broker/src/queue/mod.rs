//! One queue.
//!
//! Messages arrive in `admission` and are stored, requeued and removed in `requeue`. Policies deliver
//! them at once in `dispatch`; handlers that decide step by step deliver them in `workflow`. Deliveries
//! end in `settlement`.

pub(crate) mod admission;
pub(crate) mod admission_error;
pub(crate) mod answers;
pub(crate) mod arriving;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod delayed;
pub(crate) mod delivery;
pub(crate) mod dispatch;
pub(crate) mod flows;
pub(crate) mod levels;
pub(crate) mod list;
pub(crate) mod loads;
pub(crate) mod members;
mod memory_limit;
pub(crate) mod moves;
pub(crate) mod moving;
pub(crate) mod outcome;
pub(crate) mod paging;
pub(crate) mod prefetched;
pub(crate) mod pulling;
pub(crate) mod pulls;
pub(crate) mod ready;
pub(crate) mod recent;
pub(crate) mod requeue;
pub(crate) mod settlement;
pub(crate) mod transferred;
pub(crate) mod unique;
pub(crate) mod workflow;

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::context::decide::{DecisionState, StepDecision};
use crate::context::questions::Suspended;
use crate::context::state::{Schedule, ShardState};
use crate::model::client::Client;
use crate::model::decision::{Step, Steps};
use crate::model::effect::CopyOrigin;
use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{ConnectionId, HandlerId, QueueAddress, QueueRef, Sequence};
use crate::model::metadata::QueueMetadata;
use crate::model::observation::Observers;
use crate::model::options::{QueueOptions, Status};
use crate::model::rate::TokenBucket;
use crate::model::stats::{DropReason, QueueInformation, QueueStats};
use crate::model::time::Timestamp;
use crate::queue::delayed::Delayed;
use crate::queue::delivery::Deliveries;
use crate::queue::flows::{FlowSlot, Flows};
use crate::queue::members::{FreeMembers, Members};
use crate::queue::moves::Moves;
use crate::queue::outcome::Settlement;
use crate::queue::pulls::Pulling;
use crate::queue::ready::Ready;
use crate::queue::recent::RecentIds;
use crate::queue::unique::UniqueKeys;

/// A message that waits for a handler to decide its admission.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) entry: Entry,
    pub(crate) decision_state: DecisionState,
    pub(crate) step_decision: Option<StepDecision>,
    /// The origin of a copy whose producer waits for an answer.
    pub(crate) origin: Option<CopyOrigin>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) metadata: QueueMetadata,
    pub(crate) ready: Ready,
    /// The record of the latest saved message of a cache, if an unsaved message has replaced it. It stays until a saved
    /// message follows, so that a restart finds the latest saved message. 0 if there is none.
    pub(crate) retained: Sequence,
    /// Requeued messages that wait for their time.
    pub(crate) delayed: Delayed,
    pub(crate) deliveries: Deliveries,
    pub(crate) flows: Flows,
    /// Settlements that wait for a handler, by number.
    pub(crate) settling: HashMap<u64, Settlement>,
    /// The number of the last settlement. Numbers are not reused, so late answers are ignored.
    pub(crate) settlements: u64,
    /// Messages in order of arrival: one that waits for its decision holds back those behind it.
    pub(crate) undecided: VecDeque<Admission>,
    /// The number of the first of `undecided`.
    pub(crate) first_undecided: u64,
    /// Index of the next member in round robin.
    pub(crate) cursor: usize,
    /// All consumers if the queue has subscriptions; otherwise the members of the channel are its
    /// consumers.
    pub(crate) own: Option<Arc<Members>>,
    /// The consumers that are not too slow, while the queue broadcasts and connections are congested.
    pub(crate) free: Option<Box<FreeMembers>>,
    /// Subscribers of the event "message produced".
    pub(crate) watchers: Vec<ConnectionId>,
    /// Pulls that are not complete.
    pub(crate) pulls: VecDeque<Pulling>,
    /// Messages that move from or to this queue.
    pub(crate) moves: Option<Box<Moves>>,
    /// Expired messages that wait for their bodies, because a handler or producer needs them.
    pub(crate) expiring: VecDeque<PagedOut>,
    /// Producers that wait for the confirmation of a paged-out message.
    pub(crate) waiting_producers: HashMap<Sequence, Arc<Client>>,
    /// Unique keys of its messages.
    pub(crate) unique: UniqueKeys,
    /// Ids of recent messages, if the queue recognizes duplicates.
    pub(crate) recent: Option<Box<RecentIds>>,
    /// Whether the queue is in the shard's list of queues with bodies that may leave memory.
    pub(crate) backlogged: bool,
    /// Whether the queue is in the shard's list of work.
    pub(crate) scheduled: bool,
    /// The time of the queue's timer in the shard.
    pub(crate) armed: Timestamp,
    /// The state of the rate limit, once something was published.
    pub(crate) bucket: Option<Box<TokenBucket>>,
}

/// The steps of a delivery.
const SENDING: [Step; 4] = [Step::BeginSend, Step::CanConsumerReceive, Step::ConsumerReceived, Step::EndSend];

impl Queue {
    pub(crate) fn new(
        address: QueueAddress,
        channel: usize,
        options: QueueOptions,
        state: &mut ShardState,
    ) -> Box<Self> {
        let queue_ref = QueueRef { channel, queue: address.id, serial: state.next_serial() };
        let seed = state.config.seed ^ queue_ref.serial;
        let mut queue = Box::new(Self {
            metadata: QueueMetadata {
                address: Arc::new(address),
                queue_ref,
                options,
                options_lost: false,
                handler: HandlerId(0),
                missing_handler: None,
                overrides: Steps::NONE,
                message_observers: Observers::default(),
                policy_saves: false,
                stats: QueueStats::default(),
                processed_in: None,
            },
            ready: Ready::new(state.paging.memory.clone()),
            retained: Sequence(0),
            delayed: Delayed::default(),
            deliveries: Deliveries::new(seed),
            flows: Flows::default(),
            settling: HashMap::default(),
            settlements: 0,
            undecided: VecDeque::new(),
            first_undecided: 0,
            cursor: 0,
            own: None,
            free: None,
            watchers: Vec::new(),
            pulls: VecDeque::new(),
            moves: None,
            expiring: VecDeque::new(),
            waiting_producers: HashMap::default(),
            unique: UniqueKeys::default(),
            recent: None,
            backlogged: false,
            scheduled: false,
            armed: Timestamp::NEVER,
            bucket: None,
        });
        queue.choose_handler(state);
        queue
    }

    /// Finds the handler in the options, or the server's default handler. A key under which no handler is
    /// registered stops the queue until there is one.
    pub(crate) fn choose_handler(&mut self, state: &mut ShardState) {
        let named = self.metadata.options.delivery_handler.as_deref();
        let key = named.unwrap_or(&state.config.delivery_handler);
        let found = state.handler(key).filter(|found| state.spec(*found).is_for_queues());
        self.metadata.missing_handler = if found.is_some() { None } else { Some(key.into()) };
        if let Some(key) = &self.metadata.missing_handler {
            state.without_handler.insert(Arc::clone(&self.metadata.address), key.clone());
        } else {
            state.without_handler.remove(&self.metadata.address);
        }
        let handler = found.unwrap_or(HandlerId(0));
        self.metadata.handler = handler;
        let spec = state.spec(handler);
        self.metadata.overrides = if found.is_some() { spec.overrides } else { Steps::NONE };
        self.metadata.policy_saves = spec.base.received.save;
    }

    /// The message that waits for the decision about its admission or its delivery.
    pub(crate) fn suspended_entry(&mut self, suspended: Suspended) -> Option<&mut Entry> {
        match suspended {
            Suspended::Admission(number) => {
                let index = number.checked_sub(self.first_undecided)?;
                self.undecided.get_mut(index as usize).map(|admission| &mut admission.entry)
            }
            Suspended::Flow(number) => match self.flows.slot(number)? {
                FlowSlot::Parked(flow) => Some(&mut self.deliveries.get_mut(flow.held).entry),
                _ => None,
            },
            _ => None,
        }
    }

    /// Chooses the handler once more after one was registered, and continues if the queue waited for it.
    pub(crate) fn handler_registered(&mut self, state: &mut ShardState) {
        let waited = self.metadata.missing_handler.is_some();
        self.choose_handler(state);
        if waited && self.metadata.missing_handler.is_none() {
            self.schedule_on(&mut state.schedule);
            self.arm_on(self.next_deadline(), &mut state.schedule);
        }
    }

    /// Whether deliveries need a handler's decisions or a save.
    pub(crate) fn asks_while_sending(&self, state: &ShardState) -> bool {
        SENDING.into_iter().any(|step| self.metadata.overrides.contains(step))
            || state.spec(self.metadata.handler).base.sent.save
    }

    pub(crate) fn information(&self, of_channel: &Members) -> QueueInformation {
        let (high_priority, normal) = self.waiting();
        QueueInformation {
            queue: (*self.metadata.address).clone(),
            options: self.metadata.options.clone(),
            missing_handler: self.metadata.missing_handler.clone(),
            high_priority,
            normal,
            consumers: self.own.as_deref().unwrap_or(of_channel).len() as u32,
            delayed: self.delayed.len() as u64,
            next_attempt_ms: if self.delayed.is_empty() { 0 } else { self.delayed.next().0 },
            in_flight: self.deliveries.open() as u64,
            undecided: self.undecided.len() as u64,
            unsettled: (self.deliveries.messages() - self.flows.copies
                + self.expiring()
                + self.held_by_pulls()
                + self.moving()) as u64,
            oldest_ms: self.ready.oldest().map_or(0, |at| at.0),
            memory_bytes: self.memory_bytes(),
            stats: self.metadata.stats,
            processed_in: self.metadata.processed_in.clone(),
        }
    }

    /// Bytes of stored and unsettled messages.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.ready.bytes() + self.delayed.bytes() + self.deliveries.bytes()
    }

    /// Waiting messages of high and of normal priority, including delayed ones.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let ((high, normal), (high_delayed, normal_delayed)) = (self.ready.counts(), self.delayed.counts());
        (high + high_delayed, normal + normal_delayed)
    }

    /// Whether the queue has no messages in any state.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.delayed.is_empty()
            && self.deliveries.messages() == 0
            && self.undecided.is_empty()
            && self.settling.is_empty()
            && self.expiring.is_empty()
            && self.held_by_pulls() == 0
            && self.moving() == 0
    }

    /// Expired messages that wait for a handler's decision.
    fn expiring(&self) -> usize {
        self.settling.values().filter(|settlement| settlement.is_expiry()).count() + self.expiring.len()
    }

    /// Changes options, including the status.
    pub(crate) fn set_options(&mut self, options: QueueOptions, context: &mut Context<'_>) {
        let before = self.metadata.options.status;
        self.metadata.options = options;
        self.metadata.options_lost = false;
        self.choose_handler(context.state);
        if !self.remembers_ids() {
            self.forget_ids(context);
        }
        let status = self.metadata.options.status;
        if status != before {
            self.settle_retained(context);
        }
        match status {
            _ if status == before => {}
            Status::Stopped => self.erase(context),
            Status::Cache => self.keep_latest(context),
            _ => {}
        }
        self.arm(self.next_deadline(), context);
        self.schedule(context);
    }

    fn keep_latest(&mut self, context: &mut Context<'_>) {
        for taken in self.ready.keep_newest() {
            self.discard_taken(taken, DropReason::Erased, context);
        }
    }

    /// Adds the queue to the shard's list of work.
    pub(crate) fn schedule(&mut self, context: &mut Context<'_>) {
        self.schedule_on(&mut context.state.schedule);
    }

    fn schedule_on(&mut self, schedule: &mut Schedule) {
        if !self.scheduled && (!self.ready.is_empty() || !self.pulls.is_empty() || self.has_moves()) {
            self.scheduled = true;
            schedule.work.push_back(self.metadata.queue_ref);
        }
    }

    /// Makes the shard call [`Queue::timeout`] at `deadline` or earlier.
    pub(crate) fn arm(&mut self, deadline: Timestamp, context: &mut Context<'_>) {
        self.arm_on(deadline, &mut context.state.schedule);
    }

    fn arm_on(&mut self, deadline: Timestamp, schedule: &mut Schedule) {
        if deadline < self.armed {
            schedule.timers.remove(&(self.armed, self.metadata.queue_ref));
            schedule.timers.insert((deadline, self.metadata.queue_ref));
            self.armed = deadline;
        }
    }

    /// The time of the queue's timer has come.
    pub(crate) fn timeout(&mut self, context: &mut Context<'_>) {
        self.armed = Timestamp::NEVER;
        self.end_delays(context);
        if self.metadata.missing_handler.is_none() {
            self.expire(context);
        }
        self.time_out_deliveries(context);
        self.forget_old_ids(context);
        self.arm(self.next_deadline(), context);
    }

    /// When there is something to do. Messages do not expire while their handler is missing, because it
    /// decides about them.
    fn next_deadline(&self) -> Timestamp {
        let waits = self.metadata.missing_handler.is_some();
        let expiry = if waits { Timestamp::NEVER } else { self.ready.next_deadline() };
        let waiting = expiry.min(self.deliveries.next_deadline()).min(self.delayed.next());
        waiting.min(self.next_forgotten_id())
    }

    /// The time of the queue's timer, to remove when the queue is removed.
    pub(crate) fn armed(&self) -> Timestamp {
        self.armed
    }
}
