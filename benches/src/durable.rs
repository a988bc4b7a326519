//! Producers that wait for receipts of messages that a queue saves: receipts per second, and messages per sync.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::confirmed::Run;
use crate::process::Process;
use crate::tmqp::Tmqp;

/// Result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Receipts {
    /// Messages confirmed as saved.
    pub receipts: u64,
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Syncs in this time.
    pub syncs: u64,
}

impl Receipts {
    /// Receipts per second.
    pub fn rate(&self) -> f64 {
        self.receipts as f64 / self.elapsed.as_secs_f64()
    }

    /// Messages per sync: the size of the batches.
    pub fn batch(&self) -> f64 {
        self.receipts as f64 / self.syncs.max(1) as f64
    }
}

/// A directory for one measurement, on the measured disk. Removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates one in the directory that `MQCORE_BENCH_DIR` names, or beside this program in the target directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(name: &str) -> io::Result<Self> {
        let parent = match std::env::var_os("MQCORE_BENCH_DIR") {
            Some(named) => PathBuf::from(named),
            None => std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default(),
        };
        let path = parent.join(format!("load-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Publishes for `warm_up`, and then for `duration`, which is measured: `producers` connections, each with at most
/// `window` messages that wait for their receipts.
///
/// # Errors
/// If a connection breaks, a message is rejected, or the queue does not contain the confirmed messages.
pub fn measure(
    process: &Process,
    producers: usize,
    window: usize,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<Receipts> {
    let mut run = Run::connect(&Tmqp::new(process.address), producers, window, u64::MAX)?;
    run.until(|_, now| now >= warm_up)?;
    let (receipts_before, syncs_before) = (run.confirmed, process.metric(SYNCS)?);
    let start = Instant::now();
    run.until(|_, elapsed| elapsed >= duration)?;
    let (receipts, elapsed) = (run.confirmed - receipts_before, start.elapsed());
    let syncs = (process.metric(SYNCS)? - syncs_before) as u64;
    run.finish()?;
    let stored = process.totals()?["ready"].as_u64();
    if stored != Some(run.published) {
        return Err(io::Error::other(format!("{} receipts, and {stored:?} are stored", run.confirmed)));
    }
    Ok(Receipts { receipts, elapsed, syncs })
}

/// Saves exactly `count` messages, and waits for all receipts.
///
/// # Errors
/// As [`measure`].
pub fn save(process: &Process, count: u64) -> io::Result<()> {
    let mut run = Run::connect(&Tmqp::new(process.address), 1, 4096, count)?;
    run.until(|receipts, _| receipts >= count)
}

const SYNCS: &str = "mqcore_journal_fsync_seconds_count";
