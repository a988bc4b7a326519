//! The decisions of mqcore: channels, queues, deliveries and events as one pure state machine.
//!
//! A [`shard::Broker`] is one shard's whole state. It takes commands, answers and the time, and appends
//! [`model::effect::Effect`]s for its caller to carry out. It never waits, never reads a clock, and knows neither
//! protocols nor files nor threads. So every behavior of a queue can be tested by calling functions.
//!
//! Each folder knows only those below it:
//!
//! | folder | contents |
//! |---|---|
//! | [`shard`] | the broker of one shard: channels, clients, requests, the steps of routes |
//! | `queue`, `routing` | one queue and its deliveries; routers, topics and bindings |
//! | `context` | what every step needs: the time, the state of the shard, the effects |
//! | [`spans`] | the spans of traced messages |
//! | [`history`] | the lifecycle of each message, encoded |
//! | [`model`] | plain values: commands, effects, messages, names, options, records |

mod context;
pub mod history;
pub mod model;
mod queue;
mod routing;
pub mod shard;
pub mod spans;
