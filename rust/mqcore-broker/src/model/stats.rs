//! Counters, information models and the statistics of a shard.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::client::Client;
use crate::model::durations::Durations;
use crate::model::id::{ChannelName, ConnectionId, QueueAddress, RouterName, Sequence, TopicName};
use crate::model::message::Message;
use crate::model::node::NodeInformation;
use crate::model::options::{ChannelOptions, DeadLetter, QueueOptions, Status};
use crate::model::rate::Rate;
use crate::model::rejection::RejectReason;
use crate::model::router::RouterDefinition;
use crate::model::time::Timestamp;

/// Numbers of things and of processed messages, of one shard or added up over several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ObjectCounts {
    /// Connected clients; counted by the home shard.
    pub clients: u64,
    pub queues: u64,
    /// Subscriptions to queues, and clients that joined channels.
    pub consumers: u64,
    /// Clients with subscriptions to queues, and clients that joined channels, each once.
    pub consuming_clients: HashSet<ConnectionId>,
    /// Queues with a consumer.
    pub consumed_queues: u64,
    /// Queues that are bound to topics by their consumers.
    pub bound_queues: u64,
    /// Queues that the broker removes when their last consumer has left.
    pub removable_queues: u64,
    /// Topics that have a subscriber or a queue, or were published to recently.
    pub topics: u64,
    /// Messages that wait in queues.
    pub waiting: u64,
    /// Deliveries that are not settled.
    pub unsettled: u64,
    /// Messages published to topics.
    pub published: u64,
    /// Messages that arrived in queues.
    pub queued: u64,
    /// Deliveries made by queues.
    pub consumed: u64,
}

impl ObjectCounts {
    /// Adds the numbers of another shard.
    pub fn add(&mut self, other: &Self) {
        self.clients += other.clients;
        self.queues += other.queues;
        self.consumers += other.consumers;
        self.consuming_clients.extend(&other.consuming_clients);
        self.consumed_queues += other.consumed_queues;
        self.bound_queues += other.bound_queues;
        self.removable_queues += other.removable_queues;
        self.topics += other.topics;
        self.waiting += other.waiting;
        self.unsettled += other.unsettled;
        self.published += other.published;
        self.queued += other.queued;
        self.consumed += other.consumed;
    }
}

/// Why a message was dropped. Every reason has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// A broadcast queue had no consumer.
    NoConsumer,
    /// A consumer of a broadcast queue was too slow.
    Slow,
    /// A limit was reached: requeued too often, without a dead-letter queue.
    Limit,
    /// Its timeout in the queue passed.
    Expired,
    /// A decision or a consumer rejected it.
    Refused,
    /// Its queue was stopped, cleared or removed, or a newer message replaced it in a cache.
    Erased,
    /// Its body was paged out and could not be loaded. Its record stays for the next start.
    Unreadable,
    /// Its queue accepted another message with the same id shortly before.
    Duplicate,
}

impl DropReason {
    /// All reasons in numeric order.
    pub const ALL: [Self; 8] = [
        Self::NoConsumer,
        Self::Slow,
        Self::Limit,
        Self::Expired,
        Self::Refused,
        Self::Erased,
        Self::Unreadable,
        Self::Duplicate,
    ];

    /// The name in metrics and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoConsumer => "no-consumer",
            Self::Slow => "slow",
            Self::Limit => "limit",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Erased => "erased",
            Self::Unreadable => "unreadable",
            Self::Duplicate => "duplicate",
        }
    }
}

/// Why a queue cannot deliver its next message now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryBlock {
    /// Its delivery handler is not registered.
    MissingHandler,
    /// Its status is [`Status::Paused`] or [`Status::Stopped`].
    Paused,
    /// It has no consumer.
    NoConsumers,
    /// Its consumers pull, and none asks for a message now.
    NotPulled,
    /// A handler decides about as many messages as it may have at a time.
    HandlerBusy,
    /// It delivers a message only after the previous one is settled.
    AwaitsAcknowledgement,
    /// Consumers have as many unsettled messages as their prefetch allows.
    PrefetchReached,
    /// Consumers do not read what was sent to them.
    ConsumersCongested,
}

