//! The storage of journals over a group: reads see at once what was written, and the files change when it is committed.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mqcore_journal::storage::lock::{DirectoryLock, LOCK_FILE};
use mqcore_journal::storage::private::create_private_directory;
use mqcore_journal::storage::{FileStorage, Storage};

use crate::operation::{FileOperation, encode_write};
use crate::replicator::Replicator;
use crate::small_files::replace_file;

/// Space on the file system that a new file must leave free, for the log of the group.
pub(crate) const FREE_BYTES_MIN: u64 = 64 << 20;
/// Largest file whose rename becomes a new file with the same content, which can be repeated.
const SMALL_BYTES: u64 = if cfg!(test) { 4096 } else { 1 << 20 };

/// Bytes of one operation; a longer write becomes several.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The files of a data directory: on this disk only, or on all members of a group.
#[derive(Debug, Clone, Default)]
pub enum DataFiles {
    /// On this disk only.
    #[default]
    Local,
    /// On all members.
    Replicated(Arc<Replicator>),
}

impl DataFiles {
    /// Opens the directory of a journal, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process uses it; otherwise the system's error.
    pub fn open(&self, directory: &Path) -> io::Result<DataStorage> {
        Ok(match self {
            Self::Local => DataStorage::Local(FileStorage::open(directory)?),
            Self::Replicated(replicator) => {
                DataStorage::Replicated(ReplicatedStorage::open(replicator, directory)?)
            }
        })
    }

    /// Replaces a small file: a crash leaves the old or the new content. Durable at return.
    ///
    /// # Errors
    /// The error of the system. On a cluster also if the file is not in the data directory.
    pub fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        match self {
            Self::Local => replace_file(path, content),
            Self::Replicated(replicator) => replicator.put(path, content),
        }
    }

    /// A file of the data directory is missing, or does not have the bytes that were written. See
    /// [`Replicator::report_damage`].
    ///
    /// # Errors
    /// This member gets a copy from others: nothing must be changed because of the damage.
    pub fn report_damage(&self, path: &Path, what: &str) -> io::Result<()> {
        self.replicator().map_or(Ok(()), |replicator| replicator.report_damage(path, what))
    }

    /// The group, if there is one.
    #[must_use]
    pub fn replicator(&self) -> Option<&Arc<Replicator>> {
        match self {
            Self::Local => None,
            Self::Replicated(replicator) => Some(replicator),
        }
    }
}

/// The storage of one journal.
#[derive(Debug, Clone)]
pub enum DataStorage {
    /// On this disk only.
    Local(FileStorage),
    /// On all members.
    Replicated(ReplicatedStorage),
}

/// An open file of a [`DataStorage`].
#[derive(Debug)]
pub enum DataFile {
    /// On this disk only.
    Local(File),
    /// On all members.
    Replicated(Arc<ReplicatedFile>),
}

/// The storage of one journal on all members of a group.
#[derive(Debug, Clone)]
pub struct ReplicatedStorage {
    directory: PathBuf,
    replicator: Arc<Replicator>,
    files: Arc<Mutex<BTreeMap<String, Arc<ReplicatedFile>>>>,
    _lock: Arc<DirectoryLock>,
}

/// A file, as its writer sees it.
#[derive(Debug)]
pub struct ReplicatedFile {
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    /// Its name in the directory, if it was not removed.
    name: Option<String>,
    length: u64,
    /// The file on this disk. Opened when needed, once it exists.
    on_disk: Option<File>,
    /// The operation that creates it there.
    created_by: u64,
    /// Changes that may not be on this disk yet.
    changes: VecDeque<(u64, FileChange)>,
}

#[derive(Debug)]
enum FileChange {
    Write(u64, Bytes),
    Length(u64),
}

impl ReplicatedStorage {
    /// Opens a directory of the data directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process uses it; otherwise the system's error.
    pub fn open(replicator: &Arc<Replicator>, directory: &Path) -> io::Result<Self> {
        create_private_directory(directory)?;
        let lock = DirectoryLock::exclusive(directory)?;
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let found = entry.metadata()?;
            if found.is_file() && name != LOCK_FILE {
                let state = FileState {
                    name: Some(name.clone()),
                    length: found.len(),
                    on_disk: None,
                    created_by: 0,
                    changes: VecDeque::new(),
                };
                files.insert(name, Arc::new(ReplicatedFile { state: Mutex::new(state) }));
            }
        }
        Ok(Self {
            directory: directory.to_path_buf(),
            replicator: Arc::clone(replicator),
            files: Arc::new(Mutex::new(files)),
            _lock: Arc::new(lock),
        })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ReplicatedFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full_name(&self, name: &str) -> io::Result<String> {
        self.replicator.name_of(&self.directory.join(name))
    }

