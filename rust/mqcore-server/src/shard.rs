//! The task that owns one shard of the broker.
//!
//! | module | contents |
//! |---|---|
//! | `count` | the maximum number of shards |
//! | `inbox` | the input of a shard and its limit |
//! | `engine` | the task: drains the inbox, runs the broker, carries out its effects |
//! | `staging` | output of one batch of effects, by connection |
//! | `journal` | records and reads for the thread that writes the journal |
//! | `peers` | effects on other shards |
//! | `handlers` | questions to handlers |
//! | `program` | declarations and requests of the program, and their answers |
//! | `questions` | questions to handlers that have no answer yet |
//! | `statistics` | statistics that are collected in steps |

pub(crate) mod count;
pub(crate) mod engine;
pub(crate) mod handlers;
pub(crate) mod inbox;
pub(crate) mod journal;
pub(crate) mod peers;
pub(crate) mod program;
pub(crate) mod questions;
pub(crate) mod staging;
pub(crate) mod statistics;
