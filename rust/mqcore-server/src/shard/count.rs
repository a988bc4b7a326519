//! How many shards a server can have.

/// Maximum shards: connections store the shards that wait for them as bits of a `u16`.
pub const SHARDS_MAX: usize = 16;
