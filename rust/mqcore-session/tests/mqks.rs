//! MQKS conversations: the recorded dialogs of the original, replayed between sessions and a broker of several shards.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Command, Destination};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::{Effect, Event, Forwarded};
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_session::mqks::{MqksSession, encode_delivery};
use mqcore_session::session::{Session, SessionConfig, SessionError, provisional_client};
use mqcore_wire::codec::Limits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

/// One peer: its session, and its output that no test has read yet.
struct Peer {
    session: MqksSession,
    provisional: Arc<Client>,
    unread: Vec<u8>,
    written: Vec<u8>,
    error: Option<SessionError>,
}

/// Sessions, shards and the clock between them.
struct World {
    shards: Vec<Broker>,
    peers: BTreeMap<ConnectionId, Peer>,
    now: Timestamp,
    next: u64,
}

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
        let now = Timestamp(1_795_216_278_000);
        Self { shards: (0..shards).map(shard).collect(), peers: BTreeMap::new(), now, next: 0 }
    }

    fn connect(&mut self) -> ConnectionId {
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
            provisional: provisional_client(&config, "mqks", self.now),
            session: MqksSession::new(config, self.now),
            unread: Vec::new(),
            written: Vec::new(),
            error: None,
        };
        self.peers.insert(connection, peer);
        connection
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8], last: bool) {
        self.peers.get_mut(&connection).unwrap().unread.extend_from_slice(bytes);
        // Loops, because the session pauses while the broker accepts the peer or carries out a change for it.
        let mut idle = 0;
        while idle < 2 {
            let before = self.peers[&connection].unread.len();
            self.read(connection, last);
            idle = if self.peers[&connection].unread.len() < before { 0 } else { idle + 1 };
        }
    }

    fn read(&mut self, connection: ConnectionId, last: bool) {
        let now = self.now;
        let peer = self.peers.get_mut(&connection).unwrap();
        if peer.session.is_closing() {
            return;
        }
        let (mut commands, Peer { session, unread, written, .. }) = (Vec::new(), &mut *peer);
        let read = if last {
            session.receive_last(unread, now, &mut commands, written)
        } else {
            session.receive(unread, now, &mut commands, written)
        };
        match read {
            Ok(consumed) => drop(unread.drain(..consumed)),
            Err(error) => peer.error = Some(error),
        }
        let mut effects = VecDeque::new();
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
                self.shards[shard].command(&client, command.clone(), now, &mut out);
                effects.extend(out.into_iter().map(|effect| (shard, effect)));
            }
            self.carry_out(&mut effects);
        }
        self.carry_out(&mut effects);
    }

    /// Carries out effects until there are none.
    fn carry_out(&mut self, effects: &mut VecDeque<(usize, Effect)>) {
        loop {
            while let Some((shard, effect)) = effects.pop_front() {
                self.effect(shard, effect, effects);
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

    fn effect(&mut self, _shard: usize, effect: Effect, effects: &mut VecDeque<(usize, Effect)>) {
        match effect {
            Effect::Notify(to, event) => {
                if let Some(peer) = self.peers.get_mut(&to) {
                    peer.session.event(event, self.now, &mut peer.written).unwrap();
                }
            }
            Effect::Deliver(deliver) => {
                for to in deliver.to.as_slice() {
                    if let Some(peer) = self.peers.get_mut(to) {
                        encode_delivery(&deliver, deliver.first, &mut peer.written);
                    }
                }
            }
            Effect::Forward(to, forwarded) => self.forward(to, forwarded, effects),
            other => panic!("nothing here leads to {other:?}"),
        }
    }

    fn forward(&mut self, to: usize, forwarded: Forwarded, effects: &mut VecDeque<(usize, Effect)>) {
        let mut out = Vec::new();
        self.shards[to].forwarded(forwarded, self.now, &mut out);
        effects.extend(out.into_iter().map(|effect| (to, effect)));
    }

    fn close(&mut self, connection: ConnectionId) {
        self.peers.remove(&connection);
        self.everywhere(|broker, now, out| broker.closed(connection, now, out));
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.everywhere(|broker, now, out| broker.timeout(now, out));
    }

    fn everywhere(&mut self, act: impl Fn(&mut Broker, Timestamp, &mut Vec<Effect>)) {
        let mut effects = VecDeque::new();
        for shard in 0..self.shards.len() {
            let mut out = Vec::new();
            act(&mut self.shards[shard], self.now, &mut out);
            effects.extend(out.into_iter().map(|effect| (shard, effect)));
        }
        self.carry_out(&mut effects);
    }

    /// The lines that a peer received since the last call. `<EOF>` is the end of its connection.
    fn lines(&mut self, connection: ConnectionId) -> Vec<Vec<u8>> {
        let peer = self.peers.get_mut(&connection).unwrap();
        let written = std::mem::take(&mut peer.written);
        let mut lines: Vec<_> = written.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines.pop(), Some(Vec::new()), "every line has its end");
        if peer.session.is_closing() {
            lines.push(b"<EOF>".to_vec());
        }
        lines
    }
}

fn dialogues() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/mqks.jsonl");
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The original loses answers that concern its other workers. mqcore answers, because one broker replaces all workers.
fn is_about_wrong_workers(name: &str) -> bool {
    matches!(
        name,
        "routing_publish_wrong_worker" | "routing_consume_wrong_worker" | "routing_ack_wrong_worker"
    )
}

/// The comparable part: error ids differ each time, and lines to several consumers may arrive in any order.
fn comparable(mut lines: Vec<Vec<u8>>) -> Vec<String> {
    for line in &mut lines {
        if let Some(at) = line.windows(7).position(|part| part == b" error ") {
            let id = line.split_off(at + 7);
            assert!(id.len() == 24 || id == b"{ERROR_ID}", "{}", String::from_utf8_lossy(&id));
        }
    }
    let mut lines: Vec<_> = lines.iter().map(|line| line.escape_ascii().to_string()).collect();
    lines.sort();
    lines
}

fn replay(dialogue: &Value, shards: usize) {
    let name = dialogue["name"].as_str().unwrap();
    let mut world = World::new(shards);
    let mut connections: HashMap<String, ConnectionId> = HashMap::new();
    // The transcript of the real client records the lines that followed a line, not which line they answer.
    let gathers = name == "real_python_client_session";
    let (mut wanted, mut got) =
        (BTreeMap::<String, Vec<Vec<u8>>>::new(), BTreeMap::<String, Vec<Vec<u8>>>::new());
    for step in dialogue["steps"].as_array().unwrap() {
        let conn = step["conn"].as_str().unwrap_or("nobody").to_owned();
        let connection = *connections.entry(conn.clone()).or_insert_with(|| world.connect());
        if let Some(line) = step["send"].as_str() {
            world.send(connection, format!("{line}\n").as_bytes(), false);
        }
        if let Some(hex) = step["send_raw_hex"].as_str() {
            world.send(connection, &unhex(hex), false);
        }
        match step["op"].as_str() {
            Some("close") => {
                world.close(connection);
                connections.remove(&conn);
                continue;
            }
            Some("half-close") => world.send(connection, b"", true),
            Some("sleep") => world.advance(Duration::from_secs_f64(step["seconds"].as_f64().unwrap())),
            _ => {}
        }
        let lines = step["expect_lines"].as_array().unwrap().iter();
        let raw = step["expect_raw_hex"].as_array().into_iter().flatten();
        let wants: Vec<_> = lines
            .map(|line| line.as_str().unwrap().as_bytes().to_vec())
            .chain(raw.map(|hex| unhex(hex.as_str().unwrap())))
            .collect();
        let gets = if conn == "nobody" { Vec::new() } else { world.lines(connection) };
        if gathers {
            wanted.entry(conn.clone()).or_default().extend(wants);
            got.entry(conn).or_default().extend(gets);
            continue;
        }
        assert_eq!(comparable(gets), comparable(wants), "{name}, {shards} shards, after {step}");
    }
    for (conn, wants) in wanted {
        assert_eq!(comparable(got.remove(&conn).unwrap()), comparable(wants), "{name}, {conn}");
    }
}

#[test]
fn recorded_dialogs_of_the_original_replay_identically() {
    let mut replayed = 0;
    for dialogue in dialogues() {
        if is_about_wrong_workers(dialogue["name"].as_str().unwrap()) {
            continue;
        }
        for shards in [1, 3] {
            replay(&dialogue, shards);
        }
        replayed += 1;
    }
    assert_eq!(replayed, 27);
}

#[test]
fn every_port_reaches_every_queue() {
    let mut world = World::new(3);
    let (one, two) = (world.connect(), world.connect());
    world.send(one, b"c1 consume --confirm q1 e1\n", false);
    world.send(two, b"m1 publish --confirm e1 d\n", false);
    assert_eq!(world.lines(one), [&b"c1 ok "[..], b"c1 ok m1 event=e1 d"]);
    assert_eq!(world.lines(two), [b"m1 ok "]);
}

#[test]
fn failed_request_gets_an_error_number_and_a_logged_reason() {
    let mut world = World::new(2);
    let peer = world.connect();
    world.send(
        peer,
        b"x1 consume bad@name e1\nx2 _eval __import__('os')\nx3 _eval --worker=7 len(state.queues)\n",
        false,
    );
    let request_errors = world.peers.get_mut(&peer).unwrap().session.take_request_errors();
    let lines = world.lines(peer);
    assert_eq!(lines.len(), 3);
    for ((line, failed), (id, why)) in lines.iter().zip(&request_errors).zip([
        ("x1", "'@'"),
        ("x2", "nothing is evaluated"),
        ("x3", "one worker"),
    ]) {
        assert_eq!(line, format!("{id} error {}", failed.number).as_bytes());
        assert_eq!(&*failed.request, id.as_bytes());
        assert!(failed.reason.contains(why), "{}", failed.reason);
    }
}

#[test]
fn one_line_becomes_few_commands_however_many_queues_its_consumer_has() {
    let mut world = World::new(1);
    let connection = world.connect();
    let lines: Vec<_> = (0..65).map(|n| format!("c consume q{n} e{n}\n")).collect();
    world.send(connection, lines.concat().as_bytes(), false);
    let session = &mut world.peers.get_mut(&connection).unwrap().session;
    let errors = session.take_request_errors();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].reason.contains("at most 64 queues"), "{}", errors[0].reason);
    let input = b"1 ack c --all\n".repeat(100);
    let (mut commands, mut output) = (Vec::new(), Vec::new());
    session.receive(&input, world.now, &mut commands, &mut output).unwrap();
    assert_eq!(commands.len(), 6_400);
}

