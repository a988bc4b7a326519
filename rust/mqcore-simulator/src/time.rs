//! Virtual time.

use mqcore_broker::model::time::Timestamp;

/// Virtual time in microseconds since the run began.
pub(crate) type Micros = u64;

/// The broker's clock when a run begins, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_800_000_000_000;

/// The broker's clock at this time.
pub(crate) fn timestamp_of(now: Micros) -> Timestamp {
    Timestamp(START_MS + now / 1000)
}

/// The time at which the broker's clock shows this.
pub(crate) fn micros_of(timestamp: Timestamp) -> Micros {
    timestamp.0.saturating_sub(START_MS).saturating_mul(1000)
}
