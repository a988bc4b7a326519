//! One life of the broker: its shards, journals and connections, from its start to a crash.

mod scheduling;

use std::collections::BTreeMap;
use std::sync::Arc;

use mqcore_broker::model::config::{BrokerConfig, HandlerSpec};
use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::effect::Question;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::names::BrokerNames;
use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::recovery::{RecoveryBuilder, settle_transfers};
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_session::any::{ListenerTerms, Protocol};

use crate::agenda::{Due, Task};
use crate::connection::{ConnectionTerms, ServerConnection};
use crate::handlers::{self, HandlerTask};
use crate::inbox::{Input, Urgent};
use crate::journal::{AfterTake, IDLE, JournalTask};
use crate::limits::{self, AfterRound, LimitTask};
use crate::scenario::definitions::QueueChange;
use crate::scenario::{Scenario, SimulatedQueue};
use crate::scene::Scene;
use crate::schedules::ScheduleTask;
use crate::sessions::SharedSessions;
use crate::shard::{ShardTask, TaskOutput};
use crate::time::Micros;

/// Maximum time until a task runs that was woken.
const WAKE_MICROS: Micros = 150;

/// The running broker.
pub(crate) struct Process {
    /// Number of this life.
    life: u64,
    terms: ConnectionTerms,
    shared: SharedSessions,
    shards: Vec<Option<Box<ShardTask>>>,
    /// The times at which the shards run although nothing arrives, if events of the agenda run them then.
    shard_timers: Vec<Timestamp>,
    journals: Vec<JournalTask>,
    limits: LimitTask,
    handlers: HandlerTask,
    /// `None`: the scenario has no schedules.
    schedules: Option<ScheduleTask>,
    connections: BTreeMap<ConnectionId, ServerConnection>,
    connection_timers: BTreeMap<ConnectionId, Timestamp>,
}

impl Process {
    /// Starts the broker on disks, as `server/start.rs` does.
    ///
    /// # Errors
    /// The finding: why it does not start, or what a crash has damaged.
    pub(crate) fn start(
        life: u64,
        scenario: &Scenario,
        disks: &[MemoryStorage],
        scene: &mut Scene,
    ) -> Result<Self, String> {
        let placement = Placement::unkeyed(scenario.shards);
        let names: Arc<BrokerNames> = Arc::default();
        let now = scene.timestamp();
        let seed = scenario.seed.wrapping_mul(17).wrapping_add(life);
        let limits = Self::open_limits(scenario, disks, scene)?;
        let mut process = Self {
            life,
            terms: ConnectionTerms { placement, output_bytes_max: scenario.output_bytes_max },
            shared: SharedSessions::new(seed, &limits.limiter, scene.nanos()),
            shards: Vec::new(),
            shard_timers: vec![Timestamp::NEVER; scenario.shards],
            journals: Vec::new(),
            limits,
            handlers: HandlerTask::new(scenario, seed ^ 0x4a4d),
            schedules: None,
            connections: BTreeMap::new(),
            connection_timers: BTreeMap::new(),
        };
        let (mut opened, mut states) = (Vec::new(), Vec::new());
        for (shard, disk) in disks[..scenario.shards].iter().enumerate() {
            let config = BrokerConfig {
                shard,
                placement,
                names: Arc::clone(&names),
                memory_watermark: scenario.memory_watermark,
                seed: scenario.seed.wrapping_mul(31).wrapping_add(life * 16 + shard as u64),
                ..BrokerConfig::default()
            };
            let task = ShardTask::new(config);
            let options = Options {
                shard: shard as u32,
                segment_bytes: scenario.segment_bytes,
                now_ms: now.0,
                identity: scenario.seed ^ (shard as u64 + 1),
                ..Options::default()
            };
            let mut state = RecoveryBuilder::default();
            let (journal, recovered) = Journal::open_with_observers(
                disk.clone(),
                options,
                &mut |_, _| {},
                &mut |sequence, payload| state.put(sequence, payload),
                &mut |_| Ok(()),
            )
            .map_err(|error| format!("the journal of shard {shard} does not open: {error}"))?;
            if recovered.report.is_alarming() {
                return Err(format!("a crash damaged the journal of shard {shard}: {}", recovered.report));
            }
            let unknown = |error| format!("a record of shard {shard} cannot be decoded: {error}");
            for (key, value) in &recovered.definitions {
                state.define(key, value).map_err(unknown)?;
            }
            let mut refused = None;
            journal.each_touch(&mut |sequence, touch| match touch {
                Ok(touch) => {
                    if let Err(error) = state.touch(sequence, touch) {
                        refused = Some(unknown(error));
                    }
                }
                Err(error) => refused = Some(format!("progress of shard {shard} is unreadable: {error}")),
            });
            let finished = state.finish(journal.live(), recovered.next_sequence).map_err(unknown);
            let (state, unreadable) = refused.map_or(finished, Err)?;
            if !unreadable.is_empty() {
                return Err(format!("messages of shard {shard} are unreadable: {unreadable:?}"));
            }
            scene.note(format_args!("shard {shard} recovers {} messages", state.messages.len()));
            opened.push((task, JournalTask::new(journal)));
            states.push(state);
        }
        settle_transfers(&mut states.iter_mut().collect::<Vec<_>>());
        for ((mut task, journal), state) in opened.into_iter().zip(states) {
            task.restore(state, now);
            process.shards.push(Some(Box::new(task)));
            process.journals.push(journal);
        }
        process.declare(scenario, now, scene)?;
        for shard in 0..scenario.shards {
            process.wake_shard(shard, scene);
            process.watch_idle(shard, scene);
        }
        process.wake_limits(scene);
        process.open_schedules(scenario, disks, scene)?;
        Ok(process)
    }

