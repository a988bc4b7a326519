//! One shard of the broker.

pub(crate) mod channel;
mod channels;
pub(crate) mod directory;
mod entities;
mod locate;
mod messages;
mod nodes;
mod recovery;
mod requests;
pub(crate) mod routes;
mod stats;
mod subscriptions;
mod work;

use std::sync::Arc;

use crate::context::Context;
use crate::context::state::ShardState;
use crate::history::Block;
use crate::model::client::Client;
use crate::model::command::Command;
use crate::model::config::{BrokerConfig, HandlerSpec};
use crate::model::effect::{Answer, Effect, Forwarded, Loaded, Origin, Transfer};
use crate::model::id::{ConnectionId, HandlerId, QueueAddress, RouterName, Sequence};
use crate::model::location::{Locations, MessageQuery};
use crate::model::node::Upstream;
use crate::model::options::Durability;
use crate::model::record::Record;
use crate::model::recovery::RecoveredState;
use crate::model::rejection::Rejection;
use crate::model::router::RouterDefinition;
use crate::model::stats::{ShardStats, WaitingMessage};
use crate::model::time::Timestamp;
use crate::shard::entities::Entities;

/// One shard: a state machine that takes commands and appends [`Effect`]s.
pub struct Broker {
    state: ShardState,
    entities: Entities,
}

impl Broker {
    /// A shard without channels, with the ready-made policies as its handlers.
    pub fn new(config: BrokerConfig) -> Self {
        Self { state: ShardState::new(config), entities: Entities::new() }
    }

