//! Jobs whose results the broker keeps, alone and in flows.

use mqcore_testkit::Random;

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
    pub(super) fn choose(random: &mut Random) -> Self {
        match random.below(8) {
            0 | 1 => Self::Enqueue,
            2 | 3 => Self::Chain(2 + random.below(3) as u32),
            4 => Self::Gather(1 + random.below(4) as u32),
            _ => Self::Cancel { back: random.index(6), hard: random.one_in(2) },
        }
    }
}
