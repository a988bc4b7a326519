//! The program that decides for delivery handlers: it answers questions of shards after some time, in any order.

use std::collections::BTreeMap;
use std::time::Duration;

use mqcore_broker::model::config::HandlerSpec;
use mqcore_broker::model::decision::{Acknowledge, Decision, PutBack, Step};
use mqcore_broker::model::effect::{Answer, HandlerFailure, Question};
use mqcore_broker::model::policy::{AT_LEAST_ONCE, MEMORY, Policy};
use mqcore_testkit::Random;

use crate::scenario::handlers::{HANDLER_TIMEOUT, SimulatedHandler};
use crate::scenario::{Scenario, SimulatedQueue};
use crate::time::Micros;

/// All delivery handlers of one life of the broker.
pub(crate) struct HandlerTask {
    random: Random,
    /// Those of each queue, by its address.
    handlers: BTreeMap<String, (Policy, SimulatedHandler)>,
}

impl HandlerTask {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let handlers = scenario.queues.iter().filter_map(|queue| {
            let handler = queue.handler?;
            Some((queue.address.clone(), (policy(queue), handler)))
        });
        Self { random: Random::new(seed), handlers: handlers.collect() }
    }

    /// Decides about a message. Returns the answer and the time that it takes. `None`: it never answers, or the
    /// question is a notification.
    pub(crate) fn decide(&mut self, question: &Question) -> Option<(Micros, Answer)> {
        let (policy, handler) = *self.handlers.get(&question.queue.to_string())?;
        if !question.wants_answer {
            return None;
        }
        // A handler that is slow about everything would need longer than a calm.
        let is_slow = handler.decide_micros > HANDLER_TIMEOUT && self.random.one_in(8);
        let most = if is_slow { handler.decide_micros } else { handler.decide_micros.min(20_000) };
        let takes = self.random.below(most + 1);
        if self.random.percent(handler.fails) {
            let raised = Answer::new(question.id, Err(HandlerFailure::Raised));
            return if self.random.one_in(2) { Some((takes, raised)) } else { None };
        }
        let positive = question.acknowledgement.as_ref().is_none_or(|view| view.negative.is_none());
        let decision = if self.random.percent(handler.refuses) { self.refuse(question.step) } else { None };
        let decision = decision.unwrap_or_else(|| policy.decide(question.step, positive));
        Some((takes, Answer::new(question.id, Ok(decision))))
    }

    /// The refusal of a step, if a handler can refuse it without dropping the message.
    fn refuse(&mut self, step: Step) -> Option<Decision> {
        match step {
            Step::ReceivedFromProducer => {
                Some(Decision { acknowledge: Acknowledge::Negative, ..Decision::REFUSE })
            }
            Step::BeginSend => {
                let put_back = [PutBack::Start, PutBack::End][self.random.index(2)];
                Some(Decision { put_back, ..Decision::REFUSE })
            }
            Step::CanConsumerReceive => Some(Decision::REFUSE),
            _ => None,
        }
    }
}

fn policy(queue: &SimulatedQueue) -> Policy {
    if queue.saves { AT_LEAST_ONCE } else { MEMORY }
}

/// The handler as the broker knows it.
pub(crate) fn spec(queue: &SimulatedQueue) -> Option<HandlerSpec> {
    let handler = queue.handler?;
    Some(HandlerSpec {
        key: queue.handler_key().into(),
        overrides: handler.overrides,
        base: policy(queue),
        timeout: Duration::from_micros(HANDLER_TIMEOUT),
        fallback: HandlerSpec::KEEP,
    })
}
