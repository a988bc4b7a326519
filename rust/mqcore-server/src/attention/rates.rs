//! How fast queues move, from samples of their counters.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::stats::{QueueSample, QueueStats};
use mqcore_broker::model::time::Timestamp;

use crate::stats::totals::{Totals, rounded};

/// Time over which rates are computed.
const WINDOW: Duration = Duration::from_secs(2);

/// Half of the time that "recently" means: [`RecentCount`] covers between this and twice this.
const RECENT_HALF: Duration = Duration::from_secs(30);

/// How fast a queue moved during the last complete window, in messages per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct QueueRates {
    pub(crate) received: f64,
    pub(crate) delivered: f64,
    /// Acknowledgements of both kinds, and timeouts.
    pub(crate) settled: f64,
    /// Change of the number of waiting messages.
    pub(crate) growth: f64,
}

/// Results of earlier samples of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueTrack {
    /// Start of the current window.
    window_start: Timestamp,
    window: Counts,
    last: Counts,
    pub(crate) rates: QueueRates,
    /// When a delivery was last settled, as far as seen.
    pub(crate) settled_at: Timestamp,
    pub(crate) dead_lettered: RecentCount,
    pub(crate) failures: RecentCount,
    /// Messages rejected since the previous sample.
    pub(crate) rejected: u64,
}

/// Counters of a queue that matter here.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    ready: u64,
    received: u64,
    delivered: u64,
    settled: u64,
    dead_lettered: u64,
    failures: u64,
    rejected: u64,
}

impl Counts {
    fn of(sample: &QueueSample) -> Self {
        let QueueStats { received, deliveries, acks, negative_acks, dead_lettered, errors, rejected, .. } =
            sample.stats;
        Self {
            ready: sample.ready,
            received,
            delivered: deliveries,
            settled: acks + negative_acks,
            dead_lettered,
            failures: errors,
            rejected,
        }
    }

    /// The changes between `before` and now. A queue that was removed and created again begins with smaller counters.
    fn since(&self, before: &Self) -> Self {
        let since = |before: u64, after: u64| after.checked_sub(before).unwrap_or(after);
        Self {
            ready: 0,
            received: since(before.received, self.received),
            delivered: since(before.delivered, self.delivered),
            settled: since(before.settled, self.settled),
            dead_lettered: since(before.dead_lettered, self.dead_lettered),
            failures: since(before.failures, self.failures),
            rejected: since(before.rejected, self.rejected),
        }
    }

    fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.dead_lettered += other.dead_lettered;
        self.failures += other.failures;
        self.rejected += other.rejected;
    }
}

/// A count over the last 30 to 60 seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RecentCount {
    before: u64,
    current: u64,
    turned_at: u64,
}

impl RecentCount {
    fn add(&mut self, count: u64, now: Timestamp) {
        let half = RECENT_HALF.as_millis() as u64;
        let age = now.0.saturating_sub(self.turned_at);
        if age >= half {
            self.before = if age < 2 * half { self.current } else { 0 };
            (self.current, self.turned_at) = (0, now.0);
        }
        self.current += count;
    }

    pub(crate) fn get(&self) -> u64 {
        self.before + self.current
    }
}

/// The tracks of all queues that have ever moved.
#[derive(Debug, Default)]
pub(crate) struct QueueTracks {
    tracks: HashMap<Arc<QueueAddress>, QueueTrack>,
    is_primed: bool,
    updated_at: Timestamp,
}

impl QueueTracks {
    /// Adds samples, and returns the sum over all queues. The first samples must be of all queues: what later ones show of an
    /// unknown queue has happened since.
    pub(crate) fn update(&mut self, samples: &[QueueSample], now: Timestamp) -> Totals {
        let mut moved = Counts::default();
        let (mut delayed, mut in_flight) = (0, 0);
        for sample in samples {
            let counts = Counts::of(sample);
            let from = if self.is_primed { Counts::default() } else { counts };
            let track =
                self.tracks.entry(Arc::clone(&sample.queue)).or_insert_with(|| QueueTrack::new(from, now));
            moved.add(&counts.since(&track.last));
            moved.ready += sample.ready;
            delayed += sample.delayed;
            in_flight += sample.in_flight;
            track.update(counts, now);
        }
        self.is_primed = true;
        let elapsed = now.since(self.updated_at).as_secs_f64();
        self.updated_at = now;
        let rate = |count: u64| if elapsed > 0.0 { rounded(count as f64 / elapsed) } else { 0.0 };
        Totals {
            received: rate(moved.received),
            delivered: rate(moved.delivered),
            settled: rate(moved.settled),
            dead_lettered: rate(moved.dead_lettered),
            rejected: rate(moved.rejected),
            ready: moved.ready,
            delayed,
            in_flight,
        }
    }

