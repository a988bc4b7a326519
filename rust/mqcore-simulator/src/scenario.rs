//! Scenarios that follow from a seed: queues, clients, and the steps of a run.

mod choose;
pub mod definitions;
pub mod handlers;
pub mod jobs;
pub mod limits;
pub mod schedules;

use std::fmt;
use std::time::Duration;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{DeadLetter, Durability, QueueChanges, Status};
use mqcore_broker::model::router::RouterMethod;
use mqcore_session::any::Protocol;

use self::definitions::QueueChange;
use self::handlers::SimulatedHandler;
use self::jobs::JobAction;
use self::limits::{LimitAction, SimulatedLimit};
use self::schedules::SimulatedSchedule;
use crate::time::Micros;

/// Time to acknowledge a delivery in every queue, in microseconds. Longer than any delay of the network.
pub(crate) const ACKNOWLEDGE_TIMEOUT: Micros = 3_000_000;
/// Maximum delay before a redelivery, in milliseconds.
const RETRY_DELAY_MAX_MS: u64 = 400;
/// Time for which queues remember ids. Longer than any run.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(24 * 3_600);

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
    /// The routes, which their producers define.
    pub routes: Vec<SimulatedRoute>,
    /// The keys of limits, each used by one client.
    pub limits: Vec<SimulatedLimit>,
    /// The schedules, each requested by one client.
    pub schedules: Vec<SimulatedSchedule>,
    /// The queue of jobs whose results the broker keeps, which one client requests.
    pub jobs: Option<usize>,
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
    /// How it delivers: `Push`, `RoundRobin`, `Pull`, `Broadcast` or `Cache`.
    pub status: Status,
    /// Whether a message waits until the previous one is settled.
    pub one_at_a_time: bool,
    /// Delay before a rejected message is redelivered.
    pub retry_delay_ms: u64,
    /// How often a message is requeued, and the address of the queue that gets it after that. `None`: without end.
    pub dead_letter: Option<(u16, String)>,
    /// Whether it drops messages whose id it has accepted before. It remembers ids for longer than any run.
    pub deduplicates: bool,
    /// The delivery handler that decides some of the steps of its messages. `None`: a policy decides all of them.
    pub handler: Option<SimulatedHandler>,
    /// How many jobs with the same key its workers run at a time. `None`: its jobs have no keys.
    pub concurrency: Option<u32>,
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

/// A way to several queues.
#[derive(Debug, Clone)]
pub struct SimulatedRoute {
    /// Topic, router or copies.
    pub kind: RouteKind,
    /// The indices of its queues.
    pub queues: Vec<usize>,
}

/// The kind of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// A topic to which the queues are bound.
    Topic {
        /// Whether they are bound by a pattern. Otherwise by the topic's name.
        by_pattern: bool,
    },
    /// A router with bindings to the queues. With `Distribute` only the first queue confirms, with other methods each.
    Router(RouterMethod),
    /// A message to the first queue with copies (`CC`) for the others, each confirmed on its own.
    Copies,
}

/// The destination of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The index of a queue.
    Queue(usize),
    /// The index of a route.
    Route(usize),
}

/// The role of a client.
#[derive(Debug, Clone, Copy)]
pub enum ClientRole {
    /// It publishes.
    Producer(Target),
    /// It consumes the queue with this index.
    Consumer(usize, ConsumerBehavior),
    /// It subscribes to the topic that is the route with this index.
    Subscriber(usize),
    /// It uses the limit with this index.
    Limited(usize),
    /// It requests and ends the schedule with this index.
    Planner(usize),
    /// It requests jobs for the queue with this index, whose results the broker keeps.
    Requester(usize),
    /// It is a downstream broker, which forwards messages to all queues that keep them.
    Node,
}

/// A client.
#[derive(Debug, Clone)]
pub struct SimulatedClient {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its role.
    pub role: ClientRole,
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
    /// A producer publishes its latest messages again, with the same ids.
    Republish {
        /// The producer.
        client: usize,
        /// Maximum number of messages.
        count: u32,
    },
    /// A client uses its limit. It connects before, unless it is connected.
    Limit {
        /// The client.
        client: usize,
        /// The requests that it sends.
        action: LimitAction,
        /// How often it does so, each time after the previous answer.
        count: u32,
    },
    /// A client requests its schedule, if it is connected. Otherwise it connects.
    Plan(usize),
    /// A client ends its schedule, if it is connected. Otherwise it connects.
    Unplan(usize),
    /// A client requests or cancels jobs, if it is connected. Otherwise it connects.
    Job {
        /// The client.
        client: usize,
        /// The request.
        action: JobAction,
    },
    /// An operator changes a queue.
    Redefine {
        /// The queue.
        queue: usize,
        /// The change.
        change: QueueChange,
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
    /// A call of a disk fails after so many others.
    DiskError {
        /// The disk: that of a shard, or of a journal beside them.
        disk: usize,
        /// Whether it is a sync. Otherwise any call that changes something.
        is_sync: bool,
        /// The number of calls before it.
        after: u64,
    },
    /// The process has no file descriptor left for further files of a disk, until the next calm or start.
    NoDescriptors {
        /// The disk.
        disk: usize,
        /// The number of files that it can still create.
        after: u64,
    },
    /// The broker is killed, and a bit of a file flips before it starts again.
    BitRot {
        /// The disk.
        disk: usize,
        /// The place in the files of the disk, and the bit.
        place: u64,
    },
    /// The clock of the system is set forward by so many seconds, or back. Schedules follow it; everything else notices at the
    /// next start.
    ClockJump(i64),
    /// No faults, and consumers that settle everything, until nothing is left to do. Then all promises must hold.
    Calm,
}

impl SimulatedQueue {
    /// The key of its delivery handler.
    pub(crate) fn handler_key(&self) -> String {
        match (self.handler, self.saves) {
            (Some(_), _) => format!("handler of {}", self.address),
            (None, true) => "at-least-once".to_owned(),
            (None, false) => "memory".to_owned(),
        }
    }

