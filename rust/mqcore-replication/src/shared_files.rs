//! The files of a data directory that all members have in common.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use mqcore_journal::storage::lock::LOCK_FILE;

use crate::operation::is_valid;

/// The directories of journals, which all members have in common: these, and those of shards.
const DIRECTORIES: [&str; 3] = ["limits", "nodes", "schedules"];
const SHARD: &str = "shard-";
/// The small files that all members have in common. All others belong to one node: its audit log, its archive, its locks.
const FILES: [&str; 4] = ["format", "format.copy", "archive.json", "authority.json"];

/// The files of a member between two entries.
#[derive(Debug)]
pub struct OpenedFiles {
    /// Index of the last entry that is carried out.
    pub index: u64,
    /// The files, with their names.
    pub files: Vec<(String, File)>,
}

impl OpenedFiles {
    /// Opens all files that members have in common.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(root: &Path, index: u64) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if entry.file_type()?.is_dir() {
                if DIRECTORIES.contains(&&*name) || name.starts_with(SHARD) {
                    for inner in fs::read_dir(entry.path())? {
                        let inner = inner?;
                        if let Ok(file) = inner.file_name().into_string()
                            && file != LOCK_FILE
                        {
                            add(&mut files, format!("{name}/{file}"), &inner.path())?;
                        }
                    }
                }
            } else if FILES.contains(&&*name) {
                add(&mut files, name, &entry.path())?;
            }
        }
        Ok(Self { index, files })
    }
}

/// Removes all files that members have in common, because a copy replaces them.
///
/// # Errors
/// A file cannot be removed.
pub(crate) fn remove_files(root: &Path) -> io::Result<()> {
    for (name, _) in OpenedFiles::open(root, 0)?.files {
        fs::remove_file(root.join(name))?;
    }
    Ok(())
}

fn add(files: &mut Vec<(String, File)>, name: String, path: &Path) -> io::Result<()> {
    if is_valid(&name) && path.is_file() {
        files.push((name, File::open(path)?));
    }
    Ok(())
}
