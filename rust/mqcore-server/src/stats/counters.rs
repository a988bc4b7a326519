//! Counters of the server: connections, handlers, journals, history, archive, limits. The broker counts messages.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqcore_journal::stats::Stats;
use mqcore_session::any::Protocol;

use crate::shard::count::SHARDS_MAX;
use crate::stats::counter::Counter;
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
    pub(crate) syncs: Counter,
    /// Total time of these syncs, in microseconds.
    pub(crate) sync_micros: Counter,
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
    /// Losses that the operator has not accepted, as the start found them.
    losses: OnceLock<Box<[Loss]>>,
}

impl JournalCounters {
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.add(1);
        self.sync_micros.add(took.as_micros() as u64);
    }

    pub(crate) fn refusing(&self, shard: usize, refuses: bool) {
        self.refusing[shard].store(u64::from(refuses), Ordering::Relaxed);
    }

    /// Called once, at the start.
    pub(crate) fn set_losses(&self, losses: Vec<Loss>) {
        // A second call cannot happen; the first one would count.
        let _ = self.losses.set(losses.into());
    }

    /// Losses of journals that the operator has not accepted.
    pub(crate) fn losses(&self) -> &[Loss] {
        self.losses.get().map_or(&[], |losses| losses)
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
    /// 1 while it fails; files it has; their bytes; notes that wait for it, by shard.
    pub(crate) failing: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
    pub(crate) waiting: [AtomicU64; SHARDS_MAX],
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    protocols: [ProtocolCounters; Protocol::ALL.len()],
    pub(crate) handlers: HandlerCounters,
    pub(crate) journal: JournalCounters,
    pub(crate) history: HistoryCounters,
    pub(crate) archive: ArchiveCounters,
    pub(crate) limits: LimitCounters,
}

impl Counters {
    pub(crate) fn of(&self, protocol: Protocol) -> &ProtocolCounters {
        &self.protocols[protocol as usize]
    }
}
