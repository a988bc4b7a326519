//! The parts of a connection's state that change together.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Sleep;

use crate::authority::gate::Gate;
use crate::authority::keys::{Asking, LimitKeys};
use crate::net::input_budget::InputCharge;

/// The permissions of the peer.
pub(super) struct Admission {
    /// Every command passes through it.
    pub(super) gate: Gate,
    /// Decides about requests for limits, which the session answers itself; `None`: all are allowed.
    pub(super) keys: Option<Arc<LimitKeys>>,
    /// The questions about limits that an authorizer has not answered yet.
    pub(super) asking: Option<Asking>,
    /// The session got an event that does not come from a shard, so it may continue where it waited.
    pub(super) answered: bool,
}

impl Admission {
    pub(super) fn new(gate: Gate) -> Self {
        Self { gate, keys: None, asking: None, answered: false }
    }
}

/// Input that was read and not consumed, and whether more will follow.
#[derive(Default)]
pub(super) struct Input {
    /// The rest of the input: less than a frame, or frames that wait for an event.
    pub(super) unread: Vec<u8>,
    /// The share of `unread`, and of what the session keeps of it, in the limits of unfinished input.
    pub(super) charge: Option<InputCharge>,
    /// Number of commands of the last read, as an estimate for the next one.
    pub(super) usual_commands: usize,
    /// The session has complete frames, and consumes no more of them before the next event.
    pub(super) stalled: bool,
    /// Since the session last left input, something happened for which it may have waited.
    pub(super) woken: bool,
    pub(super) state: InputState,
    /// With a broken output: how long the connection waits for the next input or for its end.
    pub(super) patience: Option<Pin<Box<Sleep>>>,
}

impl Input {
    /// Drops the input that was not consumed.
    pub(super) fn clear(&mut self) {
        self.unread = Vec::new();
        self.charge = None;
    }
}

/// Whether more input is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InputState {
    #[default]
    Open,
    /// The peer has closed its side; answers are still written.
    Closed,
    /// The server is about to stop, and pauses reads.
    Paused,
}

/// The stage of the connection's life.
pub(super) enum ConnectionStage {
    /// It reads and writes.
    Open,
    /// The conversation is over. The rest of the output is written; input is read and discarded.
    Leaving(Leave),
    /// It neither reads nor writes; commands that were read are still sent to their shards.
    Dead,
}

/// The end of a conversation.
pub(super) struct Leave {
    pub(super) until: Pin<Box<Sleep>>,
    /// Our side of the stream is shut down.
    pub(super) shut: bool,
    /// The peer's side is closed.
    pub(super) eof: bool,
    /// The server stops.
    pub(super) at_stop: bool,
}
