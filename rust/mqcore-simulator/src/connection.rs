//! The broker's side of a connection, as the server runs it: outbox, session, commands for shards, the end.
//!
//! Follows `net/connection.rs` and `net/outbox.rs` of the server step by step, without its tasks and sockets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Destination};
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;
use mqcore_session::any::{AnySession, ListenerTerms, Protocol};
use mqcore_session::protocol::Overload;
use mqcore_session::session::{Session, SessionConfig, SessionError, provisional_client};
use mqcore_wire::codec::Limits;

use crate::inbox::Input;
use crate::network::Side;
use crate::scene::Scene;
use crate::sessions::SharedSessions;

/// Maximum bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of answers at which a session that answers by itself pauses reads.
const ANSWERED_BYTES_MAX: usize = 256 * 1024;
/// Rounds before other tasks get their turn.
const ROUNDS_MAX: usize = 16;
/// Time for the peer to read the rest of the output.
const LINGER: Duration = Duration::from_secs(1);

/// Output that a shard adds.
#[derive(Debug)]
pub(crate) enum OutboxItem {
    Frames(Vec<u8>),
    Events(Vec<Event>),
    Deliveries(Vec<Event>),
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputState {
    Open,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Leaving { until: Timestamp, shut: bool, eof: bool },
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Moved,
    Idle,
    Over,
}

#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(crate) id: ConnectionId,
    pub(crate) protocol: Protocol,
    session: AnySession,
    client: Arc<Client>,
    welcomed: bool,
    unread: Vec<u8>,
    stalled: bool,
    woken: bool,
    source: InputState,
    output: Vec<u8>,
    stage: Stage,
    commands: VecDeque<(usize, Vec<Command>)>,
    known_to_shards: bool,
    outbox: Vec<OutboxItem>,
    outbox_bytes: usize,
    outbox_bytes_max: usize,
    waiting_shards: u16,
    is_overfull: bool,
    overflowed: bool,
    added: usize,
    removed: usize,
    waiting: usize,
    /// An event of the agenda runs it.
    pub(crate) scheduled: bool,
}

/// The place of a connection in the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTerms {
    pub(crate) placement: Placement,
    pub(crate) output_bytes_max: usize,
}

impl ServerConnection {
    pub(crate) fn new(
        id: ConnectionId,
        listener: &ListenerTerms,
        terms: ConnectionTerms,
        shared: &SharedSessions,
        (now, nanos): (Timestamp, Nanos),
        sends: &mut Vec<(usize, Input)>,
    ) -> Self {
        let limits = Limits { frame_bytes_max: 1 << 20, ..Limits::default() };
        let config = SessionConfig {
            connection: id,
            shards: terms.placement.shards(),
            limits,
            login_bytes_max: limits.frame_bytes_max as u32,
            answer_bytes_max: 1 << 23,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            admin: true,
            peer: Arc::default(),
            node: Some(Arc::clone(&shared.node)),
        };
        let protocol = listener.protocol();
        let mut connection = Self {
            id,
            protocol,
            client: provisional_client(&config, protocol.as_str(), now),
            session: shared.open(listener, config, now, nanos),
            welcomed: false,
            unread: Vec::new(),
            stalled: false,
            woken: false,
            source: InputState::Open,
            output: Vec::new(),
            stage: Stage::Open,
            commands: VecDeque::new(),
            known_to_shards: false,
            outbox: Vec::new(),
            outbox_bytes: 0,
            outbox_bytes_max: terms.output_bytes_max,
            waiting_shards: 0,
            is_overfull: false,
            overflowed: false,
            added: 0,
            removed: 0,
            waiting: 0,
            scheduled: false,
        };
        let mut commands = Vec::new();
        connection.session.open(false, &mut commands);
        connection.look_for_client();
        connection.queue(commands, terms.placement);
        connection.send_commands(sends);
        connection
    }

    // ---- The outbox --------------------------------------------------------------------------------------------

