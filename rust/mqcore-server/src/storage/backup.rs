//! A consistent copy of the data directory of a running broker.
//!
//! All journal writers meet, including those of limits and schedules: each writes and syncs what it has, reports its
//! files and their valid lengths, and pauses until all others have done so. A message that moves between shards is
//! settled in the first only after it is saved in the second, so at such a moment at least one of them has it. From
//! then on no writer removes a file until the [`Backup`] is dropped. Everything else continues: the copy shows the
//! state at that moment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mqcore_journal::snapshot::{CATALOG, Snapshot};
use tokio::sync::Notify;

use crate::schedules::port::SchedulePort;
use crate::storage::data_dir::{DataDir, DataDirError, SideJournal, shard_name};
use crate::storage::inspection::StoppedDataDir;

const SEGMENT: &str = ".segment";
/// Time for all writers to meet: each finishes its current batch, and early ones wait.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no backup. The data directory is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The broker has no data directory.
    #[error(
        "nothing to back up: the broker has no data directory and stores everything in memory; start it with --data-dir"
    )]
    NothingKept,
    /// Another backup is in progress.
    #[error("another backup is in progress; wait until it is complete")]
    Busy,
    /// The server stops or has stopped.
    #[error("the server is stopping")]
    Stopping,
    /// The journal of a shard has failed, so its contents are uncertain.
    #[error("cannot copy the journal of shard {shard}: {why}")]
    Shard {
        /// The shard.
        shard: usize,
        /// The reason.
        why: String,
    },
    /// A side journal has failed, so its contents are uncertain.
    #[error("cannot copy the journal of {}: {why}", journal.as_str())]
    Side {
        /// The journal.
        journal: SideJournal,
        /// The reason.
        why: String,
    },
    /// A disk did not answer in time.
    #[error("cannot sync all journals within 5 s: the disk is too slow; try again later")]
    TooSlow,
    /// The directory of a stopped broker cannot be used.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// A file of a stopped broker cannot be inspected.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A consistent set of files, protected from removal until this is dropped.
#[derive(Debug)]
pub struct Backup {
    pub(crate) files: Vec<BackupFile>,
    /// The content of the manifest.
    pub(crate) format: String,
    pub(crate) shards: usize,
    /// The number of saved messages; unknown for a stopped broker.
    pub(crate) live: Option<u64>,
    pub(crate) created_ms: u64,
    _held: BackupLock,
}

/// The reader of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackupKind {
    /// A client, or a program that embeds the broker. One at a time.
    Requested,
    /// The thread that makes restore points. It disturbs no other backup.
    Continuous,
}

/// A file to copy.
#[derive(Debug, Clone)]
pub(crate) struct BackupFile {
    /// Relative to the data directory, with `/`.
    pub(crate) name: String,
    /// Identity of its journal; 0 for a stopped broker.
    pub(crate) journal: u64,
    pub(crate) path: PathBuf,
    /// Bytes of the file that are valid.
    pub(crate) bytes: u64,
    /// The length of the copy.
    pub(crate) length: u64,
}

impl BackupFile {
    /// Whether its valid bytes never change.
    pub(crate) fn is_segment(&self) -> bool {
        self.name.ends_with(SEGMENT)
    }
}

/// Locks that last as long as the backup.
#[derive(Debug)]
enum BackupLock {
    /// Prevents removals, another requested backup, and another broker on the directory if this one stops.
    Running { _pin: Arc<Pin>, _request: Option<Arc<Request>>, _directory: Arc<DataDir> },
    /// Prevents any broker on the directory.
    Stopped { _directory: StoppedDataDir },
}

/// While a pin is held, journals remove no files. Backups at the same time share it.
#[derive(Debug)]
pub(crate) struct Pin;

/// While it is held, there is a backup that someone has requested.
#[derive(Debug)]
struct Request;

