//! Memory of waiting messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of saved messages that wait in memory, over all queues of a shard. Only the shard writes, so
/// plain loads and stores are enough; atomic because a shard moves between threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryGauge(Arc<AtomicU64>);

impl MemoryGauge {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.store(self.get() + bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        self.0.store(self.get().saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Approximate number of queues that share this gauge.
    pub(crate) fn queues(&self) -> u64 {
        // Each queue has one clone for its lists and one for its pending loads.
        (Arc::strong_count(&self.0) as u64).div_ceil(2)
    }
}
