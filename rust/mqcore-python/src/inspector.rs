//! Reads the state of queues for handlers, on demand.

use std::sync::{Arc, PoisonError, RwLock};

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::stats::QueueInformation;
use mqcore_server::server::Server;
use tokio::runtime::Handle;

/// A running broker, for clients and handlers in its process.
pub(crate) struct Local {
    pub(crate) server: Server,
    pub(crate) handle: Handle,
}

/// Reads the state of queues of the broker, which may be stopped. Cloning shares the reference.
#[derive(Clone, Default)]
pub(crate) struct Inspector(Arc<RwLock<Option<Local>>>);

impl Inspector {
    /// An inspector of the broker that `local` refers to while it runs.
    pub(crate) fn new(local: Arc<RwLock<Option<Local>>>) -> Self {
        Self(local)
    }

    /// The state of a queue; `None` if it does not exist or the broker is stopped. Blocks until the shard of the queue
    /// answers. No shard ever waits for a handler, so it does. Call it detached from the interpreter.
    pub(crate) fn queue(&self, queue: &QueueAddress) -> Option<QueueInformation> {
        let (server, handle) = {
            let local = self.0.read().unwrap_or_else(PoisonError::into_inner);
            local.as_ref().map(|local| (local.server.clone(), local.handle.clone()))?
        };
        handle.block_on(server.queue(queue.clone()))
    }
}