impl Backup {
    /// The files of a directory that no broker uses.
    ///
    /// # Errors
    /// [`BackupError::Directory`] with [`DataDirError::Running`] if a broker uses it, and [`BackupError::Io`].
    pub fn of_stopped(path: &Path) -> Result<Self, BackupError> {
        let directory = StoppedDataDir::open(path)?;
        let shards = directory.shards();
        let mut files = Vec::new();
        for shard in 0..shards {
            add_segments(path, &shard_name(shard), &mut files)?;
        }
        for journal in SideJournal::BACKED_UP.map(SideJournal::as_str) {
            if path.join(journal).is_dir() {
                add_segments(path, journal, &mut files)?;
            }
        }
        files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let format = directory.manifest_of(&journals_of(&files));
        let held = BackupLock::Stopped { _directory: directory };
        Ok(Self { files, format, shards, live: None, created_ms: now_ms(), _held: held })
    }

    /// Total bytes of the files to copy.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Adds all segments of one journal, and its catalog.
fn add_segments(path: &Path, journal: &str, files: &mut Vec<BackupFile>) -> Result<(), BackupError> {
    let folder = path.join(journal);
    let io = |source| BackupError::Io { path: folder.clone(), source };
    for entry in std::fs::read_dir(&folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.ends_with(SEGMENT) || name == CATALOG {
            let bytes = entry.metadata().map_err(io)?.len();
            let name = format!("{journal}/{name}");
            files.push(BackupFile { name, journal: 0, path: entry.path(), bytes, length: bytes });
        }
    }
    Ok(())
}

/// The journals that have files here.
fn journals_of(files: &[BackupFile]) -> Vec<String> {
    let mut journals: Vec<String> =
        files.iter().filter_map(|file| Some(file.name.split_once('/')?.0.to_owned())).collect();
    journals.dedup();
    journals
}

fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// Coordinates the writers of all journals for a backup. One per server.
#[derive(Debug)]
pub(crate) struct BackupDesk {
    shards: usize,
    /// The barrier at which each writer should wait, until it takes it: first the writers of the shards, then those of
    /// `beside`.
    asked: Box<[Mutex<Option<Arc<WriterBarrier>>>]>,
    beside: Box<[SideWriter]>,
    /// Whether there is a data directory.
    kept: bool,
    /// The server's lock on the directory belongs to the writers, so that it ends with them.
    directory: Weak<DataDir>,
    current: Mutex<Current>,
}

/// The backups of this moment. The lock is held while writers meet, so that only one barrier is open.
#[derive(Debug, Default)]
struct Current {
    pin: Weak<Pin>,
    request: Weak<Request>,
}

/// The writer of a side journal.
#[derive(Debug)]
struct SideWriter {
    journal: SideJournal,
    /// Wakes it, because it checks the desk only when it writes.
    wake: Wake,
    /// Why this writer has ended, if it has.
    ended: Mutex<Option<String>>,
}

/// How to wake the writer of a side journal.
#[derive(Debug)]
pub(crate) enum Wake {
    /// It waits for [`BackupDesk::asked`].
    Task(Notify),
    /// Its thread receives a request through this port.
    Schedules(SchedulePort),
}

impl BackupDesk {
    /// `beside`: the writers of the side journals.
    pub(crate) fn new(
        shards: usize,
        beside: Vec<(SideJournal, Wake)>,
        directory: Option<&Arc<DataDir>>,
    ) -> Self {
        let beside = beside.into_iter();
        let beside: Box<[_]> =
            beside.map(|(journal, wake)| SideWriter { journal, wake, ended: Mutex::default() }).collect();
        Self {
            shards,
            asked: (0..shards + beside.len()).map(|_| Mutex::new(None)).collect(),
            beside,
            kept: directory.is_some(),
            directory: directory.map_or_else(Weak::new, Arc::downgrade),
            current: Mutex::default(),
        }
    }

    fn side(&self, journal: SideJournal) -> Option<(usize, &SideWriter)> {
        self.beside.iter().enumerate().find(|(_, writer)| writer.journal == journal)
    }

    /// Takes the barrier for the writer of a shard. Called between two batches.
    pub(crate) fn take(&self, shard: usize) -> Option<Arc<WriterBarrier>> {
        lock(self.asked.get(shard)?).take()
    }

