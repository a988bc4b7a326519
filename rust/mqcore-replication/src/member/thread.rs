//! The thread that drives a member's replica and changes its files.

mod copies;
mod faults;
mod leading;
mod membership;
#[cfg(test)]
mod tests;
mod view;

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mqcore_consensus::journal_log::OpenError;
use mqcore_consensus::log::{EntryKind, LogEntry, ReplicatedLog};
use mqcore_consensus::membership::{GroupMembers, ReplicaId};
use mqcore_consensus::replica::{
    Proposal, ProposeError, Replica, ReplicaError, ReplicaOptions, ReplicaRole, ReplicaStartError,
};
use tokio::sync::watch;

use super::compaction::Compaction;
use super::founding::{Founding, decide};
use super::log::{LogError, MemberLog};
use super::{MemberError, MemberOptions, Shared};
use crate::applier::{Applier, ApplyError};
use crate::identity::{MemberIdentity, MemberIdentityError};
use crate::input::{FoundDamage, Input, MemberGreeting};
use crate::leadership::LeadershipHistory;
use crate::relay::Leader;
use crate::replicator::{Batch, Replicator};
use crate::shared_files::OpenedFiles;
use crate::status::MemberStatus;
use crate::storage::FREE_BYTES_MIN;
use crate::transport::{MemberCredentials, Network, random_u64};

/// Inputs before the replica works again.
const INPUTS_AT_ONCE: usize = 256;
/// A node that was not heard for so long is not connected.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Bytes of entries that are read at once to be repeated, and the longest time until others hear from this member again. Its
/// leader may need its acknowledgements.
const REPEATED_BYTES: u64 = 8 << 20;
const REPEATED_TIME: Duration = Duration::from_millis(200);
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
const HOUSEKEEPING_BYTES: usize = 8 << 20;
/// A leader with less free space hands over to a node with more than twice of it: its broker refuses messages soon.
const LEADER_BYTES_MIN: u64 = FREE_BYTES_MIN + (32 << 20);
/// Files of a data directory without which a broker has saved nothing.
const DATA_FILES: [&str; 2] = ["format", "authority.json"];
/// Pause before another attempt to copy the files of the leader.
const COPY_PAUSE: Duration = Duration::from_secs(1);

/// The parts of the process that the thread needs.
pub(super) struct Parts {
    pub(super) options: MemberOptions,
    pub(super) identity: MemberIdentity,
    pub(super) network: Network,
    pub(super) credentials: Arc<MemberCredentials>,
    pub(super) inputs: Sender<Input>,
    pub(super) replicator: Arc<Replicator>,
    pub(super) shared: Arc<Shared>,
    pub(super) leader: watch::Sender<Option<Leader>>,
    pub(super) runtime: tokio::runtime::Handle,
}

/// Why the member must stop.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Replica(#[from] ReplicaError<LogError>),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Identity(#[from] MemberIdentityError),
    #[error("cannot sync the files of the data directory: {0}")]
    Sync(std::io::Error),
    #[error("cannot open the log of the cluster: {0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Start(#[from] ReplicaStartError),
    #[error("the log of this node is missing")]
    NoLog,
    #[error("the log of this node is damaged: {0}")]
    LogDamaged(String),
    #[error(
        "nodes {0:?} have data of brokers without a cluster; keep it on one of them, and move the other data directories away"
    )]
    Conflict(Vec<u32>),
    #[error(
        "nodes {0:?} are witnesses, which keep no data; more than half of the nodes of a cluster must keep it"
    )]
    TooManyWitnesses(Vec<u32>),
    #[error("{0} has data of a broker, which a witness would not use; choose an empty --data-dir")]
    WitnessWithData(String),
}

/// A copy of the leader's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copying {
    No,
    /// It must begin, not before this time.
    Wanted(Instant),
    Runs,
    /// The files are complete once the entry with this index is repeated, and all that were held.
    Repeats(u64),
}

/// A proposed batch of the broker.
struct Proposed {
    proposal: Proposal,
    last: u64,
    bytes: usize,
}

