//! Limits of a scenario: keys of the limiter, and what their clients do with them.

use mqcore_testkit::Random;

/// A key of the limiter. Exactly one client uses it, so that the model knows the order of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedLimit {
    /// The content of the key.
    pub kind: LimitKind,
    /// Quota of a counter, or of a period.
    pub limit: u64,
    /// Time to live, or length of a period, in microseconds.
    pub period_micros: u64,
    /// Whether it survives a restart.
    pub persists: bool,
}

/// The content of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// A counter, changed by INSERT and UPDATE.
    Counter,
    /// A buffer, changed by SET.
    Buffer,
    /// The quota of a fixed window, changed by CONSUME.
    Fixed,
    /// A sliding window.
    Sliding,
    /// A token bucket.
    Bucket,
}

/// A use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// Creates a counter; sets a buffer; consumes this much.
    Spend(u64),
    /// Sets the quota of a counter; sets a buffer; returns this much to the quota.
    Restore(u64),
    /// Reads the state.
    Read,
    /// Removes the key.
    Purge,
}

impl SimulatedLimit {
    pub(super) fn choose(random: &mut Random) -> Self {
        use LimitKind::{Bucket, Buffer, Counter, Fixed, Sliding};
        Self {
            kind: [Counter, Buffer, Fixed, Sliding, Bucket][random.index(5)],
            limit: [1, 5, 40][random.index(3)],
            period_micros: [150_000, 1_000_000, 10_000_000, 300_000_000][random.index(4)],
            persists: !random.one_in(5),
        }
    }

    /// The bytes of its key.
    pub(crate) fn key(index: usize) -> String {
        format!("key{index}")
    }
}

impl LimitAction {
    pub(super) fn choose(random: &mut Random) -> Self {
        let amount = [1, 1, 2, 5, 50][random.index(5)];
        match random.below(12) {
            0..7 => Self::Spend(amount),
            7 | 8 => Self::Restore(amount),
            9 | 10 => Self::Read,
            _ => Self::Purge,
        }
    }
}
