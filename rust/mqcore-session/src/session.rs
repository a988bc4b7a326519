//! The interface between the server and one conversation, whatever its protocol, and how a conversation fails.
//!
//! The life of a session: the server calls `receive` with the bytes that arrived until the session consumes no more. The
//! commands that it returns go to the broker; the broker's events come back through `event`. After each call the server
//! writes what is in `output`, in order. Once `receive`, `event` or `timeout` returned an error, or `is_closing` returns
//! true, the server writes the rest of `output`, closes the connection and does not call the session again.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Peer};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;

use crate::extension::{ExtensionFailure, VendorFrame};
use crate::node::NodeTerms;
use crate::permission::Permissions;
use crate::request_error::RequestError;

/// Configuration of a session when its connection opens.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Its connection.
    pub connection: ConnectionId,
    /// Number of shards of the broker: a request to every shard has this many answers.
    pub shards: usize,
    /// Size limits of frames.
    pub limits: Limits,
    /// Maximum bytes of the peer's input before the broker accepts it. Protocols with a smaller limit for their handshake
    /// keep it. Default 64 KiB if the peer has to log in, else `frame_bytes_max`.
    pub login_bytes_max: u32,
    /// Maximum bytes of a list that is answered as a whole or in one page, for protocols that have pages. Default 8 MiB.
    pub answer_bytes_max: u32,
    /// Time for the handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time without input after which the peer is pinged. Default 60 s.
    pub ping_interval: Duration,
    /// Time after a ping in which input has to arrive. Default 10 s.
    pub pong_timeout: Duration,
    /// Whether this peer may administer the broker.
    pub admin: bool,
    /// Facts that the listener knows about the peer before it has sent anything.
    pub peer: Arc<Peer>,
    /// The configuration of this broker as a node; `None`: it has no upstream and no downstream brokers.
    pub node: Option<Arc<NodeTerms>>,
}

