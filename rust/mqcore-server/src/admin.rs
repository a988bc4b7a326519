//! The admin side: health, metrics and an overview by HTTP, on a listener of its own.
//!
//! It runs on Tokio alone and asks shards only, so it answers also while a handler is stuck.

mod backup;
mod history;
mod schedules;
mod trace;

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mqcore_broker::model::client::{Peer, PeerCertificate};
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::stats::{
    DropReason, QueueInformation, QueueStats, ShardStats, TopicInformation, TopicStats,
};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::authority::{Denial, PageRequest, admit_request};
use crate::config::address::Listening;
use crate::hub::Hub;
use crate::net::tls::{self, ListenerCertificate, Secured, TlsEndpoint};
use crate::runtime::shutdown::TaskGuard;
use crate::server;
use crate::stats::failures::Failure;
use crate::stats::metrics;
use crate::stats::survey::{self, Totals};
use crate::storage::history::HistoryDir;

/// Connections at the same time at most; others wait.
const CONNECTIONS_MAX: usize = 64;

/// How long the head of a request may take, and an idle connection stay.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long shards may take to answer.
pub(crate) const SHARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Entries of each list of the overview: by default, and at most.
const LIST_LIMIT: (usize, usize) = (100, 10_000);

/// What every request may look at.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    /// `None`: there is no data directory.
    pub(crate) history: Option<Arc<HistoryDir>>,
    listeners: Arc<[Listening]>,
    started: Instant,
}

impl Admin {
    pub(crate) fn new(hub: &Arc<Hub>, listeners: Vec<Listening>, data_dir: Option<&Path>) -> Self {
        // The broker has just opened the directory itself, so whatever is wrong with it was said.
        let history = data_dir.and_then(|path| HistoryDir::open(path).ok()).map(Arc::new);
        Self { hub: Arc::clone(hub), history, listeners: listeners.into(), started: Instant::now() }
    }
}

/// Where the admin side is entered.
pub(crate) struct Door {
    pub(crate) socket: TcpListener,
    /// What it shows, if it speaks TLS.
    pub(crate) endpoint: Option<Arc<TlsEndpoint>>,
}

/// Serves until the server has ended: also while it drains, to say so.
pub(crate) async fn serve(door: Door, admin: Admin, alive: TaskGuard) {
    let shutdown = Arc::clone(&admin.hub.shutdown);
    let mut ended = pin!(shutdown.ended());
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let router = router(admin.clone());
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, door.socket.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut ended => break,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of descriptors, most likely: clients come first, so wait for some to be freed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let hub = Arc::clone(&admin.hub);
        let router = router.clone();
        let endpoint = door.endpoint.clone();
        let guard = admin.hub.shutdown.enter();
        tokio::spawn(async move {
            match endpoint {
                None => converse(stream, router.layer(caller(peer, None)), &hub).await,
                Some(endpoint) => {
                    if let Some((stream, certificate)) = enter(&hub, &endpoint, stream, peer).await {
                        converse(stream, router.layer(caller(peer, Some(certificate))), &hub).await;
                    }
                }
            }
            drop((place, guard));
        });
    }
    drop(alive);
}

/// Shakes hands, unless the server ends meanwhile.
async fn enter(hub: &Hub, endpoint: &TlsEndpoint, stream: TcpStream, peer: SocketAddr) -> Option<Secured> {
    hub.tls.handshakes.room().await;
    let place = hub.tls.handshakes.enter();
    tokio::select! {
        secured = tls::secure(hub, endpoint, stream, peer, &place, None) => secured,
        () = hub.shutdown.ended() => None,
    }
}

async fn converse<S>(stream: S, router: Router, hub: &Hub)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(16 * 1024);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::select! {
        // A request that breaks off harms only who sent it.
        _ = connection => {}
        () = hub.shutdown.ended() => {}
    }
}

/// Where a request comes from, and what is known of who sends it.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) SocketAddr, Arc<Peer>);

/// `certificate` is what a TLS handshake has brought, if there was one.
fn caller(address: SocketAddr, certificate: Option<Option<Arc<PeerCertificate>>>) -> Extension<Caller> {
    let peer = match certificate {
        Some(certificate) => tls::peer(address, certificate),
        None => Peer { address: Some(address.to_string().into()), ..Peer::default() },
    };
    Extension(Caller(address, Arc::new(peer)))
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/overview", get(overview))
        .route("/errors", get(errors_page))
        .route("/schedules", get(schedules::list))
        .route("/schedules/{id}", delete(schedules::end))
        .route("/backup", get(backup::download))
        .route("/history", get(history::answer))
        .route("/trace/{id}", get(trace::answer))
        .route("/authority/reload", post(reload_authority))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(admin.clone(), guard))
        .with_state(admin)
}

