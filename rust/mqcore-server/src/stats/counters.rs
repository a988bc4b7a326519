//! Counters of the server: connections, handlers, journals, history, archive, limits. The broker counts messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mqcore_broker::model::durations::SharedDurations;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::stats::Stats;
use mqcore_session::any::Protocol;

use crate::shard::count::SHARDS_MAX;
use crate::stats::counter::Counter;
use crate::stats::tasks::{BackupCounters, TaskFailure, TaskState};
use crate::storage::loss::Loss;

/// Why the broker closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CloseReason {
    /// The bytes are not valid in the protocol, or not in its current state.
    ProtocolError,
    /// The peer did not introduce itself in time.
    HandshakeTimeout,
    /// A ping was not answered in time.
    PingTimeout,
    /// It was the oldest of too many half-open connections.
    HalfOpenLimit,
    /// Its login was larger than `login_bytes_max` or the limit of its protocol.
    LoginTooLarge,
    /// Its unfinished input was the oldest, and all together exceeded `half_open_bytes_max` or `unfinished_bytes_max`.
    InputLimit,
    /// The peer read too slowly.
    SlowConsumer,
    /// The broker rejected it.
    Refused,
    /// The user, token or rights of the peer changed.
    Revoked,
    /// The connection's task panicked: a bug.
    Fault,
}

impl CloseReason {
    pub(crate) const ALL: [Self; 10] = [
        Self::ProtocolError,
        Self::HandshakeTimeout,
        Self::PingTimeout,
        Self::HalfOpenLimit,
        Self::LoginTooLarge,
        Self::InputLimit,
        Self::SlowConsumer,
        Self::Refused,
        Self::Revoked,
        Self::Fault,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ProtocolError => "protocol-error",
            Self::HandshakeTimeout => "handshake-timeout",
            Self::PingTimeout => "ping-timeout",
            Self::HalfOpenLimit => "half-open-limit",
            Self::LoginTooLarge => "login-too-large",
            Self::InputLimit => "input-limit",
            Self::SlowConsumer => "slow-consumer",
            Self::Refused => "refused",
            Self::Revoked => "revoked",
            Self::Fault => "fault",
        }
    }
}

/// Counters of rate limits.
#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    /// Entries saved, new and changed.
    pub(crate) saved: Counter,
    /// Entries restored when the server started.
    pub(crate) restored: Counter,
    /// 1 while nothing can be saved.
    pub(crate) failing: AtomicU64,
    /// Rejections by `publish_limit` and `connect_limit`.
    pub(crate) publish_refused: Counter,
    pub(crate) connect_refused: Counter,
}

/// Counters of one protocol.
#[derive(Debug, Default)]
pub(crate) struct ProtocolCounters {
    /// Connections accepted.
    pub(crate) accepted: Counter,
    /// Connections rejected because `connections_max` was reached.
    pub(crate) rejected: Counter,
    /// Ignored frames of connections that have ended: no hops left, or of an unknown type.
    pub(crate) ignored_frames: Counter,
    /// Requests whose peers received only an error number; the log explains it.
    pub(crate) request_errors: Counter,
    /// Bytes read.
    pub(crate) bytes_in: Counter,
    /// Bytes written.
    pub(crate) bytes_out: Counter,
    /// Connections ended, by [`CloseReason`] number.
    closed: [Counter; CloseReason::ALL.len()],
}

impl ProtocolCounters {
    pub(crate) fn closed(&self, reason: CloseReason) -> &Counter {
        &self.closed[reason as usize]
    }
}

/// Counters of questions to handlers, of all shards.
#[derive(Debug, Default)]
pub(crate) struct HandlerCounters {
    /// Questions that need an answer.
    pub(crate) asked: Counter,
    /// Answers.
    pub(crate) answered: Counter,
    /// Questions without an answer at their deadline.
    pub(crate) late: Counter,
}

impl HandlerCounters {
    /// Questions that wait for an answer and are not late.
    pub(crate) fn open(&self) -> u64 {
        // Read in this order, an answer that comes in between makes the result too large, never negative.
        let closed = self.answered.get() + self.late.get();
        self.asked.get().saturating_sub(closed)
    }
}

