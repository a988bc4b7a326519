//! The whole broker in one thread, from one seed, in virtual time.
//!
//! A seed determines a [`scenario::Scenario`]: queues with random options, clients, and a list of steps such as publishes, cut
//! connections and power losses. [`run::run`] executes it. The sessions, the shards and the journals are those of the real
//! broker; the network, the disk, the clock and the tasks between them are simulated. An [`oracle::Oracle`] records what
//! clients see at their end of the network and compares it with the promises.
//!
//! The same scenario always gives the same run, to the last byte: a failing seed can be replayed and [`shrink`]s.
//!
//! | module | contents |
//! |---|---|
//! | [`scenario`] | what a seed chooses |
//! | [`run`] | the event loop: time, steps and faults |
//! | [`oracle`] | what clients may see |
//! | [`shrink`] | fewer steps with the same finding |
//! | [`trace`] | what happened, as lines and as a hash |
//! | `scene`, `agenda`, `time` | everything outside the broker; events by virtual time |
//! | `network` | byte streams with delays, cuts and silence |
//! | `process`, `sessions` | one life of the broker, from its start to a crash; what its sessions share |
//! | `handlers` | the program that decides for delivery handlers |
//! | `shard`, `journal`, `limits`, `schedules`, `connection` | the tasks and threads of the server, as steps of the event loop |
//! | `client` | peers that speak the broker's protocols |

#![forbid(unsafe_code)]

mod agenda;
mod client;
mod connection;
mod handlers;
mod inbox;
mod journal;
mod limits;
mod network;
pub mod oracle;
mod process;
pub mod run;
pub mod scenario;
mod scene;
mod schedules;
mod sessions;
mod shard;
pub mod shrink;
mod time;
pub mod trace;
