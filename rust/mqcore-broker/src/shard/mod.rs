//! One shard of the broker: everything joined.

pub(crate) mod channel;
pub(crate) mod directory;
mod locate;
mod nodes;
pub(crate) mod routes;

use crate::context::{Awaiting, Context, OpenQuestion, ShardState, Storage, Suspended};
use crate::history::{Block, LifecycleEvent};
use crate::model::bindings::{QueueBinding, QueueBindings};
use crate::model::client::Client;
use crate::model::command::{
    Acknowledgement, ClientPattern, Command, EventKind, EventScope, EventSubscription, PassedOn, Pull,
    Request,
};
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::decision::Decision;
use crate::model::effect::{
    Answer, Effect, Event, Forwarded, Loaded, Notification, Origin, PullOutcome, Reply, Subject, Transfer,
};
use crate::model::entry::PagedOut;
use crate::model::filter;
use crate::model::id::{
    ChannelName, ConnectionId, HandlerId, MessageNumber, QueueAddress, QueueRef, Sequence, Tag, TopicName,
};
use crate::model::intake::Arrival;
use crate::model::message::Message;
use crate::model::node::Upstream;
use crate::model::options::{ChannelChanges, Durability, QueueChanges};
use crate::model::record::{Definition, DeliveryProgress, Record};
use crate::model::recovery::{RecoveredMessage, RecoveredState};
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::stats::{BodyStats, DropReason, ObjectCounts, ShardStats, WaitingMessage};
use crate::model::subscription::{QueueSubscription, Remote};
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;
use crate::queue::Queue;
use crate::queue::members::{Consumer, ConsumerKey, Members};
use crate::routing::Routers;
use crate::routing::bindings::{Bindings, SubscriptionNames};
use crate::routing::topics::Topics;
use crate::shard::channel::{Channel, check_handler, no_queue};
use crate::shard::directory::ClientDirectory;
use crate::shard::routes::no_router;
use std::hint::black_box;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use slab::Slab;
use smallvec::SmallVec;

/// What a shard remembers of a connection.
#[derive(Debug)]
struct PeerState {
    client: Arc<Client>,
    /// Channels it joined.
    joined: SmallVec<[usize; 2]>,
    /// It subscribed to events of channels or queues here.
    watches: bool,
    /// Queues that it subscribed to; some may be gone.
    subscribed: Vec<QueueRef>,
}

/// One shard.
pub struct Broker {
    pub(crate) state: ShardState,
    pub(crate) channels: Slab<Channel>,
    /// Keys of `channels` by lower-case name.
    names: HashMap<Box<str>, usize>,
    /// The channel looked up last, as most peers stay with one for a while. The very same name, not an equal
    /// one: comparing pointers is what makes it cheap.
    last: Option<(ChannelName, usize)>,
    peers: HashMap<ConnectionId, PeerState>,
    pub(crate) directory: ClientDirectory,
    pub(crate) topics: Topics,
    pub(crate) routers: Routers,
    bindings: Bindings,
    /// Subscriptions that have a name.
    named: SubscriptionNames<(QueueRef, ConsumerKey)>,
    /// What the answer to the request that is being carried out waits for.
    ticket: Option<u64>,
    /// Subscribers of channels' coming and going.
    watchers: Vec<(EventKind, ConnectionId)>,
    answers_late: u64,
}

