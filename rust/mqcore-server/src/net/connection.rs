//! One connection: the only reads and writes of client sockets, the same loop for every protocol and transport.
//!
//! A connection is a future of its own. In each round it takes what is in its outbox, writes, sends commands to shards,
//! checks the clock and reads; when nothing moved, it waits for whichever comes first. It stops *reading* for one reason
//! only: while it waits for room in the inbox of a shard. Writing and the clock continue meanwhile, so a full inbox and a
//! full outbox cannot wait for each other.
//!
//! An idle connection holds no buffer: it reads into the scratch buffer of its thread, and keeps only the rest of an
//! unfinished frame.
//!
//! | module | contents |
//! |---|---|
//! | `state` | the parts of its state that change together |
//! | `reading` | from the stream to the session |
//! | `admission` | what the peer may do |
//! | `forwarding` | commands that upstream brokers get as well |
//! | `commands` | commands on their way to shards |
//! | `transmission` | output on its way to the peer |
//! | `closing` | the end |

mod admission;
mod closing;
mod commands;
mod forwarding;
mod reading;
mod state;
#[cfg(test)]
mod tests;
mod transmission;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mqcore_broker::model::client::{Client, Peer};
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_session::any::AnySession;
use mqcore_session::request_error::RequestError;
use mqcore_session::session::{Session, SessionError, provisional_client};
use mqcore_wire::error::WireError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use self::commands::CommandQueue;
use self::forwarding::Forwarding;
use self::state::{Admission, ConnectionStage, Input, InputState};
use self::transmission::Transmission;
use crate::authority::gate::Gate;
use crate::authority::state::RequestOrigin;
use crate::extension::OpenFrames;
use crate::hub::Hub;
use crate::net::outbox::{Order, Outbox, OutboxItem};
use crate::runtime::clock::Alarm;
use crate::runtime::shutdown::TaskGuard;
use crate::shard::inbox;
use crate::stats::counters::{CloseReason, ProtocolCounters};
use crate::stats::failures::RequestFailure;

/// Bytes of answers that wait for the peer, at which a session that answers by itself pauses reads.
const ANSWERED_BYTES_MAX: usize = 256 * 1024;

/// Rounds before other tasks get their turn.
const ROUNDS_MAX: usize = 16;

/// Time for all peers to read the rest of their output, when an administrator stops the server through a protocol.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// One peer's transport and its session.
pub(crate) struct Connection<S> {
    stream: S,
    session: AnySession,
    /// The client on whose behalf commands are sent: provisional until the broker has welcomed the peer.
    client: Arc<Client>,
    welcomed: bool,
    /// The address of the peer; `None`: it does not come through the network.
    address: Option<IpAddr>,
    admission: Admission,
    input: Input,
    forwarding: Forwarding,
    commands: CommandQueue,
    /// Scratch for what comes out of the outbox; empty between rounds.
    taken: Vec<OutboxItem>,
    output: Transmission,
    /// Frames for the program; `None` until there is one.
    vendor_frames: Option<Box<OpenFrames>>,
    alarm: Alarm,
    stage: ConnectionStage,
    /// The server is about to stop, and the peer's results are still accepted.
    is_draining: bool,
    probe: Option<mpsc::Sender<()>>,
    outbox: Arc<Outbox>,
    hub: Arc<Hub>,
    /// Last, so that everything else is dropped before the task counts as ended.
    _alive: TaskGuard,
}

/// The result of a round.
enum Round {
    Moved,
    Idle,
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    /// Starts the task of a connection that the registry has opened.
    pub(crate) fn spawn(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>, admin: bool, peer: Peer) {
        hub.runtime.spawn(Self::begin(hub, stream, outbox, admin, peer, false));
    }

    /// The same for a connection within this process, which needs no login.
    pub(crate) fn spawn_inside(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>) {
        hub.runtime.spawn(Self::begin(hub, stream, outbox, true, Peer::default(), true));
    }

    fn begin(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>, admin: bool, peer: Peer, inside: bool) -> Self {
        let now = hub.clock.now();
        let peer = Arc::new(peer);
        let origin = RequestOrigin {
            connection: Some(outbox.connection.0),
            address: peer.address.as_deref().and_then(|address| address.parse().ok()),
            protocol: outbox.protocol.as_str(),
        };
        let gate = Gate::new(&hub.authority, origin, Arc::clone(&peer), inside);
        let config = hub.session_config(outbox.connection, admin, peer, !gate.is_open());
        hub.counters.of(outbox.protocol).accepted.add(1);
        let client = provisional_client(&config, outbox.protocol.as_str(), now);
        let mut connection = Self {
            stream,
            session: hub.session(&outbox, config),
            client,
            welcomed: false,
            address: origin.address.map(|address| address.ip()),
            admission: Admission::new(gate),
            input: Input::default(),
            forwarding: Forwarding::new(hub, outbox.connection, now),
            commands: CommandQueue::default(),
            taken: Vec::new(),
            output: Transmission::default(),
            vendor_frames: None,
            alarm: Alarm::new(),
            stage: ConnectionStage::Open,
            is_draining: false,
            probe: None,
            outbox,
            hub: Arc::clone(hub),
            _alive: hub.shutdown.enter(),
        };
        connection.open();
        connection
    }

