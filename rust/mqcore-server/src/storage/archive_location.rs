//! Where the archive of a data directory is: in the directory itself, on object storage, or first in one and later in the other.
//!
//! A broker with an archive on object storage leaves its URL in the file `archive.json`, so that readers of the directory find
//! it. The file contains no credentials: readers take them from their own environment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqcore_archive::archive::ArchiveError;
use mqcore_archive::manifest::{FileEntry, Manifest};
use mqcore_archive::reading::ReadError;
use mqcore_archive::reading::source::{ArchiveFile, ArchiveSource, DirectoryArchive};
use mqcore_lake::location::LakeLocation;
use mqcore_lake::reading::LakeArchive;
use mqcore_lake::store::{is_secret, without_credentials};
use mqcore_replication::storage::DataFiles;
use serde::{Deserialize, Serialize};

use crate::config::history::ObjectArchiveConfig;
use crate::storage::data_dir::{ARCHIVE, ARCHIVE_LOCATION, DataDir, DataDirError};

/// Content of the file [`ARCHIVE_LOCATION`].
#[derive(Debug, Serialize, Deserialize)]
struct Location {
    url: String,
    options: BTreeMap<String, String>,
}

/// Stores where the archive is.
pub(crate) fn remember(directory: &DataDir, config: &ObjectArchiveConfig) -> Result<(), ArchiveError> {
    let path = directory.path().join(ARCHIVE_LOCATION);
    let failed = |source| ArchiveError::Io { doing: "writing", path: path.display().to_string(), source };
    write(&path, config, directory.files()).map_err(failed)
}

/// Whether the data directory has used this archive before.
pub(crate) fn is_known(directory: &DataDir, config: &ObjectArchiveConfig) -> bool {
    let known = fs::read(directory.path().join(ARCHIVE_LOCATION)).ok();
    let known = known.and_then(|json| serde_json::from_slice::<Location>(&json).ok());
    known.is_some_and(|known| known.url == config.url)
}

fn write(path: &Path, config: &ObjectArchiveConfig, files: &DataFiles) -> io::Result<()> {
    let options = config.options.iter().filter(|(name, _)| !is_secret(name));
    let location = Location {
        url: config.url.clone(),
        options: options.map(|(name, value)| (name.clone(), without_credentials(value))).collect(),
    };
    let json = serde_json::to_vec_pretty(&location)?;
    files.replace(path, &json)
}

/// How a reader reaches an object store, besides the environment of its process.
#[derive(Clone, Default)]
pub struct StoreAccess {
    /// Settings of the store, which override everything else.
    pub options: BTreeMap<String, String>,
    /// Environment variables of another process, for those that this process does not have.
    pub variables: BTreeMap<String, String>,
}

impl std::fmt::Debug for StoreAccess {
    /// Names only, because values can be secrets.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = (self.options.keys(), self.variables.keys());
        formatter.debug_struct("StoreAccess").field("names", &names).finish_non_exhaustive()
    }
}

/// The archive in a data directory and the one on object storage, as one.
#[derive(Debug)]
pub(super) struct CombinedArchive {
    directory: PathBuf,
    access: StoreAccess,
    files: DirectoryArchive,
    /// The archive on object storage, and the content of the file that names it.
    objects: Mutex<Option<(Vec<u8>, Arc<LakeArchive>)>>,
}

impl CombinedArchive {
    /// Finds the archive of a data directory. Sends no request. `access` adds to the options that the directory stores.
    pub(super) fn open(directory: &Path, access: &StoreAccess) -> Result<Self, DataDirError> {
        let archive = Self {
            directory: directory.to_path_buf(),
            access: access.clone(),
            files: DirectoryArchive::new(&directory.join(ARCHIVE)),
            objects: Mutex::default(),
        };
        archive.refreshed().map_err(|source| DataDirError::Io { path: archive.file(), source })?;
        Ok(archive)
    }

    /// The file with the URL.
    fn file(&self) -> PathBuf {
        self.directory.join(ARCHIVE_LOCATION)
    }

