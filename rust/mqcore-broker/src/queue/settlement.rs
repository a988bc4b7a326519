//! Settlement: deliveries are acknowledged, rejected, time out, or are lost with their consumer;
//! messages expire in the queue.

use std::time::Duration;

use crate::context::Context;
use crate::context::decide::{DecisionState, StepDecision, StepRequest, decide};
use crate::context::questions::Suspended;
use crate::history::LifecycleEvent;
use crate::model::command::{Acknowledgement, Nack, Retry};
use crate::model::decision::{Decision, PutBack, Step};
use crate::model::effect::AcknowledgementView;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, Tag};
use crate::model::stats::DropReason;
use crate::model::subscription::Settling;
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::delivery::{Delivery, Disposition};
use crate::queue::members::{Consumer, ConsumerKey};
use crate::queue::outcome::{DeliveryOutcome, Settled, Settlement};
use crate::queue::ready::Unlisted;

/// The first retry delay of saved messages, unless the queue's options name one.
const RETRY_DELAY: Duration = Duration::from_millis(100);

impl Queue {
    /// Settles a delivery as its consumer acknowledged it. `false` if the consumer does not have such a
    /// delivery.
    pub(crate) fn acknowledged(
        &mut self,
        consumer: ConnectionId,
        acknowledgement: &Acknowledgement,
        context: &mut Context<'_>,
    ) -> bool {
        let key = (consumer, acknowledgement.tag);
        let not_before = match acknowledgement.refusal.as_deref().map(|nack| nack.retry) {
            Some(Retry::Unstarted) => Some(context.now),
            Some(Retry::Postponed(time)) => Some(time),
            _ => None,
        };
        if let Some(not_before) = not_before {
            let newest = self.deliveries.take_newest_of(&acknowledgement.message_id, key);
            let Some(delivery) = newest else { return false };
            self.returned(&delivery, not_before, context);
            return true;
        }
        let Some(delivery) = self.deliveries.take_oldest_of(&acknowledgement.message_id, key) else {
            return false;
        };
        self.settle_by(delivery, acknowledgement, context);
        true
    }

    /// Settles all deliveries of a subscription.
    pub(crate) fn acknowledged_all(
        &mut self,
        consumer: ConsumerKey,
        negative: Option<&str>,
        context: &mut Context<'_>,
    ) {
        for key in self.deliveries.of(consumer.0, Some(consumer.1)) {
            let delivery = self.deliveries.take(key);
            self.settle_for(delivery, negative, context);
        }
    }

    /// Settles one delivery of a subscription, if it exists.
    pub(crate) fn acknowledged_one(
        &mut self,
        consumer: ConsumerKey,
        message_id: &[u8],
        negative: Option<&str>,
        context: &mut Context<'_>,
    ) {
        if let Some(delivery) = self.deliveries.take_oldest_of(message_id, consumer) {
            self.settle_for(delivery, negative, context);
        }
    }

    /// Settles a delivery without an acknowledgement of its consumer that could be relayed.
    fn settle_for(&mut self, delivery: Delivery, negative: Option<&str>, context: &mut Context<'_>) {
        let acknowledgement = Acknowledgement {
            tag: delivery.consumer.tag,
            queue: (*self.metadata.address).clone(),
            message_id: self.deliveries.get(delivery.outstanding()).entry.message.id().into(),
            refusal: Nack::of(negative),
            headers: Box::default(),
            hops: 0,
            first_acquirer: false,
        };
        self.settle_by(delivery, &acknowledgement, context);
    }

    /// Settles a delivery by an acknowledgement and counts it.
    fn settle_by(
        &mut self,
        delivery: Delivery,
        acknowledgement: &Acknowledgement,
        context: &mut Context<'_>,
    ) {
        self.deliveries.progressed(&delivery, context.now);
        if acknowledgement.refusal.is_none() {
            self.metadata.stats.acks += 1;
            let micros = delivery.age_ms(context.now) * 1_000;
            self.metadata.processed_in.get_or_insert_default().add(micros);
            context.state.counters.processed_in.add(micros);
        } else {
            self.metadata.stats.negative_acks += 1;
        }
        self.settle(delivery, DeliveryOutcome::Acknowledged(acknowledgement), context);
    }

    /// Settles a delivery to a consumer that does not acknowledge, in a queue that wants
    /// acknowledgements: delivery counts as one.
    pub(crate) fn auto_acknowledged(&mut self, key: usize, context: &mut Context<'_>) {
        self.metadata.stats.acks += 1;
        let delivery = self.deliveries.take(key);
        self.settle(delivery, DeliveryOutcome::AutoAcknowledged, context);
    }

