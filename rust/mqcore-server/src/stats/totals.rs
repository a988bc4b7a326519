//! How the broker as a whole moved: its rates and contents, second by second at first, coarser for older times.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Rates per second, and contents.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Totals {
    pub(crate) received: f64,
    pub(crate) delivered: f64,
    pub(crate) settled: f64,
    pub(crate) dead_lettered: f64,
    pub(crate) rejected: f64,
    pub(crate) ready: u64,
    pub(crate) delayed: u64,
    pub(crate) in_flight: u64,
}

/// Totals at a time in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct TotalsAt {
    pub(crate) at_ms: u64,
    #[serde(flatten)]
    pub(crate) totals: Totals,
}

/// The steps of the rings in milliseconds, and how many each keeps: ten minutes, six hours, seven days.
pub(crate) const RESOLUTIONS: [(u64, usize); 3] = [(1_000, 600), (10_000, 2_160), (300_000, 2_016)];

/// A sample so much before the end of a step ends it: rounds are not exactly a second apart.
const EARLY_MS: u64 = 500;

/// The samples of one resolution.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Ring {
    samples: VecDeque<TotalsAt>,
    /// Samples since the last step, which become one.
    #[serde(skip)]
    pending: Vec<TotalsAt>,
}

impl Ring {
    fn push(&mut self, sample: TotalsAt, (step_ms, capacity): (u64, usize)) {
        self.pending.push(sample);
        let last = self.samples.back().map_or(0, |last| last.at_ms);
        if sample.at_ms.saturating_sub(last) + EARLY_MS < step_ms {
            return;
        }
        self.samples.push_back(TotalsAt { at_ms: sample.at_ms, totals: combine(&self.pending) });
        self.pending.clear();
        if self.samples.len() > capacity {
            self.samples.pop_front();
        }
    }
}

/// A rate with three decimals. It is the same after it was saved as text and loaded again.
pub(crate) fn rounded(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

/// The mean of the rates, and the latest contents.
fn combine(samples: &[TotalsAt]) -> Totals {
    let count = samples.len().max(1) as f64;
    let mean = |of: fn(&Totals) -> f64| {
        rounded(samples.iter().map(|sample| of(&sample.totals)).sum::<f64>() / count)
    };
    Totals {
        received: mean(|totals| totals.received),
        delivered: mean(|totals| totals.delivered),
        settled: mean(|totals| totals.settled),
        dead_lettered: mean(|totals| totals.dead_lettered),
        rejected: mean(|totals| totals.rejected),
        ..samples.last().map(|sample| sample.totals).unwrap_or_default()
    }
}

/// The file in the data directory, and the one that replaces it.
const FILE: &str = "totals.json";
const NEW_FILE: &str = "totals.json.new";

/// The rings, from the finest to the coarsest.
#[derive(Debug, Default)]
pub(crate) struct TotalsHistory(Mutex<[Ring; RESOLUTIONS.len()]>);

impl TotalsHistory {
    fn rings(&self) -> MutexGuard<'_, [Ring; RESOLUTIONS.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, now: Timestamp, totals: Totals) {
        let sample = TotalsAt { at_ms: now.0, totals };
        for (ring, resolution) in self.rings().iter_mut().zip(RESOLUTIONS) {
            ring.push(sample, resolution);
        }
    }

    /// Samples after `since_ms`, from the finest ring that reaches so far back.
    pub(crate) fn since(&self, since_ms: u64) -> Vec<TotalsAt> {
        let rings = self.rings();
        let reaches = |ring: &&Ring| ring.samples.front().is_some_and(|first| first.at_ms <= since_ms);
        let ring = rings.iter().find(reaches).unwrap_or(&rings[RESOLUTIONS.len() - 1]);
        // A young broker has no ring that reaches back; the finest then has most.
        let ring = if reaches(&ring) { ring } else { &rings[0] };
        ring.samples.iter().filter(|sample| sample.at_ms > since_ms).copied().collect()
    }

    /// Samples of one resolution, the oldest first.
    pub(crate) fn all(&self, resolution: usize) -> Vec<TotalsAt> {
        self.rings()[resolution].samples.iter().copied().collect()
    }

    /// Saves the rings, so that charts survive a restart. A power failure may lose them.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(&*self.rings())?;
        let (new, file) = (directory.join(NEW_FILE), directory.join(FILE));
        write_private(&new, &text)?;
        std::fs::rename(new, file)
    }

    /// Loads what an earlier broker saved. A missing or unreadable file changes nothing.
    pub(crate) fn load(&self, directory: &Path) {
        let Ok(text) = std::fs::read(directory.join(FILE)) else { return };
        let Ok(mut loaded) = serde_json::from_slice::<[Ring; RESOLUTIONS.len()]>(&text) else { return };
        for (ring, (_, capacity)) in loaded.iter_mut().zip(RESOLUTIONS) {
            let excess = ring.samples.len().saturating_sub(capacity);
            ring.samples.drain(..excess);
        }
        *self.rings() = loaded;
    }
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(received: f64, ready: u64) -> Totals {
        Totals { received, ready, ..Totals::default() }
    }

    const START: u64 = 1_800_000_000_000;

    #[test]
    fn older_times_are_kept_as_means_of_rates_and_latest_contents() {
        let history = TotalsHistory::default();
        for second in 0..3_600 {
            history.push(Timestamp(START + second * 1000), totals(second as f64, second));
        }
        assert_eq!(history.all(0).len(), 600, "ten minutes of seconds");
        let coarse = history.all(1);
        assert_eq!(coarse.len(), 360);
        let (first, second) = (coarse[1], coarse[2]);
        assert_eq!(second.at_ms - first.at_ms, 10_000);
        assert_eq!(second.totals.received - first.totals.received, 10.0);
        assert_eq!(second.totals.ready - first.totals.ready, 10);
        assert_eq!(history.all(2).len(), 12);
    }

    #[test]
    fn samples_since_a_time_come_from_the_finest_ring_that_reaches_so_far() {
        let history = TotalsHistory::default();
        for second in 0..1_200 {
            history.push(Timestamp(START + second * 1000), totals(1.0, second));
        }
        let recent = history.since(START + 1_190_000);
        assert_eq!(
            recent.iter().map(|sample| sample.totals.ready).collect::<Vec<_>>(),
            (1_191..1_200).collect::<Vec<_>>()
        );
        let long_ago = history.since(START + 100_000);
        assert_eq!(long_ago[1].at_ms - long_ago[0].at_ms, 10_000);
        assert_eq!(history.since(0).len(), 600, "nothing reaches back to 1970; the finest has most");
    }

    #[test]
    fn a_restart_continues_with_what_was_saved_and_survives_a_damaged_file() {
        let directory = tempfile::tempdir().unwrap();
        let (before, after) = (TotalsHistory::default(), TotalsHistory::default());
        before.push(Timestamp(START), totals(5.0, 7));
        before.save(directory.path()).unwrap();
        after.load(directory.path());
        assert_eq!(after.all(0), before.all(0));
        std::fs::write(directory.path().join(FILE), "[{").unwrap();
        after.load(directory.path());
        assert_eq!(after.all(0), before.all(0));
        TotalsHistory::default().load(&directory.path().join("missing"));
    }
}