    /// Restores limits, if any listener saves some.
    fn open_limits(
        scenario: &Scenario,
        disks: &[MemoryStorage],
        scene: &mut Scene,
    ) -> Result<LimitTask, String> {
        if !scenario.limits.iter().any(|limit| limit.persists) {
            return Ok(LimitTask::in_memory());
        }
        let options = Options {
            shard: u32::MAX - 1,
            segment_bytes: scenario.segment_bytes,
            identity: scenario.seed ^ 0x1141,
            ..Options::default()
        };
        let disk = disks[scenario.limits_disk()].clone();
        let (limits, restored) = LimitTask::open(disk, options, scene.nanos())?;
        scene.note(format_args!("restored {} limits, {} have expired", restored.entries, restored.expired));
        Ok(limits)
    }

    /// Declares the queues, and registers their handlers: before, or some time after a restart.
    fn declare(&mut self, scenario: &Scenario, now: Timestamp, scene: &mut Scene) -> Result<(), String> {
        for queue in &scenario.queues {
            let address = QueueAddress::parse(&queue.address).map_err(|error| error.to_string())?;
            if let Some(spec) = handlers::spec(queue)
                && self.register(queue, &address, spec, scene)
            {
                continue;
            }
            let changes: QueueChanges = queue.changes();
            let declaration = Declaration::Queue(address, Box::new(changes));
            let shard = declaration.shard(self.terms.placement);
            if let Some(task) = &mut self.shards[shard] {
                task.declare(&declaration, now)
                    .map_err(|error| format!("queue {} cannot be declared: {error}", queue.address))?;
            }
        }
        Ok(())
    }

    /// Registers the handler of a queue. Returns whether that happens later, because the queue has waited for it before.
    fn register(
        &mut self,
        queue: &SimulatedQueue,
        address: &QueueAddress,
        spec: HandlerSpec,
        scene: &mut Scene,
    ) -> bool {
        let shard = address.channel.shard(self.terms.placement);
        let Some(task) = &mut self.shards[shard] else { return false };
        let after = queue.handler.map_or(0, |handler| handler.registered_after);
        if after == 0 || !task.has(address) {
            task.register(spec);
            return false;
        }
        let at = scene.now + scene.network.jitter(after);
        self.add(at, Task::Register(shard, Box::new(spec)), scene);
        true
    }

