//! Sockets: accepting, reading, writing, and their shared state.
//!
//! | module | contents |
//! |---|---|
//! | `listener` | one task for each listener: binding and accepting |
//! | `connection` | one task for each connection: reads, feeds its session, writes |
//! | `outbox` | frames and events that wait to be written to one connection |
//! | `output` | encoded bytes to be written to one socket |
//! | `registry` | every open connection of the server |
//! | `input_budget` | limits on frames of which peers have sent a part |
//! | [`descriptors`] | file descriptors that connections leave to the journal |
//! | [`guard`] | limits on connecting and publishing |
//! | `tls` | certificates of encrypted listeners |
//! | `tls_accept` | handshakes with clients |
//! | `handshakes` | how many handshakes are in progress |
//! | `unix_socket` | Unix domain sockets |

pub mod descriptors;
pub mod guard;

pub(crate) mod connection;
pub(crate) mod handshakes;
pub(crate) mod input_budget;
pub(crate) mod listener;
pub(crate) mod outbox;
pub(crate) mod output;
pub(crate) mod registry;
pub(crate) mod tls;
pub(crate) mod tls_accept;
#[cfg(unix)]
pub(crate) mod unix_socket;
