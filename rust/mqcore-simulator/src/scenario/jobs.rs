//! Jobs whose results the broker keeps, alone and in flows.

use mqcore_session::any::Protocol;
use mqcore_testkit::Random;

use super::choose::{consumer, queue_of_jobs};
use super::{ClientRole, Scenario, ScenarioStep, SimulatedClient};

/// A request of the client of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAction {
    /// A job.
    Enqueue,
    /// A flow of so many jobs, each with the result of the one before it.
    Chain(u32),
    /// A flow of so many jobs side by side, and one with all their results.
    Gather(u32),
    /// The end of one of its jobs.
    Cancel {
        /// The number of the job among those that it has requested, counted from the latest.
        back: usize,
        /// Whether a running job is killed.
        hard: bool,
    },
}

impl JobAction {
    fn choose(random: &mut Random) -> Self {
        match random.below(8) {
            0 | 1 => Self::Enqueue,
            2 | 3 => Self::Chain(2 + random.below(3) as u32),
            4 => Self::Gather(1 + random.below(4) as u32),
            _ => Self::Cancel { back: random.index(6), hard: random.one_in(2) },
        }
    }
}

impl Scenario {
    /// Adds a queue of jobs, its workers, the client that requests them, and its requests.
    pub(super) fn add_jobs(&mut self, random: &mut Random) {
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
