//! What is measured, by the question that it answers, and what was promised.

use std::io;
use std::time::{Duration, Instant};

use mqcore_broker::options::Status;

use crate::peers::{nats, redis};
use crate::process::{Process, cpu_seconds_of_others};
use crate::report::{Figure, Goal};
use crate::serve::Serve;
use crate::tmqp::Tmqp;
use crate::wire::Wire;
use crate::{fanout, latency, memory, work_queue};

/// How a measurement is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How long each run is measured.
    pub duration: Duration,
    /// Runs, of which the median is reported.
    pub runs: usize,
    /// Whether other brokers are measured too.
    pub peers: bool,
    /// Shards of the server; 0: one for each core.
    pub shards: usize,
    /// Threads of the server's runtime; 0: one for each core.
    pub workers: usize,
    /// The command that serves instead of this program, for example one that does so in Python.
    pub server: Option<&'static str>,
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One producer, one consumer, a broadcast queue.
    Broadcast1To1,
    /// One producer, a hundred consumers, a broadcast queue.
    Broadcast1To100,
    /// One producer, four consumers, a round robin queue whose every message is acknowledged.
    RoundRobinAck,
    /// 10,000 messages a second, open loop.
    Latency,
    /// 10,000 clients that say nothing.
    IdleConnections,
    /// A million messages that nobody consumes.
    StoredMillion,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Broadcast1To1,
        Self::Broadcast1To100,
        Self::RoundRobinAck,
        Self::Latency,
        Self::IdleConnections,
        Self::StoredMillion,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broadcast1To1 => "broadcast-1-1",
            Self::Broadcast1To100 => "broadcast-1-100",
            Self::RoundRobinAck => "round-robin-ack",
            Self::Latency => "latency",
            Self::IdleConnections => "idle-connections",
            Self::StoredMillion => "stored-million",
        }
    }

    /// The scenario of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Measures it.
    ///
    /// # Errors
    /// If a process does not start or a connection breaks.
    pub fn run(self, plan: Plan) -> io::Result<Vec<Figure>> {
        match self {
            Self::Broadcast1To1 => self.broadcast(plan, 1, 2e6),
            Self::Broadcast1To100 => self.broadcast(plan, 100, 5e6),
            Self::RoundRobinAck => self.round_robin(plan),
            Self::Latency => self.latency(plan),
            Self::IdleConnections => self.idle(plan),
            Self::StoredMillion => self.stored(plan),
        }
    }

    fn broadcast(self, plan: Plan, consumers: usize, goal: f64) -> io::Result<Vec<Figure>> {
        let measure = |wire: &dyn Wire| {
            let run = fanout::measure(wire, consumers, WARM_UP, plan.duration)?;
            Ok([run.rate()])
        };
        let names = [("deliveries/s", Goal::AtLeast(goal))];
        self.compared(plan, Status::Broadcast, names, measure)
    }

    fn latency(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let measure = |wire: &dyn Wire| {
            let run = latency::measure(wire, 10_000, WARM_UP, plan.duration)?;
            Ok([run.p50, run.p99, run.max].map(|age| age.as_secs_f64() * 1e6))
        };
        let names = [
            ("p50 us at 10,000/s", Goal::AtMost(100.0)),
            ("p99 us at 10,000/s", Goal::AtMost(1000.0)),
            ("max us at 10,000/s", Goal::None),
        ];
        self.compared(plan, Status::Broadcast, names, measure)
    }

    /// Measures mqcore, and other brokers if wanted: one run of each in turn, so that a disturbance hits all alike.
    fn compared<const N: usize>(
        self,
        plan: Plan,
        status: Status,
        names: [(&'static str, Goal); N],
        measure: impl Fn(&dyn Wire) -> io::Result<[f64; N]>,
    ) -> io::Result<Vec<Figure>> {
        let mqcore = plan.mqcore(status, false)?;
        let redis = if plan.peers { redis::start()? } else { None };
        let nats = if plan.peers { nats::start()? } else { None };
        let mut brokers: Vec<(&'static str, &Process, Box<dyn Wire>)> =
            vec![("mqcore", &mqcore, Box::new(Tmqp { address: mqcore.address }))];
        if let Some(process) = &redis {
            brokers.push(("redis", process, Box::new(redis::Redis { address: process.address })));
        }
        if let Some(process) = &nats {
            brokers.push(("nats", process, Box::new(nats::Nats { address: process.address })));
        }
        let mut samples: Vec<Vec<Sample<N>>> = brokers.iter().map(|_| Vec::new()).collect();
        for round in 0..plan.runs * self.tries() {
            for (samples, (_, process, wire)) in samples.iter_mut().zip(&brokers) {
                let quiet = samples.iter().filter(|sample| sample.disturbance < DISTURBANCE_MAX).count();
                if round >= plan.runs && quiet >= plan.runs {
                    continue;
                }
                let all: Vec<&Process> = brokers.iter().map(|(_, process, _)| *process).collect();
                let (cpu, others, start) =
                    (process.cpu_seconds()?, cpu_seconds_of_others(&all)?, Instant::now());
                let values = measure(&**wire)?;
                samples.push(Sample {
                    values,
                    cpu_seconds: process.cpu_seconds()? - cpu,
                    disturbance: (cpu_seconds_of_others(&all)? - others) / start.elapsed().as_secs_f64(),
                });
            }
        }
        let mut figures = Vec::new();
        for (mut samples, (broker, ..)) in samples.into_iter().zip(&brokers) {
            samples.sort_unstable_by(|left, right| left.disturbance.total_cmp(&right.disturbance));
            samples.truncate(plan.runs);
            for (index, (what, goal)) in names.into_iter().enumerate() {
                let mut figure = Figure::new(self.name(), broker, what, goal);
                figure.values = samples.iter().map(|sample| sample.values[index]).collect();
                figure.cpu_seconds = samples.iter().map(|sample| sample.cpu_seconds).sum();
                figure.disturbance = samples.last().map(|worst| worst.disturbance);
                figures.push(figure);
            }
        }
        Ok(figures)
    }

    /// How many runs there may be for one that counts. A throughput is the worse for what else runs on the machine, a
    /// latency says nothing any more: one pause of the scheduler is more than all that a broker does.
    fn tries(self) -> usize {
        if self == Self::Latency { 4 } else { 1 }
    }

    fn round_robin(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let mut figure = Figure::new(self.name(), "mqcore", "messages/s acknowledged", Goal::AtLeast(5e5));
        for _ in 0..plan.runs {
            let process = plan.mqcore(Status::RoundRobin, true)?;
            let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
            figure.values.push(work_queue::measure(&process, 4, WARM_UP, plan.duration)?.rate());
            figure.cpu_seconds += process.cpu_seconds()?;
            let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
            figure.disturbance = Some(disturbance.max(figure.disturbance.unwrap_or(0.0)));
        }
        Ok(vec![figure])
    }

    fn idle(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let process = plan.mqcore(Status::Push, false)?;
        let idle = memory::idle_connections(&process, 10_000)?;
        let goal = Goal::AtMost(12.0);
        let mut figure = Figure::new(self.name(), "mqcore", "KiB per idle connection of 10,000", goal);
        figure.values.push(idle.bytes_each() / 1024.0);
        Ok(vec![figure])
    }

    fn stored(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let process = plan.mqcore(Status::Push, false)?;
        let stored = memory::stored_messages(&process, 1_000_000)?;
        let goal = Goal::AtMost(300.0);
        let mut figure = Figure::new(self.name(), "mqcore", "MiB for 1,000,000 messages", goal);
        figure.values.push(stored.bytes() as f64 / (1024.0 * 1024.0));
        Ok(vec![figure])
    }
}

/// One run of one broker.
struct Sample<const N: usize> {
    values: [f64; N],
    cpu_seconds: f64,
    /// Processors that everything else on the machine kept busy meanwhile.
    disturbance: f64,
}

/// Runs with less than this count as undisturbed.
const DISTURBANCE_MAX: f64 = 0.02;

/// Before each measured run: caches, allocators and windows fill.
const WARM_UP: Duration = Duration::from_millis(500);

impl Plan {
    fn mqcore(&self, status: Status, acknowledge: bool) -> io::Result<Process> {
        Process::mqcore(
            Serve { status, acknowledge, shards: self.shards, workers: self.workers },
            self.server,
        )
    }
}
