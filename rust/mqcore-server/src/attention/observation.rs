//! The state of the broker at one moment, as far as findings depend on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::stats::QueueSample;
use mqcore_broker::model::time::Timestamp;
use mqcore_replication::status::{LatestStatus, MemberStatus};

use crate::handler::HandlerLoad;
use crate::hub::Hub;
use crate::net::tls::ListenerCertificate;
use crate::stats::counters::ArchiveLag;
use crate::stats::tasks::BackupLag;
use crate::storage::loss::Loss;

/// The state at one moment.
pub(super) struct Observation {
    pub(super) now: Timestamp,
    /// The system clock minus the broker's clock, in milliseconds. It changes when the system clock is set.
    pub(super) clock_offset_ms: i64,
    /// Queues that have messages, moved some lately, or cannot work.
    pub(super) queues: Vec<QueueSample>,
    pub(super) nodes: Vec<NodeInformation>,
    /// The cluster, if the broker belongs to one.
    pub(super) cluster: Option<Arc<MemberStatus>>,
    pub(super) handlers: Vec<HandlerLoad>,
    pub(super) losses: Vec<Loss>,
    /// Shards whose journal rejects messages.
    pub(super) refusing_shards: Vec<usize>,
    pub(super) disk: Option<DiskSpace>,
    /// Rejections since the start because of the broker's limits for publishing and connecting.
    pub(super) publish_rejected: u64,
    pub(super) connect_rejected: u64,
    pub(super) archive: Option<ArchiveLag>,
    pub(super) backup: Option<BackupLag>,
    pub(super) certificates: Vec<ListenerCertificate>,
}

/// The space on the disk of the data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskSpace {
    pub(super) directory: PathBuf,
    pub(super) free: u64,
    pub(super) total: u64,
}

impl DiskSpace {
    #[cfg(target_os = "linux")]
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Self { directory: directory.into(), free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn of(_directory: &Path) -> Option<Self> {
        None
    }
}

impl Observation {
    /// The part that needs no answer of a shard.
    pub(super) fn of_server(hub: &Hub, handlers: Vec<HandlerLoad>, data_dir: Option<&Path>) -> Self {
        let now = hub.clock.now();
        let limits = &hub.counters.limits;
        Self {
            now,
            clock_offset_ms: hub.clock.system_ms() as i64 - now.0 as i64,
            queues: Vec::new(),
            nodes: Vec::new(),
            cluster: hub.cluster.as_ref().map(LatestStatus::get),
            handlers,
            losses: hub.counters.journal.losses(),
            refusing_shards: hub.counters.journal.refusing_shards(),
            disk: data_dir.and_then(DiskSpace::of),
            publish_rejected: limits.publish_refused.get(),
            connect_rejected: limits.connect_refused.get(),
            archive: hub.counters.archive.lag(now),
            backup: hub.counters.backup.lag(now),
            certificates: hub.tls.certificates(),
        }
    }
}
