//! The continuous backup.

use std::collections::BTreeMap;
use std::time::Duration;

/// Restore points on object storage, made while the broker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupConfig {
    /// Prefix of all objects: `s3://`, `s3a://`, `gs://`, `az://`, `abfss://` or `file:///`. No other broker may use it.
    pub url: String,
    /// Settings of the store, such as `aws_endpoint_url`. They override environment variables of the same names.
    pub options: BTreeMap<String, String>,
    /// Time between two restore points: a lost machine loses what it confirmed in this time. Default 10 s.
    pub interval: Duration,
    /// How far back moments can be restored. Default 7 days.
    pub keep: Duration,
}

impl BackupConfig {
    /// Returns the defaults for a backup at this URL.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            options: BTreeMap::new(),
            interval: Duration::from_secs(10),
            keep: Duration::from_secs(7 * 86_400),
        }
    }
}
