//! One connection: the only reads and writes of client sockets, the same loop for every protocol and transport.
//!
//! A connection is a future of its own. In each round it takes what its outbox holds, writes, hands commands to
//! shards, looks at the clock and reads; when nothing moved, it waits for whichever comes first. It waits for one thing
//! only *instead* of reading: for room in the inbox of a shard. Writing and the clock go on meanwhile, so a full inbox
//! and a full outbox cannot wait for each other.
//!
//! While nothing happens a connection holds no buffer: it reads into the scratch of its thread, and only what is left
//! of an unfinished frame is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;
use mqcore_broker::model::client::{Client, Peer};
use mqcore_broker::model::command::{Command, Destination};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_session::any::AnySession;
use mqcore_session::forwards::{Forwards, Noted};
use mqcore_session::permission::Permissions;
use mqcore_session::protocol::Overload;
use mqcore_session::request_error::RequestError;
use mqcore_session::session::{Session, SessionError, provisional_client};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, TryAcquireError, mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use crate::authority::gate::{Gate, Step};
use crate::authority::keys::{Asking, LimitKeys};
use crate::authority::state::Origin;
use crate::extension::OpenFrames;
use crate::hub::Hub;
use crate::net::outbox::{Order, Outbox, Outgoing, event_bytes};
use crate::net::output::Output;
use crate::nodes::judge::{Judged, Judging, Shown, judge_accepted};
use crate::nodes::membership::Nodes;
use crate::runtime::clock::Alarm;
use crate::runtime::shutdown::TaskGuard;
use crate::shard::inbox::{Batch, Input, permits_for};
use crate::stats::counters::{CloseReason, ProtocolCounters};
use crate::stats::failures::Failure;

/// What one read can bring.
const SCRATCH_BYTES: usize = 64 * 1024;

/// From here on an unfinished frame is read into its own buffer, which at most doubles with each read: what a peer
/// announced reserves nothing, what it has sent does.
const LARGE_BYTES: usize = SCRATCH_BYTES / 2;

/// Octets of answers that wait for the peer, at which a session that answers by itself reads nothing more.
const ANSWERED_BYTES_MAX: usize = 256 * 1024;

/// Rounds before other tasks get their turn.
const ROUNDS_MAX: usize = 16;

/// How long a peer gets to take the last words and to close its side. Without waiting for that, what it has sent
/// meanwhile would make the system throw away what it has not read yet.
const LINGER: Duration = Duration::from_secs(1);

/// How long peers get to take what is theirs, when an administrator stops the server by a word of its protocol.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The same when the server stops and all was written.
const LINGER_AT_STOP: Duration = Duration::from_millis(250);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

type Room = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// One peer's transport and its session.
pub(crate) struct Connection<S> {
    stream: S,
    session: AnySession,
    /// What the peer asks for passes here first.
    gate: Gate,
    /// Who decides about the limits that the peer asks for; `None`: it may ask for all.
    keys: Option<Arc<LimitKeys>>,
    /// What is being asked about them.
    asking: Option<Asking>,
    /// Stands for the peer in what it asks for: provisional until it was welcomed.
    client: Arc<Client>,
    welcomed: bool,
    /// What is left of the octets read: less than a frame, or frames that wait for an event.
    input: Vec<u8>,
    /// How many commands the last read brought: about as many as the next one will.
    usual_commands: usize,
    /// The session has whole frames, and takes no more of them before the next event.
    stalled: bool,
    /// The peer says nothing more; answers to what it said are still to come.
    ended: bool,
    /// Where the peer is; `None`: it needs no network to come.
    address: Option<IpAddr>,
    /// The server is about to stop.
    hushed: bool,
    output: Output,
    /// What the stream took may still be in it.
    unflushed: bool,
    /// Scratch for what comes out of the outbox; empty between rounds.
    taken: Vec<Outgoing>,
    unsent: VecDeque<Unsent>,
    /// Notes what is passed on; `None` where nothing is.
    forwards: Option<Box<Forwards>>,
    /// What waits for the word of a filter that the program wrote, in order; before it goes on as commands always do.
    judging: VecDeque<Judging>,
    /// What `unsent` waits for: that what is passed on of it is safe.
    passing_on: VecDeque<oneshot::Receiver<()>>,
    /// Where the first of `unsent` waits in line.
    room: Option<Room>,
    alarm: Alarm,
    stage: Stage,
    probe: Option<mpsc::Sender<()>>,
    /// Octets that this round added to what is to be written, and removed from it.
    added: usize,
    removed: usize,
    /// Octets that wait in the session for its peer, when they were counted last.
    waiting: usize,
    /// Frames that the program handles; `None` as long as there was none.
    open_frames: Option<Box<OpenFrames>>,
    /// The session was told something that no shard said: it may go on where it waited.
    told: bool,
    /// Whether any shard may know of this connection, and has not been told that it is gone.
    known_to_shards: bool,
    outbox: Arc<Outbox>,
    hub: Arc<Hub>,
    /// Last, so that all else is gone when it says so.
    _alive: TaskGuard,
}

