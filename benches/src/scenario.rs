//! Scenarios, each answering one question, and their goals.

use std::io;
use std::time::{Duration, Instant};

use mqcore_broker::model::options::Status;
use mqcore_broker::model::policy;

use crate::durable::{Receipts, Scratch};
use crate::eventmq::{self, Jobs};
use crate::micromessage::Work;
use crate::mqks::Mqks;
use crate::peers::{self, nats, redis};
use crate::plain_loop::Target;
use crate::process::{Process, cpu_seconds_of_others};
use crate::report::{Figure, Goal};
use crate::serve::{History, Saving, Serve};
use crate::tmqp::Tmqp;
use crate::wire::Wire;
use crate::{
    BODY_BYTES, backlog, durable, fanout, latency, limits, memory, micromessage, plain_loop, schedules,
    work_queue,
};

/// Options of a measurement.
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
    /// Messages of the backlog.
    pub messages: u64,
    /// The command that serves instead of this program, for example one that does so in Python.
    pub server: Option<&'static str>,
    /// The router of the original EventMQ, to be measured too.
    pub emq_router: Option<&'static str>,
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One producer, one consumer, a broadcast queue.
    Broadcast1To1,
    /// One producer, a hundred consumers, a broadcast queue.
    Broadcast1To100,
    /// One producer, one consumer, lines of MQKS.
    MqksLines,
    /// One producer, one receiver, messages of MicroMessage2 with `batch-ack` of 1,000.
    MicroMessageBatchAck,
    /// The same through a topic, with a filter on three properties.
    MicroMessageFilters,
    /// Four clients, four workers, jobs of EventMQ; and one job at a time.
    EventmqRouter,
    /// One producer, four consumers, a round robin queue whose every message is acknowledged.
    RoundRobinAck,
    /// 10,000 messages a second, open loop.
    Latency,
    /// 10,000 idle clients.
    IdleConnections,
    /// A million messages without consumers.
    StoredMillion,
    /// 512 messages wait for receipts, from 64 producers and from one; every message is saved.
    DurableWindow512,
    /// One producer waits for the receipt of each message; every message is saved.
    DurableWindow1,
    /// A million saved messages, and a crash.
    RestartMillion,
    /// A long queue of saved messages of 1 KiB.
    Backlog,
    /// The same work without history, with it, and with the archive.
    History,
    /// One connection takes from a limit, one request at a time.
    LimitsOne,
    /// Fifty connections do.
    LimitsFifty,
    /// Fifty connections with 64 requests each in flight.
    LimitsPipeline,
    /// The same, checking and subtracting in one request.
    LimitsConsume,
    /// Ten million counters.
    LimitsMillions,
    /// A million counters that expire at once.
    LimitsExpiry,
    /// The work of [`Scenario::LimitsPipeline`] with limits that survive.
    LimitsPersist,
    /// A million saved schedules of jobs, of which a thousand are due in each second.
    SchedulesMillion,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 23] = [
        Self::Broadcast1To1,
        Self::Broadcast1To100,
        Self::MqksLines,
        Self::MicroMessageBatchAck,
        Self::MicroMessageFilters,
        Self::EventmqRouter,
        Self::RoundRobinAck,
        Self::Latency,
        Self::IdleConnections,
        Self::StoredMillion,
        Self::DurableWindow512,
        Self::DurableWindow1,
        Self::RestartMillion,
        Self::Backlog,
        Self::History,
        Self::LimitsOne,
        Self::LimitsFifty,
        Self::LimitsPipeline,
        Self::LimitsConsume,
        Self::LimitsMillions,
        Self::LimitsExpiry,
        Self::LimitsPersist,
        Self::SchedulesMillion,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broadcast1To1 => "broadcast-1-1",
            Self::Broadcast1To100 => "broadcast-1-100",
            Self::MqksLines => "mqks-lines",
            Self::MicroMessageBatchAck => "mm2-batch-ack",
            Self::MicroMessageFilters => "mm2-filters",
            Self::EventmqRouter => "eventmq-router",
            Self::RoundRobinAck => "round-robin-ack",
            Self::Latency => "latency",
            Self::IdleConnections => "idle-connections",
            Self::StoredMillion => "stored-million",
            Self::DurableWindow512 => "durable-window-512",
            Self::DurableWindow1 => "durable-window-1",
            Self::RestartMillion => "restart-million",
            Self::Backlog => "backlog",
            Self::History => "history",
            Self::LimitsOne => "limits-1",
            Self::LimitsFifty => "limits-50",
            Self::LimitsPipeline => "limits-50-64",
            Self::LimitsConsume => "limits-consume",
            Self::LimitsMillions => "limits-millions",
            Self::LimitsExpiry => "limits-expiry",
            Self::LimitsPersist => "limits-persist",
            Self::SchedulesMillion => "schedules-million",
        }
    }

    /// The scenario with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Runs it.
    ///
    /// # Errors
    /// If a process does not start or a connection breaks.
    pub fn run(self, plan: Plan) -> io::Result<Vec<Figure>> {
        match self {
            Self::Broadcast1To1 => self.broadcast(plan, 1, 2e6),
            Self::Broadcast1To100 => self.broadcast(plan, 100, 5e6),
            Self::MqksLines => self.mqks_lines(plan),
            Self::MicroMessageBatchAck => self.micromessage(plan, Work::Queue, 5e5),
            Self::MicroMessageFilters => self.micromessage(plan, Work::Filters, 3e5),
            Self::EventmqRouter => self.eventmq_router(plan),
            Self::RoundRobinAck => self.round_robin(plan),
            Self::Latency => self.latency(plan),
            Self::IdleConnections => self.idle(plan),
            Self::StoredMillion => self.stored(plan),
            Self::DurableWindow512 => self.durable_window_512(plan),
            Self::DurableWindow1 => self.durable_window_1(plan),
            Self::RestartMillion => self.restart(plan),
            Self::Backlog => self.backlog(plan),
            Self::History => self.history(plan),
            Self::LimitsOne => self.limits(plan, (1, 1), Goal::None, 1.3),
            Self::LimitsFifty => self.limits(plan, (50, 1), Goal::None, 2.0),
            Self::LimitsPipeline => self.limits(plan, (50, 64), Goal::AtLeast(3e6), 2.5),
            Self::LimitsConsume => self.limits(plan, (50, 64), Goal::None, 4.0),
            Self::LimitsMillions => self.limits_millions(plan),
            Self::LimitsExpiry => self.limits_expiry(plan),
            Self::LimitsPersist => self.limits_persist(plan),
            Self::SchedulesMillion => self.schedules_million(plan),
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

    fn mqks_lines(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let goal = Goal::AtLeast(6e5);
        let mut figure = Figure::new(self.name(), "mqcore", "messages/s, published to consumed", goal);
        for _ in 0..plan.runs {
            let process = plan.mqcore(Status::RoundRobin, false)?;
            let unspoken = || io::Error::other("the server under test does not speak MQKS");
            let wire = Mqks { address: process.mqks.ok_or_else(unspoken)? };
            let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
            figure.values.push(fanout::measure(&wire, 1, WARM_UP, plan.duration)?.rate());
            figure.cpu_seconds += process.cpu_seconds()?;
            let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
            figure.disturbance = Some(disturbance.max(figure.disturbance.unwrap_or(0.0)));
        }
        Ok(vec![figure])
    }

    fn micromessage(self, plan: Plan, work: Work, goal: f64) -> io::Result<Vec<Figure>> {
        let what = "messages/s, published to acknowledged";
        let mut figure = Figure::new(self.name(), "mqcore", what, Goal::AtLeast(goal));
        for _ in 0..plan.runs {
            let process = plan.mqcore(Status::RoundRobin, false)?;
            let unspoken = || io::Error::other("the server under test does not speak MicroMessage2");
            let address = process.mm2.ok_or_else(unspoken)?;
            let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
            figure.values.push(micromessage::measure(address, work, WARM_UP, plan.duration)?);
            figure.cpu_seconds += process.cpu_seconds()?;
            let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
            figure.disturbance = Some(disturbance.max(figure.disturbance.unwrap_or(0.0)));
        }
        Ok(vec![figure])
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

    /// Measures mqcore and, if requested, other brokers: one run of each in turn, so that a disturbance affects all
    /// equally.
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
            vec![("mqcore", &mqcore, Box::new(Tmqp::new(mqcore.address)))];
        if let Some(process) = &redis {
            brokers.push((
                "redis",
                process,
                Box::new(redis::Redis { address: process.address, body_bytes: BODY_BYTES }),
            ));
        }
        if let Some(process) = &nats {
            brokers.push((
                "nats",
                process,
                Box::new(nats::Nats { address: process.address, body_bytes: BODY_BYTES }),
            ));
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
            let worked = work_queue::measure(&process, 4, WARM_UP, plan.duration)?;
            figure.values.push(worked.rate());
            figure.cpu_seconds += process.cpu_seconds()?;
            figure.done = Some(figure.done.unwrap_or_default() + worked.in_all);
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
        figure.values.push(stored.bytes() as f64 / MIB);
        Ok(vec![figure])
    }

    fn durable_window_512(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let names = [
            ("receipts/s, 64 producers with 8 each", Goal::None),
            ("messages a sync", Goal::None),
            ("% of the plain loop, same batch", Goal::AtLeast(60.0)),
            ("% of overwriting, same batch", Goal::None),
            ("% of the plain loop, batch 512", Goal::AtLeast(60.0)),
        ];
        let mut figures = self.receipts(plan, 64, 8, names)?;
        let names = [
            ("receipts/s, one producer with 512", Goal::None),
            ("messages a sync, one producer", Goal::None),
            ("% of the plain loop, same batch, one producer", Goal::AtLeast(60.0)),
            ("% of overwriting, same batch, one producer", Goal::None),
            ("% of the plain loop, batch 512, one producer", Goal::AtLeast(60.0)),
        ];
        figures.extend(self.receipts(plan, 1, 512, names)?);
        Ok(figures)
    }

    fn durable_window_1(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let names = [
            ("receipts/s", Goal::None),
            ("messages a sync", Goal::None),
            ("% of the plain loop, batch 1", Goal::AtLeast(80.0)),
            ("% of overwriting, batch 1", Goal::None),
        ];
        self.receipts(plan, 1, 1, names)
    }

    /// Receipts a second, the batch that formed, and the ratios to plain loops with that batch, growing and overwriting,
    /// and with the whole window as a batch (as many as `names` asks for). The loops run right behind the broker, in the same directory.
    fn receipts<const N: usize>(
        self,
        plan: Plan,
        producers: usize,
        window: usize,
        names: [(&'static str, Goal); N],
    ) -> io::Result<Vec<Figure>> {
        let mut figures = names.map(|(what, goal)| Figure::new(self.name(), "mqcore", what, goal));
        for _ in 0..plan.runs {
            let directory = Scratch::new(self.name())?;
            let process = plan.saving(&directory)?;
            let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
            let run = durable::measure(&process, producers, window, WARM_UP, plan.duration)?;
            let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
            let cpu_seconds = process.cpu_seconds()?;
            drop(process);
            let values = compared_with_disk(&run, producers * window, &directory, plan.duration / 3)?;
            for (figure, value) in figures.iter_mut().zip(values) {
                figure.values.push(value);
                figure.cpu_seconds += cpu_seconds;
                figure.disturbance = Some(disturbance.max(figure.disturbance.unwrap_or(0.0)));
            }
        }
        Ok(figures.into())
    }

    fn restart(self, plan: Plan) -> io::Result<Vec<Figure>> {
        const COUNT: u64 = 1_000_000;
        let names = [
            ("seconds until ready, 1,000,000 messages", Goal::AtMost(5.0)),
            ("MiB, unsaved", Goal::None),
            ("MiB, saved", Goal::None),
            ("MiB, after the restart", Goal::None),
            ("% of the memory of unsaved ones, saved", Goal::AtMost(100.0)),
            ("% of the memory of unsaved ones, after the restart", Goal::AtMost(100.0)),
        ];
        let mut figures = names.map(|(what, goal)| Figure::new(self.name(), "mqcore", what, goal));
        for _ in 0..plan.runs {
            let unsaved = Plan { server: None, ..plan }.mqcore(Status::Pull, false)?;
            let unsaved = memory::stored_messages(&unsaved, COUNT)?.bytes() as f64;
            let directory = Scratch::new(self.name())?;
            let process = plan.saving(&directory)?;
            durable::save(&process, 1)?;
            let before = process.resident_bytes()?;
            durable::save(&process, COUNT)?;
            let saved = process.resident_bytes()?.saturating_sub(before) as f64;
            process.crash()?;
            let start = Instant::now();
            let process = plan.saving(&directory)?;
            // Ready is who answers, and has everything.
            process.totals_when(|totals| totals["ready"].as_u64() == Some(COUNT + 1))?;
            let seconds = start.elapsed().as_secs_f64();
            let restarted = process.resident_bytes()?.saturating_sub(before) as f64;
            let percent = 100.0 / unsaved;
            let values =
                [seconds, unsaved / MIB, saved / MIB, restarted / MIB, saved * percent, restarted * percent];
            for (figure, value) in figures.iter_mut().zip(values) {
                figure.values.push(value);
            }
        }
        Ok(figures.into())
    }
}

impl Scenario {
    fn backlog(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let peak = Goal::AtMost(1024.0);
        let names = [
            ("messages of 1 KiB", Goal::None),
            ("messages/s taken", Goal::None),
            ("MiB at most, while taken", peak),
            ("MiB, held", peak),
            ("messages/s, the first half drained", Goal::None),
            ("MiB at most, while drained", peak),
            ("seconds until ready after a crash", Goal::None),
            ("MiB, ready after the crash", peak),
            ("messages/s, the rest drained", Goal::None),
            ("MiB at most, while the rest is drained", peak),
        ];
        let mut figures = names.map(|(what, goal)| Figure::new(self.name(), "mqcore", what, goal));
        let directory = Scratch::new(self.name())?;
        let process = plan.saving_in(&directory, Status::RoundRobin, true)?;
        let taken = backlog::take(&process, plan.messages)?;
        let held = process.resident_bytes()? as f64;
        let first = backlog::drain(&process, plan.messages / 2)?;
        process.crash()?;
        let start = Instant::now();
        let process = plan.saving_in(&directory, Status::RoundRobin, true)?;
        let ready = process.totals()?["ready"].as_u64().unwrap_or_default();
        let seconds = start.elapsed().as_secs_f64();
        let restarted = process.resident_bytes()? as f64;
        let rest = backlog::drain(&process, ready)?;
        process.totals_when(|totals| totals["ready"] == 0 && totals["in_flight"] == 0)?;
        let values = [
            plan.messages as f64,
            taken.rate(),
            taken.peak_bytes as f64 / MIB,
            held / MIB,
            first.rate(),
            first.peak_bytes as f64 / MIB,
            seconds,
            restarted / MIB,
            rest.rate(),
            rest.peak_bytes as f64 / MIB,
        ];
        for (figure, value) in figures.iter_mut().zip(values) {
            figure.values.push(value);
        }
        Ok(figures.into())
    }
}

impl Scenario {
    /// The work of `round-robin-ack` and of `durable-window-512`, with the three in turn, so that a disturbance hits all
    /// alike. Each begins with an empty directory.
    fn history(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let kept = Goal::AtLeast(75.0);
        let names = [
            ("messages/s acknowledged, in memory, no history", Goal::None),
            ("messages/s acknowledged, in memory, history", Goal::None),
            ("messages/s acknowledged, in memory, history and archive", Goal::None),
            ("receipts/s, 64 producers with 8 each, no history", Goal::None),
            ("receipts/s, 64 producers with 8 each, history", Goal::None),
            ("receipts/s, 64 producers with 8 each, history and archive", Goal::None),
            ("% left with history, in memory", kept),
            ("% left with history and archive, in memory", kept),
            ("% left with history, receipts", kept),
            ("% left with history and archive, receipts", kept),
            // A history with gaps would have cost too little.
            ("steps missed", Goal::AtMost(0.0)),
        ];
        let mut figures = names.map(|(what, goal)| Figure::new(self.name(), "mqcore", what, goal));
        for _ in 0..plan.runs {
            let [mut worked, mut saved] = [[0.0; 3]; 2];
            let mut missed = 0.0;
            for (index, history) in [History::Off, History::Journal, History::Archive].into_iter().enumerate()
            {
                let directory = Scratch::new(self.name())?;
                let memory = policy::MEMORY.key;
                let process = plan.keeping(&directory, Status::RoundRobin, true, memory, history)?;
                worked[index] = work_queue::measure(&process, 4, WARM_UP, plan.duration)?.rate();
                missed += process.metric(MISSED)?;
                drop((process, directory));
                let directory = Scratch::new(self.name())?;
                let durable = policy::AT_LEAST_ONCE.key;
                let process = plan.keeping(&directory, Status::Pull, false, durable, history)?;
                saved[index] = durable::measure(&process, 64, 8, WARM_UP, plan.duration)?.rate();
                missed += process.metric(MISSED)?;
            }
            let left = |rates: [f64; 3]| [rates[1], rates[2]].map(|rate| rate / rates[0] * 100.0);
            let values =
                worked.into_iter().chain(saved).chain(left(worked)).chain(left(saved)).chain([missed]);
            for (figure, value) in figures.iter_mut().zip(values) {
                figure.values.push(value);
            }
        }
        Ok(figures.into())
    }
}

impl Scenario {
    /// Jobs through mqcore and through the original's router, one run of each in turn.
    fn eventmq_router(self, plan: Plan) -> io::Result<Vec<Figure>> {
        const WHAT: [&str; 3] = ["jobs/s", "p50 us, REQUEST to dispatch", "p99 us, REQUEST to dispatch"];
        let goals = [Goal::AtLeast(1e5), Goal::AtMost(100.0), Goal::None];
        let mut ours: Vec<_> = WHAT
            .into_iter()
            .zip(goals)
            .map(|(what, goal)| Figure::new(self.name(), "mqcore", what, goal))
            .collect();
        let mut kept =
            Figure::new(self.name(), "mqcore", "jobs/s, kept until their result comes", Goal::None);
        let mut theirs: Vec<_> =
            WHAT.into_iter().map(|what| Figure::new(self.name(), "eventmq", what, Goal::None)).collect();
        let mut times =
            Figure::new(self.name(), "mqcore", "times the jobs/s of eventmq", Goal::AtLeast(20.0));
        let throughput = |sockets| eventmq::throughput(sockets, Jobs::HandedOut, WARM_UP, plan.duration);
        let latency = |sockets| {
            let age = eventmq::latency(sockets, WARM_UP, plan.duration)?;
            Ok::<_, io::Error>([age.p50, age.p99].map(|age| age.as_secs_f64() * 1e6))
        };
        for _ in 0..plan.runs {
            let process = plan.mqcore(Status::RoundRobin, false)?;
            let unspoken = || io::Error::other("the server under test does not speak EventMQ");
            let sockets = process.eventmq.ok_or_else(unspoken)?;
            let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
            let (rate, ages) = (throughput(sockets)?, latency(sockets)?);
            for (figure, value) in ours.iter_mut().zip([rate].into_iter().chain(ages)) {
                figure.values.push(value);
            }
            kept.values.push(eventmq::throughput(sockets, Jobs::Kept, WARM_UP, plan.duration)?);
            let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
            ours[0].disturbance = Some(disturbance.max(ours[0].disturbance.unwrap_or(0.0)));
            ours[0].cpu_seconds += process.cpu_seconds()?;
            drop(process);
            let Some(program) = plan.emq_router else { continue };
            let router = peers::eventmq::start(program)?;
            let their_rate = throughput(router.sockets)?;
            theirs[0].cpu_seconds += router.process.cpu_seconds()?;
            times.values.push(rate / their_rate);
            drop(router);
            // It still delivers jobs to workers that have left, so the next run needs a new router.
            let router = peers::eventmq::start(program)?;
            let their_ages = latency(router.sockets)?;
            for (figure, value) in theirs.iter_mut().zip([their_rate].into_iter().chain(their_ages)) {
                figure.values.push(value);
            }
        }
        let compared = if plan.emq_router.is_some() { [theirs, vec![times]].concat() } else { Vec::new() };
        Ok([ours, vec![kept], compared].concat())
    }
}

impl Scenario {
    /// One run, however many are wanted: it takes more than a minute.
    fn schedules_million(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let directory = Scratch::new(self.name())?;
        let process = plan.saving_in(&directory, Status::RoundRobin, false)?;
        let unspoken = || io::Error::other("the server under test does not speak EventMQ");
        let sockets = process.eventmq.ok_or_else(unspoken)?;
        let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
        let found = schedules::measure(&process, sockets, 1_000_000, 5 * plan.duration)?;
        let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
        let values = [
            ("schedules/s taken", Goal::None, found.taken),
            ("MiB of the broker with 1,000,000 schedules", Goal::AtMost(400.0), found.bytes as f64 / MIB),
            ("runs that came", Goal::None, found.runs as f64),
            ("p50 ms late", Goal::None, found.p50),
            ("p99 ms late", Goal::AtMost(50.0), found.p99),
            ("max ms late", Goal::None, found.max),
        ];
        let mut figures = values.map(|(what, goal, value)| self.one(what, goal, value));
        figures[4].disturbance = Some(disturbance);
        Ok(figures.into())
    }
}

const MISSED: &str = "mqcore_history_events_dropped_total";

const MIB: f64 = 1024.0 * 1024.0;

/// The figures of [`Scenario::receipts`].
fn compared_with_disk(
    run: &Receipts,
    window: usize,
    directory: &Scratch,
    duration: Duration,
) -> io::Result<[f64; 5]> {
    let formed = (run.batch().round() as usize).max(1);
    let path = directory.path().join("plain");
    let same_batch = plain_loop::rate(&path, Target::Growing, formed, duration)?;
    let overwriting = plain_loop::rate(&path, Target::Overwritten, formed, duration)?;
    let whole_window = if formed == window {
        same_batch
    } else {
        plain_loop::rate(&path, Target::Growing, window, duration)?
    };
    let percent_of = |plain: f64| run.rate() / plain * 100.0;
    Ok([run.rate(), run.batch(), percent_of(same_batch), percent_of(overwriting), percent_of(whole_window)])
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
            &Serve { status, acknowledge, shards: self.shards, workers: self.workers, saving: None },
            self.server,
        )
    }

    /// This program's own server, whatever else is measured: another one need not know how to save.
    fn saving(&self, directory: &Scratch) -> io::Result<Process> {
        self.saving_in(directory, Status::Pull, false)
    }

    fn saving_in(&self, directory: &Scratch, status: Status, acknowledge: bool) -> io::Result<Process> {
        self.keeping(directory, status, acknowledge, policy::AT_LEAST_ONCE.key, History::Off)
    }

    fn keeping(
        &self,
        directory: &Scratch,
        status: Status,
        acknowledge: bool,
        delivery_handler: &str,
        history: History,
    ) -> io::Result<Process> {
        let saving = Saving {
            delivery_handler: delivery_handler.into(),
            data_dir: directory.path().join("data"),
            history,
            limits: false,
        };
        let (shards, workers) = (self.shards, self.workers);
        Process::mqcore(&Serve { status, acknowledge, shards, workers, saving: Some(saving) }, None)
    }
}

impl Scenario {
    /// Requests a second of mqcore and of Redis, one run of each in turn, and how many times the one is the other.
    fn limits(
        self,
        plan: Plan,
        (connections, pipeline): (usize, usize),
        goal: Goal,
        times: f64,
    ) -> io::Result<Vec<Figure>> {
        let mqcore = plan.mqcore(Status::Push, false)?;
        let address = throttr(&mqcore)?;
        limits::create(address)?;
        let redis = if plan.peers { redis::start()? } else { None };
        let consume = self == Self::LimitsConsume;
        let ours = if consume { limits::consume() } else { limits::decrease() };
        let theirs = match &redis {
            Some(redis) if consume => Some((redis, limits::script(redis)?)),
            Some(redis) => Some((redis, limits::incr())),
            None => None,
        };
        let mut figure = Figure::new(self.name(), "mqcore", "requests/s", goal);
        let mut peer = Figure::new(self.name(), "redis", "requests/s", Goal::None);
        let mut ratio = Figure::new(self.name(), "mqcore", "times redis", Goal::AtLeast(times));
        let all: Vec<&Process> = [Some(&mqcore), redis.as_ref()].into_iter().flatten().collect();
        let (others, start) = (cpu_seconds_of_others(&all)?, Instant::now());
        for _ in 0..plan.runs {
            let cpu = mqcore.cpu_seconds()?;
            let asked = limits::ask(address, &ours, connections, pipeline, WARM_UP, plan.duration)?;
            figure.add(&asked, mqcore.cpu_seconds()? - cpu);
            if let Some((redis, ask)) = &theirs {
                let cpu = redis.cpu_seconds()?;
                let theirs = limits::ask(redis.address, ask, connections, pipeline, WARM_UP, plan.duration)?;
                peer.add(&theirs, redis.cpu_seconds()? - cpu);
                ratio.values.push(asked.rate / theirs.rate);
            }
        }
        figure.disturbance = Some((cpu_seconds_of_others(&all)? - others) / start.elapsed().as_secs_f64());
        let with_peer = if theirs.is_some() { vec![peer, ratio] } else { Vec::new() };
        Ok([vec![figure], with_peer].concat())
    }

    fn limits_millions(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let process = plan.mqcore(Status::Push, false)?;
        let hour = mqcore_wire::throttr::Ttl { unit: 6, amount: 1 };
        let growth = limits::create_many(&process, throttr(&process)?, 10_000_000, hour)?;
        let values = [
            ("creations/s, the first million of ten", Goal::None, growth.first),
            ("creations/s, the last million of ten", Goal::AtLeast(growth.first * 0.9), growth.last),
            ("bytes a counter of 10,000,000", Goal::AtMost(120.0), growth.bytes_each),
        ];
        Ok(values.map(|(what, goal, value)| self.one(what, goal, value)).into())
    }

    fn limits_expiry(self, plan: Plan) -> io::Result<Vec<Figure>> {
        let process = plan.mqcore(Status::Push, false)?;
        let (others, start) = (cpu_seconds_of_others(&[&process])?, Instant::now());
        let (before, expiring) = limits::mass_expiry(&process, throttr(&process)?, 1_000_000)?;
        let disturbance = (cpu_seconds_of_others(&[&process])? - others) / start.elapsed().as_secs_f64();
        let values = [
            ("us for others while 1,000,000 expire, p50", expiring.p50),
            ("us for others while 1,000,000 expire, p99", expiring.p99),
            ("us for others while 1,000,000 expire, p99.9", expiring.p999),
            ("us for others while 1,000,000 expire, largest", expiring.max),
            ("requests over 1 ms while 1,000,000 expire", expiring.over_millisecond),
            ("us for others before, p50", before.p50),
            ("us for others before, p99", before.p99),
            ("us for others before, p99.9", before.p999),
            ("us for others before, largest", before.max),
            ("requests over 1 ms before", before.over_millisecond),
        ];
        let mut figures = values.map(|(what, value)| self.one(what, Goal::None, value));
        figures.iter_mut().for_each(|figure| figure.disturbance = Some(disturbance));
        Ok(figures.into())
    }

    /// Fifty connections with 64 requests each, at a server that keeps nothing and at one whose limits survive, in turn:
    /// all from one counter, and from 51,200 of which each changes several times between two writes.
    fn limits_persist(self, plan: Plan) -> io::Result<Vec<Figure>> {
        const COUNTERS: u64 = 51_200;
        let hour = mqcore_wire::throttr::Ttl { unit: 6, amount: 1 };
        let directory = Scratch::new(self.name())?;
        let saving = Saving {
            delivery_handler: policy::MEMORY.key.into(),
            data_dir: directory.path().join("data"),
            history: History::Off,
            limits: true,
        };
        let forgetful = plan.mqcore(Status::Push, false)?;
        let (shards, workers) = (plan.shards, plan.workers);
        let serve = Serve { status: Status::Push, acknowledge: false, shards, workers, saving: Some(saving) };
        let keeping = Process::mqcore(&serve, None)?;
        for process in [&forgetful, &keeping] {
            limits::create_many(process, throttr(process)?, COUNTERS, hour)?;
            limits::create(throttr(process)?)?;
        }
        let names = [
            [
                "requests/s, one counter",
                "requests/s, one counter, persist=on",
                "% left with persist=on, one counter",
            ],
            [
                "requests/s, 51,200 counters",
                "requests/s, 51,200 counters, persist=on",
                "% left with persist=on, 51,200 counters",
            ],
        ];
        let mut all = Vec::new();
        for (asks, names) in [limits::decrease(), limits::decrease_each(COUNTERS)].into_iter().zip(names) {
            let mut figures = names.map(|what| Figure::new(self.name(), "mqcore", what, Goal::None));
            for _ in 0..plan.runs {
                for (figure, process) in figures.iter_mut().zip([&forgetful, &keeping]) {
                    let cpu = process.cpu_seconds()?;
                    let asked = limits::ask(throttr(process)?, &asks, 50, 64, WARM_UP, plan.duration)?;
                    figure.add(&asked, process.cpu_seconds()? - cpu);
                }
                let last = |figure: &Figure| figure.values.last().copied().unwrap_or(f64::NAN);
                let left = last(&figures[1]) / last(&figures[0]) * 100.0;
                figures[2].values.push(left);
            }
            all.extend(figures);
        }
        Ok(all)
    }

    fn one(self, what: &'static str, goal: Goal, value: f64) -> Figure {
        let mut figure = Figure::new(self.name(), "mqcore", what, goal);
        figure.values.push(value);
        figure
    }
}

impl Figure {
    fn add(&mut self, asked: &limits::Asked, cpu_seconds: f64) {
        self.values.push(asked.rate);
        self.cpu_seconds += cpu_seconds;
        *self.done.get_or_insert_default() += asked.count;
    }
}

/// Address for rate limit requests.
fn throttr(process: &Process) -> io::Result<std::net::SocketAddr> {
    process.throttr.ok_or_else(|| io::Error::other("the server has no listener for limits"))
}
