//! Delivery: to which consumers, in which order, how much at a time. This file delivers what a policy
//! decides at once; queues whose handler decides sending steps itself use `workflow`.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::context::Context;
use crate::context::decide::StepDecision;
use crate::context::state::ShardState;
use crate::history::LifecycleEvent;
use crate::model::client::Client;
use crate::model::decision::Step;
use crate::model::effect::{Deliver, Effect, Event, Recipients};
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, Tag};
use crate::model::message::Message;
use crate::model::options::Status;
use crate::model::record::{DeliveryProgress, Record};
use crate::model::stats::{DeliveryBlock, DropReason};
use crate::model::subscription::{ReservedSlot, Settling};
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::flows::{FLOWS_MAX, FlowTarget, PullPosition};
use crate::queue::members::{Consumer, ConsumerKey, FreeMembers, Member, Members};

/// The cost of a message toward the budget of a call: one, plus one for each 512 bytes, so that the effects of a call
/// stay small even if its messages are not.
fn cost(entry: &Entry) -> usize {
    1 + entry.message.body().len() / 512
}

/// How a message is delivered.
#[derive(Debug, Default)]
struct DeliveryTerms {
    tag: Tag,
    name: Option<Arc<[u8]>>,
    acknowledge: bool,
    /// Whether other consumers got it in this attempt.
    is_sent: bool,
    /// Whether its consumers joined for the queue.
    by_queue: bool,
}

/// An attempt to deliver a message.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// Whether it was never delivered before.
    first: bool,
    /// From 1.
    number: u16,
    /// How often it was requeued before.
    requeues: u16,
}

impl Queue {
    /// Delivers stored messages until the budget is used up or no consumer can take more. Reduces
    /// `budget`; returns true if there is more to deliver at once.
    pub(crate) fn work(&mut self, members: &Members, budget: &mut usize, context: &mut Context<'_>) -> bool {
        if !self.pulls.is_empty() {
            self.continue_pulls(members, context);
        }
        if self.has_moves() {
            self.continue_moves(context);
        }
        let asks = self.asks_while_sending(context.state);
        while *budget > 0 {
            if self.delivery_block(members, context.state).is_some() {
                return false;
            }
            let Some(entry) = self.next(false, context) else { return false };
            if entry.deadline <= context.now {
                self.expired(entry, context);
                continue;
            }
            *budget = budget.saturating_sub(cost(&entry));
            if asks || !self.flows.is_empty() {
                let mode = if self.metadata.options.status == Status::RoundRobin {
                    FlowTarget::One
                } else {
                    FlowTarget::All
                };
                self.start_flow(entry, mode, members, context);
            } else if let Some(entry) = self.offer(entry, members, context) {
                self.ready.push_front(entry);
                return false;
            }
        }
        !self.ready.is_empty()
    }

    /// Why the next stored message cannot be delivered now; `None` if it can.
    #[inline]
    pub(crate) fn delivery_block(&self, members: &Members, state: &ShardState) -> Option<DeliveryBlock> {
        let options = &self.metadata.options;
        if self.metadata.missing_handler.is_some() {
            return Some(DeliveryBlock::MissingHandler);
        }
        match options.status {
            Status::Push | Status::RoundRobin | Status::Broadcast => {}
            Status::Paused | Status::Stopped => return Some(DeliveryBlock::Paused),
            Status::Pull | Status::Cache => return Some(DeliveryBlock::NotPulled),
        }
        if members.is_empty() {
            return Some(DeliveryBlock::NoConsumers);
        }
        if self.flows.len() >= FLOWS_MAX {
            return Some(DeliveryBlock::HandlerBusy);
        }
        let waits = options.wait_for_acknowledge && options.request_acknowledge;
        if waits && (self.deliveries.messages() > 0 || !self.settling.is_empty()) {
            return Some(DeliveryBlock::AwaitsAcknowledgement);
        }
        if members.has_windows() && !self.has_room(members) {
            return Some(DeliveryBlock::PrefetchReached);
        }
        let congested = &state.congestion.since;
        if congested.is_empty() || options.status == Status::Broadcast {
            return None;
        }
        let free = |connection: &ConnectionId| !congested.contains_key(connection);
        let has_free = if self.gives_to_one() {
            members.connections().iter().any(free)
        } else {
            // All consumers get every message, so the slowest one holds back the others; if it stays
            // slow for too long, it is closed.
            members.connections().iter().all(free)
        };
        (!has_free).then_some(DeliveryBlock::ConsumersCongested)
    }

