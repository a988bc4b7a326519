//! What the server counts itself. The broker counts messages; this counts connections and what breaks them.

use std::sync::atomic::{AtomicU64, Ordering};

use mqcore_session::any::Protocol;

/// A number that only grows. Relaxed: nobody concludes anything from one about another.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a connection ended, where it was not the peer's own wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CloseReason {
    /// The bytes were not of the protocol, or not allowed at that moment.
    ProtocolError,
    /// It did not say in time who it is.
    HandshakeTimeout,
    /// A ping was not answered in time.
    PingTimeout,
    /// Too many had not said who they are, and it was the oldest.
    HalfOpenLimit,
    /// It did not take what it was sent.
    SlowConsumer,
    /// The broker refused it.
    Refused,
    /// A fault of ours: the connection's task panicked.
    Fault,
}

impl CloseReason {
    pub(crate) const ALL: [Self; 7] = [
        Self::ProtocolError,
        Self::HandshakeTimeout,
        Self::PingTimeout,
        Self::HalfOpenLimit,
        Self::SlowConsumer,
        Self::Refused,
        Self::Fault,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ProtocolError => "protocol-error",
            Self::HandshakeTimeout => "handshake-timeout",
            Self::PingTimeout => "ping-timeout",
            Self::HalfOpenLimit => "half-open-limit",
            Self::SlowConsumer => "slow-consumer",
            Self::Refused => "refused",
            Self::Fault => "fault",
        }
    }
}

/// Counters of one protocol.
#[derive(Debug, Default)]
pub(crate) struct ProtocolCounters {
    /// Connections accepted.
    pub(crate) accepted: Counter,
    /// Connections turned away because `connections_max` was reached.
    pub(crate) turned_away: Counter,
    /// Frames that meant nothing, of connections that have ended: no hops left, or of an unknown type.
    pub(crate) ignored_frames: Counter,
    /// Octets read.
    pub(crate) bytes_in: Counter,
    /// Octets written.
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
    /// Questions that want an answer.
    pub(crate) asked: Counter,
    /// Answers.
    pub(crate) answered: Counter,
    /// Questions whose answer had not come at their deadline.
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

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    protocols: [ProtocolCounters; Protocol::ALL.len()],
    pub(crate) handlers: HandlerCounters,
}

impl Counters {
    pub(crate) fn of(&self, protocol: Protocol) -> &ProtocolCounters {
        &self.protocols[protocol as usize]
    }
}
