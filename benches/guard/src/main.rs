//! Ten hot paths for `make bench-guard`, which counts their instructions: `mqcore-guard PATH ROUNDS`, or
//! `mqcore-guard list`.
//!
//! A count of instructions hardly depends on what else the machine does. `guard.py` runs each path with few and
//! with many rounds; the difference is the cost of a round without preparation. All inputs are fixed. Keys of hash tables are
//! random, which changes a count by far less than the tolerance.
#![expect(clippy::print_stdout, reason = "the list of paths is the output")]

use std::hash::RandomState;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Acknowledgement, Command, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::Effect;
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId, RouterName, Tag, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::router::{Binding, RouterMethod, Target};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_broker::shard::Broker;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_limiter::limiter::{Limiter, LimiterConfig};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::{Nanos, Ttl};
use mqcore_wire::codec::Limits;
use mqcore_wire::eventmq::{self, Case, EmqpCommand, Job};
use mqcore_wire::micromessage::{self, MessageFrame};
use mqcore_wire::throttr::request::{DECREASE, QUOTA, ThrottrRequest};
use mqcore_wire::throttr::{Dialect, answer};
use mqcore_wire::zmtp::{Item, ZmtpDecoder};
use mqcore_wire::{mqks, throttr, tmqp};

const NOW: Timestamp = Timestamp(1);
const BODY: [u8; 128] = [b'x'; 128];
const KEY: &[u8; 16] = b"user:00000012345";

/// Messages of a round of the broker and of the journal: about what one read of a connection brings.
const BATCH: usize = 64;

type Path = fn(u64);

const PATHS: [(&str, Path); 10] = [
    ("tmqp-frame", tmqp_frame),
    ("publish-deliver-ack", publish_deliver_ack),
    ("journal-batch", journal_batch),
    ("limiter-check", limiter_check),
    ("throttr-request", throttr_request),
    ("micromessage-frame", micromessage_frame),
    ("mqks-line", mqks_line),
    ("eventmq-job", eventmq_job),
    ("topic-match", topic_match),
    ("router-rule", router_rule),
];

/// Decodes a frame of a producer and encodes it for a consumer.
fn tmqp_frame(rounds: u64) {
    let frame = tmqp::Frame {
        pending_acknowledge: true,
        content_type: 7,
        id: b"0123456789abcdef0123456789abcdef",
        source: b"producer-1",
        target: b"orders",
        headers: b"CC:audit;7\r\n",
        payload: &BODY,
        ..tmqp::Frame::new(tmqp::Kind::QUEUE)
    };
    let (mut bytes, mut output, limits) = (Vec::new(), Vec::new(), Limits::default());
    tmqp::encode(&frame, &mut bytes);
    for _ in 0..rounds {
        let decoded = tmqp::decode(black_box(&bytes), &limits);
        let (decoded, _) = decoded.expect("a valid frame").expect("a whole frame");
        output.clear();
        tmqp::encode(black_box(&decoded), &mut output);
        black_box(&output);
    }
}

/// A broker with clients, without a socket.
struct Bench {
    broker: Broker,
    producer: Arc<Client>,
    consumer: Arc<Client>,
    effects: Vec<Effect>,
}

fn client(number: u64) -> Arc<Client> {
    Arc::new(Client {
        connection: ConnectionId(number),
        id: format!("client-{number}").into(),
        authenticated: false,
        name: None,
        kind: None,
        protocol: "tmqp",
        admin: true,
        user: None,
        connected_at: NOW,
        data: None,
    })
}

impl Bench {
    fn new() -> Self {
        let broker = Broker::new(BrokerConfig::default());
        Self { broker, producer: client(1), consumer: client(2), effects: Vec::new() }
    }

    fn request(&mut self, client: &Arc<Client>, request: Request) {
        let command = Command::Request(RequestId(0), Box::new(request));
        self.broker.command(client, command, NOW, &mut self.effects);
        self.effects.clear();
    }

    /// Creates a queue that the consumer has joined.
    fn queue(&mut self, name: &str, status: Status, acknowledge: bool) -> QueueAddress {
        let queue = QueueAddress::parse(name).expect("a good name");
        let changes = QueueChanges {
            status: Some(status),
            request_acknowledge: Some(acknowledge),
            ..QueueChanges::default()
        };
        let producer = self.producer.clone();
        self.request(&producer, Request::CreateQueue { queue: queue.clone(), changes });
        let consumer = self.consumer.clone();
        self.request(&consumer, Request::Join { channel: queue.channel.clone() });
        queue
    }

