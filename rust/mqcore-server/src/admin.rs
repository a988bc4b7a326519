//! The admin side: health, metrics and an overview over HTTP, on a listener of its own.
//!
//! It runs on Tokio only and queries shards only, so it responds even while a handler is stuck.
//!
//! | module | page |
//! |---|---|
//! | `attention` | `/attention`, `/healthz` |
//! | `queues` | `/queues` |
//! | `queue` | `/queues/CHANNEL/ID`, and the messages of this queue |
//! | `connections` | `/connections` |
//! | `cluster` | `/cluster` |
//! | `stream` | `/stream`, `/totals` |
//! | `dashboard` | `/`, `/assets/FILE`: the dashboard's files |
//! | `openapi` | `/openapi.json` |
//! | `overview` | `/overview`, `/errors` |
//! | `backup` | `/backup` |
//! | `history` | `/history` |
//! | `schedules` | `/schedules` |
//! | `handlers` | `/handlers/KEY/stack` |
//! | `jobs` | `/jobs` |
//! | `cancellation` | `/jobs/ID/cancel` |
//! | `limits` | `/limits`, `/limits/KEY` |
//! | `policies` | `/policies`, `/policies/NAME` |
//! | `routers` | `/routers/NAME/test` |
//! | `users` | `/users` |
//! | `credentials` | `/users/NAME`, `/users/NAME/password`, `/tokens`, `/tokens/ID` |
//! | `audit` | `/audit` |
//! | `trace` | `/trace/ID` |
//! | `answers` | the bodies of answers of several pages, and their documentation |
//! | `access` | `/access`: what the caller may do |
//! | `changes` | requests that change queues, connections and the broker |
//! | `browser` | refuses requests of web pages of other origins |
//! | `places` | how many connections and requests there may be |
//! | `permitted` | callers whose permission ends while a request is in progress |
//! | `request` | common parts of all pages |
//! | `parameters` | parameters of several requests |
//! | `pieces` | long responses, sent piece by piece |

mod access;
mod answers;
mod attention;
mod audit;
mod backup;
mod browser;
mod cancellation;
mod changes;
mod cluster;
mod connections;
mod credentials;
mod dashboard;
mod handlers;
mod history;
mod jobs;
mod limits;
mod openapi;
mod overview;
mod parameters;
mod permitted;
mod pieces;
mod places;
mod policies;
mod queue;
mod queues;
mod request;
mod routers;
mod schedules;
mod stream;
mod trace;
mod users;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mqcore_authority::login::Identity;
use mqcore_broker::model::client::{Peer, PeerCertificate};
use mqcore_replication::status::LatestStatus;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use self::answers::{ErrorAnswer, LiveAnswer, ReloadAnswer};
use self::overview::ReadyAnswer;
use self::permitted::{PermittedBody, with_body};
use self::places::{ConnectionPlace, HeldBody, Places};
pub(crate) use self::request::Admin;
use self::request::{Caller, SHARD_TIMEOUT, busy, error, flag, look};
use crate::authority::admission::{Denial, PageRequest, admit_request};
use crate::authority::reload;
use crate::authority::store::StoreError;
use crate::hub::Hub;
use crate::net::tls::TlsEndpoint;
use crate::net::tls_accept::{self, Secured};
use crate::runtime::shutdown::TaskGuard;
use crate::stats::{metrics, snapshot};

/// Maximum queues without a handler that the readiness page lists.
const WAITING_SHOWN_MAX: usize = 100;

/// Time to send the head of a request, and maximum idle time of a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The admin listener.
pub(crate) struct AdminListener {
    pub(crate) socket: TcpListener,
    /// Its TLS configuration, if it speaks TLS.
    pub(crate) endpoint: Option<Arc<TlsEndpoint>>,
}

