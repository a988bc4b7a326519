//! A data directory that no broker uses, looked at without changing a byte of it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use mqcore_broker::broker::Restored;
use mqcore_broker::id::QueueAddress;
use mqcore_broker::record::{Definition, decode_definition};
use mqcore_journal::error::JournalError;
use mqcore_journal::inspection::Inspection;
use mqcore_journal::options::Options;
use mqcore_journal::storage::ReadOnlyStorage;

pub use mqcore_journal::inspection::{InspectedSegment, SegmentState};
pub use mqcore_journal::recovery::Report;

use crate::data_dir::{DataDirError, read_format, restored};

/// A data directory that no broker can start on until this is dropped.
#[derive(Debug)]
pub struct StoppedDataDir {
    path: PathBuf,
    shards: usize,
    /// Shared, so that several may look. `None`: no broker ever held it, as in a copy without the file.
    _lock: Option<File>,
}

/// A shard's journal as the next start would find it.
#[derive(Debug)]
pub struct InspectedShard {
    shard: usize,
    /// `None`: its directory is not there.
    journal: Option<Inspection<ReadOnlyStorage>>,
}

/// Where a saved message stands, without its content: small, because a queue may have millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Messages of high priority come first.
    normal: bool,
    rank: i64,
    sequence: u64,
    attempts: u16,
}

impl StoppedDataDir {
    /// Takes a directory that exists and that no broker uses.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Running`], [`DataDirError::Format`], and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        let lock_path = path.join("lock");
        let lock = match File::open(&lock_path) {
            Ok(lock) => match lock.try_lock_shared() {
                Ok(()) => Some(lock),
                Err(TryLockError::WouldBlock) => {
                    return Err(DataDirError::Running { path: path.to_path_buf() });
                }
                Err(TryLockError::Error(source)) => {
                    return Err(DataDirError::Io { path: lock_path, source });
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(DataDirError::Io { path: lock_path, source }),
        };
        let format_path = path.join("format");
        let shards = match fs::read(&format_path) {
            Ok(octets) => {
                let found = String::from_utf8_lossy(&octets).into_owned();
                read_format(&found).ok_or(DataDirError::Format { path: format_path, found })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DataDirError::Missing { path: path.to_path_buf(), missing: format_path });
            }
            Err(source) => return Err(DataDirError::Io { path: format_path, source }),
        };
        Ok(Self { path: path.to_path_buf(), shards, _lock: lock })
    }

    /// How many shards it was made for.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Reads a shard's journal with its checksums. `progress` is told octets done and in all.
    ///
    /// # Errors
    /// [`DataDirError::Running`], [`DataDirError::Io`], and [`DataDirError::Journal`] where a later version wrote it.
    pub fn inspect(
        &self,
        shard: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<InspectedShard, DataDirError> {
        let path = self.path.join(format!("shard-{shard}"));
        if !path.is_dir() {
            return Ok(InspectedShard { shard, journal: None });
        }
        let storage = ReadOnlyStorage::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DataDirError::Running { path: self.path.clone() },
            _ => DataDirError::Io { path, source },
        })?;
        let options = Options { shard: shard as u32, ..Options::default() };
        let journal = Inspection::new(storage, options, progress)
            .map_err(|source| DataDirError::Journal { shard, source })?;
        Ok(InspectedShard { shard, journal: Some(journal) })
    }
}

impl InspectedShard {
    /// What was found; `None` if there is no journal: its directory or all of its segments are missing.
    pub fn report(&self) -> Option<&Report> {
        let report = &self.journal.as_ref()?.recovered().report;
        (!self.segments().is_empty() || *report != Report::default()).then_some(report)
    }

    /// Its segment files, by number.
    pub fn segments(&self) -> Vec<InspectedSegment> {
        self.journal.as_ref().map(Inspection::segments).unwrap_or_default()
    }

    /// Channels and queues that it defines, readable or not.
    pub fn definition_count(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.recovered().definitions.len())
    }

    /// Whether it defines this queue, whose name is compared without regard to case.
    pub fn defines(&self, queue: &QueueAddress) -> bool {
        let definitions = self.journal.iter().flat_map(|journal| &journal.recovered().definitions);
        definitions
            .filter_map(|(key, value)| decode_definition(key, value).ok())
            .any(|definition| matches!(definition, Definition::Queue(address, _) if is_same(&address, queue)))
    }

    /// Reads every definition and saved message, as a start would, and shows in words each that it would stumble over.
    pub fn each_unreadable(&self, show: &mut dyn FnMut(String)) {
        let Some(journal) = &self.journal else { return };
        for (key, value) in &journal.recovered().definitions {
            if let Err(error) = decode_definition(key, value) {
                show(format!("the definition {:?}: {error}", String::from_utf8_lossy(key)));
            }
        }
        journal.each_live(0, &mut |sequence, live| match live {
            Err(error) => show(format!("message {sequence}: {error}")),
            Ok(live) => {
                if let Err(error) = restored(sequence, live.payload, live.touch) {
                    show(format!("message {sequence}: {error}"));
                }
            }
        });
    }

    /// The saved messages of a queue in the order in which they would be handed out, and how many records could not be
    /// read, of whichever queue they are.
    pub fn places(&self, queue: &QueueAddress) -> (Vec<Place>, u64) {
        let (mut places, mut unreadable) = (Vec::new(), 0);
        let Some(journal) = &self.journal else { return (places, unreadable) };
        journal.each_live(0, &mut |sequence, live| {
            let live = live.ok().and_then(|live| restored(sequence, live.payload, live.touch).ok());
            match live {
                None => unreadable += 1,
                Some(Restored { put, progress, .. }) if is_same(&put.queue, queue) => places.push(Place {
                    normal: !put.message.properties().high_priority,
                    rank: progress.rank,
                    sequence,
                    attempts: progress.attempts,
                }),
                Some(_) => {}
            }
        });
        places.sort_unstable();
        (places, unreadable)
    }

    /// One message, and how often it was handed out.
    ///
    /// # Errors
    /// [`DataDirError::Journal`] and [`DataDirError::Record`] if it cannot be read any more.
    pub fn message(&self, place: Place) -> Result<(Restored, u16), DataDirError> {
        let shard = self.shard;
        let failed = |source| DataDirError::Journal { shard, source };
        let journal = self.journal.as_ref().ok_or(failed(JournalError::NotLive(place.sequence)))?;
        let payload = journal.read(place.sequence).map_err(failed)?;
        let message = restored(place.sequence, &payload, None)
            .map_err(|source| DataDirError::Record { shard, source })?;
        Ok((message, place.attempts))
    }
}

/// Whether the broker takes two addresses for one.
fn is_same(one: &QueueAddress, other: &QueueAddress) -> bool {
    one.id == other.id && one.channel.as_str().eq_ignore_ascii_case(other.channel.as_str())
}
