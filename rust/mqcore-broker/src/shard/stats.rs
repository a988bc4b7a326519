//! Counters and lists for the admin side.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::context::state::ShardState;
use crate::model::client::Client;
use crate::model::entry::PagedOut;
use crate::model::id::{ChannelName, ConnectionId, QueueAddress, TopicName};
use crate::model::message::Message;
use crate::model::stats::{
    BodyStats, ClientInformation, ObjectCounts, QueueInformation, QueueStats, QueueTotals, ShardStats,
    StatsCounts, WaitingMessage,
};
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::members::Members;
use crate::shard::channel::Channel;
use crate::shard::entities::{Entities, folded};

/// Entries that one step of a collection looks at.
const STEP_ENTRIES: usize = 1_000;

/// Topics whose receivers one step of a collection counts, which compares each with patterns.
const STEP_TOPICS: usize = 50;

/// A place in a walk over all queues: behind this queue; without an id, behind all queues of this channel.
pub(crate) type WalkPlace = (ChannelName, Option<u16>);

/// An item of a walk over all queues: a channel, and then each of its queues with the channel's members.
pub(crate) enum Visited<'a> {
    Channel(&'a Channel),
    Queue(&'a Queue, &'a Members),
}

/// Statistics of a shard that are being collected, in steps of bounded size.
///
/// Each queue that exists throughout is counted once. One that is removed meanwhile is counted once too, with its counters
/// when the collection reached it or when it was removed, so that sums of counters never decrease.
#[derive(Debug)]
pub struct StatsCollection {
    /// Maximum entries of each list.
    limit: usize,
    stage: Stage,
    stats: ShardStats,
    /// The first clients by id.
    clients: BTreeMap<Box<str>, Arc<Client>>,
    /// The first topics by name.
    topics: BTreeSet<TopicName>,
}

/// Entries that the next step looks at.
#[derive(Debug)]
enum Stage {
    /// Queues behind this place.
    Queues(Option<WalkPlace>),
    /// Clients behind this one.
    Clients(Option<ConnectionId>),
    /// Topics from this place on.
    Topics(usize),
    /// The receivers of the first topics.
    Receivers,
    Rest,
}

impl StatsCollection {
    pub(crate) fn new(limit: usize, retired: QueueStats) -> Self {
        Self {
            limit,
            stage: Stage::Queues(None),
            stats: ShardStats { retired, ..ShardStats::default() },
            clients: BTreeMap::new(),
            topics: BTreeSet::new(),
        }
    }

    /// The result, once the last step is done.
    pub fn into_stats(self) -> ShardStats {
        self.stats
    }

    /// Whether queues have been counted up to this one.
    fn has_counted(&self, queue: &QueueAddress) -> bool {
        match &self.stage {
            Stage::Queues(None) => false,
            Stage::Queues(Some((channel, id))) => {
                queue.channel < *channel || (queue.channel == *channel && id.is_none_or(|id| queue.id <= id))
            }
            _ => true,
        }
    }

    /// Counts queues that were removed since the last step.
    pub(crate) fn removed(&mut self, queues: Vec<(Arc<QueueAddress>, QueueStats)>) {
        for (queue, stats) in queues {
            if !self.has_counted(&queue) {
                self.stats.retired.add(&stats);
            }
        }
    }

    fn add(&mut self, visited: Visited<'_>) {
        match visited {
            Visited::Channel(channel) => {
                self.stats.counts.channels += 1;
                if self.stats.channels.len() < self.limit {
                    self.stats.channels.push(channel.information());
                }
            }
            Visited::Queue(queue, members) => self.add_queue(queue, members),
        }
    }

