//! Compacts the data directory of a stopped broker.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_replication::storage::DataFiles;

use crate::storage::data_dir::{DataDir, DataDirError, journal_options, shard_name};

pub use mqcore_journal::recovery::RecoveryReport;

/// Bytes copied between two reports of progress.
const STEP_BYTES: usize = 8 * 1024 * 1024;
/// Suffix of quarantined segments.
const QUARANTINED: &str = ".quarantined";

/// A data directory locked against brokers and inspections until this is dropped.
#[derive(Debug)]
pub struct Compaction {
    path: PathBuf,
    directory: DataDir,
}

/// The result for one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactedShard {
    /// The findings at opening.
    pub report: RecoveryReport,
    /// Bytes of its segment files before and after.
    pub bytes: (u64, u64),
    /// Its segment files before and after.
    pub segments: (usize, usize),
    /// File names of the quarantined segments that are left.
    pub quarantined: Vec<String>,
    /// Bytes of the quarantined segments that were dropped.
    pub dropped_bytes: u64,
    /// Messages that could not be read while they were copied.
    pub lost: u64,
}

impl Compaction {
    /// Opens an existing data directory that no process uses.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Running`], [`DataDirError::Format`], [`DataDirError::Version`],
    /// [`DataDirError::Inconsistent`] and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        Ok(Self { path: path.to_path_buf(), directory: DataDir::open_stopped(path)? })
    }

    /// The number of shards of the directory.
    pub fn shards(&self) -> usize {
        self.directory.shards()
    }

    /// Compacts a shard's journal; with `drop_quarantined`, quarantined segments are removed at the end. `progress`
    /// receives the bytes done and the total, and returns whether to continue. `None`: it returned false, or the
    /// shard has no journal.
    ///
    /// # Errors
    /// [`DataDirError::Journal`], with [`JournalError::Full`](mqcore_journal::error::JournalError::Full) if there is
    /// no space for copies, and [`DataDirError::Io`]. Even if the process dies, saved messages are not lost, and
    /// another call continues the work.
    pub fn compact(
        &self,
        shard: usize,
        now_ms: u64,
        drop_quarantined: bool,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<CompactedShard>, DataDirError> {
        let failed = |source| DataDirError::Journal { shard, source };
        let path = self.path.join(shard_name(shard));
        if !path.is_dir() {
            return Ok(None);
        }
        let io = |source| DataDirError::Io { path: path.clone(), source };
        let before = sizes(&path, ".segment").map_err(io)?;
        let storage = DataFiles::Local.open(&path).map_err(io)?;
        let mut go_on = true;
        // The retention of history is up to the broker, which has the settings.
        let name = shard_name(shard);
        let options = Options {
            retain_notes_ms: None,
            retain_notes_bytes: None,
            expected_identity: self.directory.identity_of(&name),
            ..journal_options(shard, now_ms)
        };
        // Compaction repairs what it finds, so that the next start would not report it.
        let mut found = |report: &RecoveryReport| self.directory.found(&name, report);
        let (mut journal, recovered) =
            Journal::open_with_observers(storage, options, &mut |_, _| {}, &mut |_, _| {}, &mut found)
                .map_err(failed)?;
        let until = journal.newest_segment();
        let total = journal.compactable_bytes(until);
        let mut lost = 0;
        let mut more = true;
        while more && go_on {
            let done = journal.compact(now_ms, STEP_BYTES, until).map_err(failed)?;
            lost += done.lost.len() as u64;
            more = done.more;
            go_on = progress(total.saturating_sub(journal.compactable_bytes(until)), total);
        }
        journal.close_compacted().map_err(failed)?;
        if !go_on {
            return Ok(None);
        }
        let aside = sizes(&path, QUARANTINED).map_err(io)?;
        let mut dropped_bytes = 0;
        if drop_quarantined {
            for (name, bytes) in &aside {
                fs::remove_file(path.join(name)).map_err(io)?;
                dropped_bytes += bytes;
            }
        }
        let after = sizes(&path, ".segment").map_err(io)?;
        let sum = |files: &[(String, u64)]| files.iter().map(|(_, bytes)| bytes).sum();
        Ok(Some(CompactedShard {
            report: recovered.report,
            bytes: (sum(&before), sum(&after)),
            segments: (before.len(), after.len()),
            quarantined: if drop_quarantined {
                Vec::new()
            } else {
                aside.into_iter().map(|(name, _)| name).collect()
            },
            dropped_bytes,
            lost,
        }))
    }
}

/// The files of a directory with this suffix, with their lengths, by name.
fn sizes(path: &Path, suffix: &str) -> io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && name.ends_with(suffix)
        {
            found.push((name, entry.metadata()?.len()));
        }
    }
    found.sort_unstable();
    Ok(found)
}
