//! Requests that change something: messages and the status of a queue, connections, and the end of the broker.
//!
//! | request | body | effect |
//! |---|---|---|
//! | `POST /queues/CHANNEL/ID/purge` | none | removes all waiting messages |
//! | `POST /queues/CHANNEL/ID/move` | `{"to": "CHANNEL/ID", "max": 1000, "ids": []}` | moves waiting messages; without `to`, each returns to the queue that dead-lettered it |
//! | `POST /queues/CHANNEL/ID/discard` | `{"max": 1000, "ids": []}` | removes waiting messages |
//! | `POST /queues/CHANNEL/ID/status` | `{"status": "paused"}` | changes the status |
//! | `DELETE /queues/CHANNEL/ID` | none | removes the queue with its messages |
//! | `DELETE /connections/CLIENT` | none | closes the connections of a client |
//! | `POST /drain` | `{"seconds": 30}` | stops the broker as SIGTERM does |
//!
//! They are answered when their effect is durable. `guard` has checked that a token allows them.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mqcore_authority::action::Action;
use mqcore_authority::resource::Resource;
use mqcore_broker::model::command::{Clear, ClientPattern, Destination, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::transfer::{MOVED_AT_ONCE_MAX, MoveMessages, MoveReport, MoveTarget};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::admin::answers::{ClientDisconnected, DrainAnswer, ErrorAnswer, MoveAnswer, QueueChanged};
use crate::admin::parameters::QueueParameters;
use crate::admin::queue::QueuePath;
use crate::admin::request::{Admin, Operator, PathText, bad_request, error};
use crate::shard::inbox::Urgent;

/// Time for a change to become durable. A move of many large messages takes longest.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that a request moves if it sets no maximum.
const MOVED_DEFAULT: u32 = 1_000;

/// Maximum ids of messages in a request.
const IDS_MAX: usize = 1_000;

/// Maximum bytes of the body of a request.
const BODY_MAX: usize = 1 << 20;

/// Seconds in which a broker that drains stops, if the request sets none.
const DRAIN_SECONDS: f64 = 30.0;

/// The body of a request. An empty one stands for an object without members.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: HttpRequest, state: &S) -> Result<Self, Response> {
        let bytes =
            Bytes::from_request(request, state).await.map_err(|refused| bad_request(&refused.body_text()))?;
        if bytes.len() > BODY_MAX {
            return Err(bad_request(&format!(
                "the body has {} bytes, but at most {BODY_MAX} are allowed",
                bytes.len()
            )));
        }
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let value: Value =
            serde_json::from_slice(text).map_err(|refused| bad_request(&format!("the body: {refused}")))?;
        // An array would be read as the members of the object in their order.
        if !value.is_object() {
            return Err(bad_request("the body is not a JSON object"));
        }
        T::deserialize(value).map(Self).map_err(|refused| bad_request(&format!("the body: {refused}")))
    }
}

/// A request without a body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoMembers {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveBody {
    /// The queue to which they go; without it, each returns to the queue that dead-lettered it.
    #[serde(default)]
    to: Option<String>,
    /// Maximum messages (1,000).
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10_000)]
    max: Option<u32>,
    /// Only messages with these ids, among the first `max`.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    ids: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscardBody {
    /// Maximum messages (1,000).
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10_000)]
    max: Option<u32>,
    /// Only messages with these ids, among the first `max`.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    ids: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusBody {
    /// broadcast, push, roundrobin, pull, cache, paused or stopped.
    status: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainBody {
    /// The time after which the broker ends in any case (30).
    #[serde(default)]
    #[schema(minimum = 0.0)]
    seconds: Option<f64>,
}

#[utoipa::path(
    post,
    path = "/queues/{channel}/{id}/purge",
    tag = "queues",
    params(QueueParameters),
    responses(
        (status = 200, description = "All waiting messages are removed", body = QueueChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "A limit, or the state of the queue, does not allow it", body = ErrorAnswer),
    )
)]
pub(crate) async fn purge(
    State(admin): State<Admin>,
    QueuePath(queue): QueuePath,
    Body(NoMembers {}): Body<NoMembers>,
) -> Result<Response, Response> {
    let clear = Clear { high_priority: true, normal: true };
    carry_out(&admin, Request::ClearQueue { queue: queue.clone(), clear }).await?;
    Ok(changed(&queue, "purged"))
}