impl Broker {
    /// A shard without channels, with the ready-made policies as its handlers.
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            state: ShardState::new(config),
            channels: Slab::new(),
            names: HashMap::new(),
            last: None,
            peers: HashMap::new(),
            directory: ClientDirectory::new(),
            topics: Topics::default(),
            routers: Routers::default(),
            bindings: Bindings::default(),
            named: SubscriptionNames::default(),
            ticket: None,
            watchers: Vec::new(),
            answers_late: 0,
        }
    }

    /// Adds a handler, or replaces the one of the same key, for existing queues too. Give every shard the same
    /// handlers in the same order: then the answer is the same in all of them.
    pub fn register_handler(&mut self, spec: HandlerSpec) -> HandlerId {
        let handler = self.state.register(spec);
        for (_, channel) in &mut self.channels {
            for queue in channel.queues.values_mut() {
                queue.choose_handler(&self.state);
            }
        }
        handler
    }

    // ---- What comes in -----------------------------------------------------------------------------------

    /// Looks at what the first of `commands` are about, and tells how many these are; [`Broker::command`] wants to have them
    /// next. Changes nothing, but makes a batch faster: what a message or an acknowledgement needs is found by a chain of
    /// reads of what is in no cache, and a processor follows several such chains at once as long as nothing is done between
    /// them.
    pub fn look_ahead(&mut self, client: &Client, commands: &[Command]) -> usize {
        /// As many as fit into the first level of the cache with what they need.
        const AHEAD_MAX: usize = 16;
        let ahead = &commands[..commands.len().min(AHEAD_MAX)];
        // A chain alone is followed just as fast later.
        if ahead.len() > 1 {
            ahead.iter().for_each(|command| self.look_at(client, command));
        }
        ahead.len()
    }

    fn look_at(&mut self, client: &Client, command: &Command) {
        match command {
            Command::Publish { message, .. } => {
                black_box(message.properties());
            }
            Command::Acknowledge(word) => {
                let key = self.lookup(&word.queue.channel);
                if let Some(queue) = key.and_then(|key| self.channels[key].queues.get(&word.queue.id)) {
                    queue.deliveries.look(&word.message_id, (client.connection, word.tag));
                }
            }
            _ => {}
        }
    }

    /// A peer asks for something. Before it was welcomed, `client` is provisional: its id is empty.
    pub fn command(
        &mut self,
        client: &Arc<Client>,
        command: Command,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        match command {
            Command::Publish { queue, message } => self.publish(&queue, message, now, effects),
            Command::Route { router, message } => self.route(router, message, now, effects),
            Command::PublishTopic { topic, message, to_producer, answer } => {
                let receivers = self.publish_topic(&topic, &message, to_producer, now, effects);
                if let Some(request) = answer {
                    let event = Event::Answered(request, Ok(Reply::Published(receivers)));
                    effects.push(Effect::Notify(client.connection, event));
                }
            }
            Command::Acknowledge(word) => self.acknowledge(client, &word, now, effects),
            Command::AcknowledgeAll { queue, tag, negative } => {
                self.acknowledge_all(client, &queue, tag, negative.as_deref(), now, effects);
            }
            Command::RoomFor { queue } => self.room_for(&queue, now, effects),
            Command::Pull(pull) => self.pull(client, &pull, now, effects),
            Command::Introduce(introduction) => {
                let mut context = Context { now, state: &mut self.state, effects };
                let event = match self.directory.welcome(client, *introduction, &mut context) {
                    Ok(welcomed) => Event::Welcomed(welcomed),
                    Err(rejection) => Event::Refused(rejection),
                };
                context.notify(client.connection, event);
            }
            Command::Direct { to, message } => self.direct(client, to, message, effects),
            Command::AcknowledgeDirect { to, message } => {
                self.relay(&to, Event::DirectAcknowledged(message), effects);
            }
            Command::Respond { to, message } => self.relay(&to, Event::Responded(message), effects),
            Command::PassedOn(passed_on) => self.passed_on(client, *passed_on, now, effects),
            Command::Request(id, request) => {
                if let Request::TestRoute { router, message } = *request {
                    return self.test_route(client, id, router, message, now, effects);
                }
                let before = self.state.sequence;
                let result = self.request(client, *request, now, effects);
                if result.is_err() {
                    self.state.refused += 1;
                }
                let event = Event::Answered(id, result);
                if let Some(ticket) = self.ticket.take() {
                    // Bindings are not kept across restarts, so there is no commit to wait for as well.
                    self.bindings.wait(ticket, client.connection, event);
                } else if self.state.sequence > before && self.state.storage == Storage::Ready {
                    // It changed what must survive: whoever asked may rely on the answer.
                    let awaiting = Awaiting::Answer(client.connection, event);
                    self.state.wait(Durability::Fsync, awaiting);
                } else {
                    effects.push(Effect::Notify(client.connection, event));
                }
            }
        }
    }

    /// A broker that this one passes on to came, went, or said who it is. Told to the home shard.
    pub fn upstream(&mut self, upstream: Upstream, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut context = Context { now, state: &mut self.state, effects };
        self.directory.upstream(upstream, &mut context);
    }

    /// A connection ended. Every shard is told.
    pub fn closed(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        self.state.links.retain(|_, link| *link != connection);
        if self.state.congested.remove(&connection).is_some() {
            self.state.congestion += 1;
        }
        self.topics.forget(connection);
        self.watchers.retain(|(_, watcher)| *watcher != connection);
        if let Some(peer) = self.peers.remove(&connection) {
            let mut context = Context { now, state: &mut self.state, effects };
            for (_, channel) in &mut self.channels {
                if peer.watches {
                    channel.forget_watcher(connection);
                }
            }
            for key in peer.joined {
                let channel = &mut self.channels[key];
                channel.leave(&peer.client, &mut context);
            }
            for queue_ref in &peer.subscribed {
                if let Some(queue) = find(&mut self.channels, *queue_ref) {
                    queue.forget_subscriber(connection);
                }
            }
            // A client may have left a channel and still hold messages of it.
            for (_, channel) in &mut self.channels {
                for queue in channel.queues.values_mut() {
                    queue.consumer_lost(connection, None, &mut context);
                }
            }
            for queue_ref in peer.subscribed {
                self.abandon(queue_ref, now, effects);
            }
            self.destroy_abandoned(now, effects);
        }
        let mut context = Context { now, state: &mut self.state, effects };
        self.directory.leave(connection, &mut context);
    }

    /// A connection's output buffer passed its high mark: nothing more is handed to it until it is writable.
    pub fn congested(&mut self, connection: ConnectionId, now: Timestamp, _effects: &mut Vec<Effect>) {
        self.state.congested.entry(connection).or_insert(now);
        self.state.congestion += 1;
    }

    /// It fell below its low mark again.
    pub fn writable(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.state.congested.remove(&connection).is_none() {
            return;
        }
        self.state.congestion += 1;
        let Some(peer) = self.peers.get(&connection) else { return };
        let mut context = Context { now, state: &mut self.state, effects };
        for key in &peer.joined {
            for queue in self.channels[*key].queues.values_mut() {
                queue.schedule(&mut context);
            }
        }
        for queue_ref in &peer.subscribed {
            if let Some(queue) = find(&mut self.channels, *queue_ref) {
                queue.schedule(&mut context);
            }
        }
    }

    /// A handler answers a question.
    pub fn answer(&mut self, answer: Answer, now: Timestamp, effects: &mut Vec<Effect>) {
        match self.state.answered(answer.id) {
            Some(OpenQuestion { suspended: Suspended::Route(number), handler, .. }) => {
                self.route_answered(handler, number, Some(answer), now, effects);
            }
            Some(asked) => self.answered(asked, answer.result.ok(), now, effects),
            None => self.answers_late += 1,
        }
    }

    /// A message arrives from another queue, as [`Effect::Transfer`] said. If there is no such queue (any
    /// more), the message is dropped, and counted as over the limit: it had its chances.
    pub fn transfer(&mut self, transfer: Transfer, now: Timestamp, effects: &mut Vec<Effect>) {
        let Transfer { to, message, origin } = transfer;
        let mut context = Context { now, state: &mut self.state, effects };
        let channel = self.names.get(&folded(&to.channel)).map(|key| &mut self.channels[*key]);
        let found =
            channel.and_then(|Channel { members, queues, .. }| Some((members, queues.get_mut(&to.id)?)));
        match found {
            Some((members, queue)) => {
                queue.transfer(message, origin, &consumers(members, queue), &mut context);
            }
            None => {
                context.state.retired.dropped[DropReason::Limit as usize] += 1;
                context.record_undeliverable(&to, message, LifecycleEvent::Arrived, DropReason::Limit);
                context.effects.extend(origin.map(Effect::Transferred));
            }
        }
    }

    /// Another shard, or this one, hands something over, as [`Effect::Forward`] said.
    pub fn forwarded(&mut self, forwarded: Forwarded, now: Timestamp, effects: &mut Vec<Effect>) {
        match forwarded {
            Forwarded::Copy { to, message } => self.copy_to_queue(&to, message, now, effects),
            Forwarded::Route(route) => self.advance_route(*route, now, effects),
            Forwarded::ForgetRouter(router, None) => self.routers.counts.forget(&router),
            Forwarded::ForgetRouter(router, Some(binding)) => {
                self.routers.counts.forget_binding(&router, &binding);
            }
            Forwarded::Bind { queue, bind, unbind, from, ticket } => {
                for topic in bind {
                    // Its own shard keeps the count below the limit; what was bound by others does not matter here.
                    let _ = self.topics.bind(TopicPattern::Exact(topic), &queue);
                }
                for topic in unbind {
                    self.unbind_topic(&TopicPattern::Exact(topic), &queue, now, effects);
                }
                let mut context = Context { now, state: &mut self.state, effects };
                context.forward(from, Forwarded::Bound { ticket });
            }
            Forwarded::Bound { ticket } => {
                let mut context = Context { now, state: &mut self.state, effects };
                self.bindings.done(ticket, &mut context);
            }
        }
    }

    /// How much was handed to other shards so far: grows by one with each [`Effect::Forward`].
    pub fn forwards(&self) -> u64 {
        self.state.forwards
    }

    /// A dead letter of this shard is safe elsewhere, as [`Effect::Transferred`] said.
    pub fn transferred(&mut self, origin: Origin, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut context = Context { now, state: &mut self.state, effects };
        context.record(Record::Settle(origin.sequence));
    }

    // ---- Storage -----------------------------------------------------------------------------------------

    /// There is a journal: what it had is taken over, and from now on it is told what must survive. Call this
    /// before anything else. Queues whose definition was lost are made anew with the server's defaults, so
    /// that no message is lost with them.
    pub fn restore(&mut self, had: RecoveredState, now: Timestamp, effects: &mut Vec<Effect>) {
        let RecoveredState { definitions, queues, messages, progress, tickets, unique_keys, sequence } = had;
        let mut unique_keys: HashMap<_, _> = unique_keys.into_iter().collect();
        self.start_history(&definitions, &messages, now);
        // While definitions are read back they are not written again.
        self.state.storage = Storage::Absent;
        let numbers = self.state.history.as_mut().and_then(|history| history.reserve());
        for definition in definitions {
            self.restore_definition(definition, now, effects);
        }
        self.state.storage = Storage::Ready;
        // Ranks were given from later sequences too, of records that leave no trace; new ones must be larger.
        let ranks = progress.iter().map(|(_, progress)| progress.rank.unsigned_abs());
        let last = messages.last().map_or(Sequence(0), |message| message.sequence);
        self.state.sequence = Sequence(ranks.max().unwrap_or(0).max(sequence.0).max(last.0));
        if let Some(numbers) = numbers {
            Context { now, state: &mut self.state, effects }.record(Record::Numbers(numbers));
        }
        for ticket in &tickets {
            self.state.intake.restore_saved(ticket);
        }
        let keys: Vec<usize> = queues.iter().map(|queue| self.restore_queue(queue, now, effects)).collect();
        // Those without progress are in order already; the others go where their ranks say.
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
                self.restore_message(queue, *key, message, progress, now, effects);
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
        self.state.committed_all();
    }

    fn restore_definition(&mut self, definition: Definition, now: Timestamp, effects: &mut Vec<Effect>) {
        let key = match &definition {
            Definition::Router(router) => return self.restore_router((**router).clone()),
            Definition::TopicBinding(pattern, queue) => {
                // Only the limit could be in the way, and then there are as many as there may be.
                let _ = self.topics.bind_saved(pattern.clone(), queue);
                return;
            }
            Definition::Intake(node, progress) => {
                return self.state.intake.restore(Arc::clone(node), progress.clone());
            }
            Definition::Channel(name, options) => {
                let key = self.restore_channel(name);
                self.channels[key].options = (**options).clone();
                key
            }
            Definition::Queue(queue, _) => self.restore_channel(&queue.channel),
            Definition::Numbers(_) => return,
        };
        if let Definition::Queue(address, options) = definition {
            let id = address.id;
            let mut context = Context { now, state: &mut self.state, effects };
            let queue = Queue::new(address, key, *options, context.state);
            if let Some(mut replaced) = self.channels[key].queues.insert(id, queue) {
                replaced.erase(&mut context);
            }
        }
    }

    /// `false` if it was not bound.
    fn unbind_topic(
        &mut self,
        pattern: &TopicPattern,
        queue: &QueueAddress,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.topics.forget_saved(pattern, queue) {
            let mut context = Context { now, state: &mut self.state, effects };
            context.record(Record::UnbindTopic(pattern.clone(), queue.clone()));
        }
        self.topics.unbind(pattern, queue)
    }

    fn restore_channel(&mut self, name: &ChannelName) -> usize {
        self.lookup(name).unwrap_or_else(|| {
            let options = self.state.config.channel.clone();
            let key = self.channels.insert(Channel::new(name.clone(), options));
            self.names.insert(folded(name), key);
            key
        })
    }

    /// Makes the queue of a restored message, if its definition is missing; answers with its channel's key.
    fn restore_queue(&mut self, address: &QueueAddress, now: Timestamp, effects: &mut Vec<Effect>) -> usize {
        let key = self.restore_channel(&address.channel);
        let mut context = Context { now, state: &mut self.state, effects };
        let channel = &mut self.channels[key];
        if !channel.queues.contains_key(&address.id) {
            let options = channel.options.queue.clone();
            context.record(Record::DefineQueue(address.clone(), Box::new(options.clone())));
            let queue = Queue::new(address.clone(), key, options, context.state);
            channel.queues.insert(address.id, queue);
        }
        key
    }

    fn restore_message(
        &mut self,
        address: &QueueAddress,
        channel: usize,
        message: RecoveredMessage,
        progress: DeliveryProgress,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let mut context = Context { now, state: &mut self.state, effects };
        let paged_out = PagedOut {
            deadline: Timestamp::NEVER,
            attempts: progress.attempts,
            requeues: progress.requeues,
            sequence: message.sequence,
            number: message.number,
            // Its producer was told before the restart, or will never ask again.
            answered: true,
            bytes: message.bytes.into(),
        };
        if let Some(queue) = self.channels[channel].queues.get_mut(&address.id) {
            queue.restore(paged_out, message.high_priority, progress.not_before, &mut context);
        }
    }

    /// Bodies came back that [`Effect::Load`] asked for, or could not be read.
    pub fn loaded(&mut self, loaded: Loaded, now: Timestamp, effects: &mut Vec<Effect>) {
        let Loaded { queue_ref, messages } = loaded;
        self.state.loading = self.state.loading.saturating_sub(messages.len() as u64);
        self.state.bodies.loaded += messages.iter().filter(|(_, message)| message.is_some()).count() as u64;
        let mut context = Context { now, state: &mut self.state, effects };
        if let Some((_, queue)) = at(&mut self.channels, queue_ref) {
            queue.loaded(messages, &mut context);
        }
    }

    /// Bodies are on their way from the journal.
    pub fn waits_for_bodies(&self) -> bool {
        self.state.loading > 0
    }

    /// Lets bodies leave memory until there are few enough.
    fn relieve(&mut self) {
        for _ in 0..self.state.backlogs.len() {
            if self.state.memory.get() <= self.state.config.memory_watermark {
                return;
            }
            let Some(queue_ref) = self.state.backlogs.pop_front() else { return };
            let Some((_, queue)) = at(&mut self.channels, queue_ref) else { continue };
            if queue.relieve(&mut self.state) {
                self.state.backlogs.push_front(queue_ref);
            } else if queue.backlogged {
                self.state.backlogs.push_back(queue_ref);
            }
        }
    }

    /// Everything up to `sequence` is durable at this level: written, or written and synced.
    pub fn committed(
        &mut self,
        level: Durability,
        sequence: Sequence,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let mut done = self.state.committed(level, sequence);
        if level == Durability::Fsync {
            // What is synced is written, whether or not somebody said so before.
            done.extend(self.state.committed(Durability::Os, sequence));
        }
        for awaiting in done {
            match awaiting {
                Awaiting::Save(queue_ref, suspended) => {
                    self.resume(queue_ref, suspended, Some(Decision::ALLOW), now, effects);
                }
                Awaiting::Answer(connection, event) => effects.push(Effect::Notify(connection, event)),
                Awaiting::Transfer(origin) => effects.push(Effect::Transferred(origin)),
                Awaiting::Confirm(link, numbers) => {
                    effects.push(Effect::Notify(link, Event::Confirmed(numbers)));
                }
            }
        }
    }

    /// The journal takes nothing for now, or nothing any more. Whoever waits for a commit learns that it does
    /// not come; queues that promise to save refuse; consumers go on.
    pub fn storage_refuses(&mut self, why: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        self.state.storage = Storage::Refusing(why.into());
        self.state.doubt_uncommitted();
        for awaiting in self.state.uncommitted() {
            match awaiting {
                Awaiting::Save(queue_ref, suspended) => {
                    self.resume(queue_ref, suspended, Some(Decision::REFUSE), now, effects);
                }
                Awaiting::Answer(connection, Event::Answered(request, Ok(_))) => {
                    let reason = format!("it was done, but it will not survive a restart: {why}");
                    let rejection = Rejection::new(RejectionKind::Busy, reason);
                    let event = Event::Answered(request, Err(rejection));
                    effects.push(Effect::Notify(connection, event));
                }
                Awaiting::Answer(connection, event) => effects.push(Effect::Notify(connection, event)),
                // Its old shard keeps it: after a restart it is there once more, which is better than never.
                Awaiting::Transfer(_) => {}
                // The messages themselves were taken. At worst they come once more after a crash.
                Awaiting::Confirm(link, numbers) => {
                    effects.push(Effect::Notify(link, Event::Confirmed(numbers)));
                }
            }
        }
    }

    /// The journal takes records again. All definitions are written once more, as some may have been refused.
    pub fn storage_accepts(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.state.storage = Storage::Ready;
        let numbers = self.state.history.as_ref().map(|history| history.reserved());
        let mut context = Context { now, state: &mut self.state, effects };
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
            let options = Box::new(channel.options.clone());
            context.record(Record::DefineChannel(channel.name.clone(), options));
            for queue in channel.queues.values() {
                let options = Box::new(queue.metadata.options.clone());
                context.record(Record::DefineQueue((*queue.metadata.address).clone(), options));
            }
        }
    }

    /// Somebody waits until the records so far are written.
    pub fn waits_for_write(&self) -> bool {
        self.state.waits_for_write()
    }

    /// Somebody waits until the records so far are synced.
    pub fn waits_for_sync(&self) -> bool {
        self.state.waits_for_sync()
    }

    /// Somebody waits until the records so far are written, or synced.
    pub fn waits_for_commit(&self) -> bool {
        self.state.waits_for_commit()
    }

    // ---- History -----------------------------------------------------------------------------------------

    /// Numbers go on where the last run stopped, and the history says that a new run began.
    fn start_history(&mut self, definitions: &[Definition], messages: &[RecoveredMessage], now: Timestamp) {
        let Some(history) = &mut self.state.history else { return };
        for definition in definitions {
            if let Definition::Numbers(reserved) = definition {
                history.skip(*reserved);
            }
        }
        // Only a journal that somebody put together by hand has larger ones.
        let largest = messages.iter().map(|message| message.number).max().unwrap_or_default();
        history.skip(MessageNumber(largest.0.saturating_add(1)));
        history.started(now);
    }

    /// Takes the history since the last time, in its order. Write it down before the records of the same turn: then
    /// whatever is durable has its history.
    pub fn take_history(&mut self, into: &mut Vec<Block>) {
        if let Some(history) = &mut self.state.history {
            history.take(into);
        }
    }

    // ---- Time and work -----------------------------------------------------------------------------------

    /// Lets everything happen whose time has come. Call it when [`Broker::next_timeout`] has passed.
    pub fn timeout(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some(asked) = self.state.overdue(now) {
            if let Suspended::Route(number) = asked.suspended {
                self.route_answered(asked.handler, number, None, now, effects);
            } else {
                self.answered(asked, None, now, effects);
            }
        }
        while let Some((deadline, queue_ref)) = self.state.timers.first().copied() {
            if deadline > now {
                break;
            }
            self.state.timers.remove(&(deadline, queue_ref));
            let mut context = Context { now, state: &mut self.state, effects };
            if let Some((_, queue)) = at(&mut self.channels, queue_ref) {
                queue.timeout(&mut context);
            }
        }
        while let Some(queue) = self.bindings.expired(now) {
            self.drop_queue(&queue, now, effects);
        }
        self.close_slow_consumers(now, effects);
    }

    /// When [`Broker::timeout`] wants to be called; [`Timestamp::NEVER`] if nothing waits for a time.
    pub fn next_timeout(&self) -> Timestamp {
        let timer = self.state.timers.first().map_or(Timestamp::NEVER, |(deadline, _)| *deadline);
        let patience = self.state.config.slow_consumer_timeout;
        let slow =
            self.state.congested.values().min().map_or(Timestamp::NEVER, |since| since.after(patience));
        timer.min(slow).min(self.state.next_question_deadline()).min(self.bindings.next_expiry())
    }

    /// Hands out stored messages, about `budget` of them (large ones count more). True if there is more to
    /// hand out at once: carry out the effects and call again.
    pub fn work(&mut self, now: Timestamp, budget: usize, effects: &mut Vec<Effect>) -> bool {
        let more = self.deliver_work(now, budget, effects);
        if self.state.memory.get() > self.state.config.memory_watermark {
            self.relieve();
        }
        more
    }

    fn deliver_work(&mut self, now: Timestamp, mut budget: usize, effects: &mut Vec<Effect>) -> bool {
        /// What one queue gets before the next one has its turn.
        const SHARE: usize = 256;
        if self.state.intake.is_dirty() {
            Context { now, state: &mut self.state, effects }.write_intake();
        }
        while budget > 0 {
            let Some(queue_ref) = self.state.work.pop_front() else { return false };
            let Some((members, queue)) = at(&mut self.channels, queue_ref) else { continue };
            queue.scheduled = false;
            let mut share = SHARE.min(budget);
            let offered = share;
            let mut context = Context { now, state: &mut self.state, effects };
            if queue.work(&members, &mut share, &mut context) {
                queue.schedule(&mut context);
            }
            budget -= offered - share;
        }
        !self.state.work.is_empty()
    }

    /// Whether [`Broker::work`] has something to do at once.
    pub fn has_work(&self) -> bool {
        !self.state.work.is_empty()
    }

    /// Everything that the admin side wants to know.
    pub fn stats(&self, now: Timestamp) -> ShardStats {
        let channels = self.channels.iter().map(|(_, channel)| channel);
        ShardStats {
            channels: channels.clone().map(Channel::information).collect(),
            queues: channels.flat_map(|channel| channel.queues.values()).map(Queue::information).collect(),
            clients: self.directory.list(None, now),
            nodes: self.directory.nodes(now),
            refused: self.state.refused,
            unknown_acks: self.state.unknown_acks,
            questions_open: self.state.questions_open() as u64,
            answers_late: self.answers_late,
            retired: self.state.retired,
            bodies: BodyStats { memory_bytes: self.state.memory.get(), ..self.state.bodies },
            topics: self.topics.information(),
            retired_topics: self.topics.retired(),
            routers: self.routers.iter().map(|router| router.definition.clone()).collect(),
            router_counts: self.routers.counts.all(),
        }
    }

    fn object_counts(&self) -> ObjectCounts {
        let topics = self.topics.information();
        let mut passed = self.state.retired;
        let mut published = self.topics.retired().published;
        published += topics.iter().map(|topic| topic.stats.published).sum::<u64>();
        let mut object_counts = ObjectCounts {
            clients: self.directory.len() as u64,
            topics: topics.len() as u64,
            published,
            ..ObjectCounts::default()
        };
        for (_, channel) in &self.channels {
            object_counts.consumers += channel.members.len() as u64;
            for queue in channel.queues.values() {
                object_counts.queues += 1;
                object_counts.consumers += queue.subscriptions().count() as u64;
                object_counts.waiting += (queue.ready.len() + queue.delayed.len()) as u64;
                object_counts.unsettled += queue.deliveries.open() as u64;
                passed.add(&queue.metadata.stats);
            }
        }
        (object_counts.queued, object_counts.consumed) = (passed.received, passed.deliveries);
        object_counts
    }

    /// All queues of this shard.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.channels.iter().flat_map(|(_, channel)| channel.queues.values())
    }

    /// Messages that wait in a queue, the next one first, at most `max` of them. Looking changes nothing. `None`: there
    /// is no such queue here.
    pub fn waiting(&self, queue: &QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
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

    // ---- Messages ----------------------------------------------------------------------------------------

    /// Another broker passes something on, perhaps not for the first time.
    fn passed_on(
        &mut self,
        link: &Arc<Client>,
        passed_on: PassedOn,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let PassedOn { ticket, command } = passed_on;
        let latest = self.state.links.entry(Arc::clone(&ticket.node)).or_insert(link.connection);
        if link.connection < *latest {
            // The node has connected anew, and sends again there what is not confirmed.
            return;
        }
        *latest = link.connection;
        match self.state.intake.arrive(&ticket) {
            Arrival::New => {}
            Arrival::Done => return self.state.intake.again(&ticket),
            Arrival::Pending | Arrival::Later => return,
        }
        match command {
            // Its queue says when it is done, which may be much later.
            Command::Publish { queue, message } => return self.publish(&queue, message, now, effects),
            Command::Direct { to, message } => {
                let receivers = self.directory.receivers(&to, message.properties().first_acquirer);
                for receiver in receivers {
                    let event = Event::Direct { to: to.clone(), message: message.clone() };
                    effects.push(Effect::Notify(receiver, event));
                }
            }
            Command::AcknowledgeDirect { to, message } => {
                self.relay(&to, Event::DirectAcknowledged(message), effects);
            }
            Command::Respond { to, message } => self.relay(&to, Event::Responded(message), effects),
            Command::PublishTopic { topic, message, to_producer, .. } => {
                self.publish_topic(&topic, &message, to_producer, now, effects);
            }
            Command::Route { router, message } => self.route(router, message, now, effects),
            // What was handed out there is settled there; here it is only passed by.
            _ => {}
        }
        self.state.intake.done(&ticket);
    }

    fn publish(&mut self, to: &QueueAddress, message: Message, now: Timestamp, effects: &mut Vec<Effect>) {
        let key = match self.channel_for_publishing(to, now, effects) {
            Ok(key) => key,
            Err(rejection) => {
                self.state.refused += 1;
                Context { now, state: &mut self.state, effects }.reject_passed_on(&message, &rejection);
                if let Some(producer) = message.producer() {
                    let connection = producer.connection;
                    let event = Event::PublishRefused { queue: to.clone(), message, rejection };
                    effects.push(Effect::Notify(connection, event));
                }
                return;
            }
        };
        let mut context = Context { now, state: &mut self.state, effects };
        let Channel { members, queues, .. } = &mut self.channels[key];
        if let Some(queue) = queues.get_mut(&to.id) {
            queue.publish(message, &consumers(members, queue), &mut context);
        }
    }

    /// The channel that has the queue `to`, both created if that is allowed.
    pub(crate) fn channel_for_publishing(
        &mut self,
        to: &QueueAddress,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, Rejection> {
        let key = match self.lookup(&to.channel) {
            Some(key) => key,
            None if self.state.config.auto_create_channels => {
                self.create_channel(&to.channel, &ChannelChanges::default(), now, effects)?
            }
            None => return Err(no_channel(&to.channel)),
        };
        if !self.channels[key].queues.contains_key(&to.id) {
            if !self.state.config.auto_create_queues {
                return Err(no_queue(&to.channel, to.id));
            }
            let mut context = Context { now, state: &mut self.state, effects };
            self.channels[key].create_queue(key, to.id, &QueueChanges::default(), &mut context)?;
        }
        Ok(key)
    }

    /// How many subscribers and queues it was for.
    pub(crate) fn publish_topic(
        &mut self,
        topic: &TopicName,
        message: &Message,
        to_producer: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> u32 {
        let mut context = Context { now, state: &mut self.state, effects };
        let published = self.topics.publish(topic, message, to_producer, &mut context);
        let shards = context.state.config.shards;
        for queue in &*published.queues {
            let shard = queue.channel.shard(shards);
            if shard == self.state.config.shard {
                self.copy_to_queue(queue, message.clone(), now, effects);
            } else {
                let mut context = Context { now, state: &mut self.state, effects };
                context.forward(shard, Forwarded::Copy { to: queue.clone(), message: message.clone() });
            }
        }
        published.receivers
    }

    /// A copy for a queue that may not be there.
    fn copy_to_queue(
        &mut self,
        to: &QueueAddress,
        message: Message,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let key = self.lookup(&to.channel);
        let mut context = Context { now, state: &mut self.state, effects };
        let channel = key.map(|key| &mut self.channels[key]);
        let found =
            channel.and_then(|Channel { members, queues, .. }| Some((members, queues.get_mut(&to.id)?)));
        match found {
            Some((members, queue)) => {
                queue.publish_copy(message, &consumers(members, queue), &mut context);
            }
            None => {
                context.state.retired.dropped[DropReason::NoConsumer as usize] += 1;
                context.record_undeliverable(to, message, LifecycleEvent::Produced, DropReason::NoConsumer);
            }
        }
    }

    /// Whether there is a queue, or publishing to it makes one.
    pub fn takes(&self, queue: &QueueAddress) -> bool {
        let config = &self.state.config;
        match self.names.get(&folded(&queue.channel)) {
            Some(key) => config.auto_create_queues || self.channels[*key].queues.contains_key(&queue.id),
            None => config.auto_create_channels && config.auto_create_queues,
        }
    }

    fn acknowledge(
        &mut self,
        client: &Arc<Client>,
        word: &Acknowledgement,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(key) = self.lookup(&word.queue.channel) else { return };
        let mut context = Context { now, state: &mut self.state, effects };
        let queue = self.channels[key].queues.get_mut(&word.queue.id);
        let known = queue.is_some_and(|queue| queue.acknowledged(client.connection, word, &mut context));
        if !known {
            // Late, or twice: the delivery was settled before.
            self.state.unknown_acks += 1;
        }
    }

    fn acknowledge_all(
        &mut self,
        client: &Arc<Client>,
        queue: &QueueAddress,
        tag: Tag,
        negative: Option<&str>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(key) = self.lookup(&queue.channel) else { return };
        let mut context = Context { now, state: &mut self.state, effects };
        if let Some(queue) = self.channels[key].queues.get_mut(&queue.id) {
            queue.acknowledged_all((client.connection, tag), negative, &mut context);
        }
    }

    fn pull(&mut self, client: &Arc<Client>, pull: &Pull, now: Timestamp, effects: &mut Vec<Effect>) {
        let key = self.lookup(&pull.queue.channel);
        let mut context = Context { now, state: &mut self.state, effects };
        let outcome = match key.map(|key| &mut self.channels[key]) {
            None => PullOutcome::NoChannel,
            Some(Channel { members, queues, .. }) => match queues.get_mut(&pull.queue.id) {
                None => PullOutcome::NoQueue,
                Some(queue) => {
                    return queue.pull(client, pull, &consumers(members, queue), &mut context);
                }
            },
        };
        context.notify(client.connection, Event::PullEnded { request: pull.request, outcome });
    }

    fn direct(
        &mut self,
        client: &Arc<Client>,
        to: ClientPattern,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let receivers = self.directory.receivers(&to, message.properties().first_acquirer);
        if receivers.is_empty() {
            self.state.refused += 1;
            let rejection = Rejection::new(RejectionKind::NotFound, "no such client is connected");
            let event = Event::DirectRefused { to, message, rejection };
            effects.push(Effect::Notify(client.connection, event));
            return;
        }
        for receiver in receivers {
            let event = Event::Direct { to: to.clone(), message: message.clone() };
            effects.push(Effect::Notify(receiver, event));
        }
    }

    /// Passes an answer to the client that it is for, if that is still there.
    fn relay(&mut self, to: &str, event: Event, effects: &mut Vec<Effect>) {
        let receivers = self.directory.receivers(&ClientPattern::Id(to.into()), true);
        effects.extend(receivers.first().map(|receiver| Effect::Notify(*receiver, event)));
    }

    fn answered(
        &mut self,
        asked: OpenQuestion,
        answer: Option<Decision>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        self.resume(asked.queue_ref, asked.suspended, answer, now, effects);
    }

    /// Somebody got what it waited for: an answer (`None` if that failed), or its message saved.
    fn resume(
        &mut self,
        queue_ref: QueueRef,
        suspended: Suspended,
        answer: Option<Decision>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let mut context = Context { now, state: &mut self.state, effects };
        let Some((members, queue)) = at(&mut self.channels, queue_ref) else { return };
        match suspended {
            Suspended::Admission(number) => queue.admission_answered(number, answer, &members, &mut context),
            Suspended::Flow(number) => queue.flow_answered(number, answer, &members, &mut context),
            Suspended::Settlement(number) => queue.settlement_answered(number, answer, &mut context),
            // It is at no queue.
            Suspended::Route(_) => {}
        }
    }

    fn close_slow_consumers(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let patience = self.state.config.slow_consumer_timeout;
        let slow = |since: &Timestamp| since.after(patience) <= now;
        for (connection, since) in &mut self.state.congested {
            if slow(since) {
                let reason = format!("the consumer took nothing for {patience:?} while its buffer was full");
                effects.push(Effect::Close(*connection, Rejection::new(RejectionKind::Busy, reason)));
                // Its end is on the way; until then it is not told again.
                *since = Timestamp::NEVER;
            }
        }
    }

    // ---- Requests ----------------------------------------------------------------------------------------

    fn request(
        &mut self,
        client: &Arc<Client>,
        request: Request,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        match request {
            Request::Join { channel } => self.join(client, &channel, now, effects),
            Request::Leave { channel } => self.leave(client, &channel, now, effects),
            Request::MayPublish { queue } => {
                done_or(self.takes(&queue), || format!("there is no queue {queue}; create it first"))
            }
            Request::CreateChannel { channel, changes } => {
                if self.lookup(&channel).is_some() {
                    let reason = format!("channel {channel} exists already");
                    return Err(Rejection::new(RejectionKind::AlreadyExists, reason));
                }
                self.create_channel(&channel, &changes, now, effects)?;
                Ok(Reply::Done)
            }
            Request::CreateQueue { queue, changes } => {
                self.create_queue(&queue, &changes, now, effects)?;
                Ok(Reply::Done)
            }
            Request::Subscribe(subscription) => self.subscribe(client, &subscription),
            Request::SubscribeQueue(subscription) => {
                self.subscribe_queue(client, *subscription, now, effects)
            }
            Request::UnsubscribeQueue { queue, tag } => {
                self.unsubscribe_queue((client.connection, tag), &queue, now, effects)
            }
            Request::ToSubscriptions { name, what } => self.reach_subscriptions(&name, &what, now, effects),
            Request::RebindQueue { queue, binding } => {
                self.rebind(&queue, *binding, None, now, effects).map(|()| Reply::Done)
            }
            Request::ObjectCounts => Ok(Reply::ObjectCounts(self.object_counts())),
            Request::DropQueue { queue } => {
                self.drop_queue(&queue, now, effects);
                Ok(Reply::Done)
            }
            Request::SubscribeTopic { pattern, told } => {
                self.topics.subscribe(client, pattern, told, now).map(|()| Reply::Done)
            }
            Request::UnsubscribeTopic { pattern } => {
                let gone = self.topics.unsubscribe(client.connection, &pattern);
                done_or(gone, || format!("the client has not subscribed to {}", pattern.name()))
            }
            Request::BindTopic { pattern, queue } => {
                let fresh = self.topics.bind_saved(pattern.clone(), &queue)?;
                if fresh {
                    let mut context = Context { now, state: &mut self.state, effects };
                    context.record(Record::BindTopic(pattern, queue));
                }
                Ok(Reply::Done)
            }
            Request::UnbindTopic { pattern, queue } => {
                let gone = self.unbind_topic(&pattern, &queue, now, effects);
                done_or(gone, || format!("queue {queue} is not bound to {}", pattern.name()))
            }
            Request::ListTopicBindings { queue } => {
                let mut bindings = self.topics.bindings(&queue);
                if self.state.config.shard != 0 {
                    // Every shard knows all patterns; one of them tells.
                    bindings.retain(|pattern| matches!(pattern, TopicPattern::Exact(_)));
                }
                Ok(Reply::TopicBindings(bindings))
            }
            Request::ListTopics => Ok(Reply::Topics(self.topics.information())),
            Request::ListSubscribers { topic } => Ok(Reply::Subscribers(self.topics.subscribers_of(&topic))),
            _ if !client.admin => {
                Err(Rejection::new(RejectionKind::Unauthorized, "only administrators may do this"))
            }
            Request::RemoveChannel { channel } => {
                let key = self.lookup(&channel).ok_or_else(|| no_channel(&channel))?;
                self.remove_channel(key, now, effects);
                Ok(Reply::Done)
            }
            Request::ChannelInformation { channel } => {
                self.channel(&channel).map(|channel| Reply::Channel(Box::new(channel.information())))
            }
            Request::ListChannels { filter } => {
                let passes = |channel: &&Channel| {
                    filter.as_ref().is_none_or(|filter| filter::matches(filter, channel.name.as_str()))
                };
                let channels = self.channels.iter().map(|(_, channel)| channel).filter(passes);
                Ok(Reply::Channels(channels.map(Channel::information).collect()))
            }
            Request::ListConsumers { channel } => {
                self.channel(&channel).map(|channel| Reply::Clients(channel.consumers(now)))
            }
            Request::ListQueues { channel } => self
                .channel(&channel)
                .map(|channel| Reply::Queues(channel.queues.values().map(Queue::information).collect())),
            Request::QueueInformation { queue } => {
                let channel = self.channel(&queue.channel)?;
                let found =
                    channel.queues.get(&queue.id).ok_or_else(|| no_queue(&queue.channel, queue.id))?;
                Ok(Reply::Queue(Box::new(found.information())))
            }
            Request::UpdateQueue { queue, changes } => {
                self.change(&queue.channel, now, effects, |channel, context| {
                    channel.update_queue(queue.id, &changes, context)
                })
            }
            Request::RemoveQueue { queue } => {
                self.change(&queue.channel, now, effects, |channel, context| {
                    channel.remove_queue(queue.id, context)
                })
            }
            Request::ClearQueue { queue, clear } => {
                self.change(&queue.channel, now, effects, |channel, context| {
                    let found = channel.queues.get_mut(&queue.id);
                    found.ok_or_else(|| no_queue(&queue.channel, queue.id))?.clear(clear, context);
                    Ok(())
                })
            }
            Request::CreateRouter { router, method } => self.create_router(router, method, now, effects),
            Request::RemoveRouter { router } => {
                self.remove_router(&router, now, effects);
                Ok(Reply::Done)
            }
            Request::ListRouters { filter } => Ok(Reply::Routers(self.list_routers(filter.as_deref()))),
            Request::ListBindings { router } => {
                let found = self.routers.get(&router).ok_or_else(|| no_router(&router))?;
                Ok(Reply::Bindings(found.definition.bindings.clone()))
            }
            Request::AddBinding { router, binding } => self.add_binding(&router, binding, now, effects),
            Request::RemoveBinding { router, binding } => {
                self.remove_binding(&router, &binding, now, effects)
            }
            // Answered by the last step of its trip.
            Request::TestRoute { .. } => Ok(Reply::Done),
            Request::ListClients { kind } => Ok(Reply::Clients(self.directory.list(kind.as_deref(), now))),
            Request::ListNodes => Ok(Reply::Nodes(self.directory.nodes(now))),
        }
    }

    fn change(
        &mut self,
        channel: &ChannelName,
        now: Timestamp,
        effects: &mut Vec<Effect>,
        change: impl FnOnce(&mut Channel, &mut Context<'_>) -> Result<(), Rejection>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(channel).ok_or_else(|| no_channel(channel))?;
        let mut context = Context { now, state: &mut self.state, effects };
        change(&mut self.channels[key], &mut context)?;
        Ok(Reply::Done)
    }

    fn join(
        &mut self,
        client: &Arc<Client>,
        channel: &ChannelName,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let key = match self.lookup(channel) {
            Some(key) => key,
            None if self.state.config.auto_create_channels => {
                self.create_channel(channel, &ChannelChanges::default(), now, effects)?
            }
            None => return Err(no_channel(channel)),
        };
        let mut context = Context { now, state: &mut self.state, effects };
        self.channels[key].join(client, &mut context)?;
        let peer = self.peer(client);
        if !peer.joined.contains(&key) {
            peer.joined.push(key);
        }
        Ok(Reply::Done)
    }

    fn room_for(&mut self, address: &QueueAddress, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(key) = self.lookup(&address.channel) else { return };
        let mut context = Context { now, state: &mut self.state, effects };
        if let Some(queue) = self.channels[key].queues.get_mut(&address.id) {
            queue.schedule(&mut context);
        }
    }

    fn subscribe_queue(
        &mut self,
        client: &Arc<Client>,
        subscription: QueueSubscription,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let QueueSubscription { queue: address, tag, terms, create, name, binding, told } = subscription;
        debug_assert_ne!(tag, Tag::CHANNEL, "sessions give subscriptions numbers of their own");
        let key = self.channel_for_consuming(&address, create, now, effects)?;
        let mut context = Context { now, state: &mut self.state, effects };
        let Channel { members, queues, .. } = &mut self.channels[key];
        let queue = queues.get_mut(&address.id).ok_or_else(|| no_queue(&address.channel, address.id))?;
        let name: Option<Arc<[u8]>> = name.map(Into::into);
        let consumer = Arc::new(Consumer { client: client.clone(), tag, terms, name: name.clone() });
        let (queue_ref, own) = (queue.metadata.queue_ref, consumer.key());
        queue.subscribe(consumer, members, &mut context);
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
            && let Err(rejection) = self.rebind(&address, *binding, (!told).then_some(own), now, effects)
        {
            // All or nothing: whoever is refused does not consume.
            self.unsubscribe_queue(own, &address, now, effects)?;
            return Err(rejection);
        }
        Ok(Reply::Done)
    }

    /// The channel of a queue that somebody wants to consume, with the queue in it.
    fn channel_for_consuming(
        &mut self,
        address: &QueueAddress,
        create: Option<Box<QueueChanges>>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, Rejection> {
        let known = self.lookup(&address.channel);
        let missing = known.is_none_or(|key| !self.channels[key].queues.contains_key(&address.id));
        match create {
            Some(changes) if missing => {
                self.create_queue(address, &changes, now, effects)?;
                self.lookup(&address.channel).ok_or_else(|| no_channel(&address.channel))
            }
            _ => self.channel_for_publishing(address, now, effects),
        }
    }

    fn unsubscribe_queue(
        &mut self,
        consumer: ConsumerKey,
        address: &QueueAddress,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(&address.channel).ok_or_else(|| no_channel(&address.channel))?;
        let mut context = Context { now, state: &mut self.state, effects };
        let queue = self.channels[key].queues.get_mut(&address.id);
        let queue = queue.ok_or_else(|| no_queue(&address.channel, address.id))?;
        let ((connection, tag), queue_ref) = (consumer, queue.metadata.queue_ref);
        if !queue.unsubscribe(connection, tag, &mut context) {
            let reason = format!("the client has no such subscription to queue {address}");
            return Err(Rejection::new(RejectionKind::NotFound, reason));
        }
        let more = queue.subscriptions().any(|member| member.consumer.client.connection == connection);
        if !more && let Some(peer) = self.peers.get_mut(&connection) {
            peer.subscribed.retain(|subscribed| *subscribed != queue_ref);
        }
        self.abandon(queue_ref, now, effects);
        self.destroy_abandoned(now, effects);
        Ok(Reply::Done)
    }

    /// A subscription of a queue ended: perhaps it was the last one, and the queue goes with it.
    fn abandon(&mut self, queue_ref: QueueRef, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(queue) = find(&mut self.channels, queue_ref) else { return };
        if queue.subscriptions().next().is_some() {
            return;
        }
        let address = queue.metadata.address.clone();
        if self.bindings.abandoned(&address, now) {
            self.drop_queue(&address, now, effects);
        }
    }

    fn reach_subscriptions(
        &mut self,
        name: &[u8],
        what: &Remote,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let mut found = false;
        for (queue_ref, consumer) in self.named.get(name) {
            let Some(queue) = find(&mut self.channels, queue_ref) else { continue };
            if !queue.has_subscription(consumer, name) {
                continue;
            }
            found = true;
            let mut context = Context { now, state: &mut self.state, effects };
            match what {
                Remote::Settle { message_id: Some(id), negative } => {
                    queue.acknowledged_one(consumer, id, negative.as_deref(), &mut context);
                }
                Remote::Settle { message_id: None, negative } => {
                    queue.acknowledged_all(consumer, negative.as_deref(), &mut context);
                }
                Remote::Unsubscribe => {
                    let address = queue.metadata.address.clone();
                    self.unsubscribe_queue(consumer, &address, now, effects)?;
                }
            }
        }
        let reason = || Rejection::new(RejectionKind::NotFound, "there is no such consumer");
        if found { Ok(Reply::Done) } else { Err(reason()) }
    }

    /// Changes what a queue is bound to, and tells its subscriptions, apart from `issuer`.
    fn rebind(
        &mut self,
        queue: &QueueAddress,
        binding: QueueBinding,
        issuer: Option<ConsumerKey>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Rejection> {
        let mut context = Context { now, state: &mut self.state, effects };
        let rebound = self.bindings.change(queue, binding, &mut context)?;
        self.ticket = rebound.ticket;
        if let Some(bindings) = rebound.changed {
            self.notify_bindings(bindings, issuer, effects);
        }
        Ok(())
    }

    fn notify_bindings(
        &mut self,
        bindings: QueueBindings,
        issuer: Option<ConsumerKey>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(key) = self.lookup(&bindings.queue.channel) else { return };
        let Some(queue) = self.channels[key].queues.get(&bindings.queue.id) else { return };
        let bindings = Arc::new(bindings);
        for member in queue.subscriptions().filter(|member| Some(member.consumer.key()) != issuer) {
            let event = Event::BindingsChanged { tag: member.consumer.tag, bindings: bindings.clone() };
            effects.push(Effect::Notify(member.consumer.client.connection, event));
        }
    }

    /// A queue goes with its bindings, if there are such.
    fn drop_queue(&mut self, address: &QueueAddress, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut context = Context { now, state: &mut self.state, effects };
        if let Some(bindings) = self.bindings.forget(address, &mut context) {
            self.notify_bindings(bindings, None, effects);
        }
        let Some(key) = self.lookup(&address.channel) else { return };
        let mut context = Context { now, state: &mut self.state, effects };
        // It may be gone already: then nothing is left to remove.
        let _ = self.channels[key].remove_queue(address.id, &mut context);
        self.destroy_abandoned(now, effects);
    }

    fn leave(
        &mut self,
        client: &Arc<Client>,
        channel: &ChannelName,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Rejection> {
        let key = self.lookup(channel).ok_or_else(|| no_channel(channel))?;
        let mut context = Context { now, state: &mut self.state, effects };
        if !self.channels[key].leave(client, &mut context) {
            let reason = format!("the client has not joined channel {channel}");
            return Err(Rejection::new(RejectionKind::NotFound, reason));
        }
        self.peer(client).joined.retain(|joined| *joined != key);
        self.destroy_abandoned(now, effects);
        Ok(Reply::Done)
    }

    fn create_channel(
        &mut self,
        name: &ChannelName,
        changes: &ChannelChanges,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<usize, Rejection> {
        check_handler(&changes.queue, &self.state)?;
        let limit = self.state.config.channel_limit as usize;
        if limit > 0 && self.channels.len() >= limit {
            let reason = format!("there are {limit} channels already, which is the limit");
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        let mut options = self.state.config.channel.clone();
        changes.apply_to(&mut options);
        let key = self.channels.insert(Channel::new(name.clone(), options));
        self.names.insert(folded(name), key);
        self.notify(EventKind::ChannelCreated, key, effects);
        let options = Box::new(self.channels[key].options.clone());
        let mut context = Context { now, state: &mut self.state, effects };
        context.record(Record::DefineChannel(name.clone(), options));
        Ok(key)
    }

    fn create_queue(
        &mut self,
        address: &QueueAddress,
        changes: &QueueChanges,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Rejection> {
        let key = match self.lookup(&address.channel) {
            Some(key) => key,
            None => {
                check_handler(changes, &self.state)?;
                self.create_channel(&address.channel, &ChannelChanges::default(), now, effects)?
            }
        };
        let mut context = Context { now, state: &mut self.state, effects };
        self.channels[key].create_queue(key, address.id, changes, &mut context)
    }

    fn remove_channel(&mut self, key: usize, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut context = Context { now, state: &mut self.state, effects };
        self.channels[key].remove_queues(&mut context);
        context.record(Record::RemoveChannel(self.channels[key].name.clone()));
        self.notify(EventKind::ChannelRemoved, key, effects);
        let channel = self.channels.remove(key);
        self.names.remove(&folded(&channel.name));
        self.last = None;
        for peer in self.peers.values_mut() {
            peer.joined.retain(|joined| *joined != key);
        }
    }

    /// Channels that want to go when nobody and nothing is in them any more.
    fn destroy_abandoned(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let abandoned: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.options.destroy_when_empty && channel.is_abandoned())
            .map(|(key, _)| key)
            .collect();
        for key in abandoned {
            self.remove_channel(key, now, effects);
        }
    }

    fn subscribe(
        &mut self,
        client: &Arc<Client>,
        subscription: &EventSubscription,
    ) -> Result<Reply, Rejection> {
        let EventSubscription { kind, channel, queue, on } = subscription;
        let (who, kind, on) = (client.connection, *kind, *on);
        if kind.scope() == EventScope::Server {
            if matches!(kind, EventKind::ChannelCreated | EventKind::ChannelRemoved) {
                self.watchers.retain(|watcher| *watcher != (kind, who));
                if on {
                    self.watchers.push((kind, who));
                }
            } else {
                self.directory.watch(kind, who, on);
            }
            return Ok(Reply::Done);
        }
        let missing = |what: &str| {
            let reason = format!("the event {} is about one {what}, which must be named", kind.as_str());
            Rejection::new(RejectionKind::Failed, reason)
        };
        let name = channel.as_ref().ok_or_else(|| missing("channel"))?;
        let key = self.lookup(name).ok_or_else(|| no_channel(name))?;
        if kind.scope() == EventScope::Queue {
            let id = queue.ok_or_else(|| missing("queue"))?;
            let queue = self.channels[key].queues.get_mut(&id).ok_or_else(|| no_queue(name, id))?;
            queue.watchers.retain(|watcher| *watcher != who);
            if on {
                queue.watchers.push(who);
            }
        } else {
            self.channels[key].watch(kind, who, on);
        }
        self.peer(client).watches = true;
        Ok(Reply::Done)
    }

    fn notify(&self, kind: EventKind, key: usize, effects: &mut Vec<Effect>) {
        let channel = &self.channels[key];
        let subject = Subject::Channel {
            active_clients: channel.members.len() as u32,
            client_limit: channel.options.client_limit,
        };
        let name = Some(channel.name.clone());
        let occurrence = Arc::new(Notification { kind, channel: name, queue: None, subject });
        for (watched, watcher) in &self.watchers {
            if *watched == kind {
                effects.push(Effect::Notify(*watcher, Event::Notified(occurrence.clone())));
            }
        }
    }

    // ---- Looking up --------------------------------------------------------------------------------------

    pub(crate) fn lookup(&mut self, name: &ChannelName) -> Option<usize> {
        if let Some((last, key)) = &self.last
            && last.is_same(name)
        {
            return Some(*key);
        }
        let key = *self.names.get(&folded(name))?;
        self.last = Some((name.clone(), key));
        Some(key)
    }

    fn channel(&mut self, name: &ChannelName) -> Result<&Channel, Rejection> {
        let key = self.lookup(name).ok_or_else(|| no_channel(name))?;
        Ok(&self.channels[key])
    }

    fn peer(&mut self, client: &Arc<Client>) -> &mut PeerState {
        self.peers.entry(client.connection).or_insert_with(|| PeerState {
            client: client.clone(),
            joined: SmallVec::new(),
            watches: false,
            subscribed: Vec::new(),
        })
    }
}

fn done_or(done: bool, why: impl FnOnce() -> String) -> Result<Reply, Rejection> {
    if done { Ok(Reply::Done) } else { Err(Rejection::new(RejectionKind::NotFound, why())) }
}

/// Channels are looked up without respect to case.
fn folded(name: &ChannelName) -> Box<str> {
    name.as_str().to_ascii_lowercase().into()
}

fn no_channel(name: &ChannelName) -> Rejection {
    Rejection::new(RejectionKind::NotFound, format!("there is no channel {name}; create it first"))
}

/// The queue at a place, if it is still the same one.
fn find(channels: &mut Slab<Channel>, queue_ref: QueueRef) -> Option<&mut Queue> {
    let queues = &mut channels.get_mut(queue_ref.channel)?.queues;
    queues.get_mut(&queue_ref.queue).filter(|queue| queue.metadata.queue_ref == queue_ref)
}

/// The queue at a place, if it is still the same one, with its consumers.
fn at(channels: &mut Slab<Channel>, queue_ref: QueueRef) -> Option<(Consumers<'_>, &mut Queue)> {
    let Channel { members, queues, .. } = channels.get_mut(queue_ref.channel)?;
    let queue = queues.get_mut(&queue_ref.queue).filter(|queue| queue.metadata.queue_ref == queue_ref)?;
    Some((consumers(members, queue), queue))
}

/// The consumers of a queue: its own list, or its channel's.
enum Consumers<'a> {
    Own(Arc<Members>),
    Channel(&'a Members),
}

impl std::ops::Deref for Consumers<'_> {
    type Target = Members;

    fn deref(&self) -> &Members {
        match self {
            Self::Own(members) => members,
            Self::Channel(members) => members,
        }
    }
}

fn consumers<'a>(channel: &'a Members, queue: &Queue) -> Consumers<'a> {
    queue.own().map_or(Consumers::Channel(channel), Consumers::Own)
}
