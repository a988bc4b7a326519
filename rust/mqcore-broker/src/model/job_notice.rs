//! Notices about jobs, from what keeps their results.

use crate::model::id::QueueAddress;
use crate::model::message::Message;

/// Approximate memory of an event without its message, in bytes.
pub(super) const PLAIN: usize = 128;

/// A notice for a session about a job that it or its client asked about.
#[derive(Debug, Clone)]
pub enum JobNotice {
    /// The result of a job is saved: its id, with the result as the body.
    Kept(Message),
    /// The result of a job cannot be saved now.
    NotKept(Message),
    /// The answer to a request, whose id is that of the message; or the result of a job, whose id is that of the message.
    Told {
        /// The queue of the job, to which the client must have the right to publish. `None`: it has.
        queue: Option<QueueAddress>,
        /// The answer.
        message: Message,
    },
    /// A worker must stop a job that it runs.
    Stop {
        /// The job.
        job: Box<[u8]>,
        /// Its queue.
        queue: QueueAddress,
        /// Whether to kill it.
        hard: bool,
    },
}

impl JobNotice {
    /// Approximate memory of the notice.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        match self {
            Self::Told { message, .. } => PLAIN + message.memory_bytes(),
            Self::Kept(_) | Self::NotKept(_) | Self::Stop { .. } => PLAIN,
        }
    }
}
