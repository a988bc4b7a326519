//! Schedules as the admin side and programs see them.

use mqcore_scheduler::scheduler::EntryId;

/// A schedule, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleView {
    /// A hash of the call that it makes.
    pub id: EntryId,
    /// The queue that it names.
    pub queue: String,
    /// The headers of each run.
    pub headers: String,
    /// What is to be done; of a long one the beginning.
    pub job: String,
    /// Milliseconds between two runs; `None`: it has a cron expression.
    pub interval_ms: Option<u64>,
    /// The cron expression and its zone.
    pub cron: Option<(String, String)>,
    /// What becomes of runs that were missed: `none`, `latest` or `all`.
    pub catch_up: &'static str,
    /// When it is due next, in Unix milliseconds.
    pub due_ms: u64,
    /// How often it ran.
    pub runs: u64,
    /// How often it still runs; `None`: without end.
    pub left: Option<u32>,
}

/// Why a schedule was not ended, or not for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndScheduleError {
    /// There is none of this id.
    #[error(
        "this broker keeps no schedule {0}; list its schedules with `mqcore jobs schedules`; end a schedule of an original scheduler with UNSCHEDULE"
    )]
    Missing(EntryId),
    /// The disk takes no word of it now. Nothing was ended.
    #[error(
        "schedules cannot be saved now, so the schedule was not ended; see the broker's log, fix the cause and try again"
    )]
    Failing,
    /// It has ended, and the disk took no word of that.
    #[error(
        "the schedule {id} has ended, but a crash would restore it, because the change could not be saved: {why}"
    )]
    NotSaved {
        /// Which.
        id: EntryId,
        /// What the disk said.
        why: String,
    },
    /// The server stops or has stopped.
    #[error("the server is stopping")]
    Stopping,
}

/// Schedules, those that are due next first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleList {
    /// How many there are in all.
    pub total: u64,
    /// As many as were asked for.
    pub schedules: Vec<ScheduleView>,
}