    /// Consumers that cannot take another message now, at most `max`.
    pub(crate) fn blocking_consumers(
        &self,
        members: &Members,
        state: &ShardState,
        max: usize,
    ) -> Vec<Arc<Client>> {
        let consumers = members.list().iter().map(|member| &member.consumer);
        let is_blocking = |consumer: &&Arc<Consumer>| {
            !self.deliveries.has_room(consumer)
                || state.congestion.since.contains_key(&consumer.client.connection)
        };
        consumers.filter(is_blocking).take(max).map(|consumer| Arc::clone(&consumer.client)).collect()
    }

    /// Whether the windows allow one more delivery: to one consumer, or to all of them if all get the
    /// message.
    fn has_room(&self, members: &Members) -> bool {
        let mut consumers = members.list().iter().map(|member| &member.consumer);
        if !self.flows.is_empty() {
            // A message about which a handler decides may be in no window yet, so each takes a place.
            let room = consumers.map(|consumer| self.deliveries.room(consumer) as usize);
            let room = if self.gives_to_one() {
                room.fold(0, usize::saturating_add)
            } else {
                room.min().unwrap_or(0)
            };
            return room > self.flows.len();
        }
        if self.gives_to_one() {
            consumers.any(|consumer| self.deliveries.has_room(consumer))
        } else {
            consumers.all(|consumer| self.deliveries.has_room(consumer))
        }
    }

    fn gives_to_one(&self) -> bool {
        self.metadata.options.status == Status::RoundRobin || self.metadata.options.only_first_acquirer
    }

    /// Delivers a message to its consumers. Returns it if there is none.
    fn offer(&mut self, entry: Entry, members: &Members, context: &mut Context<'_>) -> Option<Entry> {
        if self.gives_to_one() {
            let Some((position, slot)) = self.choose(members, &[], context) else { return Some(entry) };
            self.send(entry, &members.list()[position].consumer, context);
            if let Some(slot) = slot {
                slot.spend();
            }
        } else {
            self.send_to_all(entry, members, context);
        }
        None
    }

    /// The next free consumer in round robin, or the first free one. `refusers` are passed over.
    pub(crate) fn choose(
        &mut self,
        members: &Members,
        refusers: &[ConsumerKey],
        context: &Context<'_>,
    ) -> Option<(usize, Option<ReservedSlot>)> {
        if members.has_slots() {
            return self.choose_by_weight(members, refusers, context);
        }
        let count = members.len();
        let first = if self.metadata.options.status == Status::RoundRobin { self.cursor } else { 0 };
        let congested = &context.state.congestion.since;
        let position = (0..count)
            .map(|step| (first + step) % count)
            .filter(|position| !congested.contains_key(&members.connections()[*position]))
            .filter(|position| {
                refusers.is_empty() || !refusers.contains(&members.list()[*position].consumer.key())
            })
            .find(|position| {
                !members.has_windows() || self.deliveries.has_room(&members.list()[*position].consumer)
            })?;
        self.cursor = (position + 1) % count;
        Some((position, None))
    }

    /// The free consumer with the largest weight; among equals the one that has waited longest. If
    /// another shard takes its slot in the meantime, the next best.
    fn choose_by_weight(
        &self,
        members: &Members,
        refusers: &[ConsumerKey],
        context: &Context<'_>,
    ) -> Option<(usize, Option<ReservedSlot>)> {
        let congested = &context.state.congestion.since;
        loop {
            let free = members.list().iter().enumerate().filter(|(_, member)| {
                let consumer = &member.consumer;
                !congested.contains_key(&consumer.client.connection)
                    && self.deliveries.has_room(consumer)
                    && !refusers.contains(&consumer.key())
            });
            let rank = |(_, member): &(usize, &Member)| {
                let terms = &member.consumer.terms;
                let waited = Reverse(terms.slots.as_ref().map_or(0, |slots| slots.used()));
                (terms.weight, waited)
            };
            // The first of equals; `max_by_key` takes the last.
            let (position, member) = free.rev().max_by_key(rank)?;
            match &member.consumer.terms.slots {
                None => return Some((position, None)),
                Some(slots) => {
                    if let Some(slot) = slots.take() {
                        return Some((position, Some(slot)));
                    }
                }
            }
        }
    }