/// Why a session ends its connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The bytes are not of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer's login exceeds a limit. Sessions whose decoder reports that return [`SessionError::Wire`] instead.
    #[error("{0}")]
    LoginTooLarge(Cow<'static, str>),
    /// The frames are valid, but not allowed in this state of the conversation.
    #[error("{0}")]
    Misbehaved(Cow<'static, str>),
    /// The peer did not finish the handshake in time.
    #[error("the handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    /// The broker refused the peer, and the protocol can express that only by closing the connection.
    #[error("{0}")]
    Refused(Cow<'static, str>),
    /// The peer sent nothing after a ping.
    #[error("no heartbeat within {0:?} after a ping")]
    PingTimeout(Duration),
}

impl SessionError {
    /// The peer sent something that is not allowed in this state of the conversation.
    pub(crate) fn misbehaved(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Misbehaved(what.into())
    }
}

/// One conversation with a peer.
pub trait Session: Send {
    /// Starts the conversation, before the peer has sent anything. Sessions of protocols without a handshake can ask for
    /// something here. `ask_admission`: the broker decides whether the peer may connect, so a session without a handshake
    /// has to send [`Command::Introduce`] itself and must not read before it is welcomed.
    fn open(&mut self, _ask_admission: bool, _commands: &mut Vec<Command>) {}

    /// Sets the time in nanoseconds; called before each call that may need it. Only sessions that need it call `now`.
    #[inline]
    fn set_time(&mut self, _now: impl FnOnce() -> Nanos)
    where
        Self: Sized,
    {
    }

    /// Reads frames from the front of `input`, appends the commands for the broker to `commands` and immediate answers to
    /// `output`; returns the number of bytes consumed. The caller keeps the rest and offers it again with more behind it.
    /// A session may stop early (`consumed < input.len()` with whole frames left) while it waits for the broker, for
    /// example for the answer to the handshake; the rest is offered again after the next event.
    ///
    /// The server also offers incomplete frames, of a large frame now and then: any input counts as a heartbeat. Otherwise
    /// a peer whose upload takes longer than the ping timeout would be disconnected.
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError>;

    /// Like [`Session::receive`], but `input` is the last input: the peer has closed its side. Answers may still be
    /// written until [`Session::is_closing`]. By default the conversation ends with the last whole frame.
    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        self.receive(input, now, commands, output)
    }

    /// Whether answers are still to be written after the peer has closed its side. Default no.
    fn outlives_input(&self) -> bool {
        false
    }

    /// The size of the frame that begins at the front of `input`, in bytes: 0 if it is not known yet. Never more than the
    /// limits. A size of at most `input.len()` means that the session waits for the broker and more input does not help.
    fn needed(&self, input: &[u8]) -> usize;

    /// Handles an event from the broker.
    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError>;

    /// Called after the last event of a batch: writes what a session collects over several events. By default nothing.
    fn events_done(&mut self, _output: &mut Vec<u8>) {}

    /// Whether the session has more to write than fits at once; [`Session::pump`] continues. Default no.
    #[inline]
    fn has_more(&self) -> bool {
        false
    }

    /// Continues to write. Called when most of the earlier output has been sent and [`Session::has_more`] is true.
    fn pump(&mut self, _output: &mut Vec<u8>) {}

    /// Takes commands that do not come from input: commands after an event or because of a timeout. By default none.
    fn take_commands(&mut self) -> Vec<Command> {
        Vec::new()
    }

    /// Takes the requests that failed since the last call, where the peer received only an error number. By default none.
    fn take_request_errors(&mut self) -> Vec<RequestError> {
        Vec::new()
    }

    /// Takes the frames of vendor extensions that arrived since the last call, in order. The caller answers each with
    /// [`Session::extension_answered`]. By default none.
    fn take_vendor_frames(&mut self) -> Vec<VendorFrame> {
        Vec::new()
    }

    /// Handles the answer to a vendor frame: payloads of frames to send, or why the conversation ends.
    ///
    /// # Errors
    /// [`SessionError`] if the answer is a failure.
    fn extension_answered(
        &mut self,
        _id: u8,
        _answer: Result<Vec<Vec<u8>>, ExtensionFailure>,
        _output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    /// Whether the session answers requests about limits itself and so needs [`Session::restrict`]. Default no.
    fn answers_limits(&self) -> bool {
        false
    }

    /// From now on the session answers only requests that `permissions` grants. Ignored where
    /// [`Session::answers_limits`] is false.
    fn restrict(&mut self, _permissions: Arc<dyn Permissions>) {}

    /// Bytes of messages that wait in the session until the peer acknowledges earlier ones. Default 0.
    #[inline]
    fn waiting_bytes(&self) -> usize {
        0
    }

    /// Memory of input that the session has consumed and can use only with more input, in bytes: parts of a message.
    /// Default 0.
    #[inline]
    fn unfinished_bytes(&self) -> usize {
        0
    }

    /// Whether the peer is another broker. Default no.
    fn is_node(&self) -> bool {
        false
    }

    /// Number of frames that were valid but had no effect: no hops left, unknown types, acknowledgements of nothing.
    /// Default 0.
    fn ignored_frames(&self) -> u64 {
        0
    }

    /// Whether an administrator has asked to stop the broker. Default no.
    #[inline]
    fn stops_broker(&self) -> bool {
        false
    }

    /// When [`Session::timeout`] has to be called.
    fn next_timeout(&self) -> Timestamp;

    /// Handles a timeout: sends a ping, or gives up.
    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError>;

    /// Called when the server is about to stop, before [`Session::shutdown`]: gives the peer no new work, in the protocol's
    /// form. True if the peer's input is still read, because its results are accepted until [`Session::shutdown`].
    /// Default false.
    fn drain(&mut self, _output: &mut Vec<u8>) -> bool {
        false
    }

    /// Whether the server waits for results of this peer before it stops. Used after [`Session::drain`]. Default false.
    fn has_unfinished_work(&self) -> bool {
        false
    }

    /// Ends the conversation because the server closes the connection, in the protocol's form if it has one.
    fn shutdown(&mut self, output: &mut Vec<u8>);

    /// Called when the connection is closed: leaves the state that sessions share, and appends to `commands` what the broker
    /// still has to tell others. May be called twice.
    fn leave(&mut self, _commands: &mut Vec<Command>) {}

    /// The client of this connection. `Some` after `Event::Welcomed`; until then [`provisional_client`] replaces it.
    fn client(&self) -> Option<&Arc<Client>>;

    /// Whether the conversation is over and the connection has to be closed once `output` is written.
    fn is_closing(&self) -> bool;
}

/// The client that represents a peer before the broker has accepted it. `protocol` is the protocol of its listener.
pub fn provisional_client(config: &SessionConfig, protocol: &'static str, now: Timestamp) -> Arc<Client> {
    Arc::new(Client {
        connection: config.connection,
        id: "".into(),
        authenticated: false,
        name: None,
        kind: None,
        protocol,
        admin: config.admin,
        user: None,
        connected_at: now,
        data: None,
    })
}
