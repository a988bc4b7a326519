//! `GET /queues/CHANNEL/ID`: one queue with its options; `GET /queues/CHANNEL/ID/messages`: its next messages, which stay where
//! they are. A `/` in the name of the channel is written `%2F`.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mqcore_broker::model::id::{ChannelName, QueueAddress};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::stats::WaitingMessage;

use crate::admin::answers::{
    ContentAnswer, ErrorAnswer, FindingAnswer, MessageAnswer, MessagesAnswer, QueueAnswer,
};
use crate::admin::parameters::QueueParameters;
use crate::admin::request::{
    Admin, Caller, SHARD_TIMEOUT, bad_request, busy, error, may_read_everything, number,
};
use crate::config::mask::{HIDDEN, MaskConfig, Shown};
use crate::stats::snapshot;

/// Messages of one response: default and maximum.
const MESSAGES: (usize, usize) = (20, 500);

/// Bytes of a body that are shown: default and maximum. All bodies of a response together have at most [`BODIES_MAX`].
const BODY_BYTES: (usize, usize) = (4 * 1024, 1024 * 1024);
const BODIES_MAX: usize = 16 * 1024 * 1024;

#[utoipa::path(
    get,
    path = "/queues/{channel}/{id}",
    tag = "queues",
    params(QueueParameters),
    responses(
        (status = 200, description = "The queue", body = QueueAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, QueuePath(queue): QueuePath) -> Response {
    match detail(&admin, queue).await {
        Ok(found) => Json(found).into_response(),
        Err(response) => response,
    }
}

/// A queue with its options, rates and findings.
pub(super) async fn detail(admin: &Admin, queue: QueueAddress) -> Result<QueueAnswer, Response> {
    let found = tokio::time::timeout(SHARD_TIMEOUT, snapshot::queue(&admin.hub, queue.clone())).await;
    let information = found.map_err(|_| busy())?.ok_or_else(|| missing(&queue))?;
    let rates =
        admin.hub.attention.tracks().get(&information.queue).map(|track| track.rates).unwrap_or_default();
    let subject = format!("queue {}", information.queue);
    let report = admin.hub.attention.report();
    let findings = report.findings.iter().filter(|reported| reported.finding.subject == subject);
    let waiting = information.high_priority + information.normal;
    let time = |ms: u64| (ms > 0).then_some(ms);
    Ok(QueueAnswer {
        queue: information.queue.to_string(),
        status: information.options.status.as_str(),
        missing_handler: information.missing_handler.as_deref().map(Into::into),
        ready: waiting.saturating_sub(information.delayed),
        high_priority: information.high_priority,
        delayed: information.delayed,
        next_attempt_ms: time(information.next_attempt_ms),
        in_flight: information.in_flight,
        undecided: information.undecided,
        consumers: information.consumers,
        memory_bytes: information.memory_bytes,
        options: (&information.options).into(),
        messages: (&information.stats).into(),
        rates: (&rates).into(),
        findings: findings.map(FindingAnswer::from).collect(),
    })
}

/// The queue that the path names. Another path gets an error in the form of all errors.
pub(crate) struct QueuePath(pub(super) QueueAddress);

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((channel, id)) = path.map_err(|refused| bad_request(&refused.body_text()))?;
        match id.parse() {
            Ok(id) => address(&channel, id).map(Self),
            Err(_) => {
                Err(bad_request(&format!("{id:?} is not the number of a queue, which is from 0 to 65535")))
            }
        }
    }
}

#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(super) fn address(channel: &str, id: u16) -> Result<QueueAddress, Response> {
    match ChannelName::new(channel) {
        Ok(channel) => Ok(QueueAddress { channel, id }),
        Err(refused) => Err(bad_request(&format!("{channel:?}: {refused}"))),
    }
}

fn missing(queue: &QueueAddress) -> Response {
    let message = format!("queue {queue} does not exist; /queues lists those that do");
    error(StatusCode::NOT_FOUND, "not-found", &message)
}

