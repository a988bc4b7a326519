//! The decisions of mqcore: channels, queues, deliveries and events as one pure state machine.
//!
//! A [`broker::Broker`] is one shard's whole state. It is given commands, answers and the time, and it writes
//! down [`effect::Effect`]s for somebody else to carry out. It never waits, never reads a clock, and knows
//! neither protocol nor file nor thread; so every behaviour of a queue can be tested by calling functions.
//!
//! | module | what lives there |
//! |---|---|
//! | [`id`], [`time`], [`client`] | names, numbers, moments, peers |
//! | [`message`], [`options`], [`rejection`] | what is published, how queues behave, how the broker says no |
//! | [`decision`], [`policy`] | what handlers answer; ready-made answers |
//! | [`topic`], [`router`], [`routing`] | names that fan out; what maps messages to queues, clients and topics, and how |
//! | [`command`], [`effect`], [`stats`] | what comes in, what goes out, what is counted |
//! | [`unique`] | messages of which a queue has one at a time |
//! | [`record`], [`history`] | what must survive a crash; what happened to each message |

pub mod bindings;
pub mod broker;
mod channel;
pub mod client;
pub mod command;
pub mod decision;
mod delayed;
mod delivery;
mod directory;
mod dispatch;
pub mod effect;
pub mod filter;
pub mod history;
pub mod id;
pub mod intake;
mod members;
pub mod message;
pub mod nodes;
pub mod options;
pub mod packing;
pub mod policy;
mod pulling;
mod queue;
pub mod rate;
mod ready;
pub mod record;
pub mod rejection;
pub mod router;
pub mod routing;
mod settlement;
mod shelf;
pub mod sighting;
pub mod stats;
pub mod subscription;
pub mod time;
pub mod topic;
mod travel;
mod turn;
pub mod unique;
mod unread;
mod workflow;
