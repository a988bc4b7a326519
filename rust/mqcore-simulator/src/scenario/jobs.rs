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

/// The terms of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTerms {
    /// Whether the broker keeps it until a worker has finished it.
    pub guarantee: bool,
    /// How often it is retried without a guarantee.
    pub retries: u32,
    /// Whether it runs before those without priority.
    pub is_urgent: bool,
    /// Its key, and how many jobs with that run at a time.
    pub key: Option<(u32, u32)>,
}

impl JobTerms {
    /// The terms of the job with this number. `varies`: whether they differ.
    pub(crate) fn of(job: u32, varies: bool) -> Self {
        if !varies {
            return Self { guarantee: true, retries: 0, is_urgent: false, key: None };
        }
        let mut random = Random::new(u64::from(job));
        let key = random.below(4) as u32;
        Self {
            guarantee: !random.one_in(3),
            retries: random.below(3) as u32,
            is_urgent: random.one_in(4),
            // All jobs with a key have the same limit for it.
            key: (key < 3).then_some((key, 1 + key)),
        }
    }

    /// The headers of a job whose result the broker keeps for longer than any run. In a flow, each job has a guarantee.
    pub(crate) fn headers(&self, is_in_flow: bool) -> String {
        let mut headers = "reply-requested,result-ttl:864000".to_owned();
        if self.guarantee || is_in_flow {
            headers.push_str(",guarantee");
        } else if self.retries > 0 {
            headers.push_str(&format!(",retry-count:{}", self.retries));
        }
        if self.is_urgent {
            headers.push_str(",priority:1");
        }
        if let Some((key, most)) = self.key {
            headers.push_str(&format!(",concurrency:k{key},concurrency-max:{most}"));
        }
        headers
    }
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