    fn add_queue(&mut self, queue: &Queue, members: &Members) {
        let (high, normal) = queue.waiting();
        let stats = &mut self.stats;
        stats.counts.queues += 1;
        stats.totals.add(&QueueTotals {
            ready: high + normal,
            delayed: queue.delayed.len() as u64,
            without_handler: u64::from(queue.metadata.missing_handler.is_some()),
            in_flight: queue.deliveries.open() as u64,
            undecided: queue.undecided.len() as u64,
            memory_bytes: queue.memory_bytes(),
            stats: queue.metadata.stats,
        });
        if stats.queues.len() < self.limit {
            stats.queues.push(queue.information(members));
        }
        if let Some(key) = &queue.metadata.missing_handler
            && stats.without_handler.len() < self.limit
        {
            stats.without_handler.push(((*queue.metadata.address).clone(), key.clone()));
        }
    }
}

impl Entities {
    /// One step of a collection. Returns whether it was the last one.
    pub(crate) fn collect(
        &self,
        collection: &mut StatsCollection,
        now: Timestamp,
        state: &ShardState,
    ) -> bool {
        collection.stage = match &collection.stage {
            Stage::Queues(after) => {
                let after = after.clone();
                match self.walk(after, |visited| collection.add(visited)) {
                    Some(last) => Stage::Queues(Some(last)),
                    None => Stage::Clients(None),
                }
            }
            Stage::Clients(after) => match self.collect_clients(*after, collection) {
                Some(last) => Stage::Clients(Some(last)),
                None => {
                    let mut clients: Vec<_> = std::mem::take(&mut collection.clients).into_values().collect();
                    clients.sort_unstable_by_key(|client| client.connection);
                    let clients = clients.iter();
                    collection.stats.clients = clients
                        .map(|client| ClientInformation::new(client, client.connected_at, now))
                        .collect();
                    Stage::Topics(0)
                }
            },
            Stage::Topics(place) => {
                let (names, next) = self.topics.names_from(*place, STEP_ENTRIES);
                for name in names {
                    collection.topics.insert(name);
                    if collection.topics.len() > collection.limit {
                        collection.topics.pop_last();
                    }
                }
                next.map_or(Stage::Receivers, Stage::Topics)
            }
            Stage::Receivers => {
                for _ in 0..STEP_TOPICS {
                    let Some(name) = collection.topics.pop_first() else { break };
                    collection.stats.topics.extend(self.topics.information(&name));
                }
                if collection.topics.is_empty() { Stage::Rest } else { Stage::Receivers }
            }
            Stage::Rest => {
                self.complete(collection, now, state);
                return true;
            }
        };
        false
    }

