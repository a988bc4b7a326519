//! Compares a data directory with its manifest: which journals are missing, or belong to another data directory.

use std::fs;
use std::io;
use std::path::Path;

use mqcore_journal::identity::{JournalIdentity, identify};
use mqcore_journal::inspection::Inspection;
use mqcore_journal::options::Options;
use mqcore_journal::snapshot::CATALOG;
use mqcore_journal::storage::ReadOnlyStorage;

use crate::shard::count::{SHARDS_MAX, random_key};
use crate::storage::data_dir::{DataDirError, shard_name};
use crate::storage::loss::{Loss, LossCause};
use mqcore_replication::storage::DataFiles;

use crate::storage::manifest::{COPIES, Manifest, ManifestError, ManifestReading};

/// Reads the manifest of a locked directory, or creates it for `shards` shards. Upgrades an older one, repairs a damaged copy,
/// and saves which journals are missing.
pub(crate) fn open(path: &Path, shards: usize, files: &DataFiles) -> Result<Manifest, DataDirError> {
    let reading = match Manifest::read(path) {
        Ok(reading) => reading,
        Err(ManifestError::Missing) => {
            check_absent(path)?;
            let placement_key = Some(random_key());
            let manifest = Manifest { generation: 1, placement_key, ..Manifest::new(shards) };
            manifest.write(path, files).map_err(|error| error.at(path))?;
            return Ok(manifest);
        }
        Err(error) => {
            report_damage(files, &path.join(COPIES[0]), "neither copy of the manifest is readable")?;
            return Err(error.at(path));
        }
    };
    let ManifestReading { mut manifest, damaged, is_old, is_stale } = reading;
    if is_old {
        check_old(path, manifest.shards)?;
    }
    for name in &damaged {
        tracing::warn!(
            file = name,
            "a copy of the manifest of the data directory is missing or damaged; nothing is lost, writing it again"
        );
    }
    for name in extra(path, manifest.shards)? {
        tracing::warn!(
            journal = name,
            "the data directory contains the journal of a shard that it does not have; ignoring it"
        );
    }
    let before = manifest.losses.len();
    for loss in examine(path, &manifest)? {
        if !manifest.losses.iter().any(|known| known.covers(&loss)) {
            let directory = path.join(&loss.journal);
            report_damage(files, &directory.join(CATALOG), &loss.text)?;
            manifest.losses.push(loss);
        }
    }
    if is_old || is_stale || !damaged.is_empty() || manifest.losses.len() > before {
        manifest.generation += 1;
        manifest.write(path, files).map_err(|error| error.at(path))?;
    }
    Ok(manifest)
}

/// On a cluster, another node may have what is missing here.
fn report_damage(files: &DataFiles, path: &Path, what: &str) -> Result<(), DataDirError> {
    files.report_damage(path, what).map_err(|source| DataDirError::Io { path: path.to_path_buf(), source })
}

/// The journals that the manifest lists and that are missing or foreign.
pub(crate) fn examine(path: &Path, manifest: &Manifest) -> Result<Vec<Loss>, DataDirError> {
    let mut losses = Vec::new();
    for (name, &expected) in &manifest.journals {
        match identity(&path.join(name), Some(expected))? {
            JournalIdentity::Absent => {
                losses
                    .push(Loss::missing(name, "the directory of this journal is missing or has no segment"));
            }
            JournalIdentity::Known(found) if found != expected => {
                let text = format!(
                    "the directory belongs to another data directory: its journal is {found:016x}, expected {expected:016x}"
                );
                losses.push(Loss { cause: LossCause::Foreign, ..Loss::missing(name, &text) });
            }
            // Opening keeps the expected identity, and reports each file that it cannot read.
            JournalIdentity::Known(_) | JournalIdentity::Unreadable => {}
        }
    }
    Ok(losses)
}

/// Directories of shards beyond those that the data directory has.
pub(crate) fn extra(path: &Path, shards: usize) -> Result<Vec<String>, DataDirError> {
    let is_extra = |name: &String| {
        let number = name.strip_prefix("shard-").and_then(|number| number.parse::<usize>().ok());
        number.is_some_and(|number| number >= shards && shard_name(number) == *name)
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(|source| DataDirError::Io { path: path.to_path_buf(), source })? {
        let entry = entry.map_err(|source| DataDirError::Io { path: path.to_path_buf(), source })?;
        if let Ok(name) = entry.file_name().into_string()
            && is_extra(&name)
            && identity(&entry.path(), None)? != JournalIdentity::Absent
        {
            found.push(name);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The identity of the journal in a directory that may not exist. `expected`: the one that the manifest lists.
fn identity(path: &Path, expected: Option<u64>) -> Result<JournalIdentity, DataDirError> {
    let found = ReadOnlyStorage::open(path).and_then(|storage| identify(&storage, expected));
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(JournalIdentity::Absent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(DataDirError::Locked { path: path.to_path_buf() })
        }
        Err(source) => Err(DataDirError::Io { path: path.to_path_buf(), source }),
        Ok(identity) => Ok(identity),
    }
}

/// Without a manifest there must be no journals: their number of shards would be a guess.
fn check_absent(path: &Path) -> Result<(), DataDirError> {
    let found = extra(path, 0)?;
    if found.is_empty() {
        return Ok(());
    }
    let why = format!(
        "the file and its copy format.copy are missing, but there are journals ({}), so the number of shards is unknown; \
         restore one of the two files from a backup",
        found.join(", ")
    );
    Err(DataDirError::Inconsistent { path: path.join(COPIES[0]), why })
}

/// A manifest of version 1 has no checksum and lists no journals, so its number of shards is compared with the directories.
/// Only an interrupted first start leaves fewer.
fn check_old(path: &Path, shards: usize) -> Result<(), DataDirError> {
    let wrong = |why| Err(DataDirError::Inconsistent { path: path.join(COPIES[0]), why });
    let found = extra(path, shards)?;
    if !found.is_empty() {
        return wrong(format!(
            "the file says that there are {shards} shards, but the directory also contains {}; restore the file from a backup",
            found.join(", ")
        ));
    }
    let mut missing = Vec::new();
    let mut has_content = false;
    for shard in 0..shards.min(SHARDS_MAX) {
        let directory = path.join(shard_name(shard));
        if identity(&directory, None)? == JournalIdentity::Absent {
            missing.push(shard_name(shard));
        } else if !has_content {
            has_content = !is_unused(&directory, shard)?;
        }
    }
    if missing.is_empty() || !has_content {
        return Ok(());
    }
    wrong(format!(
        "the file says that there are {shards} shards, but {} is missing; restore the directory or the file from a backup",
        missing.join(", ")
    ))
}

/// Whether a journal has neither messages nor definitions.
fn is_unused(path: &Path, shard: usize) -> Result<bool, DataDirError> {
    let storage = ReadOnlyStorage::open(path)
        .map_err(|source| DataDirError::Io { path: path.to_path_buf(), source })?;
    let options = Options { shard: shard as u32, ..Options::default() };
    let inspection = Inspection::new(storage, options, &mut |_, _| {})
        .map_err(|source| DataDirError::Journal { shard, source })?;
    let recovered = inspection.recovered();
    Ok(recovered.report.live == 0 && recovered.definitions.is_empty() && !recovered.report.is_alarming())
}
