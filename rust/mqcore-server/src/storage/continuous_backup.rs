//! The thread that makes restore points on object storage.
//!
//! At an interval, it lets all journal writers pause for a moment, as for any [backup](crate::storage::backup), and uploads
//! what their files have gained since the last restore point. It retries what fails, and raises an alarm until it
//! succeeds; no failure here stops the broker.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqcore_lake::backup::writer::{BackupMoment, BackupWriter, FileContent, FileSource, MomentFile};
use mqcore_lake::error::LakeError;
use mqcore_lake::store::Store;
use mqcore_lake::transfer::TransferError;
use tokio::runtime::Handle;

use crate::config::backup::BackupConfig;
use crate::hub::Hub;
use crate::runtime::priority;
use crate::storage::backup::{Backup, BackupError, BackupKind};

/// Time before a retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two restore points beyond the interval, after a long upload.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Maximum time between two searches for restore points that are too old.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(3600);
/// Such a search happens this often while a restore point is kept.
const EXPIRIES: u32 = 20;

/// Why there is no new restore point.
#[derive(Debug, thiserror::Error)]
enum ContinuousBackupError {
    #[error(transparent)]
    Moment(#[from] BackupError),
    #[error(transparent)]
    Upload(#[from] TransferError),
    #[error("cannot reach the object store: {0}")]
    Unreachable(#[from] LakeError),
    #[error("cannot remove old restore points: {0}")]
    Expiry(#[source] LakeError),
}

/// Starts the thread, which ends with the server. Must be called in a Tokio runtime.
///
/// # Errors
/// [`ContinuousBackupStartError`]: the URL is invalid, or the system has no thread left.
pub(crate) fn start(config: &BackupConfig, hub: &Arc<Hub>) -> Result<(), ContinuousBackupStartError> {
    let store = Store::open(&config.url, &config.options, &Default::default())?;
    let alive = hub.shutdown.enter();
    let thread = BackupThread {
        config: config.clone(),
        hub: Arc::clone(hub),
        runtime: Handle::current(),
        writer: BackupWriter::new(store),
        expired: None,
        is_failing: false,
    };
    hub.counters.backup.started(config.interval, hub.clock.now());
    std::thread::Builder::new().name("mqcore-backup".to_owned()).spawn(move || {
        priority::lower();
        thread.run();
        drop(alive);
    })?;
    Ok(())
}

/// Why the thread cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContinuousBackupStartError {
    #[error(transparent)]
    Store(#[from] LakeError),
    #[error(transparent)]
    Thread(#[from] io::Error),
}

struct BackupThread {
    config: BackupConfig,
    hub: Arc<Hub>,
    runtime: Handle,
    writer: BackupWriter,
    /// When old restore points were removed.
    expired: Option<Instant>,
    is_failing: bool,
}

impl BackupThread {
    fn run(mut self) {
        let mut pause = Duration::ZERO;
        while self.wait(pause) {
            let began = Instant::now();
            let made = self.make().and_then(|()| self.expire());
            self.hub.counters.backup.uploading(0, 0);
            pause = match made {
                Ok(()) => {
                    self.succeeded();
                    pause_after(began.elapsed(), self.config.interval)
                }
                Err(_) if self.hub.shutdown.has_ended() => return,
                Err(error) => {
                    self.failed(&error);
                    let Some(pause) = retry_pause(&error) else { return };
                    pause
                }
            };
        }
    }

    /// Waits. False: the server stops.
    fn wait(&self, pause: Duration) -> bool {
        let stopped = async { tokio::time::timeout(pause, self.hub.shutdown.ended()).await.is_ok() };
        !self.hub.shutdown.has_ended() && !self.runtime.block_on(stopped)
    }

    /// Makes a restore point, unless nothing has changed since the last one.
    fn make(&mut self) -> Result<(), ContinuousBackupError> {
        if self.is_failing {
            // During an outage of the store, journals continue to remove files.
            until_stop(&self.runtime, &self.hub, self.writer.reach())?;
        }
        let now = self.hub.clock.now();
        let backup = self.hub.backups.pause_writers(BackupKind::Continuous)?;
        let (moment, files) = (moment(&backup), PausedFiles::of(&backup));
        let hub = Arc::clone(&self.hub);
        let counters = &hub.counters.backup;
        let mut progress = |done, total| {
            counters.uploading(done, total);
            !hub.shutdown.has_ended()
        };
        let stored = until_stop(&self.runtime, &hub, self.writer.add(&moment, &files, &mut progress))?;
        // From here on, housekeeping may remove the files.
        drop(backup);
        if stored.uploaded > 0 {
            counters.points.add(1);
            counters.bytes.add(stored.uploaded);
            tracing::debug!(number = stored.number, bytes = stored.uploaded, "made a restore point");
        }
        counters.stored(moment.created_ms, now);
        Ok(())
    }

    /// Looks for removed data, and removes restore points that are too old, from time to time.
    fn expire(&mut self) -> Result<(), ContinuousBackupError> {
        let interval = EXPIRY_INTERVAL.min(self.config.keep / EXPIRIES);
        if self.expired.is_some_and(|expired| expired.elapsed() < interval) {
            return Ok(());
        }
        let finding = async { self.writer.find_missing().await.map_err(ContinuousBackupError::Expiry) };
        let missing = until_stop(&self.runtime, &self.hub, finding)?;
        if missing > 0 {
            tracing::error!(
                objects = missing,
                "someone has removed data of the continuous backup; earlier restore points cannot be restored, and the \
                 next one will contain this data again"
            );
        }
        let keep_ms = u64::try_from(self.config.keep.as_millis()).unwrap_or(u64::MAX);
        let now_ms = self.hub.clock.system_ms();
        let expiring =
            async { self.writer.expire(now_ms, keep_ms).await.map_err(ContinuousBackupError::Expiry) };
        let expired = until_stop(&self.runtime, &self.hub, expiring)?;
        if expired.points > 0 {
            tracing::debug!(points = expired.points, objects = expired.objects, "removed old restore points");
        }
        self.expired = Some(Instant::now());
        Ok(())
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            self.hub.counters.backup.state.recovered();
            tracing::warn!("the continuous backup works again");
        }
    }

    fn failed(&mut self, error: &ContinuousBackupError) {
        self.hub.counters.backup.failures.add(1);
        self.hub.counters.backup.state.failed(error, self.hub.clock.now());
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(%error, "cannot make a restore point; the broker tries again");
        }
    }
}

/// Runs some work. A stop of the broker interrupts it.
fn until_stop<T, E: Into<ContinuousBackupError>>(
    runtime: &Handle,
    hub: &Hub,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, ContinuousBackupError> {
    runtime.block_on(async {
        tokio::select! {
            done = work => done.map_err(Into::into),
            () = hub.shutdown.ended() => Err(TransferError::Stopped.into()),
        }
    })
}

/// The time before the next restore point. Journals remove no files during an upload. If uploads take longer than the
/// interval, there must be time left for that, or the disk fills up.
fn pause_after(upload: Duration, interval: Duration) -> Duration {
    interval.saturating_sub(upload).max(upload / 2).min(interval.max(PAUSE_MAX))
}

/// The time before the next attempt; `None`: it would fail too.
fn retry_pause(error: &ContinuousBackupError) -> Option<Duration> {
    match error {
        ContinuousBackupError::Upload(TransferError::Store(LakeError::TakenOver { .. })) => None,
        _ => Some(RETRY_INTERVAL),
    }
}

/// The files of a backup. They stay as they are as long as it exists.
struct PausedFiles<'a>(HashMap<&'a str, &'a Path>);

impl<'a> PausedFiles<'a> {
    fn of(backup: &'a Backup) -> Self {
        Self(backup.files.iter().map(|file| (file.name.as_str(), file.path.as_path())).collect())
    }
}

impl FileSource for PausedFiles<'_> {
    fn open(&self, name: &str) -> io::Result<Box<dyn FileContent>> {
        let path = self.0.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Box::new(File::open(path).map_err(named)?))
    }
}

fn moment(backup: &Backup) -> BackupMoment {
    let files = backup.files.iter().map(|file| MomentFile {
        name: file.name.clone(),
        journal: file.journal,
        bytes: file.bytes,
        length: file.length,
        is_append_only: file.is_segment(),
    });
    BackupMoment {
        created_ms: backup.created_ms,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        shards: backup.shards,
        messages: backup.live,
        format: backup.format.clone(),
        files: files.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_time_to_remove_files_between_long_uploads() {
        let seconds = |upload, interval| {
            pause_after(Duration::from_secs(upload), Duration::from_secs(interval)).as_secs()
        };
        assert_eq!(seconds(0, 10), 10);
        assert_eq!(seconds(2, 10), 8);
        assert_eq!(seconds(10, 10), 5);
        assert_eq!(seconds(60, 10), 30);
        assert_eq!(seconds(3_600, 10), 60);
        assert_eq!(seconds(3_600, 3_600), 1_800);
    }
}
