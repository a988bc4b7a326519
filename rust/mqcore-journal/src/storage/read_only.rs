//! Read-only storage in a directory of the operating system. Never creates or changes a file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::Storage;
use super::file::{names, position, retry_interrupted};
use super::lock::DirectoryLock;

/// A directory of real files without an active writer. Several processes may read it at once.
#[derive(Debug)]
pub struct ReadOnlyStorage {
    directory: PathBuf,
    /// Excludes writers until this value is dropped.
    _lock: DirectoryLock,
}

impl ReadOnlyStorage {
    /// Locks an existing directory for reading.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if a writer holds the lock; otherwise the system's error.
    pub fn open(directory: impl AsRef<Path>) -> io::Result<Self> {
        let directory = directory.as_ref().to_path_buf();
        let lock = DirectoryLock::shared(&directory)?;
        Ok(Self { directory, _lock: lock })
    }
}

/// The result of every attempt to change something.
fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Storage for ReadOnlyStorage {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        names(&self.directory)
    }

    fn create(&self, _name: &str, _length: u64) -> io::Result<File> {
        refused()
    }

    /// Opens for reading only.
    fn open(&self, name: &str) -> io::Result<File> {
        File::open(self.directory.join(name))
    }

    fn length(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        retry_interrupted(|| position::read(file, buffer, offset))
    }

    fn write_at(&self, _file: &File, _offset: u64, _bytes: &[u8]) -> io::Result<usize> {
        refused()
    }

    fn set_length(&self, _file: &File, _length: u64) -> io::Result<()> {
        refused()
    }

    fn sync_data(&self, _file: &File) -> io::Result<()> {
        refused()
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        refused()
    }

    fn sync_directory(&self) -> io::Result<()> {
        refused()
    }
}
