//! Schedules as the admin side and programs see them.

use mqcore_scheduler::scheduler::EntryId;

/// A schedule, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleView {
    /// A hash of the queue, headers and job.
    pub id: EntryId,
    /// The queue that it names.
    pub queue: String,
    /// The headers of each run.
    pub headers: String,
    /// The job; of a long one the beginning.
    pub job: String,
    /// Milliseconds between two runs; `None`: it has a cron expression.
    pub interval_ms: Option<u64>,
    /// The cron expression and its zone.
    pub cron: Option<(String, String)>,
    /// The treatment of missed runs: `none`, `latest` or `all`.
    pub catch_up: &'static str,
    /// When the next run is due, in Unix milliseconds.
    pub due_ms: u64,
    /// Number of past runs.
    pub runs: u64,
    /// Number of remaining runs; `None`: no limit.
    pub left: Option<u32>,
}

/// Why a schedule was not ended, or not durably.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndScheduleError {
    /// No schedule has this ID.
    #[error(
        "this broker keeps no schedule {0}; list its schedules with `mqcore jobs schedules`; end a schedule of an original scheduler with UNSCHEDULE"
    )]
    Missing(EntryId),
    /// The disk cannot save the end now. Nothing was ended.
    #[error(
        "schedules cannot be saved now, so the schedule was not ended; see the broker's log, fix the cause and try again"
    )]
    Failing,
    /// It has ended, but the disk did not save that.
    #[error(
        "the schedule {id} has ended, but a crash would restore it, because the change could not be saved: {why}"
    )]
    NotSaved {
        /// The schedule.
        id: EntryId,
        /// The error of the disk.
        why: String,
    },
    /// The server stops or has stopped.
    #[error("the server is stopping")]
    Stopping,
}

/// Schedules in the order in which they are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleList {
    /// The number of all schedules.
    pub total: u64,
    /// As many schedules as requested.
    pub schedules: Vec<ScheduleView>,
}
