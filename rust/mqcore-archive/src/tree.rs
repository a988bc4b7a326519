//! Storage in nested directories: file names are paths with `/`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use mqcore_journal::storage::Storage;
use mqcore_journal::storage::directory::sync_directory;
use mqcore_journal::storage::private::{create_private_directory, private_options};

/// Real files below one directory.
#[derive(Debug)]
pub struct TreeStorage {
    root: PathBuf,
    /// Directories whose names changed since the last sync, relative to the root.
    changed: RefCell<BTreeSet<PathBuf>>,
}

impl TreeStorage {
    /// Opens a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        let root = root.as_ref().to_path_buf();
        create_private_directory(&root)?;
        Ok(Self { root, changed: RefCell::default() })
    }

    /// Creates the directory of a file, and records all changed directories for the next sync.
    fn make_parent(&self, name: &str) -> io::Result<()> {
        let Some(parent) = Path::new(name).parent() else { return Ok(()) };
        if !self.root.join(parent).is_dir() {
            create_private_directory(&self.root.join(parent))?;
            // Each new directory is a new name in its parent.
            self.changed.borrow_mut().extend(parent.ancestors().map(Path::to_path_buf));
        }
        self.changed.borrow_mut().insert(parent.to_path_buf());
        Ok(())
    }

    fn list_into(&self, below: &str, names: &mut Vec<String>) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(below))? {
            let entry = entry?;
            // Names that are not valid Unicode were not created by mqcore.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            if entry.file_type()?.is_dir() {
                self.list_into(&path, names)?;
            } else {
                names.push(path);
            }
        }
        Ok(())
    }
}

impl Storage for TreeStorage {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.list_into("", &mut names)?;
        Ok(names)
    }

    /// Does not reserve space: these files are written once and can be written again.
    fn create(&self, name: &str, length: u64) -> io::Result<File> {
        self.make_parent(name)?;
        let file = private_options().read(true).write(true).create_new(true).open(self.root.join(name))?;
        file.set_len(length)?;
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).open(self.root.join(name))
    }

    fn length(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, mut file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        file.seek(SeekFrom::Start(offset))?;
        file.read(buffer)
    }

    fn write_at(&self, mut file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        file.seek(SeekFrom::Start(offset))?;
        file.write(bytes)
    }

    fn set_length(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.make_parent(from)?;
        self.make_parent(to)?;
        fs::rename(self.root.join(from), self.root.join(to))
    }

    /// Also removes directories that become empty.
    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(name))?;
        for directory in Path::new(name).ancestors().skip(1) {
            self.changed.borrow_mut().insert(directory.to_path_buf());
            let last = directory.as_os_str().is_empty();
            if last || fs::remove_dir(self.root.join(directory)).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut changed = self.changed.borrow_mut();
        // The root is always synced, because another process may have changed it before.
        changed.insert(PathBuf::new());
        for directory in changed.iter() {
            let path = self.root.join(directory);
            match sync_directory(&path) {
                // The directory was removed since then, which changed its parent.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        changed.clear();
        Ok(())
    }
}
