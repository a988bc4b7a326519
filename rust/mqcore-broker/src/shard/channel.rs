//! A channel: its members, its queues, and the subscribers of its events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;
use crate::context::state::ShardState;
use crate::model::client::Client;
use crate::model::command::EventKind;
use crate::model::config::HandlerSpec;
use crate::model::decision::Step;
use crate::model::effect::{Effect, Event, Notification, Subject};
use crate::model::id::{ChannelName, ConnectionId, QueueAddress, Tag};
use crate::model::observation::{ChannelState, ObservedSubject, Observers};
use crate::model::options::{ChannelChanges, ChannelOptions, DeadLetter, QueueChanges, QueueOptions, Status};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::ChannelInformation;
use crate::queue::Queue;
use crate::queue::members::{Consumer, Member, Members};

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) name: ChannelName,
    pub(crate) options: ChannelOptions,
    /// Whether its definition was lost with a part of the journal. `options` are then those of a new channel.
    pub(crate) options_lost: bool,
    pub(crate) members: Members,
    /// Boxed: a node of the tree has room for eleven, and is half empty if ids ascend.
    pub(crate) queues: BTreeMap<u16, Box<Queue>>,
    /// The event handlers that hear about this channel.
    pub(crate) observers: Observers,
    /// Subscribers of events of this channel.
    watchers: Vec<(EventKind, ConnectionId)>,
}

impl Channel {
    pub(crate) fn new(name: ChannelName, options: ChannelOptions, state: &ShardState) -> Self {
        Self {
            observers: state.observers(&options),
            name,
            options,
            options_lost: false,
            members: Members::default(),
            queues: BTreeMap::new(),
            watchers: Vec::new(),
        }
    }

    /// Finds the event handlers once more: its options changed, or a handler was registered.
    pub(crate) fn choose_observers(&mut self, state: &ShardState) {
        self.observers = state.observers(&self.options);
        let message_observers = state.message_observers(self.observers);
        for queue in self.queues.values_mut() {
            queue.metadata.message_observers = message_observers;
        }
    }

    /// The channel at this moment, for event handlers.
    pub(crate) fn state(&self) -> ChannelState {
        ChannelState {
            name: self.name.clone(),
            clients: self.client_count() as u32,
            client_limit: self.options.client_limit,
            queues: self.queues.keys().copied().collect(),
        }
    }

    pub(crate) fn information(&self) -> ChannelInformation {
        ChannelInformation {
            channel: self.name.clone(),
            options: self.options.clone(),
            queues: self.queues.keys().copied().collect(),
            active_clients: self.client_count() as u32,
        }
    }

    /// Number of clients that joined the channel, for all or for some of its queues.
    pub(crate) fn client_count(&self) -> usize {
        self.members.len() + self.members.partial().len()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        let idle = |queue: &Queue| queue.is_empty() && queue.subscriptions().next().is_none();
        self.client_count() == 0 && self.queues.values().all(|queue| idle(queue))
    }

    pub(crate) fn join(&mut self, client: &Arc<Client>, context: &mut Context<'_>) -> Result<(), Rejection> {
        if self.members.has_joined(client.connection) {
            return Ok(());
        }
        self.may_join()?;
        self.members.join(Consumer::of_channel(client.clone()), context.now);
        self.notify_subscription(EventKind::ClientJoined, client, context);
        for queue in self.queues.values_mut() {
            queue.joined(client, context);
        }
        Ok(())
    }

