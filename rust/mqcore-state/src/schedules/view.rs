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

/// Schedules in the order in which they are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleList {
    /// The number of all schedules.
    pub total: u64,
    /// As many schedules as requested.
    pub schedules: Vec<ScheduleView>,
}
