//! Sockets, tasks, threads and the clock around the broker: the only crate that waits.
//!
//! ```text
//!  listener --spawns--> connection --batches--> engine (one a shard) --questions--> HandlerPort
//!                          ^  outbox <--frames, events--'   ^-------------answers-------'
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | configuration: limits, listeners, storage |
//! | [`server`] | start, inspect, settle, stop |
//! | [`handler`] | the interface to delivery handlers |
//! | [`extension`] | the interface to a program that handles frames of vendor extensions |
//! | [`spans`] | spans of traced messages that wait for their export |
//! | [`authority`] | logins, permissions of each connection, the audit log |
//! | [`nodes`] | links to other brokers, and forwarding |
//! | [`schedules`] | recurring messages and jobs |
//! | [`storage`] | the data directory: journals, backups, history, inspection |
//! | [`stats`] | counters, metrics, recent failures |
//! | [`net`] | sockets: listeners, connections, TLS, limits on them |
//! | `shard` | the task that owns one shard of the broker |
//! | `attention` | what an operator should look at, and how to repair it |
//! | `limits` | the store of rate limits, its sweeper and its journal |
//! | `runtime` | clock, shutdown, wakers, spare buffers |
//! | `hub` | the state that all tasks of one server share |
//! | `admin` | the HTTP side: metrics, queues, backups, history, schedules |
//!
//! A panic in a connection's task ends that connection. A panic in a shard's task ends the server, because the state
//! of that shard is lost.

pub mod authority;
pub mod config;
pub mod extension;
pub mod handler;
pub mod net;
pub mod nodes;
pub mod schedules;
pub mod server;
pub mod spans;
pub mod stats;
pub mod storage;

mod admin;
mod attention;
mod hub;
mod limits;
mod runtime;
mod shard;
