//! The status of a member, as users see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The thread of a member that has shown no status for so long hangs, most likely in its disk.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// A member that has shown no status for so long does not take part: several times as long as the others wait for a leader.
const SILENT_AFTER: Duration = Duration::from_secs(5);

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
    /// It keeps the log for the others and votes, and has no files of a broker.
    Witnessing,
    /// It leads, and its files are up to date: the broker runs here.
    Leading,
}

impl MemberRole {
    /// Its name, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Copying => "copying",
            Self::Following => "following",
            Self::Witnessing => "witnessing",
            Self::Leading => "leading",
        }
    }
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
    /// Index of the last entry that the leader knows it to have. Only the leader knows.
    #[serde(default)]
    pub matched: Option<u64>,
    /// Entries of the leader's log after that one. Only the leader knows.
    #[serde(default)]
    pub lag: Option<u64>,
}

/// Syncs of a member's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSyncs {
    /// Syncs since the process started.
    pub count: u64,
    /// Their time, in microseconds.
    pub total_us: u64,
    /// Mean time of those in the last 10 to 20 seconds, in microseconds. 0: there was none.
    pub mean_us: u64,
    /// The longest of them.
    pub longest_us: u64,
}

/// A member's report about itself, for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberReport {
    /// Its clock when the report was sent, in Unix milliseconds.
    pub sent_ms: u64,
    /// Its clock when its thread made the report. A thread that hangs in its disk makes no new one.
    pub made_ms: u64,
    /// Its role.
    pub role: MemberRole,
    /// Index of the last entry whose changes its files have.
    pub applied: u64,
    /// Syncs of its log.
    pub log_syncs: LogSyncs,
    /// The nodes whose reports it has received in the last seconds.
    pub connected_to: Vec<u32>,
    /// Why it cannot take part at the moment.
    #[serde(default)]
    pub problem: Option<String>,
}

/// Another node, as a member knows it from connections between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    /// Its number.
    pub node: u32,
    /// Its address, to which members connect.
    pub address: String,
    /// Whether it has sent something in the last seconds.
    pub connected: bool,
    /// Milliseconds since its last report. `None`: there was none since the process started.
    pub silent_ms: Option<u64>,
    /// Its version of mqcore.
    pub version: Option<String>,
    /// Its clock minus the clock of this node, in milliseconds, as far as delays of the network let this be known.
    pub clock_offset_ms: Option<i64>,
    /// For how long its thread had done nothing when it sent its last report, in milliseconds.
    pub stalled_ms: u64,
    /// Its last report. `None`: there was none, or an earlier version sent it.
    pub report: Option<MemberReport>,
}

/// The status of a member. Members of other versions may send fewer fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// The address to which other members connect.
    pub address: String,
    /// Its clock, in Unix milliseconds.
    pub clock_ms: u64,
    /// Syncs of its log.
    pub log_syncs: LogSyncs,
    /// Entries that its log keeps.
    pub log_entries: u64,
    /// Bytes of the files of its log.
    pub log_bytes: u64,
    /// How often another leader than before was elected, as far as the node has noticed since its process started.
    pub leader_changes: u64,
    /// For how long the node has known no leader, in milliseconds. 0: it knows one.
    pub leaderless_ms: u64,
    /// The other nodes.
    pub peers: Vec<PeerStatus>,
}

/// The latest status of the member in this process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LatestStatus(Arc<Mutex<Shown>>);

#[derive(Debug)]
struct Shown {
    status: Arc<MemberStatus>,
    at: Instant,
}

impl Default for Shown {
    fn default() -> Self {
        Self { status: Arc::default(), at: Instant::now() }
    }
}

impl LatestStatus {
    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status.
    #[must_use]
    pub fn get(&self) -> Arc<MemberStatus> {
        Arc::clone(&self.lock().status)
    }

    /// Why the thread of the member does not work; `None`: it does.
    #[must_use]
    pub fn stall(&self) -> Option<String> {
        let shown = self.lock();
        if let Some(failure) = &shown.status.failure {
            return Some(format!("the node has failed: {failure}"));
        }
        let silent = shown.at.elapsed();
        (silent >= STALLED_AFTER)
            .then(|| format!("the node has done nothing for {} s; its disk may hang", silent.as_secs()))
    }

    /// Why another node may lead although this one does not know it; `None`: this node takes part. Shorter than a
    /// [stall](Self::stall): a member that may still be heard again should get no new clients.
    #[must_use]
    pub fn silence(&self) -> Option<String> {
        let silent = self.lock().at.elapsed();
        (silent >= SILENT_AFTER).then(|| {
            format!("the node has taken no part in its cluster for {} s; its disk may hang", silent.as_secs())
        })
    }

    pub(crate) fn set(&self, status: MemberStatus) {
        let status = Arc::new(status);
        *self.lock() = Shown { status, at: Instant::now() };
    }

    /// The thread works, and has no time for a new status.
    pub(crate) fn touch(&self) {
        self.lock().at = Instant::now();
    }
}

/// The system clock in Unix milliseconds.
pub(crate) fn clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_earlier_version_has_defaults() {
        let text = r#"{"cluster":"c","node":2,"role":"following","leader":1,"term":3,"committed":4,"applied":4,
            "replicas":[{"node":1,"replica":"1","votes":true}],"changing":false,"hears":[1],"version":"0.1.0","failure":null}"#;
        let status: MemberStatus = serde_json::from_str(text).unwrap();
        assert_eq!((status.node, status.role, status.clock_ms), (2, MemberRole::Following, 0));
        assert_eq!((status.replicas[0].lag, status.peers.len()), (None, 0));
    }

    #[test]
    fn a_member_stalls_when_it_fails_or_shows_nothing() {
        let latest = LatestStatus::default();
        assert_eq!(latest.stall(), None);
        latest.lock().at -= SILENT_AFTER;
        assert!(latest.silence().unwrap().contains("5 s"));
        assert_eq!(latest.stall(), None, "it may come back");
        latest.lock().at -= STALLED_AFTER;
        assert!(latest.stall().unwrap().contains("35 s"));
        latest.touch();
        assert_eq!((latest.stall(), latest.silence()), (None, None));
        latest.set(MemberStatus { failure: Some("no disk".to_owned()), ..MemberStatus::default() });
        assert_eq!(latest.stall().unwrap(), "the node has failed: no disk");
    }
}
