//! Whole files as objects, sent and received in pieces, for backups.

use std::io::{self, Read, Write};
use std::sync::Arc;

use futures_util::StreamExt as _;
use object_store::buffered::BufWriter;
use object_store::{Error, ObjectStoreExt as _};
use tokio::io::AsyncWriteExt as _;

use crate::error::LakeError;
use crate::store::Store;

/// Bytes of one part of an object.
const PART_BYTES: usize = 8 << 20;

/// Why a file was not transferred.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] LakeError),
    /// The file cannot be read or written.
    #[error("{0}")]
    File(#[from] io::Error),
    /// There is no such object.
    #[error("there is no object {0}")]
    Missing(String),
    /// An object of this name exists.
    #[error("the object {0} exists; choose a new name")]
    Exists(String),
    /// An object does not have the content that was stored.
    #[error("the object {0} is damaged")]
    Damaged(String),
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

impl TransferError {
    /// The error of the store inside an error of its writer.
    fn of_writer(error: io::Error, name: &str) -> Self {
        match error.downcast::<Error>() {
            Ok(source) => LakeError::store("writing", name)(source).into(),
            Err(error) => error.into(),
        }
    }

    /// Whether the URL or a setting is invalid.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Store(LakeError::Url { .. }))
    }

    /// Whether the store refuses the credentials.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let Self::Store(LakeError::Store { source, .. }) = self else { return false };
        matches!(source, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
    }
}

/// Called with the transferred and the total number of bytes. False: the transfer stops.
pub type TransferProgress<'a> = dyn FnMut(u64, u64) -> bool + Send + 'a;

/// Sends `total` bytes as a new object. The object appears when it is complete.
///
/// # Errors
/// [`TransferError`]. Parts that were sent are given up.
pub async fn send_file(
    store: &Store,
    name: &str,
    (file, total): (&mut (dyn Read + Send), u64),
    progress: &mut TransferProgress<'_>,
) -> Result<u64, TransferError> {
    if store.exists(name).await? {
        return Err(TransferError::Exists(store.location(name)));
    }
    let mut writer = BufWriter::with_capacity(Arc::clone(store.objects()), store.path(name)?, PART_BYTES);
    let mut piece = vec![0; PART_BYTES];
    let mut sent = 0;
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        let written = writer.write_all(&piece[..read]).await;
        sent += read as u64;
        let continues = written.is_ok() && progress(sent, total);
        if !continues {
            // The store removes parts of what was not completed by itself, later.
            let _ = writer.abort().await;
            written.map_err(|error| TransferError::of_writer(error, name))?;
            return Err(TransferError::Stopped);
        }
    }
    writer.shutdown().await.map_err(|error| TransferError::of_writer(error, name))?;
    Ok(sent)
}

/// Receives an object.
///
/// # Errors
/// [`TransferError`]. The file may have a part of it.
pub async fn receive_file(
    store: &Store,
    name: &str,
    file: &mut (dyn Write + Send),
    progress: &mut TransferProgress<'_>,
) -> Result<u64, TransferError> {
    let failed = LakeError::store("reading", name);
    let found = match store.objects().get(&store.path(name)?).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Err(TransferError::Missing(store.location(name))),
        Err(error) => return Err(failed(error).into()),
    };
    let total = found.meta.size;
    let mut pieces = found.into_stream();
    let mut received = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(LakeError::store("reading", name))?;
        file.write_all(&piece)?;
        received += piece.len() as u64;
        if !progress(received, total) {
            return Err(TransferError::Stopped);
        }
    }
    Ok(received)
}