/// Counters of the journals of all shards.
#[derive(Debug, Default)]
pub(crate) struct JournalCounters {
    /// Syncs that a confirmation waited for.
    pub(crate) syncs: SharedDurations,
    /// Attempts to remove or rename a segment that failed and are repeated.
    pub(crate) failed_removals: Counter,
    /// Bytes of segment files, by shard.
    file_bytes: [AtomicU64; SHARDS_MAX],
    /// Live records, by shard.
    live: [AtomicU64; SHARDS_MAX],
    /// Segments set aside because of damage, by shard.
    quarantined: [AtomicU64; SHARDS_MAX],
    /// 1 for shards whose journal rejects messages.
    refusing: [AtomicU64; SHARDS_MAX],
    /// Losses that the operator has not accepted.
    losses: Mutex<Vec<Loss>>,
}

impl JournalCounters {
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.add(took.as_micros() as u64);
    }

    pub(crate) fn refusing(&self, shard: usize, refuses: bool) {
        self.refusing[shard].store(u64::from(refuses), Ordering::Relaxed);
    }

    /// Adds a loss that the start or housekeeping found.
    pub(crate) fn add_loss(&self, loss: Loss) {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).push(loss);
    }

    /// Raises the alarm for segments of a journal in which housekeeping found damage. Returns one of the losses.
    pub(crate) fn add_damage(&self, journal: &str, segments: &[u32]) -> Option<Loss> {
        let mut last = None;
        for &segment in segments {
            let loss = Loss::of_housekeeping(journal, segment);
            loss.log();
            self.add_loss(loss.clone());
            last = Some(loss);
        }
        last
    }

    /// Losses of journals that the operator has not accepted.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shards whose journal rejects messages: its disk is full, or failed.
    pub(crate) fn refusing_shards(&self) -> Vec<usize> {
        let refuses = |shard: &usize| self.refusing[*shard].load(Ordering::Relaxed) > 0;
        (0..SHARDS_MAX).filter(refuses).collect()
    }

    pub(crate) fn measure(&self, shard: usize, stats: &Stats) {
        self.file_bytes[shard].store(stats.file_bytes, Ordering::Relaxed);
        self.live[shard].store(stats.live, Ordering::Relaxed);
        self.quarantined[shard].store(stats.quarantined, Ordering::Relaxed);
    }

    /// Bytes of segment files, live records, quarantined segments, and shards that reject messages.
    pub(crate) fn sums(&self) -> [u64; 4] {
        [&self.file_bytes, &self.live, &self.quarantined, &self.refusing]
            .map(|shards| shards.iter().map(|shard| shard.load(Ordering::Relaxed)).sum())
    }
}

/// Counters of the history of all shards.
#[derive(Debug, Default)]
pub(crate) struct HistoryCounters {
    /// Events written to the journals.
    pub(crate) steps: Counter,
    /// Bytes of these events, without the journal's own overhead.
    pub(crate) bytes: Counter,
    /// Events that were dropped.
    pub(crate) missed: Counter,
    /// 1 for shards that drop events now.
    missing: [AtomicU64; SHARDS_MAX],
}

impl HistoryCounters {
    pub(crate) fn set_missing(&self, shard: usize, missing: bool) {
        self.missing[shard].store(u64::from(missing), Ordering::Relaxed);
    }

    /// Shards that drop events now.
    pub(crate) fn missing(&self) -> u64 {
        self.missing.iter().map(|shard| shard.load(Ordering::Relaxed)).sum()
    }
}

/// How far the archive is behind the journals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveLag {
    /// Why the last attempt failed; `None`: it did not.
    pub(crate) failure: Option<TaskFailure>,
    /// Notes that are not archived.
    pub(crate) pending_notes: u64,
    /// How long announced history has waited, in milliseconds.
    pub(crate) waiting_ms: u64,
    /// It fails, or history has waited for longer than the archive's interval.
    pub(crate) is_lagging: bool,
}

