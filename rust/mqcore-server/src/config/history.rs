//! The history of messages and its archive.

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

/// How history is archived, in the directory `archive` of the data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Maximum age of history before it is archived, even if there is little of it. Default 5 minutes.
    pub interval: Duration,
    /// How long the archive stores a file. `None`: forever. Default forever.
    pub max_age: Option<Duration>,
    /// Maximum bytes of all files; the oldest are removed first. `None`: no limit. Default none.
    pub max_bytes: Option<u64>,
}

impl Default for ArchiveConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(300), max_age: None, max_bytes: None }
    }
}