/// The thread's state.
pub(super) struct MemberThread {
    parts: Parts,
    identity: MemberIdentity,
    has_data: bool,
    greetings: BTreeMap<u32, (MemberGreeting, Instant)>,
    leadership: LeadershipHistory,
    applier: Applier,
    /// Copies of the leader's files that were begun.
    copies: u64,
    /// The thread of the last one. It may still write files after the log was opened again.
    copy_thread: Option<JoinHandle<()>>,
    /// Syncs of the files in other threads that were begun.
    syncs: u64,
}

/// A member that belongs to a group.
struct Grouped {
    number: u64,
    replica: Replica<MemberLog>,
    identity: Rc<RefCell<MemberIdentity>>,
    waiting: VecDeque<Batch>,
    proposed: VecDeque<Proposed>,
    compaction: Compaction,
    copying: Copying,
    /// Committed entries up to this index were not carried out, because the files are being copied.
    held: u64,
    /// The next of them to be carried out on a copy.
    next_held: u64,
    /// Term of the last entry that was carried out.
    applied_term: u64,
    /// It has led with up-to-date files.
    led: Option<u64>,
    /// The broker has opened all journals and found no damage.
    is_opened: bool,
    /// The broker has stopped, and another node should lead.
    is_resigning: bool,
    housekept: Instant,
    /// Files that are being compared with those of others, and the readers that wait for the scope of the damage.
    comparing: BTreeMap<String, Vec<FoundDamage>>,
    /// It keeps the log for the others, and no files.
    is_witness: bool,
}

/// The next tick of a group, and the news that others have heard.
struct Pace {
    next_tick: Instant,
    /// `None`: they hear all of it again.
    told: Option<(Option<u64>, ReplicaRole, Copying)>,
}

impl MemberThread {
    pub(super) fn new(parts: Parts) -> Result<Self, MemberError> {
        let root = &parts.options.data_dir;
        let mut identity = parts.identity.clone();
        let applier = faults::open_applier(root, &mut identity)?;
        let is_data = |name| root.join(name).exists();
        let has_data = identity.generation.is_none() && DATA_FILES.into_iter().any(is_data);
        let leadership = LeadershipHistory::new(Instant::now());
        let greetings = BTreeMap::new();
        Ok(Self {
            parts,
            identity,
            has_data,
            greetings,
            leadership,
            applier,
            copies: 0,
            copy_thread: None,
            syncs: 0,
        })
    }

    /// Runs until the process ends.
    pub(super) fn run(mut self, inputs: &Receiver<Input>) {
        // A bug that ends only this thread would leave a broker that waits for ever, and others would still hear a leader.
        let ended = catch_unwind(AssertUnwindSafe(|| self.run_until_failure(inputs)));
        let why = match ended {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(panic) => format!("a bug of mqcore, please report it: {}", panic_text(&*panic)),
        };
        tracing::error!(why, "this node of the cluster has failed; correct the cause and start it again");
        let status = MemberStatus { failure: Some(why), ..self.status_without_group() };
        self.parts.network.introduce(self.greeting(&[], &status));
        self.know_leader(None);
        self.parts.shared.show(status);
        // The broker would wait for ever, and must not confirm anything.
        self.lose_leadership("this node of the cluster has failed");
    }

    /// Runs until the process ends, or until nothing helps against a failure.
    fn run_until_failure(&mut self, inputs: &Receiver<Input>) -> Result<(), String> {
        while let Err(failure) = self.found_and_work(inputs) {
            self.handle_failure(failure, inputs)?;
        }
        Ok(())
    }

    fn found_and_work(&mut self, inputs: &Receiver<Input>) -> Result<(), Failure> {
        if self.identity.generation.is_none() && !self.find_group(inputs)? {
            return Ok(());
        }
        self.work(inputs)
    }

    // ---- Without a group -----------------------------------------------------------------------------------------------

