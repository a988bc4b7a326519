//! One connection to a master, from the dialling side: when to dial, what to send, when to give up.
//!
//! The owner does what [`Link::poll`] says, tells what came of it, and looks again at [`Link::next_timeout`]. It writes messages
//! while [`Link::may_send`] says so.
//!
//! ```text
//!            dial            connected            accepted
//!   Waiting ------> Dialing ----------> Greeting ----------> Open
//!      ^               |                   |                   |
//!      +---------------+-------------------+-------------------+   lost, refused, or silent for too long
//! ```

use std::collections::VecDeque;

/// Times of a link, in milliseconds, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// The shortest pause before dialling again; it doubles up to the longest. Default 500 (the document's reconnect wait).
    pub reconnect_ms: u64,
    /// The longest pause. Default 30,000.
    pub reconnect_max_ms: u64,
    /// How long dialling and the handshake may take, each. Default 10,000.
    pub handshake_ms: u64,
    /// How long a master may go without confirming anything of what it was sent, before the connection is given up: it may be half
    /// open, and a new one finds out. Default 30,000.
    pub patience_ms: u64,
    /// A master from which nothing came for this long is pinged, and given up if as long again nothing comes.
    /// Default 15,000.
    pub ping_ms: u64,
    /// Messages that may be unconfirmed. Default 16,384.
    pub window: usize,
    /// Bytes that may be unconfirmed. One message may exceed it. Default 16 MiB.
    pub window_bytes: u64,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            reconnect_ms: 500,
            reconnect_max_ms: 30_000,
            handshake_ms: 10_000,
            patience_ms: 30_000,
            ping_ms: 15_000,
            window: 16_384,
            window_bytes: 16 << 20,
        }
    }
}

/// How far a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// No connection; the next attempt is at this time.
    Waiting {
        /// Milliseconds.
        until: u64,
    },
    /// A connection is being made.
    Dialing,
    /// It is there, and Hello was said.
    Greeting,
    /// Messages go.
    Open,
}

/// What the owner has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make a connection; then tell [`Link::connected`] or [`Link::lost`].
    Dial,
    /// Close the connection, or stop trying to make it. The link knows already that it is gone.
    Close(LostReason),
    /// Write a PING.
    Ping,
}

/// Why a connection was given up from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// Dialling or the handshake took too long.
    Handshake,
    /// Nothing was confirmed for too long.
    Unconfirmed,
    /// Nothing came although a ping was sent.
    Silent,
}

/// One link. Time is Unix milliseconds, and never runs backwards.
#[derive(Debug)]
pub struct Link {
    options: LinkOptions,
    state: LinkState,
    /// When this state began.
    since: u64,
    /// Attempts since the last one that got as far as `Open` and confirmed something.
    failures: u32,
    /// Whether the master confirms numbers. One that does not is asked by PING whether it has read so far.
    numbered: bool,
    /// Sent and not confirmed on this connection: number and bytes.
    sent: VecDeque<(u64, u32)>,
    sent_bytes: u64,
    /// Confirmed so far, over all connections.
    confirmed: u64,
    /// When something was confirmed last, or the first of what is unconfirmed was sent.
    progress: u64,
    heard: u64,
    pinged: Option<u64>,
    /// What a PONG will confirm, where the master knows no numbers.
    barrier: Option<u64>,
    chance: u64,
}

