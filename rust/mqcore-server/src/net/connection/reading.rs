//! Reading: from the stream to the session.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BufMut;
use mqcore_broker::model::time::Timestamp;
use mqcore_session::protocol::Overload;
use mqcore_session::session::Session;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::state::{ConnectionStage, Input, InputState};
use super::{ANSWERED_BYTES_MAX, Connection};
use crate::net::input_budget::InputBudget;

/// Maximum bytes per read.
const SCRATCH_BYTES: usize = 64 * 1024;

/// An unfinished frame of this size is read into its own buffer, which at most doubles with each read: memory is reserved
/// for what a peer has sent, not for what it has announced.
const LARGE_BYTES: usize = SCRATCH_BYTES / 2;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    /// Whether reading waits until the peer has read more of the answers.
    pub(super) fn holds_back(&self) -> bool {
        let pauses = self.outbox.protocol.overload() == Overload::PauseReads;
        pauses && (self.session.has_more() || self.output.len() >= ANSWERED_BYTES_MAX)
    }

    pub(super) fn read(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        if self.input.stalled
            || self.input.state != InputState::Open
            || self.has_commands()
            || self.holds_back()
        {
            return false;
        }
        let result = if self.input.unread.len() < LARGE_BYTES {
            self.read_scratch(context, now)
        } else {
            self.read_large(context, now)
        };
        match result {
            Poll::Pending => false,
            Poll::Ready(Ok(0)) => {
                self.end_of_input(now);
                true
            }
            Poll::Ready(Ok(read)) => {
                self.input.patience = None;
                self.counters().bytes_in.add(read as u64);
                true
            }
            // Some systems report here why the output broke, once all input is read.
            Poll::Ready(Err(_)) if self.output.is_broken() => {
                self.end_of_input(now);
                true
            }
            Poll::Ready(Err(_)) => {
                self.die();
                true
            }
        }
    }

    /// The peer has closed its side. Sessions may still handle and answer the rest of the input.
    pub(super) fn end_of_input(&mut self, now: Timestamp) {
        self.input.state = InputState::Closed;
        self.input.patience = None;
        let rest = std::mem::take(&mut self.input.unread);
        self.receive(&rest, now);
        if !self.session.outlives_input() {
            self.begin_leaving(true, false);
        }
    }

    /// Reads into the scratch buffer, after the bytes left from before, and decodes there.
    pub(super) fn read_scratch(
        &mut self,
        context: &mut Context<'_>,
        now: Timestamp,
    ) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let kept = self.input.unread.len();
            let mut buffer = ReadBuf::new(&mut scratch[kept..]);
            let read = match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => buffer.filled().len(),
            };
            if read > 0 {
                scratch[..kept].copy_from_slice(&self.input.unread);
                self.receive(&scratch[..kept + read], now);
            }
            Poll::Ready(Ok(read))
        })
    }

    /// Reads a frame larger than the scratch buffer into its own buffer, and nothing beyond its end.
    pub(super) fn read_large(
        &mut self,
        context: &mut Context<'_>,
        now: Timestamp,
    ) -> Poll<io::Result<usize>> {
        let arrived = self.input.unread.len();
        let known = self.session.needed(&self.input.unread);
        let needed = match known {
            0 => usize::try_from(self.hub.session.limits.frame_bytes_max).unwrap_or(usize::MAX),
            needed => needed,
        };
        let step = needed.saturating_sub(arrived).clamp(1, arrived);
        let capacity = self.input.unread.capacity();
        self.input.unread.reserve_exact(step);
        if self.input.unread.capacity() != capacity {
            self.charge_input();
        }
        let read = {
            let mut buffer = (&mut self.input.unread).limit(step);
            match pin!(self.stream.read_buf(&mut buffer)).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => result?,
            }
        };
        if known == 0 || self.input.unread.len() >= needed {
            let input = std::mem::take(&mut self.input.unread);
            self.receive(&input, now);
        } else {
            self.show_part(now);
        }
        Poll::Ready(Ok(read))
    }

    /// Offers an incomplete frame to the session. Its only effect is a heartbeat, so that a peer with a slow upload is not
    /// disconnected.
    pub(super) fn show_part(&mut self, now: Timestamp) {
        let mut none = Vec::new();
        let Self { session, input: Input { unread, .. }, output, .. } = self;
        let result = output.append(|output| session.receive(unread, now, &mut none, output));
        debug_assert!(none.is_empty(), "half a frame asks for nothing");
        self.look_at_session(result.map(drop));
    }

    /// Passes input to the session, and keeps the bytes that it leaves.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Timestamp) {
        self.set_time();
        let mut commands = self.hub.spare_commands.take(self.input.usual_commands);
        let (session, state) = (&mut self.session, self.input.state);
        let result = self.output.append(|output| match state {
            InputState::Closed => session.receive_last(bytes, now, &mut commands, output),
            InputState::Open | InputState::Paused => session.receive(bytes, now, &mut commands, output),
        });
        if let Some(keys) = &self.admission.keys {
            keys.end_round();
        }
        let consumed = *result.as_ref().unwrap_or(&bytes.len());
        self.keep(&bytes[consumed..]);
        self.input.usual_commands = commands.len();
        if result.is_err() && !self.welcomed && matches!(bytes, [0x16, 3, ..]) {
            tracing::info!(
                connection = self.outbox.connection.0,
                "it speaks TLS, and this listener does not: write its URL with an 's', or the client's without"
            );
        }
        // Commands decoded before the error are valid.
        self.pass(commands, consumed, now);
        self.ask_program();
        self.log_request_errors();
        self.look_at_session(result.map(drop));
    }

    pub(super) fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.input.unread = Vec::new();
        } else {
            self.input.unread.clear();
            self.input.unread.extend_from_slice(rest);
        }
        self.charge_input();
        let needed = if rest.is_empty() { 0 } else { self.session.needed(rest) };
        self.input.stalled = needed > 0 && needed <= rest.len();
        self.input.woken = false;
    }

    /// Memory of input that waits here, and of parts of a message that wait in the session.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.input.unread.capacity() + self.session.unfinished_bytes()
    }

    /// Counts the input that waits towards its limit: of half-open connections, or of clients with a large frame or
    /// message.
    pub(super) fn charge_input(&mut self) {
        let bytes = self.unfinished_bytes();
        let counts = if self.welcomed { bytes >= LARGE_BYTES } else { bytes > 0 };
        if !counts {
            self.input.charge = None;
            return;
        }
        let budgets = &self.hub.input;
        let budget = if self.welcomed { &budgets.clients } else { &budgets.half_open };
        match &mut self.input.charge {
            Some(charge) if charge.is_of(budget) => charge.set(bytes),
            charge => *charge = Some(InputBudget::charge(budget, &self.outbox, bytes)),
        }
    }

    /// Offers frames again that waited for an event. An unfinished frame waits for more input instead: offered again,
    /// it would be copied each time and count as a heartbeat.
    pub(super) fn resume(&mut self, now: Timestamp) {
        let woken = std::mem::take(&mut self.input.woken);
        if woken && self.input.stalled && matches!(self.stage, ConnectionStage::Open) {
            let input = std::mem::take(&mut self.input.unread);
            self.receive(&input, now);
        }
    }
}

/// Reads and discards input. Ready with whether the peer has closed its side.
pub(super) fn read_and_discard<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
) -> Poll<bool> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(stream).poll_read(context, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(buffer.filled().is_empty()),
            Poll::Ready(Err(_)) => Poll::Ready(true),
        }
    })
}