    /// Takes the barrier for another writer, and that writer's number.
    pub(crate) fn take_beside(&self, journal: SideJournal) -> Option<(usize, Arc<WriterBarrier>)> {
        let writer = self.shards + self.side(journal)?.0;
        Some((writer, self.take(writer)?))
    }

    /// Ready when there may be a barrier for a writer that is a task.
    pub(crate) async fn asked(&self, journal: SideJournal) {
        match self.side(journal) {
            Some((_, SideWriter { wake: Wake::Task(notify), .. })) => notify.notified().await,
            _ => std::future::pending().await,
        }
    }

    /// The writer of a side journal has ended and waits at no more barriers.
    pub(crate) fn ended(&self, journal: SideJournal, why: String) {
        if let Some((_, writer)) = self.side(journal) {
            *lock(&writer.ended) = Some(why);
        }
    }

    /// Lets all writers pause at a barrier, and lists their files. Blocks for 5 s, or 10 s if two backups begin at once.
    pub(crate) fn pause_writers(&self, kind: BackupKind) -> Result<Backup, BackupError> {
        if !self.kept {
            return Err(BackupError::NothingKept);
        }
        let Some(directory) = self.directory.upgrade() else { return Err(BackupError::Stopping) };
        for SideWriter { journal, ended, .. } in &self.beside {
            if let Some(why) = lock(ended).clone() {
                return Err(BackupError::Side { journal: *journal, why });
            }
        }
        let mut current = lock(&self.current);
        let request = match kind {
            BackupKind::Requested if current.request.upgrade().is_some() => return Err(BackupError::Busy),
            BackupKind::Requested => Some(Arc::new(Request)),
            BackupKind::Continuous => None,
        };
        if let Some(request) = &request {
            current.request = Arc::downgrade(request);
        }
        let pin = current.pin.upgrade().unwrap_or_else(|| Arc::new(Pin));
        current.pin = Arc::downgrade(&pin);
        let barrier = Arc::new(WriterBarrier::new(self.asked.len(), &pin, BARRIER_TIMEOUT));
        for slot in &self.asked {
            *lock(slot) = Some(Arc::clone(&barrier));
        }
        for writer in &self.beside {
            match &writer.wake {
                Wake::Task(notify) => notify.notify_one(),
                Wake::Schedules(port) => port.look(),
            }
        }
        let met = barrier.all_there();
        for slot in &self.asked {
            // Writers that have not arrived yet need not pause for a failed backup.
            lock(slot).take();
        }
        let (snapshots, created_ms) = met.map_err(|refused| match refused {
            BackupError::Shard { shard, why } if shard >= self.shards => {
                BackupError::Side { journal: self.beside[shard - self.shards].journal, why }
            }
            other => other,
        })?;
        drop(current);
        let shards = self.shards;
        let live = Some(snapshots.iter().take(shards).map(|snapshot| snapshot.live).sum());
        let mut files = Vec::new();
        for (writer, snapshot) in snapshots.into_iter().enumerate() {
            let (journal, folder) = match writer.checked_sub(shards) {
                None => (shard_name(writer), directory.shard_path(writer)),
                Some(beside) => {
                    let journal = self.beside[beside].journal;
                    (journal.as_str().to_owned(), directory.side(journal))
                }
            };
            let identity = directory.identity_of(&journal).unwrap_or_default();
            files.extend(snapshot.segments.into_iter().map(|segment| BackupFile {
                name: format!("{journal}/{}", segment.name),
                journal: identity,
                path: folder.join(&segment.name),
                bytes: segment.bytes,
                length: segment.length,
            }));
        }
        let format = directory.manifest_of(&journals_of(&files));
        let held = BackupLock::Running { _pin: pin, _request: request, _directory: directory };
        Ok(Backup { files, format, shards, live, created_ms, _held: held })
    }
}

/// A moment at which all writers pause.
#[derive(Debug)]
pub(crate) struct WriterBarrier {
    pin: Weak<Pin>,
    until: Instant,
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug)]
struct BarrierState {
    there: Vec<Option<Snapshot>>,
    missing: usize,
    failed: Option<(usize, String)>,
    /// When the last writer arrived, in milliseconds since 1970: what was confirmed until then is in the files, and
    /// nothing later is.
    met_ms: u64,
    /// The barrier is open.
    over: bool,
}