/// Serves until the server has stopped, so that health checks see that it drains.
pub(crate) async fn serve(listener: AdminListener, admin: Admin, alive: TaskGuard) {
    let shutdown = Arc::clone(&admin.hub.shutdown);
    let mut ended = pin!(shutdown.ended());
    let places = Places::new();
    let router = router(admin.clone());
    loop {
        let accepted = tokio::select! {
            accepted = listener.socket.accept() => accepted,
            () = &mut ended => break,
        };
        let Ok((stream, peer)) = accepted else {
            // Most likely the process is out of file descriptors. Wait until some are freed: clients come first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let hub = Arc::clone(&admin.hub);
        let place = places.enter();
        let router = router.clone().layer(Extension(Arc::clone(&place)));
        let endpoint = listener.endpoint.clone();
        let guard = admin.hub.shutdown.enter();
        tokio::spawn(async move {
            let conversation = async {
                match endpoint {
                    None => converse(stream, router.layer(caller(peer, None)), &hub).await,
                    Some(endpoint) => {
                        if let Some((stream, certificate)) = enter(&hub, &endpoint, stream, peer).await {
                            converse(stream, router.layer(caller(peer, Some(certificate))), &hub).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = conversation => {}
                () = place.evicted() => {}
            }
            drop(guard);
        });
    }
    // When the server has ended, its address is free.
    drop(listener);
    drop(alive);
}

/// Performs the TLS handshake, unless the server stops first.
async fn enter(hub: &Hub, endpoint: &TlsEndpoint, stream: TcpStream, peer: SocketAddr) -> Option<Secured> {
    hub.tls.handshakes.room().await;
    let place = hub.tls.handshakes.enter();
    tokio::select! {
        secured = tls_accept::secure(hub, endpoint, stream, peer, &place, None) => secured,
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
        // A request that breaks off affects only its sender.
        _ = connection => {}
        () = hub.shutdown.ended() => {}
    }
}

/// `certificate` is the result of a TLS handshake, if there was one.
fn caller(address: SocketAddr, certificate: Option<Option<Arc<PeerCertificate>>>) -> Extension<Caller> {
    let peer = match certificate {
        Some(certificate) => tls_accept::peer(address, certificate),
        None => Peer { address: Some(address.to_string().into()), ..Peer::default() },
    };
    Extension(Caller(address, Arc::new(peer)))
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(attention::health))
        .route("/attention", get(attention::answer))
        .route("/queues", get(queues::answer))
        .route("/access", get(access::answer))
        .route("/openapi.json", get(openapi::answer))
        .route("/queues/{channel}/{id}", get(queue::answer).delete(changes::remove_queue))
        .route("/queues/{channel}/{id}/purge", post(changes::purge))
        .route("/queues/{channel}/{id}/move", post(changes::move_messages))
        .route("/queues/{channel}/{id}/discard", post(changes::discard))
        .route("/queues/{channel}/{id}/status", post(changes::set_status))
        .route("/connections/{client}", delete(changes::disconnect))
        .route("/drain", post(changes::drain))
        .route("/queues/{channel}/{id}/messages", get(queue::messages))
        .route("/connections", get(connections::answer))
        .route("/cluster", get(cluster::answer))
        .route("/totals", get(stream::totals))
        .route("/stream", get(stream::stream))
        .route("/", get(dashboard::index))
        .route("/assets/{file}", get(dashboard::asset))
        .route("/overview", get(overview::overview))
        .route("/errors", get(overview::errors_page))
        .route("/schedules", get(schedules::list))
        .route("/schedules/{id}", delete(schedules::end))
        .route("/handlers/{key}/stack", get(handlers::stack))
        .route("/jobs", get(jobs::answer))
        .route("/jobs/{id}/cancel", post(cancellation::cancel))
        .route("/limits", get(limits::list))
        .route("/limits/{key}", post(limits::set).delete(limits::remove))
        .route("/policies", get(policies::list))
        .route("/policies/{name}", post(policies::set).delete(policies::remove))
        .route("/routers/{name}/test", post(routers::test))
        .route("/users", get(users::answer))
        .route("/users/{name}", post(credentials::add_user).delete(credentials::remove_user))
        .route("/users/{name}/password", post(credentials::set_password))
        .route("/tokens", post(credentials::create_token))
        .route("/tokens/{id}", delete(credentials::revoke_token))
        .route("/audit", get(audit::answer))
        .route("/backup", get(backup::download))
        .route("/history", get(history::answer))
        .route("/trace/{id}", get(trace::answer))
        .route("/authority/reload", post(reload_authority))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(admin.clone(), admit))
        .with_state(admin)
}

/// Answers health checks and files of the dashboard, whose responses reveal nothing, at once; all other requests have a
/// place until they are answered.
async fn admit(
    admin: State<Admin>,
    caller: Extension<Caller>,
    Extension(place): Extension<Arc<ConnectionPlace>>,
    request: Request,
    next: Next,
) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads && is_open(request.uri().path()) {
        return next.run(request).await;
    }
    let place = place.begin().await;
    // A stream lasts as long as its page is open. It has a limit of its own, and must not take the places of requests.
    let is_stream = request.uri().path() == stream::PATH;
    let response = guard(admin, caller, request, next).await;
    if is_stream {
        return response;
    }
    response.map(|body| Body::new(HeldBody::new(body, place)))
}

/// Whether a page needs no credentials: health checks, and the files of the dashboard, which contain no data.
fn is_open(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/") || path.starts_with("/assets/")
}

/// Authenticates and authorizes a request.
async fn guard(
    State(admin): State<Admin>,
    Extension(Caller(address, peer)): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = request.uri().path();
    let local_names_only = address.ip().is_loopback() && !peer.encrypted;
    if let Some(refusal) = browser::refusal(request.headers(), request.uri(), local_names_only) {
        return error(StatusCode::FORBIDDEN, "forbidden", refusal);
    }
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let wanted = PageRequest { authorization, page, changes: !reads };
    match admit_request(&admin.hub, address, peer, wanted).await {
        Ok(identity) => {
            let mut request = request;
            if let Some(identity) = &identity {
                request.extensions_mut().insert(Arc::clone(identity));
            }
            if reads {
                let response = next.run(request).await;
                return response.map(|body| Body::new(PermittedBody::new(body, admin.hub, identity)));
            }
            change(&admin.hub, identity, request, next).await
        }
        Err(Denial::Forbidden) => error(
            StatusCode::FORBIDDEN,
            "forbidden",
            if reads {
                "permission denied: neither inspect nor administer is allowed for this page"
            } else {
                "permission denied: administer is not allowed for this page"
            },
        ),
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

/// Runs a request that changes something, unless its caller has lost the permission since its head. The response is not
/// checked again: a caller may revoke its own token, and needs the answer.
async fn change(hub: &Hub, identity: Option<Arc<Identity>>, request: Request, next: Next) -> Response {
    let request = match with_body(request).await {
        Ok(request) => request,
        Err(refusal) => return refusal,
    };
    if !hub.authority.still_admits(identity.as_deref(), hub.clock.expiry_ms()) {
        let message = StoreError::CallerRevoked.to_string();
        let response = error(StatusCode::UNAUTHORIZED, "unauthorized", &message);
        return ([(header::WWW_AUTHENTICATE, "Bearer")], response).into_response();
    }
    next.run(request).await
}

fn how_to_get_a_token(hub: &Hub) -> String {
    if hub.cluster.is_some() && !hub.authority.has_tokens() {
        return "this needs a token, sent as 'Authorization: Bearer TOKEN', and there is none yet; stop the cluster, \
                and add the output of 'mqcore token generate NAME --allow administer' to the configuration of all nodes"
            .into();
    }
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
        "{lead}, sent as 'Authorization: Bearer TOKEN'; create one: mqcore token create NAME --allow administer {place}"
    )
}

#[utoipa::path(
    post,
    path = "/authority/reload",
    tag = "security",
    responses(
        (status = 200, description = "Users and tokens are read again", body = ReloadAnswer),
        (status = 409, description = "They cannot be read", body = ErrorAnswer),
    )
)]
async fn reload_authority(State(admin): State<Admin>) -> Response {
    match reload::reload(&admin.hub, true).await {
        Ok(()) => Json(ReloadAnswer { status: "reloaded" }).into_response(),
        Err(broken) => error(StatusCode::CONFLICT, "unreadable", &broken.to_string()),
    }
}

