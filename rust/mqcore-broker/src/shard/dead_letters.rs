//! Messages that arrive in a dead-letter queue, and the queues that the broker creates for them.

use crate::context::Context;
use crate::context::commits::Storage;
use crate::model::effect::{Effect, Report, Transfer};
use crate::model::id::{DEAD_LETTERS, QueueAddress};
use crate::model::options::{QueueOptions, Status};
use crate::model::policy;
use crate::shard::channel::Channel;
use crate::shard::entities::{Entities, consumers};

impl Entities {
    /// Takes a message from another queue, for [`Effect::Transfer`]. If the queue does not exist any more,
    /// the message goes to the dead-letter queue of the channel that it comes from.
    pub(crate) fn transfer(&mut self, transfer: Transfer, context: &mut Context<'_>) {
        let Some(key) = self.destination_of(&transfer, context) else {
            let used = transfer.from.dead_letters();
            let (missing, from) = (transfer.to.clone(), (*transfer.from).clone());
            let report = Report::DeadLetterQueueMissing { missing, from, used: used.clone() };
            context.effects.push(Effect::Report(Box::new(report)));
            context.effects.push(Effect::Transfer(Transfer { to: used, ..transfer }));
            return;
        };
        let Transfer { to, message, origin, .. } = transfer;
        let Channel { members, queues, .. } = &mut self.channels[key];
        if let Some(queue) = queues.get_mut(&to.id) {
            queue.transfer(message, origin, &consumers(members, queue), context);
        }
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
        context.state.config.names.restore_queue(address);
        self.channels[key].add_queue(key, address.clone(), options, context);
        let report = Report::DeadLetterQueueCreated { queue: address.clone(), from: from.clone() };
        context.effects.push(Effect::Report(Box::new(report)));
    }
}