    /// A new file fails here if the disk of the leader has no room, so that the broker refuses messages and nothing breaks.
    fn check_space(&self, length: u64) -> io::Result<()> {
        let found = rustix::fs::statvfs(&self.directory)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free < length.saturating_add(FREE_BYTES_MIN) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, format!("only {free} bytes are free")));
        }
        Ok(())
    }

    /// The content of a small file; `None`: it is not small.
    fn small_content(&self, file: &ReplicatedFile) -> io::Result<Option<Bytes>> {
        let length = file.lock().length;
        if length > SMALL_BYTES {
            return Ok(None);
        }
        let mut content = vec![0; length as usize];
        let read = self.read(file, 0, &mut content)?;
        content.truncate(read);
        Ok(Some(content.into()))
    }

    fn read(&self, file: &ReplicatedFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = file.lock();
        let count = state.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..count];
        // Operations that are carried out before the file is read are in the file.
        let applied = self.replicator.applied();
        state.forget_changes(applied);
        state.open_on_disk(&self.directory, applied)?;
        let mut filled = 0;
        if let Some(on_disk) = &state.on_disk {
            while filled < buffer.len() {
                match read_at(on_disk, &mut buffer[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        buffer[filled..].fill(0);
        for (_, change) in &state.changes {
            change.show(offset, buffer);
        }
        Ok(count)
    }
}

impl FileChange {
    /// Changes the bytes from `offset` on.
    fn show(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        match self {
            Self::Write(at, bytes) => {
                let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
                if from < to {
                    let source = &bytes[(from - at) as usize..(to - at) as usize];
                    buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
                }
            }
            // Bytes after the end are zeros if the file becomes longer again.
            Self::Length(length) => {
                let from = offset.max(*length);
                if from < end {
                    buffer[(from - offset) as usize..].fill(0);
                }
            }
        }
    }
}

impl ReplicatedFile {
    /// Number of changes in memory.
    #[cfg(test)]
    pub(crate) fn changes(&self) -> usize {
        self.lock().changes.len()
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileState {
    /// Forgets changes that the file on this disk has. One that was removed before it got there has only its changes.
    fn forget_changes(&mut self, applied: u64) {
        if self.name.is_none() && self.on_disk.is_none() {
            return;
        }
        while self.changes.front().is_some_and(|(number, _)| *number <= applied) {
            self.changes.pop_front();
        }
    }

    /// Opens the file on this disk if it exists there under its name.
    fn open_on_disk(&mut self, directory: &Path, applied: u64) -> io::Result<()> {
        if self.on_disk.is_none()
            && applied >= self.created_by
            && let Some(name) = &self.name
        {
            self.on_disk = Some(File::open(directory.join(name))?);
        }
        Ok(())
    }
}

impl Storage for ReplicatedStorage {
    type File = Arc<ReplicatedFile>;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Self::File> {
        let full_name = self.full_name(name)?;
        self.check_space(length)?;
        let mut files = self.files();
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let created_by = self.replicator.push(&FileOperation::Create { name: full_name, length });
        let state = FileState {
            name: Some(name.to_owned()),
            length,
            on_disk: None,
            created_by,
            changes: VecDeque::new(),
        };
        let file = Arc::new(ReplicatedFile { state: Mutex::new(state) });
        files.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        self.files().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn length(&self, file: &Self::File) -> io::Result<u64> {
        Ok(file.lock().length)
    }

    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(file, offset, buffer)
    }

    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        // An entry holds one operation at least, and entries must stay small enough for messages between members.
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES_MAX)];
        let mut state = file.lock();
        state.length = state.length.max(offset + bytes.len() as u64);
        // Nothing reads a removed file but those who have it open, and its bytes are gone with them.
        let Some(name) = &state.name else { return Ok(bytes.len()) };
        let full_name = self.full_name(name)?;
        let number = self.replicator.push_encoded(|entry| encode_write(&full_name, offset, bytes, entry));
        state.forget_changes(self.replicator.applied());
        state.changes.push_back((number, FileChange::Write(offset, Bytes::copy_from_slice(bytes))));
        Ok(bytes.len())
    }

    fn set_length(&self, file: &Self::File, length: u64) -> io::Result<()> {
        let mut state = file.lock();
        if length > state.length {
            self.check_space(length - state.length)?;
        }
        state.length = length;
        let Some(name) = &state.name else { return Ok(()) };
        let number = self.replicator.push(&FileOperation::SetLength { name: self.full_name(name)?, length });
        state.forget_changes(self.replicator.applied());
        state.changes.push_back((number, FileChange::Length(length)));
        Ok(())
    }

    fn sync_data(&self, file: &Self::File) -> io::Result<()> {
        self.replicator.sync()?;
        // A file that is complete is neither written nor read again for long.
        file.lock().forget_changes(self.replicator.applied());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from_name, to_name) = (self.full_name(from)?, self.full_name(to)?);
        let mut files = self.files();
        let Some(file) = files.get(from).cloned() else { return Err(io::ErrorKind::NotFound.into()) };
        match self.small_content(&file)? {
            Some(bytes) => {
                let number =
                    self.replicator.push(&FileOperation::Put { name: to_name, bytes: bytes.clone() });
                self.replicator.push(&FileOperation::Remove { name: from_name });
                let mut state = file.lock();
                state.on_disk = None;
                state.created_by = number;
                state.changes = [(number, FileChange::Write(0, bytes))].into();
                state.name = Some(to.to_owned());
            }
            None => {
                let mut state = file.lock();
                if state.on_disk.is_none() && state.created_by > self.replicator.applied() {
                    drop(state);
                    self.replicator.sync()?;
                    state = file.lock();
                }
                state.open_on_disk(&self.directory, self.replicator.applied())?;
                self.replicator.push(&FileOperation::Rename { from: from_name, to: to_name });
                state.name = Some(to.to_owned());
            }
        }
        files.remove(from);
        if let Some(replaced) = files.insert(to.to_owned(), file) {
            self.detach(&replaced)?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let full_name = self.full_name(name)?;
        let mut files = self.files();
        let Some(file) = files.get(name).cloned() else { return Err(io::ErrorKind::NotFound.into()) };
        self.detach(&file)?;
        self.replicator.push(&FileOperation::Remove { name: full_name });
        files.remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.replicator.sync()
    }

    fn report_damage(&self, file: &str, what: &str) -> io::Result<()> {
        self.replicator.report_damage(&self.directory.join(file), what)
    }
}

impl ReplicatedStorage {
    /// A file loses its name. Its users that have it open can still read it.
    fn detach(&self, file: &ReplicatedFile) -> io::Result<()> {
        let mut state = file.lock();
        // If it is not on the disk yet, its changes hold all that it has.
        state.open_on_disk(&self.directory, self.replicator.applied())?;
        state.name = None;
        Ok(())
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read(buffer)
}

impl Storage for DataStorage {
    type File = DataFile;

    fn list(&self) -> io::Result<Vec<String>> {
        match self {
            Self::Local(storage) => storage.list(),
            Self::Replicated(storage) => storage.list(),
        }
    }

    fn create(&self, name: &str, length: u64) -> io::Result<DataFile> {
        Ok(match self {
            Self::Local(storage) => DataFile::Local(storage.create(name, length)?),
            Self::Replicated(storage) => DataFile::Replicated(storage.create(name, length)?),
        })
    }

    fn open(&self, name: &str) -> io::Result<DataFile> {
        Ok(match self {
            Self::Local(storage) => DataFile::Local(storage.open(name)?),
            Self::Replicated(storage) => DataFile::Replicated(storage.open(name)?),
        })
    }

    fn length(&self, file: &DataFile) -> io::Result<u64> {
        match (self, file) {
            (Self::Local(storage), DataFile::Local(file)) => storage.length(file),
            (Self::Replicated(storage), DataFile::Replicated(file)) => storage.length(file),
            _ => Err(foreign()),
        }
    }

    fn read_at(&self, file: &DataFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match (self, file) {
            (Self::Local(storage), DataFile::Local(file)) => storage.read_at(file, offset, buffer),
            (Self::Replicated(storage), DataFile::Replicated(file)) => storage.read_at(file, offset, buffer),
            _ => Err(foreign()),
        }
    }

    fn write_at(&self, file: &DataFile, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        match (self, file) {
            (Self::Local(storage), DataFile::Local(file)) => storage.write_at(file, offset, bytes),
            (Self::Replicated(storage), DataFile::Replicated(file)) => storage.write_at(file, offset, bytes),
            _ => Err(foreign()),
        }
    }

    fn set_length(&self, file: &DataFile, length: u64) -> io::Result<()> {
        match (self, file) {
            (Self::Local(storage), DataFile::Local(file)) => storage.set_length(file, length),
            (Self::Replicated(storage), DataFile::Replicated(file)) => storage.set_length(file, length),
            _ => Err(foreign()),
        }
    }

    fn sync_data(&self, file: &DataFile) -> io::Result<()> {
        match (self, file) {
            (Self::Local(storage), DataFile::Local(file)) => storage.sync_data(file),
            (Self::Replicated(storage), DataFile::Replicated(file)) => storage.sync_data(file),
            _ => Err(foreign()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match self {
            Self::Local(storage) => storage.rename(from, to),
            Self::Replicated(storage) => storage.rename(from, to),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self {
            Self::Local(storage) => storage.remove(name),
            Self::Replicated(storage) => storage.remove(name),
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        match self {
            Self::Local(storage) => storage.sync_directory(),
            Self::Replicated(storage) => storage.sync_directory(),
        }
    }

    fn report_damage(&self, file: &str, what: &str) -> io::Result<()> {
        match self {
            Self::Local(storage) => storage.report_damage(file, what),
            Self::Replicated(storage) => storage.report_damage(file, what),
        }
    }
}

/// The caller passed a file of another storage.
fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the file belongs to another storage")
}
