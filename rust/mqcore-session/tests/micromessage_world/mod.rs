//! Sessions of MicroMessage2, shards and a clock between them, without IO.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Destination, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event, Forwarded, Publication};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_session::extension::ExtensionFailure;
use mqcore_session::micromessage::MicroMessageSession;
use mqcore_session::micromessage::listener::MicroMessageTerms;
use mqcore_session::session::{Session, SessionConfig, SessionError, provisional_client};
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::handshake::{self, Handshake};
use mqcore_wire::micromessage::{Assembled, Assembly, Frame, MessageFrame, decode, encode};

/// A frame that a peer received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Message { sequence: u16, destination: String, properties: String, payload: Vec<u8> },
    Command(String),
    Extension { id: u8, payload: Vec<u8> },
    Error(String),
}

pub(crate) fn message(sequence: u16, destination: &str, properties: &str, payload: &[u8]) -> Heard {
    let (destination, properties) = (destination.to_owned(), properties.to_owned());
    Heard::Message { sequence, destination, properties, payload: payload.to_vec() }
}

pub(crate) fn properties_of(heard: &[Heard]) -> Vec<&str> {
    heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Message { properties, .. } => Some(&**properties),
            _ => None,
        })
        .collect()
}

pub(crate) fn handshake_bytes(identity: &[u8], required: &str, optional: &str) -> Vec<u8> {
    let (required, optional) = (required.as_bytes(), optional.as_bytes());
    let mut bytes = Vec::new();
    handshake::encode(&Handshake { major: 1, minor: 0, flags: 0, identity, required, optional }, &mut bytes);
    bytes
}

fn framed(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    bytes
}

pub(crate) fn send(sequence: u16, destination: &str, properties: &str, payload: &[u8]) -> Vec<u8> {
    let (destination, properties) = (destination.as_bytes(), properties.as_bytes());
    framed(&Frame::Message(MessageFrame { continued: false, sequence, destination, properties, payload }))
}

/// Messages with their numbers as bodies.
pub(crate) fn sends(numbers: std::ops::RangeInclusive<u16>, destination: &str) -> Vec<u8> {
    numbers.flat_map(|number| send(number, destination, "", number.to_string().as_bytes())).collect()
}

pub(crate) fn command(text: &str) -> Vec<u8> {
    framed(&Frame::Command { payload: text.as_bytes() })
}

pub(crate) fn extension(id: u8, payload: &[u8]) -> Vec<u8> {
    framed(&Frame::Extension { id, payload })
}

pub(crate) fn ack(id: u8, number: u16) -> Vec<u8> {
    extension(id, &number.to_be_bytes())
}

struct Peer {
    session: MicroMessageSession,
    provisional: Arc<Client>,
    unread: Vec<u8>,
    written: Vec<u8>,
    error: Option<SessionError>,
    last: bool,
}

pub(crate) struct World {
    shards: Vec<Broker>,
    peers: BTreeMap<ConnectionId, Peer>,
    terms: Arc<MicroMessageTerms>,
    now: Timestamp,
    next: u64,
}

impl World {
    pub(crate) fn new(shards: usize) -> Self {
        Self::with_terms(shards, MicroMessageTerms::default())
    }

    pub(crate) fn with_terms(shards: usize, terms: MicroMessageTerms) -> Self {
        let shard = |shard| {
            Broker::new(BrokerConfig {
                shard,
                placement: Placement::unkeyed(shards),
                seed: 7,
                ..BrokerConfig::default()
            })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            peers: BTreeMap::new(),
            terms: Arc::new(terms),
            now: Timestamp(1_795_216_278_000),
            next: 0,
        }
    }

    /// A connection before its handshake.
    pub(crate) fn connect(&mut self) -> ConnectionId {
        self.next += 1;
        let connection = ConnectionId(self.next);
        let config = SessionConfig {
            connection,
            shards: self.shards.len(),
            limits: Limits::default(),
            login_bytes_max: 1 << 16,
            answer_bytes_max: 1 << 23,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            admin: true,
            peer: Arc::default(),
            node: None,
        };
        let vendors: Arc<[Box<str>]> = Arc::new(["x-note".into()]);
        let peer = Peer {
            provisional: provisional_client(&config, "mm2", self.now),
            session: MicroMessageSession::new(config, Arc::clone(&self.terms), vendors, self.now),
            unread: Vec::new(),
            written: Vec::new(),
            error: None,
            last: false,
        };
        self.peers.insert(connection, peer);
        connection
    }

