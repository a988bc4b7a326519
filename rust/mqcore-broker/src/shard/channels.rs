//! Channels, their members, and the subscribers of events.

use std::sync::Arc;

use crate::context::Context;
use crate::model::client::Client;
use crate::model::command::{EventKind, EventScope, EventSubscription};
use crate::model::decision::Step;
use crate::model::effect::{Effect, Event, Notification, Reply, Subject};
use crate::model::id::{ChannelName, ConnectionId, QueueAddress};
use crate::model::observation::ObservedSubject;
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::subscription::{JoinedQueues, QueueJoin};
use crate::shard::channel::{Channel, check_changes, check_channel_changes, no_queue};
use crate::shard::entities::{Entities, PeerState, find, no_channel};

impl Entities {
    /// A connection was closed. Call this on every shard.
    pub(crate) fn closed(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        context.state.links.retain(|_, link| *link != connection);
        if context.state.congestion.since.remove(&connection).is_some() {
            context.state.congestion.changes += 1;
        }
        self.topics.forget(connection);
        self.authentications.forget(connection);
        self.watchers.retain(|(_, watcher)| *watcher != connection);
        if let Some(peer) = self.peers.remove(&connection) {
            self.peer_lost(peer, context);
        }
        self.directory.leave(connection, context);
    }

    /// Ends what a closed connection had here. The cost depends on its own channels, not on all of them.
    fn peer_lost(&mut self, peer: PeerState, context: &mut Context<'_>) {
        let PeerState { client, joined, left, watched, subscribed } = peer;
        let connection = client.connection;
        for key in watched {
            if let Some(channel) = self.channels.get_mut(key) {
                channel.forget_watcher(connection);
            }
        }
        for key in &joined {
            self.channels[*key].leave(&client, context);
        }
        for queue_ref in &subscribed {
            if let Some(queue) = find(&mut self.channels, *queue_ref) {
                queue.forget_subscriber(connection, context);
            }
        }
        // Now no queue delivers to it again what it requeues.
        let mut used = left;
        used.extend(joined);
        for key in &used {
            if let Some(channel) = self.channels.get_mut(*key) {
                channel.consumer_lost(connection, context);
            }
        }
        for queue_ref in &subscribed {
            if let Some(queue) = find(&mut self.channels, *queue_ref) {
                queue.consumer_lost(connection, None, context);
            }
        }
        for queue_ref in subscribed {
            used.insert(queue_ref.channel);
            self.abandon(queue_ref, context);
        }
        for key in used {
            self.destroy_if_abandoned(key, context);
        }
    }

    /// A connection's output buffer fell below its low mark again.
    pub(crate) fn writable(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        if context.state.congestion.since.remove(&connection).is_none() {
            return;
        }
        context.state.congestion.changes += 1;
        let Some(peer) = self.peers.get(&connection) else { return };
        for key in &peer.joined {
            for queue in self.channels[*key].queues.values_mut() {
                queue.schedule(context);
            }
        }
        for queue_ref in &peer.subscribed {
            if let Some(queue) = find(&mut self.channels, *queue_ref) {
                queue.schedule(context);
            }
        }
    }

    pub(crate) fn join(
        &mut self,
        client: &Arc<Client>,
        channel: &ChannelName,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let key = self.channel_for_joining(channel, client, context)?;
        self.channels[key].join(client, context)?;
        self.note_joined(client, key);
        Ok(Reply::Done)
    }

    /// The channel with this name. Creates it if the configuration allows it.
    fn channel_for_joining(
        &mut self,
        channel: &ChannelName,
        client: &Client,
        context: &mut Context<'_>,
    ) -> Result<usize, Rejection> {
        match self.lookup(channel) {
            Some(key) => Ok(key),
            None if context.state.config.auto_create_channels => {
                self.create_channel(channel, &ChannelChanges::default(), Some(client), context)
            }
            None => Err(no_channel(channel)),
        }
    }

    fn note_joined(&mut self, client: &Arc<Client>, key: usize) {
        let peer = self.peer(client);
        if !peer.joined.contains(&key) {
            peer.joined.push(key);
        }
    }

