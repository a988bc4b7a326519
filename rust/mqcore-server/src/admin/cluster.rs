//! `GET /cluster`: the nodes of the cluster, as the leader sees them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mqcore_replication::nodes::NodeView;
use mqcore_replication::status::{LogSyncs, MemberRole, MemberStatus};
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::request::{Admin, error};

/// A cluster, as its leader sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterAnswer {
    /// Its name.
    cluster: String,
    /// The node that leads: it runs this broker.
    leader: u32,
    /// Grows with each election.
    term: u64,
    /// Number of the last change that a majority has saved.
    committed: u64,
    /// Number of the last change that the files of the leader have.
    applied: u64,
    /// A change of the replicas is not complete.
    changing: bool,
    /// Connected voters that may fail before no majority is left.
    spare_nodes: u64,
    /// Changes of the leader that this node has noticed since its process started.
    leader_changes: u64,
    /// Changes that the log of the leader keeps.
    log_entries: u64,
    /// Bytes of the files of its log.
    log_bytes: u64,
    /// All nodes in the order of their numbers.
    nodes: Vec<ClusterNodeAnswer>,
}

/// A node of a cluster. Members are null if the node is not connected and they are unknown.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterNodeAnswer {
    /// Its number.
    node: u32,
    /// Its address, to which other nodes connect.
    address: String,
    /// `leading`, `following`, `witnessing`, `copying` or `joining`.
    role: Option<&'static str>,
    /// Whether the leader has its reports of the last seconds.
    connected: bool,
    /// Milliseconds since its last report; null: there was none since the leader's process started.
    silent_ms: Option<u64>,
    /// The id of its replica; null: it has none.
    replica: Option<String>,
    /// Whether its replica counts for a majority.
    votes: bool,
    /// Changes in the log of the leader that the replica has not confirmed.
    lag: Option<u64>,
    /// Number of the last change that its files have.
    applied: Option<u64>,
    /// Its version of mqcore.
    version: Option<String>,
    /// Its clock minus the clock of the leader, in milliseconds.
    clock_offset_ms: Option<i64>,
    /// For how long it has done nothing, in milliseconds.
    stalled_ms: u64,
    /// The nodes whose reports it has received in the last seconds.
    connected_to: Vec<u32>,
    log_syncs: Option<LogSyncsAnswer>,
}

/// Syncs of the log of a node.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogSyncsAnswer {
    /// Syncs since its process started.
    count: u64,
    /// Their time in microseconds.
    total_us: u64,
    /// Mean time of those in the last 10 to 20 seconds, in microseconds; 0: there was none.
    mean_us: u64,
    /// The longest of them, in microseconds.
    longest_us: u64,
}

#[utoipa::path(
    get,
    path = "/cluster",
    tag = "health",
    responses(
        (status = 200, description = "The cluster, as its leader sees it", body = ClusterAnswer),
        (status = 404, description = "The broker does not belong to a cluster", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>) -> Response {
    match &admin.hub.cluster {
        Some(latest) => Json(describe(&latest.get())).into_response(),
        None => error(StatusCode::NOT_FOUND, "no-cluster", "this broker does not belong to a cluster"),
    }
}

fn describe(status: &MemberStatus) -> ClusterAnswer {
    ClusterAnswer {
        cluster: status.cluster.clone(),
        leader: status.node,
        term: status.term,
        committed: status.committed,
        applied: status.applied,
        changing: status.changing,
        spare_nodes: status.spare_nodes(),
        leader_changes: status.leader_changes,
        log_entries: status.log_entries,
        log_bytes: status.log_bytes,
        nodes: status.nodes().into_iter().map(describe_node).collect(),
    }
}

fn describe_node(node: NodeView) -> ClusterNodeAnswer {
    ClusterNodeAnswer {
        node: node.node,
        address: node.address,
        role: node.role.map(MemberRole::as_str),
        connected: node.connected,
        silent_ms: node.silent_ms,
        replica: node.replica,
        votes: node.votes,
        lag: node.lag,
        applied: node.applied,
        version: node.version,
        clock_offset_ms: node.clock_offset_ms,
        stalled_ms: node.stalled_ms,
        connected_to: node.connected_to,
        log_syncs: node.log_syncs.map(describe_syncs),
    }
}

fn describe_syncs(syncs: LogSyncs) -> LogSyncsAnswer {
    let LogSyncs { count, total_us, mean_us, longest_us } = syncs;
    LogSyncsAnswer { count, total_us, mean_us, longest_us }
}
