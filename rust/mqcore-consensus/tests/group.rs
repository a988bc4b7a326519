//! A group without faults: every message arrives, and every sync succeeds at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use mqcore_consensus::log::LogEntry;
use mqcore_consensus::membership::{GroupMembers, ReplicaId};
use mqcore_consensus::message::ReplicaMessage;
use mqcore_consensus::replica::{Proposal, ProposeError, Replica, ReplicaOptions, ReplicaRole};

use crate::simulation::disk::{Contents, Machine, SimulatedLog, Store};

pub(crate) struct Group {
    pub(crate) replicas: Vec<Replica<SimulatedLog>>,
    machines: Vec<Rc<RefCell<Machine>>>,
    pub(crate) applied: Vec<Vec<LogEntry>>,
    /// Replicas that neither receive nor send anything.
    pub(crate) cut: Vec<usize>,
    /// Replicas whose disks hang.
    pub(crate) hanging: Vec<usize>,
    recorded: Option<Vec<ReplicaMessage>>,
}

impl Group {
    pub(crate) fn new(size: u32) -> Self {
        let members = GroupMembers::of((1..=size).map(ReplicaId::first));
        let mut group = Self {
            replicas: Vec::new(),
            machines: Vec::new(),
            applied: Vec::new(),
            cut: Vec::new(),
            hanging: Vec::new(),
            recorded: None,
        };
        for &id in &members.voters {
            group.begin(id, Contents::of_group(&members));
        }
        group
    }

    pub(crate) fn begin(&mut self, id: ReplicaId, contents: Contents) {
        let machine = Rc::new(RefCell::new(Machine::of_snapshot(contents.base())));
        let log = Store::model(contents, None).open(&machine, None).unwrap();
        let options = ReplicaOptions { seed: id.to_number(), ..ReplicaOptions::default() };
        self.replicas.push(Replica::start(id, log, options).unwrap());
        self.machines.push(machine);
        self.applied.push(Vec::new());
    }

    /// Keeps a copy of all messages from now on.
    pub(crate) fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    pub(crate) fn recorded(&mut self) -> Vec<ReplicaMessage> {
        self.recorded.take().unwrap()
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |&at: &usize| !self.cut.contains(&at) && self.replicas[at].role() == ReplicaRole::Leader;
        (0..self.replicas.len()).find(leads)
    }

    /// Lets time pass for one replica only, until it leads.
    pub(crate) fn elect(&mut self, at: usize) {
        for _ in 0..100 {
            if self.replicas[at].role() == ReplicaRole::Leader {
                return;
            }
            self.replicas[at].tick();
            self.settle();
        }
        panic!("no election");
    }

    pub(crate) fn tick(&mut self) {
        for replica in &mut self.replicas {
            replica.tick();
        }
        self.settle();
    }

    pub(crate) fn propose(&mut self, at: usize, batch: Bytes) -> Result<Proposal, ProposeError> {
        let proposal = self.replicas[at].propose(batch);
        self.settle();
        proposal
    }

    /// Adds an empty replica and lets the leader make it a voter.
    pub(crate) fn join(&mut self, leader: usize) {
        let id = ReplicaId::first(self.replicas.len() as u32 + 1);
        self.begin(id, Contents::default());
        let wanted = self.replicas.iter().map(Replica::id).collect();
        for _ in 0..50 {
            self.replicas[leader].adjust_membership(&wanted).unwrap();
            self.tick();
        }
        assert_eq!(self.replicas[leader].membership().voters, wanted);
    }

    /// Does all work of all replicas.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut messages = VecDeque::new();
            for at in 0..self.replicas.len() {
                while let Some(work) = self.replicas[at].poll().unwrap() {
                    messages.extend(work.messages);
                    if let Some(snapshot) = work.installed {
                        *self.machines[at].borrow_mut() = Machine::of_snapshot(&snapshot);
                    }
                    if let Some(last) = work.committed.last() {
                        let mut machine = self.machines[at].borrow_mut();
                        (machine.index, machine.term) = (last.index, last.term);
                        machine.membership = self.replicas[at].membership();
                        drop(machine);
                        self.replicas[at].applied(last.index);
                    }
                    self.applied[at].extend(work.committed);
                    if !self.hanging.contains(&at) {
                        messages.extend(self.replicas[at].persisted(work.number));
                    }
                }
            }
            if messages.is_empty() {
                return;
            }
            for message in messages {
                self.recorded.iter_mut().for_each(|recorded| recorded.push(message.clone()));
                let place = |id| self.replicas.iter().position(|replica| Some(replica.id()) == id);
                let (from, to) = (place(message.from()), place(message.to()));
                if let (Some(from), Some(to)) = (from, to)
                    && !self.cut.contains(&from)
                    && !self.cut.contains(&to)
                {
                    self.replicas[to].receive(message).unwrap();
                }
            }
        }
    }
}