    /// Settles deliveries whose deadline has passed.
    pub(crate) fn time_out_deliveries(&mut self, context: &mut Context<'_>) {
        while let Some(key) = self.deliveries.due(context.now) {
            if let Some(deadline) = self.later_deadline(key).filter(|deadline| *deadline > context.now) {
                self.deliveries.extend(key, deadline);
                continue;
            }
            self.metadata.stats.negative_acks += 1;
            let delivery = self.deliveries.take(key);
            self.settle(delivery, DeliveryOutcome::TimedOut, context);
        }
    }

    /// The deadline of a delivery whose consumer settled an earlier one after it was made.
    fn later_deadline(&self, key: usize) -> Option<Timestamp> {
        let progressed = self.deliveries.progress_before(key)?;
        Some(self.acknowledge_deadline(self.deliveries.consumer(key), progressed))
    }

    /// Settles the deliveries of a consumer, or of one subscription, that is gone. The oldest one is
    /// requeued first in line.
    pub(crate) fn consumer_lost(
        &mut self,
        consumer: ConnectionId,
        tag: Option<Tag>,
        context: &mut Context<'_>,
    ) {
        for key in self.deliveries.of(consumer, tag).into_iter().rev() {
            let delivery = self.deliveries.take(key);
            self.settle(delivery, DeliveryOutcome::ConsumerLost, context);
        }
        self.deliveries.forget_progress(consumer, tag);
    }

    /// Settles a delivery that was removed from the table.
    fn settle(&mut self, delivery: Delivery, outcome: DeliveryOutcome<'_>, context: &mut Context<'_>) {
        let held = delivery.outstanding();
        let entry = &self.deliveries.get(held).entry;
        let delivered = Timestamp(context.now.0.saturating_sub(delivery.age_ms(context.now)));
        let event = outcome.lifecycle_event(&delivery.consumer);
        context.record_event_since(&self.metadata.address, entry, event, delivered);
        if delivery.consumer.terms.window > 0 {
            // Its window has room again, even if other consumers still hold the message.
            self.schedule(context);
        }
        let step = outcome.step();
        if !self.metadata.overrides.contains(step) {
            let mut decision =
                context.state.spec(self.metadata.handler).base.decide(step, outcome.is_positive());
            if outcome.retry() == Some(Retry::Never) {
                decision.put_back = PutBack::No;
            } else if delivery.consumer.terms.settling == Settling::Explicit
                && decision.put_back == PutBack::No
            {
                decision.put_back = outcome.requeue_position();
            }
            if !decision.save {
                let step_decision = StepDecision::of_policy(decision);
                return self.settled(held, &delivery.consumer, outcome, step_decision, context);
            }
        }
        let subject = Settled::Delivery { held, consumer: delivery.consumer, outcome: outcome.into_owned() };
        self.begin_settlement(subject, context);
    }

    fn begin_settlement(&mut self, subject: Settled, context: &mut Context<'_>) {
        self.settlements += 1;
        let number = self.settlements;
        self.settling.insert(number, Settlement { subject, decision_state: DecisionState::default() });
        self.run_settlement(number, context);
    }

    /// Takes the answer about a settlement.
    pub(crate) fn settlement_answered(
        &mut self,
        number: u64,
        answer: Option<Decision>,
        context: &mut Context<'_>,
    ) {
        let Some(settlement) = self.settling.get_mut(&number) else { return };
        let entry = match &mut settlement.subject {
            Settled::Delivery { held, .. } => &mut self.deliveries.get_mut(*held).entry,
            Settled::Expired(entry) => entry,
        };
        settlement.decision_state.answered(&mut self.metadata, entry, answer, context);
        self.run_settlement(number, context);
    }

    fn run_settlement(&mut self, number: u64, context: &mut Context<'_>) {
        let Some(Settlement { subject, decision_state }) = self.settling.get_mut(&number) else { return };
        let suspended = Suspended::Settlement(number);
        let step_decision = match subject {
            Settled::Delivery { held, consumer, outcome } => {
                let entry = &mut self.deliveries.get_mut(*held).entry;
                let outcome = outcome.outcome();
                let acknowledgement = match outcome {
                    DeliveryOutcome::Acknowledged(acknowledgement) => Some(Box::new(AcknowledgementView {
                        message_id: acknowledgement.message_id.clone(),
                        negative: acknowledgement.negative().map(Into::into),
                    })),
                    DeliveryOutcome::AutoAcknowledged
                    | DeliveryOutcome::TimedOut
                    | DeliveryOutcome::ConsumerLost => None,
                };
                let positive = outcome.is_positive();
                let step_request = StepRequest {
                    positive,
                    acknowledgement,
                    ..StepRequest::new(outcome.step(), suspended).about(&consumer.client)
                };
                decide(&mut self.metadata, decision_state, entry, step_request, context)
            }
            Settled::Expired(entry) => {
                let step_request = StepRequest::new(Step::MessageTimedOut, suspended);
                decide(&mut self.metadata, decision_state, entry, step_request, context)
            }
        };
        let Some(step_decision) = step_decision else { return };
        let Some(Settlement { subject, .. }) = self.settling.remove(&number) else { return };
        match subject {
            Settled::Delivery { held, consumer, outcome } => {
                self.settled(held, &consumer, outcome.outcome(), step_decision, context);
            }
            Settled::Expired(entry) => {
                self.expiry_decided(entry, step_decision, context);
                // A queue that delivers one message at a time has waited for this decision.
                self.schedule(context);
            }
        }
    }