#[test]
fn a_publish_after_a_consume_finds_the_queue() {
    for last in [false, true] {
        let mut world = World::new(3);
        let peer = world.connect();
        let lines: Vec<_> =
            (0..8).map(|n| format!("c{n} consume q{n} e{n}\nm{n} publish e{n} d\n")).collect();
        world.send(peer, lines.concat().as_bytes(), last);
        let mut wanted: Vec<_> = (0..8).map(|n| format!("c{n} ok m{n} event=e{n} d")).collect();
        wanted.extend(last.then(|| "<EOF>".to_owned()));
        wanted.sort();
        assert_eq!(comparable(world.lines(peer)), wanted);
    }
}

#[test]
fn overlong_line_is_rejected_with_its_id_before_closing() {
    for (line, id) in [("long1 publish e ", "long1"), ("", "None")] {
        let mut world = World::new(1);
        let peer = world.connect();
        world.send(peer, b"pg ping here\n", false);
        let bytes = [line.as_bytes(), &vec![b'x'; (1 << 20) + 1]].concat();
        // Although the end of the line never arrives.
        world.send(peer, &bytes, false);
        let request_errors = world.peers.get_mut(&peer).unwrap().session.take_request_errors();
        assert!(request_errors[0].reason.contains("limit of 1048576"), "{}", request_errors[0].reason);
        let wanted: [Vec<u8>; 3] = [
            b"pg ok here".to_vec(),
            format!("{id} error {}", request_errors[0].number).into_bytes(),
            b"<EOF>".to_vec(),
        ];
        assert_eq!(world.lines(peer), wanted);
    }
}