impl WriterBarrier {
    fn new(shards: usize, pin: &Arc<Pin>, timeout: Duration) -> Self {
        let there = (0..shards).map(|_| None).collect();
        Self {
            pin: Arc::downgrade(pin),
            until: Instant::now() + timeout,
            state: Mutex::new(BarrierState { there, missing: shards, failed: None, met_ms: 0, over: false }),
            changed: Condvar::new(),
        }
    }

    /// A writer that takes part must not remove files while this pin is alive.
    pub(crate) fn pin(&self) -> Weak<Pin> {
        Weak::clone(&self.pin)
    }

    /// A writer arrives with its files, and waits until all have arrived or the barrier fails.
    pub(crate) fn arrive(&self, writer: usize, snapshot: Result<Snapshot, String>) {
        let mut state = lock(&self.state);
        match snapshot {
            // A writer that arrives too late does not count: others no longer wait, and confirm messages again.
            Ok(_) if state.over || Instant::now() >= self.until => {}
            Ok(snapshot) => {
                if let Some(place) = state.there.get_mut(writer)
                    && place.replace(snapshot).is_none()
                {
                    state.missing -= 1;
                    if state.missing == 0 {
                        // The others still wait for this lock.
                        state.met_ms = now_ms();
                    }
                }
            }
            Err(why) => state.failed = Some((writer, why)),
        }
        self.changed.notify_all();
        drop(self.wait(state));
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, BarrierState>) -> MutexGuard<'a, BarrierState> {
        let left = self.until.saturating_duration_since(Instant::now());
        let undecided = |state: &mut BarrierState| state.missing > 0 && state.failed.is_none() && !state.over;
        let (state, _) =
            self.changed.wait_timeout_while(state, left, undecided).unwrap_or_else(PoisonError::into_inner);
        state
    }

    /// The files of all writers, and when they met.
    fn all_there(&self) -> Result<(Vec<Snapshot>, u64), BackupError> {
        let mut state = self.wait(lock(&self.state));
        state.over = true;
        self.changed.notify_all();
        if let Some((shard, why)) = state.failed.take() {
            return Err(BackupError::Shard { shard, why });
        }
        let snapshots = state.there.drain(..).collect::<Option<_>>().ok_or(BackupError::TooSlow)?;
        Ok((snapshots, state.met_ms))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_backup_is_that_of_the_meeting_of_its_writers() {
        let barrier = WriterBarrier::new(2, &Arc::new(Pin), BARRIER_TIMEOUT);
        let arrive = |writer| barrier.arrive(writer, Ok(Snapshot { segments: Vec::new(), live: 0 }));
        std::thread::scope(|scope| {
            scope.spawn(|| arrive(0));
            while lock(&barrier.state).missing == 2 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            let before_ms = now_ms();
            arrive(1);
            let after_ms = now_ms();
            // The caller may read the snapshots long after the writers continued.
            std::thread::sleep(Duration::from_millis(5));
            let (snapshots, met_ms) = barrier.all_there().unwrap();
            assert_eq!(snapshots.len(), 2);
            assert!((before_ms..=after_ms).contains(&met_ms), "{before_ms} {met_ms} {after_ms}");
        });
    }

    #[test]
    fn a_writer_that_arrives_after_the_others_have_left_does_not_count() {
        let barrier = WriterBarrier::new(2, &Arc::new(Pin), Duration::from_millis(20));
        for writer in 0..2 {
            // The first one waits until the timeout.
            barrier.arrive(writer, Ok(Snapshot { segments: Vec::new(), live: 0 }));
        }
        assert!(matches!(barrier.all_there(), Err(BackupError::TooSlow)));
    }
}
