//! The choices that a seed makes.

use mqcore_broker::model::options::{Durability, Status};
use mqcore_broker::model::router::RouterMethod;
use mqcore_session::any::Protocol;
use mqcore_testkit::Random;

use super::definitions::QueueChange;
use super::handlers::SimulatedHandler;
use super::jobs::JobAction;
use super::limits::{LimitAction, SimulatedLimit};
use super::schedules::SimulatedSchedule;
use super::{
    ClientRole, ConsumerBehavior, PublishTerms, RouteKind, Scenario, ScenarioStep, SimulatedClient,
    SimulatedQueue, SimulatedRoute, Target,
};

/// The kind of fault that a scenario has more of than others. Faults in a certain order are rare if all steps are equally
/// likely; with an emphasis, a few thousand seeds meet them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emphasis {
    /// Nothing.
    Mixed,
    /// Crashes and power losses.
    Crashes,
    /// Bits that flip on the disks.
    Damage,
    /// Errors of the disks, full disks, and no file descriptors.
    Disks,
    /// Rejected messages in queues with a dead-letter queue, and meanwhile power losses and disks that do not sync.
    DeadLetters,
    /// Connections that are cut or stop.
    Connections,
}

/// Seeds with this bit have crowded scenarios.
pub(super) const CROWDED: u64 = 1 << 40;
/// Seeds with this bit also have jobs whose results the broker keeps.
pub(super) const JOBS: u64 = 1 << 41;
/// With this bit too, the jobs have terms of their own.
pub(super) const JOB_TERMS: u64 = 1 << 42;

/// How rare each area is: 1 of so many scenarios has it.
#[derive(Debug, Clone, Copy)]
struct Odds {
    schedules: u64,
    routes: u64,
    limits: u64,
    handlers: u64,
    nodes: u64,
    redefinitions: u64,
    /// Queues whose jobs have keys: 1 of so many; 0: none.
    keys: u64,
    /// Steps of a scenario of the kind that it emphasizes: 1 of so many.
    emphasized: u64,
}

impl Odds {
    /// Most scenarios have a few areas, so that what they find is easy to understand.
    const SPARSE: Self = Self {
        schedules: 4,
        routes: 2,
        limits: 3,
        handlers: 4,
        nodes: 3,
        redefinitions: 4,
        keys: 0,
        emphasized: 8,
    };
    /// Most scenarios have nearly all of them, so that they meet.
    const CROWDED: Self = Self {
        schedules: 2,
        routes: 1,
        limits: 3,
        handlers: 1,
        nodes: 1,
        redefinitions: 2,
        keys: 2,
        emphasized: 4,
    };

    fn of_seed(seed: u64) -> Self {
        if seed & CROWDED == 0 { Self::SPARSE } else { Self::CROWDED }
    }
}

impl Emphasis {
    fn choose(random: &mut Random) -> Self {
        match random.below(12) {
            0 => Self::Crashes,
            1 => Self::Damage,
            2 => Self::Disks,
            3 | 4 => Self::DeadLetters,
            5 => Self::Connections,
            _ => Self::Mixed,
        }
    }

    /// A step of the kind that is emphasized.
    fn step(self, random: &mut Random, scenario: &Scenario) -> Option<ScenarioStep> {
        let client = random.index(scenario.clients.len());
        match self {
            Self::Mixed => None,
            Self::Crashes => Some(match random.below(3) {
                0 => ScenarioStep::Kill,
                1 => ScenarioStep::PowerLoss,
                _ => ScenarioStep::Restart,
            }),
            Self::Damage => {
                Some(ScenarioStep::BitRot { disk: random.index(scenario.shards), place: random.number() })
            }
            Self::Disks => Some(match random.below(3) {
                0 => ScenarioStep::DiskFull(random.below(30_000)),
                _ => disk_fault(random, scenario.disks()),
            }),
            Self::DeadLetters => Some(match random.below(5) {
                0 => ScenarioStep::PowerLoss,
                1 | 2 => ScenarioStep::DiskError {
                    disk: random.index(scenario.shards),
                    is_sync: true,
                    after: random.below(4),
                },
                _ => ScenarioStep::Connect(client),
            }),
            Self::Connections => Some(match random.below(3) {
                0 => ScenarioStep::Cut(client),
                1 => ScenarioStep::Silence(client),
                _ => ScenarioStep::Pause(client),
            }),
        }
    }
}

