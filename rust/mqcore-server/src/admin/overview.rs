//! `GET /overview`: listeners, queues, topics, routers, clients and other brokers; `GET /errors`: recent failed requests.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{
    ClientInformation, QueueInformation, ShardStats, TopicInformation, TopicStats,
};
use mqcore_journal::recovery::RecordLoss;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::{CountersAnswer, ErrorAnswer};
use crate::admin::parameters::LimitParameter;
use crate::admin::request::{Admin, list_limit, look};
use crate::config::address::Listening;
use crate::net::tls::ListenerCertificate;
use crate::stats::counters::ArchiveLag;
use crate::stats::failures::RequestFailure;
use crate::stats::snapshot;
use crate::stats::tasks::BackupLag;
use crate::storage::loss::Loss;

/// Asks no shard, so it answers even while shards are stuck.
#[utoipa::path(
    get,
    path = "/errors",
    tag = "health",
    params(LimitParameter),
    responses(
        (status = 200, description = "Recent failed requests whose clients received only a number", body = ErrorsAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn errors_page(State(admin): State<Admin>, uri: Uri) -> Response {
    match list_limit(&uri) {
        Ok(limit) => {
            let errors = admin.hub.failures.latest(limit).into_iter().map(describe_failure).collect();
            Json(ErrorsAnswer { errors, limit }).into_response()
        }
        Err(response) => response,
    }
}

/// Recent failed requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorsAnswer {
    /// The latest ones first.
    errors: Vec<FailureAnswer>,
    limit: usize,
}

/// A failed request whose client received only a number.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailureAnswer {
    /// The number: 20 digits of the time in UTC, and four characters.
    id: String,
    /// The id of the request as the client wrote it.
    request: String,
    /// The error and how to fix it.
    why: String,
    /// Time in Unix milliseconds.
    at_ms: u64,
    /// The id of the client.
    client: String,
    /// The number of its connection.
    connection: u64,
    protocol: &'static str,
}

/// The broker and its contents.
#[derive(Serialize, ToSchema)]
pub(crate) struct OverviewAnswer {
    version: &'static str,
    /// The number of its process.
    pid: u32,
    /// The broker's time in Unix milliseconds.
    now_ms: u64,
    uptime_seconds: f64,
    shards: usize,
    /// Shards that reject durable messages, because their disk is full or failed.
    shards_rejecting_messages: Vec<usize>,
    /// Lost records of journals.
    losses: Vec<LossAnswer>,
    queues_without_handler: Vec<QueueWithoutHandler>,
    /// Null if the broker archives nothing.
    archive: Option<ArchiveAnswer>,
    /// Null if the broker makes no restore points.
    backup: Option<BackupAnswer>,
    listeners: Vec<ListenerAnswer>,
    certificates: Vec<CertificateAnswer>,
    nodes: Vec<NodeAnswer>,
    totals: OverviewTotals,
    /// The first `limit` queues by name; `/queues` sorts, filters and pages them.
    queues: Vec<OverviewQueue>,
    topics: Vec<TopicAnswer>,
    routers: Vec<RouterAnswer>,
    /// The first `limit` clients by id; `/connections` filters and pages them.
    clients: Vec<OverviewClient>,
    limit: usize,
}

/// Records that a journal has lost.
#[derive(Serialize, ToSchema)]
pub(crate) struct LossAnswer {
    journal: String,
    /// The number of the segment; null if the whole journal is affected.
    segment: Option<u32>,
    cause: &'static str,
    /// Number of lost records.
    records: u64,
    /// Whether `records` is exact, and not a minimum.
    exact: bool,
    /// The numbers of the messages among which some are lost.
    messages: Option<LostMessages>,
    text: String,
}

/// Numbers of messages.
#[derive(Serialize, ToSchema)]
pub(crate) struct LostMessages {
    first: u64,
    last: u64,
}

/// A queue whose delivery handler is not registered.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueWithoutHandler {
    queue: String,
    missing_handler: String,
}

/// Whether the broker accepts work.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReadyAnswer {
    pub(super) status: &'static str,
    /// Queues whose handlers are not registered. They neither take nor deliver messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) queues_without_handler: Vec<QueueWithoutHandler>,
    /// The archive, while it lags behind the journals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) archive: Option<ArchiveAnswer>,
    /// The continuous backup, while it fails or is late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<BackupAnswer>,
}

