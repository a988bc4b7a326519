//! Carries out committed operations on the files of a member.
//!
//! A crash may take back what was not synced, so a member repeats the entries after the base of its log. **All operations but
//! [`FileOperation::Rename`] may be repeated in order**: they say what becomes of a file, not how it changes. A rename is a point
//! to which no repetition goes back: everything before it is synced, and its place is saved, before and after it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mqcore_journal::storage::directory::sync_directory;
use mqcore_journal::storage::file::reserve;
use mqcore_journal::storage::private::{create_private_directory, private_options};

use crate::identity;
use crate::operation::{EntryError, FileOperation, decode_entry};
use crate::small_files::{self, replace_file};

/// Files that stay open between operations.
const OPEN_MAX: usize = 256;
/// The file with the place up to which nothing must be repeated.
const MARK: &str = "applied";

/// Why operations cannot be carried out. The member must stop.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A file cannot be changed.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The entry is invalid.
    #[error("entry {index}: {source}")]
    Entry {
        /// Its index in the log.
        index: u64,
        /// The reason.
        source: EntryError,
    },
}

/// A place in the log: so many operations of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the entry.
    pub index: u64,
    /// Operations of that entry.
    pub operations: u64,
}

/// The files of a member. One thread changes them.
#[derive(Debug)]
pub struct Applier {
    root: PathBuf,
    open: HashMap<String, File>,
    /// Files with bytes, and directories with names, that a power failure could take back.
    unsynced: BTreeSet<String>,
    unsynced_names: BTreeSet<PathBuf>,
    /// Files that another thread syncs, until they are known to be durable.
    syncing: Option<Arc<Unsynced>>,
    /// Nothing before this place is repeated.
    mark: Place,
    applied: u64,
}

impl Applier {
    /// The files below `root`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the saved place is damaged: the files must be copied from another member, after
    /// [`Self::forget_place`]. Otherwise the error of the system.
    pub fn open(root: &Path) -> io::Result<Self> {
        let mut applier = Self {
            root: root.to_path_buf(),
            open: HashMap::new(),
            unsynced: BTreeSet::new(),
            unsynced_names: BTreeSet::new(),
            syncing: None,
            mark: Place::default(),
            applied: 0,
        };
        if let Some(text) = small_files::read(&applier.mark_path())? {
            applier.mark = parse_mark(&text)?;
        }
        Ok(applier)
    }

    /// Index of the last entry whose operations are carried out.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Everything up to this entry counts as carried out: the files have it, or this member keeps none.
    pub fn skip_to(&mut self, index: u64) {
        self.applied = self.applied.max(index);
    }

    /// Carries out the operations of a committed entry. Entries come in order.
    ///
    /// # Errors
    /// [`ApplyError`]. The member must stop; after a restart it repeats the entry.
    pub fn apply(&mut self, index: u64, entry: Bytes) -> Result<(), ApplyError> {
        let operations = decode_entry(entry).map_err(|source| ApplyError::Entry { index, source })?;
        for (number, operation) in operations.into_iter().enumerate() {
            let place = Place { index, operations: number as u64 };
            if place >= self.mark {
                self.carry_out(operation, place)?;
            }
        }
        self.applied = self.applied.max(index);
        Ok(())
    }

