//! Which findings follow from the state of a cluster. Only the leader has a broker, so that it knows the state of replication.

use std::collections::BTreeMap;

use mqcore_replication::nodes::NodeView;
use mqcore_replication::status::{MemberRole, MemberStatus};

use crate::attention::finding::{Finding, FindingKind, Severity};
use crate::attention::text::{counted, grouped, span};

/// Changes that a replica lacks from which on it is reported. Under full load, some hundred are on their way.
const LAG_MIN: u64 = 5_000;

/// Difference between the clocks of two nodes that is reported.
const CLOCK_OFFSET_MIN_MS: u64 = 1_000;

/// Mean time of a sync that is reported: each confirmation waits for one.
const SYNC_MEAN_MIN_US: u64 = 100_000;
/// Time of a single sync that is reported, which is longer than nodes usually wait before they elect another leader.
const SYNC_LONGEST_MIN_US: u64 = 1_000_000;
/// Time without work after which the disk of another node is said to hang.
const STALLED_MIN_MS: u64 = 2_000;

/// The nodes that need attention.
pub(super) fn examine(status: &MemberStatus) -> Vec<Finding> {
    let nodes = status.nodes();
    let mut found = Vec::new();
    for node in &nodes {
        if node.connected {
            found.extend(failing(node));
            found.extend(without_vote(node));
            found.extend(lag(node));
            found.extend(clock(node));
            found.extend(slow_sync(node));
        } else {
            found.push(not_connected(node, status.spare_nodes()));
        }
    }
    found.extend(versions(&status.cluster, &nodes));
    found
}

fn finding(kind: FindingKind, severity: Severity, node: &NodeView, cause: String, remedy: &str) -> Finding {
    let subject = format!("cluster node {}", node.node);
    Finding { kind, severity, subject, cause, remedy: remedy.into() }
}

fn not_connected(node: &NodeView, spare: u64) -> Finding {
    let since = match node.silent_ms {
        Some(silent) => format!("for {}", span(silent)),
        None => "since the leader started".into(),
    };
    let rest = match spare {
        0 => "if another node fails, nothing is confirmed until a majority is back".into(),
        spare => format!("{} more may fail", counted(spare, "node")),
    };
    let cause = format!("it has not been connected to the leader {since}; {rest}");
    let remedy = format!(
        "start the node, and check the network to {}: mqcore cluster ls; if it is lost for good, replace it: docs/cluster.md",
        node.address
    );
    finding(FindingKind::ClusterNodeDown, Severity::Warning, node, cause, &remedy)
}

fn failing(node: &NodeView) -> Option<Finding> {
    let cause = format!("it cannot take part: {}", node.problem.as_ref()?);
    let remedy = "correct the cause; the node tries again each second and continues by itself";
    Some(finding(FindingKind::ClusterNodeFailing, Severity::Warning, node, cause, remedy))
}

fn without_vote(node: &NodeView) -> Option<Finding> {
    if node.votes {
        return None;
    }
    let (cause, remedy) = match node.role {
        Some(MemberRole::Copying) => (
            "it copies all files from the leader, and does not count for a majority until it has them",
            "wait; if it takes longer than the disk and the network explain, look into the log of the node",
        ),
        _ => (
            "its replica does not count for a majority",
            "look into the log of the node: mqcore cluster ls shows how far it is",
        ),
    };
    Some(finding(FindingKind::ClusterNoVote, Severity::Warning, node, cause.into(), remedy))
}

fn lag(node: &NodeView) -> Option<Finding> {
    // A replica that copies all files lacks everything, which is reported otherwise.
    let lag = node.lag.filter(|lag| *lag >= LAG_MIN && node.votes)?;
    let cause = format!("it lacks {} of the leader's log", counted(lag, "change"));
    let remedy = "compare its disk and network with those of the other nodes: its syncs are in mqcore_raft_log_sync_seconds_total";
    Some(finding(FindingKind::ClusterLag, Severity::Warning, node, cause, remedy))
}

fn clock(node: &NodeView) -> Option<Finding> {
    let offset = node.clock_offset_ms.filter(|offset| offset.unsigned_abs() > CLOCK_OFFSET_MIN_MS)?;
    let direction = if offset > 0 { "ahead of" } else { "behind" };
    let by = offset.unsigned_abs() as f64 / 1e3;
    let cause = format!("its clock is {by:.1} s {direction} the clock of the leader");
    let remedy = "run a time service on all nodes (chrony, systemd-timesyncd): schedules, expiry times and delays follow the clock of the leader";
    Some(finding(FindingKind::ClusterClock, Severity::Warning, node, cause, remedy))
}

fn slow_sync(node: &NodeView) -> Option<Finding> {
    let syncs = node.log_syncs?;
    let cause = if node.stalled_ms >= STALLED_MIN_MS {
        format!("it has done nothing for {}, most likely because its disk hangs", span(node.stalled_ms))
    } else if syncs.mean_us >= SYNC_MEAN_MIN_US || syncs.longest_us >= SYNC_LONGEST_MIN_US {
        format!(
            "syncs of its log take {} ms on average and {} ms at most",
            grouped(syncs.mean_us / 1_000),
            grouped(syncs.longest_us / 1_000)
        )
    } else {
        return None;
    };
    let remedy =
        "find what else uses this disk, or use a faster one: confirmations wait for the disks of a majority";
    Some(finding(FindingKind::ClusterSlowSync, Severity::Warning, node, cause, remedy))
}

