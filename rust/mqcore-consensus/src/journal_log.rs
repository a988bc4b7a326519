//! The log of a replica in a journal of its own.
//!
//! Each entry is a live record with the number of the journal; the index, the term and the kind are in its payload. A later
//! record with the same or a smaller index takes back all entries from that index on. The snapshot that the log begins with is
//! the definition `base`, with the number of the first record that counts.
//!
//! The ballot is part of the first entry that was written with it, because a crash must keep both or neither; a ballot
//! without entries, and one whose entry is about to be removed, is the definition `ballot`. Terms and commit indexes only
//! ascend, so that the greatest ballot is the latest.
//!
//! The journal gives crash safety, checksums, and a report of damage. After damage, the replica must not continue
//! ([`OpenError::Damaged`]).

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::maintenance::Maintenance;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::storage::Storage;
use mqcore_journal::varint::push;

use crate::log::{Ballot, EntryKind, LogEntry, LogSnapshot, ReplicatedLog};
use crate::membership::{GroupMembers, ReplicaId};
use crate::message::{DecodeError, Input, encode_snapshot};

const BASE: &[u8] = b"base";
const BALLOT: &[u8] = b"ballot";
/// Bits of the byte before an entry's data.
const IS_MEMBERSHIP: u8 = 1;
const HAS_BALLOT: u8 = 2;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal cannot be opened. Nothing is known about the log.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The log has lost something that it may have acknowledged.
    #[error(
        "the log of the replica is damaged; begin an empty replica with the next generation of its id:\n{0}"
    )]
    Damaged(Box<RecoveryReport>),
    /// A record is intact, and not what this version writes.
    #[error("record {sequence} of the log is not an entry: {why}; upgrade this node")]
    Unknown {
        /// Number of the record.
        sequence: u64,
        /// The part that cannot be read.
        why: DecodeError,
    },
}

/// An entry in the journal.
#[derive(Debug, Clone, Copy)]
struct Stored {
    sequence: u64,
    term: u64,
}

/// The log of a replica in a journal. See the [module documentation](self).
pub struct JournalLog<S: Storage> {
    journal: Journal<S>,
    base: LogSnapshot,
    /// The entries after the snapshot.
    entries: VecDeque<Stored>,
    ballot: Ballot,
    /// Whether the definition `ballot` is up to date. Otherwise, an entry has the ballot.
    is_ballot_defined: bool,
}