    /// Adds output. True if the high mark is passed, once for each shard.
    pub(crate) fn push(&mut self, items: Vec<OutboxItem>, bytes: usize, shard: usize) -> bool {
        self.is_overfull |= self.outbox_bytes >= self.outbox_bytes_max
            && items.iter().any(|item| matches!(item, OutboxItem::Events(_)));
        self.outbox.extend(items);
        self.outbox_bytes += bytes;
        let bit = 1 << shard;
        let congested = self.outbox_bytes > self.outbox_bytes_max / 2 && self.waiting_shards & bit == 0;
        if congested {
            self.waiting_shards |= bit;
        }
        congested
    }

    fn settle(&mut self, shards: usize, sends: &mut Vec<(usize, Input)>) {
        let waiting = self.session.waiting_bytes();
        self.added += waiting.saturating_sub(self.waiting);
        self.removed += self.waiting.saturating_sub(waiting);
        self.waiting = waiting;
        let (added, removed) = (std::mem::take(&mut self.added), std::mem::take(&mut self.removed));
        if added == removed {
            return;
        }
        self.outbox_bytes = (self.outbox_bytes + added).saturating_sub(removed);
        if self.outbox_bytes > self.outbox_bytes_max
            && added > removed
            && self.protocol.overload() != Overload::PauseReads
        {
            self.overflowed = true;
        }
        if self.outbox_bytes < self.outbox_bytes_max / 4 {
            let waiting = std::mem::take(&mut self.waiting_shards);
            sends.extend(
                (0..shards)
                    .filter(|shard| waiting & (1 << shard) != 0)
                    .map(|shard| (shard, Input::Writable(self.id))),
            );
        }
    }

    // ---- The task ----------------------------------------------------------------------------------------------

    /// Runs until there is nothing to do. True when the connection is closed. Appends what it sends to shards.
    pub(crate) fn run(
        &mut self,
        scene: &mut Scene,
        placement: Placement,
        sends: &mut Vec<(usize, Input)>,
    ) -> bool {
        for _ in 0..ROUNDS_MAX {
            match self.round(scene, placement, sends) {
                Round::Moved => {}
                Round::Idle => return false,
                Round::Over => {
                    self.notify_shards_closed(placement, sends);
                    return true;
                }
            }
        }
        scene.wake_again = true;
        false
    }

    /// When to run it although nothing arrives.
    pub(crate) fn next_timeout(&self) -> Timestamp {
        match self.stage {
            Stage::Open => self.session.next_timeout(),
            Stage::Leaving { until, .. } => until,
            Stage::Dead => Timestamp::NEVER,
        }
    }

    fn round(&mut self, scene: &mut Scene, placement: Placement, sends: &mut Vec<(usize, Input)>) -> Round {
        let now = scene.timestamp();
        let nanos = scene.nanos();
        self.session.set_time(|| nanos);
        if scene.network.is_cut(self.id) && self.stage != Stage::Dead {
            self.die();
        }
        let mut moved = self.encode_taken(now, placement);
        if std::mem::take(&mut self.is_overfull) {
            moved = true;
            self.write(scene);
            self.overflowed |= self.output.len() + self.session.waiting_bytes() >= self.outbox_bytes_max;
        }
        if std::mem::take(&mut self.overflowed) {
            moved = true;
            self.die();
        }
        moved |= self.write(scene);
        moved |= self.send_commands(sends);
        if self.stage == Stage::Open && now >= self.session.next_timeout() {
            let result = self.append(|session, output| session.timeout(now, output));
            self.take_commands(placement);
            self.look_at_session(result, now);
            moved = true;
        }
        if self.stage == Stage::Open && self.session.has_more() && self.output.len() <= ANSWERED_BYTES_MAX / 4
        {
            self.append(|session, output| session.pump(output));
            if !self.session.has_more() {
                self.woken = true;
                self.resume(now, placement);
                self.look_at_session(Ok(()), now);
            }
            moved = true;
        }
        if self.stage == Stage::Open && self.read(scene, now, placement) {
            moved = true;
            self.write(scene);
        }
        moved |= self.leave_shards(placement, sends);
        let over = self.leave(scene, now);
        self.settle(placement.shards(), sends);
        match (over, moved) {
            (true, _) => Round::Over,
            (false, true) => Round::Moved,
            (false, false) => Round::Idle,
        }
    }

