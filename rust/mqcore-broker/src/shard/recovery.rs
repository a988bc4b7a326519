//! Restoring a shard from its journal, and following what the journal commits or refuses.

use std::sync::Arc;

use foldhash::HashMap;

use crate::context::Context;
use crate::context::commits::{Awaiting, Storage};
use crate::history::ranges::NumberSet;
use crate::model::decision::Decision;
use crate::model::definition::Definition;
use crate::model::effect::{Effect, Event, Report};
use crate::model::entry::PagedOut;
use crate::model::id::{ChannelName, MessageNumber, QueueAddress, Sequence};
use crate::model::options::{Durability, QueueOptions, Status};
use crate::model::policy;
use crate::model::record::{DeliveryProgress, PutTerms, Record};
use crate::model::recovery::{RecoveredMessage, RecoveredState};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::terms::{LEVEL_HIGH, LEVEL_NORMAL};
use crate::model::time::Timestamp;
use crate::queue::Queue;
use crate::queue::arriving::release_once_settled;
use crate::shard::channel::Channel;
use crate::shard::entities::Entities;

impl Entities {
    /// Restores a shard from its journal.
    pub(crate) fn restore(&mut self, recovered: RecoveredState, context: &mut Context<'_>) {
        let RecoveredState {
            definitions,
            queues,
            mut messages,
            progress,
            tickets,
            sources: _,
            transferred,
            arriving,
            unique_keys,
            terms,
            remembered,
            sequence,
        } = recovered;
        let terms: HashMap<_, _> = terms.into_iter().collect();
        let remembered: HashMap<_, _> =
            remembered.into_iter().map(|(sequence, id, arrived)| (sequence, (id, arrived))).collect();
        let mut unique_keys: HashMap<_, _> = unique_keys.into_iter().collect();
        start_history(&definitions, &messages, context);
        // Restored definitions are not recorded again.
        context.state.commits.storage = Storage::Absent;
        let numbers = context.state.history.as_mut().and_then(|history| history.reserve());
        let (ids, definitions): (Vec<_>, Vec<_>) =
            definitions.into_iter().partition(|definition| matches!(definition, Definition::MessageId(..)));
        for definition in definitions {
            self.restore_definition(definition, context);
        }
        context.state.commits.storage = Storage::Ready;
        // Some ranks came from sequences of records that left no trace; new ranks must be larger.
        let ranks = progress.iter().map(|(_, progress)| progress.rank.unsigned_abs());
        let last = messages.last().map_or(Sequence(0), |message| message.sequence);
        context.state.commits.sequence = Sequence(ranks.max().unwrap_or(0).max(sequence.0).max(last.0));
        for policy in context.state.policies.all().to_vec() {
            context.record(Record::DefinePolicy(Box::new(policy)));
        }
        if let Some(numbers) = numbers {
            context.record(Record::Numbers(numbers));
        }
        for ticket in &tickets {
            context.state.intake.restore_saved(ticket);
        }
        let keys: Vec<usize> = queues.iter().map(|queue| self.restore_queue(queue, context)).collect();
        for definition in ids {
            self.restore_id(definition, context);
        }
        self.record_restored(&queues, &keys, &mut messages, context);
        // Messages without progress are in order already; the others are inserted by rank.
        let mut moved = Vec::new();
        let mut known = progress.iter().peekable();
        for message in &messages {
            while known.next_if(|(sequence, _)| *sequence < message.sequence).is_some() {}
            if let Some((_, progress)) = known.next_if(|(sequence, _)| *sequence == message.sequence) {
                moved.push((*progress, *message));
            }
        }
        moved.sort_unstable_by_key(|(progress, _)| progress.rank);
        let mut moved = moved.into_iter().peekable();
        let mut restore = |message: RecoveredMessage, progress: DeliveryProgress| {
            let index = message.queue as usize;
            if let Some((queue, key)) = queues.get(index).zip(keys.get(index)) {
                if let Some(unique) = unique_keys.remove(&message.sequence)
                    && let Some(queue) = self.channels[*key].queues.get_mut(&queue.id)
                {
                    queue.unique.restore(message.sequence, unique);
                }
                let terms = terms.get(&message.sequence).copied();
                if let Some((id, arrived)) = remembered.get(&message.sequence)
                    && let Some(queue) = self.channels[*key].queues.get_mut(&queue.id)
                {
                    let until = arrived.after(queue.metadata.options.deduplication_window);
                    queue.restore_id(id, until, message.sequence, context);
                }
                let is_held = arriving.binary_search(&message.sequence).is_ok();
                self.restore_message(queue, *key, message, (progress, terms), is_held, context);
            }
        };
        let mut known = progress.iter().peekable();
        for message in messages {
            while known.next_if(|(sequence, _)| *sequence < message.sequence).is_some() {}
            if known.next_if(|(sequence, _)| *sequence == message.sequence).is_some() {
                continue;
            }
            let rank = message.sequence.0 as i64;
            while let Some((progress, earlier)) = moved.next_if(|(progress, _)| progress.rank < rank) {
                restore(earlier, progress);
            }
            restore(message, DeliveryProgress { rank, ..DeliveryProgress::default() });
        }
        for (progress, message) in moved {
            restore(message, progress);
        }
        context.state.commits.committed_all();
        // The next crash must find the message in its new queue only, also if a consumer has settled it there by then.
        for (sequence, arrival) in transferred {
            context.record(Record::Settle(sequence));
            release_once_settled(arrival, context);
        }
    }