pub(crate) fn error(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({"error": {"code": code, "message": message}}))).into_response()
}

/// Stands before every page but the two that orchestrators look at, which say nothing but yes or no.
async fn guard(
    State(admin): State<Admin>,
    Extension(Caller(address, peer)): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = request.uri().path();
    if reads && matches!(page, "/livez" | "/readyz") {
        return next.run(request).await;
    }
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let wanted = PageRequest { authorization, page, changes: !reads };
    match admit_request(&admin.hub, address, peer, wanted).await {
        Ok(()) => next.run(request).await,
        Err(Denial::Forbidden) => {
            error(StatusCode::FORBIDDEN, "forbidden", "you are not allowed to administer this page")
        }
        Err(Denial::Unknown(refusal)) if refusal.is_temporary() => {
            error(StatusCode::TOO_MANY_REQUESTS, "busy", refusal.for_peer())
        }
        Err(Denial::Unknown(refusal)) => {
            let message = if reads { refusal.for_peer().to_owned() } else { how_to_get_a_token(&admin.hub) };
            let challenge = if reads { "Bearer, Basic realm=\"mqcore\"" } else { "Bearer" };
            let response = error(StatusCode::UNAUTHORIZED, "unauthorized", &message);
            ([(header::WWW_AUTHENTICATE, challenge)], response).into_response()
        }
    }
}

fn how_to_get_a_token(hub: &Hub) -> String {
    let place = match hub.authority.store() {
        Some(store) => format!("--store {}", store.path().display()),
        None => "--data-dir DIR, with a broker that is started with the same --data-dir".into(),
    };
    let lead = if hub.authority.has_tokens() {
        "this needs a token"
    } else {
        "this needs a token, and there is none yet"
    };
    format!(
        "{lead}, shown as 'Authorization: Bearer TOKEN'; make one: mqcore token create NAME --allow administer {place}"
    )
}

async fn reload_authority(State(admin): State<Admin>) -> Response {
    match server::reload_authority(&admin.hub, true).await {
        Ok(()) => Json(json!({"status": "reloaded"})).into_response(),
        Err(broken) => error(StatusCode::CONFLICT, "unreadable", &broken.to_string()),
    }
}

async fn unknown_path(uri: Uri) -> Response {
    let message = format!(
        "there is no {}; there are /livez, /readyz, /metrics, /overview, /errors, /schedules, /schedules/ID, /backup, /history, /trace/ID and /authority/reload",
        uri.path()
    );
    error(StatusCode::NOT_FOUND, "not-found", &message)
}

async fn unknown_method() -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "this page does not understand that method")
}

async fn livez() -> Json<Value> {
    Json(json!({"status": "live"}))
}

async fn readyz(State(admin): State<Admin>) -> Response {
    if !admin.hub.shutdown.is_running() {
        return error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server stops");
    }
    match tokio::time::timeout(SHARD_TIMEOUT, survey::ping(&admin.hub)).await {
        Ok(true) => Json(json!({"status": "ready"})).into_response(),
        Ok(false) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "a shard has stopped"),
        Err(_) => busy(),
    }
}

pub(crate) fn busy() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "busy", "a shard did not answer within a second")
}

/// What all shards know, unless one of them is too busy to say it.
async fn look(admin: &Admin) -> Result<ShardStats, Response> {
    tokio::time::timeout(SHARD_TIMEOUT, survey::survey(&admin.hub)).await.map_err(|_| busy())
}

async fn metrics_page(State(admin): State<Admin>, uri: Uri) -> Response {
    let per_queue = parameter(&uri, "queues").is_some_and(|value| value != "0");
    match look(&admin).await {
        Ok(survey) => {
            let page = metrics::render(&admin.hub, &survey, admin.started.elapsed().as_secs_f64(), per_queue);
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
        }
        Err(response) => response,
    }
}

/// The value of a parameter of the query; only plain words and numbers are looked for here.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    uri.query()?.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then_some(value)
    })
}

