//! The data directory: one journal for each shard, and the lock.
//!
//! ```text
//! DIR/lock        locked by the running broker, because two would damage the data
//! DIR/format      the manifest: the number of shards, which cannot change because a channel's shard depends on it, and the
//!                 identities of all journals
//! DIR/format.copy the same
//! DIR/admin       the URL of the admin side of the broker that holds the lock, if it has one
//! DIR/shard-K/    the journal of shard K
//! DIR/nodes/      the journal of messages for upstream brokers
//! DIR/archive.json where the archive on object storage is, if there is one
//! DIR/limits/     the journal of persistent counters and buffers
//! DIR/schedules/  the journal of schedules and their runs
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::record::{DeliveryProgress, PutMessage, RecordError, decode_put};
use mqcore_broker::model::recovery::{RecoveredState, RecoveryBuilder};
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::storage::lock::{DirectoryLock, LOCK_FILE};
use mqcore_journal::storage::private::{create_private_directory, private_options};
use mqcore_replication::identity::is_replicated;
use mqcore_replication::storage::{DataFiles, DataStorage};

pub use mqcore_journal::error::JournalError;
pub use mqcore_journal::storage::lock::lock_descriptors;

use crate::storage::loss::Loss;
use crate::storage::manifest::{COPIES, Manifest, ManifestError};
use crate::storage::parts;

/// The directory of the archive.
pub const ARCHIVE: &str = "archive";
/// File with the place of the archive on object storage.
pub(crate) const ARCHIVE_LOCATION: &str = "archive.json";

/// A journal other than those of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SideJournal {
    /// Persistent limits.
    Limits,
    /// Messages for upstream brokers.
    Nodes,
    /// Schedules and their runs.
    Schedules,
}

impl SideJournal {
    /// All side journals, ordered by name.
    pub const ALL: [Self; 3] = [Self::Limits, Self::Nodes, Self::Schedules];
    /// Side journals in a backup. Messages for upstream brokers are not, because a restored broker would forward them again.
    pub(crate) const BACKED_UP: [Self; 2] = [Self::Limits, Self::Schedules];

    /// Its name and the name of its directory.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Nodes => "nodes",
            Self::Schedules => "schedules",
        }
    }

    /// The shard number in its segments. No real shard has it.
    pub(crate) const fn shard(self) -> u32 {
        match self {
            Self::Nodes => u32::MAX,
            Self::Limits => u32::MAX - 1,
            Self::Schedules => u32::MAX - 2,
        }
    }

    /// The error for a journal that cannot be opened.
    pub(crate) const fn failed(self, source: JournalError) -> DataDirError {
        match self {
            Self::Limits => DataDirError::Limits { source },
            Self::Nodes => DataDirError::Nodes { source },
            Self::Schedules => DataDirError::Schedules { source },
        }
    }
}

/// The largest record in bytes. Frames have a lower limit (see [`FRAME_BYTES_MAX`]), so a peer's message always fits.
/// A message that does not fit would count as a failure of the disk.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Maximum size of frames if messages are saved: a record adds the queue's address and a few bytes.
pub const FRAME_BYTES_MAX: u64 = RECORD_BYTES_MAX - 4096;

/// Why a data directory cannot be used. It is unchanged, unless the message states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// The directory or a file of it cannot be created, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory does not exist.
    #[error("{path} is not a data directory: {missing} is missing")]
    Missing {
        /// The path.
        path: PathBuf,
        /// The directory itself, or a file of it.
        missing: PathBuf,
    },
    /// A running broker uses it; only the directory of a stopped broker can be inspected.
    #[error("{path} is in use by a running broker; stop that broker first")]
    Running {
        /// The directory.
        path: PathBuf,
    },
    /// Another broker or an inspection has locked it.
    #[error(
        "cannot open data directory {path}: another broker has locked it; stop that broker or choose another --data-dir"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A node of a cluster has copies of it on other machines, which would differ from now on.
    #[error(
        "{path} belongs to a node of a cluster: what is changed here would be missing on the other nodes;          run `mqcore cluster force-new` first, and empty the data directories of the other nodes afterwards"
    )]
    Replicated {
        /// The directory.
        path: PathBuf,
    },
    /// Not a data directory.
    #[error(
        "{path} is not a data directory of this version: expected \"mqcore data\", a version and a valid checksum, found {found:?}; \
         restore this file or its copy format.copy from a backup"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// A later version wrote the directory.
    #[error(
        "{path} has format version {found}, but this version of mqcore reads up to 3; use a newer mqcore"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The manifest is missing, or is older than checksums and does not fit the directories of shards.
    #[error("{path}: {why}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction, and the next step.
        why: String,
    },
    /// A shard's journal cannot be opened.
    #[error("the journal of shard {shard}: {source}")]
    Journal {
        /// The shard.
        shard: usize,
        /// The cause.
        source: JournalError,
    },
    /// The journal of messages for upstream brokers cannot be opened.
    #[error("the journal of messages for upstream brokers: {source}")]
    Nodes {
        /// The cause.
        source: JournalError,
    },
    /// The journal of limits cannot be opened.
    #[error("the journal of limits: {source}")]
    Limits {
        /// The cause.
        source: JournalError,
    },
    /// The journal of schedules cannot be opened.
    #[error("the journal of schedules: {source}")]
    Schedules {
        /// The cause.
        source: JournalError,
    },
    /// A record is intact but has an unknown version.
    #[error("the journal of shard {shard}: {source}")]
    Record {
        /// The shard.
        shard: usize,
        /// The cause.
        source: RecordError,
    },
}

