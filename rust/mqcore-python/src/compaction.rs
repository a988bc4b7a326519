//! Compaction of a stopped broker's data directory for `mqcore.journal`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use mqcore_server::storage::compaction::{CompactedShard, Compaction};
use pyo3::prelude::*;

use crate::error;

/// Shard, bytes before and after, segments before and after, set-aside files, dropped bytes of them, lost messages, and
/// damage found while opening.
type Row = (usize, u64, u64, usize, usize, Vec<String>, u64, u64, Option<String>);

/// Compacts all shards. Calls `progress` with the shard, processed bytes and total bytes. An exception of `progress`
/// stops the compaction after a complete step.
#[pyfunction]
pub(crate) fn journal_compact(
    py: Python<'_>,
    path: PathBuf,
    drop_quarantined: bool,
    progress: &Bound<'_, PyAny>,
) -> PyResult<Vec<Row>> {
    let compaction = Compaction::open(&path).map_err(|error| error::data_dir(&error))?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    let mut rows = Vec::new();
    for shard in 0..compaction.shards() {
        let progress = progress.clone().unbind();
        let mut raised = None;
        let compacted = py.detach(|| {
            compaction.compact(shard, now_ms, drop_quarantined, &mut |done, total| {
                raised = Python::attach(|py| {
                    py.check_signals().and_then(|()| progress.call1(py, (shard, done, total))).err()
                });
                raised.is_none()
            })
        });
        if let Some(raised) = raised {
            return Err(raised);
        }
        if let Some(compacted) = compacted.map_err(|error| error::data_dir(&error))? {
            rows.push(row(shard, compacted));
        }
    }
    Ok(rows)
}

fn row(shard: usize, compacted: CompactedShard) -> Row {
    let CompactedShard { report, bytes, segments, quarantined, dropped_bytes, lost } = compacted;
    let damage = report.is_alarming().then(|| report.to_string());
    (shard, bytes.0, bytes.1, segments.0, segments.1, quarantined, dropped_bytes, lost, damage)
}
