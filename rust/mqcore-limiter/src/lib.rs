//! Counters and buffers that expire: a store that many threads share, and the rules by which quotas are spent.
//!
//! No socket, no file, no clock: the time is an argument of every call, in nanoseconds of a clock that never runs
//! backwards. What a value is good for, and on which wire it travels, is not known here.
//!
//! The store is split into [`limiter::SHARDS`] parts by the hash of the key, each behind a lock that is held for one
//! step. Nothing that happens under a lock grows with what is stored: tables split when they are full instead of being
//! copied as a whole, entries live in small chunks, and what has expired is taken away a bounded number at a time. An
//! entry whose deadline has come is gone for everybody in that moment, whether it was taken away yet or not.
//!
//! | module | what lives there |
//! |---|---|
//! | [`limiter`] | the store as its users see it |
//! | [`rule`] | fixed window, sliding window and GCRA as pure functions |
//! | [`listing`] | everything that is stored, in the order in which it came, without stopping anybody |
//! | [`change`] | what persistence needs: what has changed, and how it is put back |
//! | [`record`] | an entry as bytes, to be kept anywhere |
//! | [`time`] | nanoseconds, and times to live with their unit |
//! | `divisor` | exact division by the same number again and again |
//! | `shard` | one part of the store |
//! | `arena`, `index`, `wheel`, `entry`, `uses` | what a part is made of |

pub mod change;
pub mod limiter;
pub mod listing;
pub mod record;
pub mod rule;
pub mod time;

mod arena;
mod divisor;
mod entry;
mod index;
mod shard;
mod uses;
mod wheel;
