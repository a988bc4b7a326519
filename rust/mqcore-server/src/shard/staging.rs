//! Output of one run of a shard, collected by connection, so that each is locked and woken once.
//!
//! For each connection, the order is that of the effects. Consecutive deliveries to the same list of consumers form a
//! *batch*: they are encoded once, into a chunk that the whole list shares.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;
use mqcore_broker::model::effect::{Deliver, Event, Publication, Recipients};
use mqcore_broker::model::id::ConnectionId;
use mqcore_session::any::Protocol;
use mqcore_session::protocol::{Encoding, Overload};

use crate::hub::Hub;
use crate::net::outbox::{Outbox, OutboxItem, Pushed};
use crate::stats::counters::CloseReason;

/// At this size a chunk is closed, so that the connection can start to write and free it.
const CHUNK_BYTES: usize = 256 * 1024;

type Connections = HashMap<ConnectionId, Staged, foldhash::fast::RandomState>;

/// Collects the output.
#[derive(Debug)]
pub(crate) struct Staging {
    shard: usize,
    connections: Connections,
    /// Those of `connections` that have output.
    dirty: Vec<ConnectionId>,
    run: Option<Run>,
    runs_begun: u64,
}

#[derive(Debug)]
struct Staged {
    outbox: Arc<Outbox>,
    outgoing: Vec<OutboxItem>,
    /// Frames for this connection only, not yet in `outgoing`.
    own: Vec<u8>,
    /// The previous size of `own`: the initial capacity of the next one.
    own_hint: usize,
    /// The total size in bytes.
    bytes: usize,
    /// The last run that this connection was part of.
    run: u64,
    dirty: bool,
}

#[derive(Debug)]
struct Run {
    number: u64,
    to: Arc<[ConnectionId]>,
    kind: RunKind,
    /// The protocols that members of the list speak and that share frames; nothing is encoded for others.
    spoken: [bool; Protocol::ALL.len()],
    /// Members of the list whose sessions encode.
    by_session: Vec<ConnectionId>,
    /// For the whole list, or for all except the first.
    shared: Chunks,
    /// For the first of the list, once its frames differ from the others'.
    first: Option<Chunks>,
}

/// The kind of output in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunKind {
    Delivery,
    Publication,
}

impl RunKind {
    fn is_by_session(self, protocol: Protocol) -> bool {
        match self {
            Self::Delivery => protocol.deliveries().is_by_session(),
            Self::Publication => protocol.publications().is_by_session(),
        }
    }
}

/// A topic's message as an event for a session that encodes it.
fn published(publication: &Publication) -> Event {
    Event::Published { topic: publication.topic.clone(), message: publication.message.clone() }
}

/// The same frames in each protocol of the list's members.
#[derive(Debug, Default)]
struct Chunks([Vec<u8>; Protocol::ALL.len()]);

impl Staged {
    fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, outgoing: Vec::new(), own: Vec::new(), own_hint: 0, bytes: 0, run: 0, dirty: false }
    }

    fn close_own(&mut self) {
        if !self.own.is_empty() {
            let own = std::mem::take(&mut self.own);
            self.own_hint = own.len().min(CHUNK_BYTES);
            self.bytes += own.len();
            self.outgoing.push(OutboxItem::Own(own));
        }
    }

    /// Adds an event, which the session turns into frames.
    fn push_event(&mut self, event: Event) {
        self.close_own();
        self.bytes += event.pending_bytes();
        let delivery =
            matches!(event, Event::Delivered(_)) || self.outbox.protocol.overload() == Overload::LimitEvents;
        match (delivery, self.outgoing.last_mut()) {
            (true, Some(OutboxItem::Deliveries(events))) | (false, Some(OutboxItem::Events(events))) => {
                events.push(event);
            }
            (true, _) => self.outgoing.push(OutboxItem::Deliveries(vec![event])),
            (false, _) => self.outgoing.push(OutboxItem::Events(vec![event])),
        }
    }

    /// Appends the bytes that `encode` produces, for this connection only.
    #[inline]
    fn append_own(&mut self, hub: &Hub, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.own.capacity() == 0 {
            self.own = hub.spare_bytes.take(self.own_hint);
        }
        encode(&mut self.own);
        if self.own.len() >= CHUNK_BYTES {
            self.close_own();
        }
    }

    fn append_shared(&mut self, frames: Bytes) {
        self.bytes += frames.len();
        self.outgoing.push(OutboxItem::Shared(frames));
    }
}

