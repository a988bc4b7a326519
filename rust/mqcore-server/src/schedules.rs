//! Schedules: requests of clients, due runs, and how each run becomes exactly one job.
//!
//! | module | contents |
//! |---|---|
//! | [`ended`] | schedules that must not start again |
//! | [`keeper`] | schedules, due runs, and runs in flight to queues |
//! | [`queues`] | the queue of each schedule, for the check of rights |
//! | [`store`] | the journal of schedules |
//! | [`port`] | the interface to the thread |
//! | [`publisher`] | the client that publishes runs |
//! | [`view`] | schedules as the admin side and programs see them |
//! | [`worker`] | the thread that runs schedules |
//!
//! Exactly once: a run is saved, with the state of its schedule after it, before it is sent to a queue. Its number is
//! the ticket that the queue's shard checks, as for messages from other brokers: the shard accepts each ticket once,
//! even across crashes. Runs that were not confirmed are sent again at the start, under their old numbers.

use std::sync::Arc;

use mqcore_scheduler::plan::{CatchUp, CronInZone, Plan, PlanError, Recurrence};

#[cfg(test)]
mod crashes;
mod ended;
pub(crate) mod keeper;
pub(crate) mod port;
pub(crate) mod publisher;
pub(crate) mod queues;
pub(crate) mod store;
pub(crate) mod view;
pub(crate) mod worker;

pub use self::view::{EndScheduleError, ScheduleList, ScheduleView};
pub use mqcore_scheduler::scheduler::{EntryId, EntryIdError};

/// Checks a cron expression and the name of a time zone, as the broker does for a schedule. An empty zone means UTC.
///
/// # Errors
/// [`PlanError`] if the expression is invalid or matches no time, or the zone is unknown.
pub fn check_cron(expression: &str, zone: &str) -> Result<(), PlanError> {
    let when = Recurrence::Cron(Arc::new(CronInZone::new(expression, zone, jiff::tz::db())?));
    Plan { when, catch_up: CatchUp::default(), at_once: false, runs: None }.begin(0).map(drop)
}

/// The names of all time zones that [`check_cron`] accepts.
#[must_use]
pub fn time_zones() -> Vec<String> {
    jiff::tz::db().available().map(|name| name.to_string()).collect()
}