    /// The options that differ from the defaults.
    pub(crate) fn changes(&self) -> QueueChanges {
        QueueChanges {
            status: Some(self.status),
            request_acknowledge: Some(true),
            acknowledge_timeout: Some(Duration::from_micros(ACKNOWLEDGE_TIMEOUT)),
            wait_for_acknowledge: Some(self.one_at_a_time),
            delivery_handler: Some(self.handler_key().into()),
            put_back_limit: Some(self.dead_letter.as_ref().map_or(u16::MAX, |(limit, _)| *limit)),
            dead_letter: self.dead_letter.as_ref().map(|(_, address)| {
                Some(DeadLetter::Queue(QueueAddress::parse(address).expect("a valid address")))
            }),
            retry_delay: Some(Some(Duration::from_millis(self.retry_delay_ms))),
            message_limit: Some(0),
            retry_delay_max: Some(Duration::from_millis(RETRY_DELAY_MAX_MS)),
            durability: Some(self.durability),
            deduplication_window: self.deduplicates.then_some(DEDUPLICATION_WINDOW),
            ..QueueChanges::default()
        }
    }
}

impl Scenario {
    /// The seed of another scenario, in which handlers, nodes, routes, schedules and limits meet.
    #[must_use]
    pub fn crowded(seed: u64) -> u64 {
        seed | choose::CROWDED
    }

    /// The seed of the same scenario with jobs whose results the broker keeps.
    #[must_use]
    pub fn with_jobs(seed: u64) -> u64 {
        seed | choose::JOBS
    }

    /// The seed of one of the eight kinds of scenarios, in turn.
    #[must_use]
    pub fn variant(seed: u64, turn: usize) -> u64 {
        let seed = if turn.is_multiple_of(2) { seed } else { Self::crowded(seed) };
        match turn % 8 {
            0 | 1 | 4 | 5 => seed,
            2 | 3 => Self::with_jobs(seed),
            _ => Self::with_jobs(seed) | choose::JOB_TERMS,
        }
    }

    /// Whether jobs whose results the broker keeps have terms of their own.
    pub(crate) fn varies_jobs(&self) -> bool {
        self.seed & choose::JOB_TERMS != 0
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.seed & choose::CROWDED != 0
    }

    /// The number of disks: one for each shard, and those of the journals of limits and of schedules.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.shards + 2
    }

    /// The disk of the journal of schedules.
    pub(crate) fn schedules_disk(&self) -> usize {
        self.shards + 1
    }

    /// The disk of the journal of limits.
    pub(crate) fn limits_disk(&self) -> usize {
        self.shards
    }

    /// The queues to which nodes forward: index, channel and number.
    pub(crate) fn forwarded(&self) -> Vec<(usize, String, u16)> {
        let keeps = |queue: &SimulatedQueue| !matches!(queue.status, Status::Broadcast | Status::Cache);
        let queues = self.queues.iter().enumerate().filter(|(_, queue)| keeps(queue));
        let parts = queues.filter_map(|(index, queue)| {
            let (channel, id) = queue.address.split_once('/')?;
            Some((index, channel.to_owned(), id.parse().ok()?))
        });
        parts.collect()
    }

    /// Whether a client may publish its messages again with the same ids: its queue drops duplicates.
    fn can_repeat(&self, client: usize) -> bool {
        let SimulatedClient { protocol, role } = &self.clients[client];
        let ClientRole::Producer(Target::Queue(queue)) = role else { return false };
        *protocol == Protocol::Tmqp && self.queues[*queue].deduplicates
    }

    /// The queue with this index and those to which its messages move as dead letters.
    pub(crate) fn way(&self, queue: usize) -> impl Iterator<Item = usize> {
        let index_of = |address: &str| self.queues.iter().position(|queue| queue.address == address);
        std::iter::successors(Some(queue), move |queue| {
            index_of(&self.queues[*queue].dead_letter.as_ref()?.1)
        })
    }
}

impl SimulatedRoute {
    /// The name of the topic or router with this index.
    pub(crate) fn name(&self, index: usize) -> String {
        match self.kind {
            RouteKind::Topic { .. } => format!("topic{index}.new"),
            RouteKind::Router(_) => format!("router{index}"),
            RouteKind::Copies => String::new(),
        }
    }

    /// The name or pattern by which its queues are bound.
    pub(crate) fn bound_name(&self, index: usize) -> String {
        match self.kind {
            RouteKind::Topic { by_pattern: true } => format!("topic{index}.*"),
            _ => self.name(index),
        }
    }
}

impl ClientRole {
    /// Its terms as a consumer.
    pub(crate) fn consumer(&self) -> Option<ConsumerBehavior> {
        match self {
            Self::Consumer(_, behavior) => Some(*behavior),
            _ => None,
        }
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
        for (index, route) in self.routes.iter().enumerate() {
            writeln!(formatter, "route {index}: {route:?}")?;
        }
        for (index, limit) in self.limits.iter().enumerate() {
            writeln!(formatter, "limit {index}: {limit:?}")?;
        }
        for (index, schedule) in self.schedules.iter().enumerate() {
            writeln!(formatter, "schedule {index}: {schedule:?}")?;
        }
        if let Some(queue) = self.jobs {
            writeln!(formatter, "jobs with results: queue {queue}")?;
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
