//! The disk of a replica: what was written, and what a crash leaves of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use mqcore_consensus::journal_log::{JournalLog, OpenError};
use mqcore_consensus::log::{Ballot, LogEntry, LogSnapshot, ReplicatedLog};
use mqcore_consensus::membership::GroupMembers;
use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_testkit::Random;

use super::Mistake;

#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    base: LogSnapshot,
    entries: Vec<LogEntry>,
    ballot: Ballot,
}

#[derive(Debug, Clone)]
enum Write {
    Append(Vec<LogEntry>, Option<Ballot>),
    Install(LogSnapshot),
    Compact(LogSnapshot),
}

impl Contents {
    pub(crate) fn of_group(members: &GroupMembers) -> Self {
        let base = LogSnapshot { index: 1, term: 1, membership: members.clone(), data: Bytes::new() };
        let ballot = Ballot { term: 1, voted_for: None, committed: 1 };
        Self { base, entries: Vec::new(), ballot }
    }

    pub(crate) fn base(&self) -> &LogSnapshot {
        &self.base
    }

    fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    fn get(&self, index: u64) -> Option<&LogEntry> {
        self.entries.get(usize::try_from(index.checked_sub(self.base.index + 1)?).ok()?)
    }

    fn make(&mut self, write: Write, mistake: Option<Mistake>) {
        match write {
            Write::Append(entries, ballot) => {
                self.ballot = ballot.unwrap_or(self.ballot);
                let Some(first) = entries.first().map(|entry| entry.index) else { return };
                assert!(first > self.base.index && first <= self.last() + 1, "a gap in the log");
                let kept = (first - self.base.index - 1) as usize;
                if mistake == Some(Mistake::KeepsConflicts) {
                    let behind = entries.into_iter().filter(|entry| entry.index > self.last());
                    let behind: Vec<LogEntry> = behind.collect();
                    self.entries.extend(behind);
                } else {
                    self.entries.truncate(kept);
                    self.entries.extend(entries);
                }
            }
            Write::Install(snapshot) => {
                self.entries.clear();
                self.base = snapshot;
            }
            Write::Compact(snapshot) => {
                let dropped = snapshot.index.saturating_sub(self.base.index) as usize;
                self.entries.drain(..dropped.min(self.entries.len()));
                self.base = snapshot;
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    durable: Contents,
    written: Contents,
    unsynced: VecDeque<Write>,
    /// Number of durable writes.
    synced: u64,
    mistake: Option<Mistake>,
    /// Index of an entry that cannot be read.
    unreadable: Option<u64>,
}

impl Disk {
    pub(crate) fn new(contents: Contents, mistake: Option<Mistake>) -> Self {
        Self { durable: contents.clone(), written: contents, mistake, ..Self::default() }
    }

    /// Number of writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    fn write(&mut self, write: Write) {
        self.written.make(write.clone(), self.mistake);
        self.unsynced.push_back(write);
    }

    /// Makes the first `writes` writes durable.
    pub(crate) fn sync(&mut self, writes: u64) {
        let count = writes.saturating_sub(self.synced);
        for write in self.unsynced.drain(..count as usize) {
            self.durable.make(write, self.mistake);
        }
        self.synced += count;
    }

    /// Loses all but a prefix of the writes that are not durable.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let kept = random.below(self.unsynced.len() as u64 + 1);
        self.sync(self.synced + kept);
        self.unsynced.clear();
        if self.mistake == Some(Mistake::CutsTail) {
            self.durable.entries.pop();
        }
        self.written = self.durable.clone();
    }

    /// Replaces the state by a snapshot that contains it.
    pub(crate) fn compact(&mut self, snapshot: LogSnapshot) {
        if snapshot.index > self.written.base.index && snapshot.index <= self.written.last() {
            self.write(Write::Compact(snapshot));
        }
    }

    /// Changes the content of a durable entry.
    pub(crate) fn corrupt(&mut self, random: &mut Random) {
        let batches = self.durable.entries.iter_mut().filter(|entry| !entry.data.is_empty());
        let mut batches: Vec<&mut LogEntry> =
            batches.filter(|entry| entry.kind == mqcore_consensus::log::EntryKind::Batch).collect();
        if !batches.is_empty() {
            let place = random.below(batches.len() as u64) as usize;
            batches[place].data = Bytes::copy_from_slice(&u64::MAX.to_le_bytes());
        }
        self.written = self.durable.clone();
    }
}

/// The state that the committed entries make: all batches in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) values: Vec<u64>,
    pub(crate) membership: GroupMembers,
}