/// Commands on their way to a shard.
struct Unsent {
    shard: usize,
    permits: u32,
    batch: Batch,
}

enum Stage {
    /// Reading and writing.
    Open,
    /// The conversation is over. What is there is written; what arrives is read, and thrown away.
    Leaving(Leave),
    /// Nothing can be written or read any more; commands that were read still find their way.
    Dead,
}

struct Leave {
    until: Pin<Box<Sleep>>,
    /// Our side is shut.
    shut: bool,
    /// The peer's side is.
    eof: bool,
    at_stop: bool,
}

/// What came of a round.
enum Round {
    Moved,
    Idle,
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<S> {
    /// Starts the task of a connection that the registry has opened.
    pub(crate) fn spawn(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>, admin: bool, peer: Peer) {
        Self::start(hub, stream, outbox, admin, peer, false);
    }

    /// The same for a connection within this process, which nobody asks who it is.
    pub(crate) fn spawn_inside(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>) {
        Self::start(hub, stream, outbox, true, Peer::default(), true);
    }

    fn start(hub: &Arc<Hub>, stream: S, outbox: Arc<Outbox>, admin: bool, peer: Peer, inside: bool) {
        let now = hub.clock.now();
        let peer = Arc::new(peer);
        let origin = Origin {
            connection: Some(outbox.connection.0),
            address: peer.address.as_deref().and_then(|address| address.parse().ok()),
            protocol: outbox.protocol.as_str(),
        };
        let gate = Gate::new(&hub.authority, origin, Arc::clone(&peer), inside);
        let config = hub.session_config(outbox.connection, admin, peer);
        hub.counters.of(outbox.protocol).accepted.add(1);
        let client = provisional_client(&config, outbox.protocol.as_str(), now);
        let mut connection = Self {
            stream,
            client,
            session: hub.session(&outbox, config),
            gate,
            keys: None,
            asking: None,
            welcomed: false,
            input: Vec::new(),
            usual_commands: 0,
            stalled: false,
            ended: false,
            address: origin.address.map(|address| address.ip()),
            hushed: false,
            output: Output::default(),
            unflushed: false,
            taken: Vec::new(),
            unsent: VecDeque::new(),
            forwards: hub
                .nodes
                .as_ref()
                .filter(|nodes| nodes.outlet.is_some())
                .map(|_| Box::new(Forwards::new(outbox.connection, now))),
            judging: VecDeque::new(),
            passing_on: VecDeque::new(),
            room: None,
            alarm: Alarm::new(),
            stage: Stage::Open,
            probe: None,
            added: 0,
            removed: 0,
            waiting: 0,
            open_frames: None,
            told: false,
            known_to_shards: false,
            outbox,
            hub: Arc::clone(hub),
            _alive: hub.shutdown.enter(),
        };
        connection.open();
        hub.runtime.spawn(connection);
    }

    /// Sessions without a handshake know their client at once, and may send commands before their peer sends anything.
    fn open(&mut self) {
        let mut commands = Vec::new();
        let counted = self.hub.guard.connect.is_some() && self.address.is_some();
        self.session.open(!self.gate.is_open() || counted, &mut commands);
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
        let ((), added) = self.output.append(|output| self.session.pump(output));
        self.added += added;
        if !self.session.has_more() {
            self.stalled = false;
            self.resume(now);
            self.look_at_session(Ok(()));
        }
        true
    }

    /// Whether reading waits until the peer has read more of the answers.
    fn holds_back(&self) -> bool {
        let pauses = self.outbox.protocol.overload() == Overload::PauseReads;
        pauses && (self.session.has_more() || self.output.len() >= ANSWERED_BYTES_MAX)
    }

    fn round(&mut self, context: &mut Context<'_>) -> Round {
        let now = self.hub.clock.now();
        let found = self.outbox.take(&mut self.taken, context.waker());
        if found.probe.is_some() {
            self.probe = found.probe;
        }
        let mut moved = self.encode_taken(now);
        if let Some(order) = found.order {
            moved = true;
            if self.obey(order) {
                return Round::Over;
            }
        }
        moved |= self.pass_gate(context, now);
        moved |= self.hear_program(context, now);
        moved |= self.ask_about_limits(context, now);
        moved |= self.pass_filters(context, now);
        moved |= self.write(context);
        moved |= self.send(context);
        if matches!(self.stage, Stage::Open) {
            moved |= self.look_at_clock(context, now);
        }
        if matches!(self.stage, Stage::Open) {
            moved |= self.pump(now);
        }
        if matches!(self.stage, Stage::Open) && self.read(context, now) {
            moved = true;
            // What could be answered at once is, before everything else is looked at again.
            self.write(context);
        }
        moved |= self.leave_shards();
        let over = self.leave(context);
        self.settle();
        match (over, moved) {
            (true, _) => Round::Over,
            (false, true) => Round::Moved,
            (false, false) => Round::Idle,
        }
    }

    /// True if there is nothing to wait for.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Hush => {
                self.hushed = true;
                return false;
            }
            Order::Goodbye => {
                if matches!(self.stage, Stage::Open) {
                    let ((), added) = self.output.append(|output| self.session.shutdown(output));
                    self.added += added;
                    self.begin_leaving(false, true);
                }
                return false;
            }
            Order::Revoke => {
                self.gate.shut();
                if matches!(self.stage, Stage::Open) {
                    self.count_closed(CloseReason::Revoked);
                    let ((), added) = self.output.append(|output| self.session.shutdown(output));
                    self.added += added;
                    self.begin_leaving(false, false);
                }
                return false;
            }
            Order::Evict => self.count_closed(CloseReason::HalfOpenLimit),
            Order::Overflow => {
                self.count_closed(CloseReason::SlowConsumer);
                tracing::info!(
                    connection = self.outbox.connection.0,
                    client = &*self.client.id,
                    "closed: it takes nothing and its output buffer is full"
                );
                // What it asked for before still counts.
                self.die();
                return false;
            }
            Order::Abort => {}
        }
        true
    }

    /// Puts everything from the outbox into the output, in order.
    fn encode_taken(&mut self, now: Timestamp) -> bool {
        if self.taken.is_empty() {
            return false;
        }
        self.set_time();
        let mut taken = std::mem::take(&mut self.taken);
        for outgoing in taken.drain(..) {
            if !matches!(self.stage, Stage::Open) {
                self.discard(&outgoing);
                continue;
            }
            match outgoing {
                Outgoing::Own(frames) => self.output.push_own(frames, &self.hub.spare_bytes),
                Outgoing::Shared(frames) => self.output.push_shared(frames),
                Outgoing::Events(events) | Outgoing::Deliveries(events) => {
                    for event in events {
                        self.removed += event_bytes(&event);
                        self.give_event(event, now);
                    }
                }
                Outgoing::Close(reason) => {
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

    /// The session says at once what concerns several events.
    fn events_done(&mut self) {
        if !matches!(self.stage, Stage::Open) {
            return;
        }
        let ((), added) = self.output.append(|output| self.session.events_done(output));
        self.added += added;
        self.look_at_session(Ok(()));
    }

    fn discard(&mut self, outgoing: &Outgoing) {
        self.removed += match outgoing {
            Outgoing::Own(frames) => frames.len(),
            Outgoing::Shared(frames) => frames.len(),
            Outgoing::Events(events) | Outgoing::Deliveries(events) => events.iter().map(event_bytes).sum(),
            Outgoing::Close(_) => 0,
        };
    }

    fn give_event(&mut self, event: Event, now: Timestamp) {
        if !matches!(self.stage, Stage::Open) {
            return;
        }
        let (result, added) = self.output.append(|output| self.session.event(event, now, output));
        self.added += added;
        self.stalled = false;
        self.look_at_session(result);
        self.look_for_client();
    }

    /// Looks whether the gate has found out who this is, or whether something is allowed.
    fn pass_gate(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        if self.gate.is_open() {
            return false;
        }
        let mut steps = Vec::new();
        let moved = self.gate.poll(context, &self.client, &self.hub, &mut steps);
        self.follow(steps, now);
        if std::mem::take(&mut self.told) {
            self.events_done();
            self.take_commands(now);
            self.resume(now);
        }
        moved
    }

    /// Passes frames of vendor extensions to the program.
    fn ask_program(&mut self) {
        let frames = self.session.take_vendor_frames();
        let Some(port) = self.hub.extensions.as_ref().filter(|_| !frames.is_empty()) else { return };
        let open = self.open_frames.get_or_insert_default();
        open.hand_over(frames, &self.client, &**port);
    }

    /// Passes the program's answers to such frames to the session.
    fn hear_program(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let mut moved = false;
        while matches!(self.stage, Stage::Open)
            && let Some(open) = &mut self.open_frames
            && let Some((id, answer)) = open.poll(context)
        {
            moved = true;
            let session = &mut self.session;
            let (result, added) = self.output.append(|output| session.extension_answered(id, answer, output));
            self.added += added;
            self.stalled = false;
            self.look_at_session(result);
        }
        if moved {
            self.resume(now);
        }
        moved
    }

    fn follow(&mut self, steps: Vec<Step>, now: Timestamp) {
        for step in steps {
            match step {
                Step::Pass(commands, octets) => self.route(commands, octets),
                Step::Become(client) => {
                    self.client = client;
                    self.restrict_limits();
                }
                Step::Tell(event) => {
                    if matches!(event, Event::Refused(_)) {
                        self.count_closed(CloseReason::Refused);
                    }
                    self.give_event(event, now);
                    self.told = true;
                }
            }
        }
    }

    fn restrict_limits(&mut self) {
        if self.session.answers_limits()
            && let Some(keys) = self.gate.limit_keys(&self.client, &self.hub)
        {
            let permissions: Arc<dyn Permissions> = Arc::<LimitKeys>::clone(&keys);
            self.session.restrict(permissions);
            self.keys = Some(keys);
        }
    }

    /// Has somebody asked about the limits at which the session stopped, and lets it go on when there is an answer.
    fn ask_about_limits(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let Some(keys) = &self.keys else { return false };
        if self.asking.is_none() {
            self.asking = keys.ask();
        }
        let Some(asking) = &mut self.asking else { return false };
        let Poll::Ready(answers) = asking.as_mut().poll(context) else { return false };
        keys.remember(answers);
        self.asking = None;
        self.hub.moved();
        self.stalled = false;
        self.resume(now);
        self.look_at_session(Ok(()));
        true
    }

    /// Offers frames again that waited for an event.
    fn resume(&mut self, now: Timestamp) {
        if !self.stalled && !self.input.is_empty() && matches!(self.stage, Stage::Open) {
            let input = std::mem::take(&mut self.input);
            self.receive(&input, now);
        }
    }

    /// After every call of the session that may end the conversation.
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

    fn begin_leaving(&mut self, eof: bool, at_stop: bool) {
        if matches!(self.stage, Stage::Open) {
            // At a stop the server itself knows how long to wait.
            let patience = if at_stop { Duration::from_secs(3600) } else { LINGER };
            let until = Box::pin(tokio::time::sleep(patience));
            self.stage = Stage::Leaving(Leave { until, shut: false, eof, at_stop });
            self.input = Vec::new();
            self.gate.peer_gone();
        }
    }

    fn die(&mut self) {
        self.gate.peer_gone();
        self.removed += self.output.len();
        self.output.clear();
        self.unflushed = false;
        self.input = Vec::new();
        self.stage = Stage::Dead;
    }

    fn write(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !self.output.is_empty() {
            match self.output.poll_write(&mut self.stream, context, &self.hub.spare_bytes) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => {
                    moved = true;
                    self.unflushed = true;
                    self.removed += written;
                    self.counters().bytes_out.add(written as u64);
                }
                Poll::Ready(Err(_)) => {
                    self.die();
                    return true;
                }
            }
        }
        if self.unflushed {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => {
                    self.die();
                    return true;
                }
            }
        }
        moved
    }

    /// Hands commands to their shards, as far as there is room.
    fn send(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(safe) = self.passing_on.front_mut() {
            if Pin::new(safe).poll(context).is_pending() {
                return moved;
            }
            self.passing_on.pop_front();
            moved = true;
        }
        while let Some(first) = self.unsent.front() {
            let handle = &self.hub.shards[first.shard];
            let room = match &mut self.room {
                Some(waiting) => match waiting.as_mut().poll(context) {
                    Poll::Pending => return moved,
                    Poll::Ready(room) => room.ok(),
                },
                None => match Arc::clone(handle.room()).try_acquire_many_owned(first.permits) {
                    Ok(room) => Some(room),
                    Err(TryAcquireError::NoPermits) => {
                        let waiting = Arc::clone(handle.room()).acquire_many_owned(first.permits);
                        self.room = Some(Box::pin(waiting));
                        continue;
                    }
                    // Nobody closes it; if somebody did, the shard would be gone and sending be in vain.
                    Err(TryAcquireError::Closed) => None,
                },
            };
            self.room = None;
            moved = true;
            if let Some(mut unsent) = self.unsent.pop_front() {
                unsent.batch.room = room;
                self.hub.moved();
                self.hub.shards[unsent.shard].send(Input::Batch(unsent.batch));
            }
        }
        moved
    }

    fn look_at_clock(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let deadline = self.session.next_timeout();
        if self.alarm.poll(context, deadline, now, &self.hub.clock).is_pending() {
            return false;
        }
        // The alarm may have waited, so `now` may be too early for the session.
        let now = self.hub.clock.now();
        let (result, added) = self.output.append(|output| self.session.timeout(now, output));
        self.added += added;
        self.take_commands(now);
        self.look_at_session(result);
        true
    }

    /// What the session wants although its peer said nothing.
    fn take_commands(&mut self, now: Timestamp) {
        let commands = self.session.take_commands();
        if !commands.is_empty() {
            self.pass(commands, 0, now);
        }
    }

    fn read(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        if self.stalled || self.hushed || self.ended || self.has_commands() || self.holds_back() {
            return false;
        }
        let result = if self.input.len() < LARGE_BYTES {
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
                self.counters().bytes_in.add(read as u64);
                true
            }
            Poll::Ready(Err(_)) => {
                self.die();
                true
            }
        }
    }

    /// The peer says nothing more. Where its protocol wants that, its last words are still done and answered.
    fn end_of_input(&mut self, now: Timestamp) {
        self.ended = true;
        let rest = std::mem::take(&mut self.input);
        self.receive(&rest, now);
        if !self.session.outlives_input() {
            self.begin_leaving(true, false);
        }
    }

    /// Reads into the scratch, behind what is left from before, and decodes there.
    fn read_scratch(&mut self, context: &mut Context<'_>, now: Timestamp) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let kept = self.input.len();
            let mut buffer = ReadBuf::new(&mut scratch[kept..]);
            let read = match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => buffer.filled().len(),
            };
            if read > 0 {
                scratch[..kept].copy_from_slice(&self.input);
                self.receive(&scratch[..kept + read], now);
            }
            Poll::Ready(Ok(read))
        })
    }

    /// Reads a frame that is larger than the scratch into its own buffer, and nothing beyond its end.
    fn read_large(&mut self, context: &mut Context<'_>, now: Timestamp) -> Poll<io::Result<usize>> {
        let arrived = self.input.len();
        let known = self.session.needed(&self.input);
        let needed = match known {
            0 => usize::try_from(self.hub.session.limits.frame_bytes_max).unwrap_or(usize::MAX),
            needed => needed,
        };
        let step = needed.saturating_sub(arrived).clamp(1, arrived);
        self.input.reserve_exact(step);
        let read = {
            let mut buffer = (&mut self.input).limit(step);
            match pin!(self.stream.read_buf(&mut buffer)).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => result?,
            }
        };
        if known == 0 || self.input.len() >= needed {
            let input = std::mem::take(&mut self.input);
            self.receive(&input, now);
        } else {
            self.show_part(now);
        }
        Poll::Ready(Ok(read))
    }

    /// Shows the session a frame that is not whole yet: nothing comes of it but that its peer is alive, so that a
    /// slow upload is not taken for a dead peer.
    fn show_part(&mut self, now: Timestamp) {
        let mut none = Vec::new();
        let Self { session, input, output, .. } = self;
        let (result, added) = output.append(|output| session.receive(input, now, &mut none, output));
        self.added += added;
        debug_assert!(none.is_empty(), "half a frame asks for nothing");
        self.look_at_session(result.map(drop));
    }

    /// Lets the session read; keeps what it leaves.
    fn receive(&mut self, octets: &[u8], now: Timestamp) {
        self.set_time();
        let mut commands = self.hub.spare_commands.take(self.usual_commands);
        let session = &mut self.session;
        let (result, added) = self.output.append(|output| match self.ended {
            false => session.receive(octets, now, &mut commands, output),
            true => session.receive_last(octets, now, &mut commands, output),
        });
        self.added += added;
        if let Some(keys) = &self.keys {
            keys.end_round();
        }
        let consumed = *result.as_ref().unwrap_or(&octets.len());
        self.keep(&octets[consumed..]);
        self.usual_commands = commands.len();
        if result.is_err() && !self.welcomed && matches!(octets, [0x16, 3, ..]) {
            tracing::info!(
                connection = self.outbox.connection.0,
                "it speaks TLS, and this listener does not: write its URL with an 's', or the client's without"
            );
        }
        // What was decoded before an error was asked for in good faith.
        self.pass(commands, consumed, now);
        self.ask_program();
        self.log_request_errors();
        self.look_at_session(result.map(drop));
    }

    fn pass(&mut self, mut commands: Vec<Command>, octets: usize, now: Timestamp) {
        if !self.hub.guard.is_open() {
            self.refuse_beyond_limits(&mut commands, now);
        }
        if self.gate.is_open() {
            self.route(commands, octets);
        } else {
            let mut steps = Vec::new();
            self.gate.take(commands, octets, &self.client, &self.hub, &mut steps);
            self.follow(steps, now);
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
            self.hub.failures.add(Failure {
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

    fn refuse_beyond_limits(&mut self, commands: &mut Vec<Command>, now: Timestamp) {
        let at = Nanos(self.hub.clock.nanos());
        let mut refused = Vec::new();
        let mut stranger = false;
        commands.retain(|command| {
            let limiter = &self.hub.limiter;
            let refusal = self.hub.guard.refusal(limiter, &self.client, self.address, command, at);
            // Whoever is not let in asks for nothing.
            let passes = refusal.is_none() && !stranger;
            let counters = &self.hub.counters.limits;
            match &refusal {
                Some(Event::Refused(_)) => {
                    stranger = true;
                    counters.connect_refused.add(1);
                }
                Some(_) => counters.publish_refused.add(1),
                None => {}
            }
            refused.extend(refusal);
            passes
        });
        for event in refused {
            self.give_event(event, now);
        }
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.input = Vec::new();
        } else {
            self.input.clear();
            self.input.extend_from_slice(rest);
        }
        let needed = if rest.is_empty() { 0 } else { self.session.needed(rest) };
        self.stalled = needed > 0 && needed <= rest.len();
    }

    /// Notes for the masters what clients ask for, and which of it has to be shown to filters of the program. What came
    /// from another node is not passed on again.
    fn note(&mut self, commands: &mut [Command]) -> (Option<Noted>, Shown) {
        let mut shown = Shown::default();
        let (Some(forwards), Some(nodes)) = (&mut self.forwards, &self.hub.nodes) else {
            return (None, shown);
        };
        if self.session.is_node() {
            return (None, shown);
        }
        for command in commands {
            let masters = forwards.note(&nodes.terms, &self.client, command);
            if !nodes.filters.send.is_empty() {
                shown.add(&nodes.filters, masters, command, &self.client);
            }
        }
        (forwards.take(), shown)
    }

    /// Offers what was noted to the masters. Until it is safe for them nothing of what goes to shards from then on does.
    fn pass_on(&mut self, noted: Option<Noted>) {
        let Some(noted) = noted else { return };
        if let Some(Nodes { outlet: Some(outlet), .. }) = &self.hub.nodes {
            self.passing_on.push_back(outlet.take(noted));
        }
    }

    /// Passes commands on to masters and shards, by way of the program's own filters where there are any.
    fn route(&mut self, mut commands: Vec<Command>, octets: usize) {
        let (noted, shown) = self.note(&mut commands);
        let judged = Judged { commands, octets, noted, refused: Vec::new() };
        let nodes = self.hub.nodes.as_ref();
        let accept = nodes.and_then(|nodes| nodes.filters.accept.as_ref()).filter(|_| self.session.is_node());
        let judging = match (nodes, accept) {
            (Some(nodes), Some(accept)) => judge_accepted(accept, &nodes.fallen_back, &self.client, judged),
            (Some(nodes), None) if !shown.is_empty() => {
                shown.judge(&nodes.filters, &nodes.fallen_back, judged)
            }
            // What comes behind something that waits must wait as well.
            _ if !self.judging.is_empty() => Box::pin(std::future::ready(judged)),
            _ => return self.go_on(judged.noted, judged.commands, judged.octets),
        };
        self.judging.push_back(judging);
    }

    fn go_on(&mut self, noted: Option<Noted>, commands: Vec<Command>, octets: usize) {
        self.pass_on(noted);
        self.group(commands, octets);
    }

    /// Looks whether filters of the program have spoken.
    fn pass_filters(&mut self, context: &mut Context<'_>, now: Timestamp) -> bool {
        let mut moved = false;
        while let Some(first) = self.judging.front_mut() {
            let Poll::Ready(judged) = first.as_mut().poll(context) else { break };
            self.judging.pop_front();
            moved = true;
            self.hub.moved();
            self.go_on(judged.noted, judged.commands, judged.octets);
            if !judged.refused.is_empty() {
                self.give_event(Event::Confirmed(judged.refused), now);
            }
        }
        moved
    }

    /// Groups commands by shard: one batch each. `octets` is what they were made of.
    fn group(&mut self, commands: Vec<Command>, octets: usize) {
        let Some(first) = commands.first() else { return };
        let shards = self.hub.shards.len();
        let destination = first.destination(shards);
        let alone = shards == 1
            || (destination != Destination::Every
                && commands
                    .iter()
                    .all(|command| command.goes_with(first) || command.destination(shards) == destination));
        if alone {
            let shard = if let Destination::Shard(shard) = destination { shard } else { HOME };
            return self.enqueue(shard, commands, octets);
        }
        let octets_each = octets / commands.len();
        let mut by_shard: Vec<Vec<Command>> = vec![Vec::new(); shards];
        for command in commands {
            match command.destination(shards) {
                Destination::Shard(shard) => by_shard[shard].push(command),
                Destination::Home => by_shard[HOME].push(command),
                Destination::Every => by_shard.iter_mut().for_each(|batch| batch.push(command.clone())),
            }
        }
        for (shard, commands) in by_shard.into_iter().enumerate() {
            if !commands.is_empty() {
                let octets = octets_each * commands.len();
                self.enqueue(shard, commands, octets);
            }
        }
    }

    fn enqueue(&mut self, shard: usize, commands: Vec<Command>, octets: usize) {
        self.known_to_shards = true;
        let batch = Batch {
            outbox: Arc::clone(&self.outbox),
            client: Arc::clone(&self.client),
            commands,
            room: None,
        };
        self.unsent.push_back(Unsent { shard, permits: permits_for(octets), batch });
    }

    /// Tells the shards that the peer is gone, as soon as they have all that it asked for. Not only when its socket is:
    /// whoever says goodbye and lets its socket linger would be handed messages that nobody reads. At a stop what is on
    /// its way is still written, so there the shards hear of it at the end.
    fn leave_shards(&mut self) -> bool {
        let gone = match &self.stage {
            Stage::Open => false,
            Stage::Leaving(leave) => !leave.at_stop,
            Stage::Dead => true,
        };
        if !gone || !self.known_to_shards || self.has_commands() {
            return false;
        }
        self.tell_shards_closed();
        true
    }

    /// Carries the end of the conversation on. True when it is over.
    fn leave(&mut self, context: &mut Context<'_>) -> bool {
        let has_commands = self.has_commands();
        let leave = match &mut self.stage {
            Stage::Open => return false,
            Stage::Dead => return !has_commands,
            Stage::Leaving(leave) => leave,
        };
        if leave.until.as_mut().poll(context).is_ready() {
            self.die();
            return !has_commands;
        }
        while !leave.eof {
            match read_and_forget(&mut self.stream, context) {
                Poll::Pending => break,
                Poll::Ready(eof) => leave.eof = eof,
            }
        }
        let quiet = self.output.is_empty() && !self.unflushed;
        if !quiet || has_commands {
            return false;
        }
        if !leave.shut && Pin::new(&mut self.stream).poll_shutdown(context).is_ready() {
            leave.shut = true;
            if leave.at_stop {
                leave.until.as_mut().reset(Instant::now() + LINGER_AT_STOP);
                // Registers the new time; it has not come yet.
                return leave.eof || leave.until.as_mut().poll(context).is_ready();
            }
        }
        leave.shut && leave.eof
    }

    /// Tells the outbox what became of its octets, and the shards that wait for room in it.
    fn settle(&mut self) {
        let waiting = self.session.waiting_bytes();
        self.added += waiting.saturating_sub(self.waiting);
        self.removed += self.waiting.saturating_sub(waiting);
        self.waiting = waiting;
        if self.added == self.removed {
            // Mostly nothing, or an answer that is written already. Nobody waits for room that is as much as before.
            (self.added, self.removed) = (0, 0);
            return;
        }
        let (added, removed) = (std::mem::take(&mut self.added), std::mem::take(&mut self.removed));
        let waiting = self.outbox.settle(added, removed);
        for (shard, handle) in self.hub.shards.iter().enumerate() {
            if waiting & (1 << shard) != 0 {
                self.hub.moved();
                handle.send(Input::Writable(self.outbox.connection));
            }
        }
    }
}

/// The shard that knows all clients.
const HOME: usize = 0;

/// Reads what a peer still sends to somebody who does not listen any more. Ready with whether that was all.
fn read_and_forget<S: AsyncRead + Unpin>(stream: &mut S, context: &mut Context<'_>) -> Poll<bool> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(stream).poll_read(context, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(buffer.filled().is_empty()),
            Poll::Ready(Err(_)) => Poll::Ready(true),
        }
    })
}

impl<S> Connection<S> {
    /// The outbox ends first: a shard that fills it after it has heard of the end would wait for room for ever.
    fn tell_shards_closed(&mut self) {
        self.outbox.end();
        self.hub.moved();
        self.session.leave();
        if std::mem::take(&mut self.known_to_shards) {
            for handle in &self.hub.shards {
                handle.send(Input::Closed(self.outbox.connection));
            }
        }
    }

    /// Whether the peer has asked for something that no shard has got yet.
    fn has_commands(&self) -> bool {
        !self.unsent.is_empty()
            || self.gate.is_holding()
            || !self.judging.is_empty()
            || !self.passing_on.is_empty()
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
                    if !this.has_commands() && this.asking.is_none() {
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

/// Also when the task panics: its connection goes, and nothing else.
impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.count_closed(CloseReason::Fault);
        }
        self.hub.registry.close(self.outbox.connection);
        self.hub.authority.leave(self.outbox.connection);
        self.counters().ignored_frames.add(self.session.ignored_frames());
        self.tell_shards_closed();
    }
}