    fn send_to_all(&mut self, mut entry: Entry, members: &Members, context: &mut Context<'_>) {
        let options = &self.metadata.options;
        let is_repeated = entry.attempts > 0;
        if options.request_acknowledge || members.has_tagged() || context.records_events() || is_repeated {
            let consumers: Vec<_> = members.list().iter().map(|member| member.consumer.clone()).collect();
            return self.send_to(entry, members.untagged(), &consumers, context);
        }
        let to = if members.len() == 1 {
            Recipients::One(members.connections()[0])
        } else {
            Recipients::Many(members.untagged().clone())
        };
        // Nothing settles it, so it leaves the queue now, and its only delivery gets it without another reference.
        let terms = DeliveryTerms::default();
        let attempt = self.begin_attempt(&mut entry, &to, &terms, context);
        self.acknowledge(&mut entry, self.decision_after_sending(context), None, "none", context);
        self.note_removed(&entry, context);
        let deliver = self.assemble(entry.message, attempt, to, terms);
        context.effects.push(Effect::Deliver(deliver));
    }

    /// The policy's decision when a message was sent to all its consumers.
    fn decision_after_sending(&self, context: &Context<'_>) -> StepDecision {
        StepDecision::of_policy(context.state.spec(self.metadata.handler).base.decide(Step::EndSend, true))
    }

    /// Delivers a message to `consumers`; those without a tag have the connections `untagged`.
    fn send_to(
        &mut self,
        mut entry: Entry,
        untagged: &Arc<[ConnectionId]>,
        consumers: &[Arc<Consumer>],
        context: &mut Context<'_>,
    ) {
        match untagged.len() {
            0 => {}
            _ if entry.attempts > 0 && consumers.iter().any(|consumer| consumer.by_queue) => {
                self.deliver_repeated(&mut entry, consumers, context);
            }
            1 => self.deliver(&mut entry, Recipients::One(untagged[0]), context),
            _ => self.deliver(&mut entry, Recipients::Many(untagged.clone()), context),
        }
        let mut is_sent = !untagged.is_empty();
        for consumer in consumers.iter().filter(|consumer| consumer.tag != Tag::CHANNEL) {
            self.deliver_to(&mut entry, consumer, is_sent, context);
            is_sent = true;
        }
        self.conclude(entry, consumers, context);
    }

    /// Delivers a message again to the consumers without a tag. Consumers that joined for the queue get the number of
    /// the attempt.
    fn deliver_repeated(
        &mut self,
        entry: &mut Entry,
        consumers: &[Arc<Consumer>],
        context: &mut Context<'_>,
    ) {
        let acknowledge = self.metadata.options.request_acknowledge;
        let mut is_sent = false;
        for by_queue in [true, false] {
            let of_kind = consumers.iter().filter(|one| one.tag == Tag::CHANNEL && one.by_queue == by_queue);
            let to: Arc<[_]> = of_kind.map(|consumer| consumer.client.connection).collect();
            if !to.is_empty() {
                let terms = DeliveryTerms { acknowledge, is_sent, by_queue, ..DeliveryTerms::default() };
                let deliver = self.delivery_of(entry, Recipients::Many(to), terms, context);
                context.effects.push(Effect::Deliver(deliver));
                is_sent = true;
            }
        }
    }

    /// Delivers to one consumer, then waits for its acknowledgement or finishes the message.
    fn send(&mut self, mut entry: Entry, consumer: &Arc<Consumer>, context: &mut Context<'_>) {
        self.deliver_to(&mut entry, consumer, false, context);
        self.conclude(entry, std::slice::from_ref(consumer), context);
    }

    /// Whether a delivery to this consumer waits for an acknowledgement.
    pub(crate) fn stays_open(&self, consumer: &Consumer) -> bool {
        self.metadata.options.request_acknowledge || consumer.terms.settling == Settling::Explicit
    }

