//! The broker's own cost per message, without socket, task or codec.
//!
//! `cargo bench -p mqcore-bench --bench broker`

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Acknowledgement, Command, Request};
use mqcore_broker::model::config::BrokerConfig;
use mqcore_broker::model::effect::Effect;
use mqcore_broker::model::id::{ChannelName, ConnectionId, QueueAddress, RequestId, TopicName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::topic::TopicPattern;
use mqcore_broker::shard::Broker;

const BATCH: usize = 400;
const NOW: Timestamp = Timestamp(1);

struct Bench {
    broker: Broker,
    producer: Arc<Client>,
    consumers: Vec<Arc<Client>>,
    queue: QueueAddress,
    effects: Vec<Effect>,
    next: u64,
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
    fn new(status: Status, acknowledge: bool, consumers: u64) -> Self {
        let mut bench = Self {
            broker: Broker::new(BrokerConfig::default()),
            producer: client(1),
            consumers: (2..2 + consumers).map(client).collect(),
            queue: QueueAddress { channel: ChannelName::new("bench").expect("a good name"), id: 1 },
            effects: Vec::new(),
            next: 0,
        };
        let changes = QueueChanges {
            status: Some(status),
            request_acknowledge: Some(acknowledge),
            ..QueueChanges::default()
        };
        let create = Request::CreateQueue { queue: bench.queue.clone(), changes };
        bench.request(&bench.producer.clone(), create);
        for consumer in bench.consumers.clone() {
            bench.request(&consumer, Request::Join { channel: bench.queue.channel.clone() });
        }
        bench.effects.clear();
        bench
    }

    fn request(&mut self, client: &Arc<Client>, request: Request) {
        let command = Command::Request(RequestId(0), Box::new(request));
        self.broker.command(client, command, NOW, &mut self.effects);
    }

    fn messages(&mut self) -> Vec<Command> {
        (0..BATCH)
            .map(|_| {
                self.next += 1;
                let id = format!("{:024}", self.next);
                let properties = Properties { hops: 15, content_type: 1, ..Properties::default() };
                let producer = Some(self.producer.clone());
                let message = Message::from_parts(id.as_bytes(), b"", &[7; 128], properties, producer);
                Command::Publish { queue: self.queue.clone(), message }
            })
            .collect()
    }

    fn publish(&mut self, commands: Vec<Command>) {
        let producer = self.producer.clone();
        for command in commands {
            self.broker.command(&producer, command, NOW, &mut self.effects);
        }
        while self.broker.work(NOW, 1024, &mut self.effects) {}
    }

    fn acknowledge(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        for effect in &effects {
            let Effect::Deliver(deliver) = effect else { continue };
            let consumer = deliver.to.as_slice()[0].0 as usize - 2;
            let word = Acknowledgement {
                tag: mqcore_broker::model::id::Tag::CHANNEL,
                queue: self.queue.clone(),
                message_id: deliver.message.id().into(),
                refusal: None,
                headers: Box::default(),
                hops: 15,
                first_acquirer: true,
            };
            let client = self.consumers[consumer].clone();
            self.broker.command(&client, Command::Acknowledge(word), NOW, &mut self.effects);
        }
    }
}

fn broker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("broker");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, status, acknowledge, consumers) in [
        ("broadcast to 1", Status::Broadcast, false, 1),
        ("broadcast to 100", Status::Broadcast, false, 100),
        ("push to 1, stored first", Status::Push, false, 1),
        ("round robin over 4 with acks", Status::RoundRobin, true, 4),
    ] {
        let mut bench = Bench::new(status, acknowledge, consumers);
        let bench = std::cell::RefCell::new(&mut bench);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || bench.borrow_mut().messages(),
                |commands| {
                    let mut bench = bench.borrow_mut();
                    bench.publish(commands);
                    if acknowledge {
                        bench.acknowledge();
                    }
                    bench.effects.clear();
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Publishes to topics that the broker has not seen lately, while others have subscribed to masks that do not match.
fn topics(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("topics");
    group.throughput(Throughput::Elements(BATCH as u64));
    for masks in [0, 1_000, 40_000] {
        let (producer, mut effects) = (client(1), Vec::new());
        let mut broker = Broker::new(BrokerConfig::default());
        for number in 0..masks {
            let mask = format!("plant{number}.*.sensor.*");
            let pattern = TopicPattern::Mask(TopicName::new(mask.as_bytes()).expect("a good name"));
            let command = Command::Request(RequestId(0), Box::new(Request::SubscribeTopic { pattern }));
            broker.command(&client(2 + number / 1_000), command, NOW, &mut effects);
        }
        effects.clear();
        let mut next = 0_u64;
        group.bench_function(format!("new topics, {masks} masks of others"), |bencher| {
            bencher.iter(|| {
                for _ in 0..BATCH {
                    next += 1;
                    let topic = format!("site.line{next}.sensor.heat");
                    let topic = TopicName::new(topic.as_bytes()).expect("a good name");
                    let message =
                        Message::from_parts(b"id", b"", b"21", Properties::default(), Some(producer.clone()));
                    let command = Command::PublishTopic { topic, message, to_producer: false, answer: None };
                    broker.command(&producer, command, NOW, &mut effects);
                }
                effects.clear();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, broker, topics);
criterion_main!(benches);
