//! How many shards a server can have, and how names are spread over them.

use std::hash::{BuildHasher, Hasher, RandomState};

use mqcore_broker::model::placement::PlacementKey;

/// Maximum shards: connections store the shards that wait for them as bits of a `u16`.
pub const SHARDS_MAX: usize = 16;

/// A random key for the placement of names.
pub(crate) fn random_key() -> PlacementKey {
    // The standard library's hasher is keyed with random data from the system, which is sufficient here.
    PlacementKey([0, 1].map(|_| RandomState::new().build_hasher().finish()))
}
