//! EventMQ conversations: recorded dialogues of the original and its peers, replayed between sessions and a broker of
//! several shards; and mqcore's extensions.

mod results;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{ClientPattern, Command, Destination, Request, Retry};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event, Forwarded, Reply};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_session::eventmq::listener::{EventmqTerms, Role};
use mqcore_session::eventmq::schedules::{ScheduleEnd, ScheduleRequest, Schedules};
use mqcore_session::eventmq::shared::EventmqShared;
use mqcore_session::eventmq::{EventmqSession, SILENCE_MAX, encode_publication};
use mqcore_session::session::{Session, SessionConfig, SessionError, provisional_client};
use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::headers::Headers;
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand};
use mqcore_wire::zmtp::{GREETING_BYTES, Greeting, Item, ZmtpDecoder, encode_message};
use serde_json::{Value, json};

/// One peer: its session, and its output that no test has read yet.
struct Peer {
    session: EventmqSession,
    provisional: Arc<Client>,
    unread: Vec<u8>,
    written: Vec<u8>,
    error: Option<SessionError>,
}

/// Sessions, shards and the clock between them.
struct World {
    shards: Vec<Broker>,
    exchange: Arc<EventmqShared>,
    peers: BTreeMap<ConnectionId, Peer>,
    now: Timestamp,
    next: u64,
}

/// A message, each frame as text.
type Texts = Vec<String>;

