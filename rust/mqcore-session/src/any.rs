//! The protocols as one closed set: a session of any of them, and what is encoded without one.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::{Deliver, Event, Publication};
use mqcore_broker::model::time::Timestamp;

use crate::complaint::Complaint;
use crate::eventmq::{self, EventmqSession};
use crate::micromessage::MicroMessageSession;
use crate::mqks::{self, MqksSession};
use crate::session::{Session, SessionConfig, SessionError};
use crate::throttr::ThrottrSession;
use crate::tmqp::{self, TmqpSession};

/// What clients speak on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Protocol {
    /// TMQP/2.0 (Twino MQ 3.0).
    Tmqp,
    /// Throttr 7.1 or 7.3.
    Throttr,
    /// MQKS.
    Mqks,
    /// MicroMessage2.
    MicroMessage,
    /// eMQP/1.0 (EventMQ) over ZMTP.
    Eventmq,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Tmqp, Self::Throttr, Self::Mqks, Self::MicroMessage, Self::Eventmq];

    /// The scheme of its URLs, and its name in metrics and on the ready line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tmqp => "tmqp",
            Self::Throttr => "throttr",
            Self::Mqks => "mqks",
            Self::MicroMessage => "mm2",
            Self::Eventmq => eventmq::NAME,
        }
    }

    /// The port that it is served on if nothing else is said.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Tmqp => 2622,
            Self::Throttr => 9000,
            Self::Mqks => 25_000,
            Self::MicroMessage => 2623,
            Self::Eventmq => 47_290,
        }
    }

    /// Whether its sessions bound by themselves what they can be told: acknowledgements by the peer's window, messages of topics
    /// because a peer that does not keep up misses them. Such events are taken however many there are; peers of other
    /// protocols are closed for those that they cause and do not take.
    #[inline]
    pub const fn bounds_events(self) -> bool {
        matches!(self, Self::MicroMessage)
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
    /// Throttr.
    Throttr(ThrottrSession),
    /// MQKS.
    Mqks(MqksSession),
    /// MicroMessage2.
    MicroMessage(Box<MicroMessageSession>),
    /// EventMQ.
    Eventmq(Box<EventmqSession>),
}

impl AnySession {
    /// The session of a connection that was opened just now. A Throttr session gets a store of its own this way; one that
    /// shares a server's is made by [`ThrottrSession::new`]. A MicroMessage2 session gets the default terms; others are given
    /// to [`MicroMessageSession::new`]. One of EventMQ is alone with its workers; those of a server share what is given to
    /// [`EventmqSession::new`].
    #[must_use]
    pub fn new(protocol: Protocol, config: SessionConfig, now: Timestamp) -> Self {
        match protocol {
            Protocol::Tmqp => Self::Tmqp(TmqpSession::new(config, now)),
            Protocol::Throttr => Self::Throttr(ThrottrSession::alone(&config, now)),
            Protocol::Mqks => Self::Mqks(MqksSession::new(config, now)),
            Protocol::MicroMessage => {
                let session = MicroMessageSession::new(config, Arc::default(), Arc::default(), now);
                Self::MicroMessage(Box::new(session))
            }
            Protocol::Eventmq => Self::Eventmq(Box::new(EventmqSession::alone(config, now))),
        }
    }

    /// What it speaks.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Tmqp(_) => Protocol::Tmqp,
            Self::Throttr(_) => Protocol::Throttr,
            Self::Mqks(_) => Protocol::Mqks,
            Self::MicroMessage(_) => Protocol::MicroMessage,
            Self::Eventmq(_) => Protocol::Eventmq,
        }
    }

    /// Whether its peer is another broker.
    #[must_use]
    pub fn is_node(&self) -> bool {
        match self {
            Self::Tmqp(session) => session.is_node(),
            Self::Throttr(_) | Self::Mqks(_) | Self::MicroMessage(_) | Self::Eventmq(_) => false,
        }
    }

    /// Frames that its peer sent and that meant nothing: no hops left, unknown types, acknowledgements of nothing.
    #[must_use]
    pub const fn ignored_frames(&self) -> u64 {
        match self {
            Self::Tmqp(session) => session.ignored_frames(),
            Self::Throttr(_) | Self::MicroMessage(_) => 0,
            Self::Mqks(session) => session.ignored_frames(),
            Self::Eventmq(session) => session.ignored_frames(),
        }
    }
}

impl AnySession {
    /// What could not be done since the last look, where the peer was told only a number.
    pub fn complaints(&mut self) -> Vec<Complaint> {
        match self {
            Self::Tmqp(_) | Self::Throttr(_) | Self::MicroMessage(_) => Vec::new(),
            Self::Mqks(session) => session.complaints(),
            Self::Eventmq(session) => session.complaints(),
        }
    }

    /// Octets of messages that wait in the session until the peer has acknowledged others.
    #[inline]
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        match self {
            Self::MicroMessage(session) => session.waiting_bytes(),
            Self::Tmqp(_) | Self::Throttr(_) | Self::Mqks(_) | Self::Eventmq(_) => 0,
        }
    }
}

