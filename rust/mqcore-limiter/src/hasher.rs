//! How keys are hashed.

use std::hash::{BuildHasher, DefaultHasher, RandomState};

/// Makes the hashes of keys.
#[derive(Debug, Clone)]
pub enum KeyHasher {
    /// With a secret seed, clients cannot choose keys that collide.
    Secret(RandomState),
    /// The same hashes in every process, so that a store lists and saves its entries in the same order. For simulations.
    Repeatable,
}

impl From<RandomState> for KeyHasher {
    fn from(seed: RandomState) -> Self {
        Self::Secret(seed)
    }
}

impl BuildHasher for KeyHasher {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        match self {
            Self::Secret(seed) => seed.build_hasher(),
            Self::Repeatable => DefaultHasher::new(),
        }
    }
}
