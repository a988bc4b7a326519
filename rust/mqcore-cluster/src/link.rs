//! One connection to an upstream broker, on the connecting side: when to connect, what to send, when to give up.
//!
//! The owner performs the actions that [`Link::poll`] returns, reports their results, and polls again at
//! [`Link::next_timeout`]. It sends messages while [`Link::may_send`] permits it.
//!
//! ```text
//!            dial            connected            accepted
//!   Waiting ------> Dialing ----------> Greeting ----------> Open
//!      ^               |                   |                   |
//!      +---------------+-------------------+-------------------+   lost, rejected or timed out
//! ```

use std::collections::VecDeque;

use fastrand::Rng;

/// Timeouts of a link in milliseconds, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// Shortest delay before reconnecting. It doubles up to the longest one. Default 500, as the document specifies.
    pub reconnect_ms: u64,
    /// Longest delay before reconnecting. Default 30,000.
    pub reconnect_max_ms: u64,
    /// Time limit for connecting and for the handshake, each. Default 10,000.
    pub handshake_ms: u64,
    /// Time without a confirmation of sent messages after which the connection is closed, because it may be half open.
    /// Default 30,000.
    pub confirm_timeout_ms: u64,
    /// Idle time after which the upstream broker is pinged. It is disconnected after the same time without a response.
    /// Default 15,000.
    pub ping_ms: u64,
    /// Maximum number of unconfirmed messages. Default 16,384.
    pub window: usize,
    /// Maximum size of unconfirmed messages in bytes. A single message may exceed it. Default 16 MiB.
    pub window_bytes: u64,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            reconnect_ms: 500,
            reconnect_max_ms: 30_000,
            handshake_ms: 10_000,
            confirm_timeout_ms: 30_000,
            ping_ms: 15_000,
            window: 16_384,
            window_bytes: 16 << 20,
        }
    }
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected; the next attempt is scheduled.
    Waiting {
        /// Time of the next attempt in milliseconds.
        until: u64,
    },
    /// Connecting.
    Dialing,
    /// Connected; waiting for the response to Hello.
    Greeting,
    /// Established.
    Open,
}

/// An action that the owner must perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkAction {
    /// Connect, then call [`Link::connected`] or [`Link::lost`].
    Dial,
    /// Close the connection, or abort connecting. The link is already in its next state.
    Close(LostReason),
    /// Send a PING.
    Ping,
}

/// Why this side closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// Connecting or the handshake took too long.
    Handshake,
    /// No confirmation arrived in time.
    Unconfirmed,
    /// No response to a ping arrived in time.
    Silent,
}

/// A link. Times are in milliseconds since the Unix epoch and must not decrease.
#[derive(Debug)]
pub struct Link {
    options: LinkOptions,
    state: LinkState,
    /// Beginning of the current state.
    since: u64,
    /// Failed attempts since the last connection with a confirmation.
    failures: u32,
    /// Whether the upstream broker confirms by number. Otherwise a PING finds out how far it has read.
    numbered: bool,
    /// Numbers and sizes of the messages sent on this connection and not confirmed yet.
    sent: VecDeque<(u64, u32)>,
    sent_bytes: u64,
    /// Last confirmed number, over all connections.
    confirmed: u64,
    /// Time of the last confirmation, or when the first of the unconfirmed messages was sent.
    progress: u64,
    heard: u64,
    pinged: Option<u64>,
    /// Number that the next PONG confirms, if the upstream broker does not confirm by number.
    barrier: Option<u64>,
    random: Rng,
}

impl Link {
    /// Creates a link that connects immediately. `confirmed` is the last number confirmed before this process started. `seed`
    /// makes the reconnect delays differ from those of other nodes.
    #[must_use]
    pub fn new(options: LinkOptions, confirmed: u64, seed: u64, now: u64) -> Self {
        Self {
            options,
            state: LinkState::Waiting { until: now },
            since: now,
            failures: 0,
            numbered: false,
            sent: VecDeque::new(),
            sent_bytes: 0,
            confirmed,
            progress: now,
            heard: now,
            pinged: None,
            barrier: None,
            random: Rng::with_seed(seed),
        }
    }

    /// Current state.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// Last number that the upstream broker confirmed.
    #[must_use]
    pub const fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the upstream broker confirms by number. Only meaningful while the link is open.
    #[must_use]
    pub const fn is_numbered(&self) -> bool {
        self.numbered
    }

