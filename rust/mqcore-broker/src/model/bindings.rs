//! Topics that queues are bound to, and when a queue without consumers goes.

use std::time::Duration;

use crate::model::id::{QueueAddress, TopicName};
use crate::model::topic::TopicPattern;

/// When a queue goes that has no subscription any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnusedPolicy {
    /// Never by itself.
    #[default]
    Keep,
    /// With its last subscription.
    Delete,
    /// So long after its last subscription, unless another one comes.
    DeleteAfter(Duration),
}

/// A change of a queue's list, done in the order of the fields.
#[derive(Debug, Clone, Default)]
pub struct QueueBinding {
    /// `Some`: these instead of all it has.
    pub replace: Option<Vec<TopicName>>,
    /// No longer these.
    pub remove: Vec<TopicName>,
    /// No longer those that fit.
    pub remove_matching: Vec<TopicPattern>,
    /// These too.
    pub add: Vec<TopicName>,
    /// `Some`: when it goes from now on.
    pub unused: Option<UnusedPolicy>,
}

/// A queue's list, as its subscriptions are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueBindings {
    /// The queue.
    pub queue: QueueAddress,
    /// Its topics, in the order of their octets.
    pub topics: Vec<TopicName>,
    /// When it goes.
    pub unused: UnusedPolicy,
}
