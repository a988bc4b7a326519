//! The time of the last input, and when to send a ping.
//!
//! Any byte is a heartbeat, also one of an incomplete frame: a peer that takes a minute to send a large message is
//! alive. Output to a peer does not count.

use std::time::Duration;

use mqcore_broker::model::time::Timestamp;

#[derive(Debug)]
pub(super) struct KeepAlive {
    interval: Duration,
    pong_timeout: Duration,
    heard_at: Timestamp,
    /// When a PING was sent, if no input has arrived since.
    pinged_at: Option<Timestamp>,
    /// Bytes that were offered and not consumed; offered again they are not a heartbeat.
    unread: usize,
}

/// The action for a silent peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    GiveUp,
}

impl KeepAlive {
    /// Sends a ping after `interval` without input (never, if that is zero) and gives up `pong_timeout` later.
    pub(super) fn new(interval: Duration, pong_timeout: Duration, now: Timestamp) -> Self {
        Self { interval, pong_timeout, heard_at: now, pinged_at: None, unread: 0 }
    }

    /// The peer is a client from now on.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.heard(now);
    }

    /// `bytes` bytes can be read, some of which may have been offered before.
    #[inline]
    pub(super) fn offered(&mut self, bytes: usize, now: Timestamp) {
        if bytes > self.unread {
            self.heard(now);
        }
    }

    /// `bytes` of them were not consumed.
    #[inline]
    pub(super) fn left(&mut self, bytes: usize) {
        self.unread = bytes;
    }

    fn heard(&mut self, now: Timestamp) {
        self.heard_at = now;
        self.pinged_at = None;
    }

    pub(super) fn deadline(&self) -> Timestamp {
        match self.pinged_at {
            Some(pinged_at) => pinged_at.after(self.pong_timeout),
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
