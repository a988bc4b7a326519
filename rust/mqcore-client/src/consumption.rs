//! What a client consumes, and on what terms.

use std::time::Duration;

use crate::address::QueueAddress;

/// What a consumer agrees on with the broker, in protocols where consumers have a say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumeTerms {
    /// MQKS: what the queue is bound to from now on, instead of all it was; empty: it keeps that. Default `None`: it is
    /// bound to the event of its own name as well, unless `add_events` names others.
    pub events: Option<Vec<String>>,
    /// MQKS: what the queue is bound to in addition.
    pub add_events: Vec<String>,
    /// MQKS: what becomes of the queue when nobody consumes it. Default: it stays.
    pub delete_unused: UnusedQueue,
    /// MicroMessage2: which messages of a topic are wanted, by their properties; `price>N10;region=Teu` for example. Default
    /// all.
    pub filter: Option<String>,
    /// Whether each message is settled by the program, and comes back if the connection is lost before that. Default yes.
    /// In TMQP that is the queue's own option, and this has no effect.
    pub manual_ack: bool,
}

impl Default for ConsumeTerms {
    fn default() -> Self {
        Self {
            events: None,
            add_events: Vec::new(),
            delete_unused: UnusedQueue::Stays,
            filter: None,
            manual_ack: true,
        }
    }
}

/// What becomes of a queue that nobody consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnusedQueue {
    /// It stays.
    #[default]
    Stays,
    /// It is deleted so long after its last consumer, unless another one comes.
    Deleted(Duration),
}

/// A queue, and the terms on which it is consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Consumption {
    pub(crate) queue: QueueAddress,
    pub(crate) terms: ConsumeTerms,
}
