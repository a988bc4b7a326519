//! Numbers about a running server.
//!
//! | module | contents |
//! |---|---|
//! | `counter` | a monotonic counter |
//! | `counters` | counters that tasks increment |
//! | `snapshot` | one consistent set of numbers from all shards |
//! | `totals` | rates and contents of the last seven days |
//! | `metrics` | both in the Prometheus text format |
//! | `tasks` | why background tasks fail |
//! | [`failures`] | the most recent requests that failed |

pub mod failures;

pub(crate) mod counter;
pub(crate) mod counters;
pub(crate) mod metrics;
pub(crate) mod snapshot;
pub(crate) mod tasks;
pub(crate) mod totals;
