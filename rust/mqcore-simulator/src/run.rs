//! The event loop of a run: virtual time, the steps of the scenario, and faults.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqcore_broker::model::id::ConnectionId;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};
use mqcore_testkit::Random;

use crate::agenda::Due;
use crate::client::SimulatedPeer;
use crate::network::Side;
use crate::oracle::{Ending, Finding, Oracle};
use crate::process::Process;
use crate::scenario::definitions::QueueChange;
use crate::scenario::{Scenario, ScenarioStep};
use crate::scene::Scene;
use crate::time::{BrokerClock, Micros};
use crate::trace::Trace;

/// How long a calm takes: longer than the time to acknowledge and all delays together.
const CALM_MICROS: Micros = 60_000_000;
/// Maximum time that a broker is down.
const DOWN_MICROS: Micros = 400_000;
/// The time after which a node looks whether it has to connect again.
const NODE_PAUSE: Micros = 500_000;
/// Maximum events of a run. One that has more does not come to rest.
const EVENTS_MAX: u64 = 3_000_000;

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The events of the run.
    pub trace: Trace,
    /// The first broken promise.
    pub finding: Option<Finding>,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    scene: Scene,
    disks: Vec<MemoryStorage>,
    clients: Vec<SimulatedPeer>,
    process: Option<Process>,
    lives: u64,
    next_step: usize,
    /// Queues that an operator changed since the last calm.
    redefined: BTreeSet<usize>,
    /// The connection of the client that requests jobs, since the calm began.
    heard_by: Option<ConnectionId>,
    /// A call of a disk failed or will fail.
    has_disk_error: bool,
    /// Disks have returned something else than was written to them. Reported damage ends the run then.
    is_corrupt: bool,
    is_over: bool,
}

