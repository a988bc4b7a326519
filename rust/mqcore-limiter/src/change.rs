//! What persistence needs: what has changed since it asked last, and how a store is filled with what was kept.

use crate::time::Nanos;

/// A counter or buffer with everything that makes it one, so that it can be put back as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its number: no two of a store have the same, and later ones are larger.
    pub sequence: u64,
    /// Its key.
    pub key: Box<[u8]>,
    /// The unit of its time to live.
    pub unit: u8,
    /// When it expires.
    pub deadline: Nanos,
    /// What it holds.
    pub content: Content,
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A quota, and the bits of its width.
    Counter {
        /// What is left.
        quota: u64,
        /// 8, 16, 32 or 64: where it wraps.
        bits: u8,
    },
    /// Bytes.
    Buffer(Box<[u8]>),
    /// A sliding window.
    Sliding {
        /// When its current period began.
        start: Nanos,
        /// Nanoseconds of a period.
        period: u64,
        /// The limit that was last applied.
        limit: u64,
        /// Taken in the current period.
        current: u64,
        /// Taken in the one before.
        previous: u64,
    },
    /// A bucket.
    Bucket {
        /// The moment that `missing` is about.
        at: Nanos,
        /// Nanoseconds in which it refills.
        period: u64,
        /// What it holds when it is full.
        limit: u64,
        /// What was missing, in units of the `period`-th part of one.
        missing: u128,
    },
}

/// One difference from what was fetched before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This is new, or different from what was fetched under its number.
    Put(Kept),
    /// What was fetched under this number is gone.
    Remove(u64),
}

impl Kept {
    /// The same, so many nanoseconds earlier: on a clock that shows less than the one by which it was kept.
    #[must_use]
    pub fn earlier(mut self, nanos: u64) -> Self {
        if self.deadline != Nanos::NEVER {
            self.deadline = self.deadline.before(nanos);
        }
        match &mut self.content {
            Content::Counter { .. } | Content::Buffer(_) => {}
            Content::Sliding { start: moment, .. } | Content::Bucket { at: moment, .. } => {
                *moment = moment.before(nanos);
            }
        }
        self
    }
}