    /// Numbers the messages that have no number yet, and records one event for all messages of each queue.
    fn record_restored(
        &self,
        queues: &[QueueAddress],
        keys: &[usize],
        messages: &mut [RecoveredMessage],
        context: &mut Context<'_>,
    ) {
        if context.state.history.is_none() {
            return;
        }
        let mut numbers: Vec<NumberSet> =
            std::iter::repeat_with(NumberSet::default).take(queues.len()).collect();
        for message in messages {
            let Some(numbers) = numbers.get_mut(message.queue as usize) else { continue };
            if message.number == MessageNumber(0) {
                message.number = context.number();
            }
            numbers.add(message.number.0);
        }
        for ((queue, key), numbers) in queues.iter().zip(keys).zip(numbers) {
            if let Some(queue) = self.channels[*key].queues.get(&queue.id)
                && let Some(history) = &mut context.state.history
            {
                history.restored(context.now, &queue.metadata.address, &numbers.into_ranges());
            }
        }
    }

    pub(crate) fn restore_definition(&mut self, definition: Definition, context: &mut Context<'_>) {
        let key = match &definition {
            Definition::Router(router) => return self.restore_router((**router).clone(), context.state),
            Definition::TopicBinding(pattern, queue) => {
                // Only the limit can prevent this, and then the maximum is reached anyway.
                let _ = self.topics.bind_saved(pattern.clone(), queue);
                return;
            }
            Definition::Policy(policy) => return context.state.policies.set((**policy).clone()),
            Definition::Intake(node, progress) => {
                return context.state.intake.restore(Arc::clone(node), progress.clone());
            }
            Definition::Channel(name, options) => {
                let key = self.restore_channel(name, context);
                self.channels[key].options = (**options).clone();
                self.channels[key].options_lost = false;
                self.channels[key].choose_observers(context.state);
                key
            }
            Definition::Queue(queue, _) => self.restore_channel(&queue.channel, context),
            Definition::Numbers(_) | Definition::MessageId(..) => return,
        };
        if let Definition::Queue(address, options) = definition {
            let id = address.id;
            context.state.config.names.restore_queue(&address);
            let mut queue = Queue::new(address, key, *options, context.state);
            queue.metadata.message_observers = context.state.message_observers(self.channels[key].observers);
            if let Some(mut replaced) = self.channels[key].queues.insert(id, queue) {
                replaced.erase(context);
            }
        }
    }