    fn may_join(&self) -> Result<(), Rejection> {
        let limit = self.options.client_limit as usize;
        if limit > 0 && self.client_count() >= limit {
            let name = &self.name;
            let reason = format!("channel {name} has reached its limit of {limit} clients");
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        Ok(())
    }

    /// A client joins for some queues of the channel; see [`Channel::consume`].
    pub(crate) fn join_partly(
        &mut self,
        client: &Arc<Client>,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        if self.members.has_joined_partly(client.connection) {
            return Ok(());
        }
        let whole = self.members.position((client.connection, Tag::CHANNEL));
        let joined_at = match whole {
            None => {
                self.may_join()?;
                context.now
            }
            Some(position) => {
                let joined_at = self.members.list()[position].joined_at;
                self.leave_whole(client.connection, context);
                joined_at
            }
        };
        let member = Member { consumer: Consumer::of_channel(client.clone()), joined_at };
        for queue in self.queues.values_mut() {
            queue.joined_partly(&member, context);
        }
        self.members.join_partly(member);
        if whole.is_none() {
            self.notify_subscription(EventKind::ClientJoined, client, context);
        }
        Ok(())
    }

    /// A client that joined partly consumes a queue, or changes its prefetch. Returns the time to acknowledge a
    /// delivery, if the queue requests acknowledgements.
    pub(crate) fn consume(
        &mut self,
        client: &Arc<Client>,
        id: u16,
        prefetch: u32,
        context: &mut Context<'_>,
    ) -> Result<Option<Duration>, Rejection> {
        let Self { name, members, queues, .. } = self;
        let queue = queues.get_mut(&id).ok_or_else(|| no_queue(name, id))?;
        if let Some(partial) = members.partial_mut(client.connection) {
            partial.queues.retain(|(known, _)| *known != id);
            partial.queues.push((id, prefetch));
        }
        queue.subscribe(Consumer::of_queue(client.clone(), prefetch), members, context);
        let options = &queue.metadata.options;
        Ok(options.request_acknowledge.then_some(options.acknowledge_timeout))
    }

    /// A client consumes these queues no longer. Returns whether it stays in the channel.
    pub(crate) fn leave_queues(
        &mut self,
        connection: ConnectionId,
        ids: &[u16],
        context: &mut Context<'_>,
    ) -> bool {
        for id in ids {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.left_queue(connection, context);
            }
        }
        self.members.partial_mut(connection).is_some_and(|partial| {
            partial.queues.retain(|(id, _)| !ids.contains(id));
            partial.stays || !partial.queues.is_empty()
        })
    }

    /// A client leaves all queues without an event. `false` if it had not joined for all queues.
    fn leave_whole(&mut self, connection: ConnectionId, context: &mut Context<'_>) -> bool {
        let Some(position) = self.members.leave((connection, Tag::CHANNEL)) else { return false };
        for queue in self.queues.values_mut() {
            queue.left(connection, position, context);
        }
        true
    }

    /// `false` if the client had not joined.
    pub(crate) fn leave(&mut self, client: &Arc<Client>, context: &mut Context<'_>) -> bool {
        let connection = client.connection;
        if self.members.leave_partly(connection) {
            for queue in self.queues.values_mut() {
                queue.left_partly(connection, context);
            }
        } else if !self.leave_whole(connection, context) {
            return false;
        }
        self.notify_subscription(EventKind::ClientLeft, client, context);
        true
    }

    /// Whether messages of its queues are in flight at this client.
    pub(crate) fn has_deliveries_of(&self, connection: ConnectionId) -> bool {
        self.queues.values().any(|queue| !queue.deliveries.of(connection, None).is_empty())
    }

    /// Settles the deliveries of a client that is gone.
    pub(crate) fn consumer_lost(&mut self, connection: ConnectionId, context: &mut Context<'_>) {
        for queue in self.queues.values_mut() {
            queue.consumer_lost(connection, None, context);
        }
    }

    pub(crate) fn create_queue(
        &mut self,
        channel: usize,
        id: u16,
        changes: &QueueChanges,
        creator: Option<&Client>,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        if self.has_lost_options(id) {
            return self.change_options(id, self.defaults(changes), changes, context);
        }
        self.may_create(id)?;
        let address = QueueAddress { channel: self.name.clone(), id };
        check_changes(Some(&address), changes, context.state)?;
        let mut options = self.defaults(changes);
        changes.apply_to(&mut options);
        check_waiting(changes, &options)?;
        let (options, _) = options_with_policies(&address, options, None, context.state);
        let config = &context.state.config;
        let added = config.names.add_queue(&address, creator, &config.creation_limits);
        added.map_err(|limit| context.not_created(&limit))?;
        self.add_queue(channel, address, options, context);
        Ok(())
    }

    /// The options of a new queue, before these changes.
    fn defaults(&self, changes: &QueueChanges) -> QueueOptions {
        let mut options = self.options.queue.clone();
        // A broadcast queue stores no messages, so none can wait for an acknowledgement.
        let status = changes.status.unwrap_or(options.status);
        options.wait_for_acknowledge &= status != Status::Broadcast;
        options
    }

