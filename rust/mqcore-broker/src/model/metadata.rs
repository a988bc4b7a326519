//! Metadata of a queue: everything but its messages.

use std::sync::Arc;

use crate::model::decision::Steps;
use crate::model::durations::Durations;
use crate::model::id::{HandlerId, QueueAddress, QueueRef};
use crate::model::observation::Observers;
use crate::model::options::QueueOptions;
use crate::model::stats::QueueStats;

/// Metadata of a queue: everything but its messages.
#[derive(Debug)]
pub(crate) struct QueueMetadata {
    pub(crate) address: Arc<QueueAddress>,
    pub(crate) queue_ref: QueueRef,
    pub(crate) options: QueueOptions,
    /// Whether its definition was lost with a part of the journal. `options` then keep its messages until
    /// a client creates, declares or updates the queue.
    pub(crate) options_lost: bool,
    pub(crate) handler: HandlerId,
    /// The key of the handler, if none is registered under it: the queue then neither takes nor delivers
    /// messages.
    pub(crate) missing_handler: Option<Box<str>>,
    /// The steps that the handler decides itself.
    pub(crate) overrides: Steps,
    /// The event handlers that hear about each message.
    pub(crate) message_observers: Observers,
    /// Whether the handler's policy saves messages.
    pub(crate) policy_saves: bool,
    pub(crate) stats: QueueStats,
    /// How long consumers had the messages that they acknowledged positively; `None`: there are none.
    pub(crate) processed_in: Option<Box<Durations>>,
}