impl<S: Storage> JournalLog<S> {
    /// Opens the log in `storage`, or creates an empty one.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(storage: S, options: Options) -> Result<Self, OpenError> {
        Self::open_with_progress(storage, options, &mut || {})
    }

    /// The same as [`Self::open`]. Calls `progress` now and then, because a long log takes a while.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with_progress(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(),
    ) -> Result<Self, OpenError> {
        // Opening repairs what it reports. A damaged log must stay as it is, or the next opening would not report it.
        let mut damaged = None;
        let mut refuse_damage = |report: &RecoveryReport| {
            if !report.is_alarming() {
                return Ok(());
            }
            damaged = Some(Box::new(report.clone()));
            Err(JournalError::Damaged { segment: 0, offset: 0, why: "the log of a replica must be complete" })
        };
        let opened = Journal::open_with_observers(
            storage,
            options,
            &mut |_, _| progress(),
            &mut |_, _| {},
            &mut refuse_damage,
        );
        if let Some(report) = damaged {
            return Err(OpenError::Damaged(report));
        }
        let (journal, recovered) = opened?;
        let mut log = Self {
            journal,
            base: LogSnapshot::default(),
            entries: VecDeque::new(),
            ballot: Ballot::default(),
            is_ballot_defined: true,
        };
        let mut first = 0;
        for (key, value) in recovered.definitions {
            let value = Bytes::from(value);
            let mut input = Input::new(&value);
            let unknown = |why| OpenError::Unknown { sequence: 0, why };
            match key.as_slice() {
                BASE => {
                    first = input.number("first record").map_err(unknown)?;
                    log.base = input.snapshot().map_err(unknown)?;
                }
                BALLOT => log.ballot = read_ballot(&mut input).map_err(unknown)?,
                _ => {}
            }
        }
        log.read_entries(first, progress)?;
        // A crash may keep only the first of several entries, with the ballot of all of them.
        log.ballot.committed = log.ballot.committed.min(log.last_index()).max(log.base.index);
        log.settle_leftovers()?;
        Ok(log)
    }

    /// Begins the log of one of the first members of a group. The log must be empty.
    ///
    /// # Errors
    /// The journal has failed, or the disk is full.
    ///
    /// # Panics
    /// If the log is not empty.
    pub fn begin_group(&mut self, members: &GroupMembers) -> Result<(), JournalError> {
        assert!(self.last_index() == 0, "a group begins with empty logs");
        self.ballot = Ballot { term: 1, voted_for: None, committed: 1 };
        self.define_ballot()?;
        self.replace_base(&LogSnapshot {
            index: 1,
            term: 1,
            membership: members.clone(),
            data: Bytes::new(),
        })?;
        self.journal.write()?;
        self.journal.sync()
    }

    /// Replaces the entries up to that of a snapshot by the snapshot, which must contain all of them. Ignores a snapshot that
    /// is not newer.
    ///
    /// # Errors
    /// The journal has failed, or the disk is full.
    pub fn compact(&mut self, snapshot: &LogSnapshot) -> Result<(), JournalError> {
        let count = snapshot.index.saturating_sub(self.base.index) as usize;
        if count == 0 || snapshot.index > self.last_index() {
            return Ok(());
        }
        self.define_ballot()?;
        let dropped: Vec<u64> = self.entries.drain(..count).map(|entry| entry.sequence).collect();
        self.replace_base(snapshot)?;
        self.journal.settle(&dropped)?;
        self.journal.write()
    }

    /// A step of the journal's housekeeping, which removes the files of entries that are not needed any more. See
    /// [`Journal::maintain`].
    ///
    /// # Errors
    /// The same as [`Journal::maintain`].
    pub fn maintain(&mut self, now_ms: u64, budget_bytes: usize) -> Result<Maintenance, JournalError> {
        self.journal.maintain(now_ms, budget_bytes)
    }

    /// The journal, for its statistics.
    #[must_use]
    pub fn journal(&self) -> &Journal<S> {
        &self.journal
    }

    fn read_entries(&mut self, first: u64, progress: &mut dyn FnMut()) -> Result<(), OpenError> {
        let mut failed = None;
        let (mut entries, mut ballot) = (VecDeque::new(), self.ballot);
        let base = self.base.index;
        self.journal.each_live(first, &mut |sequence, live| {
            progress();
            let read = live.map_err(OpenError::Journal).and_then(|live| {
                let payload = Bytes::copy_from_slice(live.payload);
                parse(&payload).map_err(|why| OpenError::Unknown { sequence, why })
            });
            match read {
                Ok((entry, carried)) => {
                    if let Some(place) = entry.index.checked_sub(base + 1) {
                        entries.truncate(place as usize);
                        entries.push_back(Stored { sequence, term: entry.term });
                    }
                    if let Some(carried) = carried.filter(|carried| rank(carried) > rank(&ballot)) {
                        (ballot, self.is_ballot_defined) = (carried, false);
                    }
                }
                Err(error) => failed = failed.take().or(Some(error)),
            }
        });
        (self.entries, self.ballot) = (entries, ballot);
        failed.map_or(Ok(()), Err)
    }

    /// Settles records that are not entries any more. A crash may keep what replaced them without their settlement, and their
    /// files could never be removed.
    fn settle_leftovers(&mut self) -> Result<(), JournalError> {
        let is_entry =
            |sequence| self.entries.binary_search_by_key(&sequence, |entry| entry.sequence).is_ok();
        let leftovers: Vec<u64> = self.journal.live().filter(|&sequence| !is_entry(sequence)).collect();
        if leftovers.is_empty() {
            return Ok(());
        }
        self.define_ballot()?;
        self.journal.settle(&leftovers)?;
        self.journal.write()
    }

    fn stored(&self, index: u64) -> Option<Stored> {
        let place = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(place).ok()?).copied()
    }

    fn define_ballot(&mut self) -> Result<(), JournalError> {
        let mut value = Vec::new();
        push_ballot(&self.ballot, &mut value);
        self.journal.define(BALLOT, &value)?;
        self.is_ballot_defined = true;
        Ok(())
    }

    fn replace_base(&mut self, snapshot: &LogSnapshot) -> Result<(), JournalError> {
        let first = self.entries.front().map_or(self.journal.next_sequence(), |entry| entry.sequence);
        let mut value = Vec::new();
        push(&mut value, first);
        encode_snapshot(snapshot, &mut value);
        self.journal.define(BASE, &value)?;
        self.base = snapshot.clone();
        Ok(())
    }

    fn put(&mut self, entry: &LogEntry, ballot: Option<&Ballot>) -> Result<(), JournalError> {
        let mut head = Vec::new();
        push(&mut head, entry.index);
        push(&mut head, entry.term);
        let kind = if entry.kind == EntryKind::Membership { IS_MEMBERSHIP } else { 0 };
        head.push(kind | if ballot.is_some() { HAS_BALLOT } else { 0 });
        if let Some(ballot) = ballot {
            push_ballot(ballot, &mut head);
        }
        let sequence = self.journal.next_sequence();
        self.journal.put(sequence, 0, &[&head, &entry.data])?;
        self.entries.push_back(Stored { sequence, term: entry.term });
        Ok(())
    }
}