impl Scenario {
    /// The scenario of a seed. Seeds of [`Scenario::crowded`] have more areas at once.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let odds = Odds::of_seed(seed);
        let mut random = Random::new(seed);
        let emphasis = Emphasis::choose(&mut random);
        let shards = 1 + random.index(3);
        let mut scenario = Self {
            seed,
            shards,
            segment_bytes: [12_288, 16_384, 65_536][random.index(3)],
            memory_watermark: [2_000, 20_000, 1 << 20][random.index(3)],
            output_bytes_max: [2_000, 16_000, 1 << 20][random.index(3)],
            queues: queues(&mut random, emphasis),
            routes: Vec::new(),
            limits: Vec::new(),
            schedules: Vec::new(),
            jobs: None,
            clients: Vec::new(),
            steps: Vec::new(),
        };
        if random.one_in(odds.schedules) {
            for _ in 0..=random.index(2) {
                let queue = scenario.queues.len();
                scenario.queues.push(queue_of_jobs(&mut random, queue));
                scenario.schedules.push(SimulatedSchedule::choose(&mut random, queue));
            }
        }
        if random.one_in(odds.routes) {
            scenario.routes = routes(&mut random, &scenario);
        }
        if random.one_in(odds.limits) {
            scenario.limits = (0..=random.index(3)).map(|_| SimulatedLimit::choose(&mut random)).collect();
        }
        if random.one_in(odds.handlers) {
            for (index, queue) in scenario.queues.iter_mut().enumerate() {
                if random.one_in(2) {
                    // These drop what no consumer may have, and the oracle expects all runs of schedules.
                    let has_runs = scenario.schedules.iter().any(|schedule| schedule.queue == index);
                    let waits = !matches!(queue.status, Status::Broadcast | Status::Cache);
                    let mut handler = SimulatedHandler::choose(&mut random, waits, waits && !has_runs);
                    if has_runs || queue.one_at_a_time {
                        // A slow one would need longer than a calm.
                        handler.decide_micros = handler.decide_micros.min(20_000);
                    }
                    queue.handler = Some(handler);
                }
            }
        }
        scenario.clients = clients(&mut random, &scenario, odds);
        if emphasis == Emphasis::DeadLetters {
            for client in &mut scenario.clients {
                if let ClientRole::Consumer(_, behavior) = &mut client.role {
                    *behavior = ConsumerBehavior { rejects: 50, work_micros: 0, ..*behavior };
                }
            }
        }
        for client in 0..scenario.clients.len() {
            if !random.one_in(5) {
                scenario.steps.push((random.below(3_000), ScenarioStep::Connect(client)));
            }
        }
        // A dead letter is between two journals for about a millisecond.
        let is_quick = emphasis == Emphasis::DeadLetters;
        let pace = if is_quick { 2_000 } else { [2_000, 20_000, 400_000][random.index(3)] };
        // Requests for limits and schedules are added to the steps with messages, rather than replacing them.
        let areas = usize::from(!scenario.limits.is_empty()) + usize::from(!scenario.schedules.is_empty());
        let redefines = random.one_in(odds.redefinitions);
        for _ in 0..10 + random.below(50) + 12 * areas as u64 {
            let emphasized =
                if random.one_in(odds.emphasized) { emphasis.step(&mut random, &scenario) } else { None };
            let redefined = redefines && random.one_in(10);
            let step = match emphasized {
                Some(step) => step,
                None if redefined => {
                    let (queue, change) = QueueChange::choose(&mut random, &scenario);
                    ScenarioStep::Redefine { queue, change }
                }
                None => step(&mut random, &scenario),
            };
            scenario.steps.push((random.below(pace), step));
        }
        if odds.keys > 0 {
            for queue in scenario.queues.iter_mut().filter(|queue| queue.status == Status::RoundRobin) {
                queue.concurrency = random.one_in(odds.keys).then(|| 1 + random.below(2) as u32);
            }
        }
        if seed & JOBS != 0 {
            scenario.add_jobs(&mut random);
        }
        scenario
    }
}

