//! Nodes of a cluster, as the leader sees them.

use mqcore_replication::nodes::NodeView;
use mqcore_replication::status::MemberStatus;

use super::{Metric, MetricSources, Samples, Value, counter, gauge, seconds};

/// Present if the broker belongs to a cluster.
pub(super) const METRICS: &[Metric] = &[
    gauge("mqcore_raft_term", "Term of the cluster; it grows with each election.", |source, samples| {
        total(source, samples, |status| status.term);
    }),
    gauge(
        "mqcore_raft_committed_index",
        "Number of the last change that a majority has saved.",
        |source, samples| total(source, samples, |status| status.committed),
    ),
    gauge(
        "mqcore_raft_applied_index",
        "Number of the last change that the files of the leader have.",
        |source, samples| total(source, samples, |status| status.applied),
    ),
    gauge("mqcore_raft_voters", "Replicas that count for a majority.", |source, samples| {
        total(source, samples, |status| status.voters() as u64);
    }),
    gauge(
        "mqcore_raft_spare_nodes",
        "Connected voters that may fail before no majority is left.",
        |source, samples| total(source, samples, MemberStatus::spare_nodes),
    ),
    counter(
        "mqcore_raft_leader_changes_total",
        "Changes of the leader that this node has noticed since its process started.",
        |source, samples| total(source, samples, |status| status.leader_changes),
    ),
    gauge("mqcore_raft_log_entries", "Changes that the log of the leader keeps.", |source, samples| {
        total(source, samples, |status| status.log_entries);
    }),
    gauge("mqcore_raft_log_bytes", "Bytes of the files of the leader's log.", |source, samples| {
        total(source, samples, |status| status.log_bytes);
    }),
    gauge("mqcore_raft_replica_connected", "1 while the node is connected.", |source, samples| {
        each_node(source, samples, |node| Some(u64::from(node.connected)));
    }),
    gauge("mqcore_raft_replica_votes", "1 if the replica counts for a majority.", |source, samples| {
        each_node(source, samples, |node| Some(u64::from(node.votes)));
    }),
    gauge(
        "mqcore_raft_replica_lag",
        "Changes in the log of the leader that the replica has not confirmed.",
        |source, samples| each_node(source, samples, |node| node.lag),
    ),
    gauge(
        "mqcore_raft_clock_offset_seconds",
        "Clock of the node minus the clock of the leader.",
        |source, samples| {
            each_node(source, samples, |node| node.clock_offset_ms.map(|offset| offset as f64 / 1e3));
        },
    ),
    counter("mqcore_raft_log_syncs_total", "Syncs of the log by the node.", |source, samples| {
        each_node(source, samples, |node| Some(node.log_syncs?.count));
    }),
    counter("mqcore_raft_log_sync_seconds_total", "Time of these syncs.", |source, samples| {
        each_node(source, samples, |node| Some(seconds(node.log_syncs?.total_us)));
    }),
    gauge(
        "mqcore_raft_log_sync_longest_seconds",
        "Longest sync of the log in the last 10 to 20 seconds.",
        |source, samples| each_node(source, samples, |node| Some(seconds(node.log_syncs?.longest_us))),
    ),
];

fn total(source: &MetricSources, samples: &mut Samples<'_>, value: fn(&MemberStatus) -> u64) {
    if let Some(status) = &source.cluster {
        samples.value(value(status));
    }
}

/// Nodes whose value is unknown have no sample.
fn each_node<'v, V: Into<Value<'v>>>(
    source: &MetricSources,
    samples: &mut Samples<'_>,
    value: fn(&NodeView) -> Option<V>,
) {
    for node in source.cluster.iter().flat_map(|status| status.nodes()) {
        if let Some(value) = value(&node) {
            samples.labeled("node", node.node, value);
        }
    }
}