/// How many entries of a list are wanted.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(crate) fn list_limit(uri: &Uri) -> Result<usize, Response> {
    match parameter(uri, "limit").map(str::parse::<usize>) {
        None => Ok(LIST_LIMIT.0),
        Some(Ok(limit)) => Ok(limit.min(LIST_LIMIT.1)),
        Some(Err(_)) => {
            let message = "limit is a number of entries, such as ?limit=100";
            Err(error(StatusCode::BAD_REQUEST, "bad-request", message))
        }
    }
}

/// Looks at no shard, so it answers whatever they do.
async fn errors_page(State(admin): State<Admin>, uri: Uri) -> Response {
    match list_limit(&uri) {
        Ok(limit) => {
            let failures: Vec<Value> =
                admin.hub.failures.latest(limit).into_iter().map(describe_failure).collect();
            Json(json!({"errors": failures, "limit": limit})).into_response()
        }
        Err(response) => response,
    }
}

fn describe_failure(failure: Failure) -> Value {
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

async fn overview(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit,
        Err(response) => return response,
    };
    match look(&admin).await {
        Ok(survey) => Json(describe(&admin, survey, limit)).into_response(),
        Err(response) => response,
    }
}

fn describe(admin: &Admin, mut survey: ShardStats, limit: usize) -> Value {
    let totals = Totals::of(&survey);
    survey.queues.sort_unstable_by(|left, right| left.queue.cmp(&right.queue));
    survey.topics.sort_unstable_by(|left, right| left.topic.cmp(&right.topic));
    survey.clients.sort_unstable_by(|left, right| left.client.id.cmp(&right.client.id));
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
    let queues: Vec<Value> = survey.queues.iter().take(limit).map(describe_queue).collect();
    survey.routers.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let routers: Vec<Value> =
        survey.routers.iter().take(limit).map(|router| describe_router(router, &survey)).collect();
    let topics: Vec<Value> = survey.topics.iter().take(limit).map(describe_topic).collect();
    let clients: Vec<Value> = survey
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
    let nodes: Vec<Value> = survey
        .nodes
        .iter()
        .map(|node| {
            json!({
                "id": node.id,
                "name": node.name,
                "host": node.host,
                "role": if node.downstream { "slave" } else { "master" },
                "connected": node.connected,
                "lifetime_ms": node.lifetime_ms,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_seconds": admin.started.elapsed().as_secs_f64(),
        "shards": admin.hub.shards.len(),
        "listeners": listeners,
        "certificates": certificates,
        "nodes": nodes,
        "totals": {
            "channels": survey.channels.len(),
            "queues": survey.queues.len(),
            "clients": survey.clients.len(),
            "ready": totals.ready,
            "in_flight": totals.in_flight,
            "undecided": totals.undecided,
            "memory_bytes": totals.memory_bytes,
            "commands_refused": survey.refused,
            "messages": describe_stats(&totals.stats),
            "topics": survey.topics.len(),
            "routers": survey.routers.len(),
            "topic_messages": describe_topic_stats(&totals.topics),
        },
        "queues": queues,
        "topics": topics,
        "routers": routers,
        "clients": clients,
        "limit": limit,
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
        "in_flight": queue.in_flight,
        "undecided": queue.undecided,
        "memory_bytes": queue.memory_bytes,
        "messages": describe_stats(&queue.stats),
    })
}

fn describe_router(router: &RouterDefinition, survey: &ShardStats) -> Value {
    let counts = survey::router_counts(survey, &router.name);
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

fn describe_stats(stats: &QueueStats) -> Value {
    let dropped: serde_json::Map<String, Value> = DropReason::ALL
        .into_iter()
        .map(|reason| (reason.as_str().into(), stats.dropped[reason as usize].into()))
        .collect();
    json!({
        "received": stats.received,
        "sent": stats.sent,
        "deliveries": stats.deliveries,
        "acks": stats.acks,
        "negative_acks": stats.negative_acks,
        "timed_out": stats.timed_out,
        "saved": stats.saved,
        "save_failed": stats.save_failed,
        "removed": stats.removed,
        "put_back": stats.put_back,
        "dead_lettered": stats.dead_lettered,
        "errors": stats.errors,
        "dropped": dropped,
        "last_received_ms": stats.last_received_ms,
        "last_sent_ms": stats.last_sent_ms,
    })
}
