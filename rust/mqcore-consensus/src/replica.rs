//! One replica of a group.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{self, ConfChangeSingle, ConfChangeType, ConfChangeV2, EntryType, MessageType};
use raft::{Config, ProgressState, RawNode, ReadOnlyOption, SnapshotStatus, StateRole};

use crate::log::{EntryKind, LogEntry, LogSnapshot, ReplicatedLog};
use crate::membership::{GroupMembers, MemberChange, ReplicaId, next_change};
use crate::message::ReplicaMessage;
use crate::storage::{
    LogStorage, ballot_from_raft, entry_from_raft, membership_from_raft, snapshot_from_raft,
};

/// Settings of a replica. All replicas of a group have the same, apart from `is_witness` and `seed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// Ticks without a leader after which a replica wants to become one; each time a random number between this and twice
    /// this. A leader without a majority for this time gives up.
    pub election_ticks: usize,
    /// Ticks between two heartbeats of a leader. Less than `election_ticks`.
    pub heartbeat_ticks: usize,
    /// Ticks that a sync of a leader may take, before it hands leadership to a replica with a faster disk.
    pub sync_ticks: u64,
    /// Ticks after which a snapshot is sent again if it has not arrived.
    pub snapshot_ticks: u64,
    /// Bytes of entries in one message. One entry is always sent.
    pub max_message_bytes: u64,
    /// Messages with entries that are sent to a replica before it answers. A leader reads all of them at once for a replica that
    /// is far behind, and does nothing else meanwhile.
    pub max_inflight_messages: usize,
    /// Bytes of proposed entries that are not committed. More are refused with [`ProposeError::Busy`].
    pub max_uncommitted_bytes: u64,
    /// Bytes of committed entries in one [`Work`]: after a restart, all entries of the log are returned again. One entry is
    /// always returned.
    pub max_committed_bytes: u64,
    /// It keeps entries and has no state: it sends no snapshots, and waits longer than others before it wants to become leader.
    /// If it does, because no other replica has all entries, its caller lets it [`resign`](Replica::resign).
    pub is_witness: bool,
    /// Seed of the random election timeouts. Different for each replica.
    pub seed: u64,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            election_ticks: 10,
            is_witness: false,
            heartbeat_ticks: 2,
            sync_ticks: 10,
            snapshot_ticks: 100,
            max_message_bytes: 1 << 20,
            max_inflight_messages: 16,
            max_uncommitted_bytes: 64 << 20,
            max_committed_bytes: 8 << 20,
            seed: 0,
        }
    }
}

impl ReplicaOptions {
    /// Ticks that the replica waits longer than others before it wants to become leader.
    fn patience(&self) -> usize {
        if self.is_witness { 2 * self.election_ticks } else { 0 }
    }
}

/// The role of a replica at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaRole {
    /// It decides about new entries.
    Leader,
    /// It follows a leader, if it knows one.
    Follower {
        /// The leader.
        leader: Option<ReplicaId>,
    },
    /// It asks for votes.
    Candidate,
}

/// The next work of the caller. See the [crate documentation](crate).
#[derive(Debug, Default)]
pub struct Work {
    /// Number for [`Replica::persisted`]. Ascends.
    pub number: u64,
    /// Whether something was written that must be synced first. Otherwise `persisted` may be called as soon as all earlier
    /// numbers are persisted.
    pub needs_sync: bool,
    /// Messages to send at once.
    pub messages: Vec<ReplicaMessage>,
    /// A snapshot that replaces the state, before the entries.
    pub installed: Option<LogSnapshot>,
    /// Committed entries to apply, in order.
    pub committed: Vec<LogEntry>,
}

/// The place that a proposed entry has if it is committed. Another entry with this index has another term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proposal {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
}

/// Why a replica cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaStartError {
    /// The log lacks entries that the replica knows to be committed.
    #[error(
        "the log ends at entry {last}, but entry {committed} was committed; begin an empty replica with the next generation \
         of its id"
    )]
    LogLost {
        /// Index of the last entry.
        last: u64,
        /// Index of the last committed entry.
        committed: u64,
    },
    /// The options contradict each other.
    #[error("the options of the replica are invalid: {0}")]
    Options(String),
}

/// Why an entry was not proposed. The log is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another replica leads.
    #[error("this replica does not lead its group{}", leader_hint(*leader))]
    NotLeader {
        /// The leader, if this replica knows one.
        leader: Option<ReplicaId>,
    },
    /// Too many entries wait for a majority, leadership moves, or another change of the members is not complete.
    #[error("the group cannot take this now; try again")]
    Busy,
}

