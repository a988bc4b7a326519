//! A monotonic counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// A monotonic counter. Relaxed, because counters are read independently of each other.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
