//! Why background tasks fail, and how far they are behind.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mqcore_broker::model::time::Timestamp;

use crate::stats::counter::Counter;

/// Maximum size of an error in characters. A store may answer with a whole page.
const ERROR_MAX: usize = 1000;

/// The error with which a task fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskFailure {
    /// The error of the last attempt.
    pub(crate) error: String,
    /// When the first of the attempts failed that have failed since.
    pub(crate) since: Timestamp,
}

/// Why a task fails; nothing while it works.
#[derive(Debug, Default)]
pub(crate) struct TaskState(Mutex<Option<TaskFailure>>);

impl TaskState {
    /// An attempt failed.
    pub(crate) fn failed(&self, error: &dyn Display, now: Timestamp) {
        let mut error = error.to_string();
        if let Some((end, _)) = error.char_indices().nth(ERROR_MAX) {
            error.truncate(end);
        }
        let mut failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = failure.as_ref().map_or(now, |failure| failure.since);
        *failure = Some(TaskFailure { error, since });
    }

    /// An attempt succeeded.
    pub(crate) fn recovered(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Why the task fails; `None` while it works.
    pub(crate) fn failure(&self) -> Option<TaskFailure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counters of the continuous backup.
#[derive(Debug, Default)]
pub(crate) struct BackupCounters {
    /// Restore points made.
    pub(crate) points: Counter,
    /// Bytes uploaded.
    pub(crate) bytes: Counter,
    /// Attempts that failed.
    pub(crate) failures: Counter,
    pub(crate) state: TaskState,
    /// Time between two restore points, in milliseconds; 0: there is no continuous backup.
    interval_ms: AtomicU64,
    /// When it was started, or the latest moment that can be restored, by the broker's own clock: the age of that moment
    /// must not depend on a system clock that is set meanwhile.
    since: AtomicU64,
    /// The latest moment that can be restored, in Unix milliseconds; 0: none since the start.
    stored_ms: AtomicU64,
    /// Bytes of the current upload that are done, and all of them; 0: no upload.
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// The state of the continuous backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupLag {
    /// Why the last attempt failed; `None`: it did not.
    pub(crate) failure: Option<TaskFailure>,
    /// The latest moment that can be restored, in Unix milliseconds. `None`: none since the start.
    pub(crate) stored_ms: Option<u64>,
    /// How long ago that was, or the start.
    pub(crate) age_ms: u64,
    /// Bytes of the current upload that are done, and all of them.
    pub(crate) upload: Option<(u64, u64)>,
    /// It fails, or the latest moment is too long ago for the interval.
    pub(crate) is_lagging: bool,
}

impl BackupCounters {
    /// Time that an upload may take beyond the interval before the backup counts as lagging.
    const PATIENCE_MS: u64 = 30_000;

    /// A continuous backup starts.
    pub(crate) fn started(&self, interval: Duration, now: Timestamp) {
        self.since.store(now.0, Ordering::Relaxed);
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        self.interval_ms.store(interval_ms, Ordering::Relaxed);
    }

    /// A moment, which was at `since`, can be restored.
    pub(crate) fn stored(&self, moment_ms: u64, since: Timestamp) {
        self.stored_ms.store(moment_ms, Ordering::Relaxed);
        self.since.store(since.0, Ordering::Relaxed);
    }

    /// Some bytes of an upload are done; the total is 0 when it has ended.
    pub(crate) fn uploading(&self, done: u64, total: u64) {
        self.done_bytes.store(done, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
    }

    /// The state; `None`: there is no continuous backup.
    pub(crate) fn lag(&self, now: Timestamp) -> Option<BackupLag> {
        let interval_ms = self.interval_ms.load(Ordering::Relaxed);
        if interval_ms == 0 {
            return None;
        }
        let stored_ms = Some(self.stored_ms.load(Ordering::Relaxed)).filter(|at| *at > 0);
        let age_ms = now.0.saturating_sub(self.since.load(Ordering::Relaxed));
        let total = self.total_bytes.load(Ordering::Relaxed);
        let failure = self.state.failure();
        let late_ms = interval_ms.saturating_mul(2).saturating_add(Self::PATIENCE_MS);
        let is_lagging = failure.is_some() || age_ms > late_ms;
        let upload = (total > 0).then(|| (self.done_bytes.load(Ordering::Relaxed), total));
        Some(BackupLag { failure, stored_ms, age_ms, upload, is_lagging })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_lags_when_it_fails_or_its_last_moment_is_too_long_ago() {
        let counters = BackupCounters::default();
        assert_eq!(counters.lag(Timestamp(5)), None);
        counters.started(Duration::from_secs(10), Timestamp(1_000));
        let lag = counters.lag(Timestamp(51_000)).expect("it has started");
        assert_eq!((lag.stored_ms, lag.age_ms, lag.is_lagging), (None, 50_000, false));
        assert!(counters.lag(Timestamp(51_001)).expect("it has started").is_lagging);
        // The system clock is an hour ahead.
        counters.stored(3_650_000, Timestamp(50_000));
        let lag = counters.lag(Timestamp(51_001)).expect("it has started");
        assert_eq!((lag.stored_ms, lag.age_ms, lag.is_lagging), (Some(3_650_000), 1_001, false));
        counters.state.failed(&"refused", Timestamp(52_000));
        assert!(counters.lag(Timestamp(52_000)).expect("it has started").is_lagging);
        counters.state.recovered();
        assert!(!counters.lag(Timestamp(52_000)).expect("it has started").is_lagging);
    }

    #[test]
    fn a_failure_keeps_the_time_of_the_first_attempt_and_the_error_of_the_last() {
        let state = TaskState::default();
        state.failed(&"one", Timestamp(1));
        state.failed(&"x".repeat(2_000), Timestamp(2));
        let failure = state.failure().expect("it failed");
        assert_eq!((failure.error.len(), failure.since), (1000, Timestamp(1)));
    }
}
