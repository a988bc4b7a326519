//! Questions to delivery handlers that have no answer yet.

use std::collections::VecDeque;

use foldhash::HashMap;

use crate::model::id::{HandlerId, QuestionId, QueueRef};
use crate::model::time::Timestamp;

/// A step that is suspended until a handler answers or a record is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspended {
    /// The admission of a message, by its number in the queue.
    Admission(u64),
    /// The delivery of a message step by step, by the number of its flow.
    Flow(u64),
    /// The settlement of a delivery, or the expiry of a message, by its number in the queue.
    Settlement(u64),
    /// The route of a message, by its number in the list of routes that wait for the same handler. It belongs to no queue.
    Route(u64),
    /// The request of a client that an authenticator decides about, by its number. It belongs to no queue.
    Authentication(u64),
}

/// A question that has no answer yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenQuestion {
    pub(crate) queue_ref: QueueRef,
    pub(crate) suspended: Suspended,
    pub(crate) handler: HandlerId,
}

/// All open questions of a shard and their deadlines.
#[derive(Debug)]
pub(crate) struct Questions {
    open: HashMap<QuestionId, OpenQuestion>,
    last: u64,
    /// One list for each handler. Its deadlines ascend, because the handler's timeout is constant.
    deadlines: Vec<VecDeque<(Timestamp, QuestionId)>>,
}

impl Questions {
    pub(crate) fn new(handlers: usize) -> Self {
        Self { open: HashMap::default(), last: 0, deadlines: vec![VecDeque::new(); handlers] }
    }

    /// Makes room for the questions of one more handler.
    pub(crate) fn add_handler(&mut self) {
        self.deadlines.push(VecDeque::new());
    }

    /// Removes a question and returns it; `None` if its deadline has passed.
    pub(crate) fn answered(&mut self, id: QuestionId) -> Option<OpenQuestion> {
        self.open.remove(&id)
    }

    /// Removes one question whose deadline has passed.
    pub(crate) fn overdue(&mut self, now: Timestamp) -> Option<OpenQuestion> {
        for list in &mut self.deadlines {
            while let Some((deadline, id)) = list.front().copied() {
                if self.open.contains_key(&id) && deadline > now {
                    break;
                }
                list.pop_front();
                if let Some(question) = self.open.remove(&id) {
                    return Some(question);
                }
            }
        }
        None
    }

    /// The earliest deadline. It may belong to an answered question: then a call to [`Questions::overdue`] finds nothing.
    pub(crate) fn next_deadline(&self) -> Timestamp {
        let fronts = self.deadlines.iter().filter_map(VecDeque::front);
        fronts.map(|(deadline, _)| *deadline).min().unwrap_or(Timestamp::NEVER)
    }

    /// The number of open questions.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn ask(&mut self, question: OpenQuestion, deadline: Timestamp) -> QuestionId {
        self.last += 1;
        let id = QuestionId(self.last);
        let Self { open, deadlines, .. } = self;
        let list = &mut deadlines[usize::from(question.handler.0)];
        while list.front().is_some_and(|(_, id)| !open.contains_key(id)) {
            list.pop_front();
        }
        list.push_back((deadline, id));
        open.insert(id, question);
        id
    }
}
