//! The archive on object storage, for readers: which files there are, and their bytes.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use mqcore_archive::manifest::{FileEntry, Manifest};
use mqcore_archive::partition::Partition;
use mqcore_archive::reading::ReadError;
use mqcore_archive::reading::source::{ArchiveFile, ArchiveSource, RemoteFile};
use mqcore_archive::tables::Table;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};
use tokio::runtime::{Builder, Runtime};

use crate::error::LakeError;
use crate::files::LiveFile;
use crate::lake::{TABLES, shards};
use crate::location::LakeLocation;
use crate::store::Store;
use crate::table::IcebergTable;

/// Size in bytes up to which a file is read at once: a request takes as long as the transfer of about as many bytes.
const WHOLE: u64 = 1024 * 1024;
/// Bytes at the end of a larger file that are read when it is opened. They usually contain its metadata.
const METADATA: u64 = 64 * 1024;

/// The runtime of requests that readers send, which live outside of asynchronous code.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("mqcore-objects").enable_all().build()
    });
    started.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
}

/// The tables of an archive, read from outside of asynchronous code.
#[derive(Debug)]
pub struct LakeArchive {
    location: LakeLocation,
    runtime: &'static Runtime,
    /// The tables when they were last read, which only a later commit changes.
    tables: Mutex<Option<[IcebergTable; 2]>>,
}

impl LakeArchive {
    /// Reads the archive at a [`LakeLocation`], or in a [`Store`] that is its own catalog.
    ///
    /// # Errors
    /// [`ReadError::Remote`] if the thread for its requests cannot be started.
    pub fn new(location: impl Into<LakeLocation>) -> Result<Self, ReadError> {
        let location = location.into();
        let url = || location.store().url().to_owned();
        let runtime = runtime().map_err(|error| ReadError::Remote { url: url(), why: error.to_string() })?;
        Ok(Self { location, runtime, tables: Mutex::default() })
    }

    /// Returns the size in bytes of all objects of the tables, also of metadata and of earlier snapshots.
    ///
    /// # Errors
    /// [`ReadError`] if the objects cannot be listed.
    pub fn stored_bytes(&self) -> Result<u64, ReadError> {
        let mut bytes = 0;
        let store = self.location.store();
        for table in TABLES {
            let found = self.runtime.block_on(store.list(&format!("{}/", table.as_str())));
            bytes += found.map_err(|error| self.failed(&error))?.iter().map(|found| found.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    fn failed(&self, error: &LakeError) -> ReadError {
        let (url, why) = (self.location.store().url().to_owned(), error.to_string());
        match error {
            LakeError::Store {
                source: Error::Unauthenticated { .. } | Error::PermissionDenied { .. },
                ..
            } => ReadError::Denied { url, why },
            LakeError::Store { source: Error::Generic { .. }, .. } => ReadError::Unreachable { url, why },
            _ => ReadError::Remote { url, why },
        }
    }
}

impl ArchiveSource for LakeArchive {
    fn manifest(&self) -> Result<Option<Manifest>, ReadError> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.runtime.block_on(refreshed(&self.location, tables.take()));
        *tables = read.map_err(|error| self.failed(&error))?;
        let Some([messages, steps]) = tables.as_ref() else { return Ok(None) };
        let listed = |table| listed(table).map_err(|error| self.failed(&error));
        Ok(Some(combined(listed(steps)?, listed(messages)?)))
    }

    fn open(&self, file: &FileEntry) -> Result<Option<ArchiveFile>, ReadError> {
        let store = self.location.store();
        let name = store.name(&file.path).unwrap_or(&file.path);
        // One request returns a small file, or the metadata at the end of a large one.
        let start = file.bytes.saturating_sub(if file.bytes <= WHOLE { file.bytes } else { METADATA });
        let opened = self.runtime.block_on(async {
            let path = store.path(name)?;
            match store.objects().get_range(&path, start..file.bytes).await {
                Ok(end) => Ok(Some((path, end))),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(LakeError::store("reading", name)(error)),
            }
        });
        let Some((path, end)) = opened.map_err(|error| self.failed(&error))? else { return Ok(None) };
        let (store, runtime) = (store.clone(), self.runtime);
        let failure = OnceLock::new();
        let file = ObjectFile { store, path, length: file.bytes, end, runtime, failure };
        Ok(Some(ArchiveFile::Remote(Arc::new(file))))
    }

    fn location(&self, file: &FileEntry) -> PathBuf {
        PathBuf::from(&file.path)
    }
}

/// An object, read by ranges.
#[derive(Debug)]
struct ObjectFile {
    store: Store,
    path: Path,
    length: u64,
    /// Its last bytes.
    end: Bytes,
    runtime: &'static Runtime,
    failure: OnceLock<io::ErrorKind>,
}

impl RemoteFile for ObjectFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let known = self.length - self.end.len() as u64;
        if let Some(first) = offset.checked_sub(known) {
            return Ok(self.end.slice(first as usize..first as usize + length));
        }
        let range = offset..offset + length as u64;
        let read = self.runtime.block_on(self.store.objects().get_range(&self.path, range));
        read.map_err(io::Error::from).inspect_err(|error| {
            self.failure.get_or_init(|| error.kind());
        })
    }

