//! Sockets, tasks, threads and the clock around the broker: the one room that waits.
//!
//! ```text
//!  listener --spawns--> connection --batches--> engine (one a shard) --questions--> HandlerPort
//!                          ^  outbox <--frames, events--'   ^-------------answers-------'
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`], [`address`] | what a server is started with, and where it listens |
//! | [`server`] | start, look, settle, stop |
//! | [`authority`] | who may do what: logins, the gate of each connection, the audit log |
//! | [`guard`] | limits on publishing and connecting |
//! | [`handler`] | the seam behind which delivery handlers run |
//! | [`extension`] | the seam behind which a program handles the frames of vendors' extensions |
//! | `listener`, `connection`, `output` | sockets: accepting, reading, writing |
//! | `tls` | what encrypted listeners show, and handshakes |
//! | [`nodes`] | this broker among others: what is passed on, and the links to its masters |
//! | `outbox` | what waits for one connection to be written |
//! | `engine`, `staging`, `questions` | a shard's task, what its turn sends, what it asked |
//! | `journal_writer`, `data_dir` | the thread that writes a shard's records down, and where they are kept |
//! | `archiver` | the thread that carries history over to Parquet files |
//! | [`inspection`], [`compaction`] | the same place, looked at and made small while no broker uses it |
//! | [`export`] | what is in there as one file of rows |
//! | [`backup`], [`archive`], `admin_backup` | a copy of that place while the broker works; as a stream; by HTTP |
//! | [`history`], `admin_history` | what happened to messages, read beside the broker; by HTTP |
//! | `shard`, `hub`, `registry`, `spares` | how tasks reach each other, and what they share |
//! | `shutdown`, `clock` | stopping, and time |
//! | [`failures`] | the last requests that could not be done |
//! | `counters`, `survey`, `metrics`, `admin` | numbers, and HTTP to look at them |
//! | [`schedules`], `admin_schedules` | what is to run again and again; by HTTP |
//!
//! A panic in a connection's task ends that connection; one in a shard's task ends the server, because what that shard
//! knew is lost.

pub mod address;
pub mod archive;
pub mod authority;
pub mod backup;
pub mod compaction;
pub mod config;
pub mod data_dir;
pub mod export;
pub mod extension;
pub mod failures;
pub mod guard;
pub mod handler;
pub mod history;
pub mod inspection;
pub mod nodes;
pub mod schedules;
pub mod server;

mod admin;
mod admin_backup;
mod admin_history;
mod admin_schedules;
mod admin_trace;
mod archiver;
mod bell;
mod body_reader;
mod clock;
mod connection;
mod counters;
mod engine;
mod hub;
mod journal_writer;
mod limits;
mod listener;
mod metrics;
mod outbox;
mod output;
mod questions;
mod registry;
mod shard;
mod shutdown;
mod spares;
mod staging;
mod survey;
mod tls;
#[cfg(unix)]
mod unix_socket;
