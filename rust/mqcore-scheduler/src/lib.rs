//! Recurring schedules by interval or cron expression.
//!
//! The crate uses no socket, file or clock. Each call takes the current time as an argument, in milliseconds since the Unix
//! epoch, and the caller provides the time zone database. The caller determines the effect of a run.
//!
//! | module | content |
//! |---|---|
//! | [`cron`] | cron expressions, and the times that they match in a zone |
//! | [`plan`] | when an entry is due, how often, and what happens to missed runs |
//! | [`scheduler`] | up to a million entries, and which of them are due |
//! | [`clock`] | detects when the system clock is set |
//! | [`record`] | the binary format of a persisted entry |

pub mod clock;
pub mod cron;
pub mod plan;
pub mod record;
pub mod scheduler;
