//! Sockets, tasks, threads and the clock around the broker: the one room that waits.

pub mod config;
pub mod handler;
pub mod server;