    /// What one call works on. Every step of a call gets the same context.
    #[inline]
    fn split<'a>(
        &'a mut self,
        now: Timestamp,
        effects: &'a mut Vec<Effect>,
    ) -> (&'a mut Entities, Context<'a>) {
        (&mut self.entities, Context { now, state: &mut self.state, effects })
    }

    /// Adds a handler, or replaces the one of the same key, for existing queues too. Give every shard the same
    /// handlers in the same order: then the answer is the same in all of them.
    pub fn register_handler(&mut self, spec: HandlerSpec) -> HandlerId {
        let handler = self.state.register(spec);
        for (_, channel) in &mut self.entities.channels {
            for queue in channel.queues.values_mut() {
                queue.choose_handler(&self.state);
            }
        }
        handler
    }

    /// Looks at what the first of `commands` are about, and tells how many these are; [`Broker::command`] wants to have them
    /// next. Changes nothing, but makes a batch faster: what a message or an acknowledgement needs is found by a chain of
    /// reads of what is in no cache, and a processor follows several such chains at once as long as nothing is done between
    /// them.
    pub fn look_ahead(&mut self, client: &Client, commands: &[Command]) -> usize {
        self.entities.look_ahead(client, commands)
    }

    /// A peer asks for something. Before it was welcomed, `client` is provisional: its id is empty.
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

    /// A broker that this one passes on to came, went, or said who it is. Told to the home shard.
    pub fn upstream(&mut self, upstream: Upstream, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.directory.upstream(upstream, &mut context);
    }

    /// A connection ended. Every shard is told.
    pub fn closed(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.closed(connection, &mut context);
    }

    /// A connection's output buffer passed its high mark: nothing more is handed to it until it is writable.
    pub fn congested(&mut self, connection: ConnectionId, now: Timestamp, _effects: &mut Vec<Effect>) {
        self.state.congestion.since.entry(connection).or_insert(now);
        self.state.congestion.changes += 1;
    }

    /// It fell below its low mark again.
    pub fn writable(&mut self, connection: ConnectionId, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.writable(connection, &mut context);
    }

    /// A handler answers a question.
    pub fn answer(&mut self, answer: Answer, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.answer(answer, &mut context);
    }

    /// A message arrives from another queue, as [`Effect::Transfer`] said. If there is no such queue (any
    /// more), the message is dropped, and counted as over the limit: it had its chances.
    pub fn transfer(&mut self, transfer: Transfer, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.transfer(transfer, &mut context);
    }

    /// Another shard, or this one, hands something over, as [`Effect::Forward`] said.
    pub fn forwarded(&mut self, forwarded: Forwarded, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.forwarded(forwarded, &mut context);
    }

    /// How much was handed to other shards so far: grows by one with each [`Effect::Forward`].
    pub fn forwards(&self) -> u64 {
        self.state.counters.forwards
    }

    /// A dead letter of this shard is safe elsewhere, as [`Effect::Transferred`] said.
    pub fn transferred(&mut self, origin: Origin, now: Timestamp, effects: &mut Vec<Effect>) {
        let (_, mut context) = self.split(now, effects);
        context.record(Record::Settle(origin.sequence));
    }

    /// The program says that there is such a router. It takes the place of another of its name, and is not saved: the
    /// program says so again at its next start.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn define_router(&mut self, router: RouterDefinition) -> Result<(), Rejection> {
        self.entities.define_router(router, &self.state)
    }

    /// Removes a router; fine if there is none.
    pub fn remove_router(&mut self, name: &RouterName, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.remove_router(name, &mut context);
    }

    /// There is a journal: what it had is taken over, and from now on it is told what must survive. Call this
    /// before anything else. Queues whose definition was lost are made anew with the server's defaults, so
    /// that no message is lost with them.
    pub fn restore(&mut self, had: RecoveredState, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.restore(had, &mut context);
    }

    /// Bodies came back that [`Effect::Load`] asked for, or could not be read.
    pub fn loaded(&mut self, loaded: Loaded, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.loaded(loaded, &mut context);
    }

    /// Bodies are on their way from the journal.
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

    /// The journal takes nothing for now, or nothing any more. Whoever waits for a commit learns that it does
    /// not come; queues that promise to save refuse; consumers go on.
    pub fn storage_refuses(&mut self, why: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.storage_refuses(why, &mut context);
    }

    /// The journal takes records again. All definitions are written once more, as some may have been refused.
    pub fn storage_accepts(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.storage_accepts(&mut context);
    }

    /// Somebody waits until the records so far are written.
    pub fn waits_for_write(&self) -> bool {
        self.state.commits.waits_for_write()
    }

    /// Somebody waits until the records so far are synced.
    pub fn waits_for_sync(&self) -> bool {
        self.state.commits.waits_for_sync()
    }

    /// Somebody waits until the records so far are written, or synced.
    pub fn waits_for_commit(&self) -> bool {
        self.state.commits.waits_for_commit()
    }

    /// Takes the history since the last time, in its order. Write it down before the records of the same turn: then
    /// whatever is durable has its history.
    pub fn take_history(&mut self, into: &mut Vec<Block>) {
        if let Some(history) = &mut self.state.history {
            history.take(into);
        }
    }

    /// Lets everything happen whose time has come. Call it when [`Broker::next_timeout`] has passed.
    pub fn timeout(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let (entities, mut context) = self.split(now, effects);
        entities.timeout(&mut context);
    }

    /// When [`Broker::timeout`] wants to be called; [`Timestamp::NEVER`] if nothing waits for a time.
    pub fn next_timeout(&self) -> Timestamp {
        self.entities.next_timeout(&self.state)
    }

    /// Hands out stored messages, about `budget` of them (large ones count more). True if there is more to
    /// hand out at once: carry out the effects and call again.
    pub fn work(&mut self, now: Timestamp, budget: usize, effects: &mut Vec<Effect>) -> bool {
        let (entities, mut context) = self.split(now, effects);
        entities.work(budget, &mut context)
    }

    /// Whether [`Broker::work`] has something to do at once.
    pub fn has_work(&self) -> bool {
        !self.state.schedule.work.is_empty()
    }

    /// Everything that the admin side wants to know.
    pub fn stats(&self, now: Timestamp) -> ShardStats {
        self.entities.stats(now, &self.state)
    }

    /// Messages that wait in a queue, the next one first, at most `max` of them. Looking changes nothing. `None`: there
    /// is no such queue here.
    pub fn waiting(&self, queue: &QueueAddress, max: usize) -> Option<Vec<WaitingMessage>> {
        self.entities.waiting(queue, max)
    }

    /// Whether there is a queue, or publishing to it makes one.
    pub fn takes(&self, queue: &QueueAddress) -> bool {
        self.entities.takes(queue, &self.state.config)
    }

    /// Looks for a message in all queues of this shard. Changes nothing.
    pub fn locations(&self, query: &MessageQuery) -> Locations {
        self.entities.locations(query)
    }
}
