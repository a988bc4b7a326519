//! The end of a connection: what is still written, read and sent to shards.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use mqcore_session::session::Session;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::Connection;
use super::reading::read_and_discard;
use super::state::{ConnectionStage, InputState, Leave};

/// Time for the peer to read the rest of the output and to close its side. Without it the system would discard what the
/// peer has not read yet, because of input that we did not read.
const LINGER: Duration = Duration::from_secs(1);

/// The same when the server stops and everything is written.
const LINGER_AT_STOP: Duration = Duration::from_millis(250);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    pub(super) fn begin_leaving(&mut self, eof: bool, at_stop: bool) {
        if matches!(self.stage, ConnectionStage::Open) {
            // At a stop the server itself knows how long to wait.
            let patience = if at_stop { Duration::from_secs(3600) } else { LINGER };
            let until = Box::pin(tokio::time::sleep(patience));
            self.stage = ConnectionStage::Leaving(Leave { until, shut: false, eof, at_stop });
            self.input.clear();
            self.admission.gate.peer_gone();
        }
    }

    /// The stream has failed to accept output. Often the peer has closed, and the system still holds input that it had
    /// sent before: that counts, so it is read to its end as usual. The shards deliver nothing more meanwhile.
    pub(super) fn lose_output(&mut self) {
        let reads_on = matches!(self.stage, ConnectionStage::Open) && self.input.state != InputState::Paused;
        if !reads_on {
            return self.die();
        }
        self.output.break_off();
        self.commands.stop_deliveries(self.outbox.connection, &self.hub);
    }

    /// Ends a connection with a broken output that waits in vain: for a peer that never closes its side, or, after the
    /// end of its input, for answers that its peer cannot get. Its deliveries return to their queues only at the end.
    pub(super) fn give_up(&mut self, context: &mut Context<'_>) -> bool {
        if !self.output.is_broken() || !matches!(self.stage, ConnectionStage::Open) {
            return false;
        }
        if self.has_commands() || self.input.stalled || self.session.has_more() {
            self.input.patience = None;
            return false;
        }
        let until = self.input.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let is_over = until.as_mut().poll(context).is_ready();
        if is_over {
            self.die();
        }
        is_over
    }

    pub(super) fn die(&mut self) {
        self.admission.gate.peer_gone();
        self.output.clear();
        self.input.clear();
        self.stage = ConnectionStage::Dead;
    }

    /// Notifies the shards that the peer has disconnected, once they have all of its commands. This does not wait for
    /// the socket to close: a client that says goodbye and keeps its socket open would still receive messages that it
    /// does not read. At a stop the remaining output is written first, so the shards are notified at the end.
    pub(super) fn leave_shards(&mut self) -> bool {
        let gone = match &self.stage {
            ConnectionStage::Open => false,
            ConnectionStage::Leaving(leave) => !leave.at_stop,
            ConnectionStage::Dead => true,
        };
        if !gone || !self.commands.is_known_to_shards() || self.has_commands() {
            return false;
        }
        self.notify_shards_closed();
        true
    }

    /// Continues to close the connection. True when it is closed.
    pub(super) fn leave(&mut self, context: &mut Context<'_>) -> bool {
        let has_commands = self.has_commands();
        let leave = match &mut self.stage {
            ConnectionStage::Open => return false,
            ConnectionStage::Dead => return !has_commands,
            ConnectionStage::Leaving(leave) => leave,
        };
        if leave.until.as_mut().poll(context).is_ready() {
            self.die();
            return !has_commands;
        }
        while !leave.eof {
            match read_and_discard(&mut self.stream, context) {
                Poll::Pending => break,
                Poll::Ready(eof) => leave.eof = eof,
            }
        }
        if !self.output.is_flushed() || has_commands {
            return false;
        }
        if !leave.shut && Pin::new(&mut self.stream).poll_shutdown(context).is_ready() {
            leave.shut = true;
            if leave.at_stop {
                leave.until.as_mut().reset(Instant::now() + LINGER_AT_STOP);
                // Registers the new deadline, which has not passed yet.
                return leave.eof || leave.until.as_mut().poll(context).is_ready();
            }
        }
        leave.shut && leave.eof
    }
}

impl<S> Connection<S> {
    /// The outbox is closed first: a shard that filled it after the notification would wait for room forever.
    pub(super) fn notify_shards_closed(&mut self) {
        self.outbox.end();
        self.hub.moved();
        let mut farewells = Vec::new();
        self.session.leave(&mut farewells);
        self.commands.close((&self.outbox, &self.client), farewells, &self.hub);
    }
}
