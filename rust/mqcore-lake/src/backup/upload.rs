//! New pieces, collected in data objects.

use std::io::{self, Read, Seek, SeekFrom};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::backup::point::{FilePiece, PIECE_BYTES, ZSTD_LEVEL};
use crate::error::LakeError;
use crate::store::Store;

const DIRECTORY: &str = "data/";

/// Returns the restore point that added a data object; `None`: the name is not that of a data object.
pub(crate) fn point_of(object: &str) -> Option<u64> {
    object.strip_prefix(DIRECTORY)?.split_once('-')?.0.parse().ok()
}

/// Lists the names of all data objects.
pub(crate) async fn objects(store: &Store) -> Result<Vec<String>, LakeError> {
    Ok(store.list(DIRECTORY).await?.into_iter().map(|found| found.name).collect())
}

/// The data object that is being collected. Its name is used once: an upload whose outcome is unknown may still arrive.
#[derive(Debug)]
pub(crate) struct DataObject {
    pub(crate) name: String,
    content: Vec<u8>,
}

impl DataObject {
    /// Begins one for a restore point.
    pub(crate) fn new(point: u64) -> Self {
        Self { name: format!("{DIRECTORY}{point:010}-{}", Uuid::new_v4().simple()), content: Vec::new() }
    }

    /// Adds a piece.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> io::Result<FilePiece> {
        let compressed = zstd::bulk::compress(bytes, ZSTD_LEVEL)?;
        let at = self.content.len() as u64;
        self.content.extend_from_slice(&compressed);
        Ok(FilePiece {
            object: self.name.clone(),
            at,
            stored: compressed.len() as u64,
            bytes: bytes.len() as u64,
            sha256: hexadecimal(&Sha256::digest(bytes)),
        })
    }

    /// Number of bytes that it has.
    pub(crate) fn bytes(&self) -> usize {
        self.content.len()
    }

    /// Uploads it if it has a piece. Returns the number of bytes.
    pub(crate) async fn upload(self, store: &Store) -> Result<u64, LakeError> {
        let bytes = self.content.len() as u64;
        if bytes > 0 {
            store.put(&self.name, self.content.into()).await?;
        }
        Ok(bytes)
    }
}

/// A file that can be read.
pub trait FileContent: Read + Seek + Send {}

impl<T: Read + Seek + Send> FileContent for T {}

/// Files that can be read.
pub trait FileSource: Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&self, name: &str) -> io::Result<Box<dyn FileContent>>;
}

/// Reads the bytes of a file, from some place on, as pieces.
pub(crate) struct PieceReader {
    file: Box<dyn FileContent>,
    left: u64,
}

impl PieceReader {
    pub(crate) fn new(mut file: Box<dyn FileContent>, from: u64, to: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(from))?;
        Ok(Self { file, left: to.saturating_sub(from) })
    }

    /// Reads the next piece; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let bytes = self.left.min(PIECE_BYTES);
        if bytes == 0 {
            return Ok(None);
        }
        self.left -= bytes;
        exactly(&mut *self.file, bytes).map(Some)
    }
}

/// Compares a file with its pieces, in their order.
pub(crate) struct Comparison {
    file: Box<dyn FileContent>,
    /// Offset of the next piece.
    at: u64,
}

impl Comparison {
    pub(crate) fn new(file: Box<dyn FileContent>) -> Self {
        Self { file, at: 0 }
    }

    /// Takes the next piece as compared.
    pub(crate) fn skip(&mut self, piece: &FilePiece) {
        self.at += piece.bytes;
    }

    /// Whether the file has the content of the next piece.
    pub(crate) fn is_same(&mut self, piece: &FilePiece) -> io::Result<bool> {
        self.file.seek(SeekFrom::Start(self.at))?;
        self.at += piece.bytes;
        match exactly(&mut *self.file, piece.bytes) {
            Ok(bytes) => Ok(hexadecimal(&Sha256::digest(&bytes)) == piece.sha256),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn exactly(file: &mut dyn FileContent, bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    file.read_exact(&mut content)?;
    Ok(content)
}

pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