/// The continuous backup.
#[derive(Serialize, ToSchema)]
pub(crate) struct BackupAnswer {
    /// `up-to-date`, `lagging` or `failing`.
    state: &'static str,
    /// The latest moment that can be restored, in Unix milliseconds; null if there is none since the start.
    latest_ms: Option<u64>,
    /// Time since then, or since the start.
    age_seconds: f64,
    /// Bytes of the current upload that are done; null if there is none.
    uploaded_bytes: Option<u64>,
    /// Bytes of the current upload; null if there is none.
    upload_bytes: Option<u64>,
    /// The error of the last attempt; null unless it fails.
    error: Option<String>,
    /// Since when all attempts have failed, in Unix milliseconds; null unless it fails.
    failing_since_ms: Option<u64>,
}

/// How far the archive is behind the journals.
#[derive(Serialize, ToSchema)]
pub(crate) struct ArchiveAnswer {
    /// `up-to-date`, `lagging` or `failing`.
    state: &'static str,
    /// Events of the history that are not archived.
    pending_notes: u64,
    /// Age of the oldest of them.
    waiting_seconds: f64,
    /// The error of the last attempt; null unless it fails.
    error: Option<String>,
    /// Since when all attempts have failed, in Unix milliseconds; null unless it fails.
    failing_since_ms: Option<u64>,
}

/// An open listener.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListenerAnswer {
    protocol: &'static str,
    address: String,
    /// The URL for clients.
    url: String,
}

/// The certificate of a listener.
#[derive(Serialize, ToSchema)]
pub(crate) struct CertificateAnswer {
    listener: String,
    subject: String,
    names: Vec<String>,
    fingerprint: String,
    /// Its end in Unix seconds.
    not_after: u64,
    /// Negative if it has expired.
    expires_in_seconds: i64,
}

/// Another broker.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodeAnswer {
    id: String,
    name: String,
    host: String,
    /// `upstream` or `downstream`.
    role: &'static str,
    connected: bool,
    /// Milliseconds since the link was established.
    lifetime_ms: u64,
}

/// Totals of the broker.
#[derive(Serialize, ToSchema)]
pub(crate) struct OverviewTotals {
    channels: u64,
    queues: u64,
    clients: u64,
    /// Messages that a consumer could get now.
    ready: u64,
    delayed: u64,
    in_flight: u64,
    /// Messages that wait for a handler to decide their admission.
    undecided: u64,
    /// Bytes of stored and unsettled messages.
    memory_bytes: u64,
    /// Commands that the broker refused.
    commands_refused: u64,
    messages: CountersAnswer,
    topics: u64,
    routers: u64,
    topic_messages: TopicCountersAnswer,
}

/// A queue in the overview.
#[derive(Serialize, ToSchema)]
pub(crate) struct OverviewQueue {
    queue: String,
    /// How it delivers.
    status: &'static str,
    tag: Option<String>,
    /// Stored messages of high priority.
    high_priority: u64,
    /// The other stored messages.
    normal: u64,
    missing_handler: Option<String>,
    delayed: u64,
    /// When the first delayed message is delivered, in Unix milliseconds; 0: there is none.
    next_attempt_ms: u64,
    in_flight: u64,
    undecided: u64,
    memory_bytes: u64,
    messages: CountersAnswer,
}

/// A topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopicAnswer {
    topic: String,
    subscribers: u32,
    /// Queues that are bound to it.
    queues: u32,
    messages: TopicCountersAnswer,
}

/// Messages of topics since the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopicCountersAnswer {
    published: u64,
    published_bytes: u64,
    /// Deliveries to subscribers.
    delivered: u64,
    /// Copies for bound queues.
    copied: u64,
    /// By reason: `no-consumer` and `slow`.
    dropped: BTreeMap<&'static str, u64>,
}

/// A router.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouterAnswer {
    router: String,
    /// How it chooses: `distribute`, `only-first` or `round-robin`.
    method: &'static str,
    enabled: bool,
    bindings: Vec<BindingAnswer>,
    messages: RouterCountersAnswer,
}

/// A binding of a router.
#[derive(Serialize, ToSchema)]
pub(crate) struct BindingAnswer {
    name: String,
    target: String,
    priority: i32,
    /// The answer that its receiver gives: `none`, `acknowledge` or `response`.
    interaction: &'static str,
    /// Messages that the target accepted.
    taken: u64,
    /// Messages that it rejected.
    refused: u64,
}

/// Messages of a router since the start.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouterCountersAnswer {
    received: u64,
    routed: u64,
    errors: u64,
    /// By reason: `no-consumer`.
    dropped: BTreeMap<&'static str, u64>,
}

