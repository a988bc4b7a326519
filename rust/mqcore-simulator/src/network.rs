//! The network: two byte streams for each connection, with delays, cuts and silence.

use std::collections::BTreeMap;

use mqcore_broker::model::id::ConnectionId;
use mqcore_testkit::Random;

use crate::time::Micros;

/// A piece of a stream.
pub(crate) type Bytes = Vec<u8>;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Broker,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct SimulatedLink {
    pub(crate) client: usize,
    /// Bytes on their way to the broker, and bytes at the broker that it has not read.
    to_broker: Stream,
    to_client: Stream,
    /// Nothing arrives any more in either direction, and neither side notices.
    silent: bool,
    /// Maximum bytes on their way in one direction.
    window: usize,
}

#[derive(Debug, Default)]
struct Stream {
    /// Sent and not read.
    pending: usize,
    arrived: Bytes,
    /// All bytes that have arrived.
    total: u64,
    last_arrival: Micros,
    ended: bool,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Network {
    random: Random,
    links: BTreeMap<ConnectionId, SimulatedLink>,
    opened: u64,
    latency: Micros,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let latency = [20, 200, 2_000, 10_000][random.index(4)];
        Self { random, links: BTreeMap::new(), opened: 0, latency }
    }

    pub(crate) fn open(&mut self, client: usize) -> ConnectionId {
        self.opened += 1;
        let id = ConnectionId(self.opened);
        // A small window on a slow network would delay messages beyond their timeouts.
        let least = if self.latency > 1_000 { 16_384 } else { 600 };
        let window = [600, 4_096, 65_536][self.random.index(3)].max(least);
        let (to_broker, to_client) = (Stream::default(), Stream::default());
        self.links.insert(id, SimulatedLink { client, to_broker, to_client, silent: false, window });
        id
    }

    pub(crate) fn client_of(&self, id: ConnectionId) -> Option<usize> {
        self.links.get(&id).map(|link| link.client)
    }

    pub(crate) fn open_links(&self) -> Vec<ConnectionId> {
        self.links.keys().copied().collect()
    }

    fn delay(&mut self) -> Micros {
        let spike = if self.random.one_in(40) { self.random.below(100_000) } else { 0 };
        self.latency / 2 + self.random.below(self.latency) + spike
    }

    /// Bytes that a side can send now.
    pub(crate) fn room(&self, id: ConnectionId, from: Side) -> usize {
        self.links.get(&id).map_or(0, |link| link.window.saturating_sub(link.stream(from.other()).pending))
    }

    /// Sends bytes in pieces of random sizes. Returns each piece and when it arrives. Bytes for a connection that was cut are
    /// lost.
    pub(crate) fn send(
        &mut self,
        id: ConnectionId,
        from: Side,
        bytes: &[u8],
        now: Micros,
    ) -> Vec<(Micros, Bytes)> {
        let (mut rest, mut pieces) = (bytes, Vec::new());
        while !rest.is_empty() {
            let size =
                if self.random.one_in(4) { 1 + self.random.index(rest.len().min(40)) } else { rest.len() };
            let (piece, behind) = rest.split_at(size.min(rest.len()));
            rest = behind;
            let delay = self.delay();
            let Some(link) = self.links.get_mut(&id) else { break };
            let silent = link.silent;
            let stream = link.stream_mut(from.other());
            stream.pending += piece.len();
            if !silent {
                stream.last_arrival = stream.last_arrival.max(now + delay);
                pieces.push((stream.last_arrival, piece.to_vec()));
            }
        }
        pieces
    }

    /// Ends the stream of one side after what it has sent. Returns when the other side sees that.
    pub(crate) fn finish(&mut self, id: ConnectionId, from: Side, now: Micros) -> Option<Micros> {
        let delay = self.delay();
        let link = self.links.get_mut(&id).filter(|link| !link.silent)?;
        let stream = link.stream_mut(from.other());
        stream.last_arrival = stream.last_arrival.max(now + delay);
        Some(stream.last_arrival)
    }

    pub(crate) fn arrive(&mut self, id: ConnectionId, at: Side, bytes: &[u8]) -> bool {
        let Some(link) = self.links.get_mut(&id).filter(|link| !link.silent) else { return false };
        let stream = link.stream_mut(at);
        stream.arrived.extend_from_slice(bytes);
        stream.total += bytes.len() as u64;
        true
    }

    pub(crate) fn end(&mut self, id: ConnectionId, at: Side) -> bool {
        let Some(link) = self.links.get_mut(&id).filter(|link| !link.silent) else { return false };
        link.stream_mut(at).ended = true;
        true
    }

    /// Reads up to `most` bytes. `None`: the connection was cut.
    pub(crate) fn read(&mut self, id: ConnectionId, at: Side, most: usize) -> Option<Bytes> {
        let stream = self.links.get_mut(&id)?.stream_mut(at);
        let rest = stream.arrived.split_off(most.min(stream.arrived.len()));
        let read = std::mem::replace(&mut stream.arrived, rest);
        stream.pending -= read.len();
        Some(read)
    }

    /// Whether a side has read everything and the other side has closed.
    pub(crate) fn is_at_end(&self, id: ConnectionId, at: Side) -> bool {
        self.links.get(&id).is_none_or(|link| link.stream(at).ended && link.stream(at).arrived.is_empty())
    }

    /// Bytes that the broker has read so far.
    pub(crate) fn read_total(&self, id: ConnectionId) -> u64 {
        self.links.get(&id).map_or(0, |link| link.to_broker.total - link.to_broker.arrived.len() as u64)
    }

    /// Cuts a connection: what has not been read is lost, and both sides notice.
    pub(crate) fn cut(&mut self, id: ConnectionId) {
        self.links.remove(&id);
    }

    pub(crate) fn is_cut(&self, id: ConnectionId) -> bool {
        !self.links.contains_key(&id)
    }

    /// From now on nothing arrives, and neither side notices.
    pub(crate) fn silence(&mut self, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.silent = true;
        }
    }

    pub(crate) fn is_silent(&self, id: ConnectionId) -> bool {
        self.links.get(&id).is_some_and(|link| link.silent)
    }

    /// A time that a task needs until it runs.
    pub(crate) fn jitter(&mut self, most: Micros) -> Micros {
        self.random.below(most + 1)
    }
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Broker,
            Self::Broker => Self::Client,
        }
    }
}

impl SimulatedLink {
    /// The stream that arrives at a side.
    fn stream(&self, at: Side) -> &Stream {
        match at {
            Side::Client => &self.to_client,
            Side::Broker => &self.to_broker,
        }
    }

    fn stream_mut(&mut self, at: Side) -> &mut Stream {
        match at {
            Side::Client => &mut self.to_client,
            Side::Broker => &mut self.to_broker,
        }
    }
}