#[utoipa::path(
    post,
    path = "/queues/{channel}/{id}/move",
    tag = "queues",
    params(QueueParameters),
    request_body = Option<MoveBody>,
    responses(
        (status = 200, description = "Messages are moved", body = MoveAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "A limit, or the state of the queue, does not allow it", body = ErrorAnswer),
    )
)]
pub(crate) async fn move_messages(
    State(admin): State<Admin>,
    operator: Operator,
    QueuePath(queue): QueuePath,
    Body(body): Body<MoveBody>,
) -> Result<Response, Response> {
    let to = match &body.to {
        Some(to) => {
            let to = parse_queue(to)?;
            may_publish(&admin, &operator, &to).await?;
            MoveTarget::Queue(to)
        }
        None => MoveTarget::Origin,
    };
    move_to(&admin, queue, to, body.max, body.ids).await
}

#[utoipa::path(
    post,
    path = "/queues/{channel}/{id}/discard",
    tag = "queues",
    params(QueueParameters),
    request_body = Option<DiscardBody>,
    responses(
        (status = 200, description = "Messages are removed", body = MoveAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "A limit, or the state of the queue, does not allow it", body = ErrorAnswer),
    )
)]
pub(crate) async fn discard(
    State(admin): State<Admin>,
    QueuePath(queue): QueuePath,
    Body(body): Body<DiscardBody>,
) -> Result<Response, Response> {
    move_to(&admin, queue, MoveTarget::Nowhere, body.max, body.ids).await
}

async fn move_to(
    admin: &Admin,
    queue: QueueAddress,
    to: MoveTarget,
    max: Option<u32>,
    ids: Vec<String>,
) -> Result<Response, Response> {
    if ids.len() > IDS_MAX {
        return Err(bad_request(&format!(
            "ids has {} entries, but at most {IDS_MAX} are allowed",
            ids.len()
        )));
    }
    let max = max.unwrap_or(MOVED_DEFAULT);
    if !(1..=MOVED_AT_ONCE_MAX).contains(&max) {
        return Err(bad_request(&format!("max is {max}, but must be from 1 to {MOVED_AT_ONCE_MAX}")));
    }
    let ids = ids.into_iter().map(|id| id.into_bytes().into_boxed_slice()).collect();
    let wanted = MoveMessages { queue: queue.clone(), to, ids, max };
    let Reply::Moved(report) = carry_out(admin, Request::MoveMessages(Box::new(wanted))).await? else {
        return Err(no_result("the move has no result; look at the queue"));
    };
    let MoveReport { moved, without_origin, left, rejection } = *report;
    let rejection = rejection.map(|rejection| rejection.reason.into_owned());
    let queue = queue.to_string();
    Ok(Json(MoveAnswer { queue, moved, without_origin, left, rejection }).into_response())
}

fn changed(queue: &QueueAddress, result: &'static str) -> Response {
    Json(QueueChanged { queue: queue.to_string(), result }).into_response()
}

#[utoipa::path(
    post,
    path = "/queues/{channel}/{id}/status",
    tag = "queues",
    params(QueueParameters),
    request_body = StatusBody,
    responses(
        (status = 200, description = "The status is changed", body = QueueChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "A limit, or the state of the queue, does not allow it", body = ErrorAnswer),
    )
)]
pub(crate) async fn set_status(
    State(admin): State<Admin>,
    QueuePath(queue): QueuePath,
    Body(StatusBody { status }): Body<StatusBody>,
) -> Result<Response, Response> {
    let Some(status) = Status::from_text(&status) else {
        let known: Vec<_> = Status::ALL.iter().map(|status| status.as_str()).collect();
        return Err(bad_request(&format!(
            "status {status:?} does not exist; use one of {}",
            known.join(", ")
        )));
    };
    let changes = QueueChanges { status: Some(status), ..QueueChanges::default() };
    carry_out(&admin, Request::UpdateQueue { queue: queue.clone(), changes }).await?;
    Ok(changed(&queue, status.as_str()))
}

#[utoipa::path(
    delete,
    path = "/queues/{channel}/{id}",
    tag = "queues",
    params(QueueParameters),
    responses(
        (status = 200, description = "The queue is removed with its messages", body = QueueChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "A limit, or the state of the queue, does not allow it", body = ErrorAnswer),
    )
)]
pub(crate) async fn remove_queue(
    State(admin): State<Admin>,
    QueuePath(queue): QueuePath,
) -> Result<Response, Response> {
    carry_out(&admin, Request::RemoveQueue { queue: queue.clone() }).await?;
    Ok(changed(&queue, "removed"))
}

