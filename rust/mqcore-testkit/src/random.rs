//! Random numbers that follow from a seed.

use fastrand::Rng;

/// The random generator of tests and simulations: the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Random(Rng);

impl Random {
    /// Creates a generator from a seed, for example one of [`crate::seeds`].
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// A number of 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number from 0 to `bound - 1`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound.max(1))
    }

    /// An index into a list of `length` elements; 0 if `length` is 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.0.usize(..length.max(1))
    }

    /// True with probability 1 / `bound`.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    /// True in `percent` of 100 calls.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Bytes of a random length from 0 to `most`.
    pub fn bytes(&mut self, most: u64) -> Vec<u8> {
        let (length, fill) = (self.below(most + 1), self.number());
        (0..length).map(|at| (fill >> (at % 8 * 8)) as u8 ^ at as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers() {
        let (mut one, mut two, mut other) = (Random::new(7), Random::new(7), Random::new(8));
        let numbers: Vec<u64> = (0..100).map(|_| one.number()).collect();
        assert!(numbers.iter().all(|number| two.number() == *number));
        assert!(numbers.iter().any(|number| other.number() != *number));
    }

    #[test]
    fn numbers_stay_below_their_bound() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(3) < 3 && random.index(5) < 5 && random.bytes(9).len() <= 9));
        assert_eq!((random.below(0), random.index(0)), (0, 0));
        assert!((0..100).all(|_| random.one_in(1) && random.percent(100) && !random.percent(0)));
    }
}