/// A data directory that this process has locked until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    shards: usize,
    files: DataFiles,
    /// As it is on the disk.
    manifest: Mutex<Manifest>,
    _lock: DirectoryLock,
}

/// A shard's open journal and the recovered state.
pub(crate) struct Opened {
    pub(crate) journal: Journal<DataStorage>,
    pub(crate) had: RecoveredState,
    pub(crate) report: RecoveryReport,
    /// Live records that could not be read back.
    pub(crate) unreadable: u64,
}

impl DataDir {
    /// Opens the directory, or creates it for `shards` shards. An existing directory keeps its own number of shards. `files`: where
    /// its journals and small files are written.
    pub(crate) fn open(path: &Path, shards: usize, files: DataFiles) -> Result<Self, DataDirError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| DataDirError::Io { path, source }
        };
        if files.replicator().is_none() && is_replicated(path) {
            return Err(DataDirError::Replicated { path: path.to_path_buf() });
        }
        create_private_directory(path).map_err(io(path))?;
        let lock = DirectoryLock::exclusive(path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DataDirError::Locked { path: path.to_path_buf() },
            _ => DataDirError::Io { path: path.join(LOCK_FILE), source },
        })?;
        let manifest = parts::open(path, shards, &files)?;
        Ok(Self {
            path: path.to_path_buf(),
            shards: manifest.shards,
            files,
            manifest: Mutex::new(manifest),
            _lock: lock,
        })
    }

    /// Opens an existing directory that no process uses, to change it while the broker is stopped. One copy of the
    /// manifest is enough.
    pub(crate) fn open_stopped(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        // Opening would create it.
        if let Err(error @ ManifestError::Missing) = Manifest::read(path) {
            return Err(error.at(path));
        }
        Self::open(path, 1, DataFiles::Local).map_err(|error| match error {
            DataDirError::Locked { path } => DataDirError::Running { path },
            other => other,
        })
    }

    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the manifest. Returns when the change is durable, and changes nothing if it cannot be written.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Manifest)) -> Result<(), DataDirError> {
        let mut current = self.manifest();
        let mut next = current.clone();
        change(&mut next);
        if next != *current {
            next.generation += 1;
            next.write(&self.path, &self.files).map_err(|error| error.at(&self.path))?;
            *current = next;
        }
        Ok(())
    }

    /// Saves the losses that opening a journal found, before it repairs the files: the next opening may not find them.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn found(&self, journal: &str, report: &RecoveryReport) -> Result<(), JournalError> {
        let change =
            |manifest: &mut Manifest| manifest.found(journal, Loss::of_report(journal, report).collect());
        self.change(change).map_err(|error| JournalError::Io {
            doing: "writing",
            file: COPIES[0].to_owned(),
            kind: io::ErrorKind::Other,
            message: error.to_string(),
        })
    }

    /// Saves which journals exist, with their identities. Until then, a missing journal counts as not created yet.
    pub(crate) fn register(&self, journals: &[(String, u64)]) -> Result<(), DataDirError> {
        self.change(|manifest| manifest.journals.extend(journals.iter().cloned()))
    }

    /// The identity that a journal had at its last opening. `None`: it was not created yet.
    pub(crate) fn identity_of(&self, journal: &str) -> Option<u64> {
        self.manifest().journals.get(journal).copied()
    }

    /// Losses that the operator has not accepted.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.manifest().losses.iter().filter(|loss| !loss.is_accepted).cloned().collect()
    }

    /// The manifest for a backup of these journals.
    pub(crate) fn manifest_of(&self, journals: &[String]) -> String {
        self.manifest().part(journals).encode()
    }

    /// The way to the files of journals, and to small files.
    pub(crate) fn files(&self) -> &DataFiles {
        &self.files
    }

    /// The directory of a side journal.
    pub(crate) fn side(&self, journal: SideJournal) -> PathBuf {
        self.path.join(journal.as_str())
    }

    /// The directory of the archive.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn archive(&self) -> PathBuf {
        self.path.join(ARCHIVE)
    }

    /// Whether there is an archive, here or on object storage.
    fn has_archive(&self) -> bool {
        self.archive().is_dir() || self.path.join(ARCHIVE_LOCATION).is_file()
    }

    /// The number of shards of the directory.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// The shard of each name.
    pub(crate) fn placement(&self) -> Placement {
        self.manifest().placement()
    }

    /// Writes the URL of the admin side, for programs that know only the directory.
    pub(crate) fn write_admin_url(&self, url: Option<&str>) -> io::Result<()> {
        let path = self.path.join("admin");
        match url {
            Some(url) => {
                let mut file = private_options().create(true).truncate(true).write(true).open(path)?;
                file.write_all(format!("{url}\n").as_bytes())
            }
            None => match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                outcome => outcome,
            },
        }
    }

    /// The directory of a shard's journal.
    pub(crate) fn shard_path(&self, shard: usize) -> PathBuf {
        self.path.join(shard_name(shard))
    }

    /// Opens a shard's journal and reads all of it. `progress` receives the bytes done and the total.
    pub(crate) fn open_shard(
        &self,
        shard: usize,
        now_ms: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Opened, DataDirError> {
        let failed = |source| DataDirError::Journal { shard, source };
        let path = self.shard_path(shard);
        let storage = self.files.open(&path).map_err(|source| DataDirError::Io { path, source })?;
        let name = shard_name(shard);
        let expected_identity = self.identity_of(&name);
        // After its loss is accepted, a missing journal is not listed any more.
        let replaces_another = expected_identity.is_some() || self.has_archive();
        let options = Options { expected_identity, replaces_another, ..journal_options(shard, now_ms) };
        let mut state = RecoveryBuilder::default();
        let (journal, recovered) = Journal::open_with_observers(
            storage,
            options,
            progress,
            &mut |sequence, payload| state.put(sequence, payload),
            &mut |report| self.found(&name, report),
        )
        .map_err(failed)?;
        let unknown = |source| DataDirError::Record { shard, source };
        for (key, value) in &recovered.definitions {
            state.define(key, value).map_err(unknown)?;
        }
        let mut refused = None;
        journal.each_touch(&mut |sequence, touch| match touch {
            Ok(touch) => {
                if let Err(error) = state.touch(sequence, touch) {
                    refused = Some(error);
                }
            }
            Err(error) => {
                tracing::error!(shard, sequence, %error, "cannot read the delivery progress of a saved message; it is delivered as if new");
            }
        });
        if let Some(error) = refused {
            return Err(unknown(error));
        }
        let (had, unreadable) = state.finish(journal.live(), recovered.next_sequence).map_err(unknown)?;
        for sequence in &unreadable {
            tracing::error!(shard, sequence, "cannot read a saved message; it is dropped");
        }
        Ok(Opened { journal, had, report: recovered.report, unreadable: unreadable.len() as u64 })
    }
}

