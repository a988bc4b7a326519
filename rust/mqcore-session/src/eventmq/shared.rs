//! The state that all EventMQ sessions of a server share: workers, schedulers, statistics of queues, and the scheduler
//! of this broker.
//!
//! Locks are held for a few steps, when a peer joins, leaves or asks for statistics. For each job only atomics change.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::subscription::Slots;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::queues::{WeightedQueue, encode_text};

use super::conversation::TOPICS_MAX;
use super::ledger::JobLedger;
use super::schedules::Schedules;
use crate::job_figures::{JobFigures, JobQueueFigures, WorkerFigures};

/// Maximum queues with statistics of their own; the others are counted together and not listed.
const QUEUES_MAX: usize = 65_536;
/// Maximum schedules that schedulers run; the broker runs all others.
pub const HANDED_OVER_MAX: usize = 65_536;

/// Counters of jobs and messages since the start.
#[derive(Debug, Default)]
pub struct EventmqCounters {
    /// Jobs delivered to workers.
    pub dispatched: AtomicU64,
    /// Jobs whose result arrived, or whose worker was ready again.
    pub finished: AtomicU64,
    /// Jobs whose last attempt failed.
    pub failed: AtomicU64,
    /// Attempts that failed and were requeued.
    pub retried: AtomicU64,
    /// Jobs that were requeued because their worker was lost, or exceeded the timeout.
    pub lost: AtomicU64,
    /// Jobs that went to the queue `default` because the queue that they named does not exist.
    pub fallen_back: AtomicU64,
    /// Jobs that were dropped because another job with their key waits or runs.
    pub duplicates: AtomicU64,
    /// Additional heartbeats that make busy workers look for finished jobs.
    pub reminders: AtomicU64,
    /// Messages without effect.
    pub ignored: AtomicU64,
}

/// Shared by all EventMQ sessions of a server.
#[derive(Debug)]
pub struct EventmqShared {
    /// The policy or handler of queues that workers make; `None`: the broker's default.
    policy: Option<Box<str>>,
    pub(super) seed: u64,
    /// Maximum topics that a subscriber may subscribe to. Default 1,024.
    pub topics_max: usize,
    /// Order of the workers' last deliveries.
    clock: Arc<AtomicU64>,
    state: Mutex<WorkerRegistry>,
    schedules: OnceLock<Arc<dyn Schedules>>,
    jobs: OnceLock<Arc<dyn JobLedger>>,
    uncounted: Arc<QueueTally>,
    /// Counters since the start.
    pub counters: EventmqCounters,
}

#[derive(Debug, Default)]
struct WorkerRegistry {
    workers: BTreeMap<ConnectionId, Arc<Worker>>,
    /// Schedulers in the order in which they joined.
    schedulers: BTreeMap<u64, Arc<Scheduler>>,
    joined: u64,
    /// The queues of schedules that schedulers run, by the ids of the schedules.
    handed_over: BTreeMap<[u8; 20], QueueAddress>,
    queues: BTreeMap<Box<str>, Arc<QueueTally>>,
}

/// A worker that has joined.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) connection: ConnectionId,
    identity: Box<[u8]>,
    user: Option<Arc<str>>,
    pub(super) queues: Vec<WeightedQueue>,
    pub(super) slots: Arc<Slots>,
    heard: AtomicU64,
    processed: AtomicU64,
    /// Another connection has joined under its identity.
    displaced: AtomicBool,
}

/// A scheduler that has joined.
#[derive(Debug)]
pub(super) struct Scheduler {
    identity: Box<[u8]>,
    /// Its client id, used as its address.
    client: Box<str>,
    heard: AtomicU64,
}

/// Statistics of a queue.
#[derive(Debug, Default)]
pub(super) struct QueueTally {
    in_flight: AtomicU64,
    processed: AtomicU64,
    /// Duration of the last job, in milliseconds.
    latency: AtomicU64,
    latency_max: AtomicU64,
}

