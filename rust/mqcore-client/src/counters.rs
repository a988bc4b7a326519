//! Counters that do not belong to a single call.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that do not belong to a single call.
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    pub(crate) connects: AtomicU64,
    pub(crate) unclaimed: AtomicU64,
    pub(crate) unclaimed_direct: AtomicU64,
    pub(crate) stale_settlements: AtomicU64,
    pub(crate) stale_discarded: AtomicU64,
    pub(crate) dropped_events: AtomicU64,
}

impl ClientCounters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