    fn message(&self, number: u64) -> Message {
        let properties = Properties { hops: 15, content_type: 1, ..Properties::default() };
        let id = format!("{number:024}");
        Message::from_parts(id.as_bytes(), b"", &BODY, properties, Some(self.producer.clone()))
    }

    /// Executes commands of the producer, and the work that follows from them.
    fn commands(&mut self, commands: Vec<Command>) {
        let producer = self.producer.clone();
        for command in commands {
            self.broker.command(&producer, command, NOW, &mut self.effects);
        }
        while self.broker.work(NOW, 1024, &mut self.effects) {}
    }

    /// Number of deliveries since the last call.
    fn deliveries(&mut self) -> usize {
        let count = self
            .effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Deliver(_) | Effect::Publication(_)))
            .count();
        self.effects.clear();
        count
    }
}

/// Publishes a batch of messages to a queue, delivers them to a consumer, and settles them.
fn publish_deliver_ack(rounds: u64) {
    let mut bench = Bench::new();
    let queue = bench.queue("bench/1", Status::RoundRobin, true);
    let mut next = 0;
    for _ in 0..rounds {
        let mut settled = 0;
        let commands = (0..BATCH).map(|_| {
            next += 1;
            Command::Publish { queue: queue.clone(), message: bench.message(next) }
        });
        let commands = commands.collect();
        bench.commands(commands);
        // An acknowledgement makes room for the next delivery.
        while !bench.effects.is_empty() {
            let effects = std::mem::take(&mut bench.effects);
            for effect in &effects {
                let Effect::Deliver(deliver) = effect else { continue };
                let acknowledgement = Acknowledgement {
                    tag: Tag::CHANNEL,
                    queue: queue.clone(),
                    message_id: deliver.message.id().into(),
                    refusal: None,
                    headers: Box::default(),
                    hops: 15,
                    first_acquirer: true,
                };
                let consumer = bench.consumer.clone();
                let command = Command::Acknowledge(acknowledgement);
                bench.broker.command(&consumer, command, NOW, &mut bench.effects);
                settled += 1;
            }
            while bench.broker.work(NOW, 1024, &mut bench.effects) {}
        }
        assert_eq!(settled, BATCH, "each message is delivered once");
    }
}

/// Appends a batch of messages to the journal and settles the one before; its disk is in memory.
fn journal_batch(rounds: u64) {
    let storage = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(storage, Options::default(), &mut |_, _| {}).expect("a journal");
    let (mut sequence, mut previous) = (1, Vec::new());
    for _ in 0..rounds {
        let current: Vec<u64> = (sequence..sequence + BATCH as u64).collect();
        for &sequence in &current {
            journal.put(sequence, 7, &[b"headers", &BODY]).expect("putting");
        }
        journal.settle(&previous).expect("settling");
        journal.write().expect("writing");
        journal.sync().expect("syncing");
        sequence += BATCH as u64;
        previous = current;
    }
}

/// Checks a limit, half of which is used.
fn limiter_check(rounds: u64) {
    let store = Limiter::new(LimiterConfig::default(), RandomState::new());
    let hour = Ttl { unit: 6, amount: 1 };
    for number in 0..10_000_u64 {
        store.insert(&number.to_le_bytes(), u64::MAX, 64, hour, Nanos(1));
    }
    let period = Ttl { unit: 4, amount: 1 };
    let rule = Rule { algorithm: Algorithm::SlidingWindow, limit: 1_000_000, cost: 1, period };
    let half = Rule { cost: 500_000, ..rule };
    store.consume(KEY, &half, ConsumeMode::Take, 64, Nanos(2)).expect("a fresh key");
    let mut now = 2;
    for _ in 0..rounds {
        now += 1_000;
        black_box(store.consume(black_box(KEY), &rule, ConsumeMode::Take, 64, Nanos(now)))
            .expect("a good rule");
    }
}

/// Decodes a request and encodes its answer.
fn throttr_request(rounds: u64) {
    let (dialect, limits) = (Dialect::default(), Limits::default());
    let request = ThrottrRequest::Update { attribute: QUOTA, change: DECREASE, value: 1, key: KEY };
    let (mut bytes, mut output) = (Vec::new(), Vec::new());
    throttr::request::encode(&request, dialect, &mut bytes).expect("a short key");
    for _ in 0..rounds {
        let decoded = throttr::request::decode(black_box(&bytes), dialect, &limits);
        black_box(decoded.expect("a valid request").expect("a whole request"));
        output.clear();
        answer::status(black_box(true), &mut output);
        black_box(&output);
    }
}

