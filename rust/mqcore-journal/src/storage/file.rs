//! Files of one directory of the operating system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Storage;

/// The file whose lock says that the directory is in use.
pub(super) const LOCK: &str = "lock";

/// A directory of real files. One process holds it at a time, until the last clone of this is gone: two writers of one
/// log would destroy it.
#[derive(Debug, Clone)]
pub struct FileStorage {
    directory: PathBuf,
    /// Held open, and so locked, for as long as this lives. The system gives it back after any end of the process.
    _lock: Arc<File>,
}

impl FileStorage {
    /// Takes a directory, creating it if need be.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] (elsewhere than on Unix another kind) if another process has it; whatever
    /// the system says otherwise.
    pub fn open(directory: impl AsRef<Path>) -> io::Result<Self> {
        let directory = directory.as_ref().to_path_buf();
        fs::create_dir_all(&directory)?;
        let lock = exclusive::open(&directory.join(LOCK))?;
        Ok(Self { directory, _lock: Arc::new(lock) })
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
            OpenOptions::new().create_new(true).read(true).write(true).open(self.directory.join(name))?;
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
        again(|| position::read(file, buffer, offset))
    }

    fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        again(|| position::write(file, bytes, offset))
    }

    fn set_length(&self, file: &File, length: u64) -> io::Result<()> {
        again(|| file.set_len(length))
    }

    /// Once, never again after an error: the kernel may have forgotten the pages that it could not write.
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
        File::open(&self.directory)?.sync_all()
    }

    /// Directories cannot be synced here; the file system keeps its own journal of names.
    #[cfg(not(unix))]
    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What a directory holds. Names that are no text are none of a journal's.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// A signal may interrupt a call before it did anything.
pub(super) fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Gives a new file its length and, where the file system can, its space: a full disk then shows itself here and
/// not in the middle of a write, and a sync has no new length to make durable.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn reserve(file: &File, length: u64) -> io::Result<()> {
    use rustix::io::Errno;
    let reserved = again(|| Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length)?));
    match reserved {
        Err(error)
            if [Errno::OPNOTSUPP, Errno::NOSYS]
                .map(|e| Some(e.raw_os_error()))
                .contains(&error.raw_os_error()) =>
        {
            again(|| file.set_len(length))
        }
        outcome => outcome,
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn reserve(file: &File, length: u64) -> io::Result<()> {
    again(|| file.set_len(length))
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

#[cfg(unix)]
mod exclusive {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::path::Path;

    use rustix::fs::{FlockOperation, flock};

    pub(super) fn open(path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }
}

#[cfg(windows)]
mod exclusive {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    pub(super) fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().create(true).truncate(false).write(true).share_mode(0).open(path)
    }
}