async fn unknown_path(uri: Uri) -> Response {
    let message = format!(
        "path {} does not exist; use /livez, /readyz, /healthz, /metrics, /attention, /queues, /queues/CHANNEL/ID, /connections, /cluster, /access, /openapi.json, /drain, /totals, /stream, /overview, /errors, /schedules, /schedules/ID, /handlers/KEY/stack, /jobs, /jobs/ID/cancel, /limits, /limits/KEY, /policies, /policies/NAME, /routers/NAME/test, /users, /users/NAME, /users/NAME/password, /tokens, /tokens/ID, /audit, /backup, /history, /trace/ID and /authority/reload",
        uri.path()
    );
    error(StatusCode::NOT_FOUND, "not-found", &message)
}

async fn unknown_method() -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "method not allowed for this page")
}

#[utoipa::path(
    get,
    path = "/livez",
    tag = "health",
    responses(
        (status = 200, description = "The process runs", body = LiveAnswer),
        (status = 503, description = "This node of a cluster does not work", body = ErrorAnswer),
    )
)]
async fn livez(State(admin): State<Admin>) -> Response {
    match admin.hub.cluster.as_ref().and_then(LatestStatus::stall) {
        None => Json(LiveAnswer { status: "live" }).into_response(),
        Some(why) => error(StatusCode::SERVICE_UNAVAILABLE, "stalled", &why),
    }
}