fn leader_hint(leader: Option<ReplicaId>) -> String {
    leader.map_or_else(|| "; no leader is known".to_owned(), |leader| format!("; {leader} does"))
}

/// Why a replica must stop.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError<E: std::error::Error> {
    /// The log could not be read or written.
    #[error("the log of the replica cannot be read or written: {0}")]
    Log(#[source] E),
    /// The leader knows that this replica had entries which it has not.
    #[error(
        "the log ends at entry {last}, but the leader knows that it had entry {acknowledged}; begin an empty replica with the \
         next generation of its id"
    )]
    LogLost {
        /// Index of the last entry.
        last: u64,
        /// Index of an entry that the replica acknowledged.
        acknowledged: u64,
    },
    /// A committed change of the members cannot be read. A newer version wrote it.
    #[error(
        "entry {0} changes the members of the group in a way that this version does not know; upgrade this node"
    )]
    UnknownChange(u64),
}

/// A number of [`Work`] that is not persisted yet.
struct Unpersisted {
    number: u64,
    /// Messages that may be sent once it is.
    messages: Vec<ReplicaMessage>,
    /// Ticks since then.
    age: u64,
}

/// One replica of a group. See the [crate documentation](crate).
pub struct Replica<L: ReplicatedLog> {
    node: RawNode<LogStorage<L>>,
    options: ReplicaOptions,
    random: fastrand::Rng,
    /// The random election timeout, and the term and role for which it was drawn.
    election_timeout: usize,
    drawn_for: (u64, StateRole),
    unpersisted: VecDeque<Unpersisted>,
    /// Ticks since a snapshot was sent to a replica that has not acknowledged it.
    snapshots: BTreeMap<u64, u64>,
    /// Replicas to which leadership is not handed.
    never_leading: BTreeSet<ReplicaId>,
    /// Replicas whose state is complete. `None`: all.
    complete: Option<BTreeSet<ReplicaId>>,
}

impl<L: ReplicatedLog> Replica<L> {
    /// Begins a replica with what its log has. The caller must have the state of the snapshot with which the log begins;
    /// [`Self::poll`] returns the committed entries after it once more.
    ///
    /// # Errors
    /// The log lacks something, or the options are invalid.
    pub fn start(id: ReplicaId, log: L, options: ReplicaOptions) -> Result<Self, ReplicaStartError> {
        let (committed, last) = (log.ballot().committed, log.last_index());
        if committed > last {
            return Err(ReplicaStartError::LogLost { last, committed });
        }
        let config = Config {
            id: id.to_number(),
            election_tick: options.election_ticks,
            max_election_tick: 2 * options.election_ticks + options.patience(),
            heartbeat_tick: options.heartbeat_ticks,
            applied: log.base().0,
            max_size_per_msg: options.max_message_bytes,
            max_inflight_msgs: options.max_inflight_messages,
            max_uncommitted_size: options.max_uncommitted_bytes.max(options.max_message_bytes),
            max_committed_size_per_ready: options.max_committed_bytes,
            // A replica that was cut off does not disturb the others when it returns.
            pre_vote: true,
            check_quorum: true,
            read_only_option: ReadOnlyOption::Safe,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(
            &config,
            LogStorage {
                log,
                wants_snapshot: Cell::new(false),
                is_witness: options.is_witness,
                failure: Cell::new(None),
            },
            &logger,
        )
        .map_err(|error| ReplicaStartError::Options(error.to_string()))?;
        let drawn_for = (node.raft.term, node.raft.state);
        let mut replica = Self {
            node,
            options,
            random: fastrand::Rng::with_seed(options.seed),
            election_timeout: 0,
            drawn_for,
            unpersisted: VecDeque::new(),
            snapshots: BTreeMap::new(),
            never_leading: BTreeSet::new(),
            complete: None,
        };
        replica.draw_election_timeout();
        Ok(replica)
    }

    /// The id of the replica.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        ReplicaId::from_number(self.node.raft.id)
            .unwrap_or_else(|| unreachable!("ids are made from a ReplicaId"))
    }

    /// The role of the replica at the moment.
    #[must_use]
    pub fn role(&self) -> ReplicaRole {
        match self.node.raft.state {
            StateRole::Leader => ReplicaRole::Leader,
            StateRole::Follower => {
                ReplicaRole::Follower { leader: ReplicaId::from_number(self.node.raft.leader_id) }
            }
            StateRole::Candidate | StateRole::PreCandidate => ReplicaRole::Candidate,
        }
    }