impl DeliveryBlock {
    /// The name in metrics and on admin pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingHandler => "missing-handler",
            Self::Paused => "paused",
            Self::NoConsumers => "no-consumers",
            Self::NotPulled => "not-pulled",
            Self::HandlerBusy => "handler-busy",
            Self::AwaitsAcknowledgement => "awaits-acknowledgement",
            Self::PrefetchReached => "prefetch-reached",
            Self::ConsumersCongested => "consumers-congested",
        }
    }
}

/// A queue at one moment: how much waits, since when, and what holds it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSample {
    /// Its address.
    pub queue: Arc<QueueAddress>,
    /// Its status.
    pub status: Status,
    /// The key of its delivery handler; `None`: the broker's default.
    pub handler: Option<Box<str>>,
    /// The key, if no handler is registered under it.
    pub missing_handler: Option<Box<str>>,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages that wait for the time of their next delivery.
    pub delayed: u64,
    /// Deliveries that are not settled.
    pub in_flight: u64,
    /// Messages that wait for a handler to decide their admission.
    pub undecided: u64,
    /// Consumers: clients that joined the channel for this queue, and subscriptions.
    pub consumers: u32,
    /// When the oldest of the messages next in turn arrived, one for each priority, in Unix milliseconds; 0: none waits.
    pub oldest_ms: u64,
    /// Why the next message is not delivered; `None`: none waits, or it is delivered at once.
    pub block: Option<DeliveryBlock>,
    /// Some of the consumers that the queue waits for, at most [`BLOCKING_MAX`].
    pub blocking: Vec<Arc<Client>>,
    /// Bytes of stored and unsettled messages.
    pub memory_bytes: u64,
    /// Maximum stored messages; 0: no limit.
    pub message_limit: u64,
    /// Maximum rate of published messages.
    pub publish_limit: Option<Rate>,
    /// The destination of its dead letters; `None`: the dead-letter queue of its channel.
    pub dead_letter: Option<DeadLetter>,
    /// Its counters.
    pub stats: QueueStats,
}

/// Maximum consumers that a [`QueueSample`] names.
pub const BLOCKING_MAX: usize = 3;

/// Counters of a queue since its creation. They count messages unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Accepted from producers.
    pub received: u64,
    /// Not accepted from producers: a limit was reached, the queue is stopped, or its message cannot be saved.
    pub rejected: u64,
    /// The same, by [`RejectReason`] number; the sum is `rejected`.
    pub rejected_by: [u64; RejectReason::ALL.len()],
    /// Delivered; each message once, however many consumers received it.
    pub sent: u64,
    /// Deliveries, one for each consumer.
    pub deliveries: u64,
    /// Positive acknowledgements.
    pub acks: u64,
    /// Negative acknowledgements and acknowledgement timeouts.
    pub negative_acks: u64,
    /// Exceeded their timeout in the queue.
    pub timed_out: u64,
    /// Saved.
    pub saved: u64,
    /// Should have been saved and were not.
    pub save_failed: u64,
    /// Left the queue for good.
    pub removed: u64,
    /// Requeued.
    pub requeued: u64,
    /// Moved to a dead-letter queue.
    pub dead_lettered: u64,
    /// Moved to another queue by an operator.
    pub moved: u64,
    /// Handler failures, and late or missing answers.
    pub errors: u64,
    /// Dropped, by [`DropReason`] number. For `Slow`, deliveries.
    pub dropped: [u64; DropReason::ALL.len()],
    /// When the last message arrived, in Unix milliseconds; 0: never.
    pub last_received_ms: u64,
    /// When the last message was delivered, in Unix milliseconds; 0: never.
    pub last_sent_ms: u64,
}

impl QueueStats {
    /// Counts a message that was not accepted.
    pub(crate) fn count_rejected(&mut self, reason: RejectReason) {
        self.rejected += 1;
        self.rejected_by[reason as usize] += 1;
    }

    /// Adds the counters of another queue; takes the later of the times.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.rejected += other.rejected;
        for (sum, count) in self.rejected_by.iter_mut().zip(other.rejected_by) {
            *sum += count;
        }
        self.sent += other.sent;
        self.deliveries += other.deliveries;
        self.acks += other.acks;
        self.negative_acks += other.negative_acks;
        self.timed_out += other.timed_out;
        self.saved += other.saved;
        self.save_failed += other.save_failed;
        self.removed += other.removed;
        self.requeued += other.requeued;
        self.dead_lettered += other.dead_lettered;
        self.moved += other.moved;
        self.errors += other.errors;
        for (sum, count) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += count;
        }
        self.last_received_ms = self.last_received_ms.max(other.last_received_ms);
        self.last_sent_ms = self.last_sent_ms.max(other.last_sent_ms);
    }
}

