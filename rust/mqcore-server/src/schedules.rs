//! Schedules that this broker keeps: what clients of EventMQ ask for, what is due, and how a run becomes one job and no more.
//!
//! | module | what lives there |
//! |---|---|
//! | [`keeper`] | what is planned, what is due, and what is on its way to queues |
//! | [`store`] | what is written down of it |
//! | [`port`] | how sessions reach it, and the thread that does the work |
//!
//! Exactly once: a run is written down, with the state of its schedule behind it, before any queue hears of it. Its number is the
//! ticket with which the queue's shard takes it, as it takes what other brokers pass on: a ticket that comes twice is taken once,
//! also after a crash. Whatever was not confirmed is sent again, under its old number, when the broker starts.

#[cfg(test)]
mod crashes;
pub(crate) mod keeper;
pub(crate) mod port;
pub(crate) mod store;

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;

pub use mqcore_scheduler::scheduler::{EntryId, EntryIdError};

/// The connection that runs of schedules come from. No socket has it.
pub(crate) const CONNECTION: ConnectionId = ConnectionId(u64::MAX);

/// Who publishes runs of schedules.
pub(crate) fn client() -> Arc<Client> {
    Arc::new(Client {
        connection: CONNECTION,
        id: mqcore_broker::model::intake::SCHEDULES.into(),
        name: None,
        kind: None,
        protocol: "emqp",
        admin: true,
        connected_at: Timestamp(0),
    })
}

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
