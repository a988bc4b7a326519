//! Journals, history and its archive.

use std::sync::atomic::Ordering;

use super::{Metric, Value, counter, gauge, histogram};

pub(super) const METRICS: &[Metric] = &[
    histogram(
        "mqcore_journal_fsync_seconds",
        "Duration of fsync calls that a confirmation waited for.",
        |source, samples| samples.value(Value::Durations(&source.hub.counters.journal.syncs.get(), 0)),
    ),
    gauge("mqcore_journal_bytes", "Bytes of the segment files of all journals.", |source, samples| {
        samples.value(source.hub.counters.journal.sums()[0])
    }),
    gauge("mqcore_journal_live_records", "Saved messages that are still in a queue.", |source, samples| {
        samples.value(source.hub.counters.journal.sums()[1])
    }),
    gauge(
        "mqcore_journal_quarantined_segments",
        "Segments set aside because they are damaged.",
        |source, samples| samples.value(source.hub.counters.journal.sums()[2]),
    ),
    gauge(
        "mqcore_journal_rejecting_shards",
        "Shards whose journal accepts no messages; the log has the reason.",
        |source, samples| samples.value(source.hub.counters.journal.sums()[3]),
    ),
    gauge(
        "mqcore_journal_losses",
        "Losses of records or journals that the operator has not accepted; /overview lists them.",
        |source, samples| samples.value(source.hub.counters.journal.losses().len()),
    ),
    counter(
        "mqcore_journal_failed_removals_total",
        "Failed attempts to remove a segment; the log has the reason, and each is repeated.",
        |source, samples| samples.value(source.hub.counters.journal.failed_removals.get()),
    ),
    counter("mqcore_history_events_total", "Lifecycle events recorded in the history.", |source, samples| {
        samples.value(source.hub.counters.history.steps.get())
    }),
    counter("mqcore_history_bytes_total", "Bytes of these events.", |source, samples| {
        samples.value(source.hub.counters.history.bytes.get())
    }),
    counter(
        "mqcore_history_events_dropped_total",
        "Lifecycle events that could not be recorded: the disk is full, broken or too slow.",
        |source, samples| samples.value(source.hub.counters.history.missed.get()),
    ),
    gauge("mqcore_history_dropping_shards", "Shards that drop lifecycle events now.", |source, samples| {
        samples.value(source.hub.counters.history.missing())
    }),
    counter("mqcore_archive_runs_total", "Runs that copied history to the archive.", |source, samples| {
        samples.value(source.hub.counters.archive.rounds.get())
    }),
    counter("mqcore_archive_rows_total", "Rows written to the archive.", |source, samples| {
        samples.value(source.hub.counters.archive.rows.get())
    }),
    counter("mqcore_archive_written_bytes_total", "Bytes written to the archive.", |source, samples| {
        samples.value(source.hub.counters.archive.bytes.get())
    }),
    counter(
        "mqcore_archive_notes_lost_total",
        "Notes of the history that were removed or unreadable before they were archived.",
        |source, samples| samples.value(source.hub.counters.archive.missing.get()),
    ),
    counter("mqcore_archive_failures_total", "Runs that failed.", |source, samples| {
        samples.value(source.hub.counters.archive.failures.get())
    }),
    counter(
        "mqcore_archive_removed_files_total",
        "Files of the archive that retention removed.",
        |source, samples| samples.value(source.hub.counters.archive.removed_files.get()),
    ),
    counter("mqcore_archive_removed_bytes_total", "Bytes of these files.", |source, samples| {
        samples.value(source.hub.counters.archive.removed_bytes.get())
    }),
    gauge("mqcore_archive_failing", "1 while archiving fails; /readyz has the reason.", |source, samples| {
        samples.value(u64::from(source.hub.counters.archive.state.failure().is_some()))
    }),
    gauge("mqcore_archive_files", "Files of the archive.", |source, samples| {
        samples.value(source.hub.counters.archive.files.load(Ordering::Relaxed))
    }),
    gauge("mqcore_archive_bytes", "Bytes of the archive.", |source, samples| {
        samples.value(source.hub.counters.archive.file_bytes.load(Ordering::Relaxed))
    }),
    gauge(
        "mqcore_archive_pending_notes",
        "Notes of the history that are not archived yet.",
        |source, samples| {
            let pending: u64 =
                source.hub.counters.archive.waiting.iter().map(|shard| shard.load(Ordering::Relaxed)).sum();
            samples.value(pending);
        },
    ),
    counter("mqcore_backup_restore_points_total", "Restore points made.", |source, samples| {
        samples.value(source.hub.counters.backup.points.get())
    }),
    counter("mqcore_backup_uploaded_bytes_total", "Bytes uploaded for restore points.", |source, samples| {
        samples.value(source.hub.counters.backup.bytes.get())
    }),
    counter("mqcore_backup_failures_total", "Attempts that made no restore point.", |source, samples| {
        samples.value(source.hub.counters.backup.failures.get())
    }),
    gauge(
        "mqcore_backup_failing",
        "1 while the continuous backup fails; /readyz has the reason.",
        |source, samples| samples.value(u64::from(source.hub.counters.backup.state.failure().is_some())),
    ),
    gauge(
        "mqcore_backup_age_seconds",
        "Age of the latest moment that can be restored, or time since the start; absent without a continuous backup.",
        |source, samples| {
            if let Some(lag) = source.hub.counters.backup.lag(source.hub.clock.now()) {
                samples.value(lag.age_ms as f64 / 1000.0);
            }
        },
    ),
];
