//! Schedules that this broker keeps: requests of clients, what is due, and how each run becomes exactly one job.
//!
//! | module | what lives there |
//! |---|---|
//! | [`keeper`] | what is planned, what is due, and what is on its way to queues |
//! | [`store`] | what is written down of it |
//! | [`port`] | how sessions reach it |
//! | [`publisher`] | the client that publishes runs |
//! | [`view`] | schedules as the admin side and programs see them |
//! | [`worker`] | the thread that does the work |
//!
//! Exactly once: a run is written down, with the state of its schedule behind it, before any queue hears of it. Its number is the
//! ticket with which the queue's shard takes it, as it takes what other brokers pass on: a ticket that comes twice is taken once,
//! also after a crash. Whatever was not confirmed is sent again, under its old number, when the broker starts.

#[cfg(test)]
mod crashes;
pub(crate) mod keeper;
pub(crate) mod port;
pub(crate) mod publisher;
pub(crate) mod store;
pub(crate) mod view;
pub(crate) mod worker;

pub use self::view::{EndScheduleError, ScheduleList, ScheduleView};
pub use mqcore_scheduler::scheduler::{EntryId, EntryIdError};