/// The state of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInformation {
    /// Its address.
    pub queue: QueueAddress,
    /// Its options, including its status.
    pub options: QueueOptions,
    /// The key of its delivery handler, if none is registered under it: the queue then neither takes nor
    /// delivers messages.
    pub missing_handler: Option<Box<str>>,
    /// Stored messages of high priority.
    pub high_priority: u64,
    /// The other stored messages.
    pub normal: u64,
    /// Consumers: clients that joined the channel for this queue, and subscriptions.
    pub consumers: u32,
    /// How many of the stored messages wait for the time of their next attempt.
    pub delayed: u64,
    /// When the first of those is delivered again, in Unix milliseconds; 0: there is none.
    pub next_attempt_ms: u64,
    /// Deliveries that are not settled.
    pub in_flight: u64,
    /// Messages that wait for a handler to decide their admission.
    pub undecided: u64,
    /// Messages that left the lists and are not finished: in flight, or waiting for a handler while
    /// they are delivered. A message in flight to several consumers counts once.
    pub unsettled: u64,
    /// When the oldest of the messages next in turn arrived, one for each priority, in Unix milliseconds; 0: none waits.
    pub oldest_ms: u64,
    /// Bytes of stored and unsettled messages.
    pub memory_bytes: u64,
    /// Its counters.
    pub stats: QueueStats,
    /// How long consumers had the messages that they acknowledged positively, in milliseconds of resolution; `None`: there
    /// are none.
    pub processed_in: Option<Box<Durations>>,
}

/// A message that waits in a queue, with what the queue knows about it.
#[derive(Debug, Clone)]
pub struct WaitingMessage {
    /// The message, shared with the queue; `None` if it is paged out.
    pub message: Option<Message>,
    /// The sequence of its record in the journal; 0 if it has none.
    pub sequence: Sequence,
    /// Number of deliveries.
    pub attempts: u16,
    /// How often it was requeued.
    pub requeues: u16,
    /// Whether it is saved.
    pub saved: bool,
}

/// The state of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInformation {
    /// Client name.
    pub channel: ChannelName,
    /// Its options.
    pub options: ChannelOptions,
    /// Ids of its queues, ascending.
    pub queues: Vec<u16>,
    /// Number of joined clients.
    pub active_clients: u32,
}

/// A client, and how long it has been connected or joined, depending on the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInformation {
    /// The client.
    pub client: Arc<Client>,
    /// Duration in milliseconds.
    pub online_ms: u64,
}

impl ClientInformation {
    pub(crate) fn new(client: &Arc<Client>, since: Timestamp, now: Timestamp) -> Self {
        Self { client: Arc::clone(client), online_ms: now.since(since).as_millis() as u64 }
    }
}

/// Counters of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicStats {
    /// Messages published.
    pub published: u64,
    /// Bytes of their bodies.
    pub published_bytes: u64,
    /// Deliveries, one for each message and subscriber.
    pub delivered: u64,
    /// Copies for queues.
    pub copied: u64,
    /// Deliveries dropped because the subscriber was too slow.
    pub dropped_slow: u64,
    /// Messages without subscriber and bound queue.
    pub dropped_no_consumer: u64,
}

impl TopicStats {
    /// Adds the counters of another topic.
    pub fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.published_bytes += other.published_bytes;
        self.delivered += other.delivered;
        self.copied += other.copied;
        self.dropped_slow += other.dropped_slow;
        self.dropped_no_consumer += other.dropped_no_consumer;
    }
}

/// The state of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInformation {
    /// Client name.
    pub topic: TopicName,
    /// Connections that receive its messages, by name or by pattern.
    pub subscribers: u32,
    /// Queues that receive copies, by name or by pattern.
    pub queues: u32,
    /// Its counters since it was first subscribed to or published to.
    pub stats: TopicStats,
}

/// Counters of a router.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouterCounts {
    /// Messages that arrived.
    pub received: u64,
    /// Messages that a binding took.
    pub routed: u64,
    /// Messages that no binding took.
    pub dropped_no_consumer: u64,
    /// Handler questions without an answer in time.
    pub errors: u64,
    /// Counters of each tried binding, by its name.
    pub bindings: Vec<(Box<str>, BindingCounts)>,
}

