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

pub use mqcore_archive::reading::columns::{Column, Group, View};
pub use mqcore_archive::reading::request::HistoryRequest;
pub use mqcore_archive::reading::rows::{Batches, PieceReader};
pub use mqcore_archive::reading::{Ends, Piece, ReadError as HistoryError};

use crate::storage::archive_location::CombinedArchive;
use crate::storage::data_dir::{DataDirError, shard_name};
use crate::storage::manifest::Manifest;

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
    let failed = |why: String| ReadError::Remote { url: url.to_owned(), why };
    let location = LakeLocation::open(url, options).map_err(|error| failed(error.to_string()))?;
    let manifest = LakeArchive::new(location)?.manifest()?;
    let json = manifest.as_ref().map(serde_json::to_string).transpose();
    json.map_err(|error| failed(error.to_string()))
}

/// All shards' histories in a data directory.
#[derive(Debug)]
pub struct HistoryDir {
    shards: Vec<Arc<ShardHistory>>,
}

impl HistoryDir {
    /// Opens a data directory, or a copy of one. Reads only its number of shards.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Format`] and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        let shards = Manifest::read(path).map_err(|error| error.at(path))?.manifest.shards;
        let archive: Arc<dyn ArchiveSource> = Arc::new(CombinedArchive::open(path)?);
        let history =
            |shard| ShardHistory::new(shard as u32, &path.join(shard_name(shard)), Arc::clone(&archive));
        Ok(Self { shards: (0..shards).map(|shard| Arc::new(history(shard))).collect() })
    }

    /// How far each shard's history reaches now.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn ends(&self) -> Result<Vec<Ends>, HistoryError> {
        self.shards.iter().map(|shard| shard.ends()).collect()
    }

    fn shard(&self, number: u32) -> Result<&Arc<ShardHistory>, HistoryError> {
        let count = self.shards.len();
        self.shards
            .get(number as usize)
            .ok_or_else(|| ReadError::Request(format!("there is no shard {number}; there are {count}")))
    }

    /// Splits ranges one after the other. See [`ShardHistory::pieces`].
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn pieces(
        &self,
        request: &HistoryRequest,
        stretches: &[Stretch],
        target_bytes: u64,
    ) -> Result<Vec<Piece>, HistoryError> {
        let mut pieces = Vec::new();
        for (shard, range) in stretches {
            pieces.extend(self.shard(*shard)?.pieces(request, range.clone(), target_bytes)?);
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