    /// Sessions without a handshake know their client at once, and may emit commands before their peer sends
    /// anything.
    fn open(&mut self) {
        let mut commands = Vec::new();
        let counted = self.hub.guard.limits_connecting() && self.address.is_some();
        self.session.open(!self.admission.gate.is_open() || counted, &mut commands);
        self.look_for_client();
        if !commands.is_empty() {
            self.pass(commands, 0, self.hub.clock.now());
        }
    }

    fn look_for_client(&mut self) {
        if !self.welcomed
            && let Some(client) = self.session.client()
        {
            self.client = Arc::clone(client);
            self.welcomed = true;
            self.hub.registry.welcomed(self.outbox.connection);
            self.charge_input();
        }
    }

    #[inline]
    fn set_time(&mut self) {
        let clock = &self.hub.clock;
        self.session.set_time(|| Nanos(clock.nanos()));
    }

    /// Lets the session continue an answer that is too long to be written at once, when the peer has read most of what
    /// was written.
    fn pump(&mut self, now: Timestamp) -> bool {
        if !self.session.has_more() || self.output.len() > ANSWERED_BYTES_MAX / 4 {
            return false;
        }
        self.set_time();
        self.output.append(|output| self.session.pump(output));
        if !self.session.has_more() {
            self.input.woken = true;
            self.resume(now);
            self.look_at_session(Ok(()));
        }
        true
    }

    fn round(&mut self, context: &mut Context<'_>) -> Round {
        let now = self.hub.clock.now();
        let found = self.outbox.take(&mut self.taken, context.waker());
        if found.probe.is_some() {
            self.probe = found.probe;
        }
        let mut moved = self.encode_taken(now);
        if found.is_overfull {
            moved = true;
            // Only output that the peer does not take counts. Otherwise a late task would cost its peer the connection.
            self.write(context);
            let unwritten = self.output.len() + self.session.waiting_bytes();
            if self.outbox.is_above_limit(unwritten) && !self.output.is_broken() {
                self.overflow();
            }
        }
        if let Some(order) = found.order {
            moved = true;
            if self.handle_order(order) {
                return Round::Over;
            }
        }
        moved |= self.pass_gate(context, now);
        moved |= self.hear_program(context, now);
        moved |= self.ask_about_limits(context, now);
        moved |= self.pass_filters(context, now);
        moved |= self.finish_answers(now);
        moved |= self.write(context);
        moved |= self.send_commands(context);
        if matches!(self.stage, ConnectionStage::Open) {
            moved |= self.look_at_clock(context, now);
        }
        if matches!(self.stage, ConnectionStage::Open) {
            moved |= self.pump(now);
        }
        if matches!(self.stage, ConnectionStage::Open) && self.read(context, now) {
            moved = true;
            // Output that can be written at once is written before anything else is checked.
            self.write(context);
        }
        moved |= self.give_up(context);
        moved |= self.leave_shards();
        let over = self.leave(context);
        self.settle();
        match (over, moved) {
            (true, _) => Round::Over,
            (false, true) => Round::Moved,
            (false, false) => Round::Idle,
        }
    }

    /// True if the round has nothing to wait for.
    fn handle_order(&mut self, order: Order) -> bool {
        match order {
            Order::PauseReads => {
                let is_open = matches!(self.stage, ConnectionStage::Open);
                let reads_on = is_open && self.output.append(|output| self.session.drain(output));
                if !reads_on && self.input.state == InputState::Open {
                    self.input.state = InputState::Paused;
                }
                self.is_draining = reads_on;
                return false;
            }
            Order::Goodbye => {
                if matches!(self.stage, ConnectionStage::Open) {
                    self.output.append(|output| self.session.shutdown(output));
                    self.begin_leaving(false, true);
                }
                return false;
            }
            Order::Revoke => {
                self.admission.gate.shut();
                if matches!(self.stage, ConnectionStage::Open) {
                    self.count_closed(CloseReason::Revoked);
                    self.output.append(|output| self.session.shutdown(output));
                    self.begin_leaving(false, false);
                }
                return false;
            }
            Order::CloseHalfOpen => self.count_closed(CloseReason::HalfOpenLimit),
            Order::CloseUnfinished => {
                self.count_closed(CloseReason::InputLimit);
                tracing::info!(
                    connection = self.outbox.connection.0,
                    client = &*self.client.id,
                    bytes = self.unfinished_bytes(),
                    "closed: its unfinished frame is the oldest, and all unfinished frames exceed {}",
                    if self.welcomed { "unfinished_bytes_max" } else { "half_open_bytes_max" }
                );
            }
            Order::Overflow => {
                self.overflow();
                return false;
            }
            Order::Abort => {}
        }
        true
    }

