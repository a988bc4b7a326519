//! The task of one shard, as the server runs it: takes input, lets the broker decide, carries out its effects.
//!
//! Follows `shard/engine.rs`, `shard/staging.rs` and `shard/peers.rs` of the server step by step.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::effect::{Deliver, Effect, Event, Forwarded, Publication, Question};
use mqcore_broker::model::id::{ConnectionId, QueueAddress, RequestId};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::recovery::RecoveredState;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::time::Timestamp;
use mqcore_broker::model::transfer::{ArrivedMessage, Transfer, TransferEnd};
use mqcore_broker::shard::Broker;
use mqcore_session::protocol::{Encoding, Overload};
use mqcore_state::schedules::publisher;

use crate::connection::{OutboxItem, ServerConnection};
use crate::inbox::{Input, JournalBatch, Urgent};

/// Batches taken from the inbox at once.
const BATCHES_MAX: usize = 64;
/// Commands before pending effects are carried out.
const COMMANDS_MAX: usize = 1024;
/// Stored messages delivered before the task looks for new commands.
const WORK_BUDGET: usize = 1024;

/// Output of one run of the task for other tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskOutput {
    pub(crate) urgent: Vec<(usize, Urgent)>,
    pub(crate) batches: Vec<JournalBatch>,
    pub(crate) woken: Vec<ConnectionId>,
    /// Events and answers for the thread that runs schedules.
    pub(crate) scheduling: Vec<Event>,
    pub(crate) found: Vec<Vec<(QueueAddress, bool)>>,
    /// Questions to delivery handlers.
    pub(crate) questions: Vec<Question>,
    /// A declaration has succeeded.
    pub(crate) has_declared: bool,
}

/// The connection of the operator, which no socket has.
const OPERATOR: ConnectionId = ConnectionId(u64::MAX - 1);

type Connections = BTreeMap<ConnectionId, ServerConnection>;

#[derive(Debug, Default)]
struct Staged {
    items: Vec<OutboxItem>,
    bytes: usize,
}

/// One shard and everything that its task needs.
pub(crate) struct ShardTask {
    shard: usize,
    broker: Broker,
    placement: Placement,
    /// The client of the runs of schedules.
    publisher: Arc<Client>,
    /// The client that changes queues. It has no connection and reads no answers.
    operator: Arc<Client>,
    /// Declarations of the operator that were rejected, each with the reason, until the operator changes their queues again.
    undeclared: BTreeMap<QueueAddress, (Declaration, Rejection)>,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) urgent: Vec<Urgent>,
    effects: Vec<Effect>,
    batch: JournalBatch,
    staged: BTreeMap<ConnectionId, Staged>,
    transfers: Vec<Vec<Transfer>>,
    forwards: Vec<Vec<Forwarded>>,
    transferred: Vec<Vec<TransferEnd>>,
    released: Vec<Vec<ArrivedMessage>>,
    more: bool,
    /// An event of the agenda runs it.
    pub(crate) scheduled: bool,
}

