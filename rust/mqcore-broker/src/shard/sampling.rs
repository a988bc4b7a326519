//! Samples of queues, for the admin side.

use std::sync::Arc;
use std::time::Duration;

use crate::context::state::ShardState;
use crate::model::options::Status;
use crate::model::stats::{BLOCKING_MAX, DeliveryBlock, QueueSample};
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::members::Members;
use crate::shard::entities::Entities;
use crate::shard::stats::{Visited, WalkPlace};

/// Samples of the queues of a shard that are being taken, in steps of bounded size.
#[derive(Debug)]
pub struct QueueSampling {
    /// Whether to skip quiet queues: those without messages that have moved none for this time, and work.
    quiet_for: Option<Duration>,
    after: Option<WalkPlace>,
    samples: Vec<QueueSample>,
}

impl QueueSampling {
    /// Samples all queues.
    pub fn of_all() -> Self {
        Self { quiet_for: None, after: None, samples: Vec::new() }
    }

    /// Samples the queues that have messages, that have moved one within `quiet_for`, or that cannot work.
    pub fn of_active(quiet_for: Duration) -> Self {
        Self { quiet_for: Some(quiet_for), ..Self::of_all() }
    }

    /// The samples in order of channel names and ids, once the last step is done.
    pub fn into_samples(self) -> Vec<QueueSample> {
        self.samples
    }
}

impl Entities {
    /// One step. Returns whether it was the last one.
    pub(crate) fn sample(&self, sampling: &mut QueueSampling, now: Timestamp, state: &ShardState) -> bool {
        let QueueSampling { quiet_for, after, samples } = sampling;
        let next = self.walk(after.take(), |visited| {
            if let Visited::Queue(queue, of_channel) = visited
                && quiet_for.is_none_or(|time| !queue.is_quiet(now, time))
            {
                samples.push(queue.sample(of_channel, state));
            }
        });
        *after = next;
        after.is_none()
    }
}

impl Queue {
    fn is_quiet(&self, now: Timestamp, time: Duration) -> bool {
        let stats = &self.metadata.stats;
        let moved = Timestamp(stats.last_received_ms.max(stats.last_sent_ms));
        self.metadata.missing_handler.is_none()
            && self.metadata.options.status != Status::Paused
            && self.is_empty()
            && now >= moved.after(time)
    }

    fn sample(&self, of_channel: &Members, state: &ShardState) -> QueueSample {
        let members = self.own.as_deref().unwrap_or(of_channel);
        let options = &self.metadata.options;
        let ready = self.ready.len() as u64;
        // The message of a cache stays, so nothing holds it up.
        let may_block = ready > 0 && options.status != Status::Cache;
        let block = if may_block { self.delivery_block(members, state) } else { None };
        let waits_for_consumers =
            matches!(block, Some(DeliveryBlock::PrefetchReached | DeliveryBlock::ConsumersCongested));
        QueueSample {
            queue: Arc::clone(&self.metadata.address),
            status: options.status,
            handler: options.delivery_handler.as_deref().map(Box::from),
            missing_handler: self.metadata.missing_handler.clone(),
            ready,
            delayed: self.delayed.len() as u64,
            in_flight: self.deliveries.open() as u64,
            undecided: self.undecided.len() as u64,
            consumers: members.len() as u32,
            oldest_ms: self.ready.oldest().map_or(0, |at| at.0),
            block,
            blocking: if waits_for_consumers {
                self.blocking_consumers(members, state, BLOCKING_MAX)
            } else {
                Vec::new()
            },
            memory_bytes: self.memory_bytes(),
            message_limit: options.message_limit,
            publish_limit: options.publish_limit,
            dead_letter: options.dead_letter.clone(),
            stats: self.metadata.stats,
        }
    }
}
