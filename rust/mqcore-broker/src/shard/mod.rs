//! One shard of the broker.

mod authentication;
pub(crate) mod channel;
mod channels;
mod dead_letters;
mod declarations;
pub(crate) mod directory;
mod entities;
mod lists;
mod locate;
mod messages;
mod nodes;
mod policies;
mod recovery;
mod requests;
pub(crate) mod routes;
pub mod sampling;
pub mod stats;
mod subscriptions;
mod work;

use std::sync::Arc;

use crate::context::Context;
use crate::context::state::ShardState;
use crate::history::Block;
use crate::model::client::Client;
use crate::model::command::{ClientPattern, Command};
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::declaration::{Declaration, Declared, OnConflict};
use crate::model::effect::{Answer, Effect, Event, Forwarded, Loaded};
use crate::model::id::{ConnectionId, HandlerId, QueueAddress, RequestId, RouterName, Sequence};
use crate::model::location::{Locations, MessageQuery};
use crate::model::message::Message;
use crate::model::node::{NodeInformation, Upstream};
use crate::model::options::Durability;
use crate::model::recovery::RecoveredState;
use crate::model::rejection::Rejection;
use crate::model::router::RouterDefinition;
use crate::model::stats::{QueueInformation, ShardStats, WaitingMessage};
use crate::model::time::Timestamp;
use crate::model::transfer::{ArrivedMessage, Transfer, TransferEnd};
use crate::shard::entities::Entities;
use crate::shard::sampling::QueueSampling;
use crate::shard::stats::StatsCollection;
use crate::spans::Span;

/// One shard: a state machine that takes commands and appends [`Effect`]s.
///
/// ```
/// use std::sync::Arc;
///
/// use mqcore_broker::model::client::Client;
/// use mqcore_broker::model::command::{Command, Request};
/// use mqcore_broker::model::config::BrokerConfig;
/// use mqcore_broker::model::effect::Effect;
/// use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
/// use mqcore_broker::model::message::{Message, Properties};
/// use mqcore_broker::model::time::Timestamp;
/// use mqcore_broker::shard::Broker;
///
/// let config = BrokerConfig { auto_create_channels: true, auto_create_queues: true, ..BrokerConfig::default() };
/// let mut broker = Broker::new(config);
/// let client = Arc::new(Client {
///     connection: ConnectionId(1),
///     id: "client-1".into(),
///     name: None,
///     kind: None,
///     protocol: "tmqp",
///     authenticated: false,
///     admin: false,
///     user: None,
///     connected_at: Timestamp(0),
///     data: None,
/// });
/// let queue = QueueAddress::parse("orders/1")?;
/// let mut effects = Vec::new();
///
/// let join = Request::Join { channel: queue.channel.clone() };
/// broker.command(&client, Command::Request(RequestId(1), Box::new(join)), Timestamp(1), &mut effects);
/// let message = Message::from_parts(b"m-1", b"", b"hello", Properties::default(), Some(client.clone()));
/// broker.command(&client, Command::Publish { queue, message }, Timestamp(2), &mut effects);
/// while broker.work(Timestamp(2), 256, &mut effects) {}
///
/// let delivered = |effect: &Effect| matches!(effect, Effect::Deliver(deliver) if deliver.message.body() == b"hello");
/// assert!(effects.iter().any(delivered));
/// # Ok::<(), mqcore_broker::model::id::NameError>(())
/// ```
pub struct Broker {
    state: ShardState,
    entities: Entities,
}

impl Broker {
    /// A shard without channels, whose handlers are the ready-made policies.
    pub fn new(config: BrokerConfig) -> Self {
        Self { state: ShardState::new(config), entities: Entities::new() }
    }