/// The entry of a connection; `None` if the connection is gone. Adds one for a connection that never sent to this shard,
/// for example the producer of a message that was dead-lettered here.
#[inline]
fn find_or_add<'a>(
    connections: &'a mut Connections,
    connection: ConnectionId,
    hub: &Hub,
) -> Option<&'a mut Staged> {
    match connections.entry(connection) {
        MapEntry::Occupied(occupied) => Some(occupied.into_mut()),
        MapEntry::Vacant(vacant) => {
            // An ended connection may still be in the registry, but this shard would not be notified of its end
            // again, and would keep its entry forever.
            let outbox = hub.registry.find(connection).filter(|outbox| !outbox.has_ended())?;
            Some(vacant.insert(Staged::new(outbox)))
        }
    }
}

impl Staging {
    pub(crate) fn new(shard: usize) -> Self {
        Self { shard, connections: HashMap::default(), dirty: Vec::new(), run: None, runs_begun: 0 }
    }

    /// Registers a connection that sends to this shard.
    pub(crate) fn register(&mut self, outbox: &Arc<Outbox>) {
        if let MapEntry::Vacant(vacant) = self.connections.entry(outbox.connection) {
            vacant.insert(Staged::new(Arc::clone(outbox)));
        }
    }

    /// A connection ended.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// The entry of a connection, after closing its current run. `None` if it has ended.
    fn place(&mut self, connection: ConnectionId, hub: &Hub) -> Option<&mut Staged> {
        if let Some(run) = &self.run
            && self.connections.get(&connection).is_some_and(|staged| staged.run == run.number)
        {
            self.close_run();
        }
        let staged = find_or_add(&mut self.connections, connection, hub)?;
        if !staged.dirty {
            staged.dirty = true;
            self.dirty.push(connection);
        }
        Some(staged)
    }

    /// Adds an event for a connection's session.
    pub(crate) fn send_event(&mut self, connection: ConnectionId, event: Event, hub: &Hub) {
        if let Some(staged) = self.place(connection, hub) {
            staged.push_event(event);
        }
    }

    /// Ends a connection after everything added before.
    pub(crate) fn close(&mut self, connection: ConnectionId, reason: CloseReason, hub: &Hub) {
        let Some(staged) = self.place(connection, hub) else { return };
        staged.close_own();
        staged.outgoing.push(OutboxItem::Close(reason));
    }

    /// Adds a message for one or many consumers.
    pub(crate) fn deliver(&mut self, deliver: Deliver, hub: &Hub) {
        match &deliver.to {
            Recipients::One(connection) => self.deliver_one(*connection, deliver, hub),
            Recipients::Many(to) if to.len() == 1 => self.deliver_one(to[0], deliver, hub),
            Recipients::Many(to) => self.deliver_many(to, &deliver, hub),
        }
    }

    fn deliver_one(&mut self, connection: ConnectionId, deliver: Deliver, hub: &Hub) {
        let Some(staged) = self.place(connection, hub) else { return };
        match staged.outbox.protocol.deliveries() {
            Encoding::Shared(encode) => staged.append_own(hub, |own| encode(&deliver, deliver.first, own)),
            Encoding::BySession => staged.push_event(Event::Delivered(deliver)),
        }
    }

    fn deliver_many(&mut self, to: &Arc<[ConnectionId]>, deliver: &Deliver, hub: &Hub) {
        self.encode_many(
            to,
            RunKind::Delivery,
            hub,
            |run| run.encode(deliver),
            || Event::Delivered(deliver.clone()),
        );
    }

    /// Adds a topic's message for one or many subscribers.
    pub(crate) fn publish(&mut self, publication: &Publication, hub: &Hub) {
        match &publication.to {
            Recipients::One(connection) => {
                let Some(staged) = self.place(*connection, hub) else { return };
                match staged.outbox.protocol.publications() {
                    Encoding::Shared(encode) => staged.append_own(hub, |own| encode(publication, own)),
                    Encoding::BySession => staged.push_event(published(publication)),
                }
            }
            Recipients::Many(to) => {
                let encode = |run: &mut Run| run.encode_publication(publication);
                self.encode_many(to, RunKind::Publication, hub, encode, || published(publication));
            }
        }
    }