impl World {
    fn new(shards: usize) -> Self {
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
            exchange: Arc::new(EventmqShared::new(7, Some("ack-on-send".into()))),
            peers: BTreeMap::new(),
            now: Timestamp(1_795_216_278_000),
            next: 0,
        }
    }

    fn connect(&mut self, role: Role) -> ConnectionId {
        self.next += 1;
        let connection = ConnectionId(self.next);
        let config = SessionConfig {
            connection,
            shards: self.shards.len(),
            limits: Limits { frame_bytes_max: 1 << 20, ..Limits::default() },
            login_bytes_max: 1 << 16,
            answer_bytes_max: 1 << 23,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            admin: true,
            peer: Arc::default(),
            node: None,
        };
        let peer = Peer {
            provisional: provisional_client(&config, "emqp", self.now),
            session: EventmqSession::new(EventmqTerms { role }, &self.exchange, config, self.now),
            unread: Vec::new(),
            written: Vec::new(),
            error: None,
        };
        self.peers.insert(connection, peer);
        connection
    }

    /// A peer after its handshake.
    fn join(&mut self, role: Role, identity: &[u8]) -> ConnectionId {
        self.join_as(role, identity, None)
    }

    /// A peer of this user after its handshake.
    fn join_as(&mut self, role: Role, identity: &[u8], user: Option<&str>) -> ConnectionId {
        let connection = self.connect(role);
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.provisional = Arc::new(Client { user: user.map(Into::into), ..(*peer.provisional).clone() });
        let socket = if role == Role::Subscribe { SocketType::Sub } else { SocketType::Dealer };
        let mut bytes = Vec::new();
        Greeting { minor: 0, as_server: false }.encode(&mut bytes);
        ZmtpCommand::Ready(Ready { socket, identity, token: b"" }).encode(&mut bytes);
        self.send(connection, &bytes);
        let written = std::mem::take(&mut self.peers.get_mut(&connection).unwrap().written);
        assert!(Greeting::decode(&written).unwrap().is_some());
        assert!(written[GREETING_BYTES..].starts_with(b"\x04"), "READY is a command");
        connection
    }

    fn client(&mut self) -> ConnectionId {
        self.join(Role::Frontend, b"")
    }

    /// A worker with this many slots.
    fn worker(&mut self, queues: &str, slots: usize) -> ConnectionId {
        let worker = self.join(Role::Backend, b"");
        self.say(worker, &["INFORM", "i", queues, "worker"]);
        let said = self.heard(worker);
        assert_eq!((said[0][2].as_str(), said[1][2].as_str()), ("ACK", "HEARTBEAT"));
        for _ in 0..slots {
            self.say(worker, &["READY", "r"]);
        }
        worker
    }

    fn say(&mut self, connection: ConnectionId, words: &[&str]) {
        let mut parts: Vec<&[u8]> = vec![b"", b"eMQP/1.0"];
        parts.extend(words.iter().map(|word| word.as_bytes()));
        self.send_message(connection, &parts);
    }

    fn send_message(&mut self, connection: ConnectionId, parts: &[&[u8]]) {
        let mut bytes = Vec::new();
        encode_message(parts, &mut bytes);
        self.send(connection, &bytes);
    }

    fn request(&mut self, client: ConnectionId, id: &str, queue: &str, headers: &str) {
        self.say(client, &["REQUEST", id, queue, headers, "job"]);
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.peers.get_mut(&connection).unwrap().unread.extend_from_slice(bytes);
        // Loops, because a session pauses while the broker accepts the peer or creates a queue for it.
        let mut idle = 0;
        while idle < 2 {
            let before = self.peers[&connection].unread.len();
            self.read(connection);
            idle = if self.peers[&connection].unread.len() < before { 0 } else { idle + 1 };
        }
    }

    /// Sends the last input of a peer, which closes its side at once.
    fn send_last(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.peers.get_mut(&connection).unwrap().unread.extend_from_slice(bytes);
        // The session pauses while the broker accepts the peer.
        for _ in 0..2 {
            self.read_so(connection, true);
        }
    }

    /// A client connects, sends a job to each of these queues, and closes its side at once.
    fn close_after(&mut self, queues: &[&str]) {
        let client = self.connect(Role::Frontend);
        let requests: Vec<u8> = queues.iter().flat_map(|queue| request_to(queue)).collect();
        self.send_last(client, &[handshake(SocketType::Dealer), requests].concat());
        assert!(self.peers[&client].session.is_closing(), "it is gone by itself");
        assert!(self.request_errors(client).is_empty());
        self.close(client);
    }

    fn read(&mut self, connection: ConnectionId) {
        self.read_so(connection, false);
    }

    fn read_so(&mut self, connection: ConnectionId, last: bool) {
        let peer = self.peers.get_mut(&connection).unwrap();
        if peer.session.is_closing() || peer.error.is_some() {
            return;
        }
        let (mut commands, Peer { session, unread, written, .. }) = (Vec::new(), &mut *peer);
        let read = if last {
            session.receive_last(unread, self.now, &mut commands, written)
        } else {
            session.receive(unread, self.now, &mut commands, written)
        };
        match read {
            Ok(consumed) => drop(unread.drain(..consumed)),
            Err(error) => peer.error = Some(error),
        }
        let mut effects = VecDeque::new();
        self.command(connection, commands, &mut effects);
        self.carry_out(&mut effects);
    }

    fn command(
        &mut self,
        connection: ConnectionId,
        commands: Vec<Command>,
        effects: &mut VecDeque<(usize, Effect)>,
    ) {
        for command in commands {
            let to = match command.destination(Placement::unkeyed(self.shards.len())) {
                Destination::Shard(shard) => vec![shard],
                Destination::Home => vec![0],
                Destination::Every => (0..self.shards.len()).collect(),
            };
            for shard in to {
                let peer = &self.peers[&connection];
                let client = peer.session.client().unwrap_or(&peer.provisional).clone();
                let mut out = Vec::new();
                self.shards[shard].command(&client, command.clone(), self.now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
        }
    }

    /// Carries out effects, and the sessions' own commands, until there are none left.
    fn carry_out(&mut self, effects: &mut VecDeque<(usize, Effect)>) {
        loop {
            while let Some((_, effect)) = effects.pop_front() {
                self.effect(effect, effects);
            }
            let connections: Vec<_> = self.peers.keys().copied().collect();
            for connection in connections {
                let commands = self.peers.get_mut(&connection).unwrap().session.take_commands();
                self.command(connection, commands, effects);
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

    fn tell(&mut self, to: ConnectionId, event: Event) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        // The server does not call such a session again.
        if peer.error.is_none()
            && !peer.session.is_closing()
            && let Err(error) = peer.session.event(event, self.now, &mut peer.written)
        {
            peer.error = Some(error);
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
            Effect::Publication(publication) => {
                for to in publication.to.as_slice() {
                    if let Some(peer) = self.peers.get_mut(to) {
                        encode_publication(&publication, &mut peer.written);
                    }
                }
            }
            Effect::Forward(shard, forwarded) => {
                let mut out = Vec::new();
                let forwarded: Forwarded = forwarded;
                self.shards[shard].forwarded(forwarded, self.now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            Effect::Transfer(transfer) => {
                let shard = transfer.to.channel.shard(Placement::unkeyed(self.shards.len()));
                let mut out = Vec::new();
                self.shards[shard].transfer(*transfer, self.now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            Effect::Record(..) | Effect::Report(_) => {}
            other => panic!("{other:?} is not expected here"),
        }
    }

    /// Closes the connection.
    fn close(&mut self, connection: ConnectionId) {
        drop(self.peers.remove(&connection));
        let mut effects = VecDeque::new();
        for (shard, broker) in self.shards.iter_mut().enumerate() {
            let mut out = Vec::new();
            broker.closed(connection, self.now, &mut out);
            effects.extend(out.into_iter().map(|effect| (shard, effect)));
        }
        self.carry_out(&mut effects);
    }

    /// Advances the time and runs every timeout that is due.
    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        loop {
            let due = self.peers.values().filter(|peer| peer.error.is_none());
            let next = due.map(|peer| peer.session.next_timeout()).min().unwrap_or(Timestamp::NEVER);
            self.now = next.max(self.now).min(until);
            for peer in self.peers.values_mut() {
                if peer.error.is_none()
                    && peer.session.next_timeout() <= self.now
                    && let Err(error) = peer.session.timeout(self.now, &mut peer.written)
                {
                    peer.error = Some(error);
                }
            }
            let mut effects = VecDeque::new();
            for (shard, broker) in self.shards.iter_mut().enumerate() {
                let mut out = Vec::new();
                broker.timeout(self.now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            self.carry_out(&mut effects);
            if next > until {
                return;
            }
        }
    }

    /// Messages that a peer received since the last call.
    fn heard(&mut self, connection: ConnectionId) -> Vec<Texts> {
        let written = std::mem::take(&mut self.peers.get_mut(&connection).unwrap().written);
        let (mut decoder, mut rest, mut said) = (ZmtpDecoder::new(), &written[..], Vec::new());
        while let Some((item, size)) = decoder.next(rest, &Limits::default()).unwrap() {
            if let Item::Message(parts) = item {
                said.push(parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect());
            }
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "half a frame was written");
        said
    }

    /// The same without heartbeats.
    fn messages(&mut self, connection: ConnectionId) -> Vec<Texts> {
        self.heard(connection)
            .into_iter()
            .filter(|said| said.get(2).is_none_or(|word| word != "HEARTBEAT"))
            .collect()
    }

    /// Ids of the jobs that a worker received.
    fn jobs(&mut self, worker: ConnectionId) -> Vec<String> {
        let said = self.messages(worker).into_iter();
        said.inspect(|said| assert_eq!(said[2], "REQUEST")).map(|said| said[3].clone()).collect()
    }

    fn request_errors(&mut self, connection: ConnectionId) -> Vec<String> {
        let peer = self.peers.get_mut(&connection).unwrap();
        peer.session.take_request_errors().into_iter().map(|error| error.reason).collect()
    }

    fn error(&self, connection: ConnectionId) -> Option<&SessionError> {
        self.peers[&connection].error.as_ref()
    }

    fn count(
        &self,
        number: fn(&mqcore_session::eventmq::shared::EventmqCounters) -> &std::sync::atomic::AtomicU64,
    ) -> u64 {
        number(&self.exchange.counters).load(Ordering::Relaxed)
    }
}

fn vectors(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(file);
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn frames(vector: &Value) -> Vec<Vec<u8>> {
    vector["frames"].as_array().unwrap().iter().map(|frame| unhex(frame.as_str().unwrap())).collect()
}

fn role(vector: &Value) -> Role {
    Role::from_name(vector["socket"].as_str().unwrap()).unwrap()
}

// ---- Recorded ------------------------------------------------------------------------------------------------------

/// Removes parts that differ from run to run: the ids of the broker's own messages, and numbers.
fn comparable(mut said: Texts) -> Texts {
    match said[2].as_str() {
        "REPLY" if said[4].starts_with('{') && said.len() == 5 => said.truncate(3),
        "ACK" | "REPLY" | "KBYE" => drop(said.remove(3)),
        _ => {}
    }
    said
}

/// Replays all recordings; returns the messages that peers of the original did not receive.
fn replay(shards: usize) -> Vec<Texts> {
    let mut world = World::new(shards);
    let mut peers: HashMap<String, ConnectionId> = HashMap::new();
    let mut replies: HashMap<ConnectionId, Vec<Texts>> = HashMap::new();
    let (mut expected, mut more) = (HashMap::<ConnectionId, Vec<Texts>>::new(), Vec::new());
    for vector in vectors("eventmq.jsonl").iter().filter(|vector| vector["kind"] == "message") {
        let identity = vector["identity"].as_str().unwrap_or("").to_owned();
        let role = role(vector);
        let peer = *peers
            .entry(format!("{role:?} {identity}"))
            .or_insert_with(|| world.join(role, &unhex(&identity)));
        let parts = frames(vector);
        if vector["from"] == "peer" {
            world.send_message(peer, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if world.peers[&peer].session.stops_broker() {
                for peer in world.peers.values_mut().filter(|peer| !peer.session.is_closing()) {
                    peer.session.shutdown(&mut peer.written);
                }
            }
            for connection in peers.values() {
                replies.entry(*connection).or_default().extend(world.messages(*connection));
            }
        } else if parts[2] != b"HEARTBEAT" {
            let said = parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
            expected.entry(peer).or_default().push(said);
        }
    }
    for (peer, replies) in replies {
        let mut wanted: VecDeque<_> =
            expected.remove(&peer).unwrap_or_default().into_iter().map(comparable).collect();
        for said in replies.into_iter().map(comparable) {
            // The original does not always keep the order of two dispatches and their notices.
            match wanted.iter().take(3).position(|wanted| *wanted == said) {
                Some(at) => drop(wanted.remove(at)),
                None => more.push(said),
            }
        }
        assert_eq!(wanted, Vec::<Texts>::new(), "missing");
    }
    assert!(expected.is_empty());
    more
}

#[test]
fn recorded_dialogs_of_the_original_replay_identically() {
    for shards in [1, 3] {
        let more = replay(shards);
        let (results, notices): (Vec<_>, Vec<_>) = more.into_iter().partition(|said| said.len() == 5);
        // Clients of the original never received a result, and were not notified of jobs that had to wait.
        assert!(
            results.iter().all(|said| said[2] == "REPLY" && said[3].starts_with("{\"value\"")),
            "{results:?}"
        );
        assert_eq!(results.len(), 25, "one for each result that a worker sent: {results:?}");
        let mut waited: Vec<_> = notices.iter().map(|said| &said[3][..8]).collect();
        waited.sort_unstable();
        assert_eq!(waited, ["b0936321", "e18a3918"], "{shards} shards");
    }
}

#[test]
fn every_probe_is_survived_and_costs_only_its_sender() {
    for probe in vectors("eventmq.jsonl").iter().filter(|vector| vector["kind"] == "probe") {
        let name = &probe["name"];
        let mut world = World::new(2);
        let (worker, client) = (world.worker("", 1), world.client());
        let peer = world.join(role(probe), &unhex(probe["identity"].as_str().unwrap_or("")));
        let parts = frames(probe);
        let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
        world.send_message(peer, &parts);
        let answers: Vec<_> = world.heard(peer).into_iter().map(|said| said[2].clone()).collect();
        let taken = probe["command"] == "REQUEST";
        let expected = if taken { json!(["REPLY"]) } else { probe["answers"].clone() };
        assert_eq!(json!(answers), expected, "{name}");
        assert_eq!(world.error(peer), None, "{name}");
        if name == "P26" {
            world.send_message(peer, &parts);
            assert_eq!(world.heard(peer).len(), 2, "joins twice");
        }
        if taken {
            assert_eq!(world.messages(worker)[0][4..], probe_text(probe), "{name}");
            world.say(worker, &["READY", "r"]);
        }
        assert!(!world.peers[&peer].session.stops_broker(), "{name}");
        // All other peers continue.
        world.request(client, "after", "default", "");
        assert_eq!(world.jobs(worker), ["after"], "{name}");
        assert_eq!(world.messages(client).len(), 1, "{name}");
    }
}

fn probe_text(probe: &Value) -> Vec<String> {
    frames(probe)[4..].iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

#[test]
fn bytes_of_libzmq_get_a_greeting_and_a_ready_in_any_split() {
    for vector in vectors("eventmq_zmtp.jsonl") {
        let bytes: Vec<u8> = vector["received"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|piece| unhex(piece.as_str().unwrap()))
            .collect();
        let role = if vector["socket"] == "SUB" { Role::Subscribe } else { Role::Backend };
        let mut answered = unhex(
            &[vector["answered_greeting"].as_str().unwrap(), vector["answered_ready"].as_str().unwrap()]
                .concat(),
        );
        if vector["note"].as_str().unwrap().contains("heartbeats") {
            ZmtpCommand::Pong(b"").encode(&mut answered);
        }
        for piece in [bytes.len(), 1, 7] {
            let mut world = World::new(2);
            let peer = world.connect(role);
            for bytes in bytes.chunks(piece) {
                world.send(peer, bytes);
            }
            assert_eq!(world.error(peer), None);
            assert_eq!(world.peers[&peer].written, answered, "{} in pieces of {piece}", vector["name"]);
        }
    }
}

// ---- Workers -------------------------------------------------------------------------------------------------------

#[test]
fn larger_weights_come_first_and_equals_take_turns() {
    let mut world = World::new(3);
    let workers: Vec<_> =
        [10, 30, 30, 20].map(|weight| world.worker(&format!("[[{weight}, \"q\"]]"), 2)).into();
    let client = world.client();
    let mut order = Vec::new();
    for number in 0..8 {
        world.request(client, &format!("j{number}"), "q", "");
        order.extend(
            (0..4)
                .filter(|index| !world.jobs(workers[*index]).is_empty())
                .map(|index| ["a", "b", "c", "d"][index]),
        );
    }
    assert_eq!(order, ["b", "c", "b", "c", "d", "d", "a", "a"]);
}

#[test]
fn a_worker_gets_no_more_jobs_than_it_has_slots_however_many_queues_and_shards_there_are() {
    let mut world = World::new(3);
    let client = world.client();
    let worker = world.worker(r#"[[1, "one"], [1, "two"], [1, "three"], [1, "four"]]"#, 0);
    for number in 0..12 {
        world.request(client, &number.to_string(), ["one", "two", "three", "four"][number % 4], "");
    }
    assert!(world.jobs(worker).is_empty());
    let mut all = Vec::new();
    for _ in 0..12 {
        world.say(worker, &["READY", "r"]);
        let jobs = world.jobs(worker);
        assert_eq!(jobs.len(), 1);
        all.extend(jobs);
    }
    // The queue that a worker lists first is emptied first, and each queue keeps its order.
    assert_eq!(&all[..3], ["0", "4", "8"]);
    all.sort_by_key(|id| id.parse::<usize>().unwrap());
    assert_eq!(all, (0..12).map(|number| number.to_string()).collect::<Vec<_>>());
    world.say(worker, &["READY", "r"]);
    assert!(world.jobs(worker).is_empty());
}

#[test]
fn jobs_wait_for_a_queue_that_is_known_and_go_to_default_if_it_is_not() {
    let mut world = World::new(3);
    let client = world.client();
    let known = world.worker(r#"[[1, "mail"]]"#, 0);
    world.request(client, "m", "mail", "");
    world.request(client, "u", "nobody", "");
    world.request(client, "x", "not a queue; at all", "");
    world.request(client, "d", "default", "");
    assert!(world.messages(client).is_empty(), "no consumer has a free slot");
    world.close(known);
    let worker = world.worker("", 4);
    let replies = world.messages(worker);
    let jobs: Vec<_> = replies.iter().map(|said| (&*said[3], &*said[4])).collect();
    assert_eq!(jobs, [("u", "nobody"), ("x", "not a queue; at all"), ("d", "default")], "the name stays");
    let known = world.worker(r#"[[1, "mail"]]"#, 1);
    assert_eq!(world.jobs(known), ["m"]);
    assert_eq!(world.messages(client).len(), 4);
    world.request(client, "v", "nobody", "");
    assert_eq!(world.count(|counters| &counters.fallen_back), 2, "those whose queue could be one");
}

#[test]
fn jobs_with_a_priority_come_first() {
    let mut world = World::new(3);
    let client = world.client();
    let worker = world.worker("", 0);
    for (id, headers) in [("1", ""), ("2", "priority:0"), ("3", "guarantee,priority:7"), ("4", "priority:1")]
    {
        world.request(client, id, "default", headers);
    }
    for _ in 0..4 {
        world.say(worker, &["READY", "r"]);
    }
    assert_eq!(world.jobs(worker), ["3", "4", "1", "2"]);
}

#[test]
fn unique_key_allows_one_job_and_duplicates_are_reported() {
    let mut world = World::new(3);
    let (client, other) = (world.client(), world.client());
    let worker = world.worker("", 1);
    world.request(client, "1", "default", "unique:order-17,reply-requested");
    assert_eq!(world.jobs(worker), ["1"]);
    world.messages(client);
    world.request(other, "2", "default", "reply-requested,unique:order-17");
    let replies = world.messages(other);
    assert_eq!((replies.len(), &*replies[0][2], &*replies[0][5]), (1, "REPLY", "2"));
    assert!(
        replies[0][4].contains("\"type\":\"Duplicate\"") && replies[0][4].contains("order-17"),
        "{replies:?}"
    );
    world.request(other, "3", "default", "unique:order-17");
    assert!(world.messages(other).is_empty(), "a client that wants no result receives none");
    assert_eq!(world.count(|counters| &counters.duplicates), 2);
    world.say(worker, &["REPLY", "r", "{}", "1"]);
    world.say(worker, &["READY", "r"]);
    world.request(other, "4", "default", "unique:order-17");
    assert_eq!(world.jobs(worker), ["4"], "it is done, and may be done again");
    world.request(other, "5", "default", &format!("unique:{}", "x".repeat(256)));
    assert_eq!(world.jobs(worker).len(), 0);
}

/// A job for a queue. Its id is the name of the queue.
fn request_to(queue: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let queue = queue.as_bytes();
    encode_message(&[b"", b"eMQP/1.0", b"REQUEST", queue, queue, b"", b"job"], &mut bytes);
    bytes
}

#[test]
fn a_client_that_closes_at_once_loses_no_job() {
    let mut world = World::new(3);
    world.close_after(&["default"]);
    world.close_after(&["nobody"]);
    let worker = world.worker("", 4);
    assert_eq!(world.jobs(worker), ["default", "nobody"]);
    // A client without jobs is closed too.
    world.close_after(&[]);
}

#[test]
fn jobs_of_a_client_that_closes_at_once_wait_in_default_even_if_it_does_not_exist_yet() {
    for queues in [&["nobody"][..], &["a", "b", "c", "d", "e", "f"]] {
        let mut world = World::new(3);
        world.close_after(queues);
        let worker = world.worker("", queues.len());
        assert_eq!(world.jobs(worker), queues);
    }
}

#[test]
fn a_client_that_closes_at_once_is_closed_after_every_shard_has_answered() {
    let mut world = World::new(3);
    let client = world.client();
    let bytes: Vec<u8> = ["a", "b", "c", "d", "e", "f"].into_iter().flat_map(request_to).collect();
    let (now, mut commands, mut output) = (world.now, Vec::new(), Vec::new());
    let session = &mut world.peers.get_mut(&client).unwrap().session;
    session.receive_last(&bytes, now, &mut commands, &mut output).unwrap();
    let Some(Command::Request(number, _)) = commands.pop() else { panic!("{commands:?}") };
    for _ in 0..2 {
        session.event(Event::Answered(number, Ok(Reply::Done)), now, &mut output).unwrap();
    }
    assert!(!session.is_closing(), "the third shard may still reject a job");
    let Command::Publish { queue, message } = commands.swap_remove(0) else { panic!("{commands:?}") };
    let rejection = Rejection::new(RejectionKind::NotFound, "there is no such queue");
    session.event(Event::PublishRefused { queue, message, rejection }, now, &mut output).unwrap();
    session.event(Event::Answered(number, Ok(Reply::Done)), now, &mut output).unwrap();
    let commands = session.take_commands();
    let [Command::Publish { queue, .. }, Command::Request(number, _)] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(queue.to_string(), "default/0");
    for _ in 0..3 {
        assert!(!session.is_closing(), "this queue may reject it too");
        session.event(Event::Answered(*number, Ok(Reply::Done)), now, &mut output).unwrap();
    }
    assert!(session.is_closing());
}

#[test]
fn half_a_frame_does_not_hold_the_connection_of_a_client_that_has_closed_its_side() {
    let request = request_to("default");
    for half in [&request[..1], &request[..request.len() - 1]] {
        for role in [Role::Frontend, Role::Publish] {
            for before in [&[][..], &request] {
                let mut world = World::new(3);
                let peer = world.join(role, b"");
                world.send_last(peer, &[before, half].concat());
                assert!(world.peers[&peer].session.is_closing());
                world.close(peer);
                let jobs = usize::from(role == Role::Frontend && !before.is_empty());
                let worker = world.worker("", 2);
                assert_eq!(world.jobs(worker).len(), jobs, "whole frames count");
            }
            let mut world = World::new(3);
            let peer = world.connect(role);
            world.send_last(peer, &[&handshake(SocketType::Dealer), half].concat());
            assert!(world.peers[&peer].session.is_closing());
        }
    }
}

#[test]
fn a_result_reaches_only_the_client_of_its_request() {
    let mut world = World::new(2);
    let worker = world.worker("", 3);
    let (one, two) = (world.client(), world.client());
    world.request(one, "a", "default", "reply-requested");
    world.request(two, "b", "default", "");
    for client in [one, two] {
        assert_eq!(world.messages(client).len(), 1);
    }
    world.say(worker, &["REPLY", "x", r#"{"value": 1}"#, "a"]);
    world.say(worker, &["REPLY", "x", r#"{"value": 2}"#, "b"]);
    world.say(worker, &["REPLY", "x", r#"{"value": 3}"#, "never"]);
    assert_eq!(world.messages(one)[0][4..], [r#"{"value": 1}"#, "a"]);
    assert!(world.messages(two).is_empty());
    assert_eq!(world.count(|counters| &counters.ignored), 2);
}

#[test]
fn job_is_lost_with_its_worker_unless_guaranteed() {
    let mut world = World::new(2);
    let client = world.client();
    let first = world.worker("", 3);
    world.request(client, "plain", "default", "");
    world.request(client, "kept", "default", "guarantee");
    let replies = world.messages(first);
    assert_eq!(
        (&*replies[0][5], &*replies[1][5]),
        ("", "guarantee,reply-requested"),
        "the broker wants to know"
    );
    world.close(first);
    let second = world.worker("", 3);
    assert_eq!(world.jobs(second), ["kept"]);
    world.say(second, &["REPLY", "x", "{}", "kept"]);
    world.close(second);
    let third = world.worker("", 3);
    assert!(world.jobs(third).is_empty(), "it was finished");
}

#[test]
fn each_of_several_jobs_with_one_id_is_settled_by_its_own_result() {
    let mut world = World::new(1);
    let (client, worker) = (world.client(), world.worker("", 3));
    for _ in 0..3 {
        world.request(client, "twin", "default", "guarantee,reply-requested");
    }
    assert_eq!(world.jobs(worker), ["twin", "twin", "twin"]);
    world.messages(client);
    for results in [1, 2] {
        world.say(worker, &["REPLY", "x", "{}", "twin"]);
        assert_eq!((world.messages(client).len(), world.count(|c| &c.finished)), (1, results));
    }
    world.close(worker);
    let other = world.worker("", 3);
    assert_eq!(world.jobs(other), ["twin"], "the one without a result");
    world.say(other, &["REPLY", "x", "{}", "twin"]);
    world.close(other);
    let third = world.worker("", 3);
    assert!(world.jobs(third).is_empty(), "all are finished");
}

#[test]
fn worker_can_ask_for_the_number_of_each_attempt() {
    let mut world = World::new(1);
    let client = world.client();
    world.request(client, "plain", "default", "");
    world.request(client, "kept", "default", "reply-requested,guarantee");
    for attempt in [1, 2] {
        let worker = world.join(Role::Backend, b"");
        world.say(worker, &["INFORM", "i", "", "worker", "attempts"]);
        world.heard(worker);
        world.say(worker, &["READY", "r"]);
        world.say(worker, &["READY", "r"]);
        let replies = world.messages(worker);
        let headers: Vec<_> = replies.iter().map(|request| request[5].as_str()).collect();
        let kept = format!("reply-requested,guarantee,attempt:{attempt}");
        assert_eq!(headers, if attempt == 1 { vec!["", &kept] } else { vec![kept.as_str()] });
        world.close(worker);
    }
    let original = world.worker("", 1);
    assert_eq!(world.messages(original)[0][5], "reply-requested,guarantee");
}

#[test]
fn failed_job_is_retried_later_and_finally_reported_to_its_client() {
    let mut world = World::new(2);
    let client = world.client();
    let worker = world.worker("", 1);
    world.request(client, "j", "default", "reply-requested,retry-count:2");
    world.messages(client);
    let failed = r#"{"value": "boom", "error": "ValueError"}"#;
    for wait in [1, 2] {
        assert_eq!(world.jobs(worker), ["j"]);
        world.say(worker, &["REPLY", "x", failed, "j"]);
        world.say(worker, &["READY", "r"]);
        for _ in 0..wait * 10 - 1 {
            world.pass(Duration::from_millis(100));
            world.say(worker, &["HEARTBEAT", "h", "0"]);
        }
        assert!(world.jobs(worker).is_empty(), "not before {wait} s");
        world.pass(Duration::from_millis(101));
    }
    assert_eq!(world.jobs(worker), ["j"]);
    assert!(world.messages(client).is_empty());
    world.say(worker, &["REPLY", "x", failed, "j"]);
    assert_eq!(world.messages(client)[0][4], failed);
    assert_eq!((world.count(|c| &c.retried), world.count(|c| &c.failed)), (2, 1));
    world.pass(Duration::from_secs(5));
    world.close(worker);
    let other = world.worker("", 1);
    assert!(world.jobs(other).is_empty());
}

#[test]
fn failure_that_each_attempt_would_repeat_ends_the_job() {
    let mut world = World::new(2);
    let client = world.client();
    let worker = world.worker("", 1);
    world.request(client, "j", "default", "reply-requested,guarantee,retry-count:2");
    world.messages(client);
    assert_eq!(world.jobs(worker), ["j"]);
    let failed = r#"{"value": "bad", "error": {"type": "BodyError", "message": "bad", "final": true}}"#;
    world.say(worker, &["REPLY", "x", failed, "j"]);
    assert_eq!(world.messages(client)[0][4], failed);
    assert_eq!((world.count(|c| &c.retried), world.count(|c| &c.failed)), (0, 1));
    world.pass(Duration::from_secs(5));
    world.close(worker);
    let other = world.worker("", 1);
    assert!(world.jobs(other).is_empty());
}

#[test]
fn worker_can_set_the_delay_of_a_retry() {
    let mut world = World::new(1);
    let (client, worker) = (world.client(), world.worker("", 4));
    world.request(client, "j", "default", "guarantee,reply-requested");
    world.messages(client);
    for (after, wait) in [("0", 0), ("0.25", 250), ("0", 0)] {
        assert_eq!(world.jobs(worker), ["j"]);
        let result = format!(r#"{{"error": "busy", "retry_after": {after}}}"#);
        world.say(worker, &["REPLY", "x", &result, "j"]);
        if wait > 0 {
            world.pass(Duration::from_millis(wait - 1));
            assert!(world.jobs(worker).is_empty());
            world.pass(Duration::from_millis(1));
        }
    }
    assert_eq!(world.jobs(worker), ["j"]);
    for odd in ["-1", "1e400", "\"soon\""] {
        assert!(world.messages(client).is_empty());
        let result = format!(r#"{{"error": "busy", "retry_after": {odd}}}"#);
        world.say(worker, &["REPLY", "x", &result, "j"]);
        assert_eq!(world.messages(client).len(), 1, "{odd} is no time, so the job has failed");
        world.say(worker, &["READY", "r"]);
        world.request(client, "j", "default", "guarantee,reply-requested");
        assert_eq!((world.jobs(worker).len(), world.messages(client).len()), (1, 1));
    }
}

#[test]
fn worker_that_asks_for_more_attempts_than_a_job_has_ends_it_with_its_error() {
    let mut world = World::new(1);
    let (client, worker) = (world.client(), world.worker("", 4));
    world.request(client, "j", "default", "reply-requested,retry-count:1");
    world.messages(client);
    let result = r#"{"error": "busy", "retry_after": 0}"#;
    for _ in 0..2 {
        assert_eq!(world.jobs(worker), ["j"]);
        assert!(world.messages(client).is_empty());
        world.say(worker, &["REPLY", "x", result, "j"]);
    }
    assert_eq!(world.messages(client)[0][4], result, "not that the worker was lost");
    assert!(world.jobs(worker).is_empty());
}

#[test]
fn job_finishes_only_when_its_result_is_in_the_named_queue() {
    let mut world = World::new(3);
    let client = world.client();
    // A worker creates the queue; it has no slot, so messages stay in the queue.
    let reader = world.worker(r#"[[1, "results"]]"#, 0);
    let worker = world.worker("", 2);
    let headers = "guarantee,reply-requested,result-queue:results";
    world.request(client, "j", "default", headers);
    assert_eq!(world.jobs(worker), ["j"]);
    world.messages(client);
    // With the queue's policy, `ack-on-send`, a result is safe once it is delivered.
    world.say(worker, &["REPLY", "x", r#"{"value": 5}"#, "j"]);
    world.say(worker, &["REPLY", "x", r#"{"value": 6}"#, "j"]);
    assert!(world.messages(client).is_empty());
    world.say(reader, &["READY", "r"]);
    let result = &world.messages(reader)[0];
    assert_eq!((&*result[3], &*result[6]), ("j", r#"{"value": 5}"#));
    assert_eq!(world.messages(client)[0][4..], [r#"{"value": 5}"#, "j"]);
    world.close(worker);
    let other = world.worker("", 1);
    assert!(world.jobs(other).is_empty(), "it is settled");
    // The job of a worker that is lost before that is not finished.
    world.request(client, "again", "default", headers);
    assert_eq!(world.jobs(other), ["again"]);
    world.say(other, &["REPLY", "x", "{}", "again"]);
    world.close(other);
    let other = world.worker("", 2);
    assert_eq!(world.jobs(other), ["again"]);
    world.messages(client);
    // The queue named here does not exist: the job is settled anyway, and the lost result is reported.
    world.request(client, "k", "default", "guarantee,reply-requested,result-queue:nowhere");
    world.messages(client);
    assert_eq!(world.jobs(other), ["k"]);
    world.say(other, &["REPLY", "x", "{}", "k"]);
    assert_eq!(world.messages(client)[0][4..], ["{}", "k"]);
    assert!(world.request_errors(other)[0].contains("not kept"));
}

#[test]
fn a_guaranteed_job_runs_again_if_the_result_queue_cannot_take_its_result_now() {
    for (headers, kind, again) in [
        ("guarantee", RejectionKind::Busy, true),
        ("guarantee", RejectionKind::LimitExceeded, false),
        ("retry-count:3", RejectionKind::Busy, false),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        let worker = world.worker("", 1);
        world.request(client, "j", "default", &format!("{headers},result-queue:results"));
        assert_eq!(world.jobs(worker), ["j"]);
        let now = world.now;
        let session = &mut world.peers.get_mut(&worker).unwrap().session;
        let (mut commands, mut reply) = (Vec::new(), Vec::new());
        encode_message(&[b"", b"eMQP/1.0", b"REPLY", b"x", b"{}", b"j"], &mut reply);
        session.receive(&reply, now, &mut commands, &mut Vec::new()).unwrap();
        let Some(Command::Publish { queue, message }) = commands.pop() else { panic!("{commands:?}") };
        let event = Event::PublishRefused { queue, message, rejection: Rejection::new(kind, "on purpose") };
        session.event(event, now, &mut Vec::new()).unwrap();
        let commands = session.take_commands();
        let [Command::Acknowledge(settlement)] = &commands[..] else { panic!("{commands:?}") };
        let retry = settlement.refusal.as_ref().map(|nack| nack.retry);
        let expected = again.then(|| Retry::NotBefore(now.after(Duration::from_secs(1))));
        assert_eq!(retry, expected, "{headers}, {kind:?}");
        assert!(session.take_request_errors()[0].reason.contains("not kept"));
    }
}

#[test]
fn lost_workers_count_toward_the_retry_limit() {
    let mut world = World::new(1);
    let client = world.client();
    world.request(client, "j", "default", "retry-count:2");
    for _ in 0..3 {
        let worker = world.worker("", 1);
        assert_eq!(world.jobs(worker), ["j"]);
        world.close(worker);
    }
    let worker = world.worker("", 1);
    assert!(world.jobs(worker).is_empty());
    assert_eq!(world.count(|counters| &counters.failed), 1);
    world.request(client, "next", "default", "");
    assert_eq!(world.jobs(worker), ["next"], "its slot is free");
}

#[test]
fn a_guaranteed_job_that_takes_too_long_runs_again() {
    let mut world = World::new(1);
    let client = world.client();
    let worker = world.worker("", 2);
    world.request(client, "late", "default", "guarantee,timeout:1");
    assert_eq!(world.jobs(worker), ["late"]);
    world.pass(Duration::from_secs(5));
    world.say(worker, &["HEARTBEAT", "h", "0"]);
    assert!(world.jobs(worker).is_empty());
    world.pass(Duration::from_millis(1001));
    assert_eq!(world.jobs(worker), ["late"], "one second and a grace of five");
    assert_eq!(world.count(|counters| &counters.lost), 1);
}

#[test]
fn busy_worker_gets_reminders_at_growing_intervals() {
    let mut world = World::new(1);
    let (worker, client) = (world.worker("", 1), world.client());
    world.request(client, "j", "default", "reply-requested");
    world.jobs(worker);
    let mut at = Vec::new();
    for millis in 1..=2_900 {
        world.pass(Duration::from_millis(1));
        at.extend(world.heard(worker).iter().map(|_| millis));
    }
    assert_eq!(at, [5, 15, 35, 75, 155, 315, 635, 1275]);
    world.say(worker, &["HEARTBEAT", "h", "0"]);
    world.request(client, "k", "default", "");
    world.say(worker, &["REPLY", "x", "{}", "j"]);
    world.say(worker, &["READY", "r"]);
    assert_eq!(world.jobs(worker), ["k"]);
    world.pass(Duration::from_millis(5));
    assert_eq!(world.heard(worker).len(), 1, "also where nobody wants a result");
    world.say(worker, &["READY", "r"]);
    world.pass(Duration::from_millis(80));
    assert!(world.heard(worker).is_empty(), "it is idle");
}

#[test]
fn joined_peers_get_heartbeats_and_time_out_after_ten_seconds() {
    let mut world = World::new(1);
    let worker = world.worker("", 1);
    let scheduler = world.join(Role::Frontend, b"s");
    world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
    world.heard(scheduler);
    for _ in 0..3 {
        world.pass(Duration::from_secs(3));
        for peer in [worker, scheduler] {
            let said = world.heard(peer);
            assert_eq!((said.len(), &*said[0][2]), (1, "HEARTBEAT"));
        }
    }
    world.say(worker, &["HEARTBEAT", "h", "0"]);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.error(worker), None);
    assert_eq!(world.error(scheduler), Some(&SessionError::PingTimeout(SILENCE_MAX)));
    assert_eq!(world.exchange.present(), (1, 1, 0));
}

#[test]
fn messages_of_a_worker_before_its_ack_count() {
    let joining = |words: &[&str]| -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_message(&[b"", b"eMQP/1.0", b"INFORM", b"i", b"", b"worker"], &mut bytes);
        for word in words {
            encode_message(&[b"", b"eMQP/1.0", word.as_bytes(), b"m"], &mut bytes);
        }
        bytes
    };
    let mut world = World::new(3);
    let client = world.client();
    world.request(client, "1", "default", "");
    let worker = world.join(Role::Backend, b"");
    world.send(worker, &joining(&["READY", "HEARTBEAT", "READY"]));
    let said: Vec<_> = world.heard(worker).into_iter().map(|said| said[2].clone()).collect();
    assert_eq!(said, ["ACK", "HEARTBEAT", "REQUEST"]);
    for id in ["2", "3"] {
        world.request(client, id, "default", "");
    }
    assert_eq!(world.jobs(worker), ["2"], "it has two slots");
    assert_eq!(world.count(|counters| &counters.ignored), 0);
    for word in ["KBYE", "KBAI", "DISCONNECT"] {
        let leaving = world.join(Role::Backend, b"");
        world.send(leaving, &joining(&["READY", word]));
        world.say(leaving, &["READY", "r"]);
        let said: Vec<_> = world.heard(leaving).into_iter().map(|said| said[2].clone()).collect();
        assert_eq!(said, ["ACK", "HEARTBEAT"], "{word}");
    }
}

#[test]
fn leaving_worker_finishes_its_jobs_and_gets_no_more() {
    for goodbye in ["KBYE", "KBAI", "DISCONNECT", "kbye"] {
        let mut world = World::new(1);
        let (worker, client) = (world.worker("", 2), world.client());
        world.request(client, "j", "default", "reply-requested,guarantee");
        world.jobs(worker);
        world.say(worker, &[goodbye, "k"]);
        world.request(client, "k", "default", "");
        assert!(world.jobs(worker).is_empty());
        world.say(worker, &["REPLY", "x", "{}", "j"]);
        world.say(worker, &["READY", "r"]);
        assert!(world.jobs(worker).is_empty());
        assert_eq!(world.messages(client)[1][5], "j");
        let other = world.worker("", 2);
        assert_eq!(world.jobs(other), ["k"], "{goodbye}");
    }
}

#[test]
fn newer_connection_replaces_the_older_one_of_a_worker() {
    let mut world = World::new(1);
    let older = world.join(Role::Backend, b"name");
    world.say(older, &["INFORM", "i", "", "worker"]);
    let newer = world.join(Role::Backend, b"name");
    world.say(newer, &["INFORM", "i", "", "worker"]);
    world.pass(Duration::from_secs(3));
    assert!(matches!(world.error(older), Some(SessionError::Misbehaved(_))));
    assert_eq!(world.error(newer), None);
}

#[test]
fn a_worker_of_another_user_does_not_replace_the_one_with_its_name() {
    let mut world = World::new(1);
    let workers = ["ann", "eve", "ann"].map(|user| {
        let worker = world.join_as(Role::Backend, b"name", Some(user));
        world.say(worker, &["INFORM", "i", "", "worker"]);
        worker
    });
    world.pass(Duration::from_secs(3));
    assert!(matches!(world.error(workers[0]), Some(SessionError::Misbehaved(_))));
    assert_eq!([world.error(workers[1]), world.error(workers[2])], [None, None]);
}

#[test]
fn messages_of_other_protocols_are_guaranteed_jobs() {
    use mqcore_broker::model::id::QueueAddress;
    use mqcore_broker::model::message::{Message, Properties};
    let mut world = World::new(2);
    let worker = world.worker(r#"[[1, "orders/7"]]"#, 2);
    let message = Message::from_parts(b"t", b"Key:value\r\n", b"body", Properties::default(), None);
    let queue = QueueAddress::parse("orders/7").unwrap();
    let mut effects = VecDeque::new();
    world.command(worker, vec![Command::Publish { queue, message }], &mut effects);
    world.carry_out(&mut effects);
    let replies = world.messages(worker);
    assert_eq!(replies[0][3..], ["t", "orders/7", "reply-requested", "body"]);
    world.close(worker);
    let worker = world.worker(r#"[[1, "orders/7"]]"#, 1);
    assert_eq!(world.jobs(worker), ["t"]);
}

// ---- Schedules, topics, administrators ---------------------------------------------------------------------------------

#[derive(Debug, Default)]
struct Kept {
    asked: std::sync::Mutex<Vec<(bool, ScheduleRequest)>>,
    ends: std::sync::Mutex<Vec<ScheduleEnd>>,
    allowed: std::sync::Mutex<Vec<Vec<String>>>,
    /// The queue that every schedule has.
    has: Option<&'static str>,
}

impl Kept {
    fn allow(&self, allowed: &[QueueAddress]) {
        self.allowed.lock().unwrap().push(allowed.iter().map(ToString::to_string).collect());
    }
}

impl Schedules for Kept {
    fn queue_of(&self, _: &ScheduleRequest) -> Option<QueueAddress> {
        self.has.map(|queue| QueueAddress::parse(queue).unwrap())
    }

    fn schedule(&self, request: ScheduleRequest, allowed: &[QueueAddress]) -> Result<(), Rejection> {
        if request.interval.is_none() && request.interval_ms().is_none() {
            return Err(Rejection::new(RejectionKind::BadRequest, "when?"));
        }
        self.allow(allowed);
        self.asked.lock().unwrap().push((true, request));
        Ok(())
    }

    fn unschedule(
        &self,
        request: ScheduleRequest,
        allowed: &[QueueAddress],
        end: ScheduleEnd,
    ) -> Result<(), Rejection> {
        self.allow(allowed);
        self.ends.lock().unwrap().push(end);
        self.asked.lock().unwrap().push((false, request));
        Ok(())
    }
}

#[test]
fn schedules_go_to_the_latest_scheduler_and_their_ends_to_all() {
    let mut world = World::new(2);
    let client = world.client();
    let request = ["SCHEDULE", "s", "q", "nohaste", "5", "job", ""];
    world.say(client, &request);
    assert!(world.request_errors(client)[0].contains("no scheduler"));
    let schedulers = [b"one", b"two"].map(|name| {
        let scheduler = world.join(Role::Frontend, name);
        world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
        world.heard(scheduler);
        scheduler
    });
    world.say(client, &request);
    assert!(world.messages(schedulers[0]).is_empty());
    assert_eq!(world.messages(schedulers[1])[0][2..], request);
    world.say(client, &["UNSCHEDULE", "u", "q", "", "5", "job", ""]);
    for scheduler in schedulers {
        assert_eq!(world.messages(scheduler)[0][2], "UNSCHEDULE");
    }
    world.say(client, &["SCHEDULE", "s", "q", "", "job"]);
    assert!(world.request_errors(client)[0].contains("interval"), "the original's scheduler would die of it");
}

#[test]
fn schedules_go_to_the_broker_if_it_runs_them() {
    let mut world = World::new(1);
    let kept = Arc::new(Kept::default());
    assert!(world.exchange.keep_schedules(kept.clone()));
    assert!(!world.exchange.keep_schedules(kept.clone()));
    let client = world.client();
    world.say(client, &["SCHEDULE", "s", "q", "nohaste,run_count:2", "-1", "job", "* * * * *"]);
    world.say(client, &["UNSCHEDULE", "u", "q", "", "job"]);
    world.say(client, &["SCHEDULE", "v", "q", "", "job"]);
    assert_eq!(world.request_errors(client), ["schedule in queue q: when?"]);
    let kept = kept.asked.lock().unwrap();
    let [(true, first), (false, second)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((&*first.queue, first.cron.as_deref()), (&b"q"[..], Some(&b"* * * * *"[..])));
    assert!(first.wishes.nohaste && first.wishes.run_count == 2);
    assert_eq!((&*second.job, &second.interval), (&b"job"[..], &None));
}

#[test]
fn schedule_has_only_one_owner() {
    let mut world = World::new(2);
    let kept = Arc::new(Kept::default());
    assert!(world.exchange.keep_schedules(kept.clone()));
    let client = world.client();
    let scheduler = world.join(Role::Frontend, b"original");
    world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
    world.heard(scheduler);
    world.say(client, &["SCHEDULE", "s", "q", "nohaste", "5", "job", ""]);
    assert_eq!(world.messages(scheduler)[0][2], "SCHEDULE");
    for (headers, interval, cron) in [
        ("timezone:Europe/Berlin", "-1", "0 3 * * *"),
        ("catch-up:all", "5", ""),
        ("interval-ms:250", "", ""),
        ("", "-1", "0 0 3 * * *"),
    ] {
        world.say(client, &["SCHEDULE", "s", "q", headers, interval, "job", cron]);
        assert_eq!(world.messages(scheduler)[0][2], "UNSCHEDULE", "it would do {headers} {cron} wrong");
    }
    world.say(client, &["SCHEDULE", "s", "q", "interval-ms:250", "job"]);
    let replies = world.messages(scheduler);
    assert_eq!(
        replies[0][2..],
        ["UNSCHEDULE", "s", "q", "interval-ms:250", "-1", "job", ""],
        "it would die of seven frames"
    );
    world.say(client, &["SCHEDULE", "s", "q", "", "job"]);
    assert!(world.messages(scheduler).is_empty(), "the broker rejects it, which changes nothing");
    let kept = kept.asked.lock().unwrap();
    let begun: Vec<_> = kept.iter().map(|(begins, _)| *begins).collect();
    assert_eq!(begun, [false, true, true, true, true, true], "and {:?}", world.request_errors(client));
}

/// The next request of a session, which the test answers instead of a shard.
fn next_request(world: &mut World, connection: ConnectionId) -> Option<(RequestId, Request)> {
    let commands = world.peers.get_mut(&connection).unwrap().session.take_commands();
    match commands.as_slice() {
        [] => None,
        [Command::Request(number, request)] => Some((*number, (**request).clone())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn changing_or_ending_a_schedule_needs_a_right_on_the_queue_that_it_has() {
    for command in ["SCHEDULE", "UNSCHEDULE"] {
        let mut world = World::new(1);
        let kept = Arc::new(Kept { has: Some("theirs"), ..Kept::default() });
        assert!(world.exchange.keep_schedules(kept.clone()));
        let scheduler = world.join(Role::Frontend, b"original");
        world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
        world.heard(scheduler);
        for granted in [false, true] {
            let client = world.client();
            let (now, mut bytes) = (world.now, Vec::new());
            let frames: [&[u8]; 9] =
                [b"", b"eMQP/1.0", command.as_bytes(), b"s", b"mine", b"", b"5", b"job", b""];
            encode_message(&frames, &mut bytes);
            let mut commands = Vec::new();
            let session = &mut world.peers.get_mut(&client).unwrap().session;
            session.receive(&bytes, now, &mut commands, &mut Vec::new()).unwrap();
            let [Command::Request(number, request)] = commands.as_slice() else { panic!("{commands:?}") };
            assert!(
                matches!(&**request, Request::MayPublish { queue } if queue.to_string() == "mine/0"),
                "nothing is sent to schedulers before the rights are checked"
            );
            session.event(Event::Answered(*number, Ok(Reply::Done)), now, &mut Vec::new()).unwrap();
            let (number, request) = next_request(&mut world, client).expect("another right");
            assert!(matches!(request, Request::MayPublish { queue } if queue.to_string() == "theirs/0"));
            let session = &mut world.peers.get_mut(&client).unwrap().session;
            let answer = if granted {
                Ok(Reply::Done)
            } else {
                Err(Rejection::new(RejectionKind::Unauthorized, "no"))
            };
            session.event(Event::Answered(number, answer), now, &mut Vec::new()).unwrap();
            if !granted {
                assert!(next_request(&mut world, client).is_none());
                assert_eq!(world.request_errors(client), ["schedule in queue mine: no"]);
                assert!(kept.asked.lock().unwrap().is_empty());
                assert!(world.messages(scheduler).is_empty());
            } else if command == "UNSCHEDULE" {
                assert_eq!(*kept.ends.lock().unwrap(), [ScheduleEnd::Ended]);
                assert_eq!(*kept.allowed.lock().unwrap(), [["mine/0", "theirs/0"]]);
            } else {
                let (number, request) = next_request(&mut world, client).expect("the right to reach it");
                assert!(matches!(request, Request::MayDirect { .. }));
                assert!(kept.asked.lock().unwrap().is_empty(), "the broker's copy stays until then");
                let refused = Err(Rejection::new(RejectionKind::Unauthorized, "no"));
                let session = &mut world.peers.get_mut(&client).unwrap().session;
                session.event(Event::Answered(number, refused), now, &mut Vec::new()).unwrap();
                assert!(kept.asked.lock().unwrap()[0].0, "it stays at the broker");
                assert!(kept.ends.lock().unwrap().is_empty());
            }
        }
    }
}

#[test]
fn schedule_at_a_scheduler_is_changed_only_with_a_right_on_its_queue() {
    let mut world = World::new(1);
    let kept = Arc::new(Kept::default());
    assert!(world.exchange.keep_schedules(kept.clone()));
    let owner = world.client();
    let scheduler = world.join(Role::Frontend, b"original");
    world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
    world.heard(scheduler);
    world.say(owner, &["SCHEDULE", "s", "theirs", "", "5", "job", ""]);
    assert_eq!(world.messages(scheduler)[0][2..5], ["SCHEDULE", "s", "theirs"]);
    assert_eq!(*kept.ends.lock().unwrap(), [ScheduleEnd::HandedOver]);
    let other = world.client();
    let mut bytes = Vec::new();
    encode_message(&[b"", b"eMQP/1.0", b"UNSCHEDULE", b"u", b"mine", b"", b"5", b"job", b""], &mut bytes);
    let (now, mut commands) = (world.now, Vec::new());
    let session = &mut world.peers.get_mut(&other).unwrap().session;
    session.receive(&bytes, now, &mut commands, &mut Vec::new()).unwrap();
    let [Command::Request(number, _)] = commands.as_slice() else { panic!("{commands:?}") };
    session.event(Event::Answered(*number, Ok(Reply::Done)), now, &mut Vec::new()).unwrap();
    let (_, request) = next_request(&mut world, other).expect("another right");
    assert!(matches!(request, Request::MayPublish { queue } if queue.to_string() == "theirs/0"));
    assert!(world.messages(scheduler).is_empty());
    world.say(owner, &["UNSCHEDULE", "u", "theirs", "", "5", "job", ""]);
    assert_eq!(world.messages(scheduler)[0][2], "UNSCHEDULE");
}

#[test]
fn peer_without_the_right_does_not_become_a_scheduler() {
    let mut world = World::new(1);
    let peer = world.join(Role::Frontend, b"rogue");
    let mut bytes = Vec::new();
    encode_message(&[b"", b"eMQP/1.0", b"INFORM", b"i", b"", b"scheduler"], &mut bytes);
    let (now, mut commands, mut output) = (world.now, Vec::new(), Vec::new());
    let session = &mut world.peers.get_mut(&peer).unwrap().session;
    session.receive(&bytes, now, &mut commands, &mut output).unwrap();
    let [Command::Request(number, request)] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(matches!(&**request, Request::MayRunSchedules));
    assert!(output.is_empty());
    let refusal = Rejection::new(RejectionKind::Unauthorized, "no");
    let ended = session.event(Event::Answered(*number, Err(refusal)), now, &mut output);
    assert!(matches!(ended, Err(SessionError::Misbehaved(_))));
    assert!(output.windows(6).any(|bytes| bytes == b"401 no"), "{output:?}");
    let (_, _, schedulers) = world.exchange.present();
    assert_eq!(schedulers, 0);
}

#[test]
fn scheduler_gets_no_schedules_from_clients_of_other_protocols() {
    let mut world = World::new(1);
    let scheduler = world.join(Role::Frontend, b"original");
    world.say(scheduler, &["INFORM", "i", "", "scheduler"]);
    world.heard(scheduler);
    let mut body = Vec::new();
    encode_message(&[b"", b"eMQP/1.0", b"SCHEDULE", b"s", b"secret", b"", b"5", b"job", b""], &mut body);
    for (protocol, passes) in [("tmqp", false), ("emqp", true)] {
        let client = world.peers[&scheduler].session.client().unwrap().clone();
        let client = Arc::new(Client { protocol, ..(*client).clone() });
        let to = ClientPattern::Id(client.id.clone());
        let message = Message::from_parts(b"s", b"", &body, Properties::default(), Some(client));
        world.tell(scheduler, Event::Direct { to, message });
        assert_eq!(!world.messages(scheduler).is_empty(), passes);
    }
}

#[test]
fn schedules_are_identified_by_their_call() {
    let request = |job: &str| ScheduleRequest {
        id: Box::default(),
        queue: b"q"[..].into(),
        headers: b"guarantee,nohaste,timeout:5,run_count:3,due:1,timezone:UTC"[..].into(),
        wishes: Headers::default(),
        interval: None,
        job: job.as_bytes().into(),
        cron: None,
    };
    let id = |job: &str| request(job).identity().map(|byte| format!("{byte:02x}")).concat();
    let call = r#"["run", {"path": "m", "callable": "f", "args": [1, 2.5], "kwargs": {"b": "é", "a": [null]}, "class_args": [], "class_kwargs": {}}]"#;
    // The result of hashlib.sha1 for json.dumps of these six with sorted keys.
    assert_eq!(id(call), "217121e4aa714181611a46a7981b9d6029128dff");
    let same = r#"["run",{"class_kwargs":{},"class_args":[],"kwargs":{"a":[null],"b":"\u00e9"},"args":[1,2.5],"callable":"f","path":"m","more":1}]"#;
    assert_eq!(id(call), id(same));
    assert_ne!(id(call), id(&call.replace("[1, ", "[2, ")));
    for other in ["", "{}", "[1]", r#"["run", {"path": "m"}]"#, &"[".repeat(60_000)] {
        assert_eq!(request(other).identity(), request(other).identity());
        assert_ne!(id(other), id("another"));
    }
    assert_eq!(request(call).headers_of_runs(), b"guarantee,timeout:5");
    assert_eq!(request(call).timezone(), Some("UTC"));
}

#[test]
fn client_without_permission_cannot_schedule_for_a_queue() {
    let mut world = World::new(1);
    let kept = Arc::new(Kept::default());
    assert!(world.exchange.keep_schedules(kept.clone()));
    let client = world.client();
    let now = world.now;
    let peer = world.peers.get_mut(&client).unwrap();
    let mut commands = Vec::new();
    let mut message = Vec::new();
    encode_message(&[b"", b"eMQP/1.0", b"SCHEDULE", b"s", b"secret", b"", b"5", b"job", b""], &mut message);
    peer.session.receive(&message, now, &mut commands, &mut Vec::new()).unwrap();
    let [Command::Request(number, request)] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(matches!(&**request, Request::MayPublish { queue } if queue.to_string() == "secret/0"));
    let refusal = Rejection::new(RejectionKind::Unauthorized, "no");
    peer.session.event(Event::Answered(*number, Err(refusal)), now, &mut Vec::new()).unwrap();
    assert!(kept.asked.lock().unwrap().is_empty());
    assert_eq!(world.request_errors(client), ["schedule in queue secret: no"]);
}

#[test]
fn subscribers_match_prefixes_and_count_their_subscriptions() {
    let mut world = World::new(3);
    let publisher = world.join(Role::Publish, b"");
    let subscriber = world.join(Role::Subscribe, b"");
    let publish = |world: &mut World, topic: &str| {
        world.say(publisher, &["PUBLISH", "p", topic, "news"]);
        world.heard(subscriber)
    };
    assert!(publish(&mut world, "topic").is_empty());
    world.send_message(subscriber, &[b"\x01topic"]);
    world.send_message(subscriber, &[b"\x01topic"]);
    assert_eq!(publish(&mut world, "topic.sub"), [["topic.sub", "news"]]);
    assert!(publish(&mut world, "other").is_empty());
    world.send_message(subscriber, &[b"\x00topic"]);
    assert_eq!(publish(&mut world, "topic").len(), 1, "subscribed twice, and back once");
    let mut bytes = Vec::new();
    ZmtpCommand::Cancel(b"topic").encode(&mut bytes);
    ZmtpCommand::Subscribe(b"").encode(&mut bytes);
    world.send(subscriber, &bytes);
    assert_eq!(publish(&mut world, "anything"), [["anything", "news"]]);
    let client = world.client();
    world.say(client, &["PUBLISH", "p", "topic", "headers", "of the document"]);
    assert_eq!(world.heard(subscriber), [["topic", "of the document"]]);
}

#[test]
fn administrators_receive_numbers_and_names() {
    let mut world = World::new(2);
    let admin = world.join(Role::Admin, b"");
    world.say(admin, &["STATUS", "s"]);
    let status: Value = serde_json::from_str(&world.messages(admin)[0][4]).unwrap();
    assert_eq!(status["waiting_messages_by_queue"], json!({}));
    let client = world.client();
    let worker = world.join(Role::Backend, "wörk".as_bytes());
    world.say(worker, &["INFORM", "i", r#"[[30, "hi"], [10, "default"]]"#, "worker"]);
    world.say(worker, &["READY", "r"]);
    world.request(client, "a", "hi", "reply-requested");
    world.request(client, "b", "hi", "");
    world.say(admin, &["STATUS", "s"]);
    let status: Value = serde_json::from_str(&world.messages(admin)[0][4]).unwrap();
    assert_eq!(status["waiting_messages_by_queue"], json!({"hi": 1, "default": 0}));
    assert_eq!(status["inflight_messages_by_queue"]["hi"], 1);
    world.pass(Duration::from_millis(20));
    world.say(worker, &["REPLY", "x", "{}", "a"]);
    world.say(admin, &["STATUS", "s"]);
    let status: Value = serde_json::from_str(&world.messages(admin)[0][4]).unwrap();
    assert_eq!(status["processed_messages_by_worker"], json!({"wörk": 1}));
    assert_eq!(status["latency_messages_by_queue"]["hi"], 20);
    world.say(admin, &["ROUTER_SHOW_WORKERS", "s"]);
    let shown: Value = serde_json::from_str(&world.messages(admin)[0][4]).unwrap();
    assert_eq!(shown["connected_workers"]["wörk"]["queues"], json!([[30, "hi"], [10, "default"]]));
    assert_eq!(shown["connected_queues"]["hi"], json!([[30, "wörk"]]));
    world.say(admin, &["ROUTER_SHOW_SCHEDULERS", "s"]);
    assert_eq!(world.messages(admin)[0][4], r#"{"connected_schedulers": {}}"#);
    for word in ["HELLO", "BOGUS", "status"] {
        world.say(admin, &[word, "s"]);
        assert!(world.messages(admin).is_empty(), "{word}");
    }
    world.say(admin, &["DISCONNECT", "d"]);
    assert_eq!(world.messages(admin)[0][4], "d");
    assert!(world.peers[&admin].session.stops_broker());
}

// ---- Strangers -----------------------------------------------------------------------------------------------------

fn handshake(socket: SocketType) -> Vec<u8> {
    let mut bytes = Vec::new();
    Greeting { minor: 1, as_server: false }.encode(&mut bytes);
    ZmtpCommand::Ready(Ready { socket, identity: b"", token: b"" }).encode(&mut bytes);
    bytes
}

#[test]
fn invalid_handshake_ends_only_its_own_connection() {
    let mut large = handshake(SocketType::Dealer)[..GREETING_BYTES].to_vec();
    large.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 2, 1]);
    let mut early = handshake(SocketType::Dealer)[..GREETING_BYTES].to_vec();
    encode_message(&[b"early"], &mut early);
    let mut twice = handshake(SocketType::Dealer);
    twice.extend_from_slice(&handshake(SocketType::Dealer)[GREETING_BYTES..]);
    for (bytes, ready) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), false),
        (large, true),
        (early, true),
        (twice, true),
        (handshake(SocketType::Sub), true),
        (handshake(SocketType::Pair), true),
        ([&handshake(SocketType::Dealer)[..], b"\xff"].concat(), true),
    ] {
        for piece in [bytes.len(), 1] {
            let mut world = World::new(1);
            let peer = world.connect(Role::Frontend);
            bytes.chunks(piece).for_each(|piece| world.send(peer, piece));
            assert!(world.error(peer).is_some(), "{}", bytes.escape_ascii());
            assert_eq!(world.peers[&peer].written.len() > GREETING_BYTES, ready);
        }
    }
}

#[test]
fn accepted_peer_receives_ready_and_rejected_peer_the_reason() {
    let refused = Rejection::new(RejectionKind::Unauthorized, "these credentials do not let you in");
    for let_in in [true, false] {
        let mut world = World::new(1);
        let peer = world.connect(Role::Frontend);
        let now = world.now;
        let peer = world.peers.get_mut(&peer).unwrap();
        let (mut commands, mut output) = (Vec::new(), Vec::new());
        peer.session.receive(&handshake(SocketType::Dealer), now, &mut commands, &mut output).unwrap();
        assert_eq!(output.len(), GREETING_BYTES, "nothing before it is known who this is");
        let event = if let_in {
            Event::Welcomed(Arc::clone(&peer.provisional))
        } else {
            Event::Refused(refused.clone())
        };
        peer.session.event(event, now, &mut output).unwrap();
        let mut expected = Vec::new();
        if let_in {
            let ready = Ready { socket: SocketType::Router, identity: b"", token: b"" };
            ZmtpCommand::Ready(ready).encode(&mut expected);
        } else {
            ZmtpCommand::Error(b"401 these credentials do not let you in").encode(&mut expected);
        }
        assert_eq!(output[GREETING_BYTES..], expected);
    }
}

#[test]
fn denied_client_receives_the_reason_if_it_asked_for_a_result() {
    let mut world = World::new(1);
    let client = world.client();
    let now = world.now;
    let peer = world.peers.get_mut(&client).unwrap();
    let mut bytes = Vec::new();
    for (id, headers) in [("asked", "reply-requested"), ("silent", "")] {
        let (mut commands, mut request) = (Vec::new(), Vec::new());
        encode_message(
            &[b"", b"eMQP/1.0", b"REQUEST", id.as_bytes(), b"secret", headers.as_bytes(), b"job"],
            &mut request,
        );
        peer.session.receive(&request, now, &mut commands, &mut Vec::new()).unwrap();
        let Some(Command::Publish { queue, message }) = commands.pop() else { panic!("{commands:?}") };
        let rejection = Rejection::new(RejectionKind::Unauthorized, "no rule allows it");
        let event = Event::PublishRefused { queue, message, rejection };
        peer.session.event(event, now, &mut bytes).unwrap();
    }
    peer.written.extend_from_slice(&bytes);
    let replies = world.messages(client);
    assert_eq!(replies.len(), 1, "{replies:?}");
    let result: Value = serde_json::from_str(&replies[0][4]).unwrap();
    assert_eq!(
        (&result["error"]["type"], &result["error"]["message"]),
        (&"Denied".into(), &"no rule allows it".into())
    );
    assert_eq!(replies[0][5], "asked");
    assert_eq!(world.peers.get_mut(&client).unwrap().session.take_request_errors().len(), 2);
}

#[test]
fn unfinished_handshake_times_out() {
    let whole = handshake(SocketType::Dealer);
    for end in [0, 1, 10, GREETING_BYTES, whole.len() - 1] {
        let mut world = World::new(1);
        let peer = world.connect(Role::Backend);
        world.send(peer, &whole[..end]);
        world.pass(Duration::from_millis(9_999));
        assert_eq!(world.error(peer), None, "{end} bytes");
        world.pass(Duration::from_millis(1));
        assert!(matches!(world.error(peer), Some(SessionError::HandshakeTimeout(_))), "{end} bytes");
    }
}

#[test]
fn large_messages_and_many_frames_are_rejected_at_the_limit() {
    let mut world = World::new(1);
    let client = world.client();
    world.request(client, "a", "default", &"h".repeat(70_000));
    assert!(world.request_errors(client)[0].contains("60000"), "header text");
    world.request(client, "a", "default", "two\r\nlines");
    assert!(world.request_errors(client)[0].contains("control"));
    assert_eq!(world.error(client), None);
    world.send_message(client, &[&[b'x'; 1 << 20]]);
    assert!(matches!(world.error(client), Some(SessionError::Wire(_))));
    let client = world.client();
    world.send_message(client, &[&b""[..]; 65]);
    assert!(matches!(world.error(client), Some(SessionError::Wire(_))));
}