    /// Returns the archive on object storage that the data directory has now: a running broker may have stored its URL after
    /// this was opened. `None`: there is none.
    fn refreshed(&self) -> io::Result<Option<Arc<LakeArchive>>> {
        let json = match fs::read(self.file()) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *self.known() = None;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut known = self.known();
        if let Some((_, objects)) = known.as_ref().filter(|(known, _)| *known == json) {
            return Ok(Some(Arc::clone(objects)));
        }
        let location: Location = serde_json::from_slice(&json)?;
        let mut options = location.options;
        options.extend(self.access.options.clone());
        let location = LakeLocation::open_with(&location.url, &options, &self.access.variables);
        let objects = LakeArchive::new(location.map_err(io::Error::other)?).map_err(io::Error::other)?;
        let (_, objects) = known.insert((json, Arc::new(objects)));
        Ok(Some(Arc::clone(objects)))
    }

    fn known(&self) -> MutexGuard<'_, Option<(Vec<u8>, Arc<LakeArchive>)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The archive on object storage if it contains a file; `None`: the file is in the data directory.
    fn objects_with(&self, file: &FileEntry) -> Option<Arc<LakeArchive>> {
        self.known().as_ref().filter(|_| file.is_object()).map(|(_, objects)| Arc::clone(objects))
    }
}

impl ArchiveSource for CombinedArchive {
    fn manifest(&self) -> Result<Option<Manifest>, ReadError> {
        let files = self.files.manifest()?;
        let objects = self.refreshed().map_err(|source| ReadError::Io { path: self.file(), source })?;
        let Some(objects) = objects else { return Ok(files) };
        Ok(match (files, objects.manifest()?) {
            (Some(files), Some(objects)) => Some(combined(files, objects)),
            (files, objects) => objects.or(files),
        })
    }

    fn open(&self, file: &FileEntry) -> Result<Option<ArchiveFile>, ReadError> {
        match self.objects_with(file) {
            Some(objects) => objects.open(file),
            None => self.files.open(file),
        }
    }

    fn location(&self, file: &FileEntry) -> PathBuf {
        match self.objects_with(file) {
            Some(objects) => objects.location(file),
            None => self.files.location(file),
        }
    }
}

/// Object storage continues where the directory ends.
fn combined(files: Manifest, mut objects: Manifest) -> Manifest {
    for (shard, earlier) in files.shards {
        let reach = objects.shards.entry(shard).or_insert_with(|| earlier.clone());
        if reach.journal == earlier.journal {
            reach.notes = reach.notes.max(earlier.notes);
            reach.kept_from = reach.kept_from.max(earlier.kept_from);
            reach.begins = earlier.begins;
        }
    }
    objects.files.splice(0..0, files.files);
    objects
}

#[cfg(test)]
mod tests {
    use mqcore_lake::lake::{Lake, LakeOptions};
    use tempfile::TempDir;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn readers_find_tables_that_the_broker_opens_or_replaces_later() {
        let root = TempDir::new().expect("a place for temporary files");
        let directory = root.path().join("data");
        fs::create_dir(&directory).expect("a place for temporary files");
        let archive = CombinedArchive::open(&directory, &StoreAccess::default()).expect("an empty directory");
        assert_eq!(archive.manifest().expect("there is no archive"), None);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        for name in ["first", "second"] {
            let place = root.path().join(name);
            fs::create_dir(&place).expect("a place for temporary files");
            let config = ObjectArchiveConfig::new(&format!("file://{}", place.display()));
            let location = LakeLocation::open(&config.url, &config.options).expect("a valid URL");
            let options = LakeOptions { journals: vec![7], is_new: true, ..LakeOptions::default() };
            runtime.block_on(Lake::open(location, options, None, 0)).expect("a healthy disk");
            write(&directory.join(ARCHIVE_LOCATION), &config, &DataFiles::Local).expect("a healthy disk");
            assert!(archive.manifest().expect("the tables can be read").is_some(), "{name}");
            let known = archive.known().as_ref().map(|(_, objects)| format!("{objects:?}"));
            assert!(known.is_some_and(|known| known.contains(&config.url)), "{name}");
        }
        fs::remove_file(directory.join(ARCHIVE_LOCATION)).expect("it is there");
        assert_eq!(archive.manifest().expect("there is no archive"), None);
    }
}
