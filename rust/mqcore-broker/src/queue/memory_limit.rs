//! Rejects messages for which the broker has no memory.

use crate::context::Context;
use crate::context::commits::Storage;
use crate::model::decision::Step;
use crate::model::message::Message;
use crate::model::rejection::{RejectReason, RejectionKind};
use crate::model::unsaved::MemoryExcess;
use crate::queue::Queue;
use crate::queue::admission_error::AdmissionError;

impl Queue {
    /// Whether there is memory for a message until it is delivered or saved.
    #[inline]
    pub(super) fn check_memory(
        &self,
        message: &Message,
        context: &Context<'_>,
    ) -> Result<(), AdmissionError> {
        // A handler may save messages elsewhere, but they stay in memory.
        let saves = self.metadata.policy_saves
            && !self.metadata.overrides.contains(Step::SaveMessage)
            && context.state.commits.storage != Storage::Absent;
        let reason = if saves {
            let config = &context.state.config;
            let bytes = context.state.commits.uncommitted_bytes();
            let limit = config.unsaved.limits().bytes_max / config.placement.shards() as u64;
            if bytes.saturating_add(message.memory_bytes() as u64) <= limit {
                return Ok(());
            }
            self.disk_is_behind(bytes, limit)
        } else {
            let Some(excess) = context.state.unsaved.excess(message) else { return Ok(()) };
            self.memory_is_full(&excess)
        };
        context.state.unsaved.count_rejected();
        // A downstream broker keeps a message that is rejected as busy, and sends it again later.
        let kind =
            if message.ticket().is_some() { RejectionKind::Busy } else { RejectionKind::LimitExceeded };
        Err(AdmissionError::new(RejectReason::Memory, kind, reason))
    }

    #[cold]
    fn memory_is_full(&self, excess: &MemoryExcess) -> String {
        let address = &self.metadata.address;
        match excess {
            MemoryExcess::Broker { bytes, limit } => format!(
                "the broker holds {bytes} bytes of messages that are not saved (limit: {limit} bytes), so queue \
                 {address} takes no more; try again when consumers have caught up, or use a policy that saves messages"
            ),
            MemoryExcess::User { user, bytes, limit } => format!(
                "the broker holds {bytes} bytes of unsaved messages of {user:?} (limit for each user: {limit} bytes), \
                 so queue {address} takes no more of them; try again when consumers have caught up, or use a policy \
                 that saves messages"
            ),
        }
    }

    #[cold]
    fn disk_is_behind(&self, bytes: u64, limit: u64) -> String {
        let address = &self.metadata.address;
        format!(
            "{bytes} bytes of messages wait for the disk (limit: {limit} bytes), so queue {address} takes no more; try \
             again when the disk has caught up"
        )
    }
}
