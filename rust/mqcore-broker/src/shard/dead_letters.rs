//! Messages that arrive from other queues: dead letters, for which the broker creates queues, and moved messages.

use crate::context::Context;
use crate::context::commits::Storage;
use crate::model::effect::{Effect, Event, Report};
use crate::model::id::{ConnectionId, DEAD_LETTERS, QueueAddress, RequestId};
use crate::model::options::{QueueOptions, Status};
use crate::model::policy;
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::transfer::{ArrivedMessage, MoveMessages, MoveTarget, Transfer, TransferEnd};
use crate::queue::arriving::{release_once_settled, transfer_end};
use crate::shard::channel::{Channel, no_queue, options_with_policies};
use crate::shard::entities::{Entities, at, consumers, no_channel};

impl Entities {
    /// Takes a message from another queue, for [`Effect::Transfer`]. If the queue does not exist any more,
    /// the message goes to the dead-letter queue of the channel that it comes from.
    pub(crate) fn transfer(&mut self, transfer: Transfer, context: &mut Context<'_>) {
        let Some(key) = self.destination_of(&transfer, context) else {
            if transfer.departure.is_some() {
                let reason = format!("queue {} does not exist; create it first", transfer.to);
                let rejection = Rejection::new(RejectionKind::NotFound, reason);
                context.effects.push(Effect::Transferred(Box::new(transfer_end(&transfer, Err(rejection)))));
                return;
            }
            let used = transfer.from.dead_letters();
            let (missing, from) = (transfer.to.clone(), (*transfer.from).clone());
            let report = Report::DeadLetterQueueMissing { missing, from, used: used.clone() };
            context.effects.push(Effect::Report(Box::new(report)));
            context.effects.push(Effect::Transfer(Box::new(Transfer { to: used, ..transfer })));
            return;
        };
        let Channel { members, queues, .. } = &mut self.channels[key];
        if let Some(queue) = queues.get_mut(&transfer.to.id) {
            queue.transfer(transfer, &consumers(members, queue), context);
        }
    }

    /// Begins to move messages of a queue. The queue answers the request.
    pub(crate) fn move_messages(
        &mut self,
        client: ConnectionId,
        request: RequestId,
        wanted: MoveMessages,
        context: &mut Context<'_>,
    ) {
        let queue = wanted.queue.clone();
        let found = self.lookup(&queue.channel).ok_or_else(|| no_channel(&queue.channel));
        let found = found.and_then(|key| {
            let queues = &mut self.channels[key].queues;
            queues.get_mut(&queue.id).ok_or_else(|| no_queue(&queue.channel, queue.id))
        });
        let checked = match found {
            Ok(_) if matches!(&wanted.to, MoveTarget::Queue(to) if to.is(&queue)) => {
                let reason = format!("the messages are in queue {queue} already; name another queue");
                Err(Rejection::new(RejectionKind::Unacceptable, reason))
            }
            found => found,
        };
        match checked {
            Ok(found) => found.move_messages(client, request, wanted, context),
            Err(rejection) => {
                context.state.counters.refused += 1;
                let event = Event::Answered(request, Err(rejection));
                context.effects.push(Effect::Notify(client, event));
            }
        }
    }

    /// A message of this shard is in another queue, or was rejected there.
    pub(crate) fn transferred(&mut self, end: TransferEnd, context: &mut Context<'_>) {
        let TransferEnd { origin, departure, result } = end;
        let Some(departure) = departure else {
            if let Some(origin) = origin {
                context.record(Record::Settle(origin.sequence));
            }
            return;
        };
        let (arrival, result) = match result {
            Ok(arrival) => (arrival, Ok(())),
            Err(rejection) => (None, Err(rejection)),
        };
        if let Some((_, queue)) = at(&mut self.channels, departure.queue_ref) {
            queue.departed(departure.number, result, context);
            self.destroy_if_abandoned(departure.queue_ref.channel, context);
        }
        if let Some(arrival) = arrival {
            release_once_settled(arrival, context);
        }
    }

    /// The previous queue of a moved message has settled it.
    pub(crate) fn release(&mut self, arrival: ArrivedMessage, context: &mut Context<'_>) {
        let Some(key) = self.lookup(&arrival.queue.channel) else { return };
        let Channel { members, queues, .. } = &mut self.channels[key];
        if let Some(queue) = queues.get_mut(&arrival.queue.id) {
            queue.release(arrival.sequence, &consumers(members, queue), context);
            self.destroy_if_abandoned(key, context);
        }
    }

    /// The journal could not save a message of another queue.
    pub(crate) fn refuse_arrival(&mut self, end: TransferEnd, why: &str, context: &mut Context<'_>) {
        let Ok(Some(arrival)) = end.result else { return };
        if let Some(key) = self.lookup(&arrival.queue.channel)
            && let Some(queue) = self.channels[key].queues.get_mut(&arrival.queue.id)
        {
            queue.give_up_arrival(arrival.sequence, context);
            self.destroy_if_abandoned(key, context);
        }
        let reason = format!("the new queue cannot save the message: {why}");
        let result = Err(Rejection::new(RejectionKind::Busy, reason));
        context.effects.push(Effect::Transferred(Box::new(TransferEnd { result, ..end })));
    }

    /// The channel of the queue to which a message is transferred, with the queue in it. `None` if there is
    /// none, and the broker may not create it.
    fn destination_of(&mut self, transfer: &Transfer, context: &mut Context<'_>) -> Option<usize> {
        let Transfer { to, from, message, .. } = transfer;
        let producer = message.producer().map(|producer| &**producer);
        let known = self.lookup(&to.channel);
        if let Some(key) = known
            && self.channels[key].queues.contains_key(&to.id)
        {
            return Some(key);
        }
        let is_created = to.is(&from.dead_letters()) || (to.id == DEAD_LETTERS && known.is_some());
        if !is_created {
            return self.channel_for_publishing(to, producer, context).ok();
        }
        // The channel may have been removed in the meantime; its last messages bring it back.
        let key = self.restore_channel(&to.channel, context);
        self.add_dead_letter_queue(key, to, from, context);
        Some(key)
    }

    /// Creates the dead-letter queue of a channel. It keeps messages until they are pulled, and saves them
    /// if the broker can.
    fn add_dead_letter_queue(
        &mut self,
        key: usize,
        address: &QueueAddress,
        from: &QueueAddress,
        context: &mut Context<'_>,
    ) {
        let saves = context.state.commits.storage != Storage::Absent;
        let policy = if saves { policy::AT_LEAST_ONCE } else { policy::MEMORY };
        let options = QueueOptions {
            status: Status::Pull,
            request_acknowledge: true,
            delivery_handler: Some(policy.key.into()),
            tag: Some("dead-letters".into()),
            ..QueueOptions::default()
        };
        let (options, _) = options_with_policies(address, options, None, context.state);
        context.state.config.names.restore_queue(address);
        self.channels[key].add_queue(key, address.clone(), options, context);
        let report = Report::DeadLetterQueueCreated { queue: address.clone(), from: from.clone() };
        context.effects.push(Effect::Report(Box::new(report)));
    }
}