    fn failure(&self) -> Option<io::ErrorKind> {
        self.failure.get().copied()
    }
}

/// Returns the newest state of both tables; `None`: there is no table yet.
async fn refreshed(
    location: &LakeLocation,
    known: Option<[IcebergTable; 2]>,
) -> Result<Option<[IcebergTable; 2]>, LakeError> {
    let mut known = known.map_or([None, None], |tables| tables.map(Some));
    // The steps are read first: a round commits them last, so that the messages extend at least as far.
    for (table, known) in TABLES.iter().zip(&mut known).rev() {
        let is_current = match known {
            Some(known) => known.is_current().await?,
            None => false,
        };
        if !is_current {
            *known = IcebergTable::open(location, *table).await?;
        }
    }
    let [messages, steps] = known;
    Ok(messages.zip(steps).map(|(messages, steps)| [messages, steps]))
}

fn combined(mut steps: Manifest, messages: Manifest) -> Manifest {
    steps.files.extend(messages.files);
    for (shard, reach) in &mut steps.shards {
        match messages.shards.get(shard).filter(|other| other.journal == reach.journal) {
            Some(other) => {
                reach.notes = reach.notes.min(other.notes);
                reach.kept_from = reach.kept_from.max(other.kept_from);
                reach.begins = reach.begins.max(other.begins);
            }
            None => reach.notes = 0,
        }
    }
    steps
}

fn listed(table: &IcebergTable) -> Result<Manifest, LakeError> {
    let files = table.files().iter().flat_map(|file| entries(table.table(), file)).collect();
    Ok(Manifest { shards: shards(table)?, files, ..Manifest::empty() })
}

/// Returns an entry for each shard of a file. Files that other programs have rewritten may contain several.
fn entries(table: Table, file: &LiveFile) -> Vec<FileEntry> {
    let (first, last) = file.bounds.shard.unwrap_or((0, 0));
    let ms = |us: i64| u64::try_from(us / 1000).unwrap_or(0);
    let (min_time, max_time) = file.bounds.time_us.unwrap_or((0, i64::MAX));
    let (min_number, max_number) = file.bounds.number.unwrap_or((0, 0));
    // Notes of several shards have nothing in common, so that every row must be compared.
    let notes = if first == last { file.notes() } else { 0..u64::MAX };
    let entry = |shard: i32| FileEntry {
        table: table.as_str().to_owned(),
        path: file.data.file_path().to_owned(),
        shard: shard.cast_unsigned(),
        channel: None,
        queue_id: None,
        queues: file.bounds.queue.clone(),
        date: Partition::of("".into(), ms(min_time)).date(),
        bytes: file.data.file_size_in_bytes(),
        rows: file.data.record_count(),
        min_time_ms: ms(min_time),
        max_time_ms: ms(max_time),
        min_number: min_number.cast_unsigned(),
        max_number: max_number.cast_unsigned(),
        min_note: notes.start,
        max_note: notes.end.saturating_sub(1),
    };
    (first..=last).map(entry).collect()
}