    /// Adds a queue whose name is known, whatever the channel's options allow.
    pub(crate) fn add_queue(
        &mut self,
        channel: usize,
        address: QueueAddress,
        options: QueueOptions,
        context: &mut Context<'_>,
    ) {
        let id = address.id;
        context.record(Record::DefineQueue(address.clone(), Box::new(options.clone())));
        let mut queue = Queue::new(address, channel, options, context.state);
        queue.metadata.message_observers = context.state.message_observers(self.observers);
        for partial in self.members.partial() {
            for (_, prefetch) in partial.queues.iter().filter(|(consumed, _)| *consumed == id) {
                let client = partial.member.consumer.client.clone();
                queue.subscribe(Consumer::of_queue(client, *prefetch), &self.members, context);
            }
        }
        self.queues.insert(id, queue);
        self.notify_queue(EventKind::QueueCreated, id, context);
        self.observe_queue(Step::QueueCreated, id, None, context);
    }

    /// Whether there is such a queue, without its definition.
    fn has_lost_options(&self, id: u16) -> bool {
        self.queues.get(&id).is_some_and(|queue| queue.metadata.options_lost)
    }

    fn may_create(&self, id: u16) -> Result<(), Rejection> {
        let name = &self.name;
        let refuse = |kind, reason: String| Err(Rejection::new(kind, reason));
        if self.queues.contains_key(&id) {
            return refuse(RejectionKind::AlreadyExists, format!("queue {name}/{id} already exists"));
        }
        if !self.options.allow_multiple_queues && !self.queues.is_empty() {
            let reason = format!("channel {name} allows only one queue and already has it");
            return refuse(RejectionKind::Unacceptable, reason);
        }
        if let Some(allowed) = &self.options.allowed_queues
            && !allowed.is_empty()
            && !allowed.contains(&id)
        {
            let reason = format!("channel {name} does not allow queue {id}; it allows {allowed:?}");
            return refuse(RejectionKind::Unacceptable, reason);
        }
        let limit = self.options.queue_limit as usize;
        if limit > 0 && self.queues.len() >= limit {
            let reason = format!("channel {name} has reached its limit of {limit} queues");
            return refuse(RejectionKind::LimitExceeded, reason);
        }
        Ok(())
    }

    pub(crate) fn update_queue(
        &mut self,
        id: u16,
        changes: &QueueChanges,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let queue = self.queues.get(&id).ok_or_else(|| no_queue(&self.name, id))?;
        let options = queue.metadata.options.clone();
        self.change_options(id, options, changes, context)
    }

    /// Gives a queue these options with some changed.
    fn change_options(
        &mut self,
        id: u16,
        mut options: QueueOptions,
        changes: &QueueChanges,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        let Some(queue) = self.queues.get(&id) else { return Err(no_queue(&self.name, id)) };
        check_changes(Some(&queue.metadata.address), changes, context.state)?;
        context.check_definitions()?;
        changes.apply_to(&mut options);
        check_waiting(changes, &options)?;
        self.replace_options(id, options, context);
        Ok(())
    }

    /// Gives a queue the options of all policies for it. Returns why the policy `named` cannot apply, if it cannot.
    pub(crate) fn apply_policies(
        &mut self,
        id: u16,
        named: Option<&str>,
        context: &mut Context<'_>,
    ) -> Option<Rejection> {
        let queue = self.queues.get(&id)?;
        let (address, now) = (&queue.metadata.address, &queue.metadata.options);
        let (options, rejection) = options_with_policies(address, now.clone(), named, context.state);
        if options != *now {
            self.replace_options(id, options, context);
        }
        rejection
    }

    fn replace_options(&mut self, id: u16, options: QueueOptions, context: &mut Context<'_>) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let status = queue.metadata.options.status;
        queue.set_options(options, context);
        let options = Box::new(queue.metadata.options.clone());
        context.record(Record::DefineQueue((*queue.metadata.address).clone(), options));
        let changed = queue.metadata.options.status != status;
        self.notify_queue(EventKind::QueueUpdated, id, context);
        self.observe_queue(Step::QueueUpdated, id, Some(status), context);
        if changed {
            self.observe_queue(Step::QueueStatusChanged, id, Some(status), context);
        }
    }

