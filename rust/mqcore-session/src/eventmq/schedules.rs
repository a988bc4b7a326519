//! What is asked of whoever keeps schedules inside of this broker.

use std::fmt;

use mqcore_broker::rejection::Rejection;
use mqcore_wire::eventmq::headers::Headers;

/// A job that is to run again and again, as a client wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRequest {
    /// The client's id for the request.
    pub id: Box<[u8]>,
    /// The queue that each run goes to.
    pub queue: Box<[u8]>,
    /// The headers of each run, as text.
    pub headers: Box<[u8]>,
    /// What the headers say: `nohaste` and `run_count` are about the schedule, the others about each run.
    pub wishes: Headers,
    /// Seconds between two runs, as text; `-1` where `cron` says when. `None`: the request does not say.
    pub interval: Option<Box<[u8]>>,
    /// What is to be done.
    pub job: Box<[u8]>,
    /// A cron expression, or nothing.
    pub cron: Option<Box<[u8]>>,
}

/// Keeps schedules. Called while a connection reads, so it hands the work on and does not wait.
pub trait Schedules: fmt::Debug + Send + Sync {
    /// Takes a schedule, in the place of an equal one.
    ///
    /// # Errors
    /// Why it cannot be kept; told to nobody but the log, as the protocol has no answer.
    fn schedule(&self, request: ScheduleRequest) -> Result<(), Rejection>;

    /// Ends a schedule.
    ///
    /// # Errors
    /// As [`Schedules::schedule`].
    fn unschedule(&self, request: ScheduleRequest) -> Result<(), Rejection>;
}
