//! When the peer was heard last, and when it is asked whether it is still there.
//!
//! Any byte is a heartbeat, also one of a frame that is not complete: a peer that takes a minute to send a large
//! message is alive. What is sent *to* a peer says nothing about it.

use std::time::Duration;

use mqcore_broker::model::time::Timestamp;

#[derive(Debug)]
pub(super) struct KeepAlive {
    interval: Duration,
    patience: Duration,
    heard_at: Timestamp,
    /// When a PING was sent that nothing was heard after.
    pinged_at: Option<Timestamp>,
    /// Bytes that were offered and not consumed; offered again they are no heartbeat.
    unread: usize,
}

/// What is to be done about a silent peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    GiveUp,
}

impl KeepAlive {
    /// Pings after `interval` (never, if that is zero) and gives up `patience` later.
    pub(super) fn new(interval: Duration, patience: Duration, now: Timestamp) -> Self {
        Self { interval, patience, heard_at: now, pinged_at: None, unread: 0 }
    }

    /// The peer is a client from now on.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.heard(now);
    }

    /// `bytes` are there to be read, of which some may have been there before.
    #[inline]
    pub(super) fn offered(&mut self, octets: usize, now: Timestamp) {
        if octets > self.unread {
            self.heard(now);
        }
    }

    /// `bytes` of them were not consumed.
    #[inline]
    pub(super) fn left(&mut self, octets: usize) {
        self.unread = octets;
    }

    fn heard(&mut self, now: Timestamp) {
        self.heard_at = now;
        self.pinged_at = None;
    }

    pub(super) fn deadline(&self) -> Timestamp {
        match self.pinged_at {
            Some(pinged_at) => pinged_at.after(self.patience),
            None if self.interval.is_zero() => Timestamp::NEVER,
            None => self.heard_at.after(self.interval),
        }
    }

    pub(super) fn due(&mut self, now: Timestamp) -> Due {
        if now < self.deadline() || self.deadline() == Timestamp::NEVER {
            return Due::Nothing;
        }
        match self.pinged_at.replace(now) {
            None => Due::Ping,
            Some(_) => Due::GiveUp,
        }
    }
}
