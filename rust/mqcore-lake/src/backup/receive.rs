//! The files of a restore point.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sha2::{Digest, Sha256};

use crate::backup::point::{FilePiece, PointFile, RestorePoint};
use crate::backup::upload::hexadecimal;
use crate::store::Store;
use crate::transfer::{TransferError, TransferProgress};

/// Pieces requested at a time, because a store answers slowly and serves many at once.
const AHEAD: usize = 8;

/// The destination of files.
pub trait FileSink: Send {
    /// A file begins.
    ///
    /// # Errors
    /// It cannot be created.
    fn begin(&mut self, file: &PointFile) -> io::Result<()>;

    /// The next bytes of the file that began last.
    ///
    /// # Errors
    /// They cannot be written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The file is complete.
    ///
    /// # Errors
    /// It cannot be completed.
    fn end(&mut self, file: &PointFile) -> io::Result<()>;
}

/// Receives the pieces of all files, in order.
///
/// # Errors
/// [`TransferError::Missing`] if a data object does not exist, as when the restore point expired meanwhile;
/// [`TransferError::Damaged`] if a piece is not what was stored; and the errors of the store, the files and `progress`.
pub async fn receive(
    store: &Store,
    point: &RestorePoint,
    sink: &mut dyn FileSink,
    progress: &mut TransferProgress<'_>,
) -> Result<(), TransferError> {
    let total = point.file_bytes();
    let mut done = 0;
    let pieces = point.files.iter().flat_map(|file| &file.pieces);
    let mut contents = futures_util::stream::iter(pieces).map(|piece| content(store, piece)).buffered(AHEAD);
    for file in &point.files {
        sink.begin(file)?;
        for _ in &file.pieces {
            let Some(content) = contents.next().await else { break };
            let content = content?;
            sink.write(&content)?;
            done += content.len() as u64;
            if !progress(done, total) {
                return Err(TransferError::Stopped);
            }
        }
        sink.end(file)?;
    }
    Ok(())
}

async fn content(store: &Store, piece: &FilePiece) -> Result<Bytes, TransferError> {
    let range = piece.at..piece.at + piece.stored;
    let Some(stored) = store.get_range(&piece.object, range).await? else {
        return Err(TransferError::Missing(store.location(&piece.object)));
    };
    let damaged = || TransferError::Damaged(store.location(&piece.object));
    let bytes = usize::try_from(piece.bytes).map_err(|_| damaged())?;
    let content = zstd::bulk::decompress(&stored, bytes).map_err(|_| damaged())?;
    if content.len() != bytes || hexadecimal(&Sha256::digest(&content)) != piece.sha256 {
        return Err(damaged());
    }
    Ok(content.into())
}
