//! The state that all tasks of one server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqcore_broker::model::client::{Client, Peer};
use mqcore_broker::model::id::ConnectionId;
use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::unsaved::UnsavedMemory;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_replication::status::LatestStatus;
use mqcore_session::any::{AnySession, SharedState};
use mqcore_session::protocol::Moment;
use mqcore_session::session::SessionConfig;
use mqcore_wire::codec::Limits;

use crate::attention::state::AttentionState;
use crate::authority::state::Authority;
use crate::extension::ExtensionPort;
use crate::net::guard::Guard;
use crate::net::input_budget::InputBudgets;
use crate::net::outbox::Outbox;
use crate::net::registry::Registry;
use crate::net::tls::Tls;
use crate::nodes::membership::Nodes;
use crate::runtime::clock::Clock;
use crate::runtime::shutdown::Shutdown;
use crate::runtime::spares::{SpareBytes, SpareCommands};
use crate::schedules::port::SchedulePort;
use crate::shard::inbox::ShardHandle;
use crate::spans::SpanBuffer;
use crate::stats::counters::Counters;
use crate::stats::failures::Failures;
use crate::stats::totals::TotalsHistory;
use crate::storage::backup::BackupDesk;

/// The shared state of one server. Lives as long as any of its tasks.
pub(crate) struct Hub {
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) failures: Failures,
    /// Findings for operators. Empty without an admin listener.
    pub(crate) attention: AttentionState,
    /// How the broker as a whole moved.
    pub(crate) totals: TotalsHistory,
    pub(crate) tls: Tls,
    pub(crate) registry: Registry,
    pub(crate) input: InputBudgets,
    pub(crate) authority: Authority,
    /// `None`: this broker has no links to others.
    pub(crate) nodes: Option<Nodes>,
    /// The status of this node of a cluster. `None`: the data is on this machine only.
    pub(crate) cluster: Option<LatestStatus>,
    pub(crate) shards: Box<[ShardHandle]>,
    /// Which of them owns a name.
    pub(crate) placement: Placement,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) session: SessionTerms,
    pub(crate) spare_commands: SpareCommands,
    pub(crate) spare_bytes: SpareBytes,
    /// The runtime on which tasks are started, also from threads outside it.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) backups: BackupDesk,
    /// Increases with every event; two equal readings mean that nothing happened in between.
    pub(crate) activity: AtomicU64,
    /// The store of limits.
    pub(crate) limiter: Arc<Limiter>,
    /// Memory of messages that are not saved.
    pub(crate) unsaved: Arc<UnsavedMemory>,
    /// State that the sessions of each protocol share.
    pub(crate) shared: SharedState,
    /// Status and options of queues that are created for jobs.
    pub(crate) job_queues: QueueChanges,
    /// Runs schedules and publishes their messages.
    pub(crate) schedules: SchedulePort,
    pub(crate) scheduling: Arc<Client>,
    pub(crate) guard: Guard,
    /// Handles the frames of vendor extensions.
    pub(crate) extensions: Option<Arc<dyn ExtensionPort>>,
    /// The destination of spans of traced messages; `None`: the broker makes none.
    pub(crate) spans: Option<Arc<SpanBuffer>>,
}

/// Settings of every session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionTerms {
    pub(crate) limits: Limits,
    pub(crate) login_bytes_max: u64,
    /// Maximum bytes of the answer to a list operation.
    pub(crate) answer_bytes_max: u32,
    pub(crate) handshake_timeout: Duration,
    pub(crate) ping_interval: Duration,
    pub(crate) pong_timeout: Duration,
}

impl Hub {
    /// The configuration of a new session. `must_log_in`: the peer needs credentials.
    pub(crate) fn session_config(
        &self,
        connection: ConnectionId,
        admin: bool,
        peer: Arc<Peer>,
        must_log_in: bool,
    ) -> SessionConfig {
        let limits = self.session.limits;
        let login_bytes_max = if must_log_in { self.session.login_bytes_max } else { limits.frame_bytes_max };
        SessionConfig {
            connection,
            shards: self.shards.len(),
            limits,
            login_bytes_max: u32::try_from(login_bytes_max).unwrap_or(u32::MAX),
            answer_bytes_max: self.session.answer_bytes_max,
            handshake_timeout: self.session.handshake_timeout,
            ping_interval: self.session.ping_interval,
            pong_timeout: self.session.pong_timeout,
            admin,
            peer,
            node: self.nodes.as_ref().map(|nodes| Arc::clone(&nodes.terms)),
        }
    }

    /// The session of a new connection.
    pub(crate) fn session(&self, outbox: &Outbox, config: SessionConfig) -> AnySession {
        let now = Moment { now: self.clock.now(), nanos: Nanos(self.clock.nanos()) };
        self.shared.open(&outbox.terms, config, now)
    }

    pub(crate) fn moved(&self) {
        self.activity.fetch_add(1, Ordering::SeqCst);
    }
}