    fn carry_out(&mut self, operation: FileOperation, place: Place) -> Result<(), ApplyError> {
        let (name, outcome) = match operation {
            FileOperation::Create { name, length } => {
                let outcome = self.create(&name, length);
                (name, outcome)
            }
            FileOperation::Write { name, offset, bytes } => {
                let outcome = self.file(&name).and_then(|file| write_all_at(file, &bytes, offset));
                self.unsynced.insert(name.clone());
                (name, outcome)
            }
            FileOperation::SetLength { name, length } => {
                let outcome = self.file(&name).and_then(|file| file.set_len(length));
                self.unsynced.insert(name.clone());
                (name, outcome)
            }
            FileOperation::Rename { from, to } => {
                let outcome = self.rename(&from, &to, place);
                (to, outcome)
            }
            FileOperation::Remove { name } => {
                let outcome = self.remove(&name);
                (name, outcome)
            }
            FileOperation::Put { name, bytes } => {
                self.forget(&name);
                let path = self.path(&name);
                let outcome = self.directory_of(&name).and_then(|()| replace_file(&path, &bytes));
                (name, outcome)
            }
        };
        outcome.map_err(|source| ApplyError::Io { path: self.path(&name), source })
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.forget(name);
        self.directory_of(name)?;
        let path = self.path(name);
        let file = private_options().create(true).truncate(true).read(true).write(true).open(&path)?;
        reserve(&file, length)?;
        self.unsynced.insert(name.to_owned());
        self.note_name(&path);
        self.keep_open(name, file);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, place: Place) -> io::Result<()> {
        self.checkpoint()?;
        self.save_mark(place)?;
        self.forget(from);
        self.forget(to);
        match fs::rename(self.path(from), self.path(to)) {
            // A crash came after the rename and before its place was saved.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path(to).exists() => {}
            outcome => outcome?,
        }
        self.directory_of(to)?;
        self.note_name(&self.path(from));
        self.note_name(&self.path(to));
        self.checkpoint()?;
        self.save_mark(Place { operations: place.operations + 1, ..place })
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.forget(name);
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => {
                self.note_name(&path);
                outcome
            }
        }
    }

    /// An open file. A repetition may write into a file that is removed later: then it exists again until then.
    fn file(&mut self, name: &str) -> io::Result<&File> {
        if !self.open.contains_key(name) {
            self.directory_of(name)?;
            let path = self.path(name);
            let file = private_options().create(true).truncate(false).read(true).write(true).open(&path)?;
            self.note_name(&path);
            self.keep_open(name, file);
        }
        Ok(&self.open[name])
    }

    fn keep_open(&mut self, name: &str, file: File) {
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        self.open.insert(name.to_owned(), file);
    }

    fn forget(&mut self, name: &str) {
        self.open.remove(name);
        self.unsynced.remove(name);
    }

    fn note_name(&mut self, path: &Path) {
        self.unsynced_names.extend(path.parent().map(Path::to_path_buf));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn directory_of(&self, name: &str) -> io::Result<()> {
        match self.path(name).parent() {
            Some(parent) if !parent.is_dir() => create_private_directory(parent),
            _ => Ok(()),
        }
    }

    /// Makes everything durable that was carried out, so that it need not be repeated. Waits for a sync in another thread.
    ///
    /// # Errors
    /// A file cannot be synced. The member must stop.
    pub fn checkpoint(&mut self) -> io::Result<()> {
        if let Some(syncing) = self.syncing.take() {
            syncing.sync()?;
        }
        let unsynced = self.take_unsynced()?;
        self.syncing = None;
        unsynced.sync()
    }

    /// Files and directories that must be synced, for another thread. Only one may do that at a time.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn take_unsynced(&mut self) -> io::Result<Arc<Unsynced>> {
        let mut files = Vec::new();
        for name in std::mem::take(&mut self.unsynced) {
            files.push(match self.open.get(&name) {
                Some(file) => file.try_clone()?,
                None => File::open(self.path(&name))?,
            });
        }
        let directories = std::mem::take(&mut self.unsynced_names);
        let unsynced = Arc::new(Unsynced { files, directories, outcome: Mutex::default() });
        self.syncing = Some(Arc::clone(&unsynced));
        Ok(unsynced)
    }

    /// Closes all files, because they are replaced.
    pub fn close(&mut self) {
        self.open.clear();
        self.unsynced.clear();
        self.unsynced_names.clear();
        self.syncing = None;
    }

    /// The state of all files is that after this entry: a copy of another member's files was made.
    ///
    /// # Errors
    /// The place cannot be saved.
    pub fn begin_at(&mut self, index: u64) -> io::Result<()> {
        self.close();
        self.applied = index;
        self.save_mark(Place { index: index + 1, operations: 0 })
    }

    /// Removes the saved place, because a copy replaces all files.
    ///
    /// # Errors
    /// The error of the system.
    pub fn forget_place(root: &Path) -> io::Result<()> {
        match fs::remove_file(root.join(identity::DIRECTORY).join(MARK)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn mark_path(&self) -> PathBuf {
        self.root.join(identity::DIRECTORY).join(MARK)
    }

    fn save_mark(&mut self, place: Place) -> io::Result<()> {
        small_files::write(&self.mark_path(), &format!("{} {}", place.index, place.operations))?;
        self.mark = place;
        Ok(())
    }
}

/// Files and directories to sync.
#[derive(Debug)]
pub struct Unsynced {
    files: Vec<File>,
    directories: BTreeSet<PathBuf>,
    /// `None`: they are not synced yet. An error is kept: the system reports a lost write only to the first sync.
    outcome: Mutex<Option<Result<(), (io::ErrorKind, String)>>>,
}

impl Unsynced {
    /// Syncs them, unless another thread has done so. Waits for one that does.
    ///
    /// # Errors
    /// The error of the system, the same for all callers.
    pub fn sync(&self) -> io::Result<()> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let known = outcome.get_or_insert_with(|| {
            let synced = self.sync_all();
            synced.map_err(|error| (error.kind(), error.to_string()))
        });
        known.clone().map_err(|(kind, why)| io::Error::new(kind, why))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_all)?;
        self.directories.iter().try_for_each(|directory| sync_directory(directory))
    }
}

fn parse_mark(text: &str) -> io::Result<Place> {
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some([index, operations]) => Ok(Place { index: *index, operations: *operations }),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("invalid place {text:?} in the file {MARK}"),
        )),
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::begin_entry;

    fn write(applier: &mut Applier, index: u64, name: &str) {
        let mut entry = Vec::new();
        begin_entry(&mut entry);
        let bytes = Bytes::from_static(b"content");
        FileOperation::Write { name: name.to_owned(), offset: 0, bytes }.encode(&mut entry);
        applier.apply(index, entry.into()).unwrap();
    }

    fn opened() -> (tempfile::TempDir, Applier) {
        let scratch = tempfile::TempDir::new().unwrap();
        fs::create_dir_all(scratch.path().join(identity::DIRECTORY)).unwrap();
        let applier = Applier::open(scratch.path()).unwrap();
        (scratch, applier)
    }

    #[test]
    fn a_checkpoint_covers_files_that_another_thread_was_to_sync() {
        let (_scratch, mut applier) = opened();
        write(&mut applier, 1, "shard-0/a");
        let taken = applier.take_unsynced().unwrap();
        write(&mut applier, 2, "shard-0/b");
        applier.checkpoint().unwrap();
        assert!(taken.outcome.lock().unwrap().as_ref().is_some_and(Result::is_ok));
    }

    #[test]
    fn a_checkpoint_fails_if_the_sync_of_another_thread_has_failed() {
        let (_scratch, mut applier) = opened();
        write(&mut applier, 1, "shard-0/a");
        let taken = applier.take_unsynced().unwrap();
        *taken.outcome.lock().unwrap() = Some(Err((io::ErrorKind::Other, "lost".to_owned())));
        assert_eq!(applier.checkpoint().unwrap_err().to_string(), "lost");
    }
}
