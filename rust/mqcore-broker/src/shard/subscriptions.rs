//! Subscriptions to queues, and the topics that queues are bound to.

use std::sync::Arc;

use crate::context::Context;
use crate::model::bindings::{QueueBinding, QueueBindings};
use crate::model::client::Client;
use crate::model::effect::{Effect, Event, Reply};
use crate::model::id::{QueueAddress, QueueRef, Tag};
use crate::model::options::QueueChanges;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::subscription::{QueueSubscription, Remote};
use crate::queue::members::{Consumer, ConsumerKey};
use crate::shard::channel::{Channel, no_queue};
use crate::shard::entities::{Entities, find, no_channel};

impl Entities {
    pub(crate) fn subscribe_queue(
        &mut self,
        client: &Arc<Client>,
        subscription: QueueSubscription,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let QueueSubscription { queue: address, tag, terms, create, name, binding, notify_self } =
            subscription;
        debug_assert_ne!(tag, Tag::CHANNEL, "sessions give subscriptions numbers of their own");
        let key = self.channel_for_consuming(&address, create, client, context)?;
        let Channel { members, queues, .. } = &mut self.channels[key];
        let queue = queues.get_mut(&address.id).ok_or_else(|| no_queue(&address.channel, address.id))?;
        let name: Option<Arc<[u8]>> = name.map(Into::into);
        let consumer =
            Arc::new(Consumer { client: client.clone(), tag, terms, name: name.clone(), by_queue: false });
        let (queue_ref, own) = (queue.metadata.queue_ref, consumer.key());
        queue.subscribe(consumer, members, context);
        self.bindings.used(&address);
        let peer = self.peer(client);
        if !peer.subscribed.contains(&queue_ref) {
            peer.subscribed.push(queue_ref);
        }
        if let Some(name) = name {
            let channels = &mut self.channels;
            self.named.add(&name, (queue_ref, own), |name, (queue_ref, key)| {
                find(channels, *queue_ref).is_some_and(|queue| queue.has_subscription(*key, name))
            });
        }
        if let Some(binding) = binding
            && let Err(rejection) = self.rebind(&address, *binding, (!notify_self).then_some(own), context)
        {
            // All or nothing: a rejected subscription does not consume.
            self.unsubscribe_queue(own, &address, None, context)?;
            return Err(rejection);
        }
        Ok(Reply::Done)
    }

    /// The channel of a queue to consume, with the queue in it.
    pub(crate) fn channel_for_consuming(
        &mut self,
        address: &QueueAddress,
        create: Option<Box<QueueChanges>>,
        client: &Client,
        context: &mut Context<'_>,
    ) -> Result<usize, Rejection> {
        let known = self.lookup(&address.channel);
        let missing = known.is_none_or(|key| !self.channels[key].queues.contains_key(&address.id));
        match create {
            Some(changes) if missing => {
                self.create_queue(address, &changes, Some(client), context)?;
                self.lookup(&address.channel).ok_or_else(|| no_channel(&address.channel))
            }
            _ => self.channel_for_publishing(address, Some(client), context),
        }
    }

    pub(crate) fn unsubscribe_queue(
        &mut self,
        consumer: ConsumerKey,
        address: &QueueAddress,
        started: Option<u32>,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(&address.channel).ok_or_else(|| no_channel(&address.channel))?;
        let queue = self.channels[key].queues.get_mut(&address.id);
        let queue = queue.ok_or_else(|| no_queue(&address.channel, address.id))?;
        let ((connection, tag), queue_ref) = (consumer, queue.metadata.queue_ref);
        if !queue.unsubscribe(connection, tag, started, context) {
            let reason = format!("the client has no such subscription to queue {address}");
            return Err(Rejection::new(RejectionKind::NotFound, reason));
        }
        let more = queue.subscriptions().any(|member| member.consumer.client.connection == connection);
        if !more && let Some(peer) = self.peers.get_mut(&connection) {
            peer.subscribed.retain(|subscribed| *subscribed != queue_ref);
        }
        self.abandon(queue_ref, context);
        self.destroy_if_abandoned(key, context);
        Ok(Reply::Done)
    }

    /// A subscription of a queue ended. If it was the last one, the queue may be removed.
    pub(crate) fn abandon(&mut self, queue_ref: QueueRef, context: &mut Context<'_>) {
        let Some(queue) = find(&mut self.channels, queue_ref) else { return };
        if queue.subscriptions().next().is_some() {
            return;
        }
        let address = queue.metadata.address.clone();
        if self.bindings.abandoned(&address, context.now) {
            self.drop_queue(&address, context);
        }
    }

    pub(crate) fn reach_subscriptions(
        &mut self,
        name: &[u8],
        what: &Remote,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let mut found = false;
        for (queue_ref, consumer) in self.named.get(name) {
            let Some(queue) = find(&mut self.channels, queue_ref) else { continue };
            if !queue.has_subscription(consumer, name) {
                continue;
            }
            found = true;
            match what {
                Remote::Settle { message_id: Some(id), negative } => {
                    queue.acknowledged_one(consumer, id, negative.as_deref(), context);
                }
                Remote::Settle { message_id: None, negative } => {
                    queue.acknowledged_all(consumer, negative.as_deref(), context);
                }
                Remote::Unsubscribe => {
                    let address = queue.metadata.address.clone();
                    self.unsubscribe_queue(consumer, &address, None, context)?;
                }
            }
        }
        let reason = || Rejection::new(RejectionKind::NotFound, "no subscription has this name");
        if found { Ok(Reply::Done) } else { Err(reason()) }
    }

    /// Changes the topics of a queue and notifies its subscriptions, except `issuer`.
    pub(crate) fn rebind(
        &mut self,
        queue: &QueueAddress,
        binding: QueueBinding,
        issuer: Option<ConsumerKey>,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let rebound = self.bindings.change(queue, binding, context)?;
        self.ticket = rebound.ticket;
        if let Some(bindings) = rebound.changed {
            self.notify_bindings(bindings, issuer, context);
        }
        Ok(())
    }

    pub(crate) fn notify_bindings(
        &mut self,
        bindings: QueueBindings,
        issuer: Option<ConsumerKey>,
        context: &mut Context<'_>,
    ) {
        let Some(key) = self.lookup(&bindings.queue.channel) else { return };
        let Some(queue) = self.channels[key].queues.get(&bindings.queue.id) else { return };
        let bindings = Arc::new(bindings);
        for member in queue.subscriptions().filter(|member| Some(member.consumer.key()) != issuer) {
            let event = Event::BindingsChanged { tag: member.consumer.tag, bindings: bindings.clone() };
            context.effects.push(Effect::Notify(member.consumer.client.connection, event));
        }
    }

    /// Removes a queue with its bindings.
    pub(crate) fn drop_queue(&mut self, address: &QueueAddress, context: &mut Context<'_>) {
        if let Some(bindings) = self.bindings.forget(address, context) {
            self.notify_bindings(bindings, None, context);
        }
        let Some(key) = self.lookup(&address.channel) else { return };
        // The queue may not exist: then nothing is left to remove.
        let _ = self.channels[key].remove_queue(address.id, context);
        self.destroy_if_abandoned(key, context);
    }
}