#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    responses(
        (status = 200, description = "The broker accepts work", body = ReadyAnswer),
    )
)]
async fn readyz(State(admin): State<Admin>) -> Response {
    if !admin.hub.shutdown.is_running() {
        return error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping");
    }
    if let Some(why) = admin.hub.cluster.as_ref().and_then(LatestStatus::silence) {
        return error(StatusCode::SERVICE_UNAVAILABLE, "stalled", &why);
    }
    let losses = admin.hub.counters.journal.losses();
    if !losses.is_empty() {
        let found: Vec<String> = losses.iter().map(ToString::to_string).collect();
        let message = format!(
            "journals have lost records, and their shards reject durable messages until `mqcore journal accept-loss` is run while \
             the broker is stopped: {}",
            found.join("; ")
        );
        return error(StatusCode::SERVICE_UNAVAILABLE, "records-lost", &message);
    }
    let refusing = admin.hub.counters.journal.refusing_shards();
    if !refusing.is_empty() {
        let message = format!(
            "the journals of shards {refusing:?} reject durable messages, because the disk is full or failed; the log has the cause"
        );
        return error(StatusCode::SERVICE_UNAVAILABLE, "journal-rejects", &message);
    }
    match tokio::time::timeout(SHARD_TIMEOUT, snapshot::waiting_for_handlers(&admin.hub)).await {
        Ok(Some(waiting)) => {
            // Ready all the same: the other queues work, and clients of this one get an error that names the handler.
            let queues = waiting.iter().take(WAITING_SHOWN_MAX).map(overview::describe_without_handler);
            // So is a broker whose history stays in its journals.
            let lag = admin.hub.counters.archive.lag(admin.hub.clock.now()).filter(|lag| lag.is_lagging);
            let backup = admin.hub.counters.backup.lag(admin.hub.clock.now()).filter(|lag| lag.is_lagging);
            let answer = ReadyAnswer {
                status: "ready",
                queues_without_handler: queues.collect(),
                archive: lag.as_ref().map(overview::describe_archive),
                backup: backup.as_ref().map(overview::describe_backup),
            };
            Json(answer).into_response()
        }
        Ok(None) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "a shard has stopped"),
        Err(_) => busy(),
    }
}

#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    params(("queues" = Option<u8>, Query, minimum = 0, maximum = 1, description = "1: metrics of single queues too")),
    responses(
        (status = 200, description = "Metrics for Prometheus", content_type = "text/plain", body = String),
        (status = 400, description = "A wrong parameter", body = ErrorAnswer),
    )
)]
async fn metrics_page(State(admin): State<Admin>, uri: Uri) -> Response {
    let per_queue = match flag(&uri, "queues") {
        Ok(per_queue) => per_queue,
        Err(response) => return response,
    };
    match look(&admin, if per_queue { metrics::QUEUES_MAX } else { 0 }).await {
        Ok(snapshot) => {
            let (times, uptime) = (admin.handlers.times(), admin.started.elapsed().as_secs_f64());
            let page = metrics::render(&admin.hub, snapshot, times, uptime, per_queue);
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
        }
        Err(response) => response,
    }
}
