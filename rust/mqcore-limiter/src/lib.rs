//! A rate limiter: expiring counters and buffers in a store shared by many threads, and the rules by which quotas are spent.
//!
//! The crate uses no socket, file or clock. Each call takes the current time as an argument, in nanoseconds of a monotonic
//! clock. The store does not depend on what a value means or which protocol carries it.
//!
//! The store is split into [`limiter::SHARDS`] shards by the hash of the key, each behind a lock that is held for one step.
//! The time under a lock does not grow with the number of entries: full hash tables are split instead of copied, entries
//! live in small chunks, and a bounded number of expired entries is removed at a time. An entry whose deadline has passed is
//! invisible from that moment, whether or not it was already removed.
//!
//! | module | content |
//! |---|---|
//! | [`limiter`] | the store's public interface |
//! | [`rule`] | fixed window, sliding window and GCRA as pure functions |
//! | [`owner`] | the owners of entries, which may have a limited number of them |
//! | [`creation`] | the properties and the owner of a new entry |
//! | [`hasher`] | how keys are hashed |
//! | [`listing`] | iteration over all entries in order of creation, without blocking other threads |
//! | [`change`] | changes for persistence, and the entries to restore |
//! | [`record`] | the binary format of a persisted entry |
//! | [`time`] | nanoseconds, and times to live with their unit |
//! | `divisor` | exact repeated division by the same number |
//! | `run` | consecutive steps by one caller |
//! | `shard` | one shard of the store |
//! | `arena`, `index`, `wheel`, `entry`, `uses` | the data structures of a shard |

pub mod change;
pub mod creation;
pub mod hasher;
pub mod limiter;
pub mod listing;
pub mod owner;
pub mod record;
pub mod rule;
pub mod time;

mod arena;
mod divisor;
mod entry;
mod index;
mod listed;
mod run;
mod several;
mod shard;
mod uses;
mod wheel;
