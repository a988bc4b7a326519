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
        "this broker keeps no schedule {0}; 'mqcore jobs schedules' lists those that it does, and one that a scheduler of the original has is ended by UNSCHEDULE"
    )]
    Missing(EntryId),
    /// The disk takes no word of it now. Nothing was ended.
    #[error(
        "schedules cannot be written down now, so the schedule goes on; the log says why, try again when that is mended"
    )]
    Failing,
    /// It has ended, and the disk took no word of that.
    #[error(
        "the schedule {id} has ended, and a crash would bring it back, because that could not be written down: {why}"
    )]
    NotSaved {
        /// Which.
        id: EntryId,
        /// What the disk said.
        why: String,
    },
    /// The server stops or has stopped.
    #[error("the server stops")]
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
