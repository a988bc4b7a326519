//! Topics that queues are bound to, and when an unused queue is removed.

use std::time::Duration;

use crate::model::id::{QueueAddress, TopicName};
use crate::model::topic::TopicPattern;

/// When the broker removes a queue that has no subscription any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnusedPolicy {
    /// Never.
    #[default]
    Keep,
    /// When its last subscription ends.
    Delete,
    /// This long after its last subscription ended, unless another one begins.
    DeleteAfter(Duration),
}

/// A change of a queue's topics. The fields are applied in this order.
#[derive(Debug, Clone, Default)]
pub struct QueueBinding {
    /// `Some`: replaces all topics.
    pub replace: Option<Vec<TopicName>>,
    /// Topics to remove.
    pub remove: Vec<TopicName>,
    /// Patterns: topics that match one of them are removed.
    pub remove_matching: Vec<TopicPattern>,
    /// Topics to add.
    pub add: Vec<TopicName>,
    /// `Some`: the new policy for the unused queue.
    pub unused: Option<UnusedPolicy>,
}

/// The topics of a queue, as its subscriptions are notified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueBindings {
    /// The queue.
    pub queue: QueueAddress,
    /// Its topics in byte order.
    pub topics: Vec<TopicName>,
    /// When the unused queue is removed.
    pub unused: UnusedPolicy,
}
