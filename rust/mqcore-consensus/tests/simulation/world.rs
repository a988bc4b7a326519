//! Nodes, their network and clocks, and the faults.

mod faults;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use faults::Exchange;
use mqcore_consensus::log::{LogSnapshot, ReplicatedLog};
use mqcore_consensus::membership::{GroupMembers, ReplicaId};
use mqcore_consensus::message::ReplicaMessage;
use mqcore_consensus::replica::{
    Proposal, Replica, ReplicaError, ReplicaOptions, ReplicaRole, ReplicaStartError,
};
use mqcore_testkit::Random;

use super::Mistake;
use super::disk::{Contents, Machine, SimulatedLog, Store};
use super::oracle::{self, Oracle};

/// Time with faults, in units of a tenth of a tick.
const FAULTY_TIME: u64 = 1_500;
/// Time within which the group must continue after the last fault.
const CALM_TIME: u64 = 3_000;

/// Figures of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) confirmed: usize,
    pub(crate) elections: usize,
    pub(crate) replaced: u64,
    /// Differs if anything in two runs differs.
    pub(crate) trace: u64,
}

struct Sync {
    until: u64,
    writes: u64,
    number: u64,
    known: u64,
}

struct Node {
    id: ReplicaId,
    store: Store,
    /// The last entry that the replica knows to be committed, also after a power failure.
    known: u64,
    machine: Rc<RefCell<Machine>>,
    /// `None`: without power.
    replica: Option<Replica<SimulatedLog>>,
    sync: Option<Sync>,
    /// The last number of work, and whether it needs a sync.
    written: u64,
    needs_sync: bool,
    persisted: u64,
    /// Duration of a tick.
    tick: u64,
    next_tick: u64,
    paused_until: u64,
    hangs_until: u64,
    /// Places at which the log of a witness may begin. They have no state.
    points: Vec<LogSnapshot>,
    /// Proposals that clients of this node wait for.
    proposed: Vec<(Proposal, u64)>,
}

pub(crate) struct World {
    random: Random,
    mistake: Option<Mistake>,
    now: u64,
    nodes: Vec<Node>,
    /// Nodes that the group should have.
    wanted: BTreeSet<usize>,
    network: BTreeMap<(u64, u64), Vec<u8>>,
    sent: u64,
    cut: BTreeSet<(usize, usize)>,
    oracle: Oracle,
    next_value: u64,
    replaced: u64,
    is_calm: bool,
    /// Whether members are often exchanged while one of them lags and the power fails.
    exchanges: bool,
    exchange: Option<Exchange>,
    /// The first nodes, which keep no state.
    witnesses: usize,
    /// Whether logs are journals on simulated disks.
    has_journals: bool,
    trace: u64,
    /// Whether to print what happens: `MQCORE_TELL=1`.
    tells: bool,
}

