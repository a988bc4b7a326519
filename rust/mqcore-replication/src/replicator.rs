//! Operations of the leader's broker on their way to the group.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::input::{DamageScope, FoundDamage, Input};
use crate::operation::{FileOperation, begin_entry};
use crate::status::LatestStatus;

/// Bytes of an entry, unless one operation has more.
const ENTRY_BYTES: usize = 1 << 20;
/// Bytes that wait for a place in the log. A writer that has more waits.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How long a sync waits for a majority while the broker stops.
const STOPPING_PATIENCE: Duration = Duration::from_secs(10);

/// Time after which a wait without a limit notices that the broker stops.
const STOPPING_CHECK: Duration = Duration::from_millis(500);

/// An entry to propose.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entry: Bytes,
    /// The number of its last operation.
    pub(crate) last: u64,
}

#[derive(Debug, Default)]
struct Pending {
    full: VecDeque<Batch>,
    current: Vec<u8>,
    bytes: usize,
    /// Number of the last operation.
    last: u64,
    is_stopping: bool,
    /// Damaged files that are the same on other members.
    damaged_on_all: BTreeSet<String>,
}

/// Passes operations of one broker to its member. Shared by all its storages.
#[derive(Debug)]
pub struct Replicator {
    root: PathBuf,
    pending: Mutex<Pending>,
    changed: Condvar,
    applied: AtomicU64,
    member: Sender<Input>,
    status: LatestStatus,
}

impl Replicator {
    pub(crate) fn new(root: &Path, member: Sender<Input>, status: LatestStatus) -> Arc<Self> {
        Arc::new(Self {
            root: root.to_path_buf(),
            pending: Mutex::default(),
            changed: Condvar::new(),
            applied: AtomicU64::new(0),
            member,
            status,
        })
    }

    /// The latest status of the member.
    #[must_use]
    pub fn status(&self) -> &LatestStatus {
        &self.status
    }

    /// The data directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the last operation that is committed and carried out.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Adds an operation. Returns its number.
    pub(crate) fn push(&self, operation: &FileOperation) -> u64 {
        self.push_encoded(|entry| operation.encode(entry))
    }

    /// Adds an operation that `encode` writes. Returns its number.
    pub(crate) fn push_encoded(&self, encode: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let mut pending = self.lock();
        let mut is_full = false;
        while pending.bytes > WAITING_BYTES_MAX {
            pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        if pending.current.is_empty() {
            begin_entry(&mut pending.current);
        }
        let before = pending.current.len();
        encode(&mut pending.current);
        pending.bytes += pending.current.len() - before;
        pending.last += 1;
        if pending.current.len() >= ENTRY_BYTES {
            is_full = true;
            pending.close_entry();
        }
        let number = pending.last;
        drop(pending);
        if is_full {
            self.wake();
        }
        number
    }

    /// Waits until all operations so far are on the disks of a majority and carried out here.
    ///
    /// # Errors
    /// The broker stops, and no majority answers.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let number = self.lock().last;
        if self.applied() >= number {
            return Ok(());
        }
        self.wake();
        let mut pending = self.lock();
        let mut stopped: Option<Instant> = None;
        while self.applied() < number {
            if pending.is_stopping && stopped.get_or_insert_with(Instant::now).elapsed() > STOPPING_PATIENCE {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no majority of the cluster answers; what was not confirmed may be lost",
                ));
            }
            let waited = self.changed.wait_timeout(pending, STOPPING_CHECK);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Replaces a small file of the data directory, on all members. Returns when that is durable.
    ///
    /// # Errors
    /// The file is not in the data directory, or the broker stops and no majority answers.
    pub fn put(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let name = self.name_of(path)?;
        self.push(&FileOperation::Put { name, bytes: Bytes::copy_from_slice(content) });
        self.sync()
    }

    /// The name of a file in operations.
    ///
    /// # Errors
    /// The file is not in the data directory.
    pub(crate) fn name_of(&self, path: &Path) -> io::Result<String> {
        let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        match name.filter(|name| crate::operation::is_valid(name)) {
            Some(name) => Ok(name.to_owned()),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not a file of the data directory {}", path.display(), self.root.display()),
            )),
        }
    }

    /// The broker has opened all journals: other members may copy the files from here.
    pub fn note_opened(&self) {
        let _ = self.member.send(Input::Opened);
    }

    /// A file is missing, or does not have the bytes that were written. Waits until it is compared with the files of the other
    /// members. If they have another one, this process restarts, and the member gets a copy from the next leader. Returns if
    /// theirs is the same.
    ///
    /// # Errors
    /// This member gets a copy, or the broker stops: it must not change anything because of the damage.
    pub fn report_damage(&self, path: &Path, what: &str) -> io::Result<()> {
        let name = self.name_of(path)?;
        if self.lock().damaged_on_all.contains(&name) {
            return Ok(());
        }
        let (answer, scope) = sync_channel(1);
        let damage = FoundDamage { name: name.clone(), what: what.to_owned(), answer: Some(answer) };
        let _ = self.member.send(Input::Damaged(damage));
        loop {
            match scope.recv_timeout(STOPPING_CHECK) {
                Ok(DamageScope::AllMembers) => {
                    self.lock().damaged_on_all.insert(name);
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if !self.lock().is_stopping => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(io::Error::other(format!(
                        "{name} is damaged ({what}), and the broker stops before other nodes have answered whether theirs is"
                    )));
                }
                // Without an answer, the member has ended.
                Ok(DamageScope::Local) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other(format!(
                        "{name} is damaged ({what}); other nodes have an intact one"
                    )));
                }
            }
        }
    }

    /// The broker stops: syncs do not wait for a majority for ever, and the process ends when the member stops leading.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// Whether the broker stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    fn wake(&self) {
        // The member has ended only if the process ends.
        let _ = self.member.send(Input::Proposals);
    }

    /// The entries to propose.
    pub(crate) fn take(&self) -> VecDeque<Batch> {
        let mut pending = self.lock();
        pending.close_entry();
        std::mem::take(&mut pending.full)
    }

    /// All operations up to this number are committed and carried out. They had so many bytes.
    pub(crate) fn note_applied(&self, last: u64, bytes: usize) {
        // Under the lock, so that a waiting writer does not miss it.
        let mut pending = self.lock();
        pending.bytes = pending.bytes.saturating_sub(bytes);
        self.applied.store(last, Ordering::Release);
        drop(pending);
        self.changed.notify_all();
    }
}

impl Pending {
    fn close_entry(&mut self) {
        if !self.current.is_empty() {
            let entry = Bytes::from(std::mem::take(&mut self.current));
            self.full.push_back(Batch { entry, last: self.last });
        }
    }
}