    /// Ends the connection of a peer that causes output and does not read it. Commands sent before still count.
    fn overflow(&mut self) {
        self.count_closed(CloseReason::SlowConsumer);
        tracing::info!(
            connection = self.outbox.connection.0,
            client = &*self.client.id,
            "closed: it takes nothing and its output buffer is full"
        );
        self.die();
    }

    /// Puts everything from the outbox into the output, in order.
    fn encode_taken(&mut self, now: Timestamp) -> bool {
        if self.taken.is_empty() {
            return false;
        }
        self.set_time();
        let mut taken = std::mem::take(&mut self.taken);
        for outgoing in taken.drain(..) {
            if !matches!(self.stage, ConnectionStage::Open) {
                self.discard(&outgoing);
                continue;
            }
            match outgoing {
                OutboxItem::Own(frames) => self.output.push_own(frames, &self.hub.spare_bytes),
                OutboxItem::Shared(frames) => self.output.push_shared(frames),
                OutboxItem::Events(events) | OutboxItem::Deliveries(events) => {
                    for event in events {
                        self.output.remove(event.pending_bytes());
                        self.give_event(event, now);
                    }
                }
                // Shards believe that it is slow, but it reads the rest of the input and ends by itself.
                OutboxItem::Close(CloseReason::SlowConsumer) if self.output.is_broken() => {}
                OutboxItem::Close(reason) => {
                    self.count_closed(reason);
                    self.begin_leaving(false, false);
                }
            }
        }
        self.taken = taken;
        self.take_commands(now);
        self.log_request_errors();
        self.events_done();
        self.resume(now);
        true
    }

    /// Lets the session answer several events together.
    fn events_done(&mut self) {
        if !matches!(self.stage, ConnectionStage::Open) {
            return;
        }
        self.output.append(|output| self.session.events_done(output));
        self.look_at_session(Ok(()));
    }

    fn discard(&mut self, outgoing: &OutboxItem) {
        self.output.remove(match outgoing {
            OutboxItem::Own(frames) => frames.len(),
            OutboxItem::Shared(frames) => frames.len(),
            OutboxItem::Events(events) | OutboxItem::Deliveries(events) => {
                events.iter().map(Event::pending_bytes).sum()
            }
            OutboxItem::Close(_) => 0,
        });
    }

    fn give_event(&mut self, event: Event, now: Timestamp) {
        // A delivery that the peer cannot get returns to its queue when the connection ends.
        let is_lost =
            self.output.is_broken() && matches!(event, Event::Delivered(_) | Event::Published { .. });
        if is_lost || !matches!(self.stage, ConnectionStage::Open) {
            return;
        }
        let result = self.output.append(|output| self.session.event(event, now, output));
        self.input.woken = true;
        self.look_at_session(result);
        self.look_for_client();
    }

    /// Passes frames of vendor extensions to the program.
    fn ask_program(&mut self) {
        let frames = self.session.take_vendor_frames();
        let Some(port) = self.hub.extensions.as_ref().filter(|_| !frames.is_empty()) else { return };
        let open = self.vendor_frames.get_or_insert_default();
        open.hand_over(frames, &self.client, &**port);
    }

    /// Passes the program's answers to such frames to the session.
    fn hear_program(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let mut moved = false;
        while matches!(self.stage, ConnectionStage::Open)
            && let Some(open) = &mut self.vendor_frames
            && let Some((id, answer)) = open.poll(context)
        {
            moved = true;
            let session = &mut self.session;
            let result = self.output.append(|output| session.extension_answered(id, answer, output));
            self.input.woken = true;
            self.look_at_session(result);
        }
        if moved {
            self.resume(now);
        }
        moved
    }

    /// Called after every call of the session that may end the conversation.
    fn look_at_session(&mut self, result: Result<(), SessionError>) {
        if self.session.stops_broker() {
            // Further calls have no effect.
            self.hub.shutdown.begin(STOP_GRACE);
        }
        match result {
            Ok(()) if self.session.is_closing() => self.begin_leaving(false, false),
            Ok(()) => {}
            Err(error) => {
                let reason = match &error {
                    SessionError::HandshakeTimeout(_) => CloseReason::HandshakeTimeout,
                    SessionError::PingTimeout(_) => CloseReason::PingTimeout,
                    SessionError::Refused(_) => CloseReason::Refused,
                    SessionError::LoginTooLarge(_) => CloseReason::LoginTooLarge,
                    SessionError::Wire(WireError::TooLarge { .. }) if !self.welcomed => {
                        CloseReason::LoginTooLarge
                    }
                    _ => CloseReason::ProtocolError,
                };
                self.count_closed(reason);
                tracing::info!(
                    connection = self.outbox.connection.0,
                    client = &*self.client.id,
                    %error,
                    "closed"
                );
                self.begin_leaving(false, false);
            }
        }
    }

