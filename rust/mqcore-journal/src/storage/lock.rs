//! The lock of a directory: no two processes use it at the same time, unless both only read it.
//!
//! A process locks the file `lock` and the directory itself, so that deleting the file does not let a second process in.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::private::private_options;

/// The file whose lock marks the directory as in use.
pub const LOCK_FILE: &str = "lock";

/// File descriptors that hold locks of this process. A forked child inherits them.
static DESCRIPTORS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// A lock on a directory, held until this is dropped. The system releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock {
    /// `None`: the directory has no lock file, as in a copy.
    file: Option<File>,
    /// `None`: the system cannot lock directories.
    directory: Option<File>,
}

impl DirectoryLock {
    /// Locks a directory for writing. Creates the lock file.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process holds a lock; otherwise the system's error.
    pub fn exclusive(directory: &Path) -> io::Result<Self> {
        let file = private_options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(directory.join(LOCK_FILE))?;
        Self::new(Some(file), directory, File::try_lock)
    }

    /// Locks an existing directory for reading. Other readers may lock it too.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if a writer holds the lock; otherwise the system's error.
    pub fn shared(directory: &Path) -> io::Result<Self> {
        let file = match File::open(directory.join(LOCK_FILE)) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Self::new(file, directory, File::try_lock_shared)
    }

    fn new(
        file: Option<File>,
        directory: &Path,
        lock: fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Self> {
        if let Some(file) = &file {
            lock(file).map_err(io::Error::from)?;
        }
        let directory = match open_directory(directory) {
            None => None,
            Some(opened) => {
                let opened = opened?;
                match lock(&opened) {
                    Ok(()) => Some(opened),
                    Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                    // Some network file systems lock files only.
                    Err(TryLockError::Error(_)) => None,
                }
            }
        };
        let locked = Self { file, directory };
        DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner).extend(locked.descriptors());
        Ok(locked)
    }

    #[cfg(unix)]
    fn descriptors(&self) -> Vec<i32> {
        use std::os::fd::AsRawFd;
        [&self.file, &self.directory].into_iter().flatten().map(AsRawFd::as_raw_fd).collect()
    }

    /// Processes cannot be forked on this system.
    #[cfg(not(unix))]
    fn descriptors(&self) -> Vec<i32> {
        Vec::new()
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let own = self.descriptors();
        DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| !own.contains(known));
    }
}

/// The file descriptors that hold locks of this process. A forked child must close them, or it keeps the locks as long as it
/// runs. Never blocks; empty if another thread changes the list, which a child cannot wait for.
pub fn lock_descriptors() -> Vec<i32> {
    DESCRIPTORS.try_lock().map_or_else(|_| Vec::new(), |descriptors| descriptors.clone())
}

#[cfg(unix)]
fn open_directory(directory: &Path) -> Option<io::Result<File>> {
    Some(File::open(directory))
}

/// Directories cannot be opened on this system.
#[cfg(not(unix))]
fn open_directory(_directory: &Path) -> Option<io::Result<File>> {
    None
}