    /// Continues after a delivery, pulled or not: sends the confirmation if the policy asks for one, then waits for
    /// acknowledgements, or removes the message if none is needed.
    fn conclude(&mut self, mut entry: Entry, consumers: &[Arc<Consumer>], context: &mut Context<'_>) {
        for consumer in consumers {
            context.record_event(&self.metadata.address, &entry, LifecycleEvent::Delivered(&consumer.client));
        }
        self.acknowledge(&mut entry, self.decision_after_sending(context), None, "none", context);
        if !consumers.iter().any(|consumer| self.stays_open(consumer)) {
            return self.remove(entry, context);
        }
        let held = self.deliveries.insert(entry);
        for consumer in consumers {
            if self.stays_open(consumer) {
                self.open(held, consumer, context);
            }
        }
        if let Some(closed) = self.deliveries.release(held) {
            self.close(closed, context);
        }
    }

    /// Opens the delivery of the message `held` to `consumer`.
    pub(crate) fn open(&mut self, held: usize, consumer: &Arc<Consumer>, context: &mut Context<'_>) {
        let deadline = self.acknowledge_deadline(consumer, context.now);
        let key = self.deliveries.deliver(held, consumer, context.now, deadline);
        if consumer.terms.settling == Settling::AtOnce {
            self.auto_acknowledged(key, context);
        } else {
            self.arm(deadline, context);
        }
    }

    /// When a delivery to this consumer, made or extended now, times out.
    pub(crate) fn acknowledge_deadline(&self, consumer: &Consumer, now: Timestamp) -> Timestamp {
        let terms = &consumer.terms;
        let timeout = match terms.settling {
            Settling::Explicit if !self.metadata.options.request_acknowledge => terms.timeout,
            _ => Some(terms.timeout.unwrap_or(self.metadata.options.acknowledge_timeout)),
        };
        timeout.map_or(Timestamp::NEVER, |timeout| now.after(timeout))
    }

    /// Delivers to one consumer and counts it. `is_sent`: another consumer got it in this attempt.
    pub(crate) fn deliver_to(
        &mut self,
        entry: &mut Entry,
        consumer: &Consumer,
        is_sent: bool,
        context: &mut Context<'_>,
    ) {
        let to = Recipients::One(consumer.client.connection);
        let acknowledge = consumer.terms.settling != Settling::AtOnce && self.stays_open(consumer);
        let terms = DeliveryTerms {
            tag: consumer.tag,
            name: consumer.name.clone(),
            acknowledge,
            is_sent,
            by_queue: consumer.by_queue,
        };
        let deliver = self.delivery_of(entry, to, terms, context);
        context.effects.push(Effect::Deliver(deliver));
    }

    /// Delivers to the consumers without a tag and counts it.
    fn deliver(&mut self, entry: &mut Entry, to: Recipients, context: &mut Context<'_>) {
        let acknowledge = self.metadata.options.request_acknowledge;
        let terms = DeliveryTerms { acknowledge, ..DeliveryTerms::default() };
        let deliver = self.delivery_of(entry, to, terms, context);
        context.effects.push(Effect::Deliver(deliver));
    }

    #[inline]
    fn delivery_of(
        &mut self,
        entry: &mut Entry,
        to: Recipients,
        terms: DeliveryTerms,
        context: &mut Context<'_>,
    ) -> Deliver {
        let attempt = self.begin_attempt(entry, &to, &terms, context);
        self.assemble(entry.message.clone(), attempt, to, terms)
    }

    /// Counts a delivery, and the attempt if it is the first delivery of this attempt.
    #[inline]
    fn begin_attempt(
        &mut self,
        entry: &mut Entry,
        to: &Recipients,
        terms: &DeliveryTerms,
        context: &mut Context<'_>,
    ) -> Attempt {
        let first = entry.attempts == 0;
        let stats = &mut self.metadata.stats;
        stats.deliveries += to.as_slice().len() as u64;
        stats.last_sent_ms = context.now.0;
        // It is sent once, however many consumers receive it.
        if !terms.is_sent {
            stats.sent += 1;
            self.attempted(entry, terms.acknowledge, context);
        }
        Attempt { first, number: entry.attempts, requeues: entry.requeues }
    }