impl Machine {
    pub(crate) fn of_snapshot(snapshot: &LogSnapshot) -> Self {
        let values = snapshot.data.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        Self {
            index: snapshot.index,
            term: snapshot.term,
            values: values.collect(),
            membership: snapshot.membership.clone(),
        }
    }

    pub(crate) fn snapshot(&self, mistake: Option<Mistake>) -> LogSnapshot {
        let mut values = self.values.as_slice();
        if mistake == Some(Mistake::SnapshotWithoutTail) {
            values = &values[..values.len().saturating_sub(1)];
        }
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        LogSnapshot {
            index: self.index,
            term: self.term,
            membership: self.membership.clone(),
            data: data.into(),
        }
    }
}

/// The log of a replica on the disk above.
pub(crate) struct ModelLog {
    pub(crate) disk: Rc<RefCell<Disk>>,
    pub(crate) machine: Rc<RefCell<Machine>>,
    pub(crate) mistake: Option<Mistake>,
}

impl ReplicatedLog for ModelLog {
    type Error = JournalError;

    fn ballot(&self) -> Ballot {
        self.disk.borrow().written.ballot
    }

    fn base(&self) -> (u64, u64, GroupMembers) {
        let disk = self.disk.borrow();
        let base = &disk.written.base;
        (base.index, base.term, base.membership.clone())
    }

    fn last_index(&self) -> u64 {
        self.disk.borrow().written.last()
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.disk.borrow().written.get(index).map(|entry| entry.term)
    }

    fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogEntry>, JournalError> {
        let disk = self.disk.borrow();
        if disk.unreadable.is_some_and(|index| range.contains(&index)) {
            return Err(JournalError::Damaged { segment: 1, offset: 16, why: "the checksum is wrong" });
        }
        let mut bytes = 0;
        let within = |entry: &&LogEntry| {
            let before = bytes;
            bytes += entry.data.len() as u64;
            before == 0 || bytes <= max_bytes
        };
        Ok(range.map_while(|index| disk.written.get(index)).take_while(within).cloned().collect())
    }

    fn snapshot(&self) -> Result<LogSnapshot, JournalError> {
        Ok(self.machine.borrow().snapshot(self.mistake))
    }

    fn append(&mut self, entries: Vec<LogEntry>, ballot: Option<Ballot>) -> Result<(), JournalError> {
        let mut disk = self.disk.borrow_mut();
        match self.mistake {
            Some(Mistake::ForgetsVote) => {
                let ballot = ballot.map(|ballot| Ballot { voted_for: None, ..ballot });
                disk.write(Write::Append(entries, ballot));
            }
            Some(Mistake::SplitsWrites) => {
                disk.write(Write::Append(entries, None));
                disk.write(Write::Append(Vec::new(), ballot));
            }
            _ => disk.write(Write::Append(entries, ballot)),
        }
        Ok(())
    }

