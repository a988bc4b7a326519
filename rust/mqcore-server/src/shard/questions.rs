//! Which questions handlers still owe an answer to, for the metrics and for tests that wait for all to be quiet.

use std::time::Duration;

use hashbrown::HashMap;
use mqcore_broker::model::effect::Question;
use mqcore_broker::model::id::{HandlerId, QuestionId};
use mqcore_broker::model::time::Timestamp;

use crate::stats::counters::HandlerCounters;

/// The open questions of one shard. The broker holds its own list and decides what a missing answer means; this one
/// only counts.
#[derive(Debug)]
pub(crate) struct Questions {
    deadlines: HashMap<QuestionId, Timestamp, foldhash::fast::RandomState>,
    /// Not later than any of the deadlines.
    earliest: Timestamp,
    timeouts: Vec<Duration>,
}

impl Questions {
    pub(crate) fn new() -> Self {
        Self { deadlines: HashMap::default(), earliest: Timestamp::NEVER, timeouts: Vec::new() }
    }

    /// How long a handler may take.
    pub(crate) fn set_timeout(&mut self, handler: HandlerId, timeout: Duration) {
        let index = usize::from(handler.0);
        if self.timeouts.len() <= index {
            self.timeouts.resize(index + 1, Duration::ZERO);
        }
        self.timeouts[index] = timeout;
    }

    pub(crate) fn asked(&mut self, question: &Question, now: Timestamp, counters: &HandlerCounters) {
        if !question.wants_answer {
            return;
        }
        let timeout = self.timeouts.get(usize::from(question.handler.0)).copied().unwrap_or_default();
        let deadline = now.after(timeout);
        self.earliest = self.earliest.min(deadline);
        self.deadlines.insert(question.id, deadline);
        counters.asked.add(1);
    }

    /// An answer came. One that was counted as late already is not counted again.
    pub(crate) fn answered(&mut self, question: QuestionId, counters: &HandlerCounters) {
        if self.deadlines.remove(&question).is_some() {
            counters.answered.add(1);
        }
    }

    /// Counts those whose time is over.
    pub(crate) fn expire(&mut self, now: Timestamp, counters: &HandlerCounters) {
        if now < self.earliest {
            return;
        }
        let before = self.deadlines.len();
        self.deadlines.retain(|_, deadline| *deadline > now);
        counters.late.add((before - self.deadlines.len()) as u64);
        self.earliest = self.deadlines.values().copied().min().unwrap_or(Timestamp::NEVER);
    }
}
