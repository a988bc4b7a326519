//! Numbers that people and programs read: information models and the survey of a shard.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::{ChannelName, QueueAddress, RouterName, Sequence, TopicName};
use crate::model::message::Message;
use crate::model::node::NodeInformation;
use crate::model::options::{ChannelOptions, QueueOptions};
use crate::model::router::RouterDefinition;
use crate::model::time::Timestamp;

/// How much there is of what, and how much has passed: of one shard, or of several added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ObjectCounts {
    /// Clients connected; counted by the home shard.
    pub clients: u64,
    pub queues: u64,
    /// Subscriptions to queues, and consumers who joined channels.
    pub consumers: u64,
    /// Topics that have a subscriber or a queue, or were published to lately.
    pub topics: u64,
    /// Messages that wait in queues.
    pub waiting: u64,
    /// Deliveries that are not settled.
    pub unsettled: u64,
    /// Messages published to topics.
    pub published: u64,
    /// Messages that came into queues.
    pub queued: u64,
    /// Deliveries made by queues.
    pub consumed: u64,
}

impl ObjectCounts {
    /// Counts what another shard has too.
    pub fn add(&mut self, other: &Self) {
        self.clients += other.clients;
        self.queues += other.queues;
        self.consumers += other.consumers;
        self.topics += other.topics;
        self.waiting += other.waiting;
        self.unsettled += other.unsettled;
        self.published += other.published;
        self.queued += other.queued;
        self.consumed += other.consumed;
    }
}

/// Why a message was dropped. Never silently: each reason has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// Broadcast, and nobody was there.
    NoConsumer,
    /// Broadcast to a consumer that does not keep up.
    Slow,
    /// A limit was reached: put back too often, no dead-letter queue.
    Limit,
    /// It waited too long.
    Expired,
    /// A decision refused it.
    Refused,
    /// Its queue was stopped, cleared or removed, or a newer message took its place in a cache.
    Erased,
    /// Its body had left memory, and the journal could not read it back. Its record stays, for the next start to judge.
    Unreadable,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::NoConsumer,
        Self::Slow,
        Self::Limit,
        Self::Expired,
        Self::Refused,
        Self::Erased,
        Self::Unreadable,
    ];

    /// The reason as metrics and headers spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoConsumer => "no-consumer",
            Self::Slow => "slow",
            Self::Limit => "limit",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Erased => "erased",
            Self::Unreadable => "unreadable",
        }
    }
}

/// What a queue has counted since it was created. All of messages, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Taken from producers.
    pub received: u64,
    /// Handed out, each once however many consumers got it.
    pub sent: u64,
    /// Handed out, once a consumer.
    pub deliveries: u64,
    /// Positive acknowledgements.
    pub acks: u64,
    /// Negative acknowledgements and those that did not come.
    pub negative_acks: u64,
    /// Waited too long in the queue.
    pub timed_out: u64,
    /// Saved.
    pub saved: u64,
    /// Asked to be saved, and were not.
    pub save_failed: u64,
    /// Left the queue for good.
    pub removed: u64,
    /// Put back.
    pub put_back: u64,
    /// Moved to a dead-letter queue.
    pub dead_lettered: u64,
    /// Handler failures and late or missing answers.
    pub errors: u64,
    /// Dropped, by [`DropReason`] number. For `Slow`, deliveries.
    pub dropped: [u64; DropReason::ALL.len()],
    /// When the last one arrived, Unix milliseconds; 0: never.
    pub last_received_ms: u64,
    /// When the last one was handed out, Unix milliseconds; 0: never.
    pub last_sent_ms: u64,
}

impl QueueStats {
    /// Adds what another queue counted; the later of the times holds.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.deliveries += other.deliveries;
        self.acks += other.acks;
        self.negative_acks += other.negative_acks;
        self.timed_out += other.timed_out;
        self.saved += other.saved;
        self.save_failed += other.save_failed;
        self.removed += other.removed;
        self.put_back += other.put_back;
        self.dead_lettered += other.dead_lettered;
        self.errors += other.errors;
        for (sum, count) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += count;
        }
        self.last_received_ms = self.last_received_ms.max(other.last_received_ms);
        self.last_sent_ms = self.last_sent_ms.max(other.last_sent_ms);
    }
}

/// A queue as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInformation {
    /// Its address.
    pub queue: QueueAddress,
    /// Its options, its status among them.
    pub options: QueueOptions,
    /// Stored messages of high priority.
    pub high_priority: u64,
    /// The other stored messages.
    pub normal: u64,
    /// Handed out and not settled.
    pub in_flight: u64,
    /// Waiting for a handler's decision whether they are admitted.
    pub undecided: u64,
    /// Messages that left the lists and have no end yet: in flight, or on their way while a handler decides.
    /// A message in flight to several consumers counts once.
    pub unsettled: u64,
    /// Octets of stored and unsettled messages.
    pub memory_bytes: u64,
    /// Its counters.
    pub stats: QueueStats,
}

