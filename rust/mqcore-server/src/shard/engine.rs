//! The task that owns one shard: takes input, lets the broker decide, carries out its effects.
//!
//! It never waits: outboxes always accept, and handlers and other shards have unbounded channels. A shard therefore continues
//! whatever else is full or stuck.

use std::future::poll_fn;
use std::sync::Arc;

use mqcore_broker::model::command::Command;
use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::declaration::{Declaration, Declared};
use mqcore_broker::model::effect::{Effect, Report};
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::recovery::RecoveredState;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::shard::Broker;
use mqcore_broker::spans::Span;
use tokio::sync::mpsc;

use crate::handler::HandlerPort;
use crate::hub::Hub;
use crate::runtime::clock::Alarm;
use crate::runtime::shutdown::TaskGuard;
use crate::shard::handlers::Handlers;
use crate::shard::inbox::{CommandBatch, Input, ShardInbox, SharedRoom, Urgent};
use crate::shard::journal::ShardJournal;
use crate::shard::peers::PeerShards;
use crate::shard::program::{self, ProgramRequests};
use crate::shard::staging::Staging;
use crate::shard::statistics::Statistics;
use crate::stats::counters::CloseReason;
use crate::storage::body_reader::ReadRequest;
use crate::storage::journal_writer::JournalWriter;
use mqcore_state::schedules::publisher;

/// Batches taken from the inbox at once.
const BATCHES_MAX: usize = 64;

/// Commands before pending effects are carried out: enough to share the cost, few enough to stay in the cache.
const COMMANDS_MAX: usize = 1024;

/// Stored messages delivered before the task looks for new commands.
const WORK_BUDGET: usize = 1024;

/// One shard and everything that its task needs.
pub(crate) struct Engine {
    shard: usize,
    broker: Broker,
    hub: Arc<Hub>,
    /// Effects of the broker that are not carried out yet.
    effects: Vec<Effect>,
    handlers: Handlers,
    staging: Staging,
    congested: Vec<ConnectionId>,
    peers: PeerShards,
    journal: ShardJournal,
    /// Spans on their way to the hub.
    spans: Vec<Span>,
    program: ProgramRequests,
    statistics: Statistics,
    /// Why the shard takes no durable messages although its journal works.
    refusal: Option<Box<str>>,
    /// The broker has more to deliver at once.
    more: bool,
    /// Dropped when the shard has nothing left to do.
    fences: Vec<mpsc::Sender<()>>,
    alive: TaskGuard,
}

impl Engine {
    pub(crate) fn new(
        config: BrokerConfig,
        handlers: &[HandlerSpec],
        hub: &Arc<Hub>,
        port: Arc<dyn HandlerPort>,
    ) -> Self {
        let shard = config.shard;
        let mut engine = Self {
            shard,
            peers: PeerShards::new(shard, config.placement),
            broker: Broker::new(config),
            handlers: Handlers::new(port, Arc::new(hub.shards[shard].clone())),
            staging: Staging::new(shard),
            effects: Vec::new(),
            congested: Vec::new(),
            journal: ShardJournal::default(),
            spans: Vec::new(),
            program: ProgramRequests::default(),
            statistics: Statistics::default(),
            refusal: None,
            more: false,
            fences: Vec::new(),
            alive: hub.shutdown.enter(),
            hub: Arc::clone(hub),
        };
        for handler in handlers {
            engine.register(handler.clone());
        }
        engine
    }

    /// Restores recovered state, and writes to the journal from now on. Called before anything else.
    pub(crate) fn restore(&mut self, had: RecoveredState, journal: JournalWriter) {
        let now = self.hub.clock.now();
        self.journal.attach(journal);
        self.broker.restore(had, now, &mut self.effects);
        // Another shard may hold moved messages until this one has settled them.
        self.more = true;
        for (queue, handler) in self.broker.waiting_for_handlers() {
            tracing::warn!(
                %queue,
                handler,
                "the delivery handler is not registered: the queue neither takes nor delivers messages until the broker \
                 runs with it"
            );
        }
    }

