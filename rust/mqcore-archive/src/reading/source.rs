//! Where the files of an archive are, and how a reader gets them.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use super::ReadError;
use super::segments::{failed, found};
use crate::manifest::{self, FileEntry, Manifest};

/// Number of attempts to read the newest manifest. Each failure may mean that a newer manifest has replaced it.
const ATTEMPTS: u32 = 8;

/// An archive, as a reader sees it.
pub trait ArchiveSource: Debug + Send + Sync {
    /// Returns the newest list of files; `None`: there is no archive.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    fn manifest(&self) -> Result<Option<Manifest>, ReadError>;

    /// Opens a file that the manifest lists; `None`: it was removed since.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be opened.
    fn open(&self, file: &FileEntry) -> Result<Option<ArchiveFile>, ReadError>;

    /// Returns the path or URL of a file, for error messages.
    fn location(&self, file: &FileEntry) -> PathBuf;
}

/// An archive in a directory, which need not exist.
#[derive(Debug)]
pub struct DirectoryArchive(PathBuf);

impl DirectoryArchive {
    /// Uses the archive in a directory.
    pub fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }
}

impl ArchiveSource for DirectoryArchive {
    fn manifest(&self) -> Result<Option<Manifest>, ReadError> {
        newest_manifest(&self.0)
    }

    fn open(&self, file: &FileEntry) -> Result<Option<ArchiveFile>, ReadError> {
        let path = self.location(file);
        let file = found(File::open(&path)).map_err(|source| failed(&path, source))?;
        Ok(file.map(ArchiveFile::Local))
    }

    fn location(&self, file: &FileEntry) -> PathBuf {
        self.0.join(&file.path)
    }
}

/// An open file of an archive.
#[derive(Debug)]
pub enum ArchiveFile {
    /// A file of this machine.
    Local(File),
    /// An object in an object store.
    Remote(Arc<dyn RemoteFile>),
}

/// An object whose parts can be read by several threads.
pub trait RemoteFile: Debug + Send + Sync {
    /// Size in bytes.
    fn length(&self) -> u64;

    /// Reads some bytes, which exist.
    ///
    /// # Errors
    /// The store does not answer, or the object was removed.
    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes>;

    /// Returns why the last read failed; `None`: none has failed. Readers of Parquet lose the kind of an error.
    fn failure(&self) -> Option<io::ErrorKind>;
}

impl ArchiveFile {
    /// Returns the object; `None`: it is a file of this machine.
    pub(super) fn object(&self) -> Option<Arc<dyn RemoteFile>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(object) => Some(Arc::clone(object)),
        }
    }
}

impl Length for ArchiveFile {
    fn len(&self) -> u64 {
        match self {
            Self::Local(file) => file.len(),
            Self::Remote(file) => file.length(),
        }
    }
}

impl ChunkReader for ArchiveFile {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(match self {
            Self::Local(file) => Box::new(file.get_read(start)?),
            Self::Remote(file) => {
                Box::new(RemoteRead { file: Arc::clone(file), at: start, rest: Bytes::new() })
            }
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        match self {
            Self::Local(file) => file.get_bytes(start, length),
            Self::Remote(file) => Ok(file.read(start, length)?),
        }
    }
}

/// Reads an object from a position on, some bytes ahead.
struct RemoteRead {
    file: Arc<dyn RemoteFile>,
    at: u64,
    rest: Bytes,
}

impl RemoteRead {
    /// Bytes of one request.
    const AHEAD: u64 = 512 * 1024;
}

impl Read for RemoteRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let length = self.file.length().saturating_sub(self.at).min(Self::AHEAD);
            self.rest = self.file.read(self.at, length as usize)?;
            self.at += length;
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// Reads the newest manifest of an archive; `None`: there is none.
///
/// # Errors
/// [`ReadError::Manifest`] and [`ReadError::Io`] if it cannot be read.
pub fn newest_manifest(archive: &Path) -> Result<Option<Manifest>, ReadError> {
    let mut attempts = 0;
    loop {
        let Some(number) = newest_number(archive)? else { return Ok(None) };
        let path = archive.join(manifest::path(number));
        match found(fs::read(&path)).map_err(|source| failed(&path, source))? {
            Some(bytes) => {
                return Manifest::parse(&bytes).map(Some).map_err(|why| ReadError::Manifest { path, why });
            }
            None if attempts < ATTEMPTS => attempts += 1,
            None => return Err(failed(&path, io::ErrorKind::NotFound.into())),
        }
    }
}

fn newest_number(archive: &Path) -> Result<Option<u64>, ReadError> {
    let directory = archive.join(manifest::DIRECTORY);
    let Some(entries) = found(fs::read_dir(&directory)).map_err(|source| failed(&directory, source))? else {
        return Ok(None);
    };
    let mut newest = None;
    for entry in entries {
        let name = entry.map_err(|source| failed(&directory, source))?.file_name();
        let number =
            name.to_str().and_then(|name| manifest::number(&format!("{}{name}", manifest::DIRECTORY)));
        newest = newest.max(number);
    }
    Ok(newest)
}
