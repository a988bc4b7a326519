//! The data that a replica stores.

use std::error::Error;
use std::ops::Range;

use bytes::Bytes;

use crate::membership::{GroupMembers, ReplicaId};

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// The content of a [proposal](crate::replica::Replica::propose). Empty: the first entry of a leader.
    Batch,
    /// A change of the members, in an encoding of its own.
    Membership,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Place in the log. The first entry has index 1.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// Kind of the content.
    pub kind: EntryKind,
    /// The content.
    pub data: Bytes,
}

/// The state that a replica keeps besides its log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ballot {
    /// The latest term that the replica knows.
    pub term: u64,
    /// For whom it voted in that term.
    pub voted_for: Option<ReplicaId>,
    /// All entries up to this index are committed, as far as the replica knows.
    pub committed: u64,
}

/// The state after all entries up to an index, in place of these entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogSnapshot {
    /// Index of the last entry that it contains; 0: the log is empty and has no members yet.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// The members after that entry.
    pub membership: GroupMembers,
    /// The state, or where to fetch it.
    pub data: Bytes,
}

/// The log of a replica. One thread writes and reads it.
///
/// Everything written can be read at once, and becomes durable with the next sync that the caller of the replica makes. **A
/// crash keeps a prefix of what was written since the last sync**, in the order of the calls.
pub trait ReplicatedLog {
    /// Why something could not be read or written.
    type Error: Error + Send + Sync + 'static;

    /// The ballot that was written last.
    fn ballot(&self) -> Ballot;

    /// The index of the snapshot that the log begins with, its term, and the members after it. A log of a new group begins with
    /// a snapshot of index 1, so that a replica which joins later begins with a snapshot too and learns the members.
    fn base(&self) -> (u64, u64, GroupMembers);

    /// Index of the last entry, or of the snapshot if there is none.
    fn last_index(&self) -> u64;

    /// Term of an entry after the snapshot; `None`: there is no such entry.
    fn term(&self, index: u64) -> Option<u64>;

    /// The entries of a range that is in the log: as many as have `max_bytes` of data together, and at least one.
    ///
    /// # Errors
    /// The disk cannot read them. The replica must not be used any more.
    fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogEntry>, Self::Error>;

    /// A snapshot that is not older than the one that the log begins with, for a replica that lacks the entries before it. If
    /// it is too old, [`take_snapshot_request`](crate::replica::Replica::take_snapshot_request) reports it.
    ///
    /// # Errors
    /// It cannot be made now. The replica tries again later.
    fn snapshot(&self) -> Result<LogSnapshot, Self::Error>;

    /// Writes entries whose indexes ascend by one, and the ballot if it has changed. Takes back all entries from the first of
    /// these indexes on.
    ///
    /// **A crash must keep both or neither.** The entry that completes a change of the members arrives with the news that the
    /// beginning of this change is committed. A replica that kept the entry alone would be allowed to become leader by the
    /// votes of the former members, without the entries that the new ones have committed.
    ///
    /// # Errors
    /// The disk cannot write. The replica must not be used any more.
    fn append(&mut self, entries: Vec<LogEntry>, ballot: Option<Ballot>) -> Result<(), Self::Error>;

    /// Replaces the whole log by a snapshot. The replica calls [`Self::sync`] soon after.
    ///
    /// # Errors
    /// Like [`Self::append`].
    fn install(&mut self, snapshot: &LogSnapshot) -> Result<(), Self::Error>;

    /// Makes everything durable that was written so far. Only snapshots need it: the caller makes all other syncs.
    ///
    /// # Errors
    /// Like [`Self::append`].
    fn sync(&mut self) -> Result<(), Self::Error>;
}