    /// The context of one call. All steps of a call use the same context.
    #[inline]
    fn split<'a>(
        &'a mut self,
        now: Timestamp,
        effects: &'a mut Vec<Effect>,
    ) -> (&'a mut Entities, Context<'a>) {
        (&mut self.entities, Context { now, state: &mut self.state, effects })
    }

    /// Adds a handler, or replaces the handler with the same key, also for existing queues. Queues that
    /// lacked it continue. Register the same handlers in the same order on every shard, so that their ids
    /// are the same everywhere.
    pub fn register_handler(&mut self, spec: HandlerSpec) -> HandlerId {
        let handler = self.state.register(spec);
        for (_, channel) in &mut self.entities.channels {
            for queue in channel.queues.values_mut() {
                queue.handler_registered(&mut self.state);
            }
            channel.choose_observers(&self.state);
        }
        handler
    }

    /// The queues whose delivery handler is not registered, each with the handler's key.
    pub fn waiting_for_handlers(&self) -> impl Iterator<Item = (&QueueAddress, &str)> {
        self.state.without_handler.iter().map(|(queue, key)| (&**queue, &**key))
    }

    /// Reads the memory that the first of `commands` will need, and returns how many commands these
    /// are. Pass them to [`Broker::command`](crate::shard::Broker::command) next. This changes nothing,
    /// but makes a batch faster: each message or acknowledgement is found by a chain of uncached reads,
    /// and a processor follows several such chains at once if nothing else happens between them.
    pub fn look_ahead(&mut self, client: &Client, commands: &[Command]) -> usize {
        self.entities.look_ahead(client, commands)
    }

    /// Carries out a command of a peer. Before the handshake is complete, `client` is provisional and
    /// its id is empty.
    pub fn command(
        &mut self,
        client: &Arc<Client>,
        command: Command,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let (entities, mut context) = self.split(now, effects);
        entities.command(client, command, &mut context);
    }

    /// An upstream broker connected, disconnected, or sent its name. Call this on the home shard.
    pub fn upstream(&mut self, upstream: Upstream, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.directory.upstream(upstream, &mut context);
    }

    /// A connection was closed. Call this on every shard.
    pub fn closed(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.closed(connection, &mut context);
    }

    /// A connection's output buffer passed its high mark: the shard delivers nothing to it until it is
    /// writable.
    pub fn congested(&mut self, connection: ConnectionId, now: Timestamp, _effects: &mut Vec<Effect>) {
        self.state.congestion.since.entry(connection).or_insert(now);
        self.state.congestion.changes += 1;
    }

    /// A connection's output buffer fell below its low mark again.
    pub fn writable(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.writable(connection, &mut context);
    }

    /// Takes a handler's answer.
    pub fn answer(&mut self, answer: Answer, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.answer(answer, &mut context);
    }

    /// Takes a message from another queue, for [`Effect::Transfer`]. If the queue does not exist, the
    /// message is dropped and counted as over the limit.
    pub fn transfer(&mut self, transfer: Transfer, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.transfer(transfer, &mut context);
    }

    /// Takes what a shard forwarded, for [`Effect::Forward`].
    pub fn forwarded(&mut self, forwarded: Forwarded, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.forwarded(forwarded, &mut context);
    }

    /// Number of [`Effect::Forward`] effects so far.
    pub fn forwards(&self) -> u64 {
        self.state.counters.forwards
    }

    /// A transfer of a message of this shard ended, for [`Effect::Transferred`].
    pub fn transferred(&mut self, end: TransferEnd, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.transferred(end, &mut context);
    }

    /// A moved message may be delivered in this shard, for [`Effect::Release`].
    pub fn release(&mut self, arrival: ArrivedMessage, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.release(arrival, &mut context);
    }

    /// Adds a router of the program, or replaces the one with the same name. The router is not saved:
    /// the program defines it again at its next start.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn define_router(&mut self, router: RouterDefinition) -> Result<(), Rejection> {
        self.entities.define_router(router, &self.state)
    }

    /// Removes a router; no effect if it does not exist.
    pub fn remove_router(&mut self, name: &RouterName, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.remove_router(name, &mut context);
    }

    /// Creates what the configuration declares; declared options replace others. Call this after
    /// [`Broker::restore`] and before anything else.
    ///
    /// # Errors
    /// As for a request that creates or changes it.
    pub fn declare(
        &mut self,
        declaration: &Declaration,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Declared, Rejection> {
        let (entities, mut context) = self.split(now, effects);
        entities.declare(declaration, OnConflict::Replace, &mut context)
    }

    /// Creates what the program declares, unless it exists as declared. `client` gets the answer to `id`:
    /// `Reply::Declared` once it is durable, or a rejection, of kind `AlreadyExists` if it exists with other
    /// options.
    pub fn declare_for(
        &mut self,
        client: &Arc<Client>,
        id: RequestId,
        declaration: &Declaration,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let (entities, mut context) = self.split(now, effects);
        entities.answer_declaration(client, id, declaration, &mut context);
    }

    /// Restores a shard from its journal. From now on the shard appends records. Call this before
    /// anything else. A queue whose definition was lost is paused, saves messages, and is reported.
    pub fn restore(&mut self, recovered: RecoveredState, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.restore(recovered, &mut context);
    }

    /// Takes bodies that were loaded for [`Effect::Load`], or could not be read.
    pub fn loaded(&mut self, loaded: Loaded, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.loaded(loaded, &mut context);
    }

    /// Whether bodies are being loaded.
    pub fn waits_for_bodies(&self) -> bool {
        self.state.paging.loading > 0
    }

    /// Everything up to `sequence` is durable at this level: written, or written and synced.
    pub fn committed(
        &mut self,
        level: Durability,
        sequence: Sequence,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let (entities, mut context) = self.split(now, effects);
        entities.committed(level, sequence, &mut context);
    }

    /// The journal refuses records, for now or for good. Actions that wait for a commit fail, queues that promise to
    /// save messages reject them, and consumers continue.
    pub fn storage_refuses(&mut self, why: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.storage_refuses(why, &mut context);
    }

    /// The journal has lost records, and no operator has accepted that: it refuses records, as after
    /// [`Broker::storage_refuses`]. Definitions may be among the lost ones, so the shard confirms no message that may miss
    /// a queue, router or binding.
    pub fn records_lost(&mut self, why: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        context.state.commits.lost = Some(why.into());
        entities.storage_refuses(why, &mut context);
    }

    /// The journal takes records again. All definitions are recorded once more, because some may have
    /// been refused.
    pub fn storage_accepts(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.storage_accepts(&mut context);
    }

    /// Whether something waits until the records so far are written.
    pub fn waits_for_write(&self) -> bool {
        self.state.commits.waits_for_write()
    }

    /// Whether something waits until the records so far are synced.
    pub fn waits_for_sync(&self) -> bool {
        self.state.commits.waits_for_sync()
    }

    /// Whether something waits for a sync although no new record asks for it. False from then on.
    pub fn take_sync_request(&mut self) -> bool {
        self.state.commits.take_sync_request()
    }

    /// Whether something waits until the records so far are written or synced.
    pub fn waits_for_commit(&self) -> bool {
        self.state.commits.waits_for_commit()
    }

    /// Moves the history since the last call to `into`. Write it before the records of the same call:
    /// then everything durable has its history.
    pub fn take_history(&mut self, into: &mut Vec<Block>) {
        if let Some(history) = &mut self.state.history {
            history.take(into);
        }
    }

    /// Moves the spans since the last call to `into`.
    pub fn take_spans(&mut self, into: &mut Vec<Span>) {
        if let Some(spans) = &mut self.state.spans {
            spans.take(into);
        }
    }

    /// Runs everything whose time has come. Call it when [`Broker::next_timeout`] has passed.
    pub fn timeout(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.timeout(&mut context);
    }

    /// When to call [`Broker::timeout`]; [`Timestamp::NEVER`] if nothing waits for a time.
    pub fn next_timeout(&self) -> Timestamp {
        self.entities.next_timeout(&self.state)
    }

    /// Delivers stored messages, about `budget` of them; large ones count more. Returns true if there
    /// is more to deliver at once: carry out the effects and call again.
    pub fn work(&mut self, now: Timestamp, budget: usize, effects: &mut Vec<Effect>) -> bool {
        let (entities, mut context) = self.split(now, effects);
        entities.work(budget, &mut context)
    }

    /// Whether [`Broker::work`] has something to do.
    pub fn has_work(&self) -> bool {
        !self.state.schedule.work.is_empty()
    }

    /// Sends a custom message of the program to clients, and returns their number. Call this on the home shard.
    pub fn send_custom(
        &mut self,
        to: &ClientPattern,
        message: Message,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> usize {
        let (entities, mut context) = self.split(now, effects);
        entities.reach_clients(to, Some(&Event::Custom(message)), &mut context)
    }

    /// Closes the connections of clients, and returns their number. Call this on the home shard.
    pub fn disconnect(&mut self, to: &ClientPattern, now: Timestamp, effects: &mut Vec<Effect>) -> usize {
        let (entities, mut context) = self.split(now, effects);
        entities.reach_clients(to, None, &mut context)
    }

    /// Statistics of the shard with complete lists, in one step.
    pub fn stats(&self, now: Timestamp) -> ShardStats {
        let mut collection = StatsCollection::new(usize::MAX, self.state.counters.retired);
        while !self.entities.collect(&mut collection, now, &self.state) {}
        collection.into_stats()
    }

    /// Begins to collect statistics whose lists have at most `limit` entries. One collection at a time.
    pub fn begin_stats(&mut self, limit: usize) -> StatsCollection {
        self.state.removed_queues = Some(Vec::new());
        StatsCollection::new(limit, self.state.counters.retired)
    }

    /// One step of a collection, which takes less than a millisecond however much the shard has. Returns whether it was the
    /// last one.
    pub fn continue_stats(&mut self, collection: &mut StatsCollection, now: Timestamp) -> bool {
        collection.removed(self.state.removed_queues.replace(Vec::new()).unwrap_or_default());
        let is_complete = self.entities.collect(collection, now, &self.state);
        if is_complete {
            self.state.removed_queues = None;
        }
        is_complete
    }

    /// One step of sampling queues, which takes less than a millisecond. Returns whether it was the last one.
    pub fn continue_sampling(&self, sampling: &mut QueueSampling, now: Timestamp) -> bool {
        self.entities.sample(sampling, now, &self.state)
    }

    /// Upstream and downstream brokers. Empty unless this is the home shard.
    pub fn nodes(&self, now: Timestamp) -> Vec<NodeInformation> {
        self.entities.directory.nodes(now)
    }

    /// The state of a queue. `None` if it is not on this shard.
    pub fn queue(&self, queue: &QueueAddress) -> Option<QueueInformation> {
        self.entities.queue(queue)
    }

    /// Waiting messages of a queue, in order of delivery, at most `max`. Changes nothing. `None` if the
    /// queue is not on this shard.
    pub fn waiting(&self, queue: &QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
        self.entities.waiting(queue, max)
    }

    /// Whether a queue exists, or publishing to it would create it.
    pub fn takes(&self, queue: &QueueAddress) -> bool {
        self.entities.takes(queue, &self.state.config)
    }

    /// Looks for a message in all queues of this shard. Changes nothing.
    pub fn locations(&self, query: &MessageQuery) -> Locations {
        self.entities.locations(query)
    }
}
