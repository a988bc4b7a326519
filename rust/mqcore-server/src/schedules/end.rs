//! Why a schedule was not ended.

use mqcore_scheduler::scheduler::EntryId;

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
