//! Storage in a directory of the operating system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Storage;
use super::lock::DirectoryLock;
use super::private::{create_private_directory, private_options};

/// A directory of real files, locked by one process until the last clone of this value is dropped. Two writers would destroy
/// the log.
#[derive(Debug, Clone)]
pub struct FileStorage {
    directory: PathBuf,
    /// Held open, so that syncing names needs no file descriptor.
    names: Arc<File>,
    _lock: Arc<DirectoryLock>,
}

impl FileStorage {
    /// Locks a directory, and creates it if it does not exist. Makes its own name durable.
    ///
    /// Only the owner can access the directories and files that this creates.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process holds the lock; otherwise the system's error.
    pub fn open(directory: impl AsRef<Path>) -> io::Result<Self> {
        let directory = directory.as_ref().to_path_buf();
        create_private_directory(&directory)?;
        let lock = DirectoryLock::exclusive(&directory)?;
        let names = open_directory(&directory)?;
        Ok(Self { directory, names: Arc::new(names), _lock: Arc::new(lock) })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Storage for FileStorage {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        names(&self.directory)
    }

    fn create(&self, name: &str, length: u64) -> io::Result<File> {
        let file =
            private_options().create_new(true).read(true).write(true).open(self.directory.join(name))?;
        reserve(&file, length)?;
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.directory.join(name))
    }

    fn length(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        retry_interrupted(|| position::read(file, buffer, offset))
    }

    fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        retry_interrupted(|| position::write(file, bytes, offset))
    }

    fn set_length(&self, file: &File, length: u64) -> io::Result<()> {
        retry_interrupted(|| file.set_len(length))
    }

    /// Called once and never retried after an error: the kernel may have dropped the pages that it could not write.
    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.directory.join(name))
    }

    #[cfg(unix)]
    fn sync_directory(&self) -> io::Result<()> {
        self.names.sync_all()
    }

    /// Directories cannot be synced on this system; the file system journals names itself.
    #[cfg(not(unix))]
    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(unix)]
fn open_directory(directory: &Path) -> io::Result<File> {
    File::open(directory)
}

/// Directories cannot be opened on this system, and need not be synced: the lock file stands in.
#[cfg(not(unix))]
fn open_directory(directory: &Path) -> io::Result<File> {
    File::open(directory.join(super::lock::LOCK_FILE))
}

/// Lists a directory. Skips names that are not valid Unicode, which a journal never creates.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// Repeats a call that a signal interrupted before it did anything.
pub(super) fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Gives a new file its length and, if the file system can, reserves its space. A full disk then fails here instead of in the
/// middle of a write, and later syncs need not make a new length durable.
///
/// # Errors
/// The error of the system, for example a full disk.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub fn reserve(file: &File, length: u64) -> io::Result<()> {
    use rustix::io::Errno;
    if length == 0 {
        return Ok(());
    }
    let reserved = retry_interrupted(|| {
        Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length)?)
    });
    match reserved {
        Err(error)
            if [Errno::OPNOTSUPP, Errno::NOSYS]
                .map(|e| Some(e.raw_os_error()))
                .contains(&error.raw_os_error()) =>
        {
            retry_interrupted(|| file.set_len(length))
        }
        outcome => outcome,
    }
}

/// Gives a new file its length.
///
/// # Errors
/// The error of the system.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub fn reserve(file: &File, length: u64) -> io::Result<()> {
    retry_interrupted(|| file.set_len(length))
}

#[cfg(unix)]
pub(super) mod position {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(in super::super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }
}

#[cfg(windows)]
pub(super) mod position {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(in super::super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buffer, offset)
    }

    pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(bytes, offset)
    }
}