    /// Restores the id of a message that left its queue, or forgets it if its time is over. If the definition
    /// of the queue is lost, the id stays in the journal: a later start may read the definition.
    fn restore_id(&mut self, definition: Definition, context: &mut Context<'_>) {
        let Definition::MessageId(address, id, until) = definition else { return };
        let key = self.lookup(&address.channel);
        let queue = key.and_then(|key| self.channels[key].queues.get_mut(&address.id));
        match queue.filter(|queue| !queue.metadata.options_lost) {
            Some(queue) => queue.restore_id(&id, until, Sequence(0), context),
            None if until <= context.now => {
                context.record(Record::ForgetId(Arc::new(address), id.into()));
            }
            None => {}
        }
    }

    pub(crate) fn restore_channel(&mut self, name: &ChannelName, context: &mut Context<'_>) -> usize {
        self.lookup(name).unwrap_or_else(|| {
            let options = context.state.config.channel.clone();
            context.state.config.names.restore_channel(name);
            let mut channel = Channel::new(name.clone(), options, context.state);
            channel.options_lost = true;
            self.insert_channel(channel)
        })
    }

    /// Creates the queue of a restored message if its definition is missing, and returns the key of its
    /// channel. Such a queue keeps its messages and saves new ones. Any other options could lose them: those
    /// of a memory queue would confirm messages that it does not save. The options are not recorded,
    /// because the damaged part may be readable again later.
    pub(crate) fn restore_queue(&mut self, address: &QueueAddress, context: &mut Context<'_>) -> usize {
        let key = self.restore_channel(&address.channel, context);
        let channel = &mut self.channels[key];
        if !channel.queues.contains_key(&address.id) {
            let options = QueueOptions {
                status: Status::Paused,
                request_acknowledge: true,
                delivery_handler: Some(policy::AT_LEAST_ONCE.key.into()),
                ..QueueOptions::default()
            };
            context.state.config.names.restore_queue(address);
            let mut queue = Queue::new(address.clone(), key, options, context.state);
            queue.metadata.options_lost = true;
            queue.metadata.message_observers = context.state.message_observers(channel.observers);
            channel.queues.insert(address.id, queue);
            let report = Report::DefinitionLost { queue: address.clone() };
            context.effects.push(Effect::Report(Box::new(report)));
        }
        key
    }

    pub(crate) fn restore_message(
        &mut self,
        address: &QueueAddress,
        channel: usize,
        message: RecoveredMessage,
        (progress, terms): (DeliveryProgress, Option<PutTerms>),
        is_held: bool,
        context: &mut Context<'_>,
    ) {
        let paged_out = PagedOut {
            deadline: Timestamp::NEVER,
            attempts: progress.attempts,
            requeues: progress.requeues,
            sequence: message.sequence,
            number: message.number,
            // Its producer was confirmed before the restart, or will never ask again.
            answered: true,
            bytes: message.bytes.into(),
        };
        if let Some(queue) = self.channels[channel].queues.get_mut(&address.id) {
            let level = if message.high_priority { LEVEL_HIGH } else { LEVEL_NORMAL };
            let unset = PutTerms { not_before: Timestamp(0), expires: Timestamp::NEVER, level };
            let received = Timestamp(u64::from(message.received_s) * 1_000);
            queue.restore(paged_out, terms.unwrap_or(unset), (progress, received), is_held, context);
        }
    }