impl QueueTally {
    pub(super) fn began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn left(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn finished(&self, millis: u64) {
        self.processed.fetch_add(1, Ordering::Relaxed);
        self.latency.store(millis, Ordering::Relaxed);
        self.latency_max.fetch_max(millis, Ordering::Relaxed);
    }
}

impl Worker {
    pub(super) fn is_displaced(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    pub(super) fn heard(&self, now: Timestamp) {
        self.heard.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn finished(&self) {
        self.processed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A worker's or scheduler's entry, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Registration<T> {
    exchange: Arc<EventmqShared>,
    key: Key,
    pub(super) peer: Arc<T>,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Worker(ConnectionId),
    Scheduler(u64),
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        let mut state = self.exchange.lock();
        match self.key {
            Key::Worker(connection) => drop(state.workers.remove(&connection)),
            Key::Scheduler(joined) => drop(state.schedulers.remove(&joined)),
        }
    }
}

impl Registration<Scheduler> {
    pub(super) fn heard(&self, now: Timestamp) {
        self.peer.heard.store(now.0, Ordering::Relaxed);
    }
}

impl EventmqShared {
    /// State without peers. `seed` differs from run to run; `policy` is the delivery handler of queues that workers and
    /// clients create, `None`: the broker's default.
    #[must_use]
    pub fn new(seed: u64, policy: Option<Box<str>>) -> Self {
        Self {
            policy,
            seed,
            topics_max: TOPICS_MAX,
            clock: Arc::default(),
            state: Mutex::default(),
            schedules: OnceLock::new(),
            jobs: OnceLock::new(),
            uncounted: Arc::default(),
            counters: EventmqCounters::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, WorkerRegistry> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the scheduler of this broker. False if there is one already, which stays.
    pub fn keep_schedules(&self, keeper: Arc<dyn Schedules>) -> bool {
        self.schedules.set(keeper).is_ok()
    }

    /// Sets what keeps results, cancellations and flows of jobs. False if there is one already, which stays.
    pub fn keep_jobs(&self, ledger: Arc<dyn JobLedger>) -> bool {
        self.jobs.set(ledger).is_ok()
    }

    pub(super) fn jobs(&self) -> Option<&Arc<dyn JobLedger>> {
        self.jobs.get()
    }

    pub(super) fn schedules(&self) -> Option<&Arc<dyn Schedules>> {
        self.schedules.get()
    }

    /// Options of queues that are created because a worker or a client named them.
    #[must_use]
    pub fn made_for_jobs(&self) -> QueueChanges {
        job_queues(self.policy.clone())
    }

    pub(super) fn count(&self, number: fn(&EventmqCounters) -> &AtomicU64) {
        number(&self.counters).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn new_slots(&self) -> Arc<Slots> {
        Arc::new(Slots::new(Arc::clone(&self.clock)))
    }

    /// Adds a worker. It replaces an older connection of the same user with the same identity, which is notified.
    pub(super) fn join_worker(
        self: &Arc<Self>,
        connection: ConnectionId,
        (identity, user): (&[u8], Option<Arc<str>>),
        queues: Vec<WeightedQueue>,
        slots: Arc<Slots>,
        now: Timestamp,
    ) -> Registration<Worker> {
        let worker = Arc::new(Worker {
            connection,
            identity: identity.into(),
            user: user.clone(),
            queues,
            slots,
            heard: AtomicU64::new(now.0),
            processed: AtomicU64::new(0),
            displaced: AtomicBool::new(false),
        });
        let mut state = self.lock();
        if !identity.is_empty() {
            let others = state.workers.values().filter(|other| other.connection != connection);
            for older in others.filter(|other| *other.identity == *identity && other.user == user) {
                older.displaced.store(true, Ordering::Relaxed);
            }
        }
        state.workers.insert(connection, Arc::clone(&worker));
        Registration { exchange: Arc::clone(self), key: Key::Worker(connection), peer: worker }
    }

    pub(super) fn join_scheduler(
        self: &Arc<Self>,
        identity: &[u8],
        client: &str,
        now: Timestamp,
    ) -> Registration<Scheduler> {
        let heard = AtomicU64::new(now.0);
        let scheduler = Arc::new(Scheduler { identity: identity.into(), client: client.into(), heard });
        let mut state = self.lock();
        state.joined += 1;
        let joined = state.joined;
        state.schedulers.insert(joined, Arc::clone(&scheduler));
        Registration { exchange: Arc::clone(self), key: Key::Scheduler(joined), peer: scheduler }
    }

    /// The client ids of all schedulers, the most recent one first.
    pub(super) fn schedulers(&self) -> Vec<Box<str>> {
        self.lock().schedulers.values().rev().map(|scheduler| scheduler.client.clone()).collect()
    }

    /// The queue of a schedule that a scheduler runs.
    pub(super) fn handed_over(&self, schedule: &[u8; 20]) -> Option<QueueAddress> {
        self.lock().handed_over.get(schedule).cloned()
    }

    /// Whether a scheduler may receive this schedule, or schedulers have too many already.
    pub(super) fn has_room_to_hand_over(&self, schedule: &[u8; 20]) -> bool {
        let state = self.lock();
        state.handed_over.len() < HANDED_OVER_MAX || state.handed_over.contains_key(schedule)
    }

    /// Notes the queue of a schedule that a scheduler runs from now on.
    pub(super) fn hand_over(&self, schedule: [u8; 20], queue: QueueAddress) {
        self.lock().handed_over.insert(schedule, queue);
    }

    /// Notes that no scheduler runs this schedule any more.
    pub(super) fn take_back(&self, schedule: &[u8; 20]) {
        self.lock().handed_over.remove(schedule);
    }

    /// Number of workers, of their free slots, and of schedulers.
    #[must_use]
    pub fn present(&self) -> (usize, u64, usize) {
        let state = self.lock();
        let free = state.workers.values().map(|worker| u64::from(worker.slots.free())).sum();
        (state.workers.len(), free, state.schedulers.len())
    }

    /// The statistics of a queue.
    pub(super) fn tally(&self, queue: &str) -> Arc<QueueTally> {
        let mut state = self.lock();
        if let Some(tally) = state.queues.get(queue) {
            return Arc::clone(tally);
        }
        if state.queues.len() >= QUEUES_MAX {
            return Arc::clone(&self.uncounted);
        }
        let tally = Arc::<QueueTally>::default();
        state.queues.insert(queue.into(), Arc::clone(&tally));
        tally
    }

    /// Adds all queues with statistics, and all workers.
    pub(super) fn add_jobs(&self, jobs: &mut JobFigures) {
        let state = self.lock();
        jobs.queues.extend(state.queues.iter().filter_map(|(name, tally)| {
            let number = |atomic: &AtomicU64| atomic.load(Ordering::Relaxed);
            Some(JobQueueFigures {
                name: name.clone(),
                queue: QueueAddress::parse(name).ok()?,
                running: number(&tally.in_flight),
                finished: number(&tally.processed),
                latency_ms: number(&tally.latency),
                latency_max_ms: number(&tally.latency_max),
            })
        }));
        jobs.workers.extend(state.workers.values().map(|worker| WorkerFigures {
            name: text_of(&worker.identity, worker.connection),
            connection: worker.connection,
            user: worker.user.clone(),
            queues: worker.queues.iter().map(|queue| (queue.name.clone(), queue.weight)).collect(),
            free: worker.slots.free(),
            finished: worker.processed.load(Ordering::Relaxed),
            heard: Timestamp(worker.heard.load(Ordering::Relaxed)),
        }));
    }

    /// Names of queues with statistics.
    pub(super) fn queue_names(&self) -> Vec<Box<str>> {
        self.lock().queues.keys().cloned().collect()
    }

    /// The answer to STATUS. `waiting`: the number of waiting jobs of each queue.
    pub(super) fn status(&self, waiting: &[(Box<str>, u64)]) -> String {
        let state = self.lock();
        let of_queues = |number: fn(&QueueTally) -> &AtomicU64| -> Vec<_> {
            let queues = state.queues.iter();
            queues.map(|(name, tally)| (name.to_string(), number(tally).load(Ordering::Relaxed))).collect()
        };
        let of_workers = state.workers.values();
        let of_workers = of_workers.map(|worker| {
            (text_of(&worker.identity, worker.connection), worker.processed.load(Ordering::Relaxed))
        });
        let waiting = waiting.iter().map(|(name, number)| (name.to_string(), *number));
        let fields = [
            ("inflight_messages_by_queue", of_queues(|tally| &tally.in_flight)),
            ("latency_messages_by_queue", of_queues(|tally| &tally.latency)),
            ("max_latency_messages_by_queue", of_queues(|tally| &tally.latency_max)),
            ("waiting_messages_by_queue", waiting.collect()),
            ("processed_messages_by_queue", of_queues(|tally| &tally.processed)),
            ("processed_messages_by_worker", of_workers.collect()),
        ];
        let fields = fields.map(|(name, numbers)| {
            let numbers = numbers.into_iter().map(|(name, number)| (name, number.to_string()));
            (name.to_owned(), object(numbers))
        });
        object(fields)
    }

    /// The answer to ROUTER_SHOW_WORKERS.
    pub(super) fn show_workers(&self) -> String {
        let state = self.lock();
        let mut of_queues: BTreeMap<&str, Vec<(i32, String)>> = BTreeMap::new();
        let workers = state.workers.values().map(|worker| {
            let name = text_of(&worker.identity, worker.connection);
            let mut queues = Vec::new();
            for queue in &worker.queues {
                of_queues.entry(&queue.name).or_default().push((queue.weight, name.clone()));
                queues.push(pair(queue.weight, &queue.name));
            }
            let fields = [
                ("queues".to_owned(), format!("[{}]", queues.join(", "))),
                ("hb".to_owned(), seconds(&worker.heard)),
                ("available_slots".to_owned(), worker.slots.free().to_string()),
            ];
            (name, object(fields))
        });
        let workers = object(workers);
        let queues = of_queues.into_iter().map(|(name, mut workers)| {
            workers.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
            let workers: Vec<_> = workers.iter().map(|(weight, name)| pair(*weight, name)).collect();
            (name.to_owned(), format!("[{}]", workers.join(", ")))
        });
        let fields =
            [("connected_workers".to_owned(), workers), ("connected_queues".to_owned(), object(queues))];
        object(fields)
    }

    /// The answer to ROUTER_SHOW_SCHEDULERS.
    pub(super) fn show_schedulers(&self) -> String {
        let state = self.lock();
        let schedulers = state.schedulers.values().map(|scheduler| {
            let name = match &*scheduler.identity {
                b"" => scheduler.client.to_string(),
                identity => String::from_utf8_lossy(identity).into_owned(),
            };
            (name, object([("hb".to_owned(), seconds(&scheduler.heard))]))
        });
        let schedulers = object(schedulers);
        object([("connected_schedulers".to_owned(), schedulers)])
    }
}

/// Options of queues that are created for jobs: each job goes to one worker, in turn. `policy` is their delivery
/// handler; `None`: the broker's default.
#[must_use]
pub fn job_queues(policy: Option<Box<str>>) -> QueueChanges {
    QueueChanges {
        status: Some(Status::RoundRobin),
        request_acknowledge: Some(false),
        delivery_handler: policy,
        ..QueueChanges::default()
    }
}

/// A peer's display name: its identity, or the number of its connection if it has none.
fn text_of(identity: &[u8], connection: ConnectionId) -> String {
    match identity {
        b"" => format!("connection {}", connection.0),
        identity => String::from_utf8_lossy(identity).into_owned(),
    }
}

fn seconds(millis: &AtomicU64) -> String {
    let millis = millis.load(Ordering::Relaxed);
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

fn pair(weight: i32, name: &str) -> String {
    let mut text = format!("[{weight}, ");
    encode_text(name, &mut text);
    text.push(']');
    text
}

/// A JSON object of values that are already encoded.
fn object(fields: impl IntoIterator<Item = (String, String)>) -> String {
    let mut text = String::from("{");
    for (index, (name, value)) in fields.into_iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        encode_text(&name, &mut text);
        let written = write!(text, ": {value}");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    text.push('}');
    text
}