    fn look_at_clock(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let deadline = self.session.next_timeout();
        if self.alarm.poll(context, deadline, now, &self.hub.clock).is_pending() {
            return false;
        }
        // The alarm may have waited, so `now` may be too early for the session.
        let now = self.hub.clock.now();
        let result = self.output.append(|output| self.session.timeout(now, output));
        self.take_commands(now);
        self.look_at_session(result);
        true
    }

    /// Takes commands that the session emits without input from its peer.
    fn take_commands(&mut self, now: Timestamp) {
        let commands = self.session.take_commands();
        if !commands.is_empty() {
            self.pass(commands, 0, now);
        }
    }

    /// Logs requests for which the peer received only an error number.
    fn log_request_errors(&mut self) {
        for RequestError { number, request, reason } in self.session.take_request_errors() {
            self.counters().request_errors.add(1);
            tracing::warn!(
                error = number,
                request = %request.escape_ascii(),
                connection = self.outbox.connection.0,
                client = &*self.client.id,
                protocol = self.outbox.protocol.as_str(),
                why = reason,
                "a request could not be done"
            );
            self.hub.failures.add(RequestFailure {
                error: number,
                request: request.escape_ascii().to_string(),
                why: reason,
                at: self.hub.clock.now(),
                client: self.client.id.to_string(),
                connection: self.outbox.connection,
                protocol: self.outbox.protocol.as_str(),
            });
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> bool {
        let bytes_out = &self.hub.counters.of(self.outbox.protocol).bytes_out;
        match self.output.write(&mut self.stream, context, &self.hub.spare_bytes, bytes_out) {
            Ok(moved) => moved,
            Err(_) => {
                self.lose_output();
                true
            }
        }
    }

    /// Routes commands to upstream brokers and shards.
    fn route(&mut self, commands: Vec<Command>, bytes: usize) {
        let is_node = self.session.is_node();
        if let Some(commands) = self.forwarding.route(commands, bytes, is_node, &self.client, &self.hub) {
            self.queue(commands, bytes);
        }
    }

    fn queue(&mut self, commands: Vec<Command>, bytes: usize) {
        self.commands.add(commands, bytes, (&self.outbox, &self.client), self.hub.placement);
    }

    /// Sends commands to their shards, as far as there is room and what was forwarded is safe.
    fn send_commands(&mut self, context: &mut Context<'_>) -> bool {
        match self.forwarding.poll_safe(context) {
            (Poll::Pending, moved) => moved,
            (Poll::Ready(()), moved) => self.commands.send(&self.hub, context) | moved,
        }
    }

    /// Reports the change of the output to the outbox, and room in it to the shards that wait for it.
    fn settle(&mut self) {
        let waiting = self.output.settle(self.session.waiting_bytes(), &self.outbox);
        if waiting == 0 || self.output.is_broken() {
            return;
        }
        for (shard, handle) in self.hub.shards.iter().enumerate() {
            if waiting & (1 << shard) != 0 {
                self.hub.moved();
                handle.send(inbox::Input::Writable(self.outbox.connection));
            }
        }
    }
}

impl<S> Connection<S> {
    /// Whether commands of the peer wait on their way to a shard.
    fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.admission.gate.is_holding() || !self.forwarding.is_empty()
    }

    /// Whether the server stops and waits for results of this peer's work.
    fn awaits_results(&self) -> bool {
        self.is_draining && matches!(self.stage, ConnectionStage::Open) && self.session.has_unfinished_work()
    }

    fn counters(&self) -> &ProtocolCounters {
        self.hub.counters.of(self.outbox.protocol)
    }

    fn count_closed(&self, reason: CloseReason) {
        self.counters().closed(reason).add(1);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Future for Connection<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        for _ in 0..ROUNDS_MAX {
            match this.round(context) {
                Round::Moved => {}
                Round::Over => return Poll::Ready(()),
                Round::Idle => {
                    if !this.has_commands() && this.admission.asking.is_none() && !this.awaits_results() {
                        this.probe = None;
                    }
                    return Poll::Pending;
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs also when the task panics: the panic affects only its connection.
impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.count_closed(CloseReason::Fault);
        }
        self.hub.registry.close(self.outbox.connection);
        self.hub.authority.leave(self.outbox.connection);
        self.counters().ignored_frames.add(self.session.ignored_frames());
        self.notify_shards_closed();
    }
}
