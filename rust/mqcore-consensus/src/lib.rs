//! Replicas of one log that agree on its entries by the Raft algorithm: a state machine without IO, with ticks as time.
//!
//! A group has one replica on each of three or five nodes. The leader proposes an entry, for example a batch of journal
//! records; the entry is *committed* once a majority has it on disk, and each replica receives the committed entries in the
//! same order. The algorithm itself is the crate `raft`; no other crate sees its types, so that it can be replaced.
//!
//! | module | content |
//! |---|---|
//! | [`membership`] | ids of replicas, the members of a group, and the next safe change of them |
//! | [`log`] | what a replica stores, as a trait |
//! | [`journal_log`] | the same in a journal |
//! | [`message`] | messages between replicas, and their encoding |
//! | [`replica`] | one replica |
//!
//! One thread drives a replica. It passes ticks, messages and proposals in, then calls [`Replica::poll`](replica::Replica::poll)
//! until there is no more work:
//!
//! 1. `poll` has written entries into the log, and not synced them. The caller syncs, one sync for any number of polls, and
//!    meanwhile continues. Then it calls [`persisted`](replica::Replica::persisted).
//! 2. `poll` returns messages that may be sent before the sync, and `persisted` those that had to wait for it. A replica
//!    thus cannot acknowledge what a power failure would take back.
//! 3. `poll` returns committed entries. The caller applies them and calls [`applied`](replica::Replica::applied).
//!
//! **A replica that lost data never returns.** It may have voted, or acknowledged entries, and not know it any more. Its node
//! begins an empty replica with the next generation of its id, which has no vote until the group has copied the log to it and
//! has replaced the old id ([`membership::next_change`]).

pub mod journal_log;
pub mod log;
pub mod membership;
pub mod message;
pub mod replica;
mod storage;
