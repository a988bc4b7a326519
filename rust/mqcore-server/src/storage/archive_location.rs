//! Where the archive of a data directory is: in the directory itself, on object storage, or first in one and later in the other.
//!
//! A broker with an archive on object storage leaves its URL in the file `archive.json`, so that readers of the directory find
//! it. The file contains no credentials: readers take them from their own environment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mqcore_archive::archive::ArchiveError;
use mqcore_archive::manifest::{FileEntry, Manifest};
use mqcore_archive::reading::ReadError;
use mqcore_archive::reading::source::{ArchiveFile, ArchiveSource, DirectoryArchive};
use mqcore_lake::location::LakeLocation;
use mqcore_lake::reading::LakeArchive;
use mqcore_lake::store::without_credentials;
use mqcore_replication::storage::DataFiles;
use serde::{Deserialize, Serialize};

use crate::config::history::ObjectArchiveConfig;
use crate::storage::data_dir::{ARCHIVE, DataDir, DataDirError};

/// The file with the URL.
const FILE: &str = "archive.json";
/// Parts of the names of options that are never written to it.
const SECRETS: [&str; 6] = ["secret", "key", "token", "password", "sas", "credential"];

#[derive(Debug, Serialize, Deserialize)]
struct Location {
    url: String,
    options: BTreeMap<String, String>,
}

/// Stores where the archive is.
pub(crate) fn remember(directory: &DataDir, config: &ObjectArchiveConfig) -> Result<(), ArchiveError> {
    let path = directory.path().join(FILE);
    let failed = |source| ArchiveError::Io { doing: "writing", path: path.display().to_string(), source };
    write(&path, config, directory.files()).map_err(failed)
}

/// Whether the data directory has used this archive before.
pub(crate) fn is_known(directory: &DataDir, config: &ObjectArchiveConfig) -> bool {
    let known = fs::read(directory.path().join(FILE)).ok();
    let known = known.and_then(|json| serde_json::from_slice::<Location>(&json).ok());
    known.is_some_and(|known| known.url == config.url)
}

fn write(path: &Path, config: &ObjectArchiveConfig, files: &DataFiles) -> io::Result<()> {
    let open = |name: &&String| !SECRETS.iter().any(|secret| name.to_lowercase().contains(secret));
    let options = config.options.iter().filter(|(name, _)| open(name));
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
    files: DirectoryArchive,
    objects: Option<LakeArchive>,
}

impl CombinedArchive {
    /// Finds the archive of a data directory. Sends no request. `access` adds to the options that the directory stores.
    pub(super) fn open(directory: &Path, access: &StoreAccess) -> Result<Self, DataDirError> {
        let files = DirectoryArchive::new(&directory.join(ARCHIVE));
        let path = directory.join(FILE);
        let failed = |source: io::Error| DataDirError::Io { path: path.clone(), source };
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { files, objects: None });
            }
            Err(error) => return Err(failed(error)),
        };
        let location: Location = serde_json::from_slice(&json).map_err(|error| failed(error.into()))?;
        let mut options = location.options;
        options.extend(access.options.clone());
        let location = LakeLocation::open_with(&location.url, &options, &access.variables);
        let location = location.map_err(io::Error::other).map_err(failed)?;
        let objects = LakeArchive::new(location).map_err(io::Error::other).map_err(failed)?;
        Ok(Self { files, objects: Some(objects) })
    }

    /// The source that contains a file.
    fn of(&self, file: &FileEntry) -> &dyn ArchiveSource {
        match &self.objects {
            Some(objects) if file.is_object() => objects,
            _ => &self.files,
        }
    }
}

impl ArchiveSource for CombinedArchive {
    fn manifest(&self) -> Result<Option<Manifest>, ReadError> {
        let files = self.files.manifest()?;
        let Some(objects) = &self.objects else { return Ok(files) };
        Ok(match (files, objects.manifest()?) {
            (Some(files), Some(objects)) => Some(combined(files, objects)),
            (files, objects) => objects.or(files),
        })
    }

    fn open(&self, file: &FileEntry) -> Result<Option<ArchiveFile>, ReadError> {
        self.of(file).open(file)
    }

    fn location(&self, file: &FileEntry) -> PathBuf {
        self.of(file).location(file)
    }
}

/// Object storage continues where the directory ends.
fn combined(files: Manifest, mut objects: Manifest) -> Manifest {
    for (shard, earlier) in files.shards {
        let reach = objects.shards.entry(shard).or_insert_with(|| earlier.clone());
        if reach.journal == earlier.journal {
            reach.notes = reach.notes.max(earlier.notes);
            reach.kept_from = reach.kept_from.max(earlier.kept_from);
            reach.begins = 0;
        }
    }
    objects.files.splice(0..0, files.files);
    objects
}