    /// Waits until there is a group. False: the process ends.
    fn find_group(&mut self, inputs: &Receiver<Input>) -> Result<bool, Failure> {
        let mut shown = Founding::Waits(Vec::new());
        loop {
            let status = self.status_without_group();
            self.parts.network.introduce(self.greeting(&[], &status));
            self.parts.shared.show(status);
            match inputs.recv_timeout(self.parts.options.tick) {
                Ok(Input::Greeting(node, greeting)) => {
                    self.greetings.insert(node, (*greeting, Instant::now()));
                }
                Ok(Input::Status(answer)) => {
                    // The asker may have gone.
                    let _ = answer.send(self.status_without_group());
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
            self.greetings.retain(|_, (_, heard)| heard.elapsed() < SILENCE_MAX);
            let greetings =
                self.greetings.iter().map(|(node, (greeting, _))| (*node, greeting.clone())).collect();
            let peers = self.parts.options.peers.keys().copied();
            let (has_data, is_witness) = (self.has_data, self.parts.options.is_witness);
            if has_data && is_witness {
                return Err(Failure::WitnessWithData(self.parts.options.data_dir.display().to_string()));
            }
            let decided = decide(&self.identity, (has_data, is_witness), peers, &greetings);
            match &decided {
                Founding::Waits(missing) if decided != shown => {
                    tracing::info!(nodes = ?missing, "waiting for nodes to begin the cluster");
                }
                Founding::Waits(_) => {}
                Founding::Conflict(nodes) => return Err(Failure::Conflict(nodes.clone())),
                Founding::TooManyWitnesses(nodes) => return Err(Failure::TooManyWitnesses(nodes.clone())),
                Founding::Begins(founders) => {
                    self.identity.founders = founders.clone();
                    self.identity.is_witness = is_witness;
                    self.identity.generation = Some(0);
                    self.identity.save(&self.parts.options.data_dir)?;
                    tracing::info!(nodes = ?founders.keys(), "the cluster begins");
                    return Ok(true);
                }
                Founding::Joins { founders, generation } => {
                    if self.has_data {
                        // The files of the cluster replace those of the broker that was here before.
                        self.identity = self.identity.clone().replace(&self.parts.options.data_dir)?;
                        self.has_data = false;
                    }
                    self.identity.founders = founders.clone();
                    self.identity.is_witness = is_witness;
                    self.identity.generation = Some(*generation);
                    self.identity.save(&self.parts.options.data_dir)?;
                    if is_witness {
                        tracing::info!("joining the cluster as a witness");
                    } else {
                        tracing::info!("joining the cluster with a copy of its files");
                    }
                    return Ok(true);
                }
            }
            shown = decided;
        }
    }

    // ---- In a group ----------------------------------------------------------------------------------------------------

    fn open_group(&mut self) -> Result<Grouped, Failure> {
        if self.identity.is_log_lost {
            return Err(Failure::LogDamaged("it could not be written".to_owned()));
        }
        let identity = Rc::new(RefCell::new(self.identity.clone()));
        let mut note_work = || self.parts.shared.note_work();
        let mut log = MemberLog::open(&self.parts.options.data_dir, &identity, &mut note_work)?;
        let id = self.identity.replica().unwrap_or_else(|| unreachable!("the node belongs to a group"));
        if log.last_index() == 0 && self.identity.has_log {
            return Err(Failure::NoLog);
        }
        if log.last_index() == 0 && self.identity.generation == Some(0) {
            let members = GroupMembers::of(self.identity.founders.keys().map(|node| ReplicaId::first(*node)));
            log.journal_mut().begin_group(&members).map_err(LogError::from)?;
        }
        if log.last_index() > 0 && !self.identity.has_log {
            self.identity.has_log = true;
            self.identity.save(&self.parts.options.data_dir)?;
            *identity.borrow_mut() = self.identity.clone();
        }
        if !self.identity.is_copying {
            // The log begins with what the files have for sure.
            self.applier.skip_to(log.base().0);
        }
        let is_witness = self.identity.is_witness;
        let options = ReplicaOptions { seed: random_u64(), is_witness, ..ReplicaOptions::default() };
        Ok(Grouped {
            is_witness,
            number: self.identity.group(),
            replica: Replica::start(id, log, options)?,
            identity,
            waiting: VecDeque::new(),
            proposed: VecDeque::new(),
            compaction: Compaction::default(),
            copying: if self.identity.is_copying { Copying::Wanted(Instant::now()) } else { Copying::No },
            held: 0,
            next_held: 0,
            is_opened: false,
            is_resigning: false,
            applied_term: 0,
            led: None,
            housekept: Instant::now(),
            comparing: BTreeMap::new(),
        })
    }

    fn work(&mut self, inputs: &Receiver<Input>) -> Result<(), Failure> {
        let mut group = self.open_group()?;
        let mut pace = Pace { next_tick: Instant::now() + self.parts.options.tick, told: None };
        while self.work_once(&mut group, inputs, &mut pace)? {}
        Ok(())
    }

    /// Does the work that there is, and takes inputs until the next tick. False: the process ends.
    fn work_once(
        &mut self,
        group: &mut Grouped,
        inputs: &Receiver<Input>,
        pace: &mut Pace,
    ) -> Result<bool, Failure> {
        self.advance(group)?;
        self.repeat_held(group)?;
        // Others hear changes at once, and the rest with each tick: it would cost each batch of the broker.
        let news = (group.led, group.replica.role(), group.copying);
        if pace.told != Some(news) {
            pace.told = Some(news);
            self.tell(group);
        }
        let rest = pace.next_tick.saturating_duration_since(Instant::now());
        match inputs.recv_timeout(if group.repeats() { Duration::ZERO } else { rest }) {
            Ok(input) => {
                self.take(group, input)?;
                for input in inputs.try_iter().take(INPUTS_AT_ONCE) {
                    self.take(group, input)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
        if Instant::now() >= pace.next_tick {
            // A thread that was stopped does not make up for ticks: others had the same time.
            pace.next_tick = Instant::now() + self.parts.options.tick;
            group.replica.tick();
            self.each_tick(group)?;
            pace.told = None;
        }
        Ok(true)
    }

    fn take(&mut self, group: &mut Grouped, input: Input) -> Result<(), Failure> {
        match input {
            Input::Proposals => {}
            Input::Message(its, message) if its == group.number => group.replica.receive(*message)?,
            Input::Message(..) => {}
            Input::Greeting(node, greeting) => self.greeted(node, *greeting),
            Input::OpenFiles(answer) => {
                // Only a leader has carried out all that its files show, and knows that they are intact.
                let opened = if group.led.is_some() && group.is_opened {
                    OpenedFiles::open(&self.parts.options.data_dir, self.applier.applied())
                } else {
                    Err(std::io::Error::other("this node has not opened its files as the leader"))
                };
                // The asker may have gone, here and below.
                let _ = answer.send(opened);
            }
            Input::Applied(answer) => {
                let _ = answer.send(self.applier.applied());
            }
            Input::Copied(number, outcome) if number == self.copies => self.copied(group, outcome)?,
            Input::Copied(..) => {}
            Input::Synced(number, outcome) => self.synced(group, number, outcome)?,
            Input::Status(answer) => {
                let _ = answer.send(self.status(group));
            }
            Input::Resign => {
                group.is_resigning = true;
                group.replica.resign();
            }
            Input::Opened => group.is_opened = true,
            Input::HandOver(node, answer) => {
                let _ = answer.send(self.hand_over(group, node));
            }
            Input::OpenFile(name, answer) => {
                let _ = answer.send(self.open_file(group, &name));
            }
            Input::Damaged(damage) => self.compare(group, damage),
            Input::DamageCompared(damage, scope) => self.compared(group, &damage, scope),
            Input::LogDamaged(why) => return Err(Failure::LogDamaged(why)),
        }
        Ok(())
    }

    fn greeted(&mut self, node: u32, greeting: MemberGreeting) {
        let is_stranger = self.is_stranger(&greeting);
        let previous = self.greetings.insert(node, (greeting, Instant::now()));
        if is_stranger && !previous.is_some_and(|(previous, _)| self.is_stranger(&previous)) {
            tracing::error!(
                node,
                "the node belongs to another cluster of this name; remove the data directory of the one to discard"
            );
        }
    }

    /// The greetings of the members of the group that are connected.
    fn connected_members(&self) -> impl Iterator<Item = (u32, &MemberGreeting)> {
        self.greetings
            .iter()
            .filter(|(_, (greeting, heard))| heard.elapsed() < SILENCE_MAX && !self.is_stranger(greeting))
            .map(|(node, (greeting, _))| (*node, greeting))
    }

    /// Whether it belongs to another group.
    fn is_stranger(&self, greeting: &MemberGreeting) -> bool {
        greeting.replica.is_some() && greeting.founders != self.identity.founders
    }

    /// Proposes, writes, sends and carries out whatever there is.
    fn advance(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        loop {
            self.propose(group);
            let mut newest = None;
            let mut needs_sync = false;
            while let Some(work) = group.replica.poll()? {
                // After a restart, a long log is carried out again.
                self.parts.shared.note_work();
                newest = Some(work.number);
                needs_sync |= work.needs_sync;
                work.messages.iter().for_each(|message| self.parts.network.send(group.number, message));
                if let Some(snapshot) = work.installed.as_ref().filter(|_| group.is_witness) {
                    self.identity = group.identity.borrow().clone();
                    self.applier.skip_to(snapshot.index);
                } else if work.installed.is_some() {
                    tracing::info!(
                        "this node is too far behind the cluster's log; it gets a copy of all files"
                    );
                    self.identity = group.identity.borrow().clone();
                    // A copy that runs is complete, too, if it began after this snapshot; `copied` compares.
                    if group.copying != Copying::Runs {
                        group.copying = Copying::Wanted(Instant::now());
                    }
                }
                for entry in work.committed {
                    self.committed(group, entry)?;
                }
            }
            let Some(newest) = newest else {
                self.look_after_leadership(group);
                return Ok(());
            };
            if needs_sync {
                group.replica.log_mut().sync()?;
            }
            for message in group.replica.persisted(newest) {
                self.parts.network.send(group.number, &message);
            }
        }
    }

    fn propose(&mut self, group: &mut Grouped) {
        group.waiting.extend(self.parts.replicator.take());
        if group.led.is_none() {
            return;
        }
        while let Some(batch) = group.waiting.pop_front() {
            match group.replica.propose(batch.entry.clone()) {
                Ok(proposal) => {
                    let (last, bytes) = (batch.last, batch.entry.len());
                    group.proposed.push_back(Proposed { proposal, last, bytes });
                }
                Err(ProposeError::Busy | ProposeError::NotLeader { .. }) => {
                    group.waiting.push_front(batch);
                    return;
                }
            }
        }
    }

    fn carry_out(&mut self, group: &mut Grouped, entry: LogEntry) -> Result<(), Failure> {
        let LogEntry { index, term, kind, data } = entry;
        let bytes = data.len();
        if group.is_witness {
            self.applier.skip_to(index);
        } else {
            let data = if kind == EntryKind::Batch { data } else { bytes::Bytes::new() };
            self.applier.apply(index, data)?;
        }
        group.applied_term = term;
        group.replica.applied(index);
        while let Some(first) = group.proposed.front().filter(|first| first.proposal.index <= index) {
            if first.proposal != (Proposal { index, term }) {
                // Another leader's entry has its place.
                self.lose_leadership("another node has taken over");
            }
            self.parts.replicator.note_applied(first.last, first.bytes);
            group.proposed.pop_front();
        }
        if let Copying::Repeats(complete) = group.copying
            && index >= complete
            && !group.repeats()
        {
            self.complete_copy(group)?;
        }
        if group.compaction.note(bytes) && group.copying == Copying::No {
            self.sync_files(group)?;
        }
        Ok(())
    }

    fn each_tick(&mut self, group: &mut Grouped) -> Result<(), Failure> {
        let complete = self.complete(group);
        group.replica.set_complete(complete);
        if group.replica.role() == ReplicaRole::Leader {
            if group.is_resigning {
                group.replica.resign();
            } else if group.is_complete() {
                self.adjust_membership(group);
                self.leave_if_disk_is_full(group);
            } else {
                // Its files are not complete, so that the broker cannot run here. The next leader first gets all entries.
                group.replica.resign();
            }
        }
        group.replica.set_never_leading(self.witnesses());
        if group.is_witness {
            self.compact(group)?;
        }
        if let Copying::Wanted(from) = group.copying
            && Instant::now() >= from
        {
            self.begin_copy(group);
        }
        if group.replica.take_snapshot_request() && group.is_complete() {
            self.renew_snapshot(group)?;
        }
        if group.housekept.elapsed() >= HOUSEKEEPING_INTERVAL {
            group.housekept = Instant::now();
            let now_ms =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            let journal = group.replica.log_mut().journal_mut();
            journal.maintain(now_ms, HOUSEKEEPING_BYTES).map_err(LogError::from)?;
        }
        Ok(())
    }
}

impl Grouped {
    fn is_complete(&self) -> bool {
        !self.is_witness && self.copying == Copying::No && self.replica.log().last_index() > 0
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the thread of the node panicked")
}