    #[inline]
    fn assemble(&self, message: Message, attempt: Attempt, to: Recipients, terms: DeliveryTerms) -> Deliver {
        let DeliveryTerms { tag, name, acknowledge, by_queue, .. } = terms;
        let Attempt { first, number: attempt, requeues } = attempt;
        let (queue, hide_source) = (self.metadata.address.clone(), self.metadata.options.hide_client_names);
        Deliver {
            queue,
            message,
            to,
            acknowledge,
            hide_source,
            first,
            tag,
            attempt,
            by_queue,
            requeues,
            name,
        }
    }

    /// Counts an attempt. The first attempt of a saved message is recorded, so that after a crash
    /// consumers learn that the message may have been delivered before. Later attempts are recorded
    /// when the message is requeued.
    fn attempted(&self, entry: &mut Entry, acknowledge: bool, context: &mut Context<'_>) {
        let first = entry.attempts == 0;
        entry.attempts = entry.attempts.saturating_add(1);
        if first && entry.sequence.0 > 0 && acknowledge {
            let rank = entry.sequence.0 as i64;
            let progress = DeliveryProgress {
                attempts: 1,
                requeues: entry.requeues,
                rank,
                ..DeliveryProgress::default()
            };
            context.record(Record::Touch(entry.sequence, progress));
        }
    }

    /// Delivers a message to the current consumers; nothing is stored.
    pub(crate) fn broadcast(&mut self, entry: Entry, members: &Members, context: &mut Context<'_>) {
        if members.is_empty() {
            self.discard(entry, DropReason::NoConsumer, context);
        } else if self.asks_while_sending(context.state) {
            self.start_flow(entry, FlowTarget::All, members, context);
        } else if context.state.congestion.since.is_empty() || self.metadata.options.only_first_acquirer {
            self.free = None;
            if let Some(entry) = self.offer(entry, members, context) {
                self.discard(entry, DropReason::Slow, context);
            }
        } else {
            self.broadcast_to_free(entry, members, context);
        }
    }

    /// Some consumers are too slow: they miss this message, which is counted, and the others receive
    /// it.
    fn broadcast_to_free(&mut self, entry: Entry, members: &Members, context: &mut Context<'_>) {
        let congestion = &context.state.congestion;
        let known = self.free.take().filter(|known| known.is_current(members, congestion));
        let known = known.unwrap_or_else(|| Box::new(FreeMembers::new(members, congestion)));
        self.metadata.stats.dropped[DropReason::Slow as usize] += known.slow.len() as u64;
        for consumer in &known.slow {
            context.record_event(&self.metadata.address, &entry, LifecycleEvent::Missed(&consumer.client));
        }
        if known.free.is_empty() {
            self.remove(entry, context);
        } else {
            self.send_to_all(entry, &known.free, context);
        }
        self.free = Some(known);
    }

    pub(crate) fn send_pulled(
        &mut self,
        mut entry: Entry,
        consumer: &Arc<Consumer>,
        pull_position: PullPosition,
        context: &mut Context<'_>,
    ) {
        self.deliver_pulled(&mut entry, consumer.client.connection, pull_position, context);
        self.conclude(entry, std::slice::from_ref(consumer), context);
    }

    /// Delivers one message of a pull and counts it.
    pub(crate) fn deliver_pulled(
        &mut self,
        entry: &mut Entry,
        to: ConnectionId,
        pull_position: PullPosition,
        context: &mut Context<'_>,
    ) {
        let stats = &mut self.metadata.stats;
        stats.sent += 1;
        stats.deliveries += 1;
        stats.last_sent_ms = context.now.0;
        let first = entry.attempts == 0;
        self.attempted(entry, self.metadata.options.request_acknowledge, context);
        let event = Event::Pulled {
            request: pull_position.request,
            message: entry.message.clone(),
            acknowledge: self.metadata.options.request_acknowledge,
            hide_source: self.metadata.options.hide_client_names,
            first,
            attempt: entry.attempts,
            index: pull_position.index,
            count: pull_position.count,
            left: pull_position.left,
        };
        context.notify(to, event);
    }

    /// There was no consumer after all: the message stays the next one.
    pub(crate) fn return_to_head(&mut self, entry: Entry, context: &mut Context<'_>) {
        self.arm(entry.deadline, context);
        self.ready.push_front(entry);
    }
}
