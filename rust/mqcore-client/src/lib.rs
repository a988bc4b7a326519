//! The client side of mqcore: connect, publish, consume, pull, ask; reconnect and take up the work again.
//!
//! ```text
//! client, publish, consume, pull, direct, event, admin    what a program calls
//!        |                                    ^
//!        v                                    |
//! conversation: one peer's frames, without IO and without a clock
//!        ^                                    |
//!        |                                    v
//! connection: one task that dials, reads, writes, keeps alive and reconnects
//! ```
//!
//! [`throttr`] is the client of another protocol, with the same addresses, TLS and errors.
//!
//! What the program wants to stand (joined channels, event subscriptions) is kept as *intent* and told to the
//! broker again after every connect, before anything else. What was merely under way when a connection was lost
//! fails with [`error::ClientError::ConnectionLost`]: nothing is sent twice unless the caller allowed it.

pub mod address;
pub mod admin;
pub mod client;
pub mod config;
mod connection;
pub mod consume;
pub mod conversation;
mod dial;
pub mod direct;
pub mod error;
pub mod event;
mod mailbox;
pub mod membership;
pub mod models;
pub mod publish;
pub mod pull;
mod random;
pub mod received;
pub mod request;
mod route;
mod shared;
pub mod throttr;