    fn install(&mut self, snapshot: &LogSnapshot) -> Result<(), JournalError> {
        self.disk.borrow_mut().write(Write::Install(snapshot.clone()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        let mut disk = self.disk.borrow_mut();
        let writes = disk.writes();
        disk.sync(writes);
        Ok(())
    }
}

/// Where a replica stores its log: in the model above, or in a journal on a simulated disk.
#[derive(Clone)]
pub(crate) enum Store {
    Model(Rc<RefCell<Disk>>),
    Journal(MemoryStorage),
}

/// The log of a replica, of either kind.
pub(crate) enum SimulatedLog {
    Model(ModelLog),
    Journal(Box<JournalLog<MemoryStorage>>),
}

/// Journals with small segments, so that a run has several.
fn journal_options() -> Options {
    Options { segment_bytes: 12_800, identity: 77, ..Options::default() }
}

impl Store {
    pub(crate) fn model(contents: Contents, mistake: Option<Mistake>) -> Self {
        Self::Model(Rc::new(RefCell::new(Disk::new(contents, mistake))))
    }

    /// A journal with what `contents` has, which must have no entries.
    pub(crate) fn journal(contents: &Contents, seed: u64) -> Self {
        let storage = MemoryStorage::new(seed);
        if contents.base.index > 0 {
            let mut log = JournalLog::open(storage.clone(), journal_options()).unwrap();
            log.begin_group(&contents.base.membership).unwrap();
        }
        Self::Journal(storage)
    }

    /// Opens the log after a start of its node.
    pub(crate) fn open(
        &self,
        machine: &Rc<RefCell<Machine>>,
        mistake: Option<Mistake>,
    ) -> Result<SimulatedLog, OpenError> {
        Ok(match self {
            Self::Model(disk) => {
                SimulatedLog::Model(ModelLog { disk: Rc::clone(disk), machine: Rc::clone(machine), mistake })
            }
            Self::Journal(storage) => {
                SimulatedLog::Journal(Box::new(JournalLog::open(storage.clone(), journal_options())?))
            }
        })
    }

    pub(crate) fn crash(&self, random: &mut Random) {
        match self {
            Self::Model(disk) => disk.borrow_mut().crash(random),
            Self::Journal(storage) => storage.crash(),
        }
    }
}

impl SimulatedLog {
    /// The snapshot that the log begins with.
    pub(crate) fn first_snapshot(&self) -> LogSnapshot {
        match self {
            Self::Model(log) => log.disk.borrow().written.base.clone(),
            Self::Journal(log) => log.snapshot().unwrap(),
        }
    }

    /// Number of writes so far, for [`Self::sync_until`].
    pub(crate) fn writes(&self) -> u64 {
        match self {
            Self::Model(log) => log.disk.borrow().writes(),
            Self::Journal(_) => 0,
        }
    }

    /// Ends a sync that began after this number of writes. A journal syncs all.
    pub(crate) fn sync_until(&mut self, writes: u64) {
        match self {
            Self::Model(log) => log.disk.borrow_mut().sync(writes),
            Self::Journal(log) => log.sync().unwrap(),
        }
    }

    /// The entry with this index cannot be read from now on.
    pub(crate) fn damage(&mut self, index: u64) {
        match self {
            Self::Model(log) => log.disk.borrow_mut().unreadable = Some(index),
            Self::Journal(_) => panic!("only the model has damage"),
        }
    }

    /// Replaces entries by a snapshot.
    pub(crate) fn compact(&mut self, snapshot: LogSnapshot) {
        match self {
            Self::Model(log) => log.disk.borrow_mut().compact(snapshot),
            Self::Journal(log) => {
                log.compact(&snapshot).unwrap();
                let done = log.maintain(0, 1 << 20).unwrap();
                assert!(done.lost.is_empty() && done.damaged.is_empty(), "{done:?}");
            }
        }
    }
}

macro_rules! with {
    ($log:expr, $any:ident => $call:expr) => {
        match $log {
            SimulatedLog::Model($any) => $call,
            SimulatedLog::Journal($any) => $call,
        }
    };
}

impl ReplicatedLog for SimulatedLog {
    type Error = JournalError;

    fn ballot(&self) -> Ballot {
        with!(self, log => log.ballot())
    }

    fn base(&self) -> (u64, u64, GroupMembers) {
        with!(self, log => log.base())
    }

    fn last_index(&self) -> u64 {
        with!(self, log => log.last_index())
    }

    fn term(&self, index: u64) -> Option<u64> {
        with!(self, log => log.term(index))
    }

    fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogEntry>, JournalError> {
        with!(self, log => log.entries(range, max_bytes))
    }

    fn snapshot(&self) -> Result<LogSnapshot, JournalError> {
        with!(self, log => log.snapshot())
    }

    fn append(&mut self, entries: Vec<LogEntry>, ballot: Option<Ballot>) -> Result<(), JournalError> {
        with!(self, log => log.append(entries, ballot))
    }

    fn install(&mut self, snapshot: &LogSnapshot) -> Result<(), JournalError> {
        with!(self, log => log.install(snapshot))
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        with!(self, log => log.sync())
    }
}

/// A log that nothing was written to.
pub(crate) fn empty_log() -> SimulatedLog {
    log_of(Contents::default())
}

/// A log whose ballot says something that its entries do not show.
pub(crate) fn log_with_ballot(mut contents: Contents, ballot: Ballot) -> SimulatedLog {
    contents.ballot = ballot;
    log_of(contents)
}

fn log_of(contents: Contents) -> SimulatedLog {
    let machine = Rc::new(RefCell::new(Machine::of_snapshot(&contents.base)));
    Store::model(contents, None).open(&machine, None).unwrap()
}
