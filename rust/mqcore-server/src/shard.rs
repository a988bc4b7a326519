//! The task that owns one shard of the broker.
//!
//! | module | contents |
//! |---|---|
//! | `count` | how many shards there can be |
//! | `inbox` | what can be sent to a shard, and how much of it |
//! | `engine` | the task: drains the inbox, runs the broker, carries out its effects |
//! | `staging` | what one batch of effects sends to connections |
//! | `journal` | records and reads for the thread that writes the journal |
//! | `peers` | what goes to other shards |
//! | `handlers` | questions to handlers |
//! | `questions` | questions to handlers that have no answer yet |

pub(crate) mod count;
pub(crate) mod engine;
pub(crate) mod handlers;
pub(crate) mod inbox;
pub(crate) mod journal;
pub(crate) mod peers;
pub(crate) mod questions;
pub(crate) mod staging;