/// Counters of the archive.
#[derive(Debug, Default)]
pub(crate) struct ArchiveCounters {
    /// Runs that copied history to the archive.
    pub(crate) rounds: Counter,
    /// Rows written, of both tables.
    pub(crate) rows: Counter,
    /// Bytes written.
    pub(crate) bytes: Counter,
    /// Notes that were removed or unreadable before they were archived.
    pub(crate) missing: Counter,
    /// Attempts that failed.
    pub(crate) failures: Counter,
    /// Files, and their bytes, that retention removed.
    pub(crate) removed_files: Counter,
    pub(crate) removed_bytes: Counter,
    pub(crate) state: TaskState,
    /// Files it has; their bytes; notes that wait for it, by shard.
    pub(crate) files: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
    pub(crate) waiting: [AtomicU64; SHARDS_MAX],
    /// Maximum age of history before it is announced, in milliseconds; 0: there is no archive.
    pub(crate) interval_ms: AtomicU64,
    /// When the history was announced that is not archived yet, by shard, in Unix milliseconds; 0: all is archived.
    announced: [AtomicU64; SHARDS_MAX],
}

impl ArchiveCounters {
    /// History was announced. Earlier history that still waits keeps its time.
    pub(crate) fn announced(&self, shard: usize, now: Timestamp) {
        // Only the archive's thread writes it.
        if self.announced[shard].load(Ordering::Relaxed) == 0 {
            self.announced[shard].store(now.0, Ordering::Relaxed);
        }
    }

    /// The history that was announced first is archived. `next`: when later history was announced, if there is some.
    pub(crate) fn caught_up(&self, shard: usize, next: Option<Timestamp>) {
        self.announced[shard].store(next.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    /// How far the archive is behind; `None`: there is no archive.
    pub(crate) fn lag(&self, now: Timestamp) -> Option<ArchiveLag> {
        let interval_ms = self.interval_ms.load(Ordering::Relaxed);
        if interval_ms == 0 {
            return None;
        }
        let times = self.announced.iter().map(|announced| announced.load(Ordering::Relaxed));
        let waiting_ms = times.filter(|at| *at > 0).map(|at| now.0.saturating_sub(at)).max().unwrap_or(0);
        let failure = self.state.failure();
        let is_lagging = failure.is_some() || waiting_ms > interval_ms;
        Some(ArchiveLag {
            failure,
            pending_notes: self.waiting.iter().map(|shard| shard.load(Ordering::Relaxed)).sum(),
            waiting_ms,
            is_lagging,
        })
    }
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    protocols: [ProtocolCounters; Protocol::ALL.len()],
    pub(crate) handlers: HandlerCounters,
    pub(crate) journal: JournalCounters,
    pub(crate) history: HistoryCounters,
    pub(crate) archive: ArchiveCounters,
    pub(crate) backup: BackupCounters,
    pub(crate) limits: LimitCounters,
}

impl Counters {
    pub(crate) fn of(&self, protocol: Protocol) -> &ProtocolCounters {
        &self.protocols[protocol as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_lags_when_announced_history_waits_longer_than_its_interval() {
        let counters = ArchiveCounters::default();
        let lag = |now| counters.lag(Timestamp(now)).map(|lag| (lag.waiting_ms, lag.is_lagging));
        assert_eq!(lag(5000), None, "there is no archive");
        counters.interval_ms.store(1000, Ordering::Relaxed);
        assert_eq!(lag(5000), Some((0, false)));
        counters.announced(1, Timestamp(5000));
        counters.announced(1, Timestamp(5900));
        assert_eq!(lag(6000), Some((1000, false)));
        assert_eq!(lag(6001), Some((1001, true)));
        counters.caught_up(1, Some(Timestamp(5900)));
        assert_eq!(lag(6001), Some((101, false)));
        counters.caught_up(1, None);
        counters.state.failed(&"no space", Timestamp(8000));
        counters.state.failed(&"x".repeat(2000), Timestamp(8500));
        assert_eq!(lag(9000), Some((0, true)));
        let failure = counters.state.failure().expect("it failed");
        assert_eq!((failure.error.len(), failure.since), (1000, Timestamp(8000)));
        counters.state.recovered();
        assert_eq!((lag(9000), counters.state.failure()), (Some((0, false)), None));
    }
}
