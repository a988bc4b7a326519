//! Conversations with a TMQP/2.0 session: bytes and events in, commands and bytes out, and a clock that jumps.
//!
//! Where a vector of `tests/vectors/tmqp.jsonl` shows what a server says or hears, it is what is compared with.

mod direct;
mod events;
mod handshake;
mod keep_alive;
mod nodes;
mod operations;
mod pulls;
mod queues;
mod routers;
mod rules;
mod talk;
mod topics;