    /// A connection on which these extensions are in force.
    pub(crate) fn open(&mut self, required: &str, optional: &str) -> ConnectionId {
        let connection = self.connect();
        for _ in 0..2 {
            self.send(connection, &handshake_bytes(b"peer", required, optional));
        }
        self.take_handshake(connection);
        assert!(self.session(connection).client().is_some(), "{:?}", self.heard(connection));
        connection
    }

    pub(crate) fn session(&mut self, connection: ConnectionId) -> &mut MicroMessageSession {
        &mut self.peers.get_mut(&connection).unwrap().session
    }

    pub(crate) fn session_is_over(&self, connection: ConnectionId) -> bool {
        let peer = &self.peers[&connection];
        peer.error.is_some() || peer.session.is_closing()
    }

    pub(crate) fn error(&self, connection: ConnectionId) -> Option<&SessionError> {
        self.peers[&connection].error.as_ref()
    }

    pub(crate) fn client(&self, connection: ConnectionId) -> Arc<Client> {
        self.peers[&connection].session.client().unwrap().clone()
    }

    pub(crate) fn unread(&self, connection: ConnectionId) -> usize {
        self.peers[&connection].unread.len()
    }

    pub(crate) fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.unread.extend_from_slice(bytes);
        // Loops, because the session pauses while the broker accepts the peer.
        let mut idle = 0;
        while idle < 2 {
            let before = self.unread(connection);
            self.read(connection);
            idle = if self.unread(connection) < before { 0 } else { idle + 1 };
        }
    }

    pub(crate) fn send_last(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.peers.get_mut(&connection).unwrap().last = true;
        self.send(connection, bytes);
    }

    fn read(&mut self, connection: ConnectionId) {
        let now = self.now;
        let peer = self.peers.get_mut(&connection).unwrap();
        if peer.error.is_some() || peer.session.is_closing() {
            return;
        }
        let (mut commands, Peer { session, unread, written, last, .. }) = (Vec::new(), &mut *peer);
        let read = if *last {
            session.receive_last(unread, now, &mut commands, written)
        } else {
            session.receive(unread, now, &mut commands, written)
        };
        match read {
            Ok(consumed) => drop(unread.drain(..consumed)),
            Err(error) => peer.error = Some(error),
        }
        let client = peer.session.client().unwrap_or(&peer.provisional).clone();
        self.ask(&client, commands);
        self.events_done();
    }

    fn ask(&mut self, client: &Arc<Client>, commands: Vec<Command>) {
        let mut effects = VecDeque::new();
        for command in commands {
            let to = match command.destination(Placement::unkeyed(self.shards.len())) {
                Destination::Shard(shard) => vec![shard],
                Destination::Home => vec![0],
                Destination::Every => (0..self.shards.len()).collect(),
            };
            for shard in to {
                let mut out = Vec::new();
                self.shards[shard].command(client, command.clone(), self.now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            self.carry_out(&mut effects);
        }
    }

    fn events_done(&mut self) {
        for peer in self.peers.values_mut() {
            if peer.error.is_none() && !peer.session.is_closing() {
                peer.session.events_done(&mut peer.written);
            }
        }
    }

    fn carry_out(&mut self, effects: &mut VecDeque<(usize, Effect)>) {
        loop {
            while let Some((_, effect)) = effects.pop_front() {
                self.effect(effect, effects);
            }
            for shard in 0..self.shards.len() {
                let mut out = Vec::new();
                self.shards[shard].work(self.now, 1024, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            if effects.is_empty() {
                return;
            }
        }
    }

    fn effect(&mut self, effect: Effect, effects: &mut VecDeque<(usize, Effect)>) {
        match effect {
            Effect::Notify(to, event) => self.tell(to, event),
            // As the server does for protocols whose sessions encode messages.
            Effect::Deliver(deliver) => {
                for to in deliver.to.as_slice() {
                    self.tell(*to, Event::Delivered(deliver.clone()));
                }
            }
            Effect::Publication(Publication { topic, message, to }) => {
                for to in to.as_slice() {
                    self.tell(*to, Event::Published { topic: topic.clone(), message: message.clone() });
                }
            }
            Effect::Forward(to, forwarded) => self.forward(to, forwarded, effects),
            other => panic!("nothing here leads to {other:?}"),
        }
    }

    fn tell(&mut self, to: ConnectionId, event: Event) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if peer.error.is_none()
            && !peer.session.is_closing()
            && let Err(error) = peer.session.event(event, self.now, &mut peer.written)
        {
            peer.error = Some(error);
        }
    }

    fn forward(&mut self, to: usize, forwarded: Forwarded, effects: &mut VecDeque<(usize, Effect)>) {
        let mut out = Vec::new();
        self.shards[to].forwarded(forwarded, self.now, &mut out);
        effects.extend(out.into_iter().map(|effect| (to, effect)));
    }

    fn everywhere(&mut self, act: impl Fn(&mut Broker, Timestamp, &mut Vec<Effect>)) {
        let mut effects = VecDeque::new();
        for shard in 0..self.shards.len() {
            let mut out = Vec::new();
            act(&mut self.shards[shard], self.now, &mut out);
            effects.extend(out.into_iter().map(|effect| (shard, effect)));
        }
        self.carry_out(&mut effects);
        self.events_done();
    }

    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.peers.remove(&connection);
        self.everywhere(|broker, now, out| broker.closed(connection, now, out));
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        for peer in self.peers.values_mut() {
            if peer.error.is_none() && peer.session.next_timeout() <= self.now {
                peer.error = peer.session.timeout(self.now, &mut peer.written).err();
            }
        }
        self.everywhere(|broker, now, out| broker.timeout(now, out));
    }

    pub(crate) fn shut_down(&mut self, connection: ConnectionId) {
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.session.shutdown(&mut peer.written);
    }

    pub(crate) fn vendor_answers(
        &mut self,
        connection: ConnectionId,
        id: u8,
        answer: Result<Vec<Vec<u8>>, ExtensionFailure>,
    ) {
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.error = peer.session.extension_answered(id, answer, &mut peer.written).err();
    }

    /// Removes a queue, as an administrator would.
    pub(crate) fn drop_queue(&mut self, name: &str) {
        let queue = QueueAddress::parse(name).unwrap();
        let admin = self.peers.values().next().unwrap().provisional.clone();
        self.ask(&admin, vec![Command::Request(RequestId(9999), Box::new(Request::DropQueue { queue }))]);
    }

    /// Number of messages in a queue that were not delivered.
    pub(crate) fn waiting(&self, name: &str) -> usize {
        let queue = QueueAddress::parse(name).unwrap();
        self.shards[queue.channel.shard(Placement::unkeyed(self.shards.len()))]
            .waiting(&queue, 1000)
            .unwrap()
            .len()
    }

    /// Bytes that were written to a peer since the last call.
    pub(crate) fn take(&mut self, connection: ConnectionId) -> Vec<u8> {
        std::mem::take(&mut self.peers.get_mut(&connection).unwrap().written)
    }

    /// Removes the server's message of the handshake.
    pub(crate) fn take_handshake(&mut self, connection: ConnectionId) -> Vec<u8> {
        let mut bytes = self.take(connection);
        let size = match handshake::decode(&bytes, &Limits::default()) {
            Ok(Some((_, size))) => size,
            other => panic!("{other:?}"),
        };
        let rest = bytes.split_off(size);
        self.peers.get_mut(&connection).unwrap().written = rest;
        bytes
    }

    /// The frames that a peer received since the last call, with the parts of messages joined.
    pub(crate) fn heard(&mut self, connection: ConnectionId) -> Vec<Heard> {
        let bytes = self.take(connection);
        let (mut rest, mut heard, mut assembly) = (&bytes[..], Vec::new(), Assembly::new(1 << 30));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        while !rest.is_empty() {
            let (frame, size) =
                decode(rest, 255, &Limits::default()).unwrap().expect("whole frames are written");
            rest = &rest[size..];
            heard.push(match frame {
                Frame::Command { payload } => Heard::Command(text(payload)),
                Frame::Extension { id, payload } => Heard::Extension { id, payload: payload.to_vec() },
                Frame::Error { text: said } => Heard::Error(text(said)),
                Frame::Message(part) => match assembly.push(part).unwrap() {
                    Assembled::Unfinished => continue,
                    Assembled::Whole(MessageFrame { sequence, destination, properties, payload, .. }) => {
                        message(sequence, &text(destination), &text(properties), payload)
                    }
                    Assembled::Joined(whole) => message(
                        whole.sequence,
                        &text(&whole.destination),
                        &text(&whole.properties),
                        &whole.payload,
                    ),
                },
            });
        }
        heard
    }
}
