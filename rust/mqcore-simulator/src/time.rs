//! Virtual time.

use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

/// Virtual time in microseconds since the run began.
pub(crate) type Micros = u64;

/// The broker's clock when a run begins, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_800_000_000_000;

/// The broker's clock, which is that of the system at its start and monotonic from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BrokerClock {
    /// Its time when the run begins, in milliseconds since the Unix epoch.
    origin_ms: u64,
}

impl BrokerClock {
    /// A clock that differs from the one of the run's beginning.
    pub(crate) fn jumped(seconds: i64) -> Self {
        Self { origin_ms: START_MS.saturating_add_signed(seconds * 1000) }
    }

    /// By how many microseconds it is ahead of another clock.
    pub(crate) fn ahead_of(self, other: Self) -> i64 {
        (self.origin_ms.cast_signed() - other.origin_ms.cast_signed()) * 1000
    }

    /// Its time at a virtual time.
    pub(crate) fn timestamp_of(self, now: Micros) -> Timestamp {
        Timestamp(self.origin_ms + now / 1000)
    }

    /// Its time in nanoseconds at a virtual time.
    pub(crate) fn nanos_of(self, now: Micros) -> Nanos {
        Nanos(self.origin_ms * 1_000_000 + now * 1000)
    }

    /// The time at which it shows this.
    pub(crate) fn micros_of(self, timestamp: Timestamp) -> Micros {
        timestamp.0.saturating_sub(self.origin_ms).saturating_mul(1000)
    }
}