    /// Returns the next action. Call it until it returns `None`.
    pub fn poll(&mut self, now: u64) -> Option<LinkAction> {
        match self.state {
            LinkState::Waiting { until } if now >= until => {
                self.enter(LinkState::Dialing, now);
                Some(LinkAction::Dial)
            }
            LinkState::Dialing | LinkState::Greeting if now >= self.since + self.options.handshake_ms => {
                self.lost(now);
                Some(LinkAction::Close(LostReason::Handshake))
            }
            LinkState::Open => self.poll_open(now),
            _ => None,
        }
    }

    fn poll_open(&mut self, now: u64) -> Option<LinkAction> {
        if !self.sent.is_empty() && now >= self.progress + self.options.confirm_timeout_ms {
            self.lost(now);
            return Some(LinkAction::Close(LostReason::Unconfirmed));
        }
        if !self.numbered
            && self.barrier.is_none()
            && let Some((number, _)) = self.sent.back()
        {
            self.barrier = Some(*number);
            self.pinged.get_or_insert(now);
            return Some(LinkAction::Ping);
        }
        match self.pinged {
            Some(since) if now >= since + self.options.ping_ms => {
                self.lost(now);
                Some(LinkAction::Close(LostReason::Silent))
            }
            None if now >= self.heard + self.options.ping_ms => {
                self.pinged = Some(now);
                Some(LinkAction::Ping)
            }
            _ => None,
        }
    }

    /// Time of the next call to [`Link::poll`]; `u64::MAX` for never.
    #[must_use]
    pub fn next_timeout(&self) -> u64 {
        match self.state {
            LinkState::Waiting { until } => until,
            LinkState::Dialing | LinkState::Greeting => self.since + self.options.handshake_ms,
            LinkState::Open => {
                let unconfirmed = if self.sent.is_empty() {
                    u64::MAX
                } else {
                    self.progress + self.options.confirm_timeout_ms
                };
                unconfirmed.min(self.pinged.unwrap_or(self.heard) + self.options.ping_ms)
            }
        }
    }

    fn enter(&mut self, state: LinkState, now: u64) {
        self.state = state;
        self.since = now;
    }

    /// Reports that the connection is established and the owner has sent Hello.
    pub fn connected(&mut self, now: u64) {
        if self.state == LinkState::Dialing {
            self.enter(LinkState::Greeting, now);
        }
    }

    /// Reports that the upstream broker accepted this node.
    pub fn accepted(&mut self, numbered: bool, now: u64) {
        if self.state != LinkState::Greeting {
            return;
        }
        self.numbered = numbered;
        self.sent.clear();
        self.sent_bytes = 0;
        self.pinged = None;
        self.barrier = None;
        self.heard = now;
        self.progress = now;
        self.enter(LinkState::Open, now);
    }

    /// Reports that the connection ended, could not be established, or was rejected. Unconfirmed messages will be resent.
    pub fn lost(&mut self, now: u64) {
        if matches!(self.state, LinkState::Waiting { .. }) {
            return;
        }
        self.sent.clear();
        self.sent_bytes = 0;
        let doubled = self.options.reconnect_ms.saturating_mul(1 << self.failures.min(16));
        let longest = doubled.min(self.options.reconnect_max_ms).max(1);
        self.failures = self.failures.saturating_add(1);
        // A random delay between one half and all of it, so that nodes do not reconnect to the same broker at once.
        let pause = longest / 2 + self.random.u64(..=longest / 2);
        self.enter(LinkState::Waiting { until: now + pause }, now);
    }

    /// Returns the number after which the next message to send follows, if another message may be sent.
    #[must_use]
    pub fn may_send(&self) -> Option<u64> {
        let room = self.sent.len() < self.options.window && self.sent_bytes < self.options.window_bytes;
        (self.state == LinkState::Open && room)
            .then(|| self.sent.back().map_or(self.confirmed, |(number, _)| *number))
    }

    /// Reports that a message was sent.
    pub fn sent(&mut self, number: u64, bytes: u32, now: u64) {
        if self.sent.is_empty() {
            self.progress = now;
        }
        self.sent.push_back((number, bytes));
        self.sent_bytes += u64::from(bytes);
    }

    /// Reports that anything was received.
    pub fn heard(&mut self, now: u64) {
        self.heard = now;
        if self.barrier.is_none() {
            self.pinged = None;
        }
    }