#[utoipa::path(
    delete,
    path = "/connections/{client}",
    tag = "connections",
    params(("client" = String, Path, description = "The id of the client")),
    responses(
        (status = 200, description = "Its connections are closed", body = ClientDisconnected),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn disconnect(
    State(admin): State<Admin>,
    PathText(client): PathText,
) -> Result<Response, Response> {
    let to = ClientPattern::Id(client.as_str().into());
    carry_out(&admin, Request::Disconnect { to }).await?;
    Ok(Json(ClientDisconnected { client }).into_response())
}

/// Answers before the broker has drained: once it has, nothing can answer.
#[utoipa::path(
    post,
    path = "/drain",
    tag = "health",
    request_body = Option<DrainBody>,
    responses(
        (status = 200, description = "The broker drains", body = DrainAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn drain(
    State(admin): State<Admin>,
    Body(DrainBody { seconds }): Body<DrainBody>,
) -> Result<Response, Response> {
    let seconds = seconds.unwrap_or(DRAIN_SECONDS);
    let grace = Duration::try_from_secs_f64(seconds)
        .map_err(|refused| bad_request(&format!("seconds is {seconds}: {refused}")))?;
    tracing::info!(seconds, "an administrator drains the broker");
    let begun = admin.hub.shutdown.begin(grace);
    Ok(Json(DrainAnswer { begun, seconds }).into_response())
}

/// A mover publishes to the new queue, so it needs the permission to do that.
pub(super) async fn may_publish(
    admin: &Admin,
    operator: &Operator,
    to: &QueueAddress,
) -> Result<(), Response> {
    let resource = Resource::Queue(to.channel.as_str(), to.id);
    if admin.hub.authority.may(&operator.identity, Action::Push, resource, "http").await {
        return Ok(());
    }
    let message = format!("permission denied: push is not allowed for queue {to}");
    operator.note(admin, (Action::Push, &resource), Some(&message));
    Err(error(StatusCode::FORBIDDEN, "forbidden", &message))
}

#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(super) fn parse_queue(text: &str) -> Result<QueueAddress, Response> {
    QueueAddress::parse(text).map_err(|refused| bad_request(&format!("queue {text:?}: {refused}")))
}

/// The error of a request whose answer has another form.
pub(super) fn no_result(message: &str) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
}

/// Carries out a request of an administrator, and returns when it is durable.
pub(super) async fn carry_out(admin: &Admin, request: Request) -> Result<Reply, Response> {
    let shard = match request.destination(admin.hub.placement) {
        Destination::Shard(shard) => shard,
        // Requests for all shards have a function of their own.
        Destination::Home | Destination::Every => Placement::HOME,
    };
    begin(admin, shard, request).await
}

/// Carries out a request on every shard, and returns the answers when they are durable. An error of one shard does not undo
/// what others did.
pub(super) async fn carry_out_everywhere(admin: &Admin, request: &Request) -> Vec<Result<Reply, Response>> {
    let shards = 0..admin.hub.shards.len();
    let begun: Vec<_> = shards.map(|shard| begin(admin, shard, request.clone())).collect();
    let mut replies = Vec::with_capacity(begun.len());
    for reply in begun {
        replies.push(reply.await);
    }
    replies
}

/// Sends a request to a shard at once, and waits for its answer when the result is awaited.
fn begin(
    admin: &Admin,
    shard: usize,
    request: Request,
) -> impl Future<Output = Result<Reply, Response>> + use<> {
    let (reply, answer) = oneshot::channel();
    admin.hub.shards[shard].send_urgent(Urgent::Request(Box::new(request), reply));
    admin.hub.moved();
    async move {
        match tokio::time::timeout(CHANGE_TIMEOUT, answer).await {
            Ok(Ok(Ok(reply))) => Ok(reply),
            Ok(Ok(Err(rejection))) => Err(describe_rejection(&rejection)),
            Ok(Err(_)) => Err(error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")),
            Err(_) => {
                let message = "there is no answer after 30 s; look whether the change was made";
                Err(error(StatusCode::SERVICE_UNAVAILABLE, "busy", message))
            }
        }
    }
}

fn describe_rejection(rejection: &Rejection) -> Response {
    let (status, code) = match rejection.kind {
        RejectionKind::NotFound => (StatusCode::NOT_FOUND, "not-found"),
        RejectionKind::BadRequest => (StatusCode::BAD_REQUEST, "bad-request"),
        RejectionKind::Unauthorized => (StatusCode::FORBIDDEN, "forbidden"),
        RejectionKind::AlreadyExists => (StatusCode::CONFLICT, "already-exists"),
        RejectionKind::LimitExceeded => (StatusCode::CONFLICT, "limit-exceeded"),
        RejectionKind::Unacceptable => (StatusCode::CONFLICT, "unacceptable"),
        RejectionKind::QueueStopped => (StatusCode::CONFLICT, "queue-stopped"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
    };
    error(status, code, &rejection.reason)
}