    /// Everything up to `sequence` is durable at this level: written, or written and synced.
    pub(crate) fn committed(&mut self, level: Durability, sequence: Sequence, context: &mut Context<'_>) {
        let mut done = context.state.commits.committed(level, sequence);
        if level == Durability::Fsync {
            // Synced records are written, whether or not that was reported before.
            done.extend(context.state.commits.committed(Durability::Os, sequence));
        }
        let written = context.state.commits.caught_up();
        context.state.unsaved.subtract(written);
        for awaiting in done {
            match awaiting {
                Awaiting::Save(save) => {
                    self.resume(save.queue, save.suspended, Some(Decision::ALLOW), context);
                }
                Awaiting::Answer(connection, event) => {
                    context.effects.push(Effect::Notify(connection, event))
                }
                Awaiting::Transfer(end) => context.effects.push(Effect::Transferred(end)),
                Awaiting::Release(arrival) => context.effects.push(Effect::Release(arrival)),
                Awaiting::Confirm(link, numbers) => {
                    context.effects.push(Effect::Notify(link, Event::Confirmed(numbers)));
                }
            }
        }
    }

    /// The journal refuses records, for now or for good.
    pub(crate) fn storage_refuses(&mut self, why: &str, context: &mut Context<'_>) {
        context.state.commits.storage = Storage::Refusing(why.into());
        context.state.commits.doubt_uncommitted();
        let unwritten = context.state.commits.given_up();
        context.state.unsaved.subtract(unwritten);
        for awaiting in context.state.commits.uncommitted() {
            match awaiting {
                Awaiting::Save(save) => {
                    self.resume(save.queue, save.suspended, Some(Decision::REFUSE), context);
                }
                Awaiting::Answer(connection, Event::Answered(request, Ok(_))) => {
                    let reason = format!("the change was made, but it will not survive a restart: {why}");
                    let rejection = Rejection::new(RejectionKind::Busy, reason);
                    let event = Event::Answered(request, Err(rejection));
                    context.effects.push(Effect::Notify(connection, event));
                }
                Awaiting::Answer(connection, event) => {
                    context.effects.push(Effect::Notify(connection, event))
                }
                // A moved message goes back. A dead letter's old shard keeps it: after a restart it may be
                // duplicated, but it is not lost.
                Awaiting::Transfer(end) => self.refuse_arrival(*end, why, context),
                // At worst the message is in both queues after a restart.
                Awaiting::Release(arrival) => context.effects.push(Effect::Release(arrival)),
                // The messages were taken. At worst they arrive once more after a crash.
                Awaiting::Confirm(link, numbers) => {
                    context.effects.push(Effect::Notify(link, Event::Confirmed(numbers)));
                }
            }
        }
    }

    /// The journal takes records again. All definitions are recorded once more, because some may have
    /// been refused.
    pub(crate) fn storage_accepts(&mut self, context: &mut Context<'_>) {
        context.state.commits.storage = Storage::Ready;
        context.state.commits.define_anew();
        let numbers = context.state.history.as_ref().map(|history| history.reserved());
        for router in self.routers.iter().filter(|router| router.saved) {
            context.record(Record::DefineRouter(Box::new(router.definition.clone())));
        }
        for (pattern, queue) in self.topics.saved_bindings() {
            context.record(Record::BindTopic(pattern.clone(), queue.clone()));
        }
        if let Some(numbers) = numbers {
            context.record(Record::Numbers(numbers));
        }
        for (_, channel) in &self.channels {
            if !channel.options_lost {
                let options = Box::new(channel.options.clone());
                context.record(Record::DefineChannel(channel.name.clone(), options));
            }
            for queue in channel.queues.values().filter(|queue| !queue.metadata.options_lost) {
                let options = Box::new(queue.metadata.options.clone());
                context.record(Record::DefineQueue((*queue.metadata.address).clone(), options));
                queue.record_ids(context);
            }
        }
    }
}

/// Numbers continue where the last run stopped, and the history records the start of a new run.
fn start_history(definitions: &[Definition], messages: &[RecoveredMessage], context: &mut Context<'_>) {
    let Some(history) = &mut context.state.history else { return };
    for definition in definitions {
        if let Definition::Numbers(reserved) = definition {
            history.skip(*reserved);
        }
    }
    // Only a journal that was edited manually has larger numbers.
    let largest = messages.iter().map(|message| message.number).max().unwrap_or_default();
    history.skip(MessageNumber(largest.0.saturating_add(1)));
    history.started(context.now);
}