impl Scenario {
    /// Adds a queue of jobs, its workers, the client that requests them, and its requests.
    fn add_jobs(&mut self, random: &mut Random) {
        let queue = self.queues.len();
        self.queues.push(queue_of_jobs(random, queue));
        self.jobs = Some(queue);
        let status = self.queues[queue].status;
        let first = self.clients.len();
        self.clients.extend((0..=random.index(3)).map(|_| consumer(random, queue, status, true)));
        let requester = self.clients.len();
        self.clients
            .push(SimulatedClient { protocol: Protocol::Eventmq, role: ClientRole::Requester(queue) });
        for _ in 0..12 + random.below(20) {
            let client = first + random.index(self.clients.len() - first);
            let step = match random.below(10) {
                0 | 1 => ScenarioStep::Connect(client),
                2 => ScenarioStep::Cut(client),
                _ => ScenarioStep::Job { client: requester, action: JobAction::choose(random) },
            };
            let place = random.index(self.steps.len() + 1);
            let gap = random.below(self.steps.get(place).map_or(0, |(gap, _)| *gap) + 1_000);
            self.steps.insert(place, (gap, step));
        }
        for client in first..self.clients.len() {
            self.steps.insert(0, (random.below(3_000), ScenarioStep::Connect(client)));
        }
    }
}

fn queues(random: &mut Random, emphasis: Emphasis) -> Vec<SimulatedQueue> {
    let mut queues: Vec<_> = (0..=random.index(3)).map(|number| queue(random, number)).collect();
    if emphasis == Emphasis::DeadLetters {
        for queue in &mut queues {
            queue.saves = true;
        }
    }
    // To an earlier queue, which exists already when this one is declared.
    for number in 1..queues.len() {
        let earlier = random.index(number);
        let stores = |queue: &SimulatedQueue| !matches!(queue.status, Status::Broadcast | Status::Cache);
        let has_dead_letter = emphasis == Emphasis::DeadLetters || !random.one_in(3);
        if has_dead_letter && stores(&queues[number]) && stores(&queues[earlier]) {
            let limit = [0, 0, 1, 3][random.index(if emphasis == Emphasis::DeadLetters { 2 } else { 4 })];
            queues[number].dead_letter = Some((limit, queues[earlier].address.clone()));
        }
    }
    queues
}

fn queue(random: &mut Random, number: usize) -> SimulatedQueue {
    let durability = match random.below(4) {
        0 => Durability::Os,
        _ => Durability::Fsync,
    };
    let status = match random.below(10) {
        0 => Status::Broadcast,
        1 => Status::Cache,
        2..4 => Status::Push,
        4..6 => Status::Pull,
        _ => Status::RoundRobin,
    };
    SimulatedQueue {
        address: format!("channel{}/{}", random.below(3), number + 1),
        saves: !random.one_in(4),
        durability,
        promise: durability,
        status,
        one_at_a_time: random.one_in(6) && status != Status::Broadcast,
        retry_delay_ms: [0, 20, 100][random.index(3)],
        dead_letter: None,
        deduplicates: random.one_in(3),
        handler: None,
        concurrency: None,
    }
}

/// A queue of which each message goes to one worker, and is as safe as the runs that the broker keeps for it.
fn queue_of_jobs(random: &mut Random, number: usize) -> SimulatedQueue {
    SimulatedQueue {
        saves: true,
        durability: Durability::Fsync,
        promise: Durability::Fsync,
        status: Status::RoundRobin,
        deduplicates: false,
        ..queue(random, number)
    }
}

