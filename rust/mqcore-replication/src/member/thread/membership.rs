//! The members that the group should have.

use std::collections::{BTreeMap, BTreeSet};

use mqcore_consensus::log::ReplicatedLog;
use mqcore_consensus::membership::ReplicaId;

use super::{Grouped, MemberThread};
use crate::status::{MemberReport, MemberRole};

impl MemberThread {
    /// The replicas that are known to be witnesses.
    pub(super) fn witnesses(&self) -> BTreeSet<ReplicaId> {
        let greetings = self.greetings.values().filter(|(greeting, _)| greeting.is_witness);
        greetings.filter_map(|(greeting, _)| ReplicaId::from_number(greeting.replica?)).collect()
    }

    /// The connected replicas that report that they have all files, or need none. One that has applied less than the log begins
    /// with needs a copy, whatever it has reported.
    pub(super) fn complete(&self, group: &Grouped) -> BTreeSet<ReplicaId> {
        let base = group.replica.log().base().0;
        let is_complete = |report: &MemberReport| {
            !matches!(report.role, MemberRole::Joining | MemberRole::Copying) && report.applied >= base
        };
        self.connected_members()
            .filter(|(_, greeting)| !greeting.is_copying && greeting.report.as_ref().is_some_and(is_complete))
            .filter_map(|(_, greeting)| ReplicaId::from_number(greeting.replica?))
            .collect()
    }

    /// Brings the members of the group closer to what the nodes say they are.
    pub(super) fn adjust_membership(&self, group: &mut Grouped) {
        if self.connected_members().any(|(_, greeting)| greeting.is_copying) {
            // Another change could leave the files on too few nodes.
            return;
        }
        let members = group.replica.membership();
        let known: BTreeSet<ReplicaId> = members.voters.union(&members.learners).copied().collect();
        let mut wanted = BTreeSet::from([group.replica.id()]);
        let reported: BTreeMap<u32, ReplicaId> = self
            .connected_members()
            .filter_map(|(node, greeting)| Some((node, ReplicaId::from_number(greeting.replica?)?)))
            .collect();
        for node in self.parts.options.peers.keys() {
            let last_known = || known.iter().rev().find(|id| id.node() == *node);
            wanted.extend(reported.get(node).or_else(last_known));
        }
        let witnesses = self.witnesses();
        let is_new = |id: &ReplicaId| witnesses.contains(id) && !known.contains(id);
        if wanted.intersection(&witnesses).count() * 2 >= wanted.len() {
            // A majority could consist of witnesses, which can only pass on what the log has.
            wanted.retain(|id| !is_new(id));
        }
        match group.replica.adjust_membership(&wanted) {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => tracing::info!(?changes, "changing the members of the cluster"),
            // It is tried again with the next tick.
            Err(error) => tracing::debug!(%error, "cannot change the members of the cluster now"),
        }
    }
}