/// Appends a delivery as consumers of this protocol read it. The same octets are for all of them, but for `first`:
/// whether the reader is the message's first acquirer.
pub fn encode_delivery(protocol: Protocol, deliver: &Deliver, first: bool, output: &mut Vec<u8>) {
    match protocol {
        Protocol::Tmqp => tmqp::encode_delivery(deliver, first, output),
        // Throttr has no queues, and its sessions are told of each message of a channel; those of MicroMessage2 of both.
        Protocol::Throttr | Protocol::MicroMessage => {}
        Protocol::Mqks => mqks::encode_delivery(deliver, first, output),
        Protocol::Eventmq => eventmq::encode_delivery(deliver, first, output),
    }
}

/// Appends a topic's message as subscribers of this protocol read it. The same octets are for all of them.
pub fn encode_publication(protocol: Protocol, publication: &Publication, output: &mut Vec<u8>) {
    match protocol {
        Protocol::Tmqp => tmqp::encode_publication(publication, output),
        Protocol::Throttr | Protocol::MicroMessage => {}
        Protocol::Mqks => mqks::encode_publication(publication, output),
        Protocol::Eventmq => eventmq::encode_publication(publication, output),
    }
}

/// Octets that [`encode_delivery`] appends.
#[must_use]
pub fn delivery_size(protocol: Protocol, deliver: &Deliver) -> usize {
    match protocol {
        Protocol::Tmqp => tmqp::delivery_size(deliver),
        Protocol::Throttr | Protocol::MicroMessage | Protocol::Eventmq => 0,
        Protocol::Mqks => mqks::delivery_size(deliver),
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
            Self::Throttr(session) => session.receive(input, now, commands, output),
            Self::Mqks(session) => session.receive(input, now, commands, output),
            Self::MicroMessage(session) => session.receive(input, now, commands, output),
            Self::Eventmq(session) => session.receive(input, now, commands, output),
        }
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        match self {
            Self::Tmqp(session) => session.receive_last(input, now, commands, output),
            Self::Throttr(session) => session.receive_last(input, now, commands, output),
            Self::Mqks(session) => session.receive_last(input, now, commands, output),
            Self::MicroMessage(session) => session.receive_last(input, now, commands, output),
            Self::Eventmq(session) => session.receive_last(input, now, commands, output),
        }
    }

    fn outlives_input(&self) -> bool {
        match self {
            Self::Tmqp(session) => session.outlives_input(),
            Self::Throttr(session) => session.outlives_input(),
            Self::Mqks(session) => session.outlives_input(),
            Self::MicroMessage(session) => session.outlives_input(),
            Self::Eventmq(session) => session.outlives_input(),
        }
    }

    fn needed(&self, input: &[u8]) -> usize {
        match self {
            Self::Tmqp(session) => session.needed(input),
            Self::Throttr(session) => session.needed(input),
            Self::Mqks(session) => session.needed(input),
            Self::MicroMessage(session) => session.needed(input),
            Self::Eventmq(session) => session.needed(input),
        }
    }

    #[inline]
    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match self {
            Self::Tmqp(session) => session.event(event, now, output),
            Self::Throttr(session) => session.event(event, now, output),
            Self::Mqks(session) => session.event(event, now, output),
            Self::MicroMessage(session) => session.event(event, now, output),
            Self::Eventmq(session) => session.event(event, now, output),
        }
    }

    #[inline]
    fn events_given(&mut self, output: &mut Vec<u8>) {
        if let Self::MicroMessage(session) = self {
            session.events_given(output);
        }
    }

    #[inline]
    fn take_commands(&mut self) -> Vec<Command> {
        match self {
            Self::Tmqp(session) => session.take_commands(),
            Self::Throttr(session) => session.take_commands(),
            Self::Mqks(session) => session.take_commands(),
            Self::MicroMessage(session) => session.take_commands(),
            Self::Eventmq(session) => session.take_commands(),
        }
    }

    fn next_timeout(&self) -> Timestamp {
        match self {
            Self::Tmqp(session) => session.next_timeout(),
            Self::Throttr(session) => session.next_timeout(),
            Self::Mqks(session) => session.next_timeout(),
            Self::MicroMessage(session) => session.next_timeout(),
            Self::Eventmq(session) => session.next_timeout(),
        }
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        match self {
            Self::Tmqp(session) => session.timeout(now, output),
            Self::Throttr(session) => session.timeout(now, output),
            Self::Mqks(session) => session.timeout(now, output),
            Self::MicroMessage(session) => session.timeout(now, output),
            Self::Eventmq(session) => session.timeout(now, output),
        }
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        match self {
            Self::Tmqp(session) => session.shutdown(output),
            Self::Throttr(session) => session.shutdown(output),
            Self::Mqks(session) => session.shutdown(output),
            Self::MicroMessage(session) => session.shutdown(output),
            Self::Eventmq(session) => session.shutdown(output),
        }
    }

    fn client(&self) -> Option<&Arc<Client>> {
        match self {
            Self::Tmqp(session) => session.client(),
            Self::Throttr(session) => session.client(),
            Self::Mqks(session) => session.client(),
            Self::MicroMessage(session) => session.client(),
            Self::Eventmq(session) => session.client(),
        }
    }

    fn is_closing(&self) -> bool {
        match self {
            Self::Tmqp(session) => session.is_closing(),
            Self::Throttr(session) => session.is_closing(),
            Self::Mqks(session) => session.is_closing(),
            Self::MicroMessage(session) => session.is_closing(),
            Self::Eventmq(session) => session.is_closing(),
        }
    }
}
