//! The content of a commit, and what it does to the metadata of a table.

use std::collections::{HashMap, HashSet};

use iceberg::spec::{DataFile, Operation, Summary, TableMetadata};
use serde_json::{Value, json};

use crate::error::LakeError;
use crate::files::LiveFile;

/// Number of earlier metadata files that are preserved.
pub(crate) const METADATA_KEPT: usize = 20;

/// The content of a commit.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) added: Vec<DataFile>,
    /// Locations of data files that leave the table.
    pub(crate) removed: HashSet<String>,
    /// Whether the rows of the removed files are in the added ones.
    pub(crate) rewrites: bool,
    pub(crate) properties: Vec<(String, String)>,
    /// Snapshots that leave the table.
    pub(crate) expired: Vec<i64>,
}

/// Returns metadata with other properties and without expired snapshots, and the locations of metadata files that it does
/// not list any more.
///
/// The library's builder would give it the time of its own clock, and refuse it if that clock was set back.
pub(crate) fn with_settings(
    metadata: &TableMetadata,
    location: String,
    change: Change,
    now_ms: u64,
) -> Result<(TableMetadata, Vec<String>), LakeError> {
    let invalid = |error: serde_json::Error| LakeError::Table {
        location: metadata.location().to_owned(),
        why: error.to_string(),
    };
    let mut json = serde_json::to_value(metadata).map_err(invalid)?;
    for (name, value) in change.properties {
        json["properties"][name] = value.into();
    }
    let is_expired =
        |entry: &Value| entry["snapshot-id"].as_i64().is_some_and(|id| change.expired.contains(&id));
    if let Some(snapshots) = json["snapshots"].as_array_mut() {
        snapshots.retain(|snapshot| !is_expired(snapshot));
    }
    if let Some(log) = json["snapshot-log"].as_array_mut() {
        // A gap would make time travel find a wrong snapshot.
        let complete = log.iter().rposition(is_expired).map_or(0, |last| last + 1);
        log.drain(..complete);
    }
    let entry = json!({"metadata-file": location, "timestamp-ms": metadata.last_updated_ms()});
    let mut log = json["metadata-log"].as_array().cloned().unwrap_or_default();
    log.push(entry);
    let excess = log.len().saturating_sub(METADATA_KEPT);
    let outdated =
        log.drain(..excess).filter_map(|entry| Some(entry["metadata-file"].as_str()?.to_owned())).collect();
    json["metadata-log"] = log.into();
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    json["last-updated-ms"] = now.max(metadata.last_updated_ms()).into();
    Ok((serde_json::from_value(json).map_err(invalid)?, outdated))
}

/// Returns the snapshots that have a name: the current one, and those of tags and branches, which operators create to keep
/// them. The library has no list of these names.
pub(crate) fn named_snapshots(metadata: &TableMetadata, location: &str) -> Result<HashSet<i64>, LakeError> {
    let json = serde_json::to_value(metadata)
        .map_err(|error| LakeError::Table { location: location.to_owned(), why: error.to_string() })?;
    let named = json["refs"].as_object().into_iter().flatten();
    let named = named.filter_map(|(_, name)| name["snapshot-id"].as_i64());
    Ok(named.chain(metadata.current_snapshot_id()).collect())
}

/// Returns the counts that Iceberg's metadata tables show.
pub(crate) fn summary(change: &Change, live: &[LiveFile]) -> Summary {
    let rows = |files: &mut dyn Iterator<Item = &DataFile>| {
        files.fold((0, 0, 0), |(count, rows, bytes), file| {
            (count + 1, rows + file.record_count(), bytes + file.file_size_in_bytes())
        })
    };
    let added = rows(&mut change.added.iter());
    let all = rows(&mut live.iter().map(|file| &file.data));
    let gone = live.iter().map(|file| &file.data);
    let removed = rows(&mut gone.filter(|file| change.removed.contains(file.file_path())));
    let operation = match (change.added.is_empty(), change.removed.is_empty(), change.rewrites) {
        (_, true, _) => Operation::Append,
        (_, _, true) => Operation::Replace,
        (true, false, false) => Operation::Delete,
        (false, false, false) => Operation::Overwrite,
    };
    let counts = [
        ("added-data-files", added.0),
        ("added-records", added.1),
        ("added-files-size", added.2),
        ("deleted-data-files", removed.0),
        ("deleted-records", removed.1),
        ("removed-files-size", removed.2),
        ("total-data-files", all.0 + added.0 - removed.0),
        ("total-records", all.1 + added.1 - removed.1),
        ("total-files-size", all.2 + added.2 - removed.2),
        ("total-delete-files", 0),
        ("total-position-deletes", 0),
        ("total-equality-deletes", 0),
    ];
    let mut additional_properties: HashMap<String, String> =
        counts.iter().map(|(name, count)| ((*name).to_owned(), count.to_string())).collect();
    additional_properties.extend(change.properties.iter().cloned());
    Summary { operation, additional_properties }
}
