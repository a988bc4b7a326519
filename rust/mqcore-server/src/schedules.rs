//! Schedules: the thread that runs them, and its interface.
//!
//! | module | contents |
//! |---|---|
//! | [`end`] | why a schedule was not ended |
//! | [`port`] | the interface to the thread |
//! | [`worker`] | the thread that runs schedules |

use std::sync::Arc;

use mqcore_scheduler::plan::{CatchUp, CronInZone, Plan, PlanError, Recurrence};

mod end;
pub(crate) mod port;
pub(crate) mod worker;

pub use self::end::EndScheduleError;
pub use mqcore_scheduler::scheduler::{EntryId, EntryIdError};
pub use mqcore_state::schedules::view::{ScheduleList, ScheduleView};

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