impl<S: Storage> ReplicatedLog for JournalLog<S> {
    type Error = JournalError;

    fn ballot(&self) -> Ballot {
        self.ballot
    }

    fn base(&self) -> (u64, u64, GroupMembers) {
        (self.base.index, self.base.term, self.base.membership.clone())
    }

    fn last_index(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.stored(index).map(|entry| entry.term)
    }

    fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogEntry>, JournalError> {
        let (mut entries, mut bytes, mut unknown) = (Vec::new(), 0, None);
        let sequences = range.map_while(|index| Some(self.stored(index)?.sequence));
        self.journal.read_each(sequences, &mut |sequence, payload| {
            // Its checksum was verified, and opening has read all older ones.
            let Ok((entry, _)) = parse(&Bytes::copy_from_slice(payload)) else {
                unknown = Some(sequence);
                return false;
            };
            bytes += entry.data.len() as u64;
            let has_room = bytes <= max_bytes || entries.is_empty();
            if has_room {
                entries.push(entry);
            }
            has_room
        })?;
        unknown.map_or(Ok(entries), |sequence| Err(JournalError::NotLive(sequence)))
    }

    fn snapshot(&self) -> Result<LogSnapshot, JournalError> {
        Ok(self.base.clone())
    }

    fn append(&mut self, entries: Vec<LogEntry>, ballot: Option<Ballot>) -> Result<(), JournalError> {
        if let Some(ballot) = ballot {
            (self.ballot, self.is_ballot_defined) = (ballot, false);
        }
        let Some(first) = entries.first() else {
            self.define_ballot()?;
            return self.journal.write();
        };
        let kept = (first.index - self.base.index - 1) as usize;
        let replaced: Vec<u64> = self.entries.drain(kept..).map(|entry| entry.sequence).collect();
        for (place, entry) in entries.iter().enumerate() {
            self.put(entry, ballot.as_ref().filter(|_| place == 0))?;
        }
        if !replaced.is_empty() {
            // Perhaps one of them has the ballot.
            if ballot.is_none() && !self.is_ballot_defined {
                self.define_ballot()?;
            }
            self.journal.settle(&replaced)?;
        }
        self.journal.write()
    }

    fn install(&mut self, snapshot: &LogSnapshot) -> Result<(), JournalError> {
        if !self.is_ballot_defined {
            self.define_ballot()?;
        }
        let replaced: Vec<u64> = self.entries.drain(..).map(|entry| entry.sequence).collect();
        self.replace_base(snapshot)?;
        self.journal.settle(&replaced)?;
        self.journal.write()
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        self.journal.sync()
    }
}

/// Order of ballots: a later one is greater.
fn rank(ballot: &Ballot) -> (u64, bool, u64) {
    (ballot.term, ballot.voted_for.is_some(), ballot.committed)
}

fn push_ballot(ballot: &Ballot, output: &mut Vec<u8>) {
    push(output, ballot.term);
    push(output, ballot.voted_for.map_or(0, ReplicaId::to_number));
    push(output, ballot.committed);
}

fn read_ballot(input: &mut Input<'_>) -> Result<Ballot, DecodeError> {
    Ok(Ballot {
        term: input.number("term of the ballot")?,
        voted_for: ReplicaId::from_number(input.number("vote")?),
        committed: input.number("commit index")?,
    })
}

fn parse(payload: &Bytes) -> Result<(LogEntry, Option<Ballot>), DecodeError> {
    let mut input = Input::new(payload);
    let (index, term) = (input.number("index")?, input.number("term")?);
    let flags = input.byte("kind")?;
    if flags & !(IS_MEMBERSHIP | HAS_BALLOT) != 0 {
        return Err(DecodeError::Damaged("kind"));
    }
    let kind = if flags & IS_MEMBERSHIP != 0 { EntryKind::Membership } else { EntryKind::Batch };
    let ballot = (flags & HAS_BALLOT != 0).then(|| read_ballot(&mut input)).transpose()?;
    Ok((LogEntry { index, term, kind, data: input.rest() }, ballot))
}
