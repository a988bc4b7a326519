//! Scenarios that follow from a seed: queues, clients, and the steps of a run.

use std::fmt;
use std::time::Duration;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{DeadLetter, Durability, QueueChanges, Status};
use mqcore_session::any::Protocol;
use mqcore_testkit::Random;

use crate::time::Micros;

/// Time to acknowledge a delivery in every queue, in microseconds. Longer than any delay of the network.
pub(crate) const ACKNOWLEDGE_TIMEOUT: Micros = 3_000_000;
/// Maximum delay before a redelivery, in milliseconds.
const RETRY_DELAY_MAX_MS: u64 = 400;

/// Everything that a run does. A run depends on nothing else.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed of all random choices within the run: delays, sizes of packets, what a crash loses.
    pub seed: u64,
    /// Number of shards.
    pub shards: usize,
    /// Size of a journal's segments in bytes.
    pub segment_bytes: u32,
    /// Bytes of saved messages that may wait in the memory of a shard.
    pub memory_watermark: u64,
    /// Maximum output in bytes that waits for a client that does not read.
    pub output_bytes_max: usize,
    /// The queues, which the configuration declares.
    pub queues: Vec<SimulatedQueue>,
    /// The clients.
    pub clients: Vec<SimulatedClient>,
    /// The steps, each with the time since the previous one in microseconds.
    pub steps: Vec<(u64, ScenarioStep)>,
}

/// A queue and its options.
#[derive(Debug, Clone)]
pub struct SimulatedQueue {
    /// Channel and number.
    pub address: String,
    /// Whether it saves messages before it confirms them. Otherwise it keeps them in memory.
    pub saves: bool,
    /// When a saved message counts as saved.
    pub durability: Durability,
    /// The durability that the oracle expects. Another one than `durability` tests the oracle.
    pub promise: Durability,
    /// How it delivers: `Push`, `RoundRobin` or `Pull`.
    pub status: Status,
    /// Whether a message waits until the previous one is settled.
    pub one_at_a_time: bool,
    /// Delay before a rejected message is redelivered.
    pub retry_delay_ms: u64,
    /// How often a message is requeued, and the address of the queue that gets it after that. `None`: without end.
    pub dead_letter: Option<(u16, String)>,
}

/// Terms that a producer sets for a message. Only TMQP has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishTerms {
    /// Delay before the first delivery, in milliseconds.
    pub delay_ms: u64,
    /// Time until the message expires, in milliseconds, including the delay; 0: it does not.
    pub expires_ms: u64,
    /// Priority; 0 is normal.
    pub priority: u8,
}

/// A client.
#[derive(Debug, Clone)]
pub struct SimulatedClient {
    /// `Tmqp`, `Mqks` or `MicroMessage`.
    pub protocol: Protocol,
    /// The index of its queue.
    pub queue: usize,
    /// Its terms as a consumer; `None`: it publishes.
    pub consumer: Option<ConsumerBehavior>,
}

/// How a consumer treats messages.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerBehavior {
    /// Maximum unsettled messages, or messages of one pull.
    pub prefetch: u32,
    /// Messages of 100 that it rejects.
    pub rejects: u64,
    /// Messages of 100 that it never settles.
    pub ignores: u64,
    /// Maximum time that it works on a message, in microseconds.
    pub work_micros: u64,
}

/// A step of a run. Clients are named by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioStep {
    /// A client connects, unless it is connected.
    Connect(usize),
    /// A producer publishes messages with bodies of this size.
    Publish {
        /// The producer.
        client: usize,
        /// Number of messages.
        count: u32,
        /// Bytes of each body.
        bytes: usize,
        /// Terms of each message.
        terms: PublishTerms,
    },
    /// A client closes its connection in order.
    Leave(usize),
    /// The connection of a client is cut.
    Cut(usize),
    /// Nothing arrives any more on the connection of a client, and neither side notices.
    Silence(usize),
    /// A client stops reading.
    Pause(usize),
    /// It reads again.
    Resume(usize),
    /// The broker is killed; the disks keep what was written.
    Kill,
    /// The machine loses power: the disks lose an arbitrary part of what was not synced.
    PowerLoss,
    /// The broker is stopped in order, and started again.
    Restart,
    /// The disks have only this many free bytes, until the next calm or start.
    DiskFull(u64),
    /// A call of the disk of a shard fails after so many others.
    DiskError {
        /// The shard.
        shard: usize,
        /// Whether it is a sync. Otherwise any call that changes something.
        is_sync: bool,
        /// The number of calls before it.
        after: u64,
    },
    /// No faults, and consumers that settle everything, until nothing is left to do. Then all promises must hold.
    Calm,
}

