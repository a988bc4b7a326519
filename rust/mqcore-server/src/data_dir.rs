//! The directory that holds what must survive: one journal a shard, and who may use it.
//!
//! ```text
//! DIR/lock        held while a broker runs on it: two would destroy each other's work
//! DIR/format      "mqcore data 1, shards N": a channel's shard depends on their number, so it cannot change
//! DIR/shard-K/    the journal of shard K
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use mqcore_broker::broker::Restored;
use mqcore_broker::id::{ChannelName, Sequence};
use mqcore_broker::record::{Definition, Progress, RecordError, decode_definition, decode_put};
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::Report;
use mqcore_journal::storage::FileStorage;

pub use mqcore_journal::error::JournalError;

/// The directory of the archive.
pub const ARCHIVE: &str = "archive";

/// The largest record in octets. Frames are limited to less (see [`FRAME_BYTES_MAX`]), so a peer's message always fits:
/// one that did not would be taken for a fault of the disk.
const RECORD_BYTES_MAX: u64 = 1 << 30;

/// How large frames may be at most where messages are saved: a record adds the queue's address and a few octets.
pub const FRAME_BYTES_MAX: u64 = RECORD_BYTES_MAX - 4096;

/// Why a data directory cannot be used. Nothing was changed in it, unless its own words say so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// The directory or a file of it cannot be made, read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is none.
    #[error("{path} is no data directory: {missing} is missing")]
    Missing {
        /// What was named.
        path: PathBuf,
        /// What should be there: the directory itself, or a file of it.
        missing: PathBuf,
    },
    /// A broker runs on it, and only one that is stopped can be looked at.
    #[error("{path} is used by a running broker; stop it first, because its files change all the time")]
    Running {
        /// The directory.
        path: PathBuf,
    },
    /// Another broker runs on it, or somebody looks at it.
    #[error("{path} is used by another broker; stop that one, or choose another data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Not written by mqcore, or by a later version.
    #[error(
        "{path} does not say \"mqcore data 1, shards N\" but {found:?}: it is no data directory of this version"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A shard's journal cannot be opened.
    #[error("the journal of shard {shard}: {source}")]
    Journal {
        /// Which.
        shard: usize,
        /// Why.
        source: JournalError,
    },
    /// A record is sound and was not written by a version that this one understands.
    #[error("the journal of shard {shard}: {source}")]
    Record {
        /// Which.
        shard: usize,
        /// Why.
        source: RecordError,
    },
}

/// A data directory that belongs to this process until it is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    shards: usize,
    /// Unlocked by the system when it is closed, however the process ends.
    _lock: File,
}

/// A shard's journal, opened, and what it had.
pub(crate) struct Opened {
    pub(crate) journal: Journal<FileStorage>,
    pub(crate) definitions: Vec<Definition>,
    pub(crate) messages: Vec<Restored>,
    pub(crate) sequence: Sequence,
    pub(crate) report: Report,
    /// Live records that could not be read back.
    pub(crate) unreadable: u64,
}

impl DataDir {
    /// Opens the directory, or makes it for `shards` shards. One that exists keeps its own number of shards.
    pub(crate) fn open(path: &Path, shards: usize) -> Result<Self, DataDirError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| DataDirError::Io { path, source }
        };
        fs::create_dir_all(path).map_err(io(path))?;
        let lock_path = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&lock_path)
            .map_err(io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::Locked { path: path.to_path_buf() }),
            Err(TryLockError::Error(source)) => return Err(DataDirError::Io { path: lock_path, source }),
        }
        let format_path = path.join("format");
        let shards = match fs::read_to_string(&format_path) {
            Ok(text) => read_format(&text).ok_or(DataDirError::Format { path: format_path, found: text })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_format(path, shards).map_err(io(&format_path))?;
                shards
            }
            Err(source) => return Err(DataDirError::Io { path: format_path, source }),
        };
        Ok(Self { path: path.to_path_buf(), shards, _lock: lock })
    }

    /// Where a shard's journal is.
    pub(crate) fn shard(&self, shard: usize) -> PathBuf {
        self.path.join(format!("shard-{shard}"))
    }

    /// Where history is archived.
    pub(crate) fn archive(&self) -> PathBuf {
        self.path.join(ARCHIVE)
    }

    /// How many shards the directory was made for.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// Opens a shard's journal and reads everything that it has. `progress` is told octets done and in all.
    pub(crate) fn open_shard(
        &self,
        shard: usize,
        now_ms: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Opened, DataDirError> {
        let failed = |source| DataDirError::Journal { shard, source };
        let path = self.path.join(format!("shard-{shard}"));
        let storage = FileStorage::open(&path).map_err(|source| DataDirError::Io { path, source })?;
        let options = journal_options(shard, now_ms);
        let (journal, recovered) = Journal::open(storage, options, progress).map_err(failed)?;
        let unknown = |source| DataDirError::Record { shard, source };
        let definitions = recovered
            .definitions
            .iter()
            .map(|(key, value)| decode_definition(key, value))
            .collect::<Result<_, _>>()
            .map_err(unknown)?;
        let mut messages: Vec<Restored> = Vec::new();
        let mut unreadable = 0;
        let mut refused = None;
        journal.each_live(0, &mut |sequence, live| match live {
            Ok(live) => match restored(sequence, live.payload, live.touch) {
                Ok(mut message) => {
                    if let Some(previous) = messages.last() {
                        share_name(&mut message.put.queue.channel, &previous.put.queue.channel);
                    }
                    messages.push(message);
                }
                Err(error) => refused = Some(error),
            },
            Err(error) => {
                unreadable += 1;
                tracing::error!(shard, sequence, %error, "a saved message cannot be read back");
            }
        });
        if let Some(error) = refused {
            return Err(unknown(error));
        }
        let sequence = Sequence(recovered.next_sequence.saturating_sub(1));
        Ok(Opened { journal, definitions, messages, sequence, report: recovered.report, unreadable })
    }
}

/// How a shard's journal is laid out, whoever opens it.
pub(crate) fn journal_options(shard: usize, now_ms: u64) -> Options {
    Options { shard: shard as u32, now_ms, max_record_bytes: RECORD_BYTES_MAX as u32, ..Options::default() }
}

pub(crate) fn restored(sequence: u64, payload: &[u8], touch: Option<&[u8]>) -> Result<Restored, RecordError> {
    let progress = match touch {
        Some(touch) => Progress::decode(touch)?,
        None => Progress { rank: sequence as i64, ..Progress::default() },
    };
    Ok(Restored { put: decode_put(payload)?, sequence: Sequence(sequence), progress })
}

/// Most messages follow one of their own channel. With a name each, freed later, the heap would be left with a hole
/// beside every message.
fn share_name(name: &mut ChannelName, previous: &ChannelName) {
    if name == previous {
        name.clone_from(previous);
    }
}

pub(crate) fn read_format(text: &str) -> Option<usize> {
    let shards = text.trim().strip_prefix("mqcore data 1, shards ")?.parse().ok()?;
    (1..=crate::config::SHARDS_MAX).contains(&shards).then_some(shards)
}

/// Whole or not at all: a crash in between must not leave a directory that nobody can open.
fn write_format(path: &Path, shards: usize) -> io::Result<()> {
    let temporary = path.join("format.new");
    fs::write(&temporary, format!("mqcore data 1, shards {shards}\n"))?;
    File::open(&temporary)?.sync_all()?;
    fs::rename(&temporary, path.join("format"))?;
    File::open(path)?.sync_all()
}