fn versions(cluster: &str, nodes: &[NodeView]) -> Option<Finding> {
    let mut by_version: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.connected) {
        let version = node.version.as_deref().unwrap_or("unknown");
        by_version.entry(version).or_default().push(node.node.to_string());
    }
    if by_version.len() < 2 {
        return None;
    }
    let parts: Vec<String> = by_version
        .iter()
        .map(|(version, nodes)| {
            let noun = if nodes.len() == 1 { "node" } else { "nodes" };
            format!("{version} on {noun} {}", nodes.join(", "))
        })
        .collect();
    Some(Finding {
        kind: FindingKind::ClusterVersions,
        severity: Severity::Info,
        subject: format!("cluster {cluster}"),
        cause: format!("its nodes run different versions of mqcore: {}", parts.join("; ")),
        remedy: "install the same version on all nodes, and restart them one after the other".into(),
    })
}

#[cfg(test)]
mod tests {
    use mqcore_replication::status::{LogSyncs, MemberReport, PeerStatus, ReplicaStatus};

    use super::*;

    /// A leader, node 1, with two followers that are well.
    fn well() -> MemberStatus {
        let peer = |node| PeerStatus {
            node,
            address: format!("db-{node}:47299"),
            connected: true,
            silent_ms: Some(100),
            version: Some("1.0.0".into()),
            clock_offset_ms: Some(3),
            stalled_ms: 40,
            report: Some(MemberReport { role: MemberRole::Following, ..MemberReport::default() }),
        };
        let replica = |node: u32| ReplicaStatus {
            node,
            replica: node.to_string(),
            votes: true,
            matched: Some(9_000),
            lag: Some(200),
        };
        MemberStatus {
            cluster: "orders".into(),
            node: 1,
            role: MemberRole::Leading,
            version: "1.0.0".into(),
            replicas: vec![replica(1), replica(2), replica(3)],
            peers: vec![peer(2), peer(3)],
            ..MemberStatus::default()
        }
    }

    fn only(status: &MemberStatus) -> (FindingKind, String, String) {
        let mut found = examine(status);
        assert_eq!(found.len(), 1, "{found:?}");
        let finding = found.remove(0);
        (finding.kind, finding.subject, finding.cause)
    }

    #[test]
    fn nothing_is_found_in_a_healthy_cluster() {
        assert_eq!(examine(&well()), []);
    }

    #[test]
    fn a_node_that_is_away_is_reported_with_what_may_still_fail() {
        let mut status = well();
        status.peers[0].connected = false;
        status.peers[0].silent_ms = Some(125_000);
        let (kind, subject, cause) = only(&status);
        assert_eq!((kind, subject.as_str()), (FindingKind::ClusterNodeDown, "cluster node 2"));
        assert_eq!(
            cause,
            "it has not been connected to the leader for 2 min; if another node fails, nothing is confirmed until a majority is back"
        );
    }

    #[test]
    fn a_replica_that_copies_or_does_not_vote_is_reported_once() {
        let mut status = well();
        status.replicas[2].votes = false;
        status.replicas[2].lag = Some(9_000);
        assert_eq!(only(&status).0, FindingKind::ClusterNoVote);
        status.peers[1].report.as_mut().unwrap().role = MemberRole::Copying;
        assert!(only(&status).2.starts_with("it copies all files"));
    }

    #[test]
    fn lag_clocks_syncs_and_hanging_disks_have_limits() {
        let mut status = well();
        status.replicas[1].lag = Some(LAG_MIN);
        let (kind, _, cause) = only(&status);
        assert_eq!(
            (kind, cause.as_str()),
            (FindingKind::ClusterLag, "it lacks 5,000 changes of the leader's log")
        );

        status = well();
        status.peers[0].clock_offset_ms = Some(-1_500);
        let (kind, _, cause) = only(&status);
        assert_eq!(
            (kind, cause.as_str()),
            (FindingKind::ClusterClock, "its clock is 1.5 s behind the clock of the leader")
        );

        status = well();
        status.log_syncs = LogSyncs { mean_us: 90_000, longest_us: 1_200_000, ..LogSyncs::default() };
        let (kind, subject, cause) = only(&status);
        assert_eq!((kind, subject.as_str()), (FindingKind::ClusterSlowSync, "cluster node 1"));
        assert_eq!(cause, "syncs of its log take 90 ms on average and 1,200 ms at most");

        status = well();
        status.peers[1].stalled_ms = 4_000;
        assert!(only(&status).2.starts_with("it has done nothing for 4 s"));
    }

    #[test]
    fn different_versions_are_named_with_their_nodes() {
        let mut status = well();
        status.peers[1].version = Some("1.1.0".into());
        let (kind, subject, cause) = only(&status);
        assert_eq!((kind, subject.as_str()), (FindingKind::ClusterVersions, "cluster orders"));
        assert_eq!(cause, "its nodes run different versions of mqcore: 1.0.0 on nodes 1, 2; 1.1.0 on node 3");
    }
}
