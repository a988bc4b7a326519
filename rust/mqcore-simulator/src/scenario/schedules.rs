//! Schedules of a scenario.

use mqcore_scheduler::plan::CatchUp;
use mqcore_testkit::Random;

/// A schedule, which one client requests and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedSchedule {
    /// The index of its queue, whose consumers are workers.
    pub queue: usize,
    /// Milliseconds between two runs.
    pub interval_ms: u64,
    /// Treatment of missed runs.
    pub catch_up: CatchUp,
    /// How often it runs; 0: without end.
    pub runs: u64,
    /// Whether the first run is due at once.
    pub at_once: bool,
}

impl SimulatedSchedule {
    pub(super) fn choose(random: &mut Random, queue: usize) -> Self {
        let catch_up = CatchUp::EVERY[random.index(3)];
        // A clock that is set forward by hours makes many runs due.
        let short = if catch_up == CatchUp::All { 20_000 } else { 150 };
        Self {
            queue,
            interval_ms: [short, 1_000.max(short), 5_000.max(short), 30_000][random.index(4)],
            catch_up,
            runs: [0, 0, 1, 5][random.index(4)],
            at_once: random.one_in(2),
        }
    }

    /// The headers of a request for it.
    pub(crate) fn headers(&self) -> String {
        let mut headers = format!(
            "reply-requested,guarantee,interval-ms:{},catch-up:{}",
            self.interval_ms,
            self.catch_up.as_str()
        );
        if self.runs > 0 {
            headers.push_str(&format!(",run_count:{}", self.runs));
        }
        if !self.at_once {
            headers.push_str(",nohaste");
        }
        headers
    }

    /// The job of the schedule with this index.
    pub(crate) fn job(index: usize) -> String {
        format!("schedule{index}")
    }

    /// The index of the schedule with this job.
    pub(crate) fn of_job(job: &[u8]) -> Option<usize> {
        std::str::from_utf8(job).ok()?.strip_prefix("schedule")?.parse().ok()
    }
}