    /// A client joins a channel for some of its queues, all or none of them.
    pub(crate) fn join_queues(
        &mut self,
        client: &Arc<Client>,
        join: QueueJoin,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let address = |id: &u16| QueueAddress { channel: join.channel.clone(), id: *id };
        let missing = |id: &&u16| !self.takes(&address(id), &context.state.config);
        if let Some(id) = join.queues.iter().find(missing) {
            return Err(no_queue(&join.channel, *id));
        }
        for id in &join.queues {
            self.channel_for_publishing(&address(id), Some(client), context)?;
        }
        let key = self.channel_for_joining(&join.channel, client, context)?;
        self.channels[key].join_partly(client, context)?;
        self.note_joined(client, key);
        if join.queues.is_empty()
            && let Some(partial) = self.channels[key].members.partial_mut(client.connection)
        {
            partial.stays = true;
        }
        let mut acknowledge_timeouts = Vec::with_capacity(join.queues.len());
        for id in &join.queues {
            acknowledge_timeouts.push(self.channels[key].consume(client, *id, join.prefetch, context)?);
        }
        Ok(Reply::JoinedQueues(Box::new(JoinedQueues { join, acknowledge_timeouts })))
    }

    pub(crate) fn leave_queues(
        &mut self,
        client: &Arc<Client>,
        channel: &ChannelName,
        queues: &[u16],
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(channel).ok_or_else(|| no_channel(channel))?;
        let Channel { members, .. } = &self.channels[key];
        if members.has_joined(client.connection) && !members.has_joined_partly(client.connection) {
            let reason = format!("the client joined all queues of channel {channel}; leave the channel");
            return Err(Rejection::new(RejectionKind::Unacceptable, reason));
        }
        if self.channels[key].leave_queues(client.connection, queues, context) {
            return Ok(Reply::Done);
        }
        self.leave(client, channel, context)
    }

    pub(crate) fn leave(
        &mut self,
        client: &Arc<Client>,
        channel: &ChannelName,
        context: &mut Context<'_>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(channel).ok_or_else(|| no_channel(channel))?;
        if !self.channels[key].leave(client, context) {
            let reason = format!("the client has not joined channel {channel}");
            return Err(Rejection::new(RejectionKind::NotFound, reason));
        }
        let has_deliveries = self.channels[key].has_deliveries_of(client.connection);
        let peer = self.peer(client);
        peer.joined.retain(|joined| *joined != key);
        if has_deliveries {
            peer.left.insert(key);
        }
        self.destroy_if_abandoned(key, context);
        Ok(Reply::Done)
    }

    /// Creates a channel. `creator`: the client whose limit applies; `None` for what the program declares.
    pub(crate) fn create_channel(
        &mut self,
        name: &ChannelName,
        changes: &ChannelChanges,
        creator: Option<&Client>,
        context: &mut Context<'_>,
    ) -> Result<usize, Rejection> {
        check_channel_changes(changes, context.state)?;
        let config = &context.state.config;
        let added = config.names.add_channel(name, creator, config.channel_limit, &config.creation_limits);
        added.map_err(|limit| context.not_created(&limit))?;
        let mut options = context.state.config.channel.clone();
        changes.apply_to(&mut options);
        let key = self.insert_channel(Channel::new(name.clone(), options, context.state));
        self.notify(EventKind::ChannelCreated, key, context);
        let options = Box::new(self.channels[key].options.clone());
        context.record(Record::DefineChannel(name.clone(), options));
        Ok(key)
    }

    /// Changes options of a channel. Its queues keep theirs, and its clients stay even above a new limit.
    pub(crate) fn update_channel(
        &mut self,
        name: &ChannelName,
        changes: &ChannelChanges,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let key = self.lookup(name).ok_or_else(|| no_channel(name))?;
        check_channel_changes(changes, context.state)?;
        context.check_definitions()?;
        let channel = &mut self.channels[key];
        changes.apply_to(&mut channel.options);
        channel.options_lost = false;
        channel.choose_observers(context.state);
        let options = Box::new(channel.options.clone());
        context.record(Record::DefineChannel(channel.name.clone(), options));
        self.destroy_if_abandoned(key, context);
        Ok(())
    }

