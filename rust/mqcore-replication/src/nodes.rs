//! The nodes of a cluster as one of them sees them: what it knows of itself, of connections and of replicas, by node.

use std::collections::BTreeMap;

use crate::status::{LogSyncs, MemberRole, MemberStatus, PeerStatus, ReplicaStatus};

/// A node, as another one or the node itself sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its number.
    pub node: u32,
    /// Its address, to which members connect.
    pub address: String,
    /// Whether it is this node, or has sent something in the last seconds.
    pub connected: bool,
    /// Milliseconds since its last report. `None`: there was none since the process started.
    pub silent_ms: Option<u64>,
    /// Its role. `None`: it is not connected.
    pub role: Option<MemberRole>,
    /// The id of its replica. `None`: it has none in the group.
    pub replica: Option<String>,
    /// Whether its replica votes.
    pub votes: bool,
    /// Entries of the leader's log that it lacks. Only the leader knows.
    pub lag: Option<u64>,
    /// Index of the last entry whose changes its files have.
    pub applied: Option<u64>,
    /// Its version of mqcore, also the last one of a node that is not connected.
    pub version: Option<String>,
    /// Its clock minus the clock of this node, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// For how long its thread has done nothing, in milliseconds.
    pub stalled_ms: u64,
    /// Syncs of its log.
    pub log_syncs: Option<LogSyncs>,
    /// The nodes whose reports it has received in the last seconds.
    pub connected_to: Vec<u32>,
    /// Why it cannot take part at the moment.
    pub problem: Option<String>,
}

impl MemberStatus {
    /// All nodes in the order of their numbers.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        let mut nodes = BTreeMap::from([(self.node, self.own_view())]);
        nodes.extend(self.peers.iter().map(|peer| (peer.node, NodeView::of_peer(peer))));
        // A node whose data was lost has two replicas for a while. The new one does not vote yet, and comes later.
        for replica in &self.replicas {
            if let Some(node) = nodes.get_mut(&replica.node) {
                node.set_replica(replica);
            }
        }
        nodes.into_values().collect()
    }

    /// How many voting nodes may fail in addition before no majority is left.
    #[must_use]
    pub fn spare_nodes(&self) -> u64 {
        let connected = self.nodes().iter().filter(|node| node.votes && node.connected).count();
        connected.saturating_sub(self.voters() / 2 + 1) as u64
    }

    /// Replicas that count for a majority.
    #[must_use]
    pub fn voters(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.votes).count()
    }

    fn own_view(&self) -> NodeView {
        NodeView {
            node: self.node,
            address: self.address.clone(),
            connected: true,
            silent_ms: Some(0),
            role: Some(self.role),
            applied: Some(self.applied),
            version: Some(self.version.clone()),
            clock_offset_ms: Some(0),
            log_syncs: Some(self.log_syncs),
            connected_to: self.hears.clone(),
            ..NodeView::default()
        }
    }
}

impl NodeView {
    fn of_peer(peer: &PeerStatus) -> Self {
        let known = Self {
            node: peer.node,
            address: peer.address.clone(),
            connected: peer.connected,
            silent_ms: peer.silent_ms,
            version: peer.version.clone(),
            ..Self::default()
        };
        // The last report of a node that is not connected is out of date.
        let Some(report) = peer.report.as_ref().filter(|_| peer.connected) else { return known };
        Self {
            role: Some(report.role),
            applied: Some(report.applied),
            clock_offset_ms: peer.clock_offset_ms,
            stalled_ms: peer.stalled_ms,
            log_syncs: Some(report.log_syncs),
            connected_to: report.connected_to.clone(),
            problem: report.problem.clone(),
            ..known
        }
    }

    fn set_replica(&mut self, replica: &ReplicaStatus) {
        self.replica = Some(replica.replica.clone());
        self.votes = replica.votes;
        self.lag = replica.lag;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::MemberReport;

    fn replica(node: u32, id: &str, votes: bool, lag: u64) -> ReplicaStatus {
        ReplicaStatus { node, replica: id.to_owned(), votes, matched: Some(100 - lag), lag: Some(lag) }
    }

    fn leader() -> MemberStatus {
        let report = MemberReport { role: MemberRole::Following, applied: 90, ..MemberReport::default() };
        let connected = PeerStatus {
            node: 3,
            connected: true,
            silent_ms: Some(10),
            clock_offset_ms: Some(-4),
            report: Some(report.clone()),
            ..PeerStatus::default()
        };
        let lost =
            PeerStatus { node: 2, silent_ms: Some(9_000), report: Some(report), ..PeerStatus::default() };
        MemberStatus {
            node: 1,
            role: MemberRole::Leading,
            replicas: vec![
                replica(1, "1", true, 0),
                replica(2, "2", true, 70),
                replica(3, "3", true, 1),
                replica(2, "2.1", false, 100),
            ],
            peers: vec![lost, connected],
            ..MemberStatus::default()
        }
    }

    #[test]
    fn a_node_has_its_newest_replica_and_no_report_of_an_earlier_connection() {
        let nodes = leader().nodes();
        let found: Vec<_> = nodes.iter().map(|node| (node.node, node.role, node.votes, node.lag)).collect();
        assert_eq!(
            found,
            [
                (1, Some(MemberRole::Leading), true, Some(0)),
                (2, None, false, Some(100)),
                (3, Some(MemberRole::Following), true, Some(1)),
            ]
        );
        assert_eq!(
            (nodes[1].applied, nodes[2].applied, nodes[2].clock_offset_ms),
            (None, Some(90), Some(-4))
        );
    }

    #[test]
    fn spare_nodes_are_those_beyond_a_majority() {
        let mut status = leader();
        assert_eq!((status.voters(), status.spare_nodes()), (3, 0));
        status.replicas.pop();
        status.peers[0].connected = true;
        assert_eq!(status.spare_nodes(), 1);
        status.peers.iter_mut().for_each(|peer| peer.connected = false);
        assert_eq!(status.spare_nodes(), 0);
    }
}