/// Counters of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BindingCounts {
    /// Messages that it took.
    pub taken: u64,
    /// Messages that it did not take.
    pub refused: u64,
}

impl RouterCounts {
    /// Adds another shard's counters of the same router.
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

/// Numbers of things, of one shard or added up over several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct StatsCounts {
    pub channels: u64,
    pub queues: u64,
    /// Counted by the home shard.
    pub clients: u64,
    pub topics: u64,
    pub routers: u64,
}

impl StatsCounts {
    /// Adds the numbers of another shard.
    pub fn add(&mut self, other: &Self) {
        self.channels += other.channels;
        self.queues += other.queues;
        self.clients += other.clients;
        self.topics += other.topics;
        self.routers += other.routers;
    }
}

/// Sums over the queues that exist, of one shard or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueTotals {
    /// Stored and not in flight.
    pub ready: u64,
    /// How many of those wait for the time of their next delivery.
    pub delayed: u64,
    /// Queues whose delivery handler is not registered.
    pub without_handler: u64,
    /// Delivered and not settled.
    pub in_flight: u64,
    /// Waiting for a handler.
    pub undecided: u64,
    /// Bytes of all of these.
    pub memory_bytes: u64,
    /// Counters.
    pub stats: QueueStats,
}

impl QueueTotals {
    /// Adds the sums of another shard.
    pub fn add(&mut self, other: &Self) {
        self.ready += other.ready;
        self.delayed += other.delayed;
        self.without_handler += other.without_handler;
        self.in_flight += other.in_flight;
        self.undecided += other.undecided;
        self.memory_bytes += other.memory_bytes;
        self.stats.add(&other.stats);
    }
}

/// Statistics of one shard, for the admin side. Lists have the first entries by name or id, up to a limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStats {
    /// Numbers of all channels, queues and so on, listed or not.
    pub counts: StatsCounts,
    /// Sums over all queues.
    pub totals: QueueTotals,
    /// Its channels.
    pub channels: Vec<ChannelInformation>,
    /// Its queues.
    pub queues: Vec<QueueInformation>,
    /// Queues whose delivery handler is not registered, with its key.
    pub without_handler: Vec<(QueueAddress, Box<str>)>,
    /// Clients, oldest first; only the home shard knows them.
    pub clients: Vec<ClientInformation>,
    /// Upstream and downstream brokers; only the home shard knows them.
    pub nodes: Vec<NodeInformation>,
    /// Rejected commands and requests.
    pub refused: u64,
    /// Acknowledgements of messages that are not in flight: late, or sent twice.
    pub unknown_acks: u64,
    /// How long consumers had the messages that they acknowledged positively, of all queues, including removed ones.
    pub processed_in: Durations,
    /// Open handler questions.
    pub questions_open: u64,
    /// Answers that arrived after their deadline, or to a question that is no longer open.
    pub answers_late: u64,
    /// Counters of removed queues.
    pub retired: QueueStats,
    /// Bodies that were paged out, loaded, and unreadable.
    pub bodies: BodyStats,
    /// Bytes of messages that are only in memory.
    pub unsaved_bytes: u64,
    /// Topics with a subscriber or a queue, and topics that were published to recently.
    pub topics: Vec<TopicInformation>,
    /// Counters of all topics, including forgotten ones.
    pub topic_totals: TopicStats,
    /// Counters of forgotten topics.
    pub retired_topics: TopicStats,
    /// Subscriptions and bindings to topics that were rejected because of a limit.
    pub topics_rejected: u64,
    /// Channels and queues that a limit for users did not admit.
    pub creations_rejected: u64,
    /// Places that searches for patterns which match a topic have looked at.
    pub pattern_steps: u64,
    /// Its routers.
    pub routers: Vec<RouterDefinition>,
    /// Counters of routers, including those of other shards.
    pub router_counts: Vec<(RouterName, RouterCounts)>,
}

/// Paging of the bodies of waiting saved messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyStats {
    /// Bytes of bodies in memory now.
    pub memory_bytes: u64,
    /// Bodies paged out.
    pub evicted: u64,
    /// Bodies loaded.
    pub loaded: u64,
    /// Bodies that could not be loaded.
    pub unreadable: u64,
}
