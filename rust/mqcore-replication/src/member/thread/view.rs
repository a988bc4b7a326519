//! The view of a member that others have: members, clients and users.

use std::time::Instant;

use mqcore_consensus::log::ReplicatedLog;
use mqcore_consensus::membership::ReplicaId;
use mqcore_consensus::replica::ReplicaRole;

use super::{Copying, Grouped, LEADER_BYTES_MIN, MemberThread, SILENCE_MAX};
use crate::input::MemberGreeting;
use crate::member::version;
use crate::relay::Leader;
use crate::status::{MemberReport, MemberRole, MemberStatus, PeerStatus, ReplicaStatus, clock_ms};

impl MemberThread {
    pub(super) fn tell(&mut self, group: &mut Grouped) {
        let members = group.replica.membership();
        let known: Vec<u64> = members.voters.union(&members.learners).map(|id| id.to_number()).collect();
        self.leadership.note(leader_of(group), group.replica.term(), Instant::now());
        let status = self.status(group);
        let is_leading = group.led.is_some();
        self.parts.network.introduce(MemberGreeting { is_leading, ..self.greeting(&known, &status) });
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
        let role = match (group.led, group.copying) {
            (Some(_), _) => MemberRole::Leading,
            (None, _) if group.is_witness && replica.log().last_index() > 0 => MemberRole::Witnessing,
            (None, Copying::No) if replica.log().last_index() > 0 => MemberRole::Following,
            (None, Copying::No) => MemberRole::Joining,
            (None, _) => MemberRole::Copying,
        };
        let progress = replica.progress();
        let last = replica.log().last_index();
        let describe = |id: &ReplicaId, votes| {
            let matched = progress.get(id).copied();
            let lag = matched.map(|matched| last.saturating_sub(matched));
            ReplicaStatus { node: id.node(), replica: id.to_string(), votes, matched, lag }
        };
        let voters = members.voters.iter().map(|id| describe(id, true));
        MemberStatus {
            role,
            leader: leader_of(group),
            term: replica.term(),
            committed: replica.committed(),
            applied: self.applier.applied(),
            changing: members.is_changing(),
            replicas: voters.chain(members.learners.iter().map(|id| describe(id, false))).collect(),
            log_syncs: replica.log().syncs(),
            log_entries: last.saturating_sub(replica.log().base().0),
            log_bytes: replica.log().file_bytes(),
            ..self.status_without_group()
        }
    }

    pub(super) fn status_without_group(&self) -> MemberStatus {
        MemberStatus {
            cluster: self.parts.options.cluster.clone(),
            node: self.parts.options.node,
            hears: self.hears(),
            version: version(),
            address: self.parts.options.listen.clone(),
            clock_ms: clock_ms(),
            leader_changes: self.leadership.changes(),
            leaderless_ms: self.leadership.leaderless_ms(Instant::now()),
            peers: self.parts.options.peers.iter().map(|(node, address)| self.peer(*node, address)).collect(),
            ..MemberStatus::default()
        }
    }

    fn peer(&self, node: u32, address: &str) -> PeerStatus {
        let unknown = PeerStatus { node, address: address.to_owned(), ..PeerStatus::default() };
        let Some((greeting, received)) = self.greetings.get(&node) else { return unknown };
        let silent = received.elapsed();
        let silent_ms = silent.as_millis() as u64;
        let received_ms = clock_ms() as i64 - silent_ms as i64;
        let report = greeting.report.as_ref();
        PeerStatus {
            connected: silent < SILENCE_MAX,
            silent_ms: Some(silent_ms),
            version: Some(greeting.version.clone()),
            clock_offset_ms: report.map(|report| report.sent_ms as i64 - received_ms),
            stalled_ms: report.map_or(0, |report| report.sent_ms.saturating_sub(report.made_ms)),
            report: report.cloned(),
            ..unknown
        }
    }

    pub(super) fn hears(&self) -> Vec<u32> {
        let heard = self.greetings.iter().filter(|(_, (_, heard))| heard.elapsed() < SILENCE_MAX);
        heard.map(|(node, _)| *node).collect()
    }

    pub(super) fn greeting(&self, known: &[u64], status: &MemberStatus) -> MemberGreeting {
        let report = MemberReport {
            sent_ms: status.clock_ms,
            made_ms: status.clock_ms,
            role: status.role,
            applied: status.applied,
            log_syncs: status.log_syncs,
            connected_to: status.hears.clone(),
            problem: status.problem.clone(),
        };
        MemberGreeting {
            incarnation: self.identity.incarnation,
            replica: self.identity.replica().map(ReplicaId::to_number),
            founders: self.identity.founders.clone(),
            has_data: self.has_data,
            known: known.to_vec(),
            is_copying: self.identity.is_copying,
            has_space: self.free_bytes() >= 2 * LEADER_BYTES_MIN,
            is_witness: self.parts.options.is_witness,
            is_leading: false,
            listeners: self.parts.options.listeners.iter().map(|listener| listener.told()).collect(),
            version: version(),
            report: Some(report),
        }
    }
}

fn leader_of(group: &Grouped) -> Option<u32> {
    match group.replica.role() {
        ReplicaRole::Leader => Some(group.replica.id().node()),
        ReplicaRole::Follower { leader } => leader.map(ReplicaId::node),
        ReplicaRole::Candidate => None,
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
