//! Combines the state of all shards into one answer.

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::id::{QueueAddress, RouterName};
use mqcore_broker::model::location::{Locations, MessageQuery};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::stats::{
    BodyStats, QueueInformation, QueueStats, RouterCounts, ShardStats, TopicStats, WaitingMessage,
};
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::shard::inbox::Urgent;

/// Asks every shard, and combines the answers. Shards that have stopped add nothing.
pub(crate) async fn take(hub: &Hub) -> ShardStats {
    let mut replies = Vec::with_capacity(hub.shards.len());
    for shard in &hub.shards {
        let (reply, answer) = oneshot::channel();
        shard.send_urgent(Urgent::ShardStats(reply));
        replies.push(answer);
    }
    let mut joined = ShardStats::default();
    for answer in replies {
        if let Ok(snapshot) = answer.await {
            join(&mut joined, snapshot);
        }
    }
    joined
}

/// The state of a queue. `None`: the queue does not exist, or its shard has stopped.
pub(crate) async fn queue(hub: &Hub, queue: QueueAddress) -> Option<QueueInformation> {
    let shard = queue.channel.shard(hub.placement);
    let (reply, answer) = oneshot::channel();
    hub.shards[shard].send_urgent(Urgent::Queue(queue, reply));
    answer.await.ok().flatten().map(|information| *information)
}

/// Sends a custom message to clients, or closes their connections. Returns their number; 0 if the broker has stopped.
pub(crate) async fn clients(hub: &Hub, to: ClientPattern, message: Option<Message>) -> usize {
    let (reply, answer) = oneshot::channel();
    hub.shards[0].send_urgent(Urgent::Clients(to, message, reply));
    hub.moved();
    answer.await.unwrap_or(0)
}

/// Waiting messages of a queue. `None`: the queue does not exist, or its shard has stopped.
pub(crate) async fn waiting(hub: &Hub, queue: QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
    let shard = queue.channel.shard(hub.placement);
    let (reply, answer) = oneshot::channel();
    hub.shards[shard].send_urgent(Urgent::WaitingMessage(queue, max, reply));
    answer.await.ok().flatten()
}

/// Looks for messages: in each shard with its query in `sought`. `None`: a shard has stopped.
pub(crate) async fn locate(hub: &Hub, sought: Vec<MessageQuery>) -> Option<Vec<(usize, Locations)>> {
    let mut replies = Vec::with_capacity(hub.shards.len());
    for (shard, sought) in hub.shards.iter().zip(sought) {
        let (reply, answer) = oneshot::channel();
        shard.send_urgent(Urgent::Locate(sought, reply));
        replies.push(answer);
    }
    let mut found = Vec::with_capacity(replies.len());
    for (shard, answer) in replies.into_iter().enumerate() {
        found.push((shard, answer.await.ok()?));
    }
    Some(found)
}

/// Queues whose delivery handler is not registered, with its key. `None` if a shard has stopped.
pub(crate) async fn waiting_for_handlers(hub: &Hub) -> Option<Vec<(QueueAddress, Box<str>)>> {
    let mut replies = Vec::with_capacity(hub.shards.len());
    for shard in &hub.shards {
        let (reply, answer) = oneshot::channel();
        shard.send_urgent(Urgent::WaitingForHandlers(reply));
        replies.push(answer);
    }
    let mut waiting = Vec::new();
    for answer in replies {
        waiting.extend(answer.await.ok()?);
    }
    Some(waiting)
}