    /// Creates a queue, and its channel if it is missing. `creator`: as for a channel.
    pub(crate) fn create_queue(
        &mut self,
        address: &QueueAddress,
        changes: &QueueChanges,
        creator: Option<&Client>,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let key = match self.lookup(&address.channel) {
            Some(key) => key,
            None => {
                check_changes(Some(address), changes, context.state)?;
                self.create_channel_for_queue(address, creator, context)?
            }
        };
        self.channels[key].create_queue(key, address.id, changes, creator, context)
    }

    /// Creates the channel of a queue that is created next.
    pub(crate) fn create_channel_for_queue(
        &mut self,
        address: &QueueAddress,
        creator: Option<&Client>,
        context: &mut Context<'_>,
    ) -> Result<usize, Rejection> {
        let config = &context.state.config;
        let room = config.names.check_queue(creator, &config.creation_limits);
        room.map_err(|limit| context.not_created(&limit))?;
        self.create_channel(&address.channel, &ChannelChanges::default(), creator, context)
    }

    pub(crate) fn remove_channel(&mut self, key: usize, context: &mut Context<'_>) {
        self.channels[key].remove_queues(context);
        context.record(Record::RemoveChannel(self.channels[key].name.clone()));
        context.state.config.names.remove_channel(&self.channels[key].name);
        self.notify(EventKind::ChannelRemoved, key, context);
        self.take_channel(key);
        for peer in self.peers.values_mut() {
            peer.joined.retain(|joined| *joined != key);
        }
    }

    /// Removes a channel if it is configured to be removed when it is empty, and is.
    pub(crate) fn destroy_if_abandoned(&mut self, key: usize, context: &mut Context<'_>) {
        let abandoned = |channel: &Channel| channel.options.destroy_when_empty && channel.is_abandoned();
        if self.channels.get(key).is_some_and(abandoned) {
            self.remove_channel(key, context);
        }
    }

    pub(crate) fn subscribe(
        &mut self,
        client: &Arc<Client>,
        subscription: &EventSubscription,
    ) -> Result<Reply, Rejection> {
        let EventSubscription { kind, channel, queue, on } = subscription;
        let (connection, kind, on) = (client.connection, *kind, *on);
        if kind.scope() == EventScope::Server {
            if matches!(kind, EventKind::ChannelCreated | EventKind::ChannelRemoved) {
                self.watchers.retain(|watcher| *watcher != (kind, connection));
                if on {
                    self.watchers.push((kind, connection));
                }
            } else {
                self.directory.watch(kind, connection, on);
            }
            return Ok(Reply::Done);
        }
        let missing = |what: &str| {
            let reason = format!("the event {} needs a {what}; name one", kind.as_str());
            Rejection::new(RejectionKind::Failed, reason)
        };
        let name = channel.as_ref().ok_or_else(|| missing("channel"))?;
        let key = self.lookup(name).ok_or_else(|| no_channel(name))?;
        if kind.scope() == EventScope::Queue {
            let id = queue.ok_or_else(|| missing("queue"))?;
            let queue = self.channels[key].queues.get_mut(&id).ok_or_else(|| no_queue(name, id))?;
            queue.watchers.retain(|watcher| *watcher != connection);
            if on {
                queue.watchers.push(connection);
            }
        } else {
            self.channels[key].watch(kind, connection, on);
        }
        if on {
            self.peer(client).watched.insert(key);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn notify(&self, kind: EventKind, key: usize, context: &mut Context<'_>) {
        let channel = &self.channels[key];
        let created = kind == EventKind::ChannelCreated;
        let step = if created { Step::ChannelCreated } else { Step::ChannelRemoved };
        context.observe(channel.observers, step, || ObservedSubject::Channel(channel.state()));
        let subject = Subject::Channel {
            active_clients: channel.client_count() as u32,
            client_limit: channel.options.client_limit,
        };
        let name = Some(channel.name.clone());
        let notification = Arc::new(Notification { kind, channel: name, queue: None, subject });
        for (watched, watcher) in &self.watchers {
            if *watched == kind {
                context.effects.push(Effect::Notify(*watcher, Event::Notified(notification.clone())));
            }
        }
    }
}