    fn append<T>(&mut self, encode: impl FnOnce(&mut AnySession, &mut Vec<u8>) -> T) -> T {
        let before = self.output.len();
        let result = encode(&mut self.session, &mut self.output);
        self.added += self.output.len() - before;
        result
    }

    fn encode_taken(&mut self, now: Timestamp, placement: Placement) -> bool {
        if self.outbox.is_empty() {
            return false;
        }
        for item in std::mem::take(&mut self.outbox) {
            match item {
                OutboxItem::Frames(frames) if self.stage == Stage::Open => {
                    self.output.extend_from_slice(&frames);
                }
                OutboxItem::Frames(frames) => self.removed += frames.len(),
                OutboxItem::Events(events) | OutboxItem::Deliveries(events) => {
                    for event in events {
                        self.removed += event.pending_bytes();
                        self.give_event(event, now);
                    }
                }
                OutboxItem::Close => self.begin_leaving(false, now),
            }
        }
        self.take_commands(placement);
        if self.stage == Stage::Open {
            self.append(|session, output| session.events_done(output));
            self.look_at_session(Ok(()), now);
        }
        self.resume(now, placement);
        true
    }

    fn give_event(&mut self, event: Event, now: Timestamp) {
        if self.stage != Stage::Open {
            return;
        }
        let result = self.append(|session, output| session.event(event, now, output));
        self.woken = true;
        self.look_at_session(result, now);
        self.look_for_client();
    }

    fn look_for_client(&mut self) {
        if !self.welcomed
            && let Some(client) = self.session.client()
        {
            self.client = Arc::clone(client);
            self.welcomed = true;
        }
    }

    fn look_at_session(&mut self, result: Result<(), SessionError>, now: Timestamp) {
        if result.is_err() || self.session.is_closing() {
            self.begin_leaving(false, now);
        }
    }

    fn take_commands(&mut self, placement: Placement) {
        let commands = self.session.take_commands();
        self.queue(commands, placement);
        self.session.take_request_errors();
    }

    // ---- Input -------------------------------------------------------------------------------------------------

    fn read(&mut self, scene: &mut Scene, now: Timestamp, placement: Placement) -> bool {
        let pauses = self.protocol.overload() == Overload::PauseReads;
        let holds_back = pauses && (self.session.has_more() || self.output.len() >= ANSWERED_BYTES_MAX);
        if self.stalled || self.source != InputState::Open || !self.commands.is_empty() || holds_back {
            return false;
        }
        let Some(read) = scene.network.read(self.id, Side::Broker, READ_BYTES) else { return false };
        if !read.is_empty() {
            self.unread.extend_from_slice(&read);
            let input = std::mem::take(&mut self.unread);
            self.receive(&input, now, placement);
            return true;
        }
        if scene.network.is_at_end(self.id, Side::Broker) {
            self.source = InputState::Closed;
            let rest = std::mem::take(&mut self.unread);
            self.receive(&rest, now, placement);
            if !self.session.outlives_input() {
                self.begin_leaving(true, now);
            }
            return true;
        }
        false
    }

    fn receive(&mut self, bytes: &[u8], now: Timestamp, placement: Placement) {
        let mut commands = Vec::new();
        let source = self.source;
        let result = self.append(|session, output| match source {
            InputState::Closed => session.receive_last(bytes, now, &mut commands, output),
            InputState::Open => session.receive(bytes, now, &mut commands, output),
        });
        let consumed = *result.as_ref().unwrap_or(&bytes.len());
        let rest = &bytes[consumed..];
        self.unread = rest.to_vec();
        let needed = if rest.is_empty() { 0 } else { self.session.needed(rest) };
        self.stalled = needed > 0 && needed <= rest.len();
        self.woken = false;
        self.queue(commands, placement);
        self.session.take_request_errors();
        self.look_at_session(result.map(drop), now);
    }