    pub(crate) fn remove_queue(&mut self, id: u16, context: &mut Context<'_>) -> Result<(), Rejection> {
        self.notify_queue(EventKind::QueueRemoved, id, context);
        self.observe_queue(Step::QueueRemoved, id, None, context);
        let queue = self.queues.remove(&id).ok_or_else(|| no_queue(&self.name, id))?;
        retire(queue, context);
        Ok(())
    }

    /// Removes all queues, each with its event.
    pub(crate) fn remove_queues(&mut self, context: &mut Context<'_>) {
        while let Some(id) = self.queues.keys().next().copied() {
            self.notify_queue(EventKind::QueueRemoved, id, context);
            self.observe_queue(Step::QueueRemoved, id, None, context);
            if let Some(queue) = self.queues.remove(&id) {
                retire(queue, context);
            }
        }
    }

    pub(crate) fn watch(&mut self, kind: EventKind, connection: ConnectionId, on: bool) {
        self.watchers.retain(|watcher| *watcher != (kind, connection));
        if on {
            self.watchers.push((kind, connection));
        }
    }

    pub(crate) fn forget_watcher(&mut self, connection: ConnectionId) {
        self.watchers.retain(|(_, watcher)| *watcher != connection);
        for queue in self.queues.values_mut() {
            queue.watchers.retain(|watcher| *watcher != connection);
        }
    }

    /// Notifies the event handlers that something happened to a queue. `before`: its status before; `None`: the
    /// same.
    fn observe_queue(&self, step: Step, id: u16, before: Option<Status>, context: &mut Context<'_>) {
        let Some(queue) = self.queues.get(&id).filter(|_| !self.observers.is_empty()) else { return };
        context.observe(self.observers, step, || {
            let status = before.unwrap_or(queue.metadata.options.status);
            ObservedSubject::Queue(Box::new(queue.information(&self.members)), status)
        });
    }

    fn notify_subscription(&self, kind: EventKind, client: &Arc<Client>, context: &mut Context<'_>) {
        let joined = kind == EventKind::ClientJoined;
        let step = if joined { Step::ClientJoined } else { Step::ClientLeft };
        context
            .observe(self.observers, step, || ObservedSubject::Membership(self.state(), Arc::clone(client)));
        self.notify(kind, None, context, || Subject::Subscription {
            client_id: client.id.clone(),
            client_name: client.name.clone(),
            client_kind: client.kind.clone(),
        });
    }

    fn notify_queue(&self, kind: EventKind, id: u16, context: &mut Context<'_>) {
        let Some(queue) = self.queues.get(&id) else { return };
        self.notify(kind, Some(id), context, || {
            let (high_priority, normal) = queue.waiting();
            let options = &queue.metadata.options;
            Subject::Queue { tag: options.tag.clone(), status: options.status, high_priority, normal }
        });
    }

    fn notify(
        &self,
        kind: EventKind,
        queue: Option<u16>,
        context: &mut Context<'_>,
        subject: impl FnOnce() -> Subject,
    ) {
        let mut watchers = self.watchers.iter().filter(|(watched, _)| *watched == kind).peekable();
        if watchers.peek().is_none() {
            return;
        }
        let channel = Some(self.name.clone());
        let notification = Arc::new(Notification { kind, channel, queue, subject: subject() });
        for (_, watcher) in watchers {
            context.effects.push(Effect::Notify(*watcher, Event::Notified(notification.clone())));
        }
    }
}

fn retire(mut queue: Box<Queue>, context: &mut Context<'_>) {
    queue.end_subscriptions(context);
    queue.erase(context);
    queue.forget_ids(context);
    context.record(Record::RemoveQueue((*queue.metadata.address).clone()));
    context.state.config.names.remove_queue(&queue.metadata.address);
    context.state.schedule.timers.remove(&(queue.armed(), queue.metadata.queue_ref));
    context.state.counters.retired.add(&queue.metadata.stats);
    context.state.without_handler.remove(&queue.metadata.address);
    if let Some(removed) = &mut context.state.removed_queues {
        removed.push((Arc::clone(&queue.metadata.address), queue.metadata.stats));
    }
}

