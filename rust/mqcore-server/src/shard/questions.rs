//! Questions to handlers without an answer, for the metrics and for tests that wait until the server is idle.

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

    /// Sets the time in which a handler must answer.
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

    /// An answer has arrived. If it was already counted as late, it is not counted again.
    pub(crate) fn answered(&mut self, question: QuestionId, counters: &HandlerCounters) {
        if self.deadlines.remove(&question).is_some() {
            counters.answered.add(1);
        }
    }

    /// Counts questions past their deadline.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_late_at_its_deadline_and_counts_once() {
        let (mut questions, counters) = (Questions::new(), HandlerCounters::default());
        for (id, deadline) in [(1, 100), (2, 100), (3, 200)] {
            questions.deadlines.insert(QuestionId(id), Timestamp(deadline));
            questions.earliest = questions.earliest.min(Timestamp(deadline));
            counters.asked.add(1);
        }
        questions.answered(QuestionId(1), &counters);
        for (now, late, open) in [(99, 0, 2), (100, 1, 1), (150, 1, 1), (200, 2, 0), (300, 2, 0)] {
            questions.expire(Timestamp(now), &counters);
            assert_eq!((counters.late.get(), counters.open()), (late, open), "at {now}");
        }
        questions.answered(QuestionId(3), &counters);
        assert_eq!(counters.answered.get(), 1, "it was counted as late");
    }
}
