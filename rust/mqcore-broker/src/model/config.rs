//! What a shard, its handlers and its history start with.

use std::time::Duration;

use crate::model::decision::{Acknowledge, Decision, PutBack, Steps};
use crate::model::options::ChannelOptions;
use crate::model::policy::Policy;

/// What a shard is told when it starts.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// This shard's number, below `shards`. Number 0 is home to all clients.
    pub shard: usize,
    /// How many shards there are.
    pub shards: usize,
    /// What channels, and through them queues, start with.
    pub channel: ChannelOptions,
    /// Publishing to, or joining, a missing channel creates it. Default no.
    pub auto_create_channels: bool,
    /// Publishing to a missing queue creates it. Default no.
    pub auto_create_queues: bool,
    /// Clients connected at most; zero: no limit. Default zero.
    pub client_limit: u32,
    /// Channels of this shard at most; zero: no limit. Default zero.
    pub channel_limit: u32,
    /// The key of the handler or policy of queues whose channel names none. Default `memory`.
    pub delivery_handler: Box<str>,
    /// How long a consumer may be unable to take more before its connection is closed. Default 30 s.
    pub slow_consumer_timeout: Duration,
    /// Messages of one queue that may wait for a handler's decision; more are refused as busy. Default 100,000.
    pub undecided_max: usize,
    /// Octets of saved messages that may wait in the memory of this shard. Above it, the bodies that are furthest from
    /// being handed out leave memory, and are asked for before they are needed. Default 256 MiB.
    pub memory_watermark: u64,
    /// Whether, and how, what happens to each message is written down: [`Broker::take_history`]. Default no.
    pub history: Option<HistoryOptions>,
    /// Makes generated ids unguessable and unique: random, different for each start and shard.
    pub seed: u64,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            shard: 0,
            shards: 1,
            channel: ChannelOptions::default(),
            auto_create_channels: false,
            auto_create_queues: false,
            client_limit: 0,
            channel_limit: 0,
            delivery_handler: crate::model::policy::MEMORY.key.into(),
            slow_consumer_timeout: Duration::from_secs(30),
            undecided_max: 100_000,
            memory_watermark: 256 << 20,
            history: None,
            seed: 0,
        }
    }
}

/// A delivery handler as the broker knows it: which steps it wants to decide, and what holds for the others.
#[derive(Debug, Clone)]
pub struct HandlerSpec {
    /// The key by which queues name it.
    pub key: Box<str>,
    /// The steps it decides itself; only these are asked.
    pub overrides: Steps,
    /// Decides all other steps.
    pub base: Policy,
    /// How long an answer may take. Default 10 s.
    pub timeout: Duration,
    /// Holds when an answer failed or is late. Default: keep the message (allow, or put back at the end).
    pub fallback: Decision,
}

impl HandlerSpec {
    /// A ready-made policy as a handler: it decides everything and asks nobody.
    pub fn of_policy(policy: Policy) -> Self {
        Self {
            key: policy.key.into(),
            overrides: Steps::NONE,
            base: policy,
            timeout: Duration::from_secs(10),
            fallback: Self::KEEP,
        }
    }

    /// The fallback that loses nothing: go on, and put back what failed.
    pub const KEEP: Decision =
        Decision { allow: true, save: false, put_back: PutBack::End, acknowledge: Acknowledge::None };
}

/// What of the history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Whether the bodies of messages are kept too, and not only their sizes. Default yes.
    pub bodies: bool,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { bodies: true }
    }
}