/// Routes to queues whose ways do not meet, so that a delivery belongs to one copy of a message.
fn routes(random: &mut Random, scenario: &Scenario) -> Vec<SimulatedRoute> {
    let route = |random: &mut Random| {
        let kind = match random.below(8) {
            0..4 => RouteKind::Topic { by_pattern: random.one_in(3) },
            4 => RouteKind::Copies,
            5 => RouteKind::Router(RouterMethod::Distribute),
            6 => RouteKind::Router(RouterMethod::OnlyFirst),
            _ => RouteKind::Router(RouterMethod::RoundRobin),
        };
        let (mut queues, mut taken) = (Vec::new(), Vec::new());
        let first = random.index(scenario.queues.len());
        for offset in 0..scenario.queues.len() {
            let queue = (first + offset) % scenario.queues.len();
            if scenario.way(queue).all(|step| !taken.contains(&step)) {
                taken.extend(scenario.way(queue));
                queues.push(queue);
            }
        }
        SimulatedRoute { kind, queues }
    };
    (0..=random.index(2)).map(|_| route(random)).collect()
}

fn clients(random: &mut Random, scenario: &Scenario, odds: Odds) -> Vec<SimulatedClient> {
    let mut clients = Vec::new();
    for (queue, SimulatedQueue { status, .. }) in scenario.queues.iter().enumerate() {
        for _ in 0..=random.index(2) {
            clients.push(producer(protocol(random), Target::Queue(queue)));
        }
        for _ in 0..=random.index(2) {
            let has_jobs = scenario.schedules.iter().any(|schedule| schedule.queue == queue);
            clients.push(consumer(random, queue, *status, has_jobs));
        }
    }
    for (route, SimulatedRoute { kind, .. }) in scenario.routes.iter().enumerate() {
        // Only TMQP defines bindings.
        clients.push(producer(Protocol::Tmqp, Target::Route(route)));
        if matches!(kind, RouteKind::Topic { .. }) {
            for _ in 0..random.index(3) {
                clients.push(producer(topic_protocol(random), Target::Route(route)));
            }
            for _ in 0..random.index(3) {
                let protocol = topic_protocol(random);
                // Its consumers have queues.
                let protocol = if protocol == Protocol::Mqks { Protocol::Tmqp } else { protocol };
                clients.push(SimulatedClient { protocol, role: ClientRole::Subscriber(route) });
            }
        }
    }
    if random.one_in(odds.nodes) && !scenario.forwarded().is_empty() {
        let node = SimulatedClient { protocol: Protocol::Tmqp, role: ClientRole::Node };
        clients.extend((0..=random.index(2)).map(|_| node.clone()));
    }
    let planner =
        |schedule| SimulatedClient { protocol: Protocol::Eventmq, role: ClientRole::Planner(schedule) };
    clients.extend((0..scenario.schedules.len()).map(planner));
    let limited = |limit| SimulatedClient { protocol: Protocol::Throttr, role: ClientRole::Limited(limit) };
    clients.extend((0..scenario.limits.len()).map(limited));
    clients
}

fn terms(random: &mut Random) -> PublishTerms {
    let delay_ms = [0, 0, 0, 50, 2_000][random.index(5)];
    let expires_ms = if random.one_in(8) { delay_ms + 1 + random.below(3_000) } else { 0 };
    PublishTerms { delay_ms, expires_ms, priority: [0, 0, 0, 1, 200][random.index(5)] }
}

fn protocol(random: &mut Random) -> Protocol {
    [Protocol::Tmqp, Protocol::Tmqp, Protocol::Mqks, Protocol::MicroMessage, Protocol::Eventmq]
        [random.index(5)]
}

/// Protocols that have topics.
fn topic_protocol(random: &mut Random) -> Protocol {
    if random.one_in(4) { Protocol::Throttr } else { protocol(random) }
}

