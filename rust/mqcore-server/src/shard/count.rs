//! How many shards a server can have.

/// Shards at most: connections remember in the bits of a small number which shards wait for them.
pub const SHARDS_MAX: usize = 16;
