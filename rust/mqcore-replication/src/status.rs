//! The status of a member, as users see it.

use serde::{Deserialize, Serialize};

/// The role of a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// It waits for the other nodes, to begin or to find the group.
    #[default]
    Joining,
    /// Its files are being copied from the leader.
    Copying,
    /// It follows a leader, or looks for one.
    Following,
    /// It leads, and its files are up to date: the broker runs here.
    Leading,
}

/// One replica of the group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its node.
    pub node: u32,
    /// Its id.
    pub replica: String,
    /// Whether it votes.
    pub votes: bool,
}

/// The status of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name of the cluster.
    pub cluster: String,
    /// The node.
    pub node: u32,
    /// Its role.
    pub role: MemberRole,
    /// The node that leads, if it is known.
    pub leader: Option<u32>,
    /// The term of the algorithm: it grows with each election.
    pub term: u64,
    /// Index of the last entry that a majority has.
    pub committed: u64,
    /// Index of the last entry whose changes the files of this node have.
    pub applied: u64,
    /// The replicas of the group.
    pub replicas: Vec<ReplicaStatus>,
    /// A change of the replicas is not complete: until then, the replicas before it are needed for a majority, too.
    pub changing: bool,
    /// The nodes that this node hears.
    pub hears: Vec<u32>,
    /// The version of mqcore.
    pub version: String,
    /// Why the member cannot take part at the moment. It tries again by itself.
    #[serde(default)]
    pub problem: Option<String>,
    /// Why the member has failed.
    pub failure: Option<String>,
}