    fn resume(&mut self, now: Timestamp, placement: Placement) {
        if std::mem::take(&mut self.woken) && self.stalled && self.stage == Stage::Open {
            let input = std::mem::take(&mut self.unread);
            self.receive(&input, now, placement);
        }
    }

    // ---- Commands ----------------------------------------------------------------------------------------------

    /// Groups commands by shard: one batch each.
    fn queue(&mut self, commands: Vec<Command>, placement: Placement) {
        if commands.is_empty() {
            return;
        }
        let mut by_shard: Vec<Vec<Command>> = vec![Vec::new(); placement.shards()];
        for command in commands {
            match command.destination(placement) {
                Destination::Shard(shard) => by_shard[shard].push(command),
                Destination::Home => by_shard[Placement::HOME].push(command),
                Destination::Every => by_shard.iter_mut().for_each(|batch| batch.push(command.clone())),
            }
        }
        let batches = by_shard.into_iter().enumerate().filter(|(_, commands)| !commands.is_empty());
        self.commands.extend(batches);
        self.known_to_shards = true;
    }

    fn send_commands(&mut self, sends: &mut Vec<(usize, Input)>) -> bool {
        let moved = !self.commands.is_empty();
        for (shard, commands) in self.commands.drain(..) {
            sends.push((shard, Input::Batch(Arc::clone(&self.client), commands)));
        }
        moved
    }

    // ---- Output and the end ------------------------------------------------------------------------------------

    fn write(&mut self, scene: &mut Scene) -> bool {
        let room = scene.network.room(self.id, Side::Broker).min(self.output.len());
        if room == 0 || self.stage == Stage::Dead {
            return false;
        }
        let rest = self.output.split_off(room);
        let written = std::mem::replace(&mut self.output, rest);
        self.removed += written.len();
        scene.send(self.id, Side::Broker, &written);
        true
    }

    fn begin_leaving(&mut self, eof: bool, now: Timestamp) {
        if self.stage == Stage::Open {
            self.stage = Stage::Leaving { until: now.after(LINGER), shut: false, eof };
            self.unread.clear();
        }
    }

    fn die(&mut self) {
        self.removed += self.output.len();
        self.output.clear();
        self.unread.clear();
        self.stage = Stage::Dead;
    }

    fn leave_shards(&mut self, placement: Placement, sends: &mut Vec<(usize, Input)>) -> bool {
        if self.stage == Stage::Open || !self.known_to_shards || !self.commands.is_empty() {
            return false;
        }
        self.notify_shards_closed(placement, sends);
        true
    }

    fn leave(&mut self, scene: &mut Scene, now: Timestamp) -> bool {
        let Stage::Leaving { until, mut shut, mut eof } = self.stage else {
            return self.stage == Stage::Dead && self.commands.is_empty();
        };
        if now >= until {
            self.die();
            return self.commands.is_empty();
        }
        scene.network.read(self.id, Side::Broker, usize::MAX);
        eof |= scene.network.is_at_end(self.id, Side::Broker);
        if self.output.is_empty() && self.commands.is_empty() && !shut {
            scene.finish(self.id, Side::Broker);
            shut = true;
        }
        self.stage = Stage::Leaving { until, shut, eof };
        shut && eof
    }

    fn notify_shards_closed(&mut self, placement: Placement, sends: &mut Vec<(usize, Input)>) {
        let mut farewells = Vec::new();
        self.session.leave(&mut farewells);
        self.outbox.clear();
        if !std::mem::take(&mut self.known_to_shards) {
            return;
        }
        if !farewells.is_empty() {
            self.commands.clear();
            self.queue(farewells, placement);
            self.send_commands(sends);
            self.known_to_shards = false;
        }
        sends.extend((0..placement.shards()).map(|shard| (shard, Input::Closed(self.id))));
    }

    /// Bytes that it has read, and not given to its session.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.unread.len() as u64
    }

    /// Whether shards may still send to it.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage != Stage::Open && !self.known_to_shards
    }
}
