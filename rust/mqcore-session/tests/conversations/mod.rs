//! Conversations with a TMQP/2.0 session: bytes and events in, commands and bytes out, and a simulated clock.
//!
//! The expected bytes are the vectors of `tests/vectors/tmqp.jsonl` where one exists.

mod direct;
mod events;
mod handshake;
mod keep_alive;
mod lists;
mod nodes;
mod operations;
mod pulls;
mod queues;
mod routers;
mod rules;
mod talk;
mod topics;
