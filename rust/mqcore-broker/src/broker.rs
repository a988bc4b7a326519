//! One shard of the broker: everything joined.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::command::Command;
use crate::decision::{Decision, Steps};
use crate::effect::{Answer, Effect, Transfer};
use crate::id::{ConnectionId, HandlerId};
use crate::options::ChannelOptions;
use crate::policy::Policy;
use crate::stats::Survey;
use crate::time::Timestamp;

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
            delivery_handler: crate::policy::MEMORY.key.into(),
            slow_consumer_timeout: Duration::from_secs(30),
            undecided_max: 100_000,
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

/// One shard.
#[derive(Debug)]
pub struct Broker {}

impl Broker {
    /// A shard without channels, with the ready-made policies as its handlers.
    pub fn new(config: BrokerConfig) -> Self {
        let _ = config;
        Self {}
    }
    /// Adds a handler, or replaces the one of the same key. Every shard must be given the same handlers in the same order:
    /// the answer is the same in all.
    pub fn register_handler(&mut self, spec: HandlerSpec) -> HandlerId {
        let _ = spec;
        HandlerId(0)
    }
    /// A peer asks for something. Before its Welcomed, `client` is provisional: its id is empty.
    pub fn command(
        &mut self,
        client: &Arc<Client>,
        command: Command,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let _ = (client, command, now, effects);
    }
    /// A connection ended (every shard is told).
    pub fn closed(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (connection, now, effects);
    }
    /// A connection's output buffer passed its high mark: hand it nothing until `writable`.
    pub fn congested(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (connection, now, effects);
    }
    /// It fell below its low mark again.
    pub fn writable(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (connection, now, effects);
    }
    /// A handler answers a question.
    pub fn answer(&mut self, answer: Answer, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (answer, now, effects);
    }
    /// A message arrives from another queue, as `Effect::Transfer` said.
    pub fn transfer(&mut self, transfer: Transfer, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (transfer, now, effects);
    }
    /// Lets everything happen whose time has come. Call when `next_timeout` has passed.
    pub fn timeout(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let _ = (now, effects);
    }
    /// When `timeout` wants to be called; `Timestamp::NEVER` if nothing waits.
    pub fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }
    /// Hands out stored messages, about `budget` of them. True if there is more to hand out at once: call again after carrying out the effects.
    pub fn work(&mut self, now: Timestamp, budget: usize, effects: &mut Vec<Effect>) -> bool {
        let _ = (now, budget, effects);
        false
    }
    /// Everything the admin side wants to know.
    pub fn survey(&self, now: Timestamp) -> Survey {
        let _ = now;
        Survey::default()
    }
}