    /// The latest term that the replica knows.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Index of the last entry that the replica knows to be committed.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The members of the group, after all changes among the entries that [`Self::poll`] has returned.
    #[must_use]
    pub fn membership(&self) -> GroupMembers {
        membership_from_raft(&self.node.raft.prs().conf().to_conf_state())
    }

    /// For a leader, index of the last entry that each replica is known to have. Empty otherwise.
    #[must_use]
    pub fn progress(&self) -> BTreeMap<ReplicaId, u64> {
        if self.role() != ReplicaRole::Leader {
            return BTreeMap::new();
        }
        let known = self.node.raft.prs().iter();
        known.filter_map(|(id, progress)| Some((ReplicaId::from_number(*id)?, progress.matched))).collect()
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &L {
        &self.node.store().log
    }

    /// The log, for example to shorten it after a snapshot. Its entries after [`Self::applied`] must stay.
    pub fn log_mut(&mut self) -> &mut L {
        &mut self.node.mut_store().log
    }

    /// Whether a member needs a newer snapshot than the log has, which the caller should make now. Asked again until there is
    /// one.
    pub fn take_snapshot_request(&mut self) -> bool {
        self.node.store().wants_snapshot.take()
    }

    /// Lets one tick pass.
    pub fn tick(&mut self) {
        self.node.tick();
        for unpersisted in &mut self.unpersisted {
            unpersisted.age += 1;
        }
        if self.role() == ReplicaRole::Leader {
            self.leave_if_disk_is_slow();
            self.repeat_lost_snapshots();
        } else {
            self.snapshots.clear();
        }
        self.draw_election_timeout();
    }

    /// Takes a message from another replica of the group.
    ///
    /// # Errors
    /// [`ReplicaError::LogLost`]: this replica has lost part of its log. Messages of replicas that have left, and for other
    /// replicas, are ignored.
    pub fn receive(&mut self, message: ReplicaMessage) -> Result<(), ReplicaError<L::Error>> {
        if message.0.to != self.node.raft.id {
            // For an earlier replica of this node, which had entries that this one has not.
            return Ok(());
        }
        let last = self.node.raft.raft_log.last_index();
        let is_current = message.0.term >= self.node.raft.term;
        if message.0.msg_type == MessageType::MsgHeartbeat && is_current && message.0.commit > last {
            return Err(ReplicaError::LogLost { last, acknowledged: message.0.commit });
        }
        // The only errors are about senders that are not members, and about messages that make no sense now.
        let _ = self.node.step(message.0);
        self.draw_election_timeout();
        Ok(())
    }

    /// Proposes an entry. It is committed when [`Work::committed`] has an entry with this index and term, and lost when there
    /// is one with this index and another term.
    ///
    /// # Errors
    /// [`ProposeError`]. The entry was not proposed.
    pub fn propose(&mut self, batch: Bytes) -> Result<Proposal, ProposeError> {
        self.propose_entry(EntryType::EntryNormal, batch)
    }

    /// Proposes the next change that brings the group closer to the `wanted` replicas, if there is one. A leader that is not
    /// wanted hands leadership over first. To be called from time to time, for example with each tick.
    ///
    /// # Errors
    /// [`ProposeError`]. Nothing was proposed.
    pub fn adjust_membership(
        &mut self,
        wanted: &BTreeSet<ReplicaId>,
    ) -> Result<Vec<MemberChange>, ProposeError> {
        self.check_leader()?;
        if self.node.raft.has_pending_conf() {
            return Ok(Vec::new());
        }
        if !wanted.contains(&self.id()) {
            if let Some(successor) = self.best_voter(|id| wanted.contains(&id)) {
                self.node.transfer_leader(successor);
            }
            return Ok(Vec::new());
        }
        let committed = self.committed();
        let progress = self.node.raft.prs();
        let caught_up = |id: ReplicaId| {
            let progress = progress.get(id.to_number());
            self.is_complete(id) && progress.is_some_and(|progress| progress.matched >= committed)
        };
        let members = self.membership();
        let changes = next_change(&members, wanted, caught_up);
        // A leader that was elected in the middle of a change has to complete it; the crate `raft` leaves that to its user.
        if !changes.is_empty() || members.is_changing() {
            let data = encode_changes(&changes);
            self.propose_entry(EntryType::EntryConfChangeV2, data)?;
        }
        Ok(changes)
    }

    /// Leadership is not handed to these replicas. Each of them may still be elected, if no other has its entries.
    pub fn set_never_leading(&mut self, replicas: BTreeSet<ReplicaId>) {
        self.never_leading = replicas;
    }

    /// Only these replicas have the whole state, and not just the log. Others get no vote, and leadership only if no voter among
    /// these can take it. Before the first call, all replicas count as complete.
    pub fn set_complete(&mut self, replicas: BTreeSet<ReplicaId>) {
        self.complete = Some(replicas);
    }

    fn is_complete(&self, id: ReplicaId) -> bool {
        self.complete.as_ref().is_none_or(|complete| complete.contains(&id))
    }

    /// Hands leadership to the best voter, for example before the node stops. Does nothing on other replicas. To be called with
    /// each tick until another replica leads: the best voter is another one when the first does not answer.
    pub fn resign(&mut self) {
        self.hand_over(|_| true);
    }

    /// Hands leadership to the best eligible voter, if there is one. Does nothing on other replicas.
    pub fn hand_over(&mut self, is_eligible: impl Fn(ReplicaId) -> bool) {
        if self.role() == ReplicaRole::Leader
            && let Some(successor) = self.best_voter(is_eligible)
        {
            self.node.transfer_leader(successor);
        }
    }

    /// Returns the next work; `None`: nothing until the next call of another method. Its entries are already written into the
    /// log.
    ///
    /// # Errors
    /// The replica must not be used any more. An entry that this or another method could not read is reported here.
    pub fn poll(&mut self) -> Result<Option<Work>, ReplicaError<L::Error>> {
        self.check_log()?;
        if !self.node.has_ready() {
            return Ok(None);
        }
        let mut ready = self.node.ready();
        self.check_log()?;
        let mut work = Work { number: ready.number(), needs_sync: ready.must_sync(), ..Work::default() };
        let log = &mut self.node.mut_store().log;
        if ready.snapshot().get_metadata().index > 0 {
            let snapshot = snapshot_from_raft(ready.snapshot());
            log.install(&snapshot).map_err(ReplicaError::Log)?;
            work.installed = Some(snapshot);
        }
        let entries: Vec<LogEntry> = ready.take_entries().into_iter().map(entry_from_raft).collect();
        let ballot = ready.hs().map(ballot_from_raft);
        if !entries.is_empty() || ballot.is_some() {
            log.append(entries, ballot).map_err(ReplicaError::Log)?;
        }
        if work.installed.is_some() {
            log.sync().map_err(ReplicaError::Log)?;
        }
        work.messages = ready.take_messages().into_iter().map(ReplicaMessage).collect();
        let messages = ready.take_persisted_messages().into_iter().map(ReplicaMessage).collect();
        self.unpersisted.push_back(Unpersisted { number: work.number, messages, age: 0 });
        work.committed = ready.take_committed_entries().into_iter().map(entry_from_raft).collect();
        self.node.advance_append_async(ready);
        if let Some(snapshot) = &work.installed {
            // The crate `raft` reads the log from the last applied entry on, which the snapshot has replaced.
            work.messages.append(&mut self.persisted(work.number));
            work.needs_sync = false;
            self.applied(snapshot.index);
        }
        for entry in work.committed.iter().filter(|entry| entry.kind == EntryKind::Membership) {
            self.change_members(entry)?;
        }
        self.draw_election_timeout();
        Ok(Some(work))
    }

    /// Everything that [`Self::poll`] wrote up to this number is durable. Returns the messages that waited for it.
    pub fn persisted(&mut self, number: u64) -> Vec<ReplicaMessage> {
        let mut messages = Vec::new();
        while let Some(first) = self.unpersisted.front_mut().filter(|first| first.number <= number) {
            messages.append(&mut mem::take(&mut first.messages));
            self.unpersisted.pop_front();
        }
        self.node.on_persist_ready(number);
        messages
    }

    /// The effects of all entries up to `index`, or of a snapshot with this index, are applied.
    pub fn applied(&mut self, index: u64) {
        if index > self.node.raft.raft_log.applied() {
            self.node.advance_apply_to(index);
        }
    }

    fn check_log(&self) -> Result<(), ReplicaError<L::Error>> {
        self.node.store().failure.take().map_or(Ok(()), |error| Err(ReplicaError::Log(error)))
    }

    fn check_leader(&self) -> Result<(), ProposeError> {
        match self.role() {
            ReplicaRole::Leader => Ok(()),
            ReplicaRole::Follower { leader } => Err(ProposeError::NotLeader { leader }),
            ReplicaRole::Candidate => Err(ProposeError::NotLeader { leader: None }),
        }
    }

    fn propose_entry(&mut self, kind: EntryType, data: Bytes) -> Result<Proposal, ProposeError> {
        self.check_leader()?;
        let entry = eraftpb::Entry { entry_type: kind, data, ..eraftpb::Entry::default() };
        let mut message =
            eraftpb::Message { msg_type: MessageType::MsgPropose, ..eraftpb::Message::default() };
        message.entries.push(entry);
        self.node.raft.step(message).map_err(|_| ProposeError::Busy)?;
        Ok(Proposal { index: self.node.raft.raft_log.last_index(), term: self.node.raft.term })
    }

    fn change_members(&mut self, entry: &LogEntry) -> Result<(), ReplicaError<L::Error>> {
        let mut change = ConfChangeV2::default();
        change.merge_from_bytes(&entry.data).map_err(|_| ReplicaError::UnknownChange(entry.index))?;
        self.node.apply_conf_change(&change).map_err(|_| ReplicaError::UnknownChange(entry.index))?;
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && !raft.prs().conf().voters().contains(raft.id) {
            // The crate `raft` would continue as a leader, and fail as soon as it commits.
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
        Ok(())
    }

    /// The other voter with the longest log, if possible one that is complete and answers. For a moment after each check of the
    /// quorum, the crate `raft` knows none that does.
    fn best_voter(&self, is_eligible: impl Fn(ReplicaId) -> bool) -> Option<u64> {
        let progress = self.node.raft.prs();
        let voters = progress.conf().voters().ids();
        voters
            .iter()
            .filter(|&id| id != self.node.raft.id)
            .filter_map(|id| {
                let replica = ReplicaId::from_number(id)?;
                let is_candidate = !self.never_leading.contains(&replica) && is_eligible(replica);
                let progress = progress.get(id).filter(|_| is_candidate)?;
                Some((self.is_complete(replica), progress.recent_active, progress.matched, id))
            })
            .max()
            .map(|(.., id)| id)
    }

    /// A leader commits with the disks of others, so that no other replica would notice that its own one hangs.
    fn leave_if_disk_is_slow(&mut self) {
        let is_slow = self.unpersisted.front().is_some_and(|first| first.age > self.options.sync_ticks);
        if is_slow && self.node.raft.lead_transferee.is_none() {
            self.resign();
        }
    }

    /// The crate `raft` waits for the acknowledgement of a snapshot without end.
    fn repeat_lost_snapshots(&mut self) {
        let progress = self.node.raft.prs();
        let waiting = progress.iter().filter(|(_, progress)| progress.state == ProgressState::Snapshot);
        let ages = waiting.map(|(id, _)| (*id, self.snapshots.get(id).map_or(0, |age| age + 1))).collect();
        self.snapshots = ages;
        let lost: Vec<u64> = self
            .snapshots
            .iter()
            .filter(|(_, age)| **age >= self.options.snapshot_ticks)
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.snapshots.remove(&id);
            self.node.report_snapshot(id, SnapshotStatus::Failure);
        }
    }

    /// Draws the election timeout from this replica's own generator whenever the crate `raft` has drawn one, so that a seed
    /// determines everything.
    fn draw_election_timeout(&mut self) {
        let now = (self.node.raft.term, self.node.raft.state);
        if now != self.drawn_for || self.election_timeout == 0 {
            let ticks = self.options.election_ticks;
            let timeout = self.options.patience() + self.random.usize(ticks..2 * ticks);
            (self.election_timeout, self.drawn_for) = (timeout, now);
        }
        self.node.raft.set_randomized_election_timeout(self.election_timeout);
    }
}

/// Encodes changes that take effect together. The crate `raft` reads this encoding, too.
fn encode_changes(changes: &[MemberChange]) -> Bytes {
    let mut encoded = ConfChangeV2::default();
    for &change in changes {
        let (kind, id) = match change {
            MemberChange::AddLearner(id) => (ConfChangeType::AddLearnerNode, id),
            MemberChange::Promote(id) => (ConfChangeType::AddNode, id),
            MemberChange::Remove(id) => (ConfChangeType::RemoveNode, id),
        };
        encoded.changes.push(ConfChangeSingle {
            change_type: kind,
            node_id: id.to_number(),
            ..ConfChangeSingle::default()
        });
    }
    // Fails only if a required field is missing, and this message has none.
    encoded.write_to_bytes().unwrap_or_default().into()
}