#[test]
fn known_statistics_are_answered_with_numbers_of_all_shards() {
    let mut world = World::new(3);
    let peer = world.connect();
    for number in 0..8 {
        world.send(peer, format!("c{number} consume --manual-ack q{number} e{number}\n").as_bytes(), false);
        world.send(peer, format!("m{number} publish e{number} d\n").as_bytes(), false);
    }
    let deliveries: Vec<_> = (0..8).map(|n| format!("c{n} ok m{n} event=e{n} d").into_bytes()).collect();
    assert_eq!(world.lines(peer), deliveries);
    for (expression, value) in [
        ("len(state.queues)", 8),
        ("len(state.consumers)", 8),
        ("len(state.clients)", 1),
        ("len(state.unacked)", 8),
        ("state.published", 8),
        ("state.queued", 8),
        ("state.consumed", 8),
        ("len(config['workers'])", 1),
        ("len(state.events_by_queues)", 8),
        ("len(state.queues_to_delete_when_unused)", 0),
        ("len([u for u in state.queues_used.itervalues() if u.is_set()])", 8),
        // A client on several shards counts once.
        ("len(state.consumer_ids_by_clients)", 1),
    ] {
        world.send(peer, format!("ev _eval {expression}\n").as_bytes(), false);
        assert_eq!(world.lines(peer), [format!("ev ok {value}").as_bytes()], "{expression}");
    }
}

