//! Persistence: the changes since the last fetch, and the entries to restore.

use crate::time::Nanos;

/// A counter or buffer with all its properties, so that it can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentEntry {
    /// Unique number within a store. Later entries have larger numbers.
    pub sequence: u64,
    /// Key.
    pub key: Box<[u8]>,
    /// Unit of the time to live.
    pub unit: u8,
    /// Time of expiry.
    pub deadline: Nanos,
    /// Content.
    pub content: PersistentContent,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistentContent {
    /// A quota and its width.
    Counter {
        /// Remaining quota.
        quota: u64,
        /// Width in bits, at which the counter wraps around: 8, 16, 32 or 64.
        bits: u8,
    },
    /// Bytes of a buffer.
    Buffer(Box<[u8]>),
    /// A sliding window.
    Sliding {
        /// Beginning of the current period.
        start: Nanos,
        /// Length of a period in nanoseconds.
        period: u64,
        /// Limit that was applied last.
        limit: u64,
        /// Consumption in the current period.
        current: u64,
        /// Consumption in the previous period.
        previous: u64,
    },
    /// A token bucket.
    Bucket {
        /// Time to which `missing` refers.
        at: Nanos,
        /// Nanoseconds in which the whole bucket refills.
        period: u64,
        /// Capacity in tokens.
        limit: u64,
        /// Missing tokens, in units of 1/`period` token.
        missing: u128,
    },
}

/// A difference from the last fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryChange {
    /// An entry is new, or differs from the one fetched with this number.
    Put(PersistentEntry),
    /// The entry fetched with this number was removed.
    Remove(u64),
}

impl PersistentEntry {
    /// Shifts all times back by `nanos`, for a clock that is behind the one with which the entry was stored.
    #[must_use]
    pub fn earlier(mut self, nanos: u64) -> Self {
        if self.deadline != Nanos::NEVER {
            self.deadline = self.deadline.before(nanos);
        }
        match &mut self.content {
            PersistentContent::Counter { .. } | PersistentContent::Buffer(_) => {}
            PersistentContent::Sliding { start: moment, .. }
            | PersistentContent::Bucket { at: moment, .. } => {
                *moment = moment.before(nanos);
            }
        }
        self
    }
}