    /// Appends to the run of this list the bytes that `encode` produces; `encode` returns the size of the largest
    /// chunk. Members whose sessions encode get an event of their own.
    fn encode_many(
        &mut self,
        to: &Arc<[ConnectionId]>,
        kind: RunKind,
        hub: &Hub,
        encode: impl FnOnce(&mut Run) -> usize,
        event: impl Fn() -> Event,
    ) {
        let same = self.run.as_ref().is_some_and(|run| Arc::ptr_eq(&run.to, to) && run.kind == kind);
        if !same {
            self.close_run();
            self.begin_run(to, kind, hub);
        }
        let Some(run) = &mut self.run else { return };
        for connection in &run.by_session {
            let Some(staged) = self.connections.get_mut(connection) else { continue };
            staged.push_event(event());
            if !staged.dirty {
                staged.dirty = true;
                self.dirty.push(*connection);
            }
        }
        if encode(run) >= CHUNK_BYTES {
            self.close_run();
        }
    }

    /// Marks all members of the list, so that anything else for one of them closes the run first.
    fn begin_run(&mut self, to: &Arc<[ConnectionId]>, kind: RunKind, hub: &Hub) {
        self.runs_begun += 1;
        let number = self.runs_begun;
        let mut spoken = [false; Protocol::ALL.len()];
        let mut by_session = Vec::new();
        for &connection in &**to {
            if let Some(staged) = find_or_add(&mut self.connections, connection, hub) {
                let protocol = staged.outbox.protocol;
                if kind.is_by_session(protocol) {
                    by_session.push(connection);
                } else {
                    staged.run = number;
                    spoken[protocol as usize] = true;
                }
            }
        }
        let (to, shared) = (Arc::clone(to), Chunks::default());
        self.run = Some(Run { number, to, kind, spoken, by_session, shared, first: None });
    }

    fn close_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let shared = run.shared.0.map(Bytes::from);
        let first = run.first.map(|first| first.0.map(Bytes::from));
        for (index, connection) in run.to.iter().enumerate() {
            let Some(staged) = self.connections.get_mut(connection) else { continue };
            if run.kind.is_by_session(staged.outbox.protocol) {
                continue;
            }
            let frames = match &first {
                Some(first) if index == 0 => first,
                _ => &shared,
            };
            staged.close_own();
            staged.append_shared(frames[staged.outbox.protocol as usize].clone());
            if !staged.dirty {
                staged.dirty = true;
                self.dirty.push(*connection);
            }
        }
    }

    /// Pushes everything to the outboxes. Appends to `congested` the connections that should receive no more for now.
    /// False if there was nothing to push.
    pub(crate) fn flush(&mut self, congested: &mut Vec<ConnectionId>) -> bool {
        self.close_run();
        let any = !self.dirty.is_empty();
        for connection in self.dirty.drain(..) {
            let Some(staged) = self.connections.get_mut(&connection) else { continue };
            staged.dirty = false;
            staged.close_own();
            let bytes = std::mem::take(&mut staged.bytes);
            if staged.outbox.push(&mut staged.outgoing, bytes, self.shard) == Pushed::Congested {
                congested.push(connection);
            }
        }
        any
    }
}

impl Run {
    /// Appends a topic's message, which is the same for the whole list, and returns the size of the largest chunk.
    fn encode_publication(&mut self, publication: &Publication) -> usize {
        let mut largest = 0;
        for protocol in Protocol::ALL.into_iter().filter(|protocol| self.spoken[*protocol as usize]) {
            let Encoding::Shared(encode) = protocol.publications() else { continue };
            let shared = &mut self.shared.0[protocol as usize];
            let before = shared.len();
            encode(publication, shared);
            largest = largest.max(shared.len());
            if let Some(first) = &mut self.first {
                first.0[protocol as usize].extend_from_slice(&shared[before..]);
            }
        }
        largest
    }

    /// Appends the message, and returns the size of the largest chunk.
    fn encode(&mut self, deliver: &Deliver) -> usize {
        if deliver.first && self.first.is_none() {
            self.first = Some(Chunks(self.shared.0.clone()));
        }
        let mut largest = 0;
        for protocol in Protocol::ALL.into_iter().filter(|protocol| self.spoken[*protocol as usize]) {
            let Encoding::Shared(encode) = protocol.deliveries() else { continue };
            let shared = &mut self.shared.0[protocol as usize];
            let before = shared.len();
            encode(deliver, false, shared);
            largest = largest.max(shared.len());
            if let Some(first) = &mut self.first {
                let first = &mut first.0[protocol as usize];
                if deliver.first {
                    encode(deliver, true, first);
                } else {
                    first.extend_from_slice(&shared[before..]);
                }
            }
        }
        largest
    }
}
