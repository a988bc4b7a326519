//! How long syncs of a log take.

use std::time::{Duration, Instant};

use crate::status::LogSyncs;

/// Half of the time that "recently" means: recent values cover between this and twice this.
const RECENT_HALF: Duration = Duration::from_secs(10);

/// Times of syncs.
#[derive(Debug)]
pub(crate) struct SyncTimes {
    all: SyncSum,
    current: SyncSum,
    before: SyncSum,
    turned: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct SyncSum {
    count: u64,
    total: Duration,
    longest: Duration,
}

impl SyncSum {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }
}

impl SyncTimes {
    pub(crate) fn new(now: Instant) -> Self {
        let none = SyncSum::default();
        Self { all: none, current: none, before: none, turned: now }
    }

    /// A sync has ended that took so long.
    pub(crate) fn note(&mut self, time: Duration, now: Instant) {
        (self.before, self.current, self.turned) = self.turned_at(now);
        let one = SyncSum { count: 1, total: time, longest: time };
        self.all.add(one);
        self.current.add(one);
    }

    /// The sums of the two halves at a time, and the start of the current one.
    fn turned_at(&self, now: Instant) -> (SyncSum, SyncSum, Instant) {
        match now.saturating_duration_since(self.turned) {
            age if age < RECENT_HALF => (self.before, self.current, self.turned),
            age if age < 2 * RECENT_HALF => (self.current, SyncSum::default(), self.turned + RECENT_HALF),
            _ => (SyncSum::default(), SyncSum::default(), now),
        }
    }

    pub(crate) fn summary(&self, now: Instant) -> LogSyncs {
        let (before, mut recent, _) = self.turned_at(now);
        recent.add(before);
        let micros = |time: Duration| time.as_micros() as u64;
        LogSyncs {
            count: self.all.count,
            total_us: micros(self.all.total),
            mean_us: micros(recent.total).checked_div(recent.count).unwrap_or(0),
            longest_us: micros(recent.longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_values_forget_old_syncs_and_totals_do_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = SyncTimes::new(start);
        assert_eq!(times.summary(at(1)), LogSyncs::default());
        times.note(Duration::from_micros(900), at(1));
        times.note(Duration::from_micros(100), at(2));
        let both = LogSyncs { count: 2, total_us: 1_000, mean_us: 500, longest_us: 900 };
        assert_eq!(times.summary(at(3)), both);
        times.note(Duration::from_micros(200), at(12));
        assert_eq!(times.summary(at(12)).longest_us, 900);
        assert_eq!(
            times.summary(at(21)),
            LogSyncs { count: 3, total_us: 1_200, mean_us: 200, longest_us: 200 }
        );
        assert_eq!(times.summary(at(60)), LogSyncs { count: 3, total_us: 1_200, mean_us: 0, longest_us: 0 });
    }
}
