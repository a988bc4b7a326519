//! The manifest: which files belong to the archive, and how far it reaches. A file that it does not name is not there.
//!
//! Each change of the archive is a manifest with the next number, complete in itself, written under another name, synced and
//! then renamed. So a reader takes the newest one and never sees half of anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a manifest says it is. The number after the slash changes when a reader of the last version would misread it.
pub const FORMAT: &str = "mqcore.archive/1";
/// The version of the tables' columns.
pub const SCHEMA_VERSION: u32 = 1;
/// Where manifests are; readers of partitioned directories pass over names that begin so.
pub(crate) const DIRECTORY: &str = "_manifests/";

/// One manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its number, as in its name.
    pub number: u64,
    /// When it was written, Unix milliseconds.
    pub written_ms: u64,
    /// How far the archive reaches, by shard.
    pub shards: BTreeMap<u32, Reach>,
    /// What retention removed so far.
    pub removed: Removed,
    /// Every file, in the order in which they were written.
    pub files: Vec<FileEntry>,
}

/// How far the archive reaches in one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reach {
    /// The journal whose notes these are, in hex: another journal's numbers mean something else.
    pub journal: String,
    /// All notes below this number are in the archive, were removed by retention, or are missing.
    pub notes: u64,
    /// Notes that were gone, or unreadable, before they could be archived.
    pub missing: u64,
    /// Retention has removed rows of notes below this number; 0: none.
    #[serde(default)]
    pub kept_from: u64,
}

/// What retention removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removed {
    /// Files.
    pub files: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// `messages` or `steps`.
    pub table: String,
    /// Its path below the archive.
    pub path: String,
    /// The shard whose history it is.
    pub shard: u32,
    /// The channel; `None`: steps of the shard itself.
    pub channel: Option<String>,
    /// The queue's id.
    pub queue_id: Option<u16>,
    /// The day (UTC) of all of its rows.
    pub date: String,
    /// Bytes.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// The earliest time in it, Unix milliseconds.
    pub min_time_ms: u64,
    /// The latest.
    pub max_time_ms: u64,
    /// The smallest message number in it; 0 if no row has one.
    pub min_number: u64,
    /// The largest.
    pub max_number: u64,
    /// The smallest number of a note of which it has rows. Manifests of earlier versions do not say.
    #[serde(default)]
    pub min_note: u64,
    /// The largest.
    #[serde(default = "unknown_note")]
    pub max_note: u64,
}

fn unknown_note() -> u64 {
    u64::MAX
}

impl Manifest {
    pub(crate) fn empty() -> Self {
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

    /// Reads a manifest.
    ///
    /// # Errors
    /// In words: it is none, or one of a later version.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        let broken = |error: serde_json::Error| format!("it is no manifest: {error}");
        let head: Head = serde_json::from_slice(bytes).map_err(broken)?;
        if head.format != FORMAT {
            return Err(format!("it has the format {:?}, this version reads {FORMAT:?}", head.format));
        }
        serde_json::from_slice(bytes).map_err(broken)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // Every field is a number, a text or a list of such, for which encoding cannot fail.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

/// The path of a manifest below the archive.
pub fn path(number: u64) -> String {
    format!("{DIRECTORY}{number:010}.json")
}

/// The number of the manifest at a path; `None`: there is none.
pub fn number(path: &str) -> Option<u64> {
    path.strip_prefix(DIRECTORY)?.strip_suffix(".json")?.parse().ok()
}
