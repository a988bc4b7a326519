//! How long something took, as a distribution.

use std::sync::atomic::{AtomicU64, Ordering};

/// The upper bounds of the classes in microseconds, inclusive. One more class has no bound.
pub const BOUNDS: [u64; 22] = [
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
];

const CLASSES: usize = BOUNDS.len() + 1;

/// Counts of durations by class, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durations {
    counts: [u64; CLASSES],
    micros: u64,
}

impl Durations {
    /// Counts one duration.
    pub fn add(&mut self, micros: u64) {
        self.counts[class_of(micros)] += 1;
        self.micros += micros;
    }

    /// Adds those of another distribution.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        self.micros += other.micros;
    }

    /// How many there are in each class: those of [`BOUNDS`], and then the one without a bound.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum in microseconds.
    #[must_use]
    pub fn micros(&self) -> u64 {
        self.micros
    }
}

/// A distribution that several threads add to.
#[derive(Debug, Default)]
pub struct SharedDurations {
    counts: [AtomicU64; CLASSES],
    micros: AtomicU64,
}

impl SharedDurations {
    /// Counts one duration.
    pub fn add(&self, micros: u64) {
        self.counts[class_of(micros)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The distribution so far. A duration that is added meanwhile may be in the sum only, or in its class only.
    #[must_use]
    pub fn get(&self) -> Durations {
        Durations {
            counts: std::array::from_fn(|class| self.counts[class].load(Ordering::Relaxed)),
            micros: self.micros.load(Ordering::Relaxed),
        }
    }
}

fn class_of(micros: u64) -> usize {
    BOUNDS.partition_point(|bound| *bound < micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_class_whose_bound_it_does_not_exceed() {
        let (mut own, shared) = (Durations::default(), SharedDurations::default());
        for micros in [0, 10, 11, 1_000, 300_000_000, 300_000_001, u64::from(u32::MAX)] {
            own.add(micros);
            shared.add(micros);
        }
        assert_eq!(own, shared.get());
        let found: Vec<_> = own.counts().iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(found, [(0, &2), (1, &1), (6, &1), (21, &1), (22, &2)]);
        assert_eq!((own.count(), own.micros()), (7, 600_001_022 + u64::from(u32::MAX)));
        let mut twice = own;
        twice.merge(&own);
        assert_eq!((twice.count(), twice.micros()), (2 * own.count(), 2 * own.micros()));
    }
}