impl SimulatedQueue {
    /// The options that differ from the defaults.
    pub(crate) fn changes(&self) -> QueueChanges {
        QueueChanges {
            status: Some(self.status),
            request_acknowledge: Some(true),
            acknowledge_timeout: Some(Duration::from_micros(ACKNOWLEDGE_TIMEOUT)),
            wait_for_acknowledge: Some(self.one_at_a_time),
            delivery_handler: Some(if self.saves { "at-least-once" } else { "memory" }.into()),
            put_back_limit: Some(self.dead_letter.as_ref().map_or(u16::MAX, |(limit, _)| *limit)),
            dead_letter: self.dead_letter.as_ref().map(|(_, address)| {
                Some(DeadLetter::Queue(QueueAddress::parse(address).expect("a valid address")))
            }),
            retry_delay: Some(Some(Duration::from_millis(self.retry_delay_ms))),
            retry_delay_max: Some(Duration::from_millis(RETRY_DELAY_MAX_MS)),
            durability: Some(self.durability),
            ..QueueChanges::default()
        }
    }
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let shards = 1 + random.index(3);
        let mut queues: Vec<_> = (0..=random.index(3)).map(|number| queue(&mut random, number)).collect();
        // To an earlier queue, which exists already when this one is declared.
        for number in 1..queues.len() {
            if !random.one_in(3) {
                let limit = [0, 0, 1, 3][random.index(4)];
                queues[number].dead_letter = Some((limit, queues[random.index(number)].address.clone()));
            }
        }
        let mut clients = Vec::new();
        for (queue, SimulatedQueue { status, .. }) in queues.iter().enumerate() {
            for _ in 0..=random.index(2) {
                clients.push(producer(&mut random, queue));
            }
            for _ in 0..=random.index(2) {
                clients.push(consumer(&mut random, queue, *status));
            }
        }
        let mut steps = Vec::new();
        for client in 0..clients.len() {
            if !random.one_in(5) {
                steps.push((random.below(3_000), ScenarioStep::Connect(client)));
            }
        }
        let pace = [2_000, 20_000, 400_000][random.index(3)];
        for _ in 0..10 + random.below(50) {
            let step = step(&mut random, &clients, shards);
            steps.push((random.below(pace), step));
        }
        Self {
            seed,
            shards,
            segment_bytes: [12_288, 16_384, 65_536][random.index(3)],
            memory_watermark: [2_000, 20_000, 1 << 20][random.index(3)],
            output_bytes_max: [2_000, 16_000, 1 << 20][random.index(3)],
            queues,
            clients,
            steps,
        }
    }
}

fn queue(random: &mut Random, number: usize) -> SimulatedQueue {
    let durability = match random.below(4) {
        0 => Durability::Os,
        _ => Durability::Fsync,
    };
    SimulatedQueue {
        address: format!("channel{}/{}", random.below(3), number + 1),
        saves: !random.one_in(4),
        durability,
        promise: durability,
        status: match random.below(4) {
            0 => Status::Push,
            1 => Status::Pull,
            _ => Status::RoundRobin,
        },
        one_at_a_time: random.one_in(6),
        retry_delay_ms: [0, 20, 100][random.index(3)],
        dead_letter: None,
    }
}

fn terms(random: &mut Random) -> PublishTerms {
    let delay_ms = [0, 0, 0, 50, 2_000][random.index(5)];
    let expires_ms = if random.one_in(8) { delay_ms + 1 + random.below(3_000) } else { 0 };
    PublishTerms { delay_ms, expires_ms, priority: [0, 0, 0, 1, 200][random.index(5)] }
}

fn protocol(random: &mut Random) -> Protocol {
    [Protocol::Tmqp, Protocol::Tmqp, Protocol::Mqks, Protocol::MicroMessage][random.index(4)]
}

fn producer(random: &mut Random, queue: usize) -> SimulatedClient {
    SimulatedClient { protocol: protocol(random), queue, consumer: None }
}

fn consumer(random: &mut Random, queue: usize, status: Status) -> SimulatedClient {
    let habits = ConsumerBehavior {
        prefetch: [1, 2, 5, 50][random.index(4)],
        rejects: [0, 10, 50][random.index(3)],
        ignores: [0, 0, 10, 40][random.index(4)],
        work_micros: [0, 1_000, 300_000][random.index(3)],
    };
    // Only TMQP pulls.
    let protocol = if status == Status::Pull { Protocol::Tmqp } else { protocol(random) };
    SimulatedClient { protocol, queue, consumer: Some(habits) }
}

fn step(random: &mut Random, clients: &[SimulatedClient], shards: usize) -> ScenarioStep {
    let client = random.index(clients.len());
    match random.below(100) {
        0..50 => {
            let producers: Vec<_> =
                (0..clients.len()).filter(|client| clients[*client].consumer.is_none()).collect();
            let client = producers[random.index(producers.len())];
            let bytes = [0, 10, 300, 3_000][random.index(4)];
            let count = 1 + random.below(12) as u32;
            let terms = if random.one_in(3) { terms(random) } else { PublishTerms::default() };
            ScenarioStep::Publish { client, count, bytes, terms }
        }
        50..68 => ScenarioStep::Connect(client),
        68..73 => ScenarioStep::Leave(client),
        73..79 => ScenarioStep::Cut(client),
        79..81 => ScenarioStep::Silence(client),
        81..83 => ScenarioStep::Pause(client),
        83..86 => ScenarioStep::Resume(client),
        86..89 => ScenarioStep::Kill,
        89..93 => ScenarioStep::PowerLoss,
        93..95 => ScenarioStep::Restart,
        95..96 => ScenarioStep::DiskFull(random.below(30_000)),
        96..97 => ScenarioStep::DiskError {
            shard: random.index(shards),
            is_sync: random.one_in(2),
            after: random.below(6),
        },
        _ => ScenarioStep::Calm,
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} shards, segments of {} bytes, memory watermark {} bytes, output limit {} bytes",
            self.shards, self.segment_bytes, self.memory_watermark, self.output_bytes_max
        )?;
        for (index, queue) in self.queues.iter().enumerate() {
            writeln!(formatter, "queue {index}: {queue:?}")?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            writeln!(formatter, "client {index}: {client:?}")?;
        }
        let mut at = 0;
        for (gap, step) in &self.steps {
            at += gap;
            writeln!(formatter, "{:>10}.{:03} {step:?}", at / 1000, at % 1000)?;
        }
        Ok(())
    }
}
