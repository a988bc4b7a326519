//! The members of a group, and the next safe change of them.

use std::collections::BTreeSet;
use std::fmt;

/// The id of a replica: its node, and how often that node has begun an empty replica of the group.
///
/// An id is never used again. If the disk of a node lost something, the replica with the old id has made promises that
/// it does not remember, so the node begins another one with the next generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    node: u32,
    generation: u32,
}

impl ReplicaId {
    /// The first replica of a node. `node` is at least 1.
    ///
    /// # Panics
    /// If `node` is 0.
    #[must_use]
    pub fn first(node: u32) -> Self {
        assert!(node > 0, "nodes are numbered from 1 on");
        Self { node, generation: 0 }
    }

    /// The id that follows this one on the same node.
    #[must_use]
    pub fn next_generation(self) -> Self {
        Self { generation: self.generation + 1, ..self }
    }

    /// The node of the replica.
    #[must_use]
    pub fn node(self) -> u32 {
        self.node
    }

    /// The id as one number, which is never 0.
    #[must_use]
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.node)
    }

    /// The id with this [number](Self::to_number); `None`: there is none.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let (node, generation) = (number as u32, (number >> 32) as u32);
        (node > 0).then_some(Self { node, generation })
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.node, self.generation)
    }
}

/// The members of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupMembers {
    /// Members that vote and count for a majority.
    pub voters: BTreeSet<ReplicaId>,
    /// Members that only receive the log.
    pub learners: BTreeSet<ReplicaId>,
    /// The voters before a change that is not complete yet. Until then, each decision needs a majority of them, too.
    pub outgoing: BTreeSet<ReplicaId>,
    /// Voters of `outgoing` that become learners when the change is complete.
    pub demoted: BTreeSet<ReplicaId>,
}

impl GroupMembers {
    /// A group of these voters.
    #[must_use]
    pub fn of(voters: impl IntoIterator<Item = ReplicaId>) -> Self {
        Self { voters: voters.into_iter().collect(), ..Self::default() }
    }

    /// Whether a change is not complete yet. Only one can be made at a time.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

/// One part of a change. The parts of a change take effect together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// The replica receives the log, and does not vote.
    AddLearner(ReplicaId),
    /// The learner becomes a voter.
    Promote(ReplicaId),
    /// The replica leaves the group.
    Remove(ReplicaId),
}

/// The next change that brings a group closer to the `wanted` replicas; empty: none, or a change is not complete yet.
///
/// A new replica first receives the log. Once `caught_up` says that it has all committed entries, it gets its vote, and in the
/// same change the one that it replaces loses it. So the number of voters never decreases while a replacement is missing.
///
/// # Example
/// ```
/// use mqcore_consensus::membership::{GroupMembers, MemberChange, ReplicaId, next_change};
///
/// let [one, two, three] = [1, 2, 3].map(ReplicaId::first);
/// let repaired = three.next_generation();
/// let wanted = [one, two, repaired].into();
/// let mut group = GroupMembers::of([one, two, three]);
/// assert_eq!(next_change(&group, &wanted, |_| false), [MemberChange::AddLearner(repaired)]);
/// group.learners.insert(repaired);
/// assert_eq!(next_change(&group, &wanted, |_| false), []);
/// let replaced = [MemberChange::Promote(repaired), MemberChange::Remove(three)];
/// assert_eq!(next_change(&group, &wanted, |_| true), replaced);
/// ```
#[must_use]
pub fn next_change(
    current: &GroupMembers,
    wanted: &BTreeSet<ReplicaId>,
    caught_up: impl Fn(ReplicaId) -> bool,
) -> Vec<MemberChange> {
    if current.is_changing() {
        return Vec::new();
    }
    if let Some(&obsolete) = current.learners.difference(wanted).next() {
        return vec![MemberChange::Remove(obsolete)];
    }
    let members: BTreeSet<ReplicaId> = current.voters.union(&current.learners).copied().collect();
    if let Some(&missing) = wanted.difference(&members).next() {
        return vec![MemberChange::AddLearner(missing)];
    }
    let obsolete = |node: Option<u32>| {
        let mut unwanted = current.voters.difference(wanted).copied();
        unwanted.find(|voter| node.is_none_or(|node| node == voter.node))
    };
    if let Some(&ready) = current.learners.iter().find(|&&learner| caught_up(learner)) {
        let replaced = obsolete(Some(ready.node)).or_else(|| obsolete(None));
        let removal = replaced.map(MemberChange::Remove);
        return std::iter::once(MemberChange::Promote(ready)).chain(removal).collect();
    }
    if current.learners.is_empty() {
        return obsolete(None).map(MemberChange::Remove).into_iter().collect();
    }
    Vec::new()
}
