//! What a queue is, apart from the messages in it.

use std::sync::Arc;

use crate::model::decision::Steps;
use crate::model::id::{HandlerId, QueueAddress, QueueRef};
use crate::model::options::QueueOptions;
use crate::model::stats::QueueStats;

/// What a queue is, apart from the messages in it.
#[derive(Debug)]
pub(crate) struct QueueMetadata {
    pub(crate) address: Arc<QueueAddress>,
    pub(crate) queue_ref: QueueRef,
    pub(crate) options: QueueOptions,
    pub(crate) handler: HandlerId,
    /// The steps that the handler decides itself.
    pub(crate) overrides: Steps,
    pub(crate) stats: QueueStats,
}
