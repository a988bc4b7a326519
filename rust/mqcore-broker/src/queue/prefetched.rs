//! Prefetched messages: consumers return those that no program has seen, and need more time for others.

use crate::context::Context;
use crate::model::decision::PutBack;
use crate::model::entry::Entry;
use crate::model::id::{ConnectionId, Tag};
use crate::model::options::Status;
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::delayed::Awaits;
use crate::queue::delivery::Delivery;
use crate::queue::members::ConsumerKey;

impl Queue {
    /// A consumer needs more time for a delivery: its timeout starts again. No effect if the consumer does not
    /// have such a delivery.
    pub(crate) fn extended(
        &mut self,
        connection: ConnectionId,
        tag: Tag,
        message_id: &[u8],
        context: &mut Context<'_>,
    ) {
        // Which of several messages with one id is meant is unknown, and time does no harm to the others.
        let those: Vec<usize> = self.deliveries.all_of(message_id, (connection, tag)).collect();
        for key in those {
            let deadline = self.acknowledge_deadline(self.deliveries.consumer(key), context.now);
            self.deliveries.extend(key, deadline);
            self.deliveries.works_on(key, context.now);
        }
    }

    /// A consumer leaves whose program got the oldest `started` of its deliveries: the others are returned.
    pub(crate) fn return_unstarted(
        &mut self,
        consumer: ConsumerKey,
        started: u32,
        context: &mut Context<'_>,
    ) {
        let deliveries = self.deliveries.of(consumer.0, Some(consumer.1));
        let unstarted = deliveries.into_iter().skip(usize::try_from(started).unwrap_or(usize::MAX));
        // The newest goes first, because each is put before all others.
        for key in unstarted.collect::<Vec<_>>().into_iter().rev() {
            let delivery = self.deliveries.take(key);
            self.returned(&delivery, context.now, context);
        }
    }

    /// A consumer returns a message that no program has seen. It is requeued at its old position, at once or at
    /// `not_before`, and the attempt does not count. If other consumers have the message too, they decide what happens to it. A
    /// handler that still decides about the delivery is asked again about the next one.
    pub(crate) fn returned(&mut self, delivery: &Delivery, not_before: Timestamp, context: &mut Context<'_>) {
        if delivery.consumer.terms.window > 0 {
            self.schedule(context);
        }
        self.deliveries.return_unstarted(delivery.outstanding(), not_before);
        match self.deliveries.release(delivery.outstanding()) {
            Some(released) => self.close(released, context),
            None => self.end_flow_of(delivery.outstanding(), context),
        }
    }

    /// Requeues a message at its old position as if it had not been delivered.
    pub(super) fn requeue_unstarted(
        &mut self,
        mut entry: Entry,
        not_before: Timestamp,
        context: &mut Context<'_>,
    ) {
        entry.attempts = entry.attempts.saturating_sub(1);
        let is_live = entry.deadline > context.now;
        if not_before > context.now
            && is_live
            && matches!(self.metadata.options.status, Status::RoundRobin | Status::Push | Status::Paused)
        {
            // Not recorded: after a crash, it has its old position and is postponed again.
            let level = entry.level();
            let awaits = Awaits::Attempt(PutBack::Start);
            let taken = self.page_out_returned(entry, not_before, context);
            return self.delay(taken, level, not_before, awaits, context);
        }
        self.put_back(entry, PutBack::Start, context.now, context);
    }
}