    /// Runs until the server ends.
    pub(crate) async fn run(mut self, mut inbox: ShardInbox) {
        let mut urgent = Vec::new();
        let mut inputs = Vec::new();
        let mut alarm = Alarm::new();
        loop {
            if self.more {
                // Other tasks of this thread get a turn, however much there is to deliver.
                tokio::task::yield_now().await;
            } else {
                let deadline = self.broker.next_timeout();
                let (clock, journal) = (&self.hub.clock, &mut self.journal);
                let journal_events = poll_fn(|context| journal.poll_ready(context));
                tokio::select! {
                    biased;
                    () = journal_events => {}
                    _ = inbox.urgent.recv_many(&mut urgent, BATCHES_MAX) => {}
                    _ = inbox.inbox.recv_many(&mut inputs, BATCHES_MAX) => {}
                    () = poll_fn(|context| alarm.poll(context, deadline, clock.now(), clock)) => {}
                }
            }
            self.journal.take_events(&mut urgent);
            while let Ok(next) = inbox.urgent.try_recv() {
                urgent.push(next);
            }
            while inputs.len() < BATCHES_MAX
                && let Ok(next) = inbox.inbox.try_recv()
            {
                inputs.push(next);
            }
            let quiet = inputs.is_empty();
            if !self.turn(&mut urgent, &mut inputs) {
                return;
            }
            let waits = self.broker.waits_for_commit() || self.broker.waits_for_bodies();
            if quiet && !self.more && !waits {
                self.fences.clear();
            } else if !self.fences.is_empty() && !waits {
                // A caller waits until the shard is idle: check again at once.
                self.more = true;
            }
        }
    }

    /// False when the server ends.
    fn turn(&mut self, urgent: &mut Vec<Urgent>, inputs: &mut Vec<Input>) -> bool {
        let now = self.hub.clock.now();
        for urgent in urgent.drain(..) {
            if !self.take_urgent(urgent, now) {
                return false;
            }
        }
        let mut commands = 0;
        for input in inputs.drain(..) {
            match input {
                Input::Batch(batch) => self.take_batch(batch, &mut commands, now),
                Input::Closed(connection) => {
                    self.broker.closed(connection, now, &mut self.effects);
                    self.staging.forget(connection);
                }
                Input::Writable(connection) => {
                    self.broker.writable(connection, now, &mut self.effects);
                }
                Input::Unwritable(connection) => {
                    self.broker.congested(connection, now, &mut self.effects);
                }
            }
        }
        self.finish(now);
        true
    }

    fn take_batch(&mut self, mut batch: CommandBatch, commands: &mut usize, now: Timestamp) {
        self.staging.register(&batch.outbox);
        let mut room = None;
        let mut forwards = self.broker.forwards();
        let mut next = batch.commands.drain(..);
        let mut seen = 0;
        loop {
            if seen == 0 {
                seen = self.broker.look_ahead(&batch.client, next.as_slice());
            }
            let Some(command) = next.next() else { break };
            seen -= 1;
            self.broker.command(&batch.client, command, now, &mut self.effects);
            if self.broker.forwards() != forwards && self.hub.shards.len() > 1 {
                forwards = self.broker.forwards();
                room = room.or_else(|| batch.room.take().map(SharedRoom::new));
                self.peers.keep_room(room.as_ref());
            }
            *commands += 1;
            if *commands >= COMMANDS_MAX {
                *commands = 0;
                self.finish(now);
            }
        }
        drop(next);
        self.hub.spare_commands.give(batch.commands);
    }

