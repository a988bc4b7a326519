//! Exports the data of a stopped broker to a file of rows for other programs.
//!
//! The columns are those of `mqcore_archive::tables`. The caller supplies a temporary name, and renames the file when
//! it is complete.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use mqcore_archive::export::{ExportError, Exporter};
use mqcore_archive::tables::{StepPlace, Table};
use mqcore_broker::history::LifecycleStep;
use mqcore_broker::history::packing::unpack;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::record::RecordError;

use crate::storage::data_dir::DataDirError;
use crate::storage::inspection::{InspectedShard, MessagePosition};

pub use mqcore_archive::export::Format;

/// Bytes collected before a write.
const BUFFER_BYTES: usize = 256 * 1024;

/// Why the file was not written, or not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be created or written.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Rows cannot be encoded: a bug.
    #[error(transparent)]
    Rows(ExportError),
    /// A message can no longer be read.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// The history was written by a later version.
    #[error("cannot read the history of shard {shard}: {source}")]
    History {
        /// The shard.
        shard: usize,
        /// The cause.
        source: RecordError,
    },
}

/// A file that grows row by row. It is incomplete until [`TableFile::finish`].
pub struct TableFile {
    rows: Exporter<BufWriter<File>>,
    path: PathBuf,
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, rows } = self;
        formatter.debug_struct("TableFile").field("path", path).field("rows", &rows.count()).finish()
    }
}

impl TableFile {
    /// Creates a file of messages, for [`TableFile::push_message`]. An existing file is overwritten.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn messages(path: &Path, format: Format) -> Result<Self, FileError> {
        Self::new(path, format, Table::Stored)
    }

    /// Creates a file of lifecycle events, for [`TableFile::push_steps`]. An existing file is overwritten.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn steps(path: &Path, format: Format) -> Result<Self, FileError> {
        Self::new(path, format, Table::Steps)
    }

    fn new(path: &Path, format: Format, table: Table) -> Result<Self, FileError> {
        let file = File::create(path).map_err(|source| FileError::Io { path: path.to_path_buf(), source })?;
        let rows = Exporter::new(format, table, BufWriter::with_capacity(BUFFER_BYTES, file))
            .map_err(|error| failed(path, error))?;
        Ok(Self { rows, path: path.to_path_buf() })
    }

    /// Adds one message.
    ///
    /// # Errors
    /// [`FileError::Directory`] if it can no longer be read; [`FileError::Io`].
    pub fn push_message(&mut self, shard: &InspectedShard, place: MessagePosition) -> Result<(), FileError> {
        let message = shard.message(place)?.0;
        let pushed = self.rows.rows.push_stored(
            shard.number() as u32,
            message.sequence,
            &message.put,
            place.progress(),
        );
        pushed
            .map_err(ExportError::from)
            .and_then(|()| self.rows.advance())
            .map_err(|error| failed(&self.path, error))
    }

    /// Adds the lifecycle events in a shard's journal: those of `queue`, compared case-insensitively, and those of
    /// the whole shard; without `queue` all. `progress` is called after each note; false stops early. Returns whether
    /// every note could be read.
    ///
    /// # Errors
    /// [`FileError::History`] for history of a later version; [`FileError::Io`].
    pub fn push_steps(
        &mut self,
        shard: &InspectedShard,
        queue: Option<&QueueAddress>,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<bool, FileError> {
        let (number, wanted) = (shard.number(), queue.map(ToString::to_string));
        let wanted = wanted.as_deref();
        let (mut outcome, mut readable, mut going_on) = (Ok(()), true, true);
        let mut memory = Vec::new();
        shard.each_note(&mut |note| {
            if outcome.is_err() || !going_on {
                return;
            }
            let mut position = 0;
            let mut pushed = Ok(());
            let mut show = |step: LifecycleStep<'_>| {
                let place = StepPlace { shard: number as u32, note: note.number, position };
                position += 1;
                let named = step.kind.is_of_a_shard()
                    || wanted.is_none_or(|wanted| step.queue.eq_ignore_ascii_case(wanted));
                if named && pushed.is_ok() {
                    let row = self.rows.rows.push_step(place, &step).map_err(ExportError::from);
                    pushed = row.and_then(|()| self.rows.advance());
                }
            };
            let read = unpack(note.payload, &mut memory).and_then(|block| each_step(block, &mut show));
            outcome = match (pushed, read) {
                (Err(error), _) => Err(failed(&self.path, error)),
                (_, Ok(())) => Ok(()),
                (_, Err(RecordError::Malformed { .. })) => {
                    readable = false;
                    Ok(())
                }
                (_, Err(source)) => Err(FileError::History { shard: number, source }),
            };
            going_on = progress();
        });
        outcome.map(|()| readable)
    }

    /// Writes the rest, and makes the file durable. Returns the number of rows.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn finish(self) -> Result<u64, FileError> {
        let (count, file) = self.rows.finish().map_err(|error| failed(&self.path, error))?;
        let synced = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        synced.map_err(|source| FileError::Io { path: self.path, source })?;
        Ok(count)
    }
}

/// The encoders wrap the error of the system in errors of their own.
fn failed(path: &Path, error: ExportError) -> FileError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(source) = inner.downcast_ref::<io::Error>() {
            let source =
                source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error);
            return FileError::Io { path: path.to_path_buf(), source };
        }
        cause = inner.source();
    }
    FileError::Rows(error)
}