/// Runs a scenario. With `verbose`, the trace has a line for each event.
#[must_use]
pub fn run(scenario: &Scenario, verbose: bool) -> RunReport {
    let mut simulation = Simulation::new(scenario, verbose);
    let panicked = catch_unwind(AssertUnwindSafe(|| simulation.run())).err();
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        simulation.scene.oracle.find("panic", text.unwrap_or_else(|| "without a text".to_owned()));
    }
    let finding = simulation.scene.oracle.finding().cloned();
    RunReport { trace: simulation.scene.into_trace(), finding }
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, verbose: bool) -> Self {
        let mut random = Random::new(scenario.seed ^ 0x5eed);
        let mut scene = Scene::new(Oracle::new(scenario), &mut random, verbose);
        let disks = (0..scenario.disks()).map(|_| MemoryStorage::new(random.number())).collect();
        let clients: Vec<_> =
            (0..scenario.clients.len()).map(|index| SimulatedPeer::new(index, scenario)).collect();
        for (index, producer) in
            clients.iter().enumerate().filter_map(|(index, client)| Some((index, client.node_producer()?)))
        {
            scene.oracle.opened(producer, 0);
            scene.agenda.add(NODE_PAUSE, Due::Client(index));
        }
        Self {
            scenario,
            scene,
            disks,
            clients,
            process: None,
            lives: 0,
            next_step: 0,
            redefined: BTreeSet::new(),
            heard_by: None,
            has_disk_error: false,
            is_corrupt: false,
            is_over: false,
        }
    }

    fn run(&mut self) {
        self.start();
        self.schedule_step();
        let mut events = 0;
        while !self.is_over
            && self.scene.oracle.finding().is_none()
            && let Some((at, due)) = self.scene.agenda.next()
        {
            self.scene.now = self.scene.now.max(at);
            self.handle(due);
            events += 1;
            if events > EVENTS_MAX {
                self.scene.oracle.find("livelock", format!("more than {EVENTS_MAX} events"));
            }
        }
    }

    fn handle(&mut self, due: Due) {
        match due {
            Due::Step => self.step(),
            Due::Arrival(id, side, bytes) => {
                if self.scene.network.arrive(id, side, &bytes) {
                    self.notice(id, side);
                }
            }
            Due::End(id, side) => {
                if self.scene.network.end(id, side) {
                    self.notice(id, side);
                }
            }
            Due::Client(client) if self.clients[client].is_node() => {
                self.connect(client);
                self.scene.agenda.add(self.scene.now + NODE_PAUSE, Due::Client(client));
            }
            Due::Client(client) => self.clients[client].work(&mut self.scene),
            Due::Start(life) => {
                if life == self.lives && self.process.is_none() {
                    self.start();
                }
            }
            Due::CalmEnd => self.end_calm(),
            Due::Inside(life, task) => {
                if let Some(process) = &mut self.process
                    && let Some(text) = process.run(life, task, &mut self.scene)
                {
                    self.damage(text);
                }
            }
        }
        for id in std::mem::take(&mut self.scene.hung_up) {
            self.cut(id);
        }
        for id in std::mem::take(&mut self.scene.freed) {
            if let Some(process) = &mut self.process {
                process.wake_connection(id, &mut self.scene);
            }
        }
    }

    /// Something arrived at a side of a connection.
    fn notice(&mut self, id: ConnectionId, side: Side) {
        match side {
            Side::Broker => {
                if let Some(process) = &mut self.process {
                    process.wake_connection(id, &mut self.scene);
                }
            }
            Side::Client => {
                let Some(client) = self.scene.network.client_of(id) else { return };
                if self.clients[client].link() == Some(id) {
                    self.clients[client].read(&mut self.scene);
                    if self.scene.network.is_at_end(id, Side::Client) {
                        self.leave(client);
                    }
                } else {
                    // It has closed its side, and discards what it gets.
                    self.scene.network.read(id, Side::Client, usize::MAX);
                    self.scene.freed.push(id);
                }
            }
        }
    }

    // ---- Steps -------------------------------------------------------------------------------------------------

    fn schedule_step(&mut self) {
        let gap = self.scenario.steps.get(self.next_step).map_or(0, |(gap, _)| *gap);
        self.scene.agenda.add(self.scene.now + gap, Due::Step);
    }

    fn step(&mut self) {
        let Some((_, step)) = self.scenario.steps.get(self.next_step).copied() else {
            self.next_step += 1;
            return self.begin_calm();
        };
        self.next_step += 1;
        self.scene.note(format_args!("step {step:?}"));
        match step {
            ScenarioStep::Connect(client) => self.connect(client),
            ScenarioStep::Publish { client, count, bytes, terms } => {
                for _ in 0..count {
                    self.clients[client].publish(bytes, terms, &mut self.scene);
                }
            }
            ScenarioStep::Republish { client, count } => {
                self.clients[client].republish(count, &mut self.scene);
            }
            ScenarioStep::Limit { client, action, count } => {
                self.connect(client);
                self.clients[client].use_limit(action, count, &mut self.scene);
            }
            ScenarioStep::Plan(client) => {
                self.connect(client);
                self.clients[client].plan(true, &mut self.scene);
            }
            ScenarioStep::Unplan(client) => {
                self.connect(client);
                self.clients[client].plan(false, &mut self.scene);
            }
            ScenarioStep::Job { client, action } => {
                self.connect(client);
                self.clients[client].use_jobs(action, &mut self.scene);
            }
            ScenarioStep::Redefine { queue, change } => self.redefine(queue, change),
            ScenarioStep::Leave(client) => self.leave(client),
            ScenarioStep::Cut(client) => {
                if let Some(id) = self.clients[client].link() {
                    self.cut(id);
                }
            }
            ScenarioStep::Silence(client) => {
                if let Some(id) = self.clients[client].link() {
                    self.scene.network.silence(id);
                    self.scene.oracle.doubt(id, self.scene.now);
                }
            }
            ScenarioStep::Pause(client) => self.clients[client].set_paused(true, &mut self.scene),
            ScenarioStep::Resume(client) => self.clients[client].set_paused(false, &mut self.scene),
            ScenarioStep::Kill => self.end(Ending::Killed),
            ScenarioStep::PowerLoss => self.end(Ending::PowerLost),
            ScenarioStep::Restart => self.end(Ending::Stopped),
            ScenarioStep::DiskFull(free) => {
                self.scene.oracle.doubt_rejections(true, self.scene.now);
                for disk in &self.disks {
                    let used: usize = disk.files().values().map(Vec::len).sum();
                    disk.set_capacity(Some(used as u64 + free));
                }
            }
            ScenarioStep::DiskError { disk, is_sync, after } => {
                self.scene.oracle.doubt_rejections(true, self.scene.now);
                self.has_disk_error = true;
                let call = if is_sync { StorageCall::Sync } else { StorageCall::Change };
                self.disks[disk].inject(call, after, Fault::Error, false);
            }
            ScenarioStep::NoDescriptors { disk, after } => {
                self.scene.oracle.doubt_rejections(true, self.scene.now);
                self.disks[disk].inject(StorageCall::Create, after, Fault::Descriptors, true);
            }
            ScenarioStep::BitRot { disk, place } => {
                self.end(Ending::Killed);
                self.corrupt(disk, place);
            }
            ScenarioStep::ClockJump(seconds) => {
                let shown_ms = self.scene.system_ms();
                self.scene.system_seconds += seconds;
                self.scene.oracle.schedules.clock_set(shown_ms, seconds < 0);
            }
            ScenarioStep::Calm => return self.begin_calm(),
        }
        self.schedule_step();
    }

    fn redefine(&mut self, queue: usize, change: QueueChange) {
        let Some(process) = &mut self.process else { return };
        process.redefine(queue, &self.scenario.queues, change, &mut self.scene);
        self.redefined.insert(queue);
        self.scene.oracle.redefined(queue, change);
    }

    /// All queues are again as the configuration declares them. Consumers of a queue that was removed do not know whether they
    /// still have a subscription, so all that may have lost it connect again.
    fn restore_queues(&mut self) {
        for queue in std::mem::take(&mut self.redefined) {
            self.redefine(queue, QueueChange::Restore);
            for client in 0..self.clients.len() {
                if self.clients[client].is_consumer_of(queue)
                    && let Some(id) = self.clients[client].link()
                {
                    self.cut(id);
                }
            }
        }
        self.redefined.clear();
    }

    fn connect(&mut self, client: usize) {
        let peer = &mut self.clients[client];
        let Some(process) = self.process.as_mut().filter(|_| peer.link().is_none()) else { return };
        let id = self.scene.network.open(client);
        self.scene.note(format_args!("client {client} opens connection {}", id.0));
        process.accept(id, &peer.listener(), &mut self.scene);
        peer.connect(id, &mut self.scene);
    }

    /// A client closes its side. Its earlier bytes still arrive.
    fn leave(&mut self, client: usize) {
        if let Some(id) = self.clients[client].link() {
            if self.clients[client].waits_for_limit() {
                // Its request could arrive after the next one.
                return self.cut(id);
            }
            self.clients[client].return_unsettled(&mut self.scene);
            self.clients[client].lost(id);
            self.scene.oracle.closed(id, u64::MAX, self.scene.now);
            self.scene.network.read(id, Side::Client, usize::MAX);
            self.scene.freed.push(id);
            self.scene.finish(id, Side::Client);
        }
    }

    /// Both sides lose a connection at once.
    fn cut(&mut self, id: ConnectionId) {
        let unread = self.process.as_ref().map_or(0, |process| process.unread_bytes(id));
        self.lose(id, unread);
    }

    /// Both sides lose a connection of which the broker has read so many bytes in vain.
    fn lose(&mut self, id: ConnectionId, unread: u64) {
        let processed = self.scene.network.read_total(id) - unread;
        self.scene.oracle.closed(id, processed, self.scene.now);
        if let Some(client) = self.scene.network.client_of(id) {
            self.clients[client].lost(id);
        }
        self.scene.network.cut(id);
        if let Some(process) = &mut self.process {
            process.wake_connection(id, &mut self.scene);
        }
    }

    // ---- The broker --------------------------------------------------------------------------------------------

    fn start(&mut self) {
        self.lives += 1;
        self.scene.note(format_args!("the broker starts"));
        self.repair_disks();
        let clock = BrokerClock::jumped(self.scene.system_seconds);
        self.scene.oracle.limits.started(clock.ahead_of(self.scene.clock), self.scene.now);
        if self.scene.clock != clock {
            let is_back = clock < self.scene.clock;
            self.scene.clock = clock;
            self.scene.oracle.clock_jumped(is_back);
        }
        match Process::start(self.lives, self.scenario, &self.disks, &mut self.scene) {
            Ok(process) => self.process = Some(process),
            Err(text) => self.damage(text),
        }
    }

    /// The broker reports damage. It has to, if a disk is corrupt; then it rejects what it would have to save.
    fn damage(&mut self, text: String) {
        if self.is_corrupt {
            self.scene.note(format_args!("the damage is reported: {text}"));
            self.is_over = true;
        } else {
            self.scene.oracle.find("damage", text);
        }
    }

    /// A bit of a file of a disk flips, once in a run. The newest writes to the file stay as they are, even if they were
    /// synced: only the next write records that, so a journal cannot tell a flipped bit there from a torn write.
    fn corrupt(&mut self, disk: usize, place: u64) {
        if self.is_corrupt {
            return;
        }
        let mut files = self.disks[disk].files();
        let bytes = files.values().map(|file| file.len() as u64).sum::<u64>().max(1);
        let mut offset = usize::try_from(place % bytes).unwrap_or_default();
        for (name, file) in &mut files {
            if let Some(byte) = file.get_mut(offset) {
                let recorded = self.disks[disk].recorded_sync(name);
                if recorded.is_none_or(|recorded| offset as u64 >= recorded) {
                    return;
                }
                *byte ^= 1 << (place % 8);
                self.is_corrupt = true;
                self.scene.note(format_args!("a bit of {name} of disk {disk} flips at byte {offset}"));
                break;
            }
            offset -= file.len();
        }
        self.disks[disk] = MemoryStorage::with_files(place, files);
        // A flipped bit in bytes that are not synced looks like a torn write.
        self.scene.oracle.ended(Ending::PowerLost, self.scene.now);
        self.scene.oracle.doubt_settlements();
        self.scene.oracle.jobs.doubt();
        if disk == self.scenario.limits_disk() {
            self.scene.oracle.limits.doubt();
        }
        if disk == self.scenario.schedules_disk() {
            self.scene.oracle.schedules.doubt();
        }
    }

    fn end(&mut self, ending: Ending) {
        let Some(process) = self.process.take() else { return };
        let links = self.scene.network.open_links().into_iter().map(|id| (id, process.unread_bytes(id)));
        let links: Vec<_> = links.collect();
        match ending {
            Ending::Stopped => process.stop(&self.scene),
            Ending::Killed => drop(process),
            Ending::PowerLost => {
                drop(process);
                self.disks.iter().for_each(MemoryStorage::crash);
            }
        }
        for (id, unread) in links {
            self.lose(id, unread);
        }
        self.scene.oracle.ended(ending, self.scene.now);
        let at = self.scene.now + self.scene.network.jitter(DOWN_MICROS);
        self.scene.agenda.add(at, Due::Start(self.lives));
    }

    fn repair_disks(&mut self) {
        self.has_disk_error = false;
        for disk in &self.disks {
            disk.clear_faults();
            disk.set_capacity(None);
        }
    }

    // ---- Calm --------------------------------------------------------------------------------------------------

    fn begin_calm(&mut self) {
        self.scene.note(format_args!("calm begins"));
        if self.has_disk_error {
            // A journal that failed writes nothing until the next start.
            self.end(Ending::Killed);
        }
        self.repair_disks();
        if self.process.is_none() {
            self.start();
        }
        for id in self.scene.network.open_links() {
            if self.scene.network.is_silent(id) {
                self.cut(id);
            }
        }
        self.restore_queues();
        for client in &mut self.clients {
            client.is_diligent = true;
            client.set_paused(false, &mut self.scene);
        }
        for queue in 0..self.scenario.queues.len() {
            let mut consumers =
                (0..self.clients.len()).filter(|index| self.clients[*index].is_consumer_of(queue));
            let first = consumers.clone().next();
            if !consumers.any(|index| self.clients[index].link().is_some())
                && let Some(first) = first
            {
                self.connect(first);
            }
        }
        self.heard_by = None;
        if let Some(client) = (0..self.clients.len()).find(|client| self.clients[*client].is_requester()) {
            self.connect(client);
            self.heard_by = self.clients[client].link();
        }
        self.scene.agenda.add(self.scene.now + CALM_MICROS, Due::CalmEnd);
    }

    fn end_calm(&mut self) {
        self.scene.note(format_args!("calm ends"));
        let served: Vec<bool> = (0..self.scenario.queues.len())
            .map(|queue| self.clients.iter().any(|client| client.is_consumer_of(queue) && client.is_ready()))
            .collect();
        let (now, system_ms) = (self.scene.now, self.scene.system_ms());
        if let Some(text) = self.process.as_ref().and_then(Process::undeclared) {
            self.scene.oracle.find("refused", text);
        }
        self.scene.oracle.calm(&served, now, system_ms);
        let is_heard =
            self.heard_by.is_some_and(|id| self.clients.iter().any(|client| client.link() == Some(id)));
        self.scene.oracle.jobs_calm(&served, is_heard);
        self.scene.oracle.doubt_rejections(false, self.scene.now);
        for client in &mut self.clients {
            client.is_diligent = false;
        }
        self.is_over = self.next_step > self.scenario.steps.len();
        self.schedule_step();
    }
}
