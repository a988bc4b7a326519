//! The state of a broker beside its queues: limits, schedules and results of jobs, and the journals in which they survive a crash.
//!
//! Contains no thread, clock or socket: the server's threads and the simulator call it with the time and a storage.
//!
//! | module | contents |
//! |---|---|
//! | [`jobs`] | results, cancellations and flows of jobs |
//! | [`limits`] | limits that survive a restart |
//! | [`schedules`] | schedules, and their runs in flight to queues |

#![forbid(unsafe_code)]

pub mod jobs;
pub mod limits;
pub mod schedules;
