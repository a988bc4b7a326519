//! The client side of mqcore: connect, publish, consume, pull and request; reconnect and restore subscriptions.
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
//! The address selects the protocol; publishing, consuming and settling are the same in all of them. An operation that
//! a protocol lacks returns [`error::ClientError::NotSupported`]. [`throttr`], which has neither queues nor receipts,
//! is a separate client with the same addresses, TLS and errors.
//!
//! The client keeps joined channels and event subscriptions as *intents*, and requests them again first after every
//! connect. Requests in flight when a connection is lost fail with [`error::ClientError::ConnectionLost`]: the client
//! sends nothing twice unless the caller allows it.

pub mod address;
pub mod admin;
pub mod client;
pub mod config;
pub mod confirmations;
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
mod immediate;
mod lingering;
mod mailbox;
pub mod membership;
mod message_id;
pub mod micromessage;
pub mod models;
pub mod mqks;
mod pending;
mod post;
pub mod publish;
pub mod publish_now;
pub mod pull;
pub mod pull_stream;
mod random;
pub mod received;
pub mod request;
mod route;
mod shared;
mod socket_writer;
mod standing;
pub mod state;
pub mod throttr;
mod waiter;
