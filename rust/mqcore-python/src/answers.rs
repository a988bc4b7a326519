//! Answers on their way back to the shards: one batch a shard.

use std::sync::Arc;

use mqcore_broker::model::effect::Answer;
use mqcore_server::handler::AnswerSink;

/// Answers that were not sent yet, by the shard that asked. There are few shards: a list is searched fastest.
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

    /// Whether none waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Sends them all.
    pub(crate) fn send(&mut self) {
        for (sink, answers) in self.shards.drain(..) {
            sink.answer(answers);
        }
    }
}