/// Bodies are data of users, so this has the same condition as traces.
#[utoipa::path(
    get,
    path = "/queues/{channel}/{id}/messages",
    tag = "queues",
    params(QueueParameters, ("offset" = Option<usize>, Query, minimum = 0, description = "Entries to skip (0)"), ("limit" = Option<usize>, Query, minimum = 0, description = "Maximum messages (20); at most 500"), ("body_bytes" = Option<usize>, Query, minimum = 0, description = "Bytes of each body (4,096); at most 1 MiB")),
    responses(
        (status = 200, description = "The next messages, which stay", body = MessagesAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn messages(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    QueuePath(queue): QueuePath,
    uri: Uri,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message = "no users exist yet, so messages are shown only on the broker's own machine; create a user or token first";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    match peek(&admin, queue, &uri).await {
        Ok(page) => Json(page).into_response(),
        Err(response) => response,
    }
}

async fn peek(admin: &Admin, queue: QueueAddress, uri: &Uri) -> Result<MessagesAnswer, Response> {
    let offset = number(uri, "offset", 0, usize::MAX)?;
    let limit = number(uri, "limit", MESSAGES.0, MESSAGES.1)?;
    let body_bytes = number(uri, "body_bytes", BODY_BYTES.0, BODY_BYTES.1)?;
    let wanted = offset.saturating_add(limit);
    let found =
        tokio::time::timeout(SHARD_TIMEOUT, snapshot::waiting(&admin.hub, queue.clone(), wanted)).await;
    let waiting = found.map_err(|_| busy())?.ok_or_else(|| missing(&queue))?;
    let (mask, name) = (Arc::clone(&admin.mask), queue.to_string());
    let describe = move || {
        let mut room = BodyRoom { shown: BODIES_MAX, parsed: BODIES_MAX };
        let asked = waiting.iter().skip(offset);
        asked.map(|waiting| describe_message(waiting, &name, body_bytes, &mask, &mut room)).collect()
    };
    // To hide members of many large bodies takes a while, in which other tasks of this thread would wait.
    let described = if admin.mask.has_fields() {
        admin.hub.runtime.spawn_blocking(describe).await
    } else {
        Ok(describe())
    };
    let messages = described
        .map_err(|_| error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"))?;
    Ok(MessagesAnswer { queue: queue.to_string(), offset, limit, messages })
}

/// Bytes of bodies that a response may still show, and parse.
struct BodyRoom {
    shown: usize,
    parsed: usize,
}

fn describe_message(
    waiting: &WaitingMessage,
    queue: &str,
    body_bytes: usize,
    mask: &MaskConfig,
    room: &mut BodyRoom,
) -> MessageAnswer {
    let WaitingMessage { message, attempts, requeues, saved, .. } = waiting;
    let body_bytes = body_bytes.min(room.shown);
    room.shown -= body_bytes;
    let content = message.as_ref().map(|message| describe_content(message, queue, body_bytes, mask, room));
    MessageAnswer { attempts: *attempts, put_backs: *requeues, saved: *saved, content }
}

fn describe_content(
    message: &Message,
    queue: &str,
    body_bytes: usize,
    mask: &MaskConfig,
    room: &mut BodyRoom,
) -> ContentAnswer {
    let mut headers = headers(message, mask);
    // A dead letter is as secret as it was in the queue that it comes from. Its error may quote the body.
    let origins =
        headers.iter().filter(|(name, _)| name == "Dead-Letter-Queue").map(|(_, origin)| origin.as_str());
    let is_hidden = origins.chain([queue]).any(|queue| mask.hides_bodies_of(queue));
    if is_hidden {
        for (_, value) in headers.iter_mut().filter(|(name, _)| name == "Dead-Letter-Error") {
            *value = HIDDEN.into();
        }
    }
    let size = message.body().len();
    let masked = match () {
        () if is_hidden => Shown::Nothing,
        // A caller that wants no bodies does not wait until they are parsed.
        () if body_bytes == 0 || !mask.has_fields() => Shown::AsItIs,
        () if size > room.parsed => Shown::Nothing,
        () => {
            room.parsed -= size;
            mask.body(message.body())
        }
    };
    let body = match &masked {
        Shown::AsItIs => message.body(),
        Shown::Rewritten { text, .. } => text.as_bytes(),
        Shown::Nothing => HIDDEN.as_bytes(),
    };
    let shown = &body[..body.len().min(body_bytes)];
    // A cut in the middle of a character is still text.
    let text = match std::str::from_utf8(shown) {
        Ok(text) => Some(text.to_owned()),
        Err(cut) if cut.error_len().is_none() && shown.len() < body.len() => {
            Some(String::from_utf8_lossy(&shown[..cut.valid_up_to()]).into_owned())
        }
        Err(_) => None,
    };
    ContentAnswer {
        id: String::from_utf8_lossy(message.id()).into_owned(),
        producer: String::from_utf8_lossy(message.source()).into_owned(),
        received_ms: message.received().0,
        priority: message.properties().level(),
        headers,
        masked: matches!(masked, Shown::Nothing | Shown::Rewritten { is_masked: true, .. }),
        body_bytes: size,
        body_base64: text.is_none().then(|| STANDARD.encode(shown)),
        body: text,
    }
}

/// Headers as pairs, because a name may occur twice.
fn headers(message: &Message, mask: &MaskConfig) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(message.headers());
    let pairs = text.split("\r\n").filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), mask.header(name, value).to_owned())).collect()
}
