//! One finding.

use std::time::Duration;

/// How bad it is. Higher is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// An operator chose it, and may have forgotten it.
    Info,
    /// Messages wait, or are rejected.
    Warning,
    /// Messages can be lost or cannot be accepted, or code hangs.
    Critical,
}

impl Severity {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FindingKind {
    /// A journal has lost records.
    RecordsLost,
    /// A journal cannot write, or its disk is nearly full.
    DiskFull,
    /// A delivery handler does not answer.
    BlockedHandler,
    /// A queue names a delivery handler that is not registered.
    MissingHandler,
    /// A delivery handler raises, or answers too late.
    FailingHandler,
    /// Messages wait, and no client consumes them.
    NoConsumer,
    /// Messages wait because consumers are slower than producers.
    SlowConsumer,
    /// Many messages were dead-lettered.
    DeadLetters,
    /// Messages or connections are rejected because of a limit.
    LimitReached,
    /// A queue is paused.
    PausedQueue,
    /// Another broker is not connected.
    NodeDown,
    /// The system clock was set, or the machine slept.
    ClockJump,
    /// The archive of the history is behind.
    ArchiveLag,
    /// The continuous backup fails or is late.
    BackupLag,
    /// A certificate expires soon.
    CertificateExpiry,
    /// A node of the cluster is not connected.
    ClusterNodeDown,
    /// A node of the cluster cannot take part: its disk is full, fails, or is damaged.
    ClusterNodeFailing,
    /// A replica of the cluster does not count for a majority.
    ClusterNoVote,
    /// A replica of the cluster lacks many changes.
    ClusterLag,
    /// The log of a node of the cluster is slow to sync.
    ClusterSlowSync,
    /// The clocks of nodes of the cluster differ.
    ClusterClock,
    /// Nodes of the cluster run different versions.
    ClusterVersions,
}

impl FindingKind {
    pub(crate) const ALL: [Self; 22] = [
        Self::RecordsLost,
        Self::DiskFull,
        Self::BlockedHandler,
        Self::MissingHandler,
        Self::FailingHandler,
        Self::NoConsumer,
        Self::SlowConsumer,
        Self::DeadLetters,
        Self::LimitReached,
        Self::PausedQueue,
        Self::NodeDown,
        Self::ClockJump,
        Self::ArchiveLag,
        Self::BackupLag,
        Self::CertificateExpiry,
        Self::ClusterNodeDown,
        Self::ClusterNodeFailing,
        Self::ClusterNoVote,
        Self::ClusterLag,
        Self::ClusterSlowSync,
        Self::ClusterClock,
        Self::ClusterVersions,
    ];

    /// The name on admin pages, in metrics and in the output of the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RecordsLost => "records-lost",
            Self::DiskFull => "disk-full",
            Self::BlockedHandler => "blocked-handler",
            Self::MissingHandler => "missing-handler",
            Self::FailingHandler => "failing-handler",
            Self::NoConsumer => "no-consumer",
            Self::SlowConsumer => "slow-consumer",
            Self::DeadLetters => "dead-letters",
            Self::LimitReached => "limit-reached",
            Self::PausedQueue => "paused-queue",
            Self::NodeDown => "node-down",
            Self::ClockJump => "clock-jump",
            Self::ArchiveLag => "archive-lag",
            Self::BackupLag => "backup-lag",
            Self::CertificateExpiry => "certificate-expiry",
            Self::ClusterNodeDown => "cluster-node-down",
            Self::ClusterNodeFailing => "cluster-node-failing",
            Self::ClusterNoVote => "cluster-no-vote",
            Self::ClusterLag => "cluster-lag",
            Self::ClusterSlowSync => "cluster-slow-sync",
            Self::ClusterClock => "cluster-clock",
            Self::ClusterVersions => "cluster-versions",
        }
    }

    /// For how long it must hold before it is reported: all of this happens for a moment in normal operation.
    pub(crate) fn grace(self) -> Duration {
        match self {
            Self::NoConsumer | Self::SlowConsumer | Self::BlockedHandler => Duration::from_secs(3),
            Self::NodeDown => Duration::from_secs(2),
            // A node that starts reports within seconds. A small copy of all files takes less than a minute.
            Self::ClusterNodeDown | Self::ClusterClock => Duration::from_secs(5),
            Self::ClusterLag | Self::ClusterVersions => Duration::from_secs(10),
            Self::ClusterNoVote => Duration::from_secs(60),
            _ => Duration::ZERO,
        }
    }

    /// For how long it is reported after it was last seen, so that a person can read it.
    pub(crate) fn linger(self) -> Duration {
        match self {
            Self::ClockJump => Duration::from_secs(600),
            Self::LimitReached => Duration::from_secs(10),
            _ => Duration::ZERO,
        }
    }
}

/// Something that holds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: FindingKind,
    pub(crate) severity: Severity,
    /// The object with the problem, such as `queue orders/1001`.
    pub(crate) subject: String,
    /// A sentence with the numbers.
    pub(crate) cause: String,
    /// The action that solves it.
    pub(crate) remedy: String,
}