fn join(joined: &mut ShardStats, snapshot: ShardStats) {
    // Destructured, so that a new field cannot be forgotten here.
    let ShardStats {
        channels,
        queues,
        clients,
        nodes,
        refused,
        unknown_acks,
        questions_open,
        answers_late,
        retired,
        bodies,
        unsaved_bytes,
        topics,
        retired_topics,
        topics_rejected,
        creations_rejected,
        pattern_steps,
        routers,
        router_counts,
    } = snapshot;
    joined.channels.extend(channels);
    joined.queues.extend(queues);
    joined.clients.extend(clients);
    joined.nodes.extend(nodes);
    joined.refused += refused;
    joined.unknown_acks += unknown_acks;
    joined.questions_open += questions_open;
    joined.answers_late += answers_late;
    add_stats(&mut joined.retired, &retired);
    let BodyStats { memory_bytes, evicted, loaded, unreadable } = bodies;
    joined.bodies.memory_bytes += memory_bytes;
    joined.bodies.evicted += evicted;
    joined.bodies.loaded += loaded;
    joined.bodies.unreadable += unreadable;
    joined.unsaved_bytes += unsaved_bytes;
    joined.topics.extend(topics);
    joined.retired_topics.add(&retired_topics);
    joined.topics_rejected += topics_rejected;
    joined.creations_rejected += creations_rejected;
    joined.pattern_steps += pattern_steps;
    joined.routers.extend(routers);
    for (name, counts) in router_counts {
        match joined.router_counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => sum.add(&counts),
            None => joined.router_counts.push((name, counts)),
        }
    }
}

/// Adds the counters of `stats` to those of `sum`. Of two times, the later remains.
pub(crate) fn add_stats(sum: &mut QueueStats, stats: &QueueStats) {
    // Destructured, so that a new counter cannot be forgotten here.
    let QueueStats {
        received,
        sent,
        deliveries,
        acks,
        negative_acks,
        timed_out,
        saved,
        save_failed,
        removed,
        requeued,
        dead_lettered,
        errors,
        dropped,
        last_received_ms,
        last_sent_ms,
    } = stats;
    sum.received += received;
    sum.sent += sent;
    sum.deliveries += deliveries;
    sum.acks += acks;
    sum.negative_acks += negative_acks;
    sum.timed_out += timed_out;
    sum.saved += saved;
    sum.save_failed += save_failed;
    sum.removed += removed;
    sum.requeued += requeued;
    sum.dead_lettered += dead_lettered;
    sum.errors += errors;
    for (sum, dropped) in sum.dropped.iter_mut().zip(dropped) {
        *sum += dropped;
    }
    sum.last_received_ms = sum.last_received_ms.max(*last_received_ms);
    sum.last_sent_ms = sum.last_sent_ms.max(*last_sent_ms);
}

/// The counters of a router.
pub(crate) fn router_counts(snapshot: &ShardStats, name: &RouterName) -> RouterCounts {
    let found = snapshot.router_counts.iter().find(|(known, _)| known == name);
    found.map(|(_, counts)| counts.clone()).unwrap_or_default()
}

/// Sums over queues and topics. Counters include deleted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    /// Stored and not in flight.
    pub(crate) ready: u64,
    /// How many of those wait for the time of their next delivery.
    pub(crate) delayed: u64,
    /// Queues whose delivery handler is not registered.
    pub(crate) queues_without_handler: u64,
    /// Delivered and not settled.
    pub(crate) in_flight: u64,
    /// Waiting for a handler.
    pub(crate) undecided: u64,
    /// Bytes of all of these.
    pub(crate) memory_bytes: u64,
    /// Counters.
    pub(crate) stats: QueueStats,
    /// Counters of topics, including removed ones.
    pub(crate) topics: TopicStats,
}

impl Totals {
    pub(crate) fn of(snapshot: &ShardStats) -> Self {
        let mut totals = Self { stats: snapshot.retired, topics: snapshot.retired_topics, ..Self::default() };
        for topic in &snapshot.topics {
            totals.topics.add(&topic.stats);
        }
        for queue in &snapshot.queues {
            totals.ready += queue.high_priority + queue.normal;
            totals.delayed += queue.delayed;
            totals.queues_without_handler += u64::from(queue.missing_handler.is_some());
            totals.in_flight += queue.in_flight;
            totals.undecided += queue.undecided;
            totals.memory_bytes += queue.memory_bytes;
            add_stats(&mut totals.stats, &queue.stats);
        }
        totals
    }
}
