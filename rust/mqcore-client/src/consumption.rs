//! Consumed queues and their terms.

use std::time::Duration;

use crate::address::QueueAddress;

/// The terms of a consumer, in protocols where consumers choose them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumeTerms {
    /// MQKS: events that replace all bindings of the queue; empty: the bindings stay. Default `None`: adds a binding to
    /// the event with the queue's name, unless `add_events` names others.
    pub events: Option<Vec<String>>,
    /// MQKS: events to bind the queue to in addition.
    pub add_events: Vec<String>,
    /// MQKS: whether the broker deletes the queue when it has no consumer. Default: it stays.
    pub delete_unused: UnusedQueue,
    /// MicroMessage2: filter on the properties of a topic's messages, for example `price>N10;region=Teu`. Default: all
    /// messages.
    pub filter: Option<String>,
    /// Whether the program settles each message, and the broker redelivers it if the connection is lost before. Default
    /// yes. In TMQP this is an option of the queue, and this field has no effect.
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

/// The fate of a queue without consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnusedQueue {
    /// It keeps the queue.
    #[default]
    Stays,
    /// It deletes the queue this time after its last consumer left, unless another one arrives.
    Deleted(Duration),
}

/// A consumed queue and its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Consumption {
    pub(crate) queue: QueueAddress,
    pub(crate) terms: ConsumeTerms,
    /// Maximum number of unsettled messages.
    pub(crate) prefetch: u32,
}