/// A message that waits in a queue, and what the queue remembers of it.
#[derive(Debug, Clone)]
pub struct WaitingMessage {
    /// The message, shared with the queue; `None` if only the journal has it.
    pub message: Option<Message>,
    /// Under which number the journal has it; 0 if it does not.
    pub sequence: Sequence,
    /// How often it was handed out.
    pub attempts: u16,
    /// How often it was put back.
    pub requeues: u16,
    /// Whether it was saved.
    pub saved: bool,
}

/// A channel as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInformation {
    /// Its name.
    pub channel: ChannelName,
    /// Its options.
    pub options: ChannelOptions,
    /// Ids of its queues, ascending.
    pub queues: Vec<u16>,
    /// Clients joined.
    pub active_clients: u32,
}

/// A client and how long it has been connected, or joined, depending on what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInformation {
    /// Who.
    pub client: Arc<Client>,
    /// Milliseconds.
    pub online_ms: u64,
}

/// What a topic has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicStats {
    /// Messages published.
    pub published: u64,
    /// Octets of their bodies.
    pub published_bytes: u64,
    /// Deliveries: one for each message and each subscriber that it was handed to.
    pub delivered: u64,
    /// Copies for queues.
    pub copied: u64,
    /// Deliveries that did not happen, because the subscriber does not keep up.
    pub dropped_slow: u64,
    /// Messages that nobody subscribed to and no queue was bound to.
    pub dropped_no_consumer: u64,
}

impl TopicStats {
    /// Adds what another topic counted.
    pub fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.published_bytes += other.published_bytes;
        self.delivered += other.delivered;
        self.copied += other.copied;
        self.dropped_slow += other.dropped_slow;
        self.dropped_no_consumer += other.dropped_no_consumer;
    }
}

/// A topic as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInformation {
    /// Its name.
    pub topic: TopicName,
    /// Connections that get its messages, by name or by pattern.
    pub subscribers: u32,
    /// Queues that get copies, by name or by pattern.
    pub queues: u32,
    /// Its counters, since it was first subscribed to or published to.
    pub stats: TopicStats,
}

/// What a router has counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouterCounts {
    /// Messages that came to it.
    pub received: u64,
    /// Messages that a binding took.
    pub routed: u64,
    /// Messages that no binding took.
    pub dropped_no_consumer: u64,
    /// Questions to handlers that were not answered in time, or not at all.
    pub errors: u64,
    /// The same for each binding that was tried, by its name.
    pub bindings: Vec<(Box<str>, BindingCounts)>,
}

/// What a binding has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BindingCounts {
    /// Messages that it took.
    pub taken: u64,
    /// Messages that it did not take.
    pub refused: u64,
}

impl RouterCounts {
    /// Adds what another shard counted about the same router.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.routed += other.routed;
        self.dropped_no_consumer += other.dropped_no_consumer;
        self.errors += other.errors;
        for (name, counts) in &other.bindings {
            match self.bindings.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => {
                    sum.taken += counts.taken;
                    sum.refused += counts.refused;
                }
                None => self.bindings.push((name.clone(), *counts)),
            }
        }
    }
}

/// One subscriber of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriberInformation {
    /// Who.
    pub client: Arc<Client>,
    /// Since when.
    pub since: Timestamp,
    /// Messages published to the topic since then.
    pub messages: u64,
    /// Octets of their bodies.
    pub bytes: u64,
}

/// Everything that the admin side wants to know of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStats {
    /// Its channels.
    pub channels: Vec<ChannelInformation>,
    /// Its queues.
    pub queues: Vec<QueueInformation>,
    /// The clients; only the home shard knows them.
    pub clients: Vec<ClientInformation>,
    /// Other brokers; only the home shard knows them.
    pub nodes: Vec<NodeInformation>,
    /// Commands refused.
    pub refused: u64,
    /// Acknowledgements of something that is not in flight: late, or sent twice.
    pub unknown_acks: u64,
    /// Questions to handlers that wait for their answer.
    pub questions_open: u64,
    /// Answers that came after their deadline, or to a question that nobody waits for any more.
    pub answers_late: u64,
    /// Drops and counts of queues that are gone.
    pub retired: QueueStats,
    /// Bodies that left memory, came back, and could not be read.
    pub bodies: BodyStats,
    /// Its topics: those with a subscriber or a queue, and others that were published to lately.
    pub topics: Vec<TopicInformation>,
    /// Counts of topics that are forgotten.
    pub retired_topics: TopicStats,
    /// Its routers.
    pub routers: Vec<RouterDefinition>,
    /// What it counted about routers, those of other shards among them.
    pub router_counts: Vec<(RouterName, RouterCounts)>,
}

/// Where the bodies of saved messages that wait are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyStats {
    /// Octets of those in memory, now.
    pub memory_bytes: u64,
    /// How many left memory.
    pub evicted: u64,
    /// How many came back.
    pub loaded: u64,
    /// How many could not be read back.
    pub unreadable: u64,
}