/// Rejects names that do not exist at once, like [`check_changes`], which checks the defaults of its queues.
pub(crate) fn check_channel_changes(changes: &ChannelChanges, state: &ShardState) -> Result<(), Rejection> {
    let named = [
        ("event handler", &changes.event_handler, HandlerSpec::event_handler_key as fn(&str) -> String),
        ("authenticator", &changes.authenticator, HandlerSpec::authenticator_key),
    ];
    for (what, name, key) in named {
        let Some(name) = name.as_deref().filter(|name| !name.is_empty()) else { continue };
        if state.handler(&key(name)).is_none() {
            let prefix = key("");
            let known = state.handlers.iter().filter_map(|spec| spec.key.strip_prefix(&*prefix));
            let known = known.collect::<Vec<_>>().join(", ");
            let known =
                if known.is_empty() { "none is registered".into() } else { format!("registered: {known}") };
            let reason =
                format!("no {what} has the key {name:?} ({known}); register it in the program first");
            return Err(Rejection::new(RejectionKind::BadRequest, reason));
        }
    }
    check_changes(None, &changes.queue, state)
}

/// Rejects names that do not exist at once, not when the first message needs them. `queue`: the queue that is
/// changed; `None` for the defaults of a channel.
pub(crate) fn check_changes(
    queue: Option<&QueueAddress>,
    changes: &QueueChanges,
    state: &ShardState,
) -> Result<(), Rejection> {
    if let Some(key) = changes.delivery_handler.as_deref()
        && state.handler(key).is_none_or(|found| !state.spec(found).is_for_queues())
    {
        let known = state.handlers.iter().filter(|spec| spec.is_for_queues());
        let known: Vec<_> = known.map(|spec| &*spec.key).collect();
        let mut reason = format!("no delivery handler has the key {key:?}; known keys: {}", known.join(", "));
        let keys = [key.into(), HandlerSpec::event_handler_key(key), HandlerSpec::authenticator_key(key)];
        if let Some(other) = keys.iter().find_map(|key| state.handler(key)) {
            reason.push_str(&format!("; {key:?} is {}", state.spec(other).kind()));
        }
        return Err(Rejection::new(RejectionKind::BadRequest, reason));
    }
    let Some(Some(DeadLetter::Queue(to))) = &changes.dead_letter else { return Ok(()) };
    if queue.is_some_and(|queue| queue.is(to)) {
        let reason = format!("queue {to} cannot be its own dead-letter queue; name another one");
        return Err(Rejection::new(RejectionKind::Unacceptable, reason));
    }
    if !state.config.is_destination(to) {
        let reason = format!("dead-letter queue {to} does not exist; create it first");
        return Err(Rejection::new(RejectionKind::NotFound, reason));
    }
    Ok(())
}

/// The options of a queue with those of all policies for it. A policy that the queue cannot have is left out: the queue must
/// exist all the same. Also returns why the policy `named` is left out, if it is.
pub(crate) fn options_with_policies(
    queue: &QueueAddress,
    mut options: QueueOptions,
    named: Option<&str>,
    state: &ShardState,
) -> (QueueOptions, Option<Rejection>) {
    let mut rejection = None;
    for policy in state.policies.of(queue) {
        let mut changed = options.clone();
        policy.options.apply_to(&mut changed);
        let checked = check_changes(Some(queue), &policy.options, state)
            .and_then(|()| check_waiting(&policy.options, &changed));
        match checked {
            Ok(()) => options = changed,
            Err(rejected) if named == Some(&*policy.name) => rejection = Some(rejected),
            Err(_) => {}
        }
    }
    (options, rejection)
}

/// Rejects a change after which a queue that stores no messages would hold them back.
fn check_waiting(changes: &QueueChanges, options: &QueueOptions) -> Result<(), Rejection> {
    let changes_it = changes.wait_for_acknowledge.is_some() || changes.status.is_some();
    if changes_it && options.wait_for_acknowledge && options.status == Status::Broadcast {
        let reason = "a broadcast queue stores no messages, so none can wait for an acknowledgement; choose another \
                      status, or do not wait";
        return Err(Rejection::new(RejectionKind::Unacceptable, reason));
    }
    Ok(())
}

pub(crate) fn no_queue(channel: &ChannelName, id: u16) -> Rejection {
    Rejection::new(RejectionKind::NotFound, format!("queue {channel}/{id} does not exist; create it first"))
}
