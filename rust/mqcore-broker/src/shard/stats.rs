//! Counters and lists for the admin side.

use crate::context::state::ShardState;
use crate::model::entry::PagedOut;
use crate::model::id::QueueAddress;
use crate::model::message::Message;
use crate::model::stats::{BodyStats, ObjectCounts, QueueInformation, ShardStats, WaitingMessage};
use crate::model::time::Timestamp;
use crate::shard::channel::Channel;
use crate::shard::entities::{Entities, folded};

impl Entities {
    /// Statistics of the shard for the admin side.
    pub(crate) fn stats(&self, now: Timestamp, state: &ShardState) -> ShardStats {
        let channels = self.channels.iter().map(|(_, channel)| channel);
        ShardStats {
            channels: channels.clone().map(Channel::information).collect(),
            queues: channels.flat_map(Channel::queue_information).collect(),
            clients: self.directory.all(now),
            nodes: self.directory.nodes(now),
            refused: state.counters.refused,
            unknown_acks: state.counters.unknown_acks,
            questions_open: state.questions.len() as u64,
            answers_late: state.counters.answers_late,
            retired: state.counters.retired,
            bodies: BodyStats { memory_bytes: state.paging.memory.get(), ..state.paging.bodies },
            unsaved_bytes: state.unsaved.bytes(),
            topics: self.topics.information(),
            retired_topics: self.topics.retired(),
            topics_rejected: self.topics.rejected(),
            creations_rejected: state.counters.creations_rejected,
            pattern_steps: self.topics.pattern_steps(),
            routers: self.routers.iter().map(|router| router.definition.clone()).collect(),
            router_counts: self.routers.counts.all(),
        }
    }

    pub(crate) fn object_counts(&self, state: &ShardState) -> ObjectCounts {
        let topics = self.topics.information();
        let mut passed = state.counters.retired;
        let mut published = self.topics.retired().published;
        published += topics.iter().map(|topic| topic.stats.published).sum::<u64>();
        let mut object_counts = ObjectCounts {
            clients: self.directory.len() as u64,
            topics: topics.len() as u64,
            published,
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
