//! The view of a member that others have: members, clients and users.

use mqcore_consensus::log::ReplicatedLog;
use mqcore_consensus::membership::ReplicaId;
use mqcore_consensus::replica::ReplicaRole;

use super::{Copying, Grouped, LEADER_BYTES_MIN, MemberThread, SILENCE_MAX};
use crate::input::MemberGreeting;
use crate::member::version;
use crate::relay::Leader;
use crate::status::{MemberRole, MemberStatus, ReplicaStatus};

impl MemberThread {
    pub(super) fn tell(&mut self, group: &mut Grouped) {
        let members = group.replica.membership();
        let known: Vec<u64> = members.voters.union(&members.learners).map(|id| id.to_number()).collect();
        let is_leading = group.led.is_some();
        self.parts.network.introduce(MemberGreeting { is_leading, ..self.greeting(&known) });
        let status = self.status(group);
        if status.role != MemberRole::Leading {
            self.lose_leadership("this node does not lead the cluster any more");
        }
        self.know_leader(status.leader.filter(|_| status.role != MemberRole::Leading));
        self.parts.shared.show(status);
    }

    /// Clients of this node are passed on to this one from now on.
    pub(super) fn know_leader(&self, node: Option<u32>) {
        let describe = |node: u32| {
            self.greetings.get(&node).map(|(greeting, _)| Leader {
                node,
                host: host_of(self.parts.options.peers.get(&node).map_or("", String::as_str)).to_owned(),
                listeners: greeting.listeners.clone(),
            })
        };
        let leader = node.and_then(describe);
        self.parts.leader.send_if_modified(|known| {
            let is_new = *known != leader;
            *known = leader;
            is_new
        });
    }

    pub(super) fn status(&self, group: &Grouped) -> MemberStatus {
        let replica = &group.replica;
        let members = replica.membership();
        let leader = match replica.role() {
            ReplicaRole::Leader => Some(self.parts.options.node),
            ReplicaRole::Follower { leader } => leader.map(ReplicaId::node),
            ReplicaRole::Candidate => None,
        };
        let role = match (group.led, group.copying) {
            (Some(_), _) => MemberRole::Leading,
            (None, Copying::No) if replica.log().last_index() > 0 => MemberRole::Following,
            (None, Copying::No) => MemberRole::Joining,
            (None, _) => MemberRole::Copying,
        };
        let describe =
            |id: &ReplicaId, votes| ReplicaStatus { node: id.node(), replica: id.to_string(), votes };
        let voters = members.voters.iter().map(|id| describe(id, true));
        MemberStatus {
            role,
            leader,
            term: replica.term(),
            committed: replica.committed(),
            applied: self.applier.applied(),
            changing: members.is_changing(),
            replicas: voters.chain(members.learners.iter().map(|id| describe(id, false))).collect(),
            ..self.status_without_group()
        }
    }

    pub(super) fn status_without_group(&self) -> MemberStatus {
        MemberStatus {
            cluster: self.parts.options.cluster.clone(),
            node: self.parts.options.node,
            hears: self.hears(),
            version: version(),
            ..MemberStatus::default()
        }
    }

    pub(super) fn hears(&self) -> Vec<u32> {
        let heard = self.greetings.iter().filter(|(_, (_, heard))| heard.elapsed() < SILENCE_MAX);
        heard.map(|(node, _)| *node).collect()
    }

    pub(super) fn greeting(&self, known: &[u64]) -> MemberGreeting {
        MemberGreeting {
            incarnation: self.identity.incarnation,
            replica: self.identity.replica().map(ReplicaId::to_number),
            founders: self.identity.founders.clone(),
            has_data: self.has_data,
            known: known.to_vec(),
            is_copying: self.identity.is_copying,
            has_space: self.free_bytes() >= 2 * LEADER_BYTES_MIN,
            is_leading: false,
            listeners: self.parts.options.listeners.iter().map(|listener| listener.told()).collect(),
            version: version(),
        }
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
