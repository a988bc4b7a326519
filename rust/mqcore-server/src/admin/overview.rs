//! `GET /overview`: listeners, queues, topics, routers, clients and other brokers; `GET /errors`: recent failed requests.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{QueueInformation, ShardStats, TopicInformation, TopicStats};
use mqcore_journal::recovery::RecordLoss;
use serde_json::{Value, json};

use crate::admin::answers::{CountersAnswer, ErrorAnswer};
use crate::admin::parameters::LimitParameter;
use crate::admin::request::{Admin, list_limit, look};
use crate::net::tls::ListenerCertificate;
use crate::stats::counters::ArchiveLag;
use crate::stats::failures::RequestFailure;
use crate::stats::snapshot;
use crate::storage::loss::Loss;

/// Asks no shard, so it answers even while shards are stuck.
#[utoipa::path(
    get,
    path = "/errors",
    tag = "health",
    params(LimitParameter),
    responses(
        (status = 200, description = "Recent failed requests whose clients received only a number", content_type = "application/json", body = serde_json::Value),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn errors_page(State(admin): State<Admin>, uri: Uri) -> Response {
    match list_limit(&uri) {
        Ok(limit) => {
            let failures: Vec<Value> =
                admin.hub.failures.latest(limit).into_iter().map(describe_failure).collect();
            Json(json!({"errors": failures, "limit": limit})).into_response()
        }
        Err(response) => response,
    }
}

fn describe_failure(failure: RequestFailure) -> Value {
    json!({
        "id": failure.error,
        "request": failure.request,
        "why": failure.why,
        "at_ms": failure.at.0,
        "client": failure.client,
        "connection": failure.connection.0,
        "protocol": failure.protocol,
    })
}

#[utoipa::path(
    get,
    path = "/overview",
    tag = "health",
    params(LimitParameter),
    responses(
        (status = 200, description = "Listeners, queues, topics, routers, clients and other brokers", content_type = "application/json", body = serde_json::Value),
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

fn describe(admin: &Admin, mut snapshot: ShardStats, limit: usize) -> Value {
    let (counts, totals) = (snapshot.counts, snapshot.totals);
    snapshot.queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    snapshot.topics.sort_unstable_by(|left, right| left.topic.cmp(&right.topic));
    snapshot.clients.sort_unstable_by(|left, right| left.client.id.cmp(&right.client.id));
    let listeners: Vec<Value> = admin
        .listeners
        .iter()
        .map(|listening| {
            let (protocol, address) = (listening.protocol.as_str(), listening.address.to_string());
            json!({"protocol": protocol, "address": address, "url": listening.url()})
        })
        .collect();
    let certificates: Vec<Value> =
        admin.hub.tls.certificates().into_iter().map(describe_certificate).collect();
    let queues: Vec<Value> = snapshot.queues.iter().take(limit).map(describe_queue).collect();
    snapshot.without_handler.sort_unstable();
    let without_handler = snapshot.without_handler.iter().take(limit);
    let without_handler: Vec<Value> = without_handler
        .map(|(queue, handler)| json!({"queue": queue.to_string(), "missing_handler": handler}))
        .collect();
    let archive = admin.hub.counters.archive.lag(admin.hub.clock.now());
    snapshot.routers.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let routers: Vec<Value> =
        snapshot.routers.iter().take(limit).map(|router| describe_router(router, &snapshot)).collect();
    let topics: Vec<Value> = snapshot.topics.iter().take(limit).map(describe_topic).collect();
    let clients: Vec<Value> = snapshot
        .clients
        .iter()
        .take(limit)
        .map(|information| {
            let client = &information.client;
            json!({
                "id": client.id,
                "name": client.name,
                "type": client.kind,
                "connection": client.connection.0,
                "online_ms": information.online_ms,
            })
        })
        .collect();
    let nodes: Vec<Value> = snapshot
        .nodes
        .iter()
        .map(|node| {
            json!({
                "id": node.id,
                "name": node.name,
                "host": node.host,
                "role": if node.downstream { "downstream" } else { "upstream" },
                "connected": node.connected,
                "lifetime_ms": node.lifetime_ms,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "now_ms": admin.hub.clock.system_ms(),
        "uptime_seconds": admin.started.elapsed().as_secs_f64(),
        "shards": admin.hub.shards.len(),
        "shards_rejecting_messages": admin.hub.counters.journal.refusing_shards(),
        "losses": admin.hub.counters.journal.losses().iter().map(describe_loss).collect::<Vec<_>>(),
        "queues_without_handler": without_handler,
        "archive": archive.as_ref().map(describe_archive),
        "listeners": listeners,
        "certificates": certificates,
        "nodes": nodes,
        "totals": {
            "channels": counts.channels,
            "queues": counts.queues,
            "clients": counts.clients,
            "ready": totals.ready,
            "delayed": totals.delayed,
            "in_flight": totals.in_flight,
            "undecided": totals.undecided,
            "memory_bytes": totals.memory_bytes,
            "commands_refused": snapshot.refused,
            "messages": CountersAnswer::from(&snapshot::queue_stats(&snapshot)),
            "topics": counts.topics,
            "routers": counts.routers,
            "topic_messages": describe_topic_stats(&snapshot.topic_totals),
        },
        "queues": queues,
        "topics": topics,
        "routers": routers,
        "clients": clients,
        "limit": limit,
    })
}

pub(super) fn describe_archive(lag: &ArchiveLag) -> Value {
    let state = match lag {
        ArchiveLag { is_failing: true, .. } => "failing",
        ArchiveLag { is_lagging: true, .. } => "lagging",
        _ => "up-to-date",
    };
    json!({
        "state": state,
        "pending_notes": lag.pending_notes,
        "waiting_seconds": lag.waiting_ms as f64 / 1000.0,
    })
}

fn describe_loss(loss: &Loss) -> Value {
    let (records, is_exact) = match loss.records {
        RecordLoss::Exactly(count) => (count, true),
        RecordLoss::AtLeast(count) => (count, false),
    };
    json!({
        "journal": loss.journal,
        "segment": (loss.segment > 0).then_some(loss.segment),
        "cause": loss.cause.as_str(),
        "records": records,
        "exact": is_exact,
        "messages": loss.messages.map(|(from, to)| json!({"first": from, "last": to - 1})),
        "text": loss.text,
    })
}

fn describe_certificate(certificate: ListenerCertificate) -> Value {
    json!({
        "listener": certificate.url,
        "subject": certificate.subject,
        "names": certificate.names,
        "fingerprint": certificate.fingerprint,
        "not_after": certificate.not_after,
        "expires_in_seconds": certificate.expires_in,
    })
}

fn describe_queue(queue: &QueueInformation) -> Value {
    json!({
        "queue": queue.queue.to_string(),
        "status": queue.options.status.as_str(),
        "tag": queue.options.tag,
        "high_priority": queue.high_priority,
        "normal": queue.normal,
        "missing_handler": queue.missing_handler,
        "delayed": queue.delayed,
        "next_attempt_ms": queue.next_attempt_ms,
        "in_flight": queue.in_flight,
        "undecided": queue.undecided,
        "memory_bytes": queue.memory_bytes,
        "messages": CountersAnswer::from(&queue.stats),
    })
}

fn describe_router(router: &RouterDefinition, snapshot: &ShardStats) -> Value {
    let counts = snapshot::router_counts(snapshot, &router.name);
    let bindings: Vec<Value> = router
        .bindings
        .iter()
        .map(|binding| {
            let found = counts.bindings.iter().find(|(name, _)| *name == binding.name);
            let (taken, refused) = found.map_or((0, 0), |(_, counts)| (counts.taken, counts.refused));
            json!({
                "name": binding.name,
                "target": binding.target.to_string(),
                "priority": binding.priority,
                "interaction": binding.interaction.as_str(),
                "taken": taken,
                "refused": refused,
            })
        })
        .collect();
    json!({
        "router": router.name.as_str(),
        "method": router.method.as_str(),
        "enabled": router.enabled,
        "bindings": bindings,
        "messages": {
            "received": counts.received,
            "routed": counts.routed,
            "errors": counts.errors,
            "dropped": {"no-consumer": counts.dropped_no_consumer},
        },
    })
}

fn describe_topic(topic: &TopicInformation) -> Value {
    json!({
        "topic": topic.topic.to_string(),
        "subscribers": topic.subscribers,
        "queues": topic.queues,
        "messages": describe_topic_stats(&topic.stats),
    })
}

fn describe_topic_stats(stats: &TopicStats) -> Value {
    json!({
        "published": stats.published,
        "published_bytes": stats.published_bytes,
        "delivered": stats.delivered,
        "copied": stats.copied,
        "dropped": {"no-consumer": stats.dropped_no_consumer, "slow": stats.dropped_slow},
    })
}