    /// Visits channels and their queues behind `after` in order, up to [`STEP_ENTRIES`]. Returns the place of the last one if
    /// there are more.
    pub(crate) fn walk(
        &self,
        after: Option<WalkPlace>,
        mut visit: impl FnMut(Visited<'_>),
    ) -> Option<WalkPlace> {
        let begin = match &after {
            None => Bound::Unbounded,
            Some((channel, Some(_))) => Bound::Included(channel.as_str()),
            Some((channel, None)) => Bound::Excluded(channel.as_str()),
        };
        let mut left = STEP_ENTRIES;
        for (name, key) in self.ordered.range::<str, _>((begin, Bound::Unbounded)) {
            let channel = &self.channels[*key];
            let mut last = match &after {
                Some((begun, id)) if begun == name => *id,
                _ => {
                    visit(Visited::Channel(channel));
                    None
                }
            };
            let following = last.map_or(Bound::Unbounded, Bound::Excluded);
            for (id, queue) in channel.queues.range((following, Bound::Unbounded)) {
                if left == 0 {
                    return Some((name.clone(), last));
                }
                visit(Visited::Queue(queue, &channel.members));
                left -= 1;
                last = Some(*id);
            }
            // A channel without queues costs a place too.
            left = left.saturating_sub(1);
            if left == 0 {
                return Some((name.clone(), None));
            }
        }
        None
    }

    /// Looks at the clients behind `after`, and returns the last one if there are more.
    fn collect_clients(
        &self,
        after: Option<ConnectionId>,
        collection: &mut StatsCollection,
    ) -> Option<ConnectionId> {
        let mut left = STEP_ENTRIES;
        for client in self.directory.following(after) {
            collection.clients.insert(client.id.clone(), Arc::clone(client));
            if collection.clients.len() > collection.limit {
                collection.clients.pop_last();
            }
            left -= 1;
            if left == 0 {
                return Some(client.connection);
            }
        }
        None
    }

    /// Adds what needs no step of its own.
    fn complete(&self, collection: &mut StatsCollection, now: Timestamp, state: &ShardState) {
        let limit = collection.limit;
        let ShardStats {
            counts, totals, channels, queues, without_handler, clients, topics, retired, ..
        } = std::mem::take(&mut collection.stats);
        collection.stats = ShardStats {
            counts: StatsCounts {
                clients: self.directory.len() as u64,
                topics: self.topics.len() as u64,
                routers: self.routers.len() as u64,
                ..counts
            },
            totals,
            channels,
            queues,
            without_handler,
            clients,
            nodes: self.directory.nodes(now),
            refused: state.counters.refused,
            unknown_acks: state.counters.unknown_acks,
            processed_in: state.counters.processed_in,
            questions_open: state.questions.len() as u64,
            answers_late: state.counters.answers_late,
            retired,
            bodies: BodyStats { memory_bytes: state.paging.memory.get(), ..state.paging.bodies },
            unsaved_bytes: state.unsaved.bytes(),
            topics,
            topic_totals: self.topics.totals(),
            retired_topics: self.topics.retired(),
            topics_rejected: self.topics.rejected(),
            creations_rejected: state.counters.creations_rejected,
            pattern_steps: self.topics.pattern_steps(),
            routers: self.routers.following(None).take(limit).cloned().collect(),
            router_counts: self.routers.counts.all(),
        };
    }

    pub(crate) fn object_counts(&self, state: &ShardState) -> ObjectCounts {
        let mut passed = state.counters.retired;
        let mut object_counts = ObjectCounts {
            clients: self.directory.len() as u64,
            topics: self.topics.len() as u64,
            published: self.topics.totals().published,
            ..ObjectCounts::default()
        };
        (object_counts.bound_queues, object_counts.removable_queues) = self.bindings.counts();
        for (_, channel) in &self.channels {
            let joined = channel.client_count() as u64;
            object_counts.consumers += joined;
            let partial = channel.members.partial().iter().map(|partial| &partial.member.consumer);
            let partial = partial.map(|consumer| consumer.client.connection);
            object_counts
                .consuming_clients
                .extend(channel.members.connections().iter().copied().chain(partial));
            for queue in channel.queues.values() {
                object_counts.queues += 1;
                let subscriptions = queue.subscriptions().count() as u64;
                let subscribed = queue.subscriptions().map(|member| member.consumer.client.connection);
                object_counts.consuming_clients.extend(subscribed);
                object_counts.consumers += subscriptions;
                object_counts.consumed_queues += u64::from(subscriptions + joined > 0);
                object_counts.waiting += (queue.ready.len() + queue.delayed.len()) as u64;
                object_counts.unsettled += queue.deliveries.open() as u64;
                passed.add(&queue.metadata.stats);
            }
        }
        (object_counts.queued, object_counts.consumed) = (passed.received, passed.deliveries);
        object_counts
    }

    /// The state of a queue. `None` if it is not on this shard.
    pub(crate) fn queue(&self, queue: &QueueAddress) -> Option<QueueInformation> {
        let channel = &self.channels[*self.names.get(&folded(&queue.channel))?];
        channel.queues.get(&queue.id).map(|queue| queue.information(&channel.members))
    }

    /// Waiting messages of a queue, in order of delivery, at most `max`. Changes nothing. `None` if the
    /// queue is not on this shard.
    pub(crate) fn waiting(&self, queue: &QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
        let channel = &self.channels[*self.names.get(&folded(&queue.channel))?];
        let entries = channel.queues.get(&queue.id)?.ready.iter().take(max);
        let look = |(paged_out, saved, message): (PagedOut, bool, Option<&Message>)| WaitingMessage {
            message: message.cloned(),
            sequence: paged_out.sequence,
            attempts: paged_out.attempts,
            requeues: paged_out.requeues,
            saved,
        };
        Some(entries.map(look).collect())
    }
}