    /// Carries out the decision about a delivery: confirms to the producer and releases the message.
    fn settled(
        &mut self,
        held: usize,
        consumer: &Consumer,
        outcome: DeliveryOutcome<'_>,
        step_decision: StepDecision,
        context: &mut Context<'_>,
    ) {
        if step_decision.decision.acknowledge != crate::model::decision::Acknowledge::None {
            let relayed = match outcome {
                DeliveryOutcome::Acknowledged(acknowledgement) => {
                    Some((acknowledgement.clone(), consumer.client.id.clone()))
                }
                DeliveryOutcome::AutoAcknowledged
                | DeliveryOutcome::TimedOut
                | DeliveryOutcome::ConsumerLost => None,
            };
            let mut entry = self.deliveries.get(held).entry.clone();
            self.acknowledge(&mut entry, step_decision, relayed, outcome.reason(), context);
            self.deliveries.get_mut(held).entry.answered = entry.answered;
        }
        let message = self.deliveries.get_mut(held);
        message.acked |= outcome.is_positive();
        if step_decision.decision.put_back != PutBack::No {
            if message.requeue != PutBack::Start {
                message.requeue = step_decision.decision.put_back;
            }
            message.requeued_by_handler |= step_decision.own;
        }
        if let Some(retry) = outcome.retry() {
            let disposition = if retry == Retry::Never { Disposition::Failed } else { Disposition::Refused };
            message.disposition = message.disposition.max(disposition);
        }
        if !outcome.is_positive() {
            self.deliveries.failed(held, outcome.reason());
        }
        if let Some(time) = self.next_attempt(held, outcome, context.now) {
            self.deliveries.postpone(held, time);
        }
        if let Some(closed) = self.deliveries.release(held) {
            self.close(closed, context);
        }
    }

    /// The earliest time of the next delivery if the message is requeued; `None`: at once. A consumer may
    /// name the time. Otherwise each requeue after a rejection or a timeout doubles the delay. A message
    /// that was lost with its consumer did not fail, so it is delivered again at once.
    fn next_attempt(&self, held: usize, outcome: DeliveryOutcome<'_>, now: Timestamp) -> Option<Timestamp> {
        match (outcome, outcome.retry()) {
            (_, Some(Retry::NotBefore(time))) => Some(time),
            (_, Some(Retry::After(delay))) => Some(now.after(delay)),
            (_, Some(Retry::AsDecided)) | (DeliveryOutcome::TimedOut, None) => {
                let delay = self.retry_delay(&self.deliveries.get(held).entry);
                (!delay.is_zero()).then(|| now.after(delay))
            }
            _ => None,
        }
    }

    /// The delay before the next delivery of a message that failed.
    pub(crate) fn retry_delay(&self, entry: &Entry) -> Duration {
        let options = &self.metadata.options;
        let saves = entry.saved || self.metadata.policy_saves;
        let first = options.retry_delay.unwrap_or(if saves { RETRY_DELAY } else { Duration::ZERO });
        first.saturating_mul(1 << entry.requeues.min(31)).min(options.retry_delay_max)
    }

    /// Expires messages whose deadline has passed.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        let expired = self.ready.expire(context.now);
        self.settle_retained_if_empty(context);
        for taken in expired {
            match taken {
                Unlisted::InMemory(entry) => {
                    let entry = self.with_producer(entry);
                    self.expired(entry, context);
                }
                Unlisted::PagedOut(paged_out) => self.expired_paged_out(paged_out, context),
            }
        }
        self.continue_expiring(context);
    }

    /// Expires a message that has left the lists.
    pub(crate) fn expired(&mut self, entry: Entry, context: &mut Context<'_>) {
        self.metadata.stats.timed_out += 1;
        context.record_event(&self.metadata.address, &entry, LifecycleEvent::Expired);
        self.begin_settlement(Settled::Expired(entry), context);
    }

    fn expiry_decided(&mut self, mut entry: Entry, step_decision: StepDecision, context: &mut Context<'_>) {
        self.acknowledge(&mut entry, step_decision, None, "timeout", context);
        if step_decision.decision.put_back == PutBack::No {
            self.dead_letter(entry, DropReason::Expired, None, context);
        } else {
            // It may wait once more for the whole timeout.
            entry.deadline = self.deadline(context.now);
            self.requeue(entry, step_decision.decision.put_back, context.now, None, context);
        }
    }
}
