//! Answers on their way back to the shards: one batch a shard.

use std::sync::Arc;

use mqcore_broker::effect::Answer;
use mqcore_server::handler::AnswerSink;

/// Answers that were not sent yet, by the shard that asked. There are few shards: a list is searched fastest.
#[derive(Default)]
pub struct Answers {
    shards: Vec<(Arc<dyn AnswerSink>, Vec<Answer>)>,
    count: usize,
}

impl Answers {
    /// Adds an answer for `sink`.
    pub fn push(&mut self, sink: &Arc<dyn AnswerSink>, answer: Answer) {
        self.count += 1;
        match self.shards.iter_mut().find(|(known, _)| Arc::ptr_eq(known, sink)) {
            Some((_, answers)) => answers.push(answer),
            None => self.shards.push((sink.clone(), vec![answer])),
        }
    }

    /// How many wait to be sent.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sends them all.
    pub fn send(&mut self) {
        self.count = 0;
        for (sink, answers) in self.shards.drain(..) {
            sink.answer(answers);
        }
    }
}
