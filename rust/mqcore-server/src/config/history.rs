//! The history of messages and its archive.

use std::collections::BTreeMap;
use std::time::Duration;

use mqcore_broker::model::config::HistoryOptions;

/// History of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Which events are recorded.
    pub options: HistoryOptions,
    /// How long the journal stores history that is not archived. `None`: forever. Default forever.
    pub max_age: Option<Duration>,
    /// Maximum bytes of history in the journals of all shards together; the oldest is removed first. Default 2 GiB.
    pub max_bytes: u64,
    /// Whether and how history is archived to Parquet files. Default yes.
    pub archive: Option<ArchiveConfig>,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            options: HistoryOptions::default(),
            max_age: None,
            max_bytes: 2 << 30,
            archive: Some(ArchiveConfig::default()),
        }
    }
}

/// How history is archived: in the directory `archive` of the data directory, or on object storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Maximum age of history before it is archived, even if there is little of it. Default 5 minutes.
    pub interval: Duration,
    /// How long the archive stores a file. `None`: forever. Default forever.
    pub max_age: Option<Duration>,
    /// Maximum bytes of all files; the oldest are removed first. `None`: no limit. Default none.
    pub max_bytes: Option<u64>,
    /// Object storage for the archive instead of the data directory. Default none.
    pub objects: Option<ObjectArchiveConfig>,
}

/// An archive of Iceberg tables on object storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectArchiveConfig {
    /// Prefix of all objects: `s3://`, `s3a://`, `gs://`, `az://`, `abfss://` or `file:///`.
    pub url: String,
    /// Settings of the store, such as `aws_endpoint_url`. They override environment variables of the same names.
    pub options: BTreeMap<String, String>,
    /// Number of partitions of each day, into which queues are hashed. Only new tables use it. Default 2.
    pub buckets: u32,
    /// Size in bytes of the files that compaction makes. Default 128 MiB.
    pub file_bytes: u64,
    /// Time after which small files are merged even if there are few. Default 15 minutes.
    pub compact_after: Duration,
    /// Age at which snapshots of the tables expire. Default 1 day.
    pub snapshot_max_age: Duration,
}

impl ObjectArchiveConfig {
    /// Returns the defaults for an archive at this URL.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            options: BTreeMap::new(),
            buckets: 2,
            file_bytes: 128 << 20,
            compact_after: Duration::from_secs(15 * 60),
            snapshot_max_age: Duration::from_secs(86_400),
        }
    }
}

impl Default for ArchiveConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(300), max_age: None, max_bytes: None, objects: None }
    }
}
