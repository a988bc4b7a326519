//! Carries out committed operations on the files of a member.
//!
//! A crash may take back what was not synced, so a member repeats the entries after the base of its log. **All operations but
//! [`FileOperation::Rename`] may be repeated in order**: they say what becomes of a file, not how it changes. A rename is a point
//! to which no repetition goes back: everything before it is synced, and its place is saved, before and after it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

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

    /// Everything up to this entry counts as carried out: this member keeps no files.
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

    /// Makes everything durable that was carried out, so that the log need not keep it.
    ///
    /// # Errors
    /// A file cannot be synced. The member must stop.
    pub fn checkpoint(&mut self) -> io::Result<()> {
        self.take_unsynced()?.sync()
    }

    /// Files and directories that must be synced, for another thread.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn take_unsynced(&mut self) -> io::Result<Unsynced> {
        let mut files = Vec::new();
        for name in std::mem::take(&mut self.unsynced) {
            files.push(match self.open.get(&name) {
                Some(file) => file.try_clone()?,
                None => File::open(self.path(&name))?,
            });
        }
        Ok(Unsynced { files, directories: std::mem::take(&mut self.unsynced_names) })
    }

    /// Closes all files, because they are replaced.
    pub fn close(&mut self) {
        self.open.clear();
        self.unsynced.clear();
        self.unsynced_names.clear();
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
}

impl Unsynced {
    /// Syncs them.
    ///
    /// # Errors
    /// The error of the system.
    pub fn sync(self) -> io::Result<()> {
        for file in self.files {
            file.sync_all()?;
        }
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
