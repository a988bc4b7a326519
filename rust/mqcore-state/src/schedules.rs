//! Schedules: due runs, and how each run becomes exactly one job.
//!
//! | module | contents |
//! |---|---|
//! | [`keeper`] | schedules, due runs, and runs in flight to queues |
//! | [`draft`] | requests for schedules, parsed |
//! | [`rounds`] | in which order the keeper, its journal and the shards work |
//! | [`queues`] | the queue of each schedule, for the check of rights |
//! | [`store`] | the journal of schedules |
//! | [`publisher`] | the client that publishes runs |
//! | [`view`] | schedules as the admin side and programs see them |
//! | `ended` | schedules that must not start again |
//!
//! Exactly once: a run is saved, with the state of its schedule after it, before it is sent to a queue. Its number is
//! the ticket that the queue's shard checks, as for messages from other brokers: the shard accepts each ticket once,
//! even across crashes. Runs that were not confirmed are sent again at the start, under their old numbers.

#[cfg(test)]
mod crashes;
pub mod draft;
mod ended;
pub mod keeper;
pub mod publisher;
pub mod queues;
pub mod rounds;
pub mod store;
#[cfg(test)]
mod tests;
pub mod view;
