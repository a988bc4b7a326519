//! The handlers of one shard: questions to be sent, and those without an answer.

use std::sync::Arc;

use mqcore_broker::model::effect::Question;
use mqcore_broker::model::observation::Observation;
use mqcore_broker::model::time::Timestamp;

use crate::handler::{AnswerSink, HandlerPort};
use crate::hub::Hub;
use crate::shard::questions::Questions;
use crate::stats::counters::HandlerCounters;

/// The state that a shard needs to ask handlers.
pub(crate) struct Handlers {
    port: Arc<dyn HandlerPort>,
    /// Receives the handlers' answers.
    sink: Arc<dyn AnswerSink>,
    /// Questions without an answer.
    pub(crate) open: Questions,
    /// Questions to be asked together.
    pending: Vec<Question>,
    /// Notifications to be made together.
    observations: Vec<Observation>,
}

impl Handlers {
    pub(crate) fn new(port: Arc<dyn HandlerPort>, sink: Arc<dyn AnswerSink>) -> Self {
        Self { port, sink, open: Questions::new(), pending: Vec::new(), observations: Vec::new() }
    }

    /// Adds a question to the next batch.
    pub(crate) fn push(&mut self, question: Question, now: Timestamp, counters: &HandlerCounters) {
        self.open.asked(&question, now, counters);
        self.pending.push(question);
    }

    /// Adds a notification to the next batch.
    pub(crate) fn observe(&mut self, observation: Observation) {
        self.observations.push(observation);
    }

    /// Asks everything and makes all notifications that were added since the last call.
    pub(crate) fn ask(&mut self, hub: &Hub) {
        if !self.pending.is_empty() {
            hub.moved();
            self.port.ask(std::mem::take(&mut self.pending), &self.sink);
        }
        if !self.observations.is_empty() {
            hub.moved();
            self.port.observe(std::mem::take(&mut self.observations));
        }
    }
}