impl Link {
    /// A link that dials at once. `confirmed`: up to where the master confirmed before this process. `seed` makes pauses differ from
    /// those of other nodes.
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
            chance: seed,
        }
    }

    /// How far it is.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// Up to where the master confirmed.
    #[must_use]
    pub const fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the master knows numbers; meant while the link is open.
    #[must_use]
    pub const fn is_numbered(&self) -> bool {
        self.numbered
    }

    /// What is to be done now. To be called until it answers `None`.
    pub fn poll(&mut self, now: u64) -> Option<Action> {
        match self.state {
            LinkState::Waiting { until } if now >= until => {
                self.enter(LinkState::Dialing, now);
                Some(Action::Dial)
            }
            LinkState::Dialing | LinkState::Greeting if now >= self.since + self.options.handshake_ms => {
                self.lost(now);
                Some(Action::Close(LostReason::Handshake))
            }
            LinkState::Open => self.poll_open(now),
            _ => None,
        }
    }

    fn poll_open(&mut self, now: u64) -> Option<Action> {
        if !self.sent.is_empty() && now >= self.progress + self.options.patience_ms {
            self.lost(now);
            return Some(Action::Close(LostReason::Unconfirmed));
        }
        if !self.numbered
            && self.barrier.is_none()
            && let Some((number, _)) = self.sent.back()
        {
            self.barrier = Some(*number);
            self.pinged.get_or_insert(now);
            return Some(Action::Ping);
        }
        match self.pinged {
            Some(since) if now >= since + self.options.ping_ms => {
                self.lost(now);
                Some(Action::Close(LostReason::Silent))
            }
            None if now >= self.heard + self.options.ping_ms => {
                self.pinged = Some(now);
                Some(Action::Ping)
            }
            _ => None,
        }
    }

    /// When [`Link::poll`] wants to be called; `u64::MAX` for never.
    #[must_use]
    pub fn next_timeout(&self) -> u64 {
        match self.state {
            LinkState::Waiting { until } => until,
            LinkState::Dialing | LinkState::Greeting => self.since + self.options.handshake_ms,
            LinkState::Open => {
                let unconfirmed =
                    if self.sent.is_empty() { u64::MAX } else { self.progress + self.options.patience_ms };
                unconfirmed.min(self.pinged.unwrap_or(self.heard) + self.options.ping_ms)
            }
        }
    }

    fn enter(&mut self, state: LinkState, now: u64) {
        self.state = state;
        self.since = now;
    }

    /// The connection is there: the owner says Hello.
    pub fn connected(&mut self, now: u64) {
        if self.state == LinkState::Dialing {
            self.enter(LinkState::Greeting, now);
        }
    }

    /// The master took this node in.
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

    /// The connection ended, could not be made, or the master refused. What was sent and not confirmed will be sent again.
    pub fn lost(&mut self, now: u64) {
        if matches!(self.state, LinkState::Waiting { .. }) {
            return;
        }
        self.sent.clear();
        self.sent_bytes = 0;
        let doubled = self.options.reconnect_ms.saturating_mul(1 << self.failures.min(16));
        let longest = doubled.min(self.options.reconnect_max_ms).max(1);
        self.failures = self.failures.saturating_add(1);
        // Between half of it and all: nodes that lost the same master do not come back as one.
        let pause = longest / 2 + self.draw() % (longest / 2 + 1);
        self.enter(LinkState::Waiting { until: now + pause }, now);
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The number behind which the next message is to be found, if one may be sent.
    #[must_use]
    pub fn may_send(&self) -> Option<u64> {
        let room = self.sent.len() < self.options.window && self.sent_bytes < self.options.window_bytes;
        (self.state == LinkState::Open && room)
            .then(|| self.sent.back().map_or(self.confirmed, |(number, _)| *number))
    }

    /// A message was written.
    pub fn sent(&mut self, number: u64, bytes: u32, now: u64) {
        if self.sent.is_empty() {
            self.progress = now;
        }
        self.sent.push_back((number, bytes));
        self.sent_bytes += u64::from(bytes);
    }

    /// Something came.
    pub fn heard(&mut self, now: u64) {
        self.heard = now;
        if self.barrier.is_none() {
            self.pinged = None;
        }
    }

    /// The master confirmed up to and including `through`. Answers whether that was news.
    pub fn confirm(&mut self, through: u64, now: u64) -> bool {
        // Never beyond what was sent: a number out of thin air must not lose messages.
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

    /// A PONG came. A master that knows no numbers has by then read what was sent before the PING: up to this number, if that is news.
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
        assert_eq!(link.poll(0), Some(Action::Dial));
        link.connected(0);
        link.accepted(numbered, 0);
        assert_eq!(link.state(), LinkState::Open);
        link
    }

    #[test]
    fn what_is_not_confirmed_is_sent_again_from_its_first_on() {
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
        assert_eq!(link.poll(until), Some(Action::Dial));
        link.connected(until);
        link.accepted(true, until);
        assert_eq!(link.may_send(), Some(5));
    }

    #[test]
    fn a_master_cannot_confirm_what_it_never_got() {
        let mut link = open(true);
        link.sent(4, 1, 0);
        assert!(link.confirm(u64::MAX, 0));
        assert_eq!(link.confirmed(), 4);
        assert!(!link.confirm(9, 0));
    }

    #[test]
    fn pauses_grow_to_their_longest_and_differ() {
        let mut link = Link::new(LinkOptions::default(), 0, 7, 0);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..12 {
            assert_eq!(link.poll(now), Some(Action::Dial));
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
    fn a_half_open_connection_is_given_up() {
        let mut link = open(true);
        link.sent(1, 1, 10);
        assert_eq!(link.poll(15_000), Some(Action::Ping));
        link.heard(15_001);
        assert_eq!(link.next_timeout(), 30_001);
        assert_eq!(link.poll(30_010), Some(Action::Close(LostReason::Unconfirmed)));
        let mut link = open(true);
        assert_eq!(link.poll(15_000), Some(Action::Ping));
        assert_eq!(link.poll(29_999), None);
        assert_eq!(link.poll(30_000), Some(Action::Close(LostReason::Silent)));
        let mut link = Link::new(LinkOptions::default(), 0, 1, 0);
        link.poll(0);
        assert_eq!(link.poll(10_000), Some(Action::Close(LostReason::Handshake)));
    }

    #[test]
    fn a_master_without_numbers_is_asked_whether_it_has_read_so_far() {
        let mut link = open(false);
        link.sent(1, 1, 0);
        link.sent(2, 1, 0);
        assert_eq!(link.poll(1), Some(Action::Ping));
        link.sent(3, 1, 1);
        assert_eq!(link.poll(1), None);
        link.heard(2);
        assert_eq!(link.pong(2), Some(2));
        assert_eq!(link.poll(2), Some(Action::Ping), "the third is asked about next");
        assert_eq!(link.pong(3), Some(3));
        assert_eq!((link.poll(3), link.confirmed()), (None, 3));
    }
}