/// Decodes a message frame and encodes it again.
fn micromessage_frame(rounds: u64) {
    let frame = micromessage::Frame::Message(MessageFrame {
        continued: false,
        sequence: 7,
        destination: b"topic/orders",
        properties: b"price:N12;sent:D1413198000.5;region:Teurope;",
        payload: &BODY,
    });
    let (mut bytes, mut output, limits) = (Vec::new(), Vec::new(), Limits::default());
    micromessage::encode(&frame, &mut bytes);
    for _ in 0..rounds {
        let decoded = micromessage::decode(black_box(&bytes), 1, &limits);
        let (decoded, _) = decoded.expect("a valid frame").expect("a whole frame");
        output.clear();
        micromessage::encode(black_box(&decoded), &mut output);
        black_box(&output);
    }
}

/// Splits a line off the input, parses it, and encodes the answer.
fn mqks_line(rounds: u64) {
    let mut bytes = b"m1 publish --confirm orders.created ".to_vec();
    bytes.extend_from_slice(&BODY);
    bytes.push(b'\n');
    let (mut output, limits) = (Vec::new(), Limits::default());
    for _ in 0..rounds {
        let (line, _) =
            mqks::Lines::new().next(black_box(&bytes), &limits).expect("a valid line").expect("a whole line");
        let request = black_box(mqks::parse(line));
        assert!(request.confirm && request.action.is_ok());
        output.clear();
        mqks::answer::encode_done(request.id, b"", &mut output);
        black_box(&output);
    }
}

/// Decodes a job from ZMTP frames, and encodes it for a worker.
fn eventmq_job(rounds: u64) {
    let job = Job { queue: b"default", headers: b"guarantee,retry-count:3", body: &BODY, extra: Vec::new() };
    let (mut bytes, mut output, limits) = (Vec::new(), Vec::new(), Limits::default());
    eventmq::encode_request(b"0123456789abcdef", &job, &mut bytes);
    let mut decoder = ZmtpDecoder::new();
    for _ in 0..rounds {
        let item = decoder.next(black_box(&bytes), &limits).expect("valid frames").expect("a whole message");
        let (Item::Message(parts), _) = item else { unreachable!("it is no command") };
        let message = eventmq::parse(parts, Case::Exact).expect("a valid message");
        let EmqpCommand::Request(job) = &message.command else { unreachable!("it is a request") };
        output.clear();
        eventmq::encode_request(black_box(message.id), job, &mut output);
        black_box(&output);
    }
}

/// Publishes to a new topic, while others have subscribed to a thousand masks of which one matches.
fn topic_match(rounds: u64) {
    let mut bench = Bench::new();
    let subscribe = |mask: &str| {
        let mask = TopicName::new(mask.as_bytes()).expect("a good name");
        Request::SubscribeTopic { pattern: TopicPattern::Mask(mask) }
    };
    for number in 0..1_000 {
        bench.request(&client(10 + number / 100), subscribe(&format!("plant{number}.*.sensor.*")));
    }
    let consumer = bench.consumer.clone();
    bench.request(&consumer, subscribe("site.*.sensor.*"));
    for number in 0..rounds {
        let topic =
            TopicName::new(format!("site.line{number:08}.sensor.heat").as_bytes()).expect("a good name");
        let message = bench.message(number);
        bench.commands(vec![Command::PublishTopic { topic, message, to_producer: false, answer: None }]);
        assert_eq!(bench.deliveries(), 1, "one mask matches");
    }
}

/// Publishes to a router with ten bindings to queues, of which the message gets to each.
fn router_rule(rounds: u64) {
    const BINDINGS: usize = 10;
    let mut bench = Bench::new();
    let router = RouterName::new("r").expect("a good name");
    let producer = bench.producer.clone();
    bench.request(
        &producer,
        Request::CreateRouter { router: router.clone(), method: RouterMethod::Distribute },
    );
    for number in 0..BINDINGS {
        let queue = bench.queue(&format!("bound{number}/1"), Status::Broadcast, false);
        let mut binding = Binding::new(&format!("b{number}"), Target::Queue(queue));
        binding.priority = number as i32;
        bench.request(&producer, Request::AddBinding { router: router.clone(), binding });
    }
    for number in 0..rounds {
        let message = bench.message(number);
        bench.commands(vec![Command::Route { router: router.clone(), message }]);
        assert_eq!(bench.deliveries(), BINDINGS, "each binding delivers");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = |name: &str| PATHS.iter().find(|(known, _)| *known == name);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => PATHS.iter().for_each(|(name, _)| println!("{name}")),
        [name, rounds] if path(name).is_some() && rounds.parse::<u64>().is_ok() => {
            let (_, run) = path(name).expect("checked");
            run(rounds.parse().expect("checked"));
        }
        _ => {
            eprintln!("mqcore-guard list, or mqcore-guard PATH ROUNDS");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
