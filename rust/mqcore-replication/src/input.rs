//! Inputs of a member's thread.

use std::collections::BTreeMap;
use std::io;

use mqcore_consensus::message::ReplicaMessage;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::shared_files::OpenedFiles;
use crate::status::MemberStatus;

/// A member's description of itself, for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberGreeting {
    /// The incarnation of its directory.
    pub incarnation: u64,
    /// The number of its replica's id; `None`: it belongs to no group yet.
    pub replica: Option<u64>,
    /// The first nodes of its group, and the incarnations of their directories. No other group has the same.
    pub founders: BTreeMap<u32, u64>,
    /// It has data of a broker without a cluster.
    pub has_data: bool,
    /// The numbers of all replicas that its group knows.
    pub known: Vec<u64>,
    /// Its files are not complete.
    #[serde(default)]
    pub is_copying: bool,
    /// The listeners of its broker: protocol and address, in the order of its configuration.
    pub listeners: Vec<(String, String)>,
    /// Its version of mqcore.
    pub version: String,
}

/// A complete copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Entries from here on must be repeated: the index of the last entry before the copy.
    pub begun: u64,
    /// The files are complete when all entries up to this index are repeated.
    pub complete: u64,
}

/// An input of the member's thread.
#[derive(Debug)]
pub(crate) enum Input {
    /// The broker has operations to propose.
    Proposals,
    /// A message of a replica of this group.
    Message(u64, Box<ReplicaMessage>),
    Greeting(u32, Box<MemberGreeting>),
    /// A new member wants a copy of the files.
    OpenFiles(oneshot::Sender<io::Result<OpenedFiles>>),
    /// It wants to know up to which entry it has to repeat.
    Applied(oneshot::Sender<u64>),
    /// The copy of another member's files has ended.
    Copied(io::Result<Copied>),
    /// All changes up to a point of the log are durable.
    Synced(io::Result<u64>),
    Status(oneshot::Sender<MemberStatus>),
    /// The broker stops: another member should lead.
    Resign,
}
