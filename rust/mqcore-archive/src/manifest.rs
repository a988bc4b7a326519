//! The manifest lists the files of the archive and how far it extends. Files that it does not list are not part of the archive.
//!
//! Each change of the archive writes a complete manifest with the next number under a temporary name, syncs it and renames
//! it. A reader takes the newest manifest and therefore never sees a partial change.

use std::collections::BTreeMap;

use mqcore_journal::notes::NoteInventory;
use serde::{Deserialize, Serialize};

/// Format name. The version after the slash changes when older readers would misinterpret the manifest.
pub const FORMAT: &str = "mqcore.archive/1";
/// Version of the tables' columns. Files of version 1 have no columns `messages` and `numbers`.
pub const SCHEMA_VERSION: u32 = 2;
/// Directory of the manifests. Readers of partitioned directories ignore names that begin with an underscore.
pub(crate) const DIRECTORY: &str = "_manifests/";

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Number, as in the file name.
    pub number: u64,
    /// Time of writing, in milliseconds since the Unix epoch.
    pub written_ms: u64,
    /// Archived range of each shard.
    pub shards: BTreeMap<u32, ArchivedRange>,
    /// Total removed by retention.
    pub removed: Removed,
    /// All files, in the order of writing.
    pub files: Vec<FileEntry>,
}

/// The archived range of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ArchivedRange {
    /// Identity of the journal, in hexadecimal. Note numbers are only meaningful together with it.
    pub journal: String,
    /// All notes below this number are archived, removed by retention, or missing.
    pub notes: u64,
    /// Number of notes that were missing or unreadable before they could be archived.
    pub missing: u64,
    /// Retention has removed rows of notes below this number; 0: none.
    #[serde(default)]
    pub kept_from: u64,
    /// Notes below this number are in an earlier archive, in the data directory, or were removed before there was an archive;
    /// 0: there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begins: u64,
}

impl ArchivedRange {
    /// Returns the number of the first note of a journal that is not archived. `None`: this is the range of another journal, whose
    /// notes have the same numbers. A journal that replaces a lost one continues after it.
    pub fn next_of(&self, inventory: &NoteInventory) -> Option<u64> {
        match self.journal == hex(inventory.journal) {
            true => Some(self.notes),
            false => Some(inventory.first()).filter(|first| *first >= self.notes),
        }
    }

    /// Extends the range by the notes of a journal from `from` up to `below`, of which some are missing.
    pub fn extend(&mut self, journal: u64, from: u64, below: u64, missing: u64) {
        if self.journal.is_empty() {
            self.begins = from;
        }
        self.journal = hex(journal);
        self.notes = self.notes.max(below);
        self.missing += missing;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Total removed by retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removed {
    /// Number of files.
    pub files: u64,
    /// Number of rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A file of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// `messages` or `steps`.
    pub table: String,
    /// Path relative to the archive.
    pub path: String,
    /// Shard number.
    pub shard: u32,
    /// Channel; `None` for events of the shard itself.
    pub channel: Option<String>,
    /// Queue id.
    pub queue_id: Option<u16>,
    /// First and last queue, `channel/id`, of a file with rows of several queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<(String, String)>,
    /// UTC day of all rows.
    pub date: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// Earliest time of a row, in milliseconds since the Unix epoch.
    pub min_time_ms: u64,
    /// Latest time of a row.
    pub max_time_ms: u64,
    /// Smallest message number; 0 if no row has one.
    pub min_number: u64,
    /// Largest message number.
    pub max_number: u64,
    /// Smallest note number. Missing in manifests of earlier versions.
    #[serde(default)]
    pub min_note: u64,
    /// Largest note number.
    #[serde(default = "unknown_note")]
    pub max_note: u64,
}

impl FileEntry {
    /// Whether it is an object in an object store, whose path is a URL. Spark writes `file:/x`. Paths in a directory have no
    /// colon, because it is escaped.
    pub fn is_object(&self) -> bool {
        self.path.contains(":/")
    }
}

fn unknown_note() -> u64 {
    u64::MAX
}

impl Manifest {
    /// Returns the manifest of an archive without files.
    pub fn empty() -> Self {
        Self {
            format: FORMAT.to_owned(),
            schema_version: SCHEMA_VERSION,
            number: 0,
            written_ms: 0,
            shards: BTreeMap::new(),
            removed: Removed::default(),
            files: Vec::new(),
        }
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// A message if the bytes are not a manifest, or one of a newer version.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct FormatField {
            format: String,
        }
        let broken = |error: serde_json::Error| format!("not a valid manifest: {error}");
        let head: FormatField = serde_json::from_slice(bytes).map_err(broken)?;
        if head.format != FORMAT {
            return Err(format!("unsupported format {:?}; this version reads {FORMAT:?}", head.format));
        }
        serde_json::from_slice(bytes).map_err(broken)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // Every field is a number, text or list, so encoding cannot fail.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

/// Returns the identity of a journal as a manifest contains it.
pub fn hex(journal: u64) -> String {
    format!("{journal:016x}")
}

/// Returns the path of a manifest, relative to the archive.
pub fn path(number: u64) -> String {
    format!("{DIRECTORY}{number:010}.json")
}

/// Returns the number of the manifest at a path; `None`: the path is not a manifest's.
pub fn number(path: &str) -> Option<u64> {
    path.strip_prefix(DIRECTORY)?.strip_suffix(".json")?.parse().ok()
}
