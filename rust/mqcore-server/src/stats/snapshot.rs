//! Combines the state of all shards into one answer.

use std::time::Duration;

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::id::{QueueAddress, RouterName};
use mqcore_broker::model::location::{Locations, MessageQuery};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::stats::{
    BodyStats, QueueInformation, QueueSample, QueueStats, RouterCounts, ShardStats, WaitingMessage,
};
use mqcore_broker::shard::sampling::QueueSampling;
use tokio::sync::oneshot;

use crate::hub::Hub;
use crate::shard::inbox::Urgent;
use crate::shard::statistics::StatisticsRequest;

/// Asks every shard, and combines the answers. Each list of a shard has at most `limit` entries, the first ones by name or id.
/// Shards that have stopped add nothing.
pub(crate) async fn take(hub: &Hub, limit: usize) -> ShardStats {
    let mut replies = Vec::with_capacity(hub.shards.len());
    for shard in &hub.shards {
        let (reply, answer) = oneshot::channel();
        shard.send_urgent(Urgent::Statistics(StatisticsRequest::Shard(limit, reply)));
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

/// Samples of all queues, or of those that were active within `quiet_for`. `None` if a shard has stopped.
pub(crate) async fn samples(hub: &Hub, quiet_for: Option<Duration>) -> Option<Vec<QueueSample>> {
    let mut replies = Vec::with_capacity(hub.shards.len());
    for shard in &hub.shards {
        let (reply, answer) = oneshot::channel();
        let sampling = quiet_for.map_or_else(QueueSampling::of_all, QueueSampling::of_active);
        shard.send_urgent(Urgent::Statistics(StatisticsRequest::Queues(sampling, reply)));
        replies.push(answer);
    }
    let mut samples = Vec::new();
    for answer in replies {
        samples.extend(answer.await.ok()?);
    }
    Some(samples)
}

/// Upstream and downstream brokers. Empty if the home shard has stopped.
pub(crate) async fn nodes(hub: &Hub) -> Vec<NodeInformation> {
    let (reply, answer) = oneshot::channel();
    hub.shards[0].send_urgent(Urgent::Nodes(reply));
    answer.await.unwrap_or_default()
}

/// The state of a queue. `None`: the queue does not exist, or its shard has stopped.
pub(crate) async fn queue(hub: &Hub, queue: QueueAddress) -> Option<QueueInformation> {
    ask_for_queue(hub, queue).await.ok().flatten().map(|information| *information)
}

/// Asks the shard of a queue for its state, without waiting for the answer.
fn ask_for_queue(hub: &Hub, queue: QueueAddress) -> oneshot::Receiver<Option<Box<QueueInformation>>> {
    let shard = queue.channel.shard(hub.placement);
    let (reply, answer) = oneshot::channel();
    hub.shards[shard].send_urgent(Urgent::Queue(queue, reply));
    answer
}

/// The states of queues, in their order, from all shards at once. `None`: as for [`queue`], or no queue was asked for.
pub(crate) async fn queues(
    hub: &Hub,
    queues: impl Iterator<Item = Option<QueueAddress>>,
) -> Vec<Option<QueueInformation>> {
    let asked: Vec<_> = queues.map(|queue| queue.map(|queue| ask_for_queue(hub, queue))).collect();
    let mut found = Vec::with_capacity(asked.len());
    for answer in asked {
        let information = match answer {
            Some(answer) => answer.await.ok().flatten(),
            None => None,
        };
        found.push(information.map(|information| *information));
    }
    found
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
        counts,
        totals,
        channels,
        queues,
        without_handler,
        clients,
        nodes,
        refused,
        unknown_acks,
        processed_in,
        questions_open,
        answers_late,
        retired,
        bodies,
        unsaved_bytes,
        topics,
        topic_totals,
        retired_topics,
        topics_rejected,
        creations_rejected,
        pattern_steps,
        routers,
        router_counts,
    } = snapshot;
    joined.counts.add(&counts);
    joined.totals.add(&totals);
    joined.channels.extend(channels);
    joined.queues.extend(queues);
    joined.without_handler.extend(without_handler);
    joined.clients.extend(clients);
    joined.nodes.extend(nodes);
    joined.refused += refused;
    joined.unknown_acks += unknown_acks;
    joined.processed_in.merge(&processed_in);
    joined.questions_open += questions_open;
    joined.answers_late += answers_late;
    joined.retired.add(&retired);
    let BodyStats { memory_bytes, evicted, loaded, unreadable } = bodies;
    joined.bodies.memory_bytes += memory_bytes;
    joined.bodies.evicted += evicted;
    joined.bodies.loaded += loaded;
    joined.bodies.unreadable += unreadable;
    joined.unsaved_bytes += unsaved_bytes;
    joined.topics.extend(topics);
    joined.topic_totals.add(&topic_totals);
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

/// The counters of a router.
pub(crate) fn router_counts(snapshot: &ShardStats, name: &RouterName) -> RouterCounts {
    let found = snapshot.router_counts.iter().find(|(known, _)| known == name);
    found.map(|(_, counts)| counts.clone()).unwrap_or_default()
}

/// The counters of all queues, including removed ones.
pub(crate) fn queue_stats(snapshot: &ShardStats) -> QueueStats {
    let mut stats = snapshot.retired;
    stats.add(&snapshot.totals.stats);
    stats
}
