//! Job queues and workers, for people.

use std::sync::Arc;

use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::time::Timestamp;

/// Job queues and workers, for people.
#[derive(Debug, Clone, Default)]
pub struct JobFigures {
    /// Queues that workers or clients have used since the start.
    pub queues: Vec<JobQueueFigures>,
    /// Connected workers.
    pub workers: Vec<WorkerFigures>,
}

/// Jobs of a queue since the start.
#[derive(Debug, Clone)]
pub struct JobQueueFigures {
    /// The name by which workers know the queue.
    pub name: Box<str>,
    /// Its address.
    pub queue: QueueAddress,
    /// Jobs that workers have and that are not finished.
    pub running: u64,
    /// Finished jobs.
    pub finished: u64,
    /// Milliseconds that the last finished job took.
    pub latency_ms: u64,
    /// Maximum of these.
    pub latency_max_ms: u64,
}

/// A connected worker.
#[derive(Debug, Clone)]
pub struct WorkerFigures {
    /// Its identity, or the number of its connection.
    pub name: String,
    /// Its connection.
    pub connection: ConnectionId,
    /// The user or token of its login.
    pub user: Option<Arc<str>>,
    /// Names and weights of its queues.
    pub queues: Vec<(String, i32)>,
    /// Jobs that it can take now.
    pub free: u32,
    /// Jobs that it has finished.
    pub finished: u64,
    /// The last time that the broker heard it.
    pub heard: Timestamp,
}
