//! The consumers of a queue.

use std::sync::Arc;

use crate::context::Context;
use crate::model::client::Client;
use crate::model::effect::Event;
use crate::model::id::{ConnectionId, Tag};
use crate::queue::Queue;
use crate::queue::members::{Consumer, ConsumerKey, Member, Members};

impl Queue {
    /// The queue's own list of consumers, if it has one. Sharing it costs a reference count for each
    /// call into the queue, but only for queues that have one.
    pub(crate) fn own(&self) -> Option<Arc<Members>> {
        self.own.clone()
    }

    /// Subscriptions, without the members of the channel.
    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &Member> {
        let own = self.own.as_deref().map(Members::list).unwrap_or_default();
        own.iter().filter(|member| member.consumer.tag != Tag::CHANNEL)
    }

    /// Whether a subscription with this key and name exists.
    pub(crate) fn has_subscription(&self, key: ConsumerKey, name: &[u8]) -> bool {
        self.subscriptions()
            .any(|member| member.consumer.key() == key && member.consumer.name.as_deref() == Some(name))
    }

    /// Adds a subscription.
    pub(crate) fn subscribe(
        &mut self,
        consumer: Arc<Consumer>,
        channel: &Members,
        context: &mut Context<'_>,
    ) {
        let own = self.own.get_or_insert_with(|| Arc::new(channel.clone()));
        Arc::make_mut(own).join(consumer, context.now);
        self.offer_refused(context);
        self.schedule(context);
    }

    /// Ends a subscription and requeues its unsettled deliveries. Those behind the first `started` were never in the
    /// consumer's program. `false` if it does not exist.
    pub(crate) fn unsubscribe(
        &mut self,
        consumer: ConnectionId,
        tag: Tag,
        started: Option<u32>,
        context: &mut Context<'_>,
    ) -> bool {
        if !self.leave_own((consumer, tag)) {
            return false;
        }
        if let Some(started) = started {
            self.return_unstarted((consumer, tag), started, context);
        }
        self.consumer_lost(consumer, Some(tag), context);
        self.schedule(context);
        true
    }

    /// Ends all subscriptions of a connection. The queue may have waited for it, if it was slow.
    pub(crate) fn forget_subscriber(&mut self, consumer: ConnectionId, context: &mut Context<'_>) {
        let tags: Vec<_> = self
            .subscriptions()
            .filter(|member| member.consumer.client.connection == consumer)
            .map(|member| member.consumer.tag)
            .collect();
        for tag in tags {
            self.leave_own((consumer, tag));
        }
        self.schedule(context);
    }

    /// A client joined the channel.
    pub(crate) fn joined(&mut self, client: &Arc<Client>, context: &mut Context<'_>) {
        if let Some(own) = &mut self.own {
            Arc::make_mut(own).join(Consumer::of_channel(client.clone()), context.now);
        }
        self.offer_refused(context);
        self.schedule(context);
    }

    /// A client joined the channel for some of its queues.
    pub(crate) fn joined_partly(&mut self, member: &Member, context: &mut Context<'_>) {
        if let Some(own) = &mut self.own {
            Arc::make_mut(own).join_partly(member.clone());
        }
        self.schedule(context);
    }

    /// A client that joined the channel for some of its queues left this queue. Its deliveries stay in flight.
    pub(crate) fn left_queue(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        self.leave_own((connection, Tag::CHANNEL));
        self.schedule(context);
    }

    /// A client that joined the channel for some of its queues left the channel.
    pub(crate) fn left_partly(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        if let Some(own) = &mut self.own {
            Arc::make_mut(own).leave_partly(connection);
        }
        self.left_queue(connection, context);
    }

    /// A client left the channel, in whose list it was at `position`.
    pub(crate) fn left(&mut self, connection: ConnectionId, position: usize, context: &mut Context<'_>) {
        if self.own.is_some() {
            self.leave_own((connection, Tag::CHANNEL));
        } else if position < self.cursor {
            // The members behind the cursor moved up by one.
            self.cursor -= 1;
        }
        self.offer_refused(context);
        self.schedule(context);
    }

    pub(crate) fn leave_own(&mut self, key: ConsumerKey) -> bool {
        let Some(own) = &mut self.own else { return false };
        let Some(position) = Arc::make_mut(own).leave(key) else { return false };
        if position < self.cursor {
            self.cursor -= 1;
        }
        if !own.are_of_queue() {
            // From here on the channel's list has the same members in the same order.
            self.own = None;
        }
        true
    }

    /// The queue is removed: ends its subscriptions and notifies them.
    pub(crate) fn end_subscriptions(&mut self, context: &mut Context<'_>) {
        let Some(own) = self.own.take() else { return };
        for consumer in own.tagged() {
            let queue = (*self.metadata.address).clone();
            context.notify(consumer.client.connection, Event::SubscriptionEnded { queue, tag: consumer.tag });
        }
    }
}