/// A client in the overview.
#[derive(Serialize, ToSchema)]
pub(crate) struct OverviewClient {
    id: String,
    name: Option<String>,
    r#type: Option<String>,
    /// The number of its connection.
    connection: u64,
    online_ms: u64,
}

fn describe_failure(failure: RequestFailure) -> FailureAnswer {
    FailureAnswer {
        id: failure.error,
        request: failure.request,
        why: failure.why,
        at_ms: failure.at.0,
        client: failure.client,
        connection: failure.connection.0,
        protocol: failure.protocol,
    }
}

#[utoipa::path(
    get,
    path = "/overview",
    tag = "health",
    params(LimitParameter),
    responses(
        (status = 200, description = "Listeners, queues, topics, routers, clients and other brokers", body = OverviewAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn overview(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit,
        Err(response) => return response,
    };
    match look(&admin, limit).await {
        Ok(snapshot) => Json(describe(&admin, snapshot, limit)).into_response(),
        Err(response) => response,
    }
}

fn describe(admin: &Admin, mut snapshot: ShardStats, limit: usize) -> OverviewAnswer {
    let (counts, totals) = (snapshot.counts, snapshot.totals);
    snapshot.queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    snapshot.topics.sort_unstable_by(|left, right| left.topic.cmp(&right.topic));
    snapshot.clients.sort_unstable_by(|left, right| left.client.id.cmp(&right.client.id));
    snapshot.without_handler.sort_unstable();
    snapshot.routers.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let without_handler = snapshot.without_handler.iter().take(limit);
    let routers = snapshot.routers.iter().take(limit);
    let losses = &admin.hub.counters.journal.losses();
    let archive = admin.hub.counters.archive.lag(admin.hub.clock.now());
    OverviewAnswer {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        now_ms: admin.hub.clock.system_ms(),
        uptime_seconds: admin.started.elapsed().as_secs_f64(),
        shards: admin.hub.shards.len(),
        shards_rejecting_messages: admin.hub.counters.journal.refusing_shards(),
        losses: losses.iter().map(describe_loss).collect(),
        queues_without_handler: without_handler.map(describe_without_handler).collect(),
        archive: archive.as_ref().map(describe_archive),
        backup: admin.hub.counters.backup.lag(admin.hub.clock.now()).as_ref().map(describe_backup),
        listeners: admin.listeners.iter().map(describe_listener).collect(),
        certificates: admin.hub.tls.certificates().into_iter().map(describe_certificate).collect(),
        nodes: snapshot.nodes.iter().map(describe_node).collect(),
        totals: OverviewTotals {
            channels: counts.channels,
            queues: counts.queues,
            clients: counts.clients,
            ready: totals.ready,
            delayed: totals.delayed,
            in_flight: totals.in_flight,
            undecided: totals.undecided,
            memory_bytes: totals.memory_bytes,
            commands_refused: snapshot.refused,
            messages: (&snapshot::queue_stats(&snapshot)).into(),
            topics: counts.topics,
            routers: counts.routers,
            topic_messages: describe_topic_stats(&snapshot.topic_totals),
        },
        queues: snapshot.queues.iter().take(limit).map(describe_queue).collect(),
        topics: snapshot.topics.iter().take(limit).map(describe_topic).collect(),
        routers: routers.map(|router| describe_router(router, &snapshot)).collect(),
        clients: snapshot.clients.iter().take(limit).map(describe_client).collect(),
        limit,
    }
}

pub(super) fn describe_without_handler((queue, handler): &(QueueAddress, Box<str>)) -> QueueWithoutHandler {
    QueueWithoutHandler { queue: queue.to_string(), missing_handler: handler.to_string() }
}

fn describe_listener(listening: &Listening) -> ListenerAnswer {
    ListenerAnswer {
        protocol: listening.protocol.as_str(),
        address: listening.address.to_string(),
        url: listening.url(),
    }
}

fn describe_client(information: &ClientInformation) -> OverviewClient {
    let client = &information.client;
    OverviewClient {
        id: client.id.to_string(),
        name: client.name.as_deref().map(Into::into),
        r#type: client.kind.as_deref().map(Into::into),
        connection: client.connection.0,
        online_ms: information.online_ms,
    }
}

fn describe_node(node: &NodeInformation) -> NodeAnswer {
    NodeAnswer {
        id: node.id.to_string(),
        name: node.name.to_string(),
        host: node.host.to_string(),
        role: if node.downstream { "downstream" } else { "upstream" },
        connected: node.connected,
        lifetime_ms: node.lifetime_ms,
    }
}

pub(super) fn describe_archive(lag: &ArchiveLag) -> ArchiveAnswer {
    let state = match lag {
        ArchiveLag { failure: Some(_), .. } => "failing",
        ArchiveLag { is_lagging: true, .. } => "lagging",
        _ => "up-to-date",
    };
    ArchiveAnswer {
        state,
        pending_notes: lag.pending_notes,
        waiting_seconds: lag.waiting_ms as f64 / 1000.0,
        error: lag.failure.as_ref().map(|failure| failure.error.clone()),
        failing_since_ms: lag.failure.as_ref().map(|failure| failure.since.0),
    }
}

pub(super) fn describe_backup(lag: &BackupLag) -> BackupAnswer {
    let state = match lag {
        BackupLag { failure: Some(_), .. } => "failing",
        BackupLag { is_lagging: true, .. } => "lagging",
        _ => "up-to-date",
    };
    BackupAnswer {
        state,
        latest_ms: lag.stored_ms,
        age_seconds: lag.age_ms as f64 / 1000.0,
        uploaded_bytes: lag.upload.map(|(done, _)| done),
        upload_bytes: lag.upload.map(|(_, total)| total),
        error: lag.failure.as_ref().map(|failure| failure.error.clone()),
        failing_since_ms: lag.failure.as_ref().map(|failure| failure.since.0),
    }
}

fn describe_loss(loss: &Loss) -> LossAnswer {
    let (records, exact) = match loss.records {
        RecordLoss::Exactly(count) => (count, true),
        RecordLoss::AtLeast(count) => (count, false),
    };
    LossAnswer {
        journal: loss.journal.to_string(),
        segment: (loss.segment > 0).then_some(loss.segment),
        cause: loss.cause.as_str(),
        records,
        exact,
        messages: loss.messages.map(|(from, to)| LostMessages { first: from, last: to - 1 }),
        text: loss.text.to_string(),
    }
}

fn describe_certificate(certificate: ListenerCertificate) -> CertificateAnswer {
    CertificateAnswer {
        listener: certificate.url,
        subject: certificate.subject,
        names: certificate.names,
        fingerprint: certificate.fingerprint,
        not_after: certificate.not_after,
        expires_in_seconds: certificate.expires_in,
    }
}

fn describe_queue(queue: &QueueInformation) -> OverviewQueue {
    OverviewQueue {
        queue: queue.queue.to_string(),
        status: queue.options.status.as_str(),
        tag: queue.options.tag.as_deref().map(Into::into),
        high_priority: queue.high_priority,
        normal: queue.normal,
        missing_handler: queue.missing_handler.as_deref().map(Into::into),
        delayed: queue.delayed,
        next_attempt_ms: queue.next_attempt_ms,
        in_flight: queue.in_flight,
        undecided: queue.undecided,
        memory_bytes: queue.memory_bytes,
        messages: (&queue.stats).into(),
    }
}

fn describe_router(router: &RouterDefinition, snapshot: &ShardStats) -> RouterAnswer {
    let counts = snapshot::router_counts(snapshot, &router.name);
    let bindings = router.bindings.iter().map(|binding| {
        let found = counts.bindings.iter().find(|(name, _)| *name == binding.name);
        let (taken, refused) = found.map_or((0, 0), |(_, counts)| (counts.taken, counts.refused));
        BindingAnswer {
            name: binding.name.to_string(),
            target: binding.target.to_string(),
            priority: binding.priority,
            interaction: binding.interaction.as_str(),
            taken,
            refused,
        }
    });
    RouterAnswer {
        router: router.name.to_string(),
        method: router.method.as_str(),
        enabled: router.enabled,
        bindings: bindings.collect(),
        messages: RouterCountersAnswer {
            received: counts.received,
            routed: counts.routed,
            errors: counts.errors,
            dropped: BTreeMap::from([("no-consumer", counts.dropped_no_consumer)]),
        },
    }
}

fn describe_topic(topic: &TopicInformation) -> TopicAnswer {
    TopicAnswer {
        topic: topic.topic.to_string(),
        subscribers: topic.subscribers,
        queues: topic.queues,
        messages: describe_topic_stats(&topic.stats),
    }
}

fn describe_topic_stats(stats: &TopicStats) -> TopicCountersAnswer {
    TopicCountersAnswer {
        published: stats.published,
        published_bytes: stats.published_bytes,
        delivered: stats.delivered,
        copied: stats.copied,
        dropped: BTreeMap::from([("no-consumer", stats.dropped_no_consumer), ("slow", stats.dropped_slow)]),
    }
}
