//! Inputs of a member's thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::mpsc::SyncSender;

use mqcore_consensus::message::ReplicaMessage;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::shared_files::OpenedFiles;
use crate::status::{MemberReport, MemberStatus};

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
    /// Its disk has room for the work of a leader.
    #[serde(default)]
    pub has_space: bool,
    /// It keeps the log, and no files of a broker.
    #[serde(default)]
    pub is_witness: bool,
    /// It leads its group.
    #[serde(default)]
    pub is_leading: bool,
    /// The listeners of its broker: protocol and address, in the order of its configuration.
    pub listeners: Vec<(String, String)>,
    /// Its version of mqcore.
    pub version: String,
    /// Its report about itself. `None`: an earlier version has none.
    #[serde(default)]
    pub report: Option<MemberReport>,
}

/// A complete copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Entries from here on must be repeated: the index of the last entry before the copy.
    pub begun: u64,
    /// The files are complete when all entries up to this index are repeated.
    pub complete: u64,
}

/// A file that does not have the bytes that were written into it, as its reader found.
#[derive(Debug)]
pub(crate) struct FoundDamage {
    /// Its name in the data directory.
    pub(crate) name: String,
    pub(crate) what: String,
    /// The way to the reader that waits for the scope. `None`: no reader waits.
    pub(crate) answer: Option<SyncSender<DamageScope>>,
}

/// The members that have the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DamageScope {
    /// Other members have another file: this one gets a copy.
    Local,
    /// No other member has a better file.
    AllMembers,
}

/// A file between two entries of the log.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    /// Index of the last entry that is carried out.
    pub(crate) index: u64,
    /// `None`: there is no such file.
    pub(crate) file: Option<File>,
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
    /// The number of that copy: another one may have begun since then.
    Copied(u64, io::Result<Copied>),
    /// The sync of the files with this number has ended.
    Synced(u64, io::Result<()>),
    Status(oneshot::Sender<MemberStatus>),
    /// A member compares a file of its own with that of others. The answer is `None` if the files of this one are not complete.
    OpenFile(String, oneshot::Sender<io::Result<Option<OpenedFile>>>),
    /// A file of this member is damaged.
    Damaged(FoundDamage),
    /// The file was compared with that of other members.
    DamageCompared(FoundDamage, DamageScope),
    /// The log of this member is damaged.
    LogDamaged(String),
    /// The broker has opened all journals and found no damage, so that others may copy the files.
    Opened,
    /// An operator wants this node to lead. The answer is why it cannot.
    HandOver(u32, oneshot::Sender<Result<(), String>>),
    /// The broker stops: another member should lead.
    Resign,
}