fn producer(protocol: Protocol, target: Target) -> SimulatedClient {
    SimulatedClient { protocol, role: ClientRole::Producer(target) }
}

fn consumer(random: &mut Random, queue: usize, status: Status, has_jobs: bool) -> SimulatedClient {
    // Only TMQP pulls, and EventMQ's workers run each job for one worker.
    let pulls = matches!(status, Status::Pull | Status::Cache);
    let protocol = match protocol(random) {
        _ if has_jobs => Protocol::Eventmq,
        _ if pulls => Protocol::Tmqp,
        Protocol::Eventmq if status != Status::RoundRobin => Protocol::Tmqp,
        protocol => protocol,
    };
    let behavior = ConsumerBehavior {
        prefetch: [1, 2, 5, 50][random.index(4)],
        rejects: [0, 10, 50][random.index(3)],
        // The broker waits for a job until the connection to its worker ends.
        ignores: if protocol == Protocol::Eventmq { 0 } else { [0, 0, 10, 40][random.index(4)] },
        work_micros: [0, 1_000, 300_000][random.index(3)],
    };
    SimulatedClient { protocol, role: ClientRole::Consumer(queue, behavior) }
}

fn step(random: &mut Random, scenario: &Scenario) -> ScenarioStep {
    let clients = &scenario.clients;
    let client = random.index(clients.len());
    if !scenario.limits.is_empty() && random.one_in(3) {
        match random.below(12) {
            0 => return clock_jump(random),
            1 => return ScenarioStep::PowerLoss,
            _ => {}
        }
        // The last clients use limits.
        let client = clients.len() - 1 - random.index(scenario.limits.len());
        let count = 1 + random.below(6) as u32;
        return ScenarioStep::Limit { client, action: LimitAction::choose(random), count };
    }
    if !scenario.schedules.is_empty() && random.one_in(4) {
        let planners = clients.len() - scenario.limits.len() - scenario.schedules.len();
        let client = planners + random.index(scenario.schedules.len());
        return match random.below(10) {
            0..5 => ScenarioStep::Plan(client),
            5 | 6 => ScenarioStep::Unplan(client),
            7 => clock_jump(random),
            8 => ScenarioStep::PowerLoss,
            _ => ScenarioStep::Connect(client),
        };
    }
    match random.below(100) {
        chance @ 0..50 => {
            let produces =
                |index: &usize| matches!(clients[*index].role, ClientRole::Producer(_) | ClientRole::Node);
            let producers: Vec<_> = (0..clients.len()).filter(produces).collect();
            let client = producers[random.index(producers.len())];
            let count = 1 + random.below(12) as u32;
            if chance < 5 {
                let repeaters: Vec<_> =
                    (0..clients.len()).filter(|index| scenario.can_repeat(*index)).collect();
                if !repeaters.is_empty() {
                    return ScenarioStep::Republish {
                        client: repeaters[random.index(repeaters.len())],
                        count,
                    };
                }
            }
            let bytes = [0, 10, 300, 3_000][random.index(4)];
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
        95 => ScenarioStep::DiskFull(random.below(30_000)),
        96 => disk_fault(random, scenario.disks()),
        97 => clock_jump(random),
        _ => ScenarioStep::Calm,
    }
}

fn clock_jump(random: &mut Random) -> ScenarioStep {
    ScenarioStep::ClockJump([-86_400, -60, -2, 2, 60, 7_200][random.index(6)])
}

fn disk_fault(random: &mut Random, disks: usize) -> ScenarioStep {
    // The last two are those of the journals beside the shards.
    let choices = if random.one_in(4) { disks } else { disks - 2 };
    let disk = random.index(choices);
    match random.below(4) {
        0 => ScenarioStep::NoDescriptors { disk, after: random.below(2) },
        1 => ScenarioStep::BitRot { disk, place: random.number() },
        _ => ScenarioStep::DiskError { disk, is_sync: random.one_in(2), after: random.below(6) },
    }
}
