//! Batches of answers for the shards, one per shard.

use std::sync::Arc;

use mqcore_broker::model::effect::Answer;
use mqcore_server::handler::AnswerSink;

/// Unsent answers by shard. A list, because a search among few shards is fast.
#[derive(Default)]
pub(crate) struct Answers {
    shards: Vec<(Arc<dyn AnswerSink>, Vec<Answer>)>,
}

impl Answers {
    /// Adds an answer for `sink`.
    pub(crate) fn push(&mut self, sink: &Arc<dyn AnswerSink>, answer: Answer) {
        match self.shards.iter_mut().find(|(known, _)| Arc::ptr_eq(known, sink)) {
            Some((_, answers)) => answers.push(answer),
            None => self.shards.push((sink.clone(), vec![answer])),
        }
    }

    /// Whether there are no unsent answers.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Sends all answers.
    pub(crate) fn send(&mut self) {
        for (sink, answers) in self.shards.drain(..) {
            sink.answer(answers);
        }
    }
}
