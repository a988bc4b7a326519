//! The protocols as one closed set: a session of any of them, and what is encoded without one.

use std::sync::Arc;

use mqcore_broker::client::Client;
use mqcore_broker::command::Command;
use mqcore_broker::effect::{Deliver, Event, Publication};
use mqcore_broker::time::Timestamp;

use crate::session::{Session, SessionConfig, SessionError};
use crate::tmqp::{self, TmqpSession};

/// What clients speak on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Protocol {
    /// TMQP/2.0 (Twino MQ 3.0).
    Tmqp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Tmqp];

    /// The scheme of its URLs, and its name in metrics and on the ready line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tmqp => "tmqp",
        }
    }

    /// The port that it is served on if nothing else is said.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Tmqp => 2622,
        }
    }

    /// The protocol of this scheme, ASCII case apart.
    pub fn from_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.as_str().eq_ignore_ascii_case(scheme))
    }
}

/// A session of whichever protocol its listener speaks.
///
/// Closed and by value: a call costs a jump, not a pointer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnySession {
    /// TMQP/2.0.
    Tmqp(TmqpSession),
}

impl AnySession {
    /// The session of a connection that was opened just now.
    #[must_use]
    pub fn new(protocol: Protocol, config: SessionConfig, now: Timestamp) -> Self {
        match protocol {
            Protocol::Tmqp => Self::Tmqp(TmqpSession::new(config, now)),
        }
    }

    /// What it speaks.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Tmqp(_) => Protocol::Tmqp,
        }
    }

    /// Whether its peer is another broker.
    #[must_use]
    pub fn is_node(&self) -> bool {
        match self {
            Self::Tmqp(session) => session.is_node(),
        }
    }

    /// Frames that its peer sent and that meant nothing: no hops left, unknown types, acknowledgements of nothing.
    #[must_use]
    pub const fn ignored_frames(&self) -> u64 {
        match self {
            Self::Tmqp(session) => session.ignored_frames(),
        }
    }
}

/// Appends a delivery as consumers of this protocol read it. The same octets are for all of them, but for `first`:
/// whether the reader is the message's first acquirer.
pub fn encode_delivery(protocol: Protocol, deliver: &Deliver, first: bool, output: &mut Vec<u8>) {
    match protocol {
        Protocol::Tmqp => tmqp::encode_delivery(deliver, first, output),
    }
}

/// Appends a topic's message as subscribers of this protocol read it. The same octets are for all of them.
pub fn encode_publication(protocol: Protocol, publication: &Publication, output: &mut Vec<u8>) {
    match protocol {
        Protocol::Tmqp => tmqp::encode_publication(publication, output),
    }
}

/// Octets that [`encode_delivery`] appends.
#[must_use]
pub fn delivery_size(protocol: Protocol, deliver: &Deliver) -> usize {
    match protocol {
        Protocol::Tmqp => tmqp::delivery_size(deliver),
    }
}

impl Session for AnySession {
    #[inline]
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        match self {
            Self::Tmqp(session) => session.receive(input, now, commands, output),
        }
    }

    fn needed(&self, input: &[u8]) -> usize {
        match self {
            Self::Tmqp(session) => session.needed(input),
        }
    }

    #[inline]
    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match self {
            Self::Tmqp(session) => session.event(event, now, output),
        }
    }

    fn next_timeout(&self) -> Timestamp {
        match self {
            Self::Tmqp(session) => session.next_timeout(),
        }
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match self {
            Self::Tmqp(session) => session.timeout(now, output),
        }
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        match self {
            Self::Tmqp(session) => session.shutdown(output),
        }
    }

    fn client(&self) -> Option<&Arc<Client>> {
        match self {
            Self::Tmqp(session) => session.client(),
        }
    }

    fn is_closing(&self) -> bool {
        match self {
            Self::Tmqp(session) => session.is_closing(),
        }
    }
}