/// The layout of a shard's journal.
pub(crate) fn journal_options(shard: usize, now_ms: u64) -> Options {
    Options { shard: shard as u32, now_ms, max_record_bytes: RECORD_BYTES_MAX as u32, ..Options::default() }
}

/// A saved message with its body.
#[derive(Debug, Clone)]
pub struct SavedMessage {
    /// The message and its queue.
    pub put: PutMessage,
    /// Its sequence in the journal.
    pub sequence: Sequence,
    /// Its delivery progress; the rank defaults to the sequence.
    pub progress: DeliveryProgress,
}

pub(crate) fn restored(
    sequence: u64,
    payload: &[u8],
    touch: Option<&[u8]>,
) -> Result<SavedMessage, RecordError> {
    let progress = match touch {
        Some(touch) => DeliveryProgress::decode(touch)?,
        None => DeliveryProgress { rank: sequence as i64, ..DeliveryProgress::default() },
    };
    Ok(SavedMessage { put: decode_put(payload)?, sequence: Sequence(sequence), progress })
}

/// The directory of a shard's journal, relative to the data directory.
pub(crate) fn shard_name(shard: usize) -> String {
    format!("shard-{shard}")
}

impl ManifestError {
    /// The error for a data directory.
    pub(crate) fn at(self, directory: &Path) -> DataDirError {
        let path = directory.join(COPIES[0]);
        match self {
            Self::Missing => DataDirError::Missing { path: directory.to_path_buf(), missing: path },
            Self::Newer(found) => DataDirError::Version { path, found },
            Self::Damaged(found) => DataDirError::Format { path, found },
            Self::Io(name, source) => DataDirError::Io { path: directory.join(name), source },
        }
    }
}