    /// Accepts a connection.
    pub(crate) fn accept(&mut self, id: ConnectionId, listener: &ListenerTerms, scene: &mut Scene) {
        let (times, mut sends) = ((scene.timestamp(), scene.nanos()), Vec::new());
        let connection = ServerConnection::new(id, listener, self.terms, &self.shared, times, &mut sends);
        self.connections.insert(id, connection);
        self.send(sends, scene);
        self.wake_connection(id, scene);
    }

    /// Stops in order: what the journals were given is written, and they are closed.
    pub(crate) fn stop(self, scene: &Scene) {
        let now_ms = scene.timestamp().0;
        self.journals.into_iter().for_each(|journal| journal.close(now_ms));
        self.limits.close(scene.nanos());
        if let Some(schedules) = self.schedules {
            schedules.close();
        }
    }

    /// Bytes that a connection has read, and that its session has not processed.
    pub(crate) fn unread_bytes(&self, id: ConnectionId) -> u64 {
        self.connections.get(&id).map_or(0, ServerConnection::unread_bytes)
    }

    // ---- Wakers ------------------------------------------------------------------------------------------------

    fn add(&self, at: Micros, task: Task, scene: &mut Scene) {
        scene.agenda.add(at, Due::Inside(self.life, task));
    }

    pub(crate) fn wake_connection(&mut self, id: ConnectionId, scene: &mut Scene) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !std::mem::replace(&mut connection.scheduled, true) {
            let at = scene.now + scene.network.jitter(WAKE_MICROS);
            self.add(at, Task::Connection(id), scene);
        }
    }

    fn wake_shard(&mut self, shard: usize, scene: &mut Scene) {
        let Some(task) = &mut self.shards[shard] else { return };
        if !std::mem::replace(&mut task.scheduled, true) {
            let at = scene.now + scene.network.jitter(WAKE_MICROS);
            self.add(at, Task::Shard(shard), scene);
        }
    }

    fn wake_journal(&mut self, shard: usize, scene: &mut Scene) {
        let journal = &mut self.journals[shard];
        if !journal.pending.is_empty() && !std::mem::replace(&mut journal.busy, true) {
            let at = scene.now + scene.network.jitter(WAKE_MICROS);
            self.add(at, Task::JournalTake(shard), scene);
        }
    }

    /// A client may have changed a limit.
    fn wake_limits(&mut self, scene: &mut Scene) {
        if !std::mem::replace(&mut self.limits.busy, true) {
            let at = scene.now + scene.network.jitter(limits::INTERVAL);
            self.add(at, Task::LimitRound, scene);
        }
    }

    fn limits_done(&mut self, next: AfterRound, scene: &mut Scene) {
        match next {
            AfterRound::Sync => {
                let at = scene.now + scene.sync_micros();
                self.add(at, Task::LimitSync, scene);
            }
            AfterRound::Again => self.add(scene.now + limits::INTERVAL, Task::LimitRound, scene),
            AfterRound::Rest => self.limits.busy = false,
        }
    }

    fn watch_idle(&mut self, shard: usize, scene: &mut Scene) {
        let journal = &self.journals[shard];
        if journal.restless && !journal.busy {
            self.add(scene.now + IDLE, Task::JournalIdle(shard, journal.rounds), scene);
        }
    }

    fn send(&mut self, sends: Vec<(usize, Input)>, scene: &mut Scene) {
        for (shard, input) in sends {
            if let Some(task) = &mut self.shards[shard] {
                task.inbox.push_back(input);
            }
            self.wake_shard(shard, scene);
        }
    }

    // ---- Tasks -------------------------------------------------------------------------------------------------

    /// Runs a task. Returns a finding if something is wrong.
    pub(crate) fn run(&mut self, life: u64, task: Task, scene: &mut Scene) -> Option<String> {
        if life != self.life {
            return None;
        }
        if let Some(shard) = self.journals.iter().position(|journal| !journal.damaged.is_empty()) {
            return Some(format!("housekeeping of shard {shard} finds damage"));
        }
        match task {
            Task::Shard(shard) => self.run_shard(shard, scene),
            Task::Connection(id) => self.run_connection(id, scene),
            Task::JournalTake(shard) => {
                let now_ms = scene.timestamp().0;
                match self.journals[shard].take(scene.now, now_ms) {
                    AfterTake::Sync => {
                        let at = scene.now + scene.sync_micros();
                        self.add(at, Task::JournalSync(shard), scene);
                        self.journal_events(shard, scene);
                    }
                    AfterTake::Wait => self.journal_done(shard, scene),
                }
            }
            Task::JournalSync(shard) => {
                let now_ms = scene.timestamp().0;
                self.journals[shard].sync(scene.now, now_ms);
                scene.note(format_args!("journal {shard} synced"));
                self.journal_done(shard, scene);
            }
            Task::JournalIdle(shard, rounds) => {
                let now_ms = scene.timestamp().0;
                if self.journals[shard].rounds == rounds && !self.journals[shard].busy {
                    self.journals[shard].idle(scene.now, now_ms);
                    self.journal_done(shard, scene);
                }
            }
            Task::LimitRound => match self.limits.round(scene.nanos()) {
                Ok(next) => self.limits_done(next, scene),
                Err(damage) => return Some(damage),
            },
            Task::LimitSync => {
                let next = self.limits.sync();
                scene.note(format_args!("limits synced"));
                self.limits_done(next, scene);
            }
            Task::ScheduleRound(at) => return self.run_schedules(Some(at), scene),
            Task::ScheduleSync => return self.run_schedules(None, scene),
            Task::Answer(shard, answer) => self.send_urgent(shard, Urgent::Answer(answer), scene),
            Task::Register(shard, spec) => self.send_urgent(shard, Urgent::Handler(spec), scene),
            Task::BodyRead(shard, read) => {
                let (urgent, unreadable) = read.finish();
                if !unreadable.is_empty() {
                    return Some(format!("shard {shard} cannot read the saved messages {unreadable:?}"));
                }
                if let Some(task) = &mut self.shards[shard] {
                    task.urgent.push(urgent);
                }
                self.wake_shard(shard, scene);
            }
        }
        None
    }

    fn journal_done(&mut self, shard: usize, scene: &mut Scene) {
        self.journals[shard].busy = false;
        self.journal_events(shard, scene);
        self.wake_journal(shard, scene);
        self.watch_idle(shard, scene);
    }

    fn journal_events(&mut self, shard: usize, scene: &mut Scene) {
        let journal = &mut self.journals[shard];
        let events = std::mem::take(&mut journal.events);
        for read in std::mem::take(&mut journal.reads) {
            let at = scene.now + scene.network.jitter(2_000);
            self.add(at, Task::BodyRead(shard, Box::new(read)), scene);
        }
        if !events.is_empty() {
            scene.note(format_args!("journal {shard}: {events:?}"));
            if let Some(task) = &mut self.shards[shard] {
                task.urgent.extend(events);
            }
            self.wake_shard(shard, scene);
        }
    }

    fn run_shard(&mut self, shard: usize, scene: &mut Scene) {
        let Some(mut task) = self.shards[shard].take() else { return };
        task.scheduled = false;
        let mut out = TaskOutput::default();
        task.turn(scene.timestamp(), &mut self.connections, &mut out);
        let (more, deadline) = (task.has_work(), task.next_timeout());
        self.shards[shard] = Some(task);
        self.journals[shard].pending.extend(out.batches);
        self.wake_journal(shard, scene);
        for (to, urgent) in out.urgent {
            if let Some(peer) = &mut self.shards[to] {
                peer.urgent.push(urgent);
            }
            self.wake_shard(to, scene);
        }
        for connection in out.woken {
            self.wake_connection(connection, scene);
        }
        self.ask_handlers(shard, &out.questions, scene);
        self.notify_schedules(out.scheduling, out.found, scene);
        if out.has_declared {
            self.declare_again(scene);
        }
        if more {
            self.wake_shard(shard, scene);
        } else if deadline < self.shard_timers[shard] || self.shard_timers[shard] <= scene.timestamp() {
            self.shard_timers[shard] = deadline;
            if deadline != Timestamp::NEVER {
                self.add(scene.clock.micros_of(deadline).max(scene.now + 1), Task::Shard(shard), scene);
            }
        }
    }

    /// An operator changes a queue, or restores what the configuration declares.
    pub(crate) fn redefine(
        &mut self,
        index: usize,
        queues: &[SimulatedQueue],
        change: QueueChange,
        scene: &mut Scene,
    ) {
        let queue = &queues[index];
        let address = QueueAddress::parse(&queue.address).expect("a valid address");
        let shard = address.channel.shard(self.terms.placement);
        let urgent = match change.request(index, queues) {
            Some(request) => Urgent::Operate(address, Box::new(request)),
            None => {
                // Its handler is what it was before; it may not be registered yet.
                let delivery_handler = queue.changes().delivery_handler.filter(|_| queue.handler.is_none());
                let changes = QueueChanges { delivery_handler, ..queue.changes() };
                let declaration = Declaration::Queue(address.clone(), Box::new(changes));
                Urgent::Declare(address, Box::new(declaration))
            }
        };
        self.send_urgent(shard, urgent, scene);
    }

    /// Tries the declarations again that were rejected, because another one has succeeded.
    fn declare_again(&mut self, scene: &mut Scene) {
        for shard in 0..self.shards.len() {
            if self.shards[shard].as_ref().is_some_and(|task| task.undeclared().is_some()) {
                self.send_urgent(shard, Urgent::DeclareAgain, scene);
            }
        }
    }

    /// A queue that the operator cannot restore so far, and the reason.
    pub(crate) fn undeclared(&self) -> Option<String> {
        self.shards.iter().flatten().find_map(|task| task.undeclared())
    }

    fn ask_handlers(&mut self, shard: usize, questions: &[Question], scene: &mut Scene) {
        for question in questions {
            let Some((after, answer)) = self.handlers.decide(question) else { continue };
            scene.note(format_args!("{:?} of {}: {:?}", question.step, question.queue, answer.result));
            self.add(scene.now + after, Task::Answer(shard, answer), scene);
        }
    }

    fn send_urgent(&mut self, shard: usize, urgent: Urgent, scene: &mut Scene) {
        if let Some(task) = &mut self.shards[shard] {
            task.urgent.push(urgent);
        }
        self.wake_shard(shard, scene);
    }

    fn run_connection(&mut self, id: ConnectionId, scene: &mut Scene) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        connection.scheduled = false;
        let mut sends = Vec::new();
        let over = connection.run(scene, self.terms.placement, &mut sends);
        if connection.protocol == Protocol::Throttr {
            self.wake_limits(scene);
        }
        let deadline = connection.next_timeout();
        if over {
            self.connection_timers.remove(&id);
            scene.note(format_args!("the broker closes connection {}", id.0));
            scene.hung_up.push(id);
        } else {
            self.connections.insert(id, connection);
        }
        self.send(sends, scene);
        self.look_for_schedules(scene);
        if std::mem::take(&mut scene.wake_again) {
            self.wake_connection(id, scene);
        }
        let known = self.connection_timers.get(&id).copied().unwrap_or(Timestamp::NEVER);
        if !over && deadline != Timestamp::NEVER && (deadline < known || known <= scene.timestamp()) {
            self.connection_timers.insert(id, deadline);
            self.add(scene.clock.micros_of(deadline).max(scene.now + 1), Task::Connection(id), scene);
        }
    }
}
