//! Reads the history in a data directory, with or without a broker that runs on it. Locks and changes nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use mqcore_archive::reading::source::ArchiveSource;
use mqcore_archive::reading::{ReadError, ShardHistory};
use mqcore_lake::location::LakeLocation;
use mqcore_lake::reading::LakeArchive;

pub use mqcore_archive::reading::columns::{Column, Group, View, sequence};
pub use mqcore_archive::reading::request::HistoryRequest;
pub use mqcore_archive::reading::rows::{Batches, PieceReader};
pub use mqcore_archive::reading::slices::QueueSlice;
pub use mqcore_archive::reading::{Division, Ends, Piece, ReadError as HistoryError};

pub use crate::storage::archive_location::StoreAccess;

use crate::storage::archive_location::CombinedArchive;
use crate::storage::data_dir::{DataDirError, shard_name};
use crate::storage::manifest::Manifest;

pub use mqcore_archive::manifest::Manifest as ArchivedFiles;

/// A range of one shard's history, for [`HistoryDir::advance`]: shard, first sequence, and the end, exclusive.
pub type Stretch = (u32, Range<u64>);

/// Returns the list of files of an archive on object storage in JSON; `None`: there are no tables.
///
/// # Errors
/// [`HistoryError`] if the URL is invalid or the tables cannot be read.
pub fn archived_objects(
    url: &str,
    options: &BTreeMap<String, String>,
) -> Result<Option<String>, HistoryError> {
    let access = StoreAccess { options: options.clone(), ..StoreAccess::default() };
    let manifest = objects(url, &access)?.manifest()?;
    let json = manifest.as_ref().map(serde_json::to_string).transpose();
    json.map_err(|error| ReadError::Remote { url: url.to_owned(), why: error.to_string() })
}

/// Returns the size in bytes of all objects of an archive, also of metadata and of earlier snapshots.
///
/// # Errors
/// [`HistoryError`] if the URL is invalid or the objects cannot be listed.
pub fn archived_bytes(url: &str, options: &BTreeMap<String, String>) -> Result<u64, HistoryError> {
    objects(url, &StoreAccess { options: options.clone(), ..StoreAccess::default() })?.stored_bytes()
}

fn objects(url: &str, access: &StoreAccess) -> Result<LakeArchive, HistoryError> {
    let location = LakeLocation::open_with(url, &access.options, &access.variables);
    LakeArchive::new(location.map_err(|error| ReadError::Request(error.to_string()))?)
}

/// All shards' histories in a data directory, or in an archive on object storage.
#[derive(Debug)]
pub struct HistoryDir {
    shards: Shards,
}

#[derive(Debug)]
enum Shards {
    OfDirectory(Vec<Arc<ShardHistory>>),
    /// The tables tell which shards there are.
    OfArchive(Arc<dyn ArchiveSource>),
}

impl HistoryDir {
    /// Opens a data directory, or a copy of one. Reads only its number of shards.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Format`] and [`DataDirError::Io`].
    pub fn open(path: &Path, access: &StoreAccess) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        let shards = Manifest::read(path).map_err(|error| error.at(path))?.manifest.shards;
        let archive: Arc<dyn ArchiveSource> = Arc::new(CombinedArchive::open(path, access)?);
        let history =
            |shard| ShardHistory::new(shard as u32, &path.join(shard_name(shard)), Arc::clone(&archive));
        let shards = (0..shards).map(|shard| Arc::new(history(shard))).collect();
        Ok(Self { shards: Shards::OfDirectory(shards) })
    }

    /// Opens an archive on object storage, which ends where both of its tables end. Sends no request.
    ///
    /// # Errors
    /// [`HistoryError`] if the URL or an option is invalid.
    pub fn of_archive(url: &str, access: &StoreAccess) -> Result<Self, HistoryError> {
        Ok(Self { shards: Shards::OfArchive(Arc::new(objects(url, access)?)) })
    }

    /// Returns the list of files of the archive; `None`: it is a data directory, or there are no tables.
    ///
    /// # Errors
    /// [`HistoryError`] if the tables cannot be read.
    pub fn archived_files(&self) -> Result<Option<ArchivedFiles>, HistoryError> {
        match &self.shards {
            Shards::OfDirectory(_) => Ok(None),
            Shards::OfArchive(archive) => archive.manifest(),
        }
    }

    /// How far each shard's history reaches now.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn ends(&self) -> Result<Vec<Ends>, HistoryError> {
        match &self.shards {
            Shards::OfDirectory(shards) => shards.iter().map(|shard| shard.ends()).collect(),
            Shards::OfArchive(archive) => {
                let shards = archive.manifest()?.map(|manifest| manifest.shards).unwrap_or_default();
                shards.keys().map(|&shard| self.shard(shard)?.ends()).collect()
            }
        }
    }

    fn shard(&self, number: u32) -> Result<Arc<ShardHistory>, HistoryError> {
        match &self.shards {
            Shards::OfDirectory(shards) => shards.get(number as usize).cloned().ok_or_else(|| {
                ReadError::Request(format!("there is no shard {number}; there are {}", shards.len()))
            }),
            Shards::OfArchive(archive) => Ok(Arc::new(ShardHistory::archived(number, Arc::clone(archive)))),
        }
    }

    /// Splits ranges one after the other. See [`ShardHistory::pieces`].
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn pieces(
        &self,
        request: &HistoryRequest,
        stretches: &[Stretch],
        division: Division,
    ) -> Result<Vec<Piece>, HistoryError> {
        let mut pieces = Vec::new();
        for (shard, range) in stretches {
            pieces.extend(self.shard(*shard)?.pieces(request, range.clone(), division)?);
        }
        Ok(pieces)
    }

    /// Where the next `rows` rows of all ranges together end, each shard getting its share. One end per range.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn advance(
        &self,
        request: &Arc<HistoryRequest>,
        stretches: &[Stretch],
        rows: u64,
        fail_on_loss: bool,
    ) -> Result<Vec<u64>, HistoryError> {
        let mut left = rows;
        let mut ends = Vec::with_capacity(stretches.len());
        for (index, (shard, range)) in stretches.iter().enumerate() {
            // Rows that earlier shards did not use are shared among the others; each may take at least one.
            let share = left.div_ceil((stretches.len() - index) as u64).max(1);
            let (end, taken) = self.shard(*shard)?.advance(request, range.clone(), share, fail_on_loss)?;
            left = left.saturating_sub(taken);
            ends.push(end);
        }
        Ok(ends)
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// [`HistoryError`], immediately or from the iterator.
    pub fn read(
        &self,
        request: &Arc<HistoryRequest>,
        piece: &Piece,
        fail_on_loss: bool,
    ) -> Result<PieceReader, HistoryError> {
        self.shard(piece.shard)?.read(request, piece, fail_on_loss)
    }
}

/// Rows through Arrow's C stream interface.
pub fn arrow_stream(batches: Batches) -> FFI_ArrowArrayStream {
    FFI_ArrowArrayStream::new(Box::new(batches))
}
