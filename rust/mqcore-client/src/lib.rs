//! The client side of mqcore: connect, publish, consume, pull, ask; reconnect and take up the work again.
//!
//! ```text
//! client, publish, consume, pull, direct, event, admin, ...    what a program calls
//!        |                                    ^
//!        v                                    |
//! dialogue: conversation (TMQP), mqks or micromessage, one peer's frames without IO and without a clock
//!        ^                                    |
//!        |                                    v
//! connection: one task that dials, reads, writes, keeps alive and reconnects
//! ```
//!
//! The address says what is spoken; a program publishes, consumes and settles in the same way whatever that is. What a
//! protocol lacks is refused with [`error::ClientError::NotSupported`]. [`throttr`], which has neither queues nor
//! receipts, is a client of its own with the same addresses, TLS and errors.
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
mod consumption;
pub mod conversation;
mod counters;
mod dial;
mod dialogue;
pub mod direct;
pub mod error;
pub mod event;
mod mailbox;
pub mod membership;
mod message_id;
pub mod micromessage;
pub mod models;
pub mod mqks;
pub mod publish;
pub mod pull;
mod random;
pub mod received;
pub mod request;
mod route;
mod shared;
mod standing;
pub mod state;
pub mod throttr;
mod waiter;
