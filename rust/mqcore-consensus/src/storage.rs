//! The log as the crate `raft` reads it, and conversions of its types.

use std::cell::Cell;
use std::collections::BTreeSet;

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot as RaftSnapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::log::{Ballot, EntryKind, LogEntry, LogSnapshot, ReplicatedLog};
use crate::membership::{GroupMembers, ReplicaId};

/// Adapts a log to the interface that the crate `raft` reads.
pub(crate) struct LogStorage<L: ReplicatedLog> {
    pub(crate) log: L,
    /// Whether a member needs a newer snapshot than the log has.
    pub(crate) wants_snapshot: Cell<bool>,
    /// Snapshots have no state, so that no member gets one.
    pub(crate) is_witness: bool,
    /// Why entries could not be read. The crate `raft` panics on errors of its storage, so that it gets no entries instead,
    /// and the replica must not be used any more.
    pub(crate) failure: Cell<Option<L::Error>>,
}

impl<L: ReplicatedLog> Storage for LogStorage<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let (base, _, membership) = self.log.base();
        let ballot = self.log.ballot();
        // A crash may keep a new snapshot without the ballot that was written after it.
        let ballot = Ballot { committed: ballot.committed.max(base), ..ballot };
        Ok(RaftState { hard_state: ballot_to_raft(ballot), conf_state: membership_to_raft(&membership) })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.log.base().0 {
            return Err(StorageError::Compacted.into());
        }
        match self.log.entries(low..high, max_size.into().unwrap_or(u64::MAX)) {
            Ok(entries) => Ok(entries.into_iter().map(entry_to_raft).collect()),
            Err(error) => {
                self.failure.set(Some(error));
                Ok(Vec::new())
            }
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (base, term, _) = self.log.base();
        if index == base {
            return Ok(term);
        }
        let missing = if index < base { StorageError::Compacted } else { StorageError::Unavailable };
        self.log.term(index).ok_or_else(|| missing.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.base().0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.last_index())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<RaftSnapshot> {
        // The crate `raft` asks again after the next heartbeat.
        let unavailable = || raft::Error::from(StorageError::SnapshotTemporarilyUnavailable);
        if self.is_witness {
            return Err(unavailable());
        }
        let snapshot = self.log.snapshot().map_err(|_| unavailable())?;
        // A replica refuses a snapshot from the time before it became a member.
        let members = &snapshot.membership;
        let is_member = ReplicaId::from_number(to)
            .is_some_and(|to| members.voters.contains(&to) || members.learners.contains(&to));
        if snapshot.index < request_index.max(1) || !is_member {
            self.wants_snapshot.set(true);
            return Err(unavailable());
        }
        Ok(snapshot_to_raft(&snapshot))
    }
}

pub(crate) fn entry_to_raft(entry: LogEntry) -> Entry {
    let kind = match entry.kind {
        EntryKind::Batch => EntryType::EntryNormal,
        EntryKind::Membership => EntryType::EntryConfChangeV2,
    };
    Entry { entry_type: kind, term: entry.term, index: entry.index, data: entry.data, ..Entry::default() }
}

pub(crate) fn entry_from_raft(entry: Entry) -> LogEntry {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => EntryKind::Batch,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => EntryKind::Membership,
    };
    LogEntry { index: entry.index, term: entry.term, kind, data: entry.data }
}

fn ballot_to_raft(ballot: Ballot) -> HardState {
    let vote = ballot.voted_for.map_or(0, ReplicaId::to_number);
    HardState { term: ballot.term, vote, commit: ballot.committed, ..HardState::default() }
}

pub(crate) fn ballot_from_raft(state: &HardState) -> Ballot {
    Ballot { term: state.term, voted_for: ReplicaId::from_number(state.vote), committed: state.commit }
}

fn membership_to_raft(members: &GroupMembers) -> ConfState {
    let numbers = |replicas: &BTreeSet<ReplicaId>| replicas.iter().map(|id| id.to_number()).collect();
    ConfState {
        voters: numbers(&members.voters),
        learners: numbers(&members.learners),
        voters_outgoing: numbers(&members.outgoing),
        learners_next: numbers(&members.demoted),
        // A change that is not complete continues without another decision.
        auto_leave: members.is_changing(),
        ..ConfState::default()
    }
}

pub(crate) fn membership_from_raft(state: &ConfState) -> GroupMembers {
    let ids = |numbers: &[u64]| numbers.iter().filter_map(|&number| ReplicaId::from_number(number)).collect();
    GroupMembers {
        voters: ids(&state.voters),
        learners: ids(&state.learners),
        outgoing: ids(&state.voters_outgoing),
        demoted: ids(&state.learners_next),
    }
}

pub(crate) fn snapshot_to_raft(snapshot: &LogSnapshot) -> RaftSnapshot {
    let mut converted = RaftSnapshot { data: snapshot.data.clone(), ..RaftSnapshot::default() };
    let metadata = converted.mut_metadata();
    (metadata.index, metadata.term) = (snapshot.index, snapshot.term);
    metadata.set_conf_state(membership_to_raft(&snapshot.membership));
    converted
}

pub(crate) fn snapshot_from_raft(snapshot: &RaftSnapshot) -> LogSnapshot {
    let metadata = snapshot.get_metadata();
    LogSnapshot {
        index: metadata.index,
        term: metadata.term,
        membership: membership_from_raft(metadata.get_conf_state()),
        data: snapshot.data.clone(),
    }
}
