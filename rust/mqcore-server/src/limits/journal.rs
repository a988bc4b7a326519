//! The task that saves persistent limits in the background, and opens them at a start.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_replication::storage::{DataFiles, DataStorage};
use mqcore_state::limits::{LimitJournal, RestoredLimits};

use crate::hub::Hub;
use crate::runtime::shutdown::TaskGuard;
use crate::storage::backup::Pin;
use crate::storage::data_dir::{DataDir, DataDirError, RECORD_BYTES_MAX, SideJournal};

/// Opens or creates the journal in a directory and fills the store from it. `expected_identity` is that of the existing
/// journal. Calls `found` with the report before it changes a file.
pub(crate) fn open(
    (path, files): (&Path, &DataFiles),
    expected_identity: Option<u64>,
    limiter: &Limiter,
    now: Nanos,
    found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
) -> Result<(LimitJournal<DataStorage>, RestoredLimits), DataDirError> {
    let directory = path.to_path_buf();
    let storage = files.open(path).map_err(|source| DataDirError::Io { path: directory, source })?;
    let options = Options {
        shard: SideJournal::Limits.shard(),
        max_record_bytes: RECORD_BYTES_MAX as u32,
        expected_identity,
        ..Options::default()
    };
    LimitJournal::open(storage, options, limiter, now, found)
        .map_err(|source| DataDirError::Limits { source })
}

/// Writes changes every `interval` until the server has stopped; then once more.
pub(crate) async fn keep(
    hub: Arc<Hub>,
    mut journal: LimitJournal<DataStorage>,
    interval: Duration,
    directory: Arc<DataDir>,
    alive: TaskGuard,
) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut ended = pin!(shutdown.ended());
    // Alive while a backup needs the files unchanged.
    let mut pin: Weak<Pin> = Weak::new();
    loop {
        let last = tokio::select! {
            () = tokio::time::sleep(interval) => false,
            () = hub.backups.asked(SideJournal::Limits) => false,
            () = &mut ended => true,
        };
        let barrier = hub.backups.take_beside(SideJournal::Limits);
        if !journal.is_due(&hub.limiter, last || barrier.is_some()) {
            continue;
        }
        let here = Arc::clone(&hub);
        let saving = tokio::task::spawn_blocking(move || {
            let pinned = pin.strong_count() > 0;
            let outcome = journal.save(&here.limiter, Nanos(here.clock.nanos()), pinned);
            if let Some((writer, barrier)) = barrier {
                // Takes part in a backup: reports the files, and waits until all writers have done so.
                let snapshot = journal.snapshot();
                pin = barrier.pin();
                barrier.arrive(writer, snapshot.map_err(|error| error.to_string()));
            }
            (journal, pin, outcome)
        });
        let outcome = match saving.await {
            Ok((back, pinned, outcome)) => {
                (journal, pin) = (back, pinned);
                outcome
            }
            Err(error) => {
                hub.limiter.forget_changes();
                std::panic::resume_unwind(error.into_panic());
            }
        };
        let damaged = journal.take_damaged();
        hub.counters.journal.add_damage(SideJournal::Limits.as_str(), &damaged);
        let goes_on = note(&hub, outcome);
        if last || !goes_on {
            break;
        }
    }
    hub.limiter.forget_changes();
    let closed = tokio::task::spawn_blocking(move || {
        let closed = journal.close(pin.strong_count() > 0);
        // Releases the directory for the next broker before this one counts as stopped.
        drop(directory);
        closed
    });
    if let Ok(Err(error)) = closed.await {
        tracing::error!(%error, "cannot close the journal of rate limits; the next start reads it in full");
    }
    drop(alive);
}

/// Counts and logs the result of a save. False: retrying is useless.
fn note(hub: &Hub, outcome: Result<u64, JournalError>) -> bool {
    let counters = &hub.counters.limits;
    let failing = &counters.failing;
    match outcome {
        Ok(saved) => {
            counters.saved.add(saved);
            if failing.swap(0, Ordering::Relaxed) != 0 {
                tracing::warn!("rate limits are saved again");
            }
            true
        }
        Err(error @ JournalError::Full { .. }) => {
            if failing.swap(1, Ordering::Relaxed) == 0 {
                tracing::error!(%error, "cannot save rate limits; they stay in force, but a crash would lose their changes; free disk space");
            }
            true
        }
        Err(error) => {
            failing.store(1, Ordering::Relaxed);
            hub.backups.ended(SideJournal::Limits, error.to_string());
            tracing::error!(%error, "cannot save rate limits until the next start; they stay in force; check the disk and restart the broker");
            false
        }
    }
}