impl ShardTask {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let (shard, placement) = (config.shard, config.placement);
        let shards = placement.shards();
        Self {
            shard,
            broker: Broker::new(config),
            placement,
            publisher: publisher::client(),
            operator: Arc::new(Client { connection: OPERATOR, ..(*publisher::client()).clone() }),
            undeclared: BTreeMap::new(),
            inbox: VecDeque::new(),
            urgent: Vec::new(),
            effects: Vec::new(),
            batch: JournalBatch::default(),
            staged: BTreeMap::new(),
            transfers: vec![Vec::new(); shards],
            forwards: vec![Vec::new(); shards],
            transferred: vec![Vec::new(); shards],
            released: vec![Vec::new(); shards],
            more: false,
            scheduled: false,
        }
    }

    /// Registers a delivery handler before anything else happens.
    pub(crate) fn register(&mut self, spec: HandlerSpec) {
        self.broker.register_handler(spec);
    }

    /// Whether a queue exists.
    pub(crate) fn has(&self, queue: &QueueAddress) -> bool {
        self.broker.takes(queue)
    }

    pub(crate) fn restore(&mut self, state: RecoveredState, now: Timestamp) {
        self.broker.restore(state, now, &mut self.effects);
    }

    /// Creates what the configuration declares. Its records do not wait for a client.
    pub(crate) fn declare(&mut self, declaration: &Declaration, now: Timestamp) -> Result<(), String> {
        self.more = true;
        let declared = self.broker.declare(declaration, now, &mut self.effects);
        declared.map(drop).map_err(|rejection| rejection.to_string())
    }

    /// Tries the declarations again that were rejected: a disk may have been full, or a dead-letter queue missing that another
    /// shard has created since. Each one that succeeds is a reason to try the others again, as when the server starts.
    fn declare_again(&mut self, now: Timestamp, out: &mut TaskOutput) {
        let before = self.undeclared.len();
        self.undeclared.retain(|_, (declaration, why)| {
            let declared = self.broker.declare(declaration, now, &mut self.effects);
            declared.map_err(|rejection| *why = rejection).is_err()
        });
        out.has_declared |= self.undeclared.len() < before;
    }

    /// A declaration that is rejected so far, and the reason.
    pub(crate) fn undeclared(&self) -> Option<String> {
        let (declaration, why) = self.undeclared.values().next()?;
        Some(format!("{} cannot be declared: {why}", declaration.subject()))
    }

    pub(crate) fn next_timeout(&self) -> Timestamp {
        self.broker.next_timeout()
    }

    /// Whether it has something to do at once.
    pub(crate) fn has_work(&self) -> bool {
        self.more || !self.inbox.is_empty() || !self.urgent.is_empty()
    }

    pub(crate) fn turn(&mut self, now: Timestamp, connections: &mut Connections, out: &mut TaskOutput) {
        for urgent in std::mem::take(&mut self.urgent) {
            self.take_urgent(urgent, now, out);
        }
        let mut commands = 0;
        for _ in 0..BATCHES_MAX {
            let Some(input) = self.inbox.pop_front() else { break };
            match input {
                Input::Batch(client, batch) => {
                    self.take_batch(&client, batch, &mut commands, now, connections, out);
                }
                Input::Closed(connection) => self.broker.closed(connection, now, &mut self.effects),
                Input::Writable(connection) => self.broker.writable(connection, now, &mut self.effects),
            }
        }
        self.finish(now, connections, out);
    }

    fn take_batch(
        &mut self,
        client: &Arc<Client>,
        batch: Vec<Command>,
        commands: &mut usize,
        now: Timestamp,
        connections: &mut Connections,
        out: &mut TaskOutput,
    ) {
        let mut next = batch.into_iter();
        let mut seen = 0;
        loop {
            if seen == 0 {
                seen = self.broker.look_ahead(client, next.as_slice());
            }
            let Some(command) = next.next() else { break };
            seen -= 1;
            self.broker.command(client, command, now, &mut self.effects);
            *commands += 1;
            if *commands >= COMMANDS_MAX {
                *commands = 0;
                self.finish(now, connections, out);
            }
        }
    }

    fn take_urgent(&mut self, urgent: Urgent, now: Timestamp, out: &mut TaskOutput) {
        let (broker, effects) = (&mut self.broker, &mut self.effects);
        match urgent {
            Urgent::Transfers(transfers) => {
                transfers.into_iter().for_each(|transfer| broker.transfer(transfer, now, effects));
            }
            Urgent::Forwarded(forwarded) => {
                forwarded.into_iter().for_each(|forwarded| broker.forwarded(forwarded, now, effects));
            }
            Urgent::Transferred(ends) => {
                ends.into_iter().for_each(|end| broker.transferred(end, now, effects));
            }
            Urgent::Released(arrivals) => {
                arrivals.into_iter().for_each(|arrival| broker.release(arrival, now, effects));
            }
            Urgent::Committed(level, sequence) => broker.committed(level, sequence, now, effects),
            Urgent::StorageRefuses(why) => broker.storage_refuses(&why, now, effects),
            Urgent::StorageAccepts => {
                broker.storage_accepts(now, effects);
                self.declare_again(now, out);
            }
            Urgent::Operate(queue, request) => {
                self.undeclared.remove(&queue);
                let command = Command::Request(RequestId(0), request);
                broker.command(&self.operator, command, now, effects);
            }
            Urgent::Declare(queue, declaration) => {
                self.undeclared.remove(&queue);
                match broker.declare(&declaration, now, effects) {
                    Ok(_) => out.has_declared = true,
                    Err(why) => drop(self.undeclared.insert(queue, (*declaration, why))),
                }
            }
            Urgent::DeclareAgain => self.declare_again(now, out),
            Urgent::Answer(answer) => broker.answer(answer, now, effects),
            Urgent::Handler(spec) => drop(broker.register_handler(*spec)),
            Urgent::Loaded(loaded) => broker.loaded(loaded, now, effects),
            Urgent::Scheduled(commands) => {
                for command in commands {
                    broker.command(&self.publisher, command, now, effects);
                }
            }
            Urgent::Takes(queues) => {
                let found = queues.into_iter().map(|queue| {
                    let takes = broker.takes(&queue);
                    (queue, takes)
                });
                out.found.push(found.collect());
            }
        }
    }

    fn finish(&mut self, now: Timestamp, connections: &mut Connections, out: &mut TaskOutput) {
        if now >= self.broker.next_timeout() {
            self.broker.timeout(now, &mut self.effects);
        }
        self.broker.work(now, WORK_BUDGET, &mut self.effects);
        while !self.effects.is_empty() {
            self.carry_out(now, connections, out);
        }
        self.write_journal(out);
        self.more = self.broker.has_work();
    }

    fn carry_out(&mut self, now: Timestamp, connections: &mut Connections, out: &mut TaskOutput) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Deliver(deliver) => self.deliver(&deliver, connections),
                Effect::Publication(publication) => self.publish(&publication, connections),
                Effect::Notify(publisher::CONNECTION, event) => out.scheduling.push(event),
                Effect::Notify(connection, event) => self.send_event(connection, event, connections),
                Effect::Close(connection, _) => {
                    if let Some(staged) = self.staged(connection, connections) {
                        staged.items.push(OutboxItem::Close);
                    }
                }
                Effect::Transfer(transfer) => {
                    self.transfers[transfer.to.channel.shard(self.placement)].push(*transfer);
                }
                Effect::Forward(shard, forwarded) => self.forwards[shard].push(forwarded),
                Effect::Transferred(end) => {
                    if let Some(shard) = end.shard() {
                        self.transferred[shard].push(*end);
                    }
                }
                Effect::Release(arrival) => self.released[arrival.shard].push(*arrival),
                Effect::Record(sequence, record) => self.batch.records.push((sequence, record)),
                Effect::Load(load) => self.batch.reads.push(load),
                Effect::Ask(question) => out.questions.push(question),
                // No simulated handler wants notifications.
                Effect::Dequeued(..) | Effect::Observe(_) | Effect::Report(_) => {}
            }
        }
        self.write_journal(out);
        self.send_to_peers(now, out);
        for (connection, staged) in std::mem::take(&mut self.staged) {
            let Some(to) = connections.get_mut(&connection) else { continue };
            out.woken.push(connection);
            if to.push(staged.items, staged.bytes, self.shard) {
                self.broker.congested(connection, now, &mut self.effects);
            }
        }
    }

    fn write_journal(&mut self, out: &mut TaskOutput) {
        self.broker.take_history(&mut self.batch.history);
        let batch = &mut self.batch;
        if batch.records.is_empty() && batch.history.is_empty() && batch.reads.is_empty() {
            return;
        }
        (batch.written, batch.sync) = (self.broker.waits_for_write(), self.broker.waits_for_sync());
        out.batches.push(std::mem::take(batch));
    }

    fn send_to_peers(&mut self, now: Timestamp, out: &mut TaskOutput) {
        for shard in 0..self.placement.shards() {
            let transfers = std::mem::take(&mut self.transfers[shard]);
            if shard == self.shard {
                for transfer in transfers {
                    self.broker.transfer(transfer, now, &mut self.effects);
                }
            } else if !transfers.is_empty() {
                out.urgent.push((shard, Urgent::Transfers(transfers)));
            }
        }
        for shard in 0..self.placement.shards() {
            let forwards = std::mem::take(&mut self.forwards[shard]);
            if shard == self.shard {
                for forwarded in forwards {
                    self.broker.forwarded(forwarded, now, &mut self.effects);
                }
            } else if !forwards.is_empty() {
                out.urgent.push((shard, Urgent::Forwarded(forwards)));
            }
        }
        for (shard, ends) in self.transferred.iter_mut().enumerate() {
            if !ends.is_empty() {
                out.urgent.push((shard, Urgent::Transferred(std::mem::take(ends))));
            }
        }
        for (shard, arrivals) in self.released.iter_mut().enumerate() {
            if !arrivals.is_empty() {
                out.urgent.push((shard, Urgent::Released(std::mem::take(arrivals))));
            }
        }
    }

    // ---- Output for connections --------------------------------------------------------------------------------

    fn staged(&mut self, to: ConnectionId, connections: &Connections) -> Option<&mut Staged> {
        connections.get(&to).filter(|connection| !connection.has_ended())?;
        Some(self.staged.entry(to).or_default())
    }

    fn deliver(&mut self, deliver: &Deliver, connections: &Connections) {
        for (index, to) in deliver.to.as_slice().iter().enumerate() {
            let Some(protocol) = connections.get(to).map(|connection| connection.protocol) else { continue };
            match protocol.deliveries() {
                Encoding::Shared(encode) => {
                    let Some(staged) = self.staged(*to, connections) else { continue };
                    staged.append(|frames| encode(deliver, deliver.first && index == 0, frames));
                }
                Encoding::BySession => self.send_event(*to, Event::Delivered(deliver.clone()), connections),
            }
        }
    }

    fn publish(&mut self, publication: &Publication, connections: &Connections) {
        for to in publication.to.as_slice() {
            let Some(protocol) = connections.get(to).map(|connection| connection.protocol) else { continue };
            match protocol.publications() {
                Encoding::Shared(encode) => {
                    let Some(staged) = self.staged(*to, connections) else { continue };
                    staged.append(|frames| encode(publication, frames));
                }
                Encoding::BySession => {
                    let Publication { topic, message, .. } = publication.clone();
                    self.send_event(*to, Event::Published { topic, message }, connections);
                }
            }
        }
    }

    fn send_event(&mut self, to: ConnectionId, event: Event, connections: &Connections) {
        let Some(protocol) = connections.get(&to).map(|connection| connection.protocol) else { return };
        let Some(staged) = self.staged(to, connections) else { return };
        staged.bytes += event.pending_bytes();
        let delivery = matches!(event, Event::Delivered(_)) || protocol.overload() == Overload::LimitEvents;
        match (delivery, staged.items.last_mut()) {
            (true, Some(OutboxItem::Deliveries(events))) | (false, Some(OutboxItem::Events(events))) => {
                events.push(event);
            }
            (true, _) => staged.items.push(OutboxItem::Deliveries(vec![event])),
            (false, _) => staged.items.push(OutboxItem::Events(vec![event])),
        }
    }
}

impl Staged {
    /// Appends the frames that `encode` produces.
    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.items.last(), Some(OutboxItem::Frames(_))) {
            self.items.push(OutboxItem::Frames(Vec::new()));
        }
        if let Some(OutboxItem::Frames(frames)) = self.items.last_mut() {
            let before = frames.len();
            encode(frames);
            self.bytes += frames.len() - before;
        }
    }
}