    /// Forgets all queues but these.
    pub(crate) fn keep_only(&mut self, existing: &[QueueSample]) {
        let existing: HashSet<&QueueAddress> = existing.iter().map(|sample| &*sample.queue).collect();
        self.tracks.retain(|queue, _| existing.contains(&**queue));
    }

    pub(crate) fn get(&self, queue: &QueueAddress) -> Option<&QueueTrack> {
        self.tracks.get(queue)
    }
}

impl QueueTrack {
    fn new(counts: Counts, now: Timestamp) -> Self {
        Self {
            window_start: now,
            window: counts,
            last: counts,
            rates: QueueRates::default(),
            settled_at: now,
            dead_lettered: RecentCount::default(),
            failures: RecentCount::default(),
            rejected: 0,
        }
    }

    fn update(&mut self, counts: Counts, now: Timestamp) {
        let moved = counts.since(&self.last);
        if moved.settled > 0 {
            self.settled_at = now;
        }
        self.dead_lettered.add(moved.dead_lettered, now);
        self.failures.add(moved.failures, now);
        self.rejected = moved.rejected;
        let elapsed = now.since(self.window_start);
        if elapsed >= WINDOW {
            let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
            let moved = counts.since(&self.window);
            self.rates = QueueRates {
                received: per_second(moved.received),
                delivered: per_second(moved.delivered),
                settled: per_second(moved.settled),
                growth: (counts.ready as f64 - self.window.ready as f64) / elapsed.as_secs_f64(),
            };
            (self.window_start, self.window) = (now, counts);
        }
        self.last = counts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recent_count_forgets_after_a_minute() {
        let mut count = RecentCount::default();
        let start = 1_000_000;
        count.add(5, Timestamp(start));
        count.add(0, Timestamp(start + 29_000));
        assert_eq!(count.get(), 5);
        count.add(2, Timestamp(start + 31_000));
        assert_eq!(count.get(), 7, "the previous half is still recent");
        count.add(0, Timestamp(start + 62_000));
        assert_eq!(count.get(), 2);
        count.add(0, Timestamp(start + 500_000));
        assert_eq!(count.get(), 0, "both halves are long over");
    }

    #[test]
    fn rates_are_those_of_the_last_window() {
        let at = |received: u64, settled: u64, ready: u64| Counts {
            received,
            settled,
            ready,
            ..Counts::default()
        };
        let mut track = QueueTrack::new(at(100, 50, 50), Timestamp(10_000));
        track.update(at(150, 60, 90), Timestamp(11_000));
        assert_eq!(track.rates, QueueRates::default(), "the window is not over");
        track.update(at(200, 70, 130), Timestamp(12_000));
        let expected = QueueRates { received: 50.0, delivered: 0.0, settled: 10.0, growth: 40.0 };
        assert_eq!(track.rates, expected);
        track.update(at(200, 70, 130), Timestamp(14_000));
        assert_eq!(track.rates, QueueRates::default());
        assert_eq!(track.settled_at, Timestamp(12_000));
    }

    #[test]
    fn counters_of_a_queue_created_again_count_from_zero() {
        let mut track =
            QueueTrack::new(Counts { rejected: 9, dead_lettered: 7, ..Counts::default() }, Timestamp(1));
        track.update(Counts { rejected: 2, dead_lettered: 3, ..Counts::default() }, Timestamp(2));
        assert_eq!((track.rejected, track.dead_lettered.get()), (2, 3));
    }
}