    /// Handles a confirmation up to and including `through`. Returns whether it is new.
    pub fn confirm(&mut self, through: u64, now: u64) -> bool {
        // Limited to what was sent: an invalid confirmation must not lose messages.
        let through = through.min(self.sent.back().map_or(0, |(number, _)| *number));
        if self.state != LinkState::Open || through <= self.confirmed {
            return false;
        }
        while let Some((number, bytes)) = self.sent.front().copied() {
            if number > through {
                break;
            }
            self.sent.pop_front();
            self.sent_bytes -= u64::from(bytes);
        }
        self.confirmed = through;
        self.progress = now;
        self.failures = 0;
        true
    }

    /// Handles a PONG. An upstream broker that does not confirm by number has then read everything sent before the PING. Returns
    /// the newly confirmed number, if any.
    pub fn pong(&mut self, now: u64) -> Option<u64> {
        self.pinged = None;
        let through = self.barrier.take()?;
        self.confirm(through, now).then_some(through)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(numbered: bool) -> Link {
        let mut link = Link::new(LinkOptions { window: 3, ..LinkOptions::default() }, 0, 1, 0);
        assert_eq!(link.poll(0), Some(LinkAction::Dial));
        link.connected(0);
        link.accepted(numbered, 0);
        assert_eq!((link.state(), link.is_numbered()), (LinkState::Open, numbered));
        link
    }

    #[test]
    fn unconfirmed_messages_are_resent_after_reconnecting() {
        let mut link = open(true);
        for number in [2, 5, 6] {
            assert!(link.may_send().is_some());
            link.sent(number, 1, 0);
        }
        assert_eq!(link.may_send(), None, "the window is full");
        assert!(link.confirm(5, 1));
        assert_eq!(link.may_send(), Some(6));
        link.lost(2);
        assert_eq!((link.may_send(), link.confirmed()), (None, 5));
        let until = link.next_timeout();
        assert_eq!(link.poll(until), Some(LinkAction::Dial));
        link.connected(until);
        link.accepted(true, until);
        assert_eq!(link.may_send(), Some(5));
    }

    #[test]
    fn confirmation_is_limited_to_sent_messages() {
        let mut link = open(true);
        link.sent(4, 1, 0);
        assert!(link.confirm(u64::MAX, 0));
        assert_eq!(link.confirmed(), 4);
        assert!(!link.confirm(9, 0));
    }

    #[test]
    fn reconnect_delays_grow_to_their_maximum_and_differ() {
        let mut link = Link::new(LinkOptions::default(), 0, 7, 0);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..12 {
            assert_eq!(link.poll(now), Some(LinkAction::Dial));
            link.lost(now);
            pauses.push(link.next_timeout() - now);
            now = link.next_timeout();
        }
        assert!((250..=500).contains(&pauses[0]), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= 30_000), "{pauses:?}");
        assert!(pauses[8..].iter().all(|pause| *pause >= 15_000), "{pauses:?}");
        assert!(pauses[9] != pauses[10], "{pauses:?}");
    }

    #[test]
    fn half_open_connection_is_closed() {
        let mut link = open(true);
        link.sent(1, 1, 10);
        assert_eq!(link.poll(15_000), Some(LinkAction::Ping));
        link.heard(15_001);
        assert_eq!(link.next_timeout(), 30_001);
        assert_eq!(link.poll(30_010), Some(LinkAction::Close(LostReason::Unconfirmed)));
        let mut link = open(true);
        assert_eq!(link.poll(15_000), Some(LinkAction::Ping));
        assert_eq!(link.poll(29_999), None);
        assert_eq!(link.poll(30_000), Some(LinkAction::Close(LostReason::Silent)));
        let mut link = Link::new(LinkOptions::default(), 0, 1, 0);
        link.poll(0);
        assert_eq!(link.poll(10_000), Some(LinkAction::Close(LostReason::Handshake)));
    }

    #[test]
    fn broker_without_numbers_confirms_by_pong() {
        let mut link = open(false);
        link.sent(1, 1, 0);
        link.sent(2, 1, 0);
        assert_eq!(link.poll(1), Some(LinkAction::Ping));
        link.sent(3, 1, 1);
        assert_eq!(link.poll(1), None);
        link.heard(2);
        assert_eq!(link.pong(2), Some(2));
        assert_eq!(link.poll(2), Some(LinkAction::Ping), "the third message needs another ping");
        assert_eq!(link.pong(3), Some(3));
        assert_eq!((link.poll(3), link.confirmed()), (None, 3));
    }
}