    fn take_urgent(&mut self, urgent: Urgent, now: Timestamp) -> bool {
        match urgent {
            Urgent::Answers(answers) => {
                for answer in answers {
                    self.handlers.open.answered(answer.id, &self.hub.counters.handlers);
                    self.broker.answer(answer, now, &mut self.effects);
                }
            }
            Urgent::Transfers(transfers) => {
                for transfer in transfers {
                    self.broker.transfer(transfer, now, &mut self.effects);
                }
            }
            Urgent::Forwarded(forwarded, rooms) => {
                let before = self.broker.forwards();
                for forwarded in forwarded {
                    self.broker.forwarded(forwarded, now, &mut self.effects);
                }
                if self.broker.forwards() != before {
                    // It is forwarded to yet another shard, and keeps its room.
                    self.peers.extend_rooms(&rooms);
                }
            }
            Urgent::Committed(level, sequence) => {
                self.broker.committed(level, sequence, now, &mut self.effects);
            }
            // Counted here and not by the journal's thread: a client that sees the alarm end may publish at once.
            Urgent::StorageRefuses(why) => {
                self.hub.counters.journal.refusing(self.shard, true);
                self.broker.storage_refuses(&why, now, &mut self.effects);
            }
            Urgent::StorageAccepts => {
                self.hub.counters.journal.refusing(self.shard, false);
                self.broker.storage_accepts(now, &mut self.effects);
                self.refuse_after_loss(now);
            }
            Urgent::RecordsLost(why) => {
                self.refusal.get_or_insert(why);
                self.refuse_after_loss(now);
            }
            Urgent::Transferred(ends) => {
                for end in ends {
                    self.broker.transferred(end, now, &mut self.effects);
                }
            }
            Urgent::Released(arrivals) => {
                for arrival in arrivals {
                    self.broker.release(arrival, now, &mut self.effects);
                }
            }
            Urgent::Loaded(loaded) => self.broker.loaded(loaded, now, &mut self.effects),
            Urgent::Dequeued(question) => self.effects.push(Effect::Ask(*question)),
            Urgent::Handler(spec) => self.register(*spec),
            Urgent::Router(_, Some(router)) => self.define_router(*router),
            Urgent::Declare(declaration, reply) => {
                let (client, id) = self.program.begin(reply);
                self.broker.declare_for(&client, id, &declaration, now, &mut self.effects);
            }
            Urgent::Request(request, reply) => {
                let (client, id) = self.program.begin(reply);
                self.broker.command(&client, Command::Request(id, request), now, &mut self.effects);
            }
            Urgent::Router(name, None) => self.broker.remove_router(&name, now, &mut self.effects),
            Urgent::Statistics(request) => self.statistics.ask(request),
            Urgent::Nodes(reply) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(self.broker.nodes(now));
            }
            Urgent::Queue(queue, reply) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(self.broker.queue(&queue).map(Box::new));
            }
            Urgent::WaitingMessage(queue, max, reply) => {
                self.journal.look(self.broker.waiting(&queue, max), reply);
            }
            Urgent::Locate(sought, reply) => {
                let _ = reply.send(self.broker.locations(&sought));
            }
            Urgent::Takes(queues, reply) => {
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(queues.iter().map(|queue| self.broker.takes(queue)).collect());
            }
            Urgent::Clients(to, message, reply) => {
                let count = match message {
                    Some(message) => self.broker.send_custom(&to, message, now, &mut self.effects),
                    None => self.broker.disconnect(&to, now, &mut self.effects),
                };
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(count);
            }
            Urgent::Scheduled(commands) => {
                for command in commands {
                    self.broker.command(&self.hub.scheduling, command, now, &mut self.effects);
                }
            }
            Urgent::Upstream(upstream) => self.broker.upstream(*upstream, now, &mut self.effects),
            Urgent::WaitingForHandlers(reply) => {
                let waiting = self.broker.waiting_for_handlers();
                // The caller may have gone; then nothing needs the answer.
                let _ = reply.send(waiting.map(|(queue, key)| (queue.clone(), key.into())).collect());
            }
            Urgent::Fence(fence) => self.fences.push(fence),
            Urgent::ClockTurned => {}
            Urgent::End => return false,
        }
        true
    }

    /// Takes no durable messages for this reason until the shard is started again. Called before [`Engine::run`].
    pub(crate) fn refuse(&mut self, why: Box<str>) {
        self.refusal = Some(why);
        self.refuse_after_loss(self.hub.clock.now());
    }

    fn refuse_after_loss(&mut self, now: Timestamp) {
        if let Some(why) = &self.refusal {
            self.hub.counters.journal.refusing(self.shard, true);
            self.broker.records_lost(why, now, &mut self.effects);
        }
    }

    fn register(&mut self, spec: HandlerSpec) {
        let (timeout, key) = (spec.timeout, spec.key.clone());
        let waiting = self.broker.waiting_for_handlers().filter(|(_, handler)| **handler == *key).count();
        let handler = self.broker.register_handler(spec);
        if waiting > 0 {
            tracing::info!(
                handler = &*key,
                queues = waiting,
                "the delivery handler is registered: its queues continue"
            );
        }
        self.handlers.open.set_timeout(handler, timeout);
    }

    /// Creates what the configuration declares. Called after [`Engine::restore`] and before anything else.
    pub(crate) fn declare(&mut self, declaration: &Declaration) -> Result<Declared, Rejection> {
        // Its records must not wait until a client sends something.
        self.more = true;
        self.broker.declare(declaration, self.hub.clock.now(), &mut self.effects)
    }

    /// Creates a router of the program, unless the limit is reached.
    pub(crate) fn define_router(&mut self, router: RouterDefinition) {
        let name = router.name.clone();
        if let Err(rejection) = self.broker.define_router(router) {
            tracing::error!(router = %name, reason = %rejection, "cannot create a router");
        }
    }

    /// Runs due timers, delivers stored messages, and carries out all effects.
    fn finish(&mut self, now: Timestamp) {
        if now >= self.broker.next_timeout() {
            self.broker.timeout(now, &mut self.effects);
        }
        self.handlers.open.expire(now, &self.hub.counters.handlers);
        self.broker.work(now, WORK_BUDGET, &mut self.effects);
        // Congestion and transfers to this very shard cause further effects; each connection is congested once.
        while !self.effects.is_empty() {
            self.carry_out(now);
        }
        // Storing a message may cause no effect, but still produces history.
        self.journal.write(&mut self.broker, &self.hub);
        if let Some(spans) = &self.hub.spans {
            self.broker.take_spans(&mut self.spans);
            spans.add(&mut self.spans);
        }
        // Checked last, because a transfer creates work too.
        self.more = self.broker.has_work() | self.statistics.advance(&mut self.broker, now);
    }

    fn carry_out(&mut self, now: Timestamp) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Deliver(deliver) => self.staging.deliver(deliver, &self.hub),
                Effect::Publication(publication) => self.staging.publish(&publication, &self.hub),
                Effect::Notify(publisher::CONNECTION, event) => self.hub.schedules.shard_event(event),
                Effect::Notify(program::CONNECTION, event) => self.program.end(event),
                Effect::Notify(connection, event) => {
                    self.staging.send_event(connection, event, &self.hub);
                }
                Effect::Ask(question) => {
                    self.handlers.push(question, now, &self.hub.counters.handlers);
                }
                Effect::Observe(observation) => self.handlers.observe(observation),
                Effect::Close(connection, rejection) => self.close(connection, &rejection),
                Effect::Transfer(transfer) => {
                    self.peers.transfer(*transfer);
                }
                Effect::Forward(shard, forwarded) => self.peers.forward(shard, forwarded),
                Effect::Record(sequence, record) => self.journal.record(sequence, record),
                Effect::Load(load) => self.journal.read(ReadRequest::Load(load)),
                Effect::Dequeued(sequence, question) => {
                    self.journal.read(ReadRequest::Dequeued(sequence, Box::new(question)));
                }
                Effect::Transferred(end) => self.peers.transferred(*end),
                Effect::Release(arrival) => self.peers.release(*arrival),
                Effect::Report(report) => log(&report),
            }
        }
        self.effects = effects;
        self.journal.write(&mut self.broker, &self.hub);
        self.handlers.ask(&self.hub);
        self.peers.send(&mut self.broker, now, &mut self.effects, &self.hub);
        if self.staging.flush(&mut self.congested) {
            self.hub.moved();
        }
        for connection in self.congested.drain(..) {
            self.broker.congested(connection, now, &mut self.effects);
        }
    }

    fn close(&mut self, connection: ConnectionId, rejection: &Rejection) {
        tracing::info!(connection = connection.0, reason = %rejection, "closed a connection");
        // Of the connections that the broker closes as busy, all are slow consumers.
        let slow = rejection.kind == RejectionKind::Busy;
        let reason = if slow { CloseReason::SlowConsumer } else { CloseReason::Refused };
        self.staging.close(connection, reason, &self.hub);
    }
}

fn log(report: &Report) {
    match report {
        Report::DeadLetterQueueCreated { queue, from } => {
            tracing::warn!(%queue, %from, "created the dead-letter queue of the channel");
        }
        Report::DeadLetterQueueMissing { missing, from, used } => {
            tracing::warn!(%from, %missing, %used, "the dead-letter queue does not exist any more; using another one");
        }
        Report::DefinitionLost { queue } => {
            tracing::error!(%queue, "the definition of a queue is lost, so it is paused with its messages; declare it again");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The state of this shard is lost; continuing with the others would only hide that.
            tracing::error!(shard = self.shard, "a shard failed; the server is stopping");
            self.alive.fail();
        }
    }
}
