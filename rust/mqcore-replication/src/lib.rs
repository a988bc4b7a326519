//! Copies of a data directory on several nodes: what one broker writes is on the disks of a majority before it counts as saved.
//!
//! ```text
//! journals ──> ReplicatedStorage ──> Replicator ──> Member thread ──> log of the group (mqcore-consensus)
//!                    ^ reads                          │                    │ other members
//!                    │                                v committed          v
//!                    └──────────── files <───────── Applier             Applier ──> files
//! ```
//!
//! One node leads and runs the broker. Its journals write through [`ReplicatedStorage`](storage::ReplicatedStorage), which turns
//! each change of a file into an [`FileOperation`](operation::FileOperation). A sync proposes the operations since the last one as
//! entries of the group's log, and returns when they are committed and applied. All members, the leader too, change their
//! files only by applying committed operations in the same order. Every directory is therefore a state that a crash of one
//! broker could have left behind after a sync, and a new leader opens it like after such a crash.
//!
//! | module | content |
//! |---|---|
//! | [`operation`] | changes of files, and their encoding |
//! | [`applier`] | carries out committed operations, and repeats them after a crash |
//! | [`replicator`] | operations on their way to the group |
//! | [`storage`] | the storage of journals over it |
//! | [`shared_files`] | the files that all members have in common |
//! | [`identity`] | which member of which group a directory belongs to |
//! | [`status`], [`input`] | the status of a member, and what its thread hears |
//! | [`link`] | the bytes between two members, with or without TLS |
//! | [`nodes`] | the nodes of a cluster as one of them sees them |
//! | `leadership`, `sync_times` | parts of the status: the leaders so far, and how long syncs take |
//! | [`transport`], [`answering`] | authenticated connections between members |
//! | `small_files` | small files, replaced as a whole |
//! | [`comparing`], [`verifying`] | damaged files: which member has an intact one, and finding them early |
//! | [`copying`] | the copy of a whole directory for a new member |
//! | [`forcing`] | a new group from the files of one member |
//! | [`member`] | one member: the thread that drives its replica |
//! | [`relay`] | clients of a member that does not lead, and the health checks that it answers itself |
//!
//! A member that stops leading restarts its process: clients have to connect again anyway, and no state of the broker can
//! survive by accident.

pub mod answering;
pub mod applier;
mod comparing;
pub mod copying;
pub mod forcing;
pub mod identity;
pub mod input;
mod leadership;
pub mod link;
pub mod member;
pub mod nodes;
pub mod operation;
pub mod relay;
pub mod replicator;
pub mod shared_files;
mod small_files;
pub mod status;
pub mod storage;
mod sync_times;
pub mod transport;
mod verifying;

#[cfg(test)]
mod tests;