#[test]
fn bodies_of_other_protocols_stay_one_line() {
    use mqcore_broker::model::id::{QueueAddress, Tag};
    use mqcore_broker::model::message::{Message, Properties};
    let deliver = mqcore_broker::model::effect::Deliver {
        queue: Arc::new(QueueAddress::parse("orders/7").unwrap()),
        message: Message::from_parts(b"an id", b"a:b\r\n", b"one\r\ntwo\tthree", Properties::default(), None),
        to: mqcore_broker::model::effect::Recipients::One(ConnectionId(1)),
        acknowledge: false,
        hide_source: false,
        first: true,
        tag: Tag(1),
        attempt: 3,
        by_queue: false,
        requeues: 2,
        name: Some((*b"c1").into()),
    };
    let mut line = Vec::new();
    encode_delivery(&deliver, true, &mut line);
    assert_eq!(line, b"c1 ok %:an%20id event=orders/7,retry=2 one\\r\\ntwo\\tthree\n");
}

#[test]
fn only_the_first_line_can_authenticate() {
    for last in [false, true] {
        let mut world = World::new(2);
        let peer = world.connect();
        world.send(peer, b"1 auth mqt_text\n2 ping here\n3 auth mqt_text\n", last);
        let mut wanted = vec!["1 ok ", "2 ok here", "3 error {ERROR_ID}"];
        wanted.extend(last.then_some("<EOF>"));
        let wanted = wanted.into_iter().map(|line| line.as_bytes().to_vec()).collect();
        assert_eq!(comparable(wanted), comparable(world.lines(peer)));
    }
}

#[test]
fn credentials_reach_the_broker_once_however_their_line_is_split() {
    let line = b"1 auth  Bearer mqt_text \r\n";
    for (size, last) in [(1, false), (5, false), (line.len(), false), (1, true)] {
        let mut world = World::new(1);
        let connection = world.connect();
        let session = &mut world.peers.get_mut(&connection).unwrap().session;
        let bytes = if last { &line[..line.len() - 2] } else { &line[..] };
        let (mut commands, mut output) = (Vec::new(), Vec::new());
        for end in (0..=bytes.len()).step_by(size).chain([bytes.len()]) {
            session.receive(&bytes[..end], world.now, &mut commands, &mut output).unwrap();
        }
        if last {
            session.receive_last(bytes, world.now, &mut commands, &mut output).unwrap();
        }
        let [Command::Introduce(introduction)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(introduction.token.as_deref().map(str::trim), Some("Bearer mqt_text"));
        assert!(output.is_empty(), "nothing is answered before it is known who this is");
    }
}

#[test]
fn rejected_peer_gets_an_error_for_its_first_line_and_no_effect() {
    for first in ["1 auth wrong", "1 publish --confirm e d"] {
        let mut world = World::new(1);
        let connection = world.connect();
        let peer = world.peers.get_mut(&connection).unwrap();
        let bytes = format!("{first}\n2 delete_queue orders\n");
        let mut commands = Vec::new();
        peer.session.receive(bytes.as_bytes(), world.now, &mut commands, &mut peer.written).unwrap();
        assert!(matches!(commands[..], [Command::Introduce(_)]), "{commands:?}");
        let no = Rejection::new(RejectionKind::Unauthorized, "no");
        peer.session.event(Event::Refused(no), world.now, &mut peer.written).unwrap();
        let read = peer.session.receive(bytes.as_bytes(), world.now, &mut commands, &mut peer.written);
        assert_eq!((read, commands.len()), (Ok(0), 1));
        let wanted = vec![b"1 error {ERROR_ID}".to_vec(), b"<EOF>".to_vec()];
        assert_eq!(comparable(wanted), comparable(world.lines(connection)));
    }
}

proptest! {
    /// Until the broker has accepted the peer, the session sends no other command than the introduction.
    #[test]
    fn unknown_peer_causes_only_an_introduction(
        words in vec(prop_oneof![
            select(vec!["1 auth ", "x publish --confirm e d", "c consume q e", "e _eval len(state.queues)", "\n", " ", "\t"])
                .prop_map(|word| word.as_bytes().to_vec()),
            vec(any::<u8>(), 0..20),
        ], 0..12),
        cut in any::<Index>(),
        last in any::<bool>(),
    ) {
        let bytes = words.concat();
        let mut world = World::new(1);
        let connection = world.connect();
        let session = &mut world.peers.get_mut(&connection).unwrap().session;
        let (mut commands, mut output) = (Vec::new(), Vec::new());
        let part = cut.index(bytes.len() + 1);
        let read = session.receive(&bytes[..part], world.now, &mut commands, &mut output).is_ok()
            && session.receive(&bytes, world.now, &mut commands, &mut output).is_ok();
        if read && last {
            let _ = session.receive_last(&bytes, world.now, &mut commands, &mut output);
        }
        prop_assert!(commands.len() <= 1, "{:?}", commands);
        prop_assert!(commands.iter().all(|command| matches!(command, Command::Introduce(_))));
        prop_assert!(session.client().is_none());
        prop_assert!(!output.windows(4).any(|part| part == b" ok "), "an answer to a stranger");
    }
}