impl World {
    pub(crate) fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let mut random = Random::new(seed);
        let size = if random.one_in(3) { 5 } else { 3 };
        let members = GroupMembers::of((1..=size).map(ReplicaId::first));
        let mut world = Self {
            mistake,
            now: 0,
            nodes: Vec::new(),
            wanted: (0..size as usize).collect(),
            network: BTreeMap::new(),
            sent: 0,
            cut: BTreeSet::new(),
            oracle: Oracle::new(members.clone()),
            next_value: 1,
            replaced: 0,
            is_calm: false,
            exchanges: random.one_in(3),
            exchange: None,
            witnesses: if seed % 3 == 1 { size as usize / 2 } else { 0 },
            has_journals: mistake.is_none() && random.one_in(3),
            trace: seed,
            tells: std::env::var_os("MQCORE_TELL").is_some(),
            random: random.clone(),
        };
        // One more node can take the place of another one.
        for number in 1..=size + 1 {
            let contents = if number <= size { Contents::of_group(&members) } else { Contents::default() };
            let node = Node {
                id: ReplicaId::first(number),
                machine: Rc::new(RefCell::new(Machine::of_snapshot(contents.base()))),
                store: world.new_store(contents, random.number()),
                known: 0,
                replica: None,
                sync: None,
                written: 0,
                needs_sync: false,
                persisted: 0,
                tick: 7 + random.below(7),
                next_tick: random.below(10),
                paused_until: 0,
                hangs_until: 0,
                points: Vec::new(),
                proposed: Vec::new(),
            };
            world.nodes.push(node);
        }
        world
    }

    pub(crate) fn run(mut self) -> Result<End, String> {
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        while self.now < FAULTY_TIME {
            self.fault()?;
            self.step()?;
        }
        self.calm()?;
        let deadline = self.now + CALM_TIME;
        while !self.is_complete() {
            if self.now >= deadline {
                return Err(format!("no progress without faults: {}", self.describe()));
            }
            self.step()?;
        }
        for node in 0..self.nodes.len() {
            if self.wanted.contains(&node) && !self.is_witness(node) {
                self.oracle.has_state(self.nodes[node].id, &self.nodes[node].machine.borrow())?;
            }
        }
        self.oracle.end()?;
        Ok(End {
            confirmed: self.oracle.confirmed(),
            elections: self.oracle.elections(),
            replaced: self.replaced,
            trace: self.trace,
        })
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:>5} {}", self.now, text());
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let encoded = entry.remove();
            self.deliver(encoded)?;
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].replica.is_none() || self.now < self.nodes[node].paused_until {
                continue;
            }
            if self.nodes[node].sync.as_ref().is_some_and(|sync| sync.until <= self.now) {
                self.end_sync(node)?;
            }
            if self.nodes[node].next_tick <= self.now {
                self.nodes[node].next_tick = self.now + self.nodes[node].tick;
                self.tick(node)?;
            }
        }
        if self.random.one_in(4) {
            let node = self.random.index(self.nodes.len());
            self.propose(node)?;
        }
        Ok(())
    }

    fn tick(&mut self, node: usize) -> Result<(), String> {
        let wanted = self.wanted.iter().map(|&node| self.nodes[node].id).collect();
        let witnesses = self.nodes[..self.witnesses].iter().map(|node| node.id).collect();
        let is_witness = self.is_witness(node);
        let Some(replica) = &mut self.nodes[node].replica else { return Ok(()) };
        replica.tick();
        replica.set_never_leading(witnesses);
        if is_witness {
            // The next leader gets all entries first.
            replica.resign();
        }
        // A change that cannot be made now is tried again with the next tick.
        let _ = replica.adjust_membership(&wanted);
        self.pump(node)?;
        if self.nodes[node].replica.as_mut().is_some_and(Replica::take_snapshot_request) {
            self.compact(node);
        }
        Ok(())
    }

    fn propose(&mut self, node: usize) -> Result<(), String> {
        let value = self.next_value;
        if self.now < self.nodes[node].paused_until || self.is_witness(node) {
            return Ok(());
        }
        let Some(replica) = &mut self.nodes[node].replica else { return Ok(()) };
        if let Ok(proposal) = replica.propose(Bytes::copy_from_slice(&value.to_le_bytes())) {
            self.next_value += 1;
            self.nodes[node].proposed.push((proposal, value));
            self.pump(node)?;
        }
        Ok(())
    }

    fn deliver(&mut self, encoded: Vec<u8>) -> Result<(), String> {
        let message = ReplicaMessage::decode(&encoded.into()).map_err(|error| error.to_string())?;
        let Some(node) = self.node_of(message.to()) else { return Ok(()) };
        if self.now < self.nodes[node].paused_until {
            // The kernel keeps what arrives for a stopped process.
            self.send(message, 20);
            return Ok(());
        }
        self.tell(|| format!("{} gets {message}", self.nodes[node].id));
        let Some(replica) = &mut self.nodes[node].replica else { return Ok(()) };
        match replica.receive(message) {
            Ok(()) => self.pump(node),
            Err(ReplicaError::LogLost { .. }) if self.mistake.is_some() => self.renew(node),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Does all work of a node.
    fn pump(&mut self, node: usize) -> Result<(), String> {
        loop {
            let Some(replica) = &mut self.nodes[node].replica else { return Ok(()) };
            let work = replica.poll().map_err(|error| error.to_string())?;
            let (role, term, id) = (replica.role(), replica.term(), replica.id());
            if role == ReplicaRole::Leader {
                self.oracle.leads(id, term)?;
            }
            let Some(work) = work else { break };
            for message in work.messages {
                self.send(message, 0);
            }
            if let Some(snapshot) = work.installed {
                *self.nodes[node].machine.borrow_mut() = Machine::of_snapshot(&snapshot);
                if !self.is_witness(node) {
                    self.oracle.has_state(id, &self.nodes[node].machine.borrow())?;
                }
                self.applied(node, snapshot.index);
            }
            for entry in &work.committed {
                self.tell(|| format!("{id} {role:?} in term {term} applies {entry:?}"));
                self.oracle.applies(id, entry)?;
                let mut machine = self.nodes[node].machine.borrow_mut();
                (machine.index, machine.term) = (entry.index, entry.term);
                machine.values.extend(oracle::value(entry));
                drop(machine);
                self.confirm(node, entry.index, entry.term)?;
            }
            if let Some(last) = work.committed.last() {
                self.applied(node, last.index);
                self.note_members(node, last.index);
            }
            let state = &mut self.nodes[node];
            state.written = work.number;
            state.needs_sync |= work.needs_sync;
            self.trace = self.trace.wrapping_mul(31).wrapping_add(work.number ^ term << 20 ^ self.now << 32);
            if self.mistake == Some(Mistake::AcknowledgesBeforeSync) {
                self.persisted(node, work.number);
            }
        }
        self.begin_sync(node)
    }

    fn new_store(&self, contents: Contents, seed: u64) -> Store {
        if self.has_journals { Store::journal(&contents, seed) } else { Store::model(contents, self.mistake) }
    }

    fn applied(&mut self, node: usize, index: u64) {
        if let Some(replica) = &mut self.nodes[node].replica {
            replica.applied(index);
        }
    }

    fn note_members(&mut self, node: usize, index: u64) {
        let Some(replica) = &self.nodes[node].replica else { return };
        let membership = replica.membership();
        self.oracle.members_are(index, &membership);
        let term = self.nodes[node].machine.borrow().term;
        if self.is_witness(node) {
            let membership = membership.clone();
            self.nodes[node].points.push(LogSnapshot { index, term, membership, data: Bytes::new() });
        }
        self.nodes[node].machine.borrow_mut().membership = membership;
    }

    /// Tells clients what became of their entries.
    fn confirm(&mut self, node: usize, index: u64, term: u64) -> Result<(), String> {
        let mistaken = self.mistake == Some(Mistake::IgnoresTerm);
        let waiting = std::mem::take(&mut self.nodes[node].proposed);
        for (proposal, value) in waiting {
            if proposal.index != index {
                self.nodes[node].proposed.push((proposal, value));
            } else if proposal.term == term || mistaken {
                self.oracle.confirms(index, value)?;
            }
        }
        Ok(())
    }

    fn begin_sync(&mut self, node: usize) -> Result<(), String> {
        let state = &mut self.nodes[node];
        if state.sync.is_some() || state.written == state.persisted {
            return Ok(());
        }
        if !state.needs_sync {
            let number = state.written;
            self.persisted(node, number);
            return self.pump(node);
        }
        state.needs_sync = false;
        let duration = 1 + self.random.below(8);
        let state = &mut self.nodes[node];
        let writes = state.replica.as_ref().map_or(0, |replica| replica.log().writes());
        let until = (self.now + duration).max(state.hangs_until);
        let known = state.replica.as_ref().map_or(0, |replica| replica.log().ballot().committed);
        state.sync = Some(Sync { until, writes, number: state.written, known });
        Ok(())
    }

    fn end_sync(&mut self, node: usize) -> Result<(), String> {
        let Some(sync) = self.nodes[node].sync.take() else { return Ok(()) };
        let state = &mut self.nodes[node];
        if let Some(replica) = &mut state.replica {
            replica.log_mut().sync_until(sync.writes);
        }
        state.known = state.known.max(sync.known);
        self.persisted(node, sync.number);
        self.pump(node)
    }

    fn persisted(&mut self, node: usize, number: u64) {
        self.nodes[node].persisted = self.nodes[node].persisted.max(number);
        let Some(replica) = &mut self.nodes[node].replica else { return };
        for message in replica.persisted(number) {
            self.send(message, 0);
        }
    }

    fn send(&mut self, message: ReplicaMessage, delay: u64) {
        let (Some(from), Some(to)) = (self.node_of(message.from()), self.node_of(message.to())) else {
            return;
        };
        if self.cut.contains(&(from, to)) || (!self.is_calm && self.random.one_in(50)) {
            return;
        }
        let copies = if !self.is_calm && self.random.one_in(50) { 2 } else { 1 };
        for _ in 0..copies {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            let late = if self.random.one_in(40) { 60 } else { 4 };
            self.sent += 1;
            let due = self.now + delay + 1 + self.random.below(late);
            self.network.insert((due, self.sent), encoded);
        }
    }

    /// The node of a replica, if it is the current one of its node.
    fn node_of(&self, id: Option<ReplicaId>) -> Option<usize> {
        let node = id?.node() as usize - 1;
        (Some(self.nodes.get(node)?.id) == id).then_some(node)
    }

    fn start(&mut self, node: usize) -> Result<(), String> {
        let seed = self.random.number();
        let state = &mut self.nodes[node];
        let log = state.store.open(&state.machine, self.mistake).map_err(|error| error.to_string())?;
        let base = log.first_snapshot();
        *state.machine.borrow_mut() = Machine::of_snapshot(&base);
        let is_witness = node < self.witnesses;
        let options = ReplicaOptions {
            seed,
            snapshot_ticks: 20,
            max_message_bytes: 64,
            is_witness,
            ..ReplicaOptions::default()
        };
        (state.sync, state.written, state.persisted, state.needs_sync) = (None, 0, 0, false);
        match Replica::start(state.id, log, options) {
            Ok(replica) => {
                state.replica = Some(replica);
                self.tell(|| format!("{} starts with snapshot {base:?}", self.nodes[node].id));
                self.pump(node)
            }
            Err(ReplicaStartError::LogLost { .. }) if self.mistake.is_some() => self.renew(node),
            Err(error) => Err(error.to_string()),
        }
    }

    fn crash(&mut self, node: usize) {
        self.tell(|| format!("{} loses power", self.nodes[node].id));
        let state = &mut self.nodes[node];
        (state.replica, state.sync) = (None, None);
        state.proposed.clear();
        state.points.clear();
        state.store.crash(&mut self.random);
    }

    /// Begins an empty replica, with the next generation of its id.
    fn renew(&mut self, node: usize) -> Result<(), String> {
        self.crash(node);
        let state = &mut self.nodes[node];
        state.id = state.id.next_generation();
        state.known = 0;
        let seed = self.random.number();
        self.nodes[node].store = self.new_store(Contents::default(), seed);
        self.start(node)
    }

    /// Replaces the applied entries of a log by a snapshot.
    fn compact(&mut self, node: usize) {
        if self.is_witness(node) {
            return self.compact_witness(node);
        }
        let snapshot = self.nodes[node].machine.borrow().snapshot(self.mistake);
        if let Some(replica) = &mut self.nodes[node].replica {
            replica.log_mut().compact(snapshot);
            self.nodes[node].needs_sync = true;
        }
    }

    /// Forgets the entries of a witness that all members with a state have applied.
    fn compact_witness(&mut self, node: usize) {
        let Some(replica) = &self.nodes[node].replica else { return };
        let members = replica.membership();
        let with_state =
            members.voters.union(&members.learners).filter(|id| id.node() as usize > self.witnesses);
        let applied = |id: &ReplicaId| Some(self.nodes[self.node_of(Some(*id))?].machine.borrow().index);
        let Some(mut index) = with_state.map(applied).min().flatten() else { return };
        if self.mistake == Some(Mistake::WitnessForgets) {
            index = u64::MAX;
        }
        let points = std::mem::take(&mut self.nodes[node].points);
        let (old, kept): (Vec<_>, Vec<_>) = points.into_iter().partition(|point| point.index <= index);
        self.nodes[node].points = kept;
        if let (Some(snapshot), Some(replica)) = (old.into_iter().last(), &mut self.nodes[node].replica) {
            replica.log_mut().compact(snapshot);
            self.nodes[node].needs_sync = true;
        }
    }

    fn is_witness(&self, node: usize) -> bool {
        node < self.witnesses
    }

    fn calm(&mut self) -> Result<(), String> {
        self.is_calm = true;
        self.cut.clear();
        for node in 0..self.nodes.len() {
            (self.nodes[node].paused_until, self.nodes[node].hangs_until) = (0, 0);
            if let Some(sync) = &mut self.nodes[node].sync {
                sync.until = self.now;
            }
            if self.nodes[node].replica.is_none() {
                self.start(node)?;
            }
        }
        self.calm_value();
        Ok(())
    }

    /// Values from here on are proposed after the last fault.
    fn calm_value(&mut self) {
        self.next_value += 1_000_000;
    }

    /// Whether the group has the wanted members, and all of them have applied something that was proposed after the last
    /// fault.
    fn is_complete(&self) -> bool {
        self.has_wanted_members()
            && self.wanted.iter().all(|&node| {
                let machine = self.nodes[node].machine.borrow();
                machine.values.last().is_some_and(|&value| value > 1_000_000)
            })
    }

    /// Whether a replica has applied an entry after which the group has exactly the wanted members.
    fn has_members(&self) -> bool {
        let (_, members) = self.oracle.membership();
        *members == GroupMembers::of(self.wanted.iter().map(|&node| self.nodes[node].id))
    }

    /// Whether the group has exactly the wanted members, and each of them will still know it after a power failure.
    fn has_wanted_members(&self) -> bool {
        let (index, _) = self.oracle.membership();
        self.has_members() && self.wanted.iter().all(|&node| self.nodes[node].known >= index)
    }

    fn describe(&self) -> String {
        let mut text = format!("wanted {:?}, members {:?};", self.wanted, self.oracle.membership());
        for node in &self.nodes {
            let role =
                node.replica.as_ref().map(|replica| (replica.role(), replica.term(), replica.committed()));
            text += &format!(" {} {role:?} applied {};", node.id, node.machine.borrow().index);
        }
        text
    }
}
