//! What every session can do, whatever its protocol, and how it can fail.
//!
//! The life of a session: `receive` is called with what arrived until it consumes nothing more; the commands
//! it yields go to the broker; the broker's events come back through `event`. Whatever `output` holds after a
//! call is to be written, in order. Once `receive`, `event` or `timeout` returned an error, or `is_closing`
//! is true, `output` is written and the connection is closed; the session is not called again.

use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Peer};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;

use crate::node::NodeTerms;

/// What a session is told when its connection opens.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Its connection.
    pub connection: ConnectionId,
    /// How many shards the broker has: answers to requests asked of every shard come in that many parts.
    pub shards: usize,
    /// How large frames may be.
    pub limits: Limits,
    /// How long the peer may take until it has said who it is. Default 10 s.
    pub handshake_timeout: Duration,
    /// A peer from which nothing came for this long is pinged. Default 60 s.
    pub ping_interval: Duration,
    /// How long after a ping something has to come. Default 10 s.
    pub pong_timeout: Duration,
    /// Whether this peer may administer.
    pub admin: bool,
    /// What is known of the peer before it has said anything.
    pub peer: Arc<Peer>,
    /// What this broker is among others; `None`: it stands alone.
    pub node: Option<Arc<NodeTerms>>,
}

/// Why a session ends its connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The bytes are not of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The frames are, but the peer may not say this now.
    #[error("{0}")]
    Misbehaved(std::borrow::Cow<'static, str>),
    /// The handshake was not finished in time.
    #[error("the handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    /// The broker said no, and the protocol has no milder word for it than the end.
    #[error("{0}")]
    Refused(std::borrow::Cow<'static, str>),
    /// Nothing came although a ping was sent.
    #[error("no life sign within {0:?} after a ping")]
    PingTimeout(Duration),
}

/// One peer's conversation.
pub trait Session: Send {
    /// Reads frames from the front of `input`, appends what they ask for to `commands` and what is to be
    /// answered at once to `output`; returns how many octets were consumed. The caller keeps the rest and
    /// offers it again, with more behind it. May stop early (`consumed < input.len()` with whole frames left)
    /// while it waits for the broker, for example for the answer to the handshake; it is offered the rest
    /// again after the next event.
    ///
    /// Octets that arrive are offered also while their frame is incomplete, for a large one now and then: they
    /// are life signs, and a peer whose upload takes longer than its ping would else be taken for dead.
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError>;

    /// As [`Session::receive`], when nothing more will come: the rest of the input is all there is. Answers may still be
    /// written until [`Session::is_closing`]. By default the conversation is over with the last whole frame.
    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.receive(input, now, commands, output)
    }

    /// Whether answers are still to come although the peer says nothing more. By default nobody waits for them.
    fn outlives_input(&self) -> bool {
        false
    }

    /// How large the buffer must be to hold the frame that begins at the front of `input`: 0 if that is not
    /// known yet. Never more than the limits. If it is no more than `input` has, the session waits for the broker
    /// and there is no point in reading on.
    fn needed(&self, input: &[u8]) -> usize;

    /// The broker says something.
    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError>;

    /// All events that there were have been given: what was put off until then is written. By default nothing is.
    fn events_given(&mut self, _output: &mut Vec<u8>) {}
    /// Takes what the session wants of the broker without its peer having said anything: after an event, or because of the time. By
    /// default nothing.
    fn take_commands(&mut self) -> Vec<Command> {
        Vec::new()
    }

    /// When `timeout` wants to be called.
    fn next_timeout(&self) -> Timestamp;

    /// Its time has come: pings, or gives up.
    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError>;

    /// The server stops: says goodbye in the protocol's form, if it has one.
    fn shutdown(&mut self, output: &mut Vec<u8>);

    /// Who the peer is. `Some` after `Event::Welcomed`; before it, the provisional client of
    /// [`provisional_client`] stands for the peer.
    fn client(&self) -> Option<&Arc<Client>>;

    /// Whether the conversation is over and the connection is to be closed once `output` is written.
    fn is_closing(&self) -> bool;
}

/// The client that stands for a peer before the broker knows it. `protocol` is what is spoken on its listener.
pub fn provisional_client(config: &SessionConfig, protocol: &'static str, now: Timestamp) -> Arc<Client> {
    Arc::new(Client {
        connection: config.connection,
        id: "".into(),
        name: None,
        kind: None,
        protocol,
        admin: config.admin,
        connected_at: now,
    })
}
