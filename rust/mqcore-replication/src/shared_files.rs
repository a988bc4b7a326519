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
        let open = |name: String| File::open(root.join(&name)).map(|file| (name, file));
        let files = names(root)?.into_iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { index, files })
    }
}

/// The names of all files that members have in common.
///
/// # Errors
/// A directory cannot be listed.
pub(crate) fn names(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
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
                        add(&mut names, format!("{name}/{file}"), &inner.path());
                    }
                }
            }
        } else if FILES.contains(&&*name) {
            add(&mut names, name, &entry.path());
        }
    }
    Ok(names)
}

/// Removes all files that members have in common, because a copy replaces them.
///
/// # Errors
/// A file cannot be removed.
pub(crate) fn remove_files(root: &Path) -> io::Result<()> {
    for name in names(root)? {
        fs::remove_file(root.join(name))?;
    }
    Ok(())
}

fn add(names: &mut Vec<String>, name: String, path: &Path) {
    if is_valid(&name) && path.is_file() {
        names.push(name);
    }
}
