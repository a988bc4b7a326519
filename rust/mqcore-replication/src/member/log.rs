//! The log of a member: a journal, and the note that the files are not complete while they are copied.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use mqcore_consensus::journal_log::{JournalLog, OpenError};
use mqcore_consensus::log::{Ballot, LogEntry, LogSnapshot, ReplicatedLog};
use mqcore_consensus::membership::GroupMembers;
use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::storage::FileStorage;

use crate::identity::{MemberIdentity, MemberIdentityError};
use crate::status::LogSyncs;
use crate::sync_times::SyncTimes;

/// Largest entry: one operation, and what the log adds.
const RECORD_BYTES_MAX: u32 = 64 << 20;

/// The log of a member.
pub(crate) struct MemberLog {
    journal: JournalLog<FileStorage>,
    identity: Rc<RefCell<MemberIdentity>>,
    root: PathBuf,
    sync_times: SyncTimes,
}

/// Why the log cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Identity(#[from] MemberIdentityError),
}

impl MemberLog {
    /// Calls `progress` now and then.
    pub(crate) fn open(
        root: &Path,
        identity: &Rc<RefCell<MemberIdentity>>,
        progress: &mut dyn FnMut(),
    ) -> Result<Self, OpenError> {
        let storage = FileStorage::open(MemberIdentity::directory(root).join("log")).map_err(|error| {
            OpenError::Journal(JournalError::Io {
                doing: "opening",
                file: "log".to_owned(),
                kind: error.kind(),
                message: error.to_string(),
            })
        })?;
        let options = Options { max_record_bytes: RECORD_BYTES_MAX, ..Options::default() };
        let journal = JournalLog::open_with_progress(storage, options, progress)?;
        Ok(Self {
            journal,
            identity: Rc::clone(identity),
            root: root.to_path_buf(),
            sync_times: SyncTimes::new(Instant::now()),
        })
    }

    pub(super) fn syncs(&self) -> LogSyncs {
        self.sync_times.summary(Instant::now())
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.journal.journal().stats().file_bytes
    }

    pub(crate) fn journal_mut(&mut self) -> &mut JournalLog<FileStorage> {
        &mut self.journal
    }
}

impl ReplicatedLog for MemberLog {
    type Error = LogError;

    fn ballot(&self) -> Ballot {
        self.journal.ballot()
    }

    fn base(&self) -> (u64, u64, GroupMembers) {
        self.journal.base()
    }

    fn last_index(&self) -> u64 {
        self.journal.last_index()
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.journal.term(index)
    }

    fn entries(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogEntry>, LogError> {
        Ok(self.journal.entries(range, max_bytes)?)
    }

    fn snapshot(&self) -> Result<LogSnapshot, LogError> {
        Ok(self.journal.snapshot()?)
    }

    fn append(&mut self, entries: Vec<LogEntry>, ballot: Option<Ballot>) -> Result<(), LogError> {
        Ok(self.journal.append(entries, ballot)?)
    }

    /// First notes that the files are not complete, so that a crash until they are leads to a new replica.
    fn install(&mut self, snapshot: &LogSnapshot) -> Result<(), LogError> {
        let mut identity = self.identity.borrow_mut();
        identity.is_copying = !identity.is_witness;
        identity.has_log = true;
        identity.save(&self.root)?;
        Ok(self.journal.install(snapshot)?)
    }

    fn sync(&mut self) -> Result<(), LogError> {
        let begun = Instant::now();
        self.journal.sync()?;
        self.sync_times.note(begun.elapsed(), Instant::now());
        Ok(())
    }
}
