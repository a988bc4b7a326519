//! Configuration of a shard, its handlers and its history.

use std::sync::Arc;
use std::time::Duration;

use crate::model::decision::{Acknowledge, Decision, PutBack, Step, Steps};
use crate::model::id::{DEAD_LETTERS, QueueAddress};
use crate::model::names::{BrokerNames, CreationLimits};
use crate::model::options::ChannelOptions;
use crate::model::placement::Placement;
use crate::model::policy::Policy;
use crate::model::topic::TopicLimits;
use crate::model::unsaved::UnsavedMemory;

/// Configuration of one shard.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// Number of this shard, below the number of shards. Shard 0 is the home shard of all clients.
    pub shard: usize,
    /// The number of shards, and the shard of each name; the same for all shards of a broker. Default: one shard.
    pub placement: Placement,
    /// Default options of channels, and through them of queues.
    pub channel: ChannelOptions,
    /// Whether publishing to, or joining, a missing channel creates it. Default: false.
    pub auto_create_channels: bool,
    /// Whether publishing to a missing queue creates it. Default: false.
    pub auto_create_queues: bool,
    /// Maximum number of connected clients; 0: no limit. Default: 0.
    pub client_limit: u32,
    /// Maximum number of channels of the broker; 0: no limit. Default: 0.
    pub channel_limit: u32,
    /// The names of channels and queues; the same for all shards of a broker.
    pub names: Arc<BrokerNames>,
    /// How many channels and queues each user may have created.
    pub creation_limits: CreationLimits,
    /// Key of the handler or policy of queues whose channel names none. Default: `memory`.
    pub delivery_handler: Box<str>,
    /// Key of the event handler that receives events of all channels; `None`, the default: there is none.
    pub event_handler: Option<Box<str>>,
    /// How long a consumer's output buffer may stay full before its connection is closed. Default: 30
    /// s.
    pub slow_consumer_timeout: Duration,
    /// Maximum number of messages of one queue that wait for a handler's decision; further ones are
    /// rejected as busy. Default: 100,000.
    pub undecided_max: usize,
    /// Bytes of saved messages that may wait in the memory of this shard. Above this watermark, the
    /// bodies that will be delivered last leave memory; they are loaded again before they are needed.
    /// Default: 256 MiB.
    pub memory_watermark: u64,
    /// How many subscriptions to topics the broker accepts.
    pub topic_limits: TopicLimits,
    /// Memory of messages that are not saved, of all shards. Default: no limit.
    pub unsaved: Arc<UnsavedMemory>,
    /// Whether and how the lifecycle of messages is recorded, for
    /// [`Broker::take_history`](crate::shard::Broker::take_history). Default: not recorded.
    pub history: Option<HistoryOptions>,
    /// Whether messages with a sampled trace context cause spans, for
    /// [`Broker::take_spans`](crate::shard::Broker::take_spans). Default: false.
    pub spans: bool,
    /// Makes generated ids unguessable and unique. Use a random value, different for each start and
    /// shard.
    pub seed: u64,
}

impl BrokerConfig {
    /// Whether dead letters can go to this queue: it exists, or the broker creates it when it is needed.
    pub fn is_destination(&self, queue: &QueueAddress) -> bool {
        let known = self.names.has_channel(&queue.channel);
        let created = self.auto_create_queues && (known || self.auto_create_channels);
        created || known && queue.id == DEAD_LETTERS || self.names.has_queue(queue)
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            shard: 0,
            placement: Placement::unkeyed(1),
            channel: ChannelOptions::default(),
            auto_create_channels: false,
            auto_create_queues: false,
            client_limit: 0,
            channel_limit: 0,
            names: Arc::default(),
            creation_limits: CreationLimits::default(),
            delivery_handler: crate::model::policy::MEMORY.key.into(),
            event_handler: None,
            slow_consumer_timeout: Duration::from_secs(30),
            undecided_max: 100_000,
            memory_watermark: 256 << 20,
            topic_limits: TopicLimits::default(),
            unsaved: Arc::default(),
            history: None,
            spans: false,
            seed: 0,
        }
    }
}

/// A delivery handler: the steps that it decides itself, and the policy for the others.
#[derive(Debug, Clone)]
pub struct HandlerSpec {
    /// The key that queue options use.
    pub key: Box<str>,
    /// The steps that the handler decides itself; the broker asks it about these only.
    pub overrides: Steps,
    /// The policy for all other steps.
    pub base: Policy,
    /// Time to answer. Default: 10 s.
    pub timeout: Duration,
    /// The decision if an answer fails or is late. Default: keep the message (allow, or requeue at the
    /// end).
    pub fallback: Decision,
}

const EVENT_HANDLER: &str = "event handler ";
const AUTHENTICATOR: &str = "authenticator ";
const DELIVERY_HANDLER: &str = "a delivery handler";

impl HandlerSpec {
    /// Makes a handler from a ready-made policy, which decides every step itself.
    pub fn of_policy(policy: Policy) -> Self {
        Self {
            key: policy.key.into(),
            overrides: Steps::NONE,
            base: policy,
            timeout: Duration::from_secs(10),
            fallback: Self::KEEP,
        }
    }

    /// The key under which an event handler is registered that options name `key`.
    pub fn event_handler_key(key: &str) -> String {
        format!("{EVENT_HANDLER}{key}")
    }

    /// The key under which an authenticator is registered that options name `key`.
    pub fn authenticator_key(key: &str) -> String {
        format!("{AUTHENTICATOR}{key}")
    }

    /// Whether queues can name this handler as their delivery handler.
    pub fn is_for_queues(&self) -> bool {
        self.kind() == DELIVERY_HANDLER
    }

    /// The kind of handler, with an article.
    pub fn kind(&self) -> &'static str {
        let overrides = self.overrides;
        // One that overrides nothing is known by its key.
        if overrides.observe() || self.key.starts_with(EVENT_HANDLER) {
            "an event handler"
        } else if overrides.contains(Step::Authenticate) || self.key.starts_with(AUTHENTICATOR) {
            "an authenticator"
        } else if overrides.contains(Step::Route) {
            "a handler of a router"
        } else {
            DELIVERY_HANDLER
        }
    }

    /// The fallback that loses nothing: allow, and requeue what failed.
    pub const KEEP: Decision =
        Decision { allow: true, save: false, put_back: PutBack::End, acknowledge: Acknowledge::None };
}

/// Contents of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Whether the history contains message bodies, not only their sizes. Default: true.
    pub bodies: bool,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { bodies: true }
    }
}
