//! `GET /queues/CHANNEL/ID`: one queue with its options; `GET /queues/CHANNEL/ID/messages`: its next messages, which stay where
//! they are. A `/` in the name of the channel is written `%2F`.

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mqcore_broker::model::id::{ChannelName, QueueAddress};
use mqcore_broker::model::message::Message;
use mqcore_broker::model::options::{DeadLetter, QueueOptions};
use mqcore_broker::model::stats::{QueueInformation, WaitingMessage};
use serde_json::{Value, json};

use crate::admin::attention::describe_finding;
use crate::admin::overview::describe_stats;
use crate::admin::queues::describe_rates;
use crate::admin::request::{
    Admin, Caller, SHARD_TIMEOUT, bad_request, busy, error, may_read_everything, number,
};
use crate::stats::snapshot;

/// Messages of one response: default and maximum.
const MESSAGES: (usize, usize) = (20, 500);

/// Bytes of a body that are shown: default and maximum. All bodies of a response together have at most [`BODIES_MAX`].
const BODY_BYTES: (usize, usize) = (4 * 1024, 1024 * 1024);
const BODIES_MAX: usize = 16 * 1024 * 1024;

pub(crate) async fn answer(State(admin): State<Admin>, Path((channel, id)): Path<(String, u16)>) -> Response {
    match detail(&admin, &channel, id).await {
        Ok(found) => Json(found).into_response(),
        Err(response) => response,
    }
}

/// A queue with its options, rates and findings.
pub(super) async fn detail(admin: &Admin, channel: &str, id: u16) -> Result<Value, Response> {
    let queue = address(channel, id)?;
    let found = tokio::time::timeout(SHARD_TIMEOUT, snapshot::queue(&admin.hub, queue.clone())).await;
    let information = found.map_err(|_| busy())?.ok_or_else(|| missing(&queue))?;
    let rates =
        admin.hub.attention.tracks().get(&information.queue).map(|track| track.rates).unwrap_or_default();
    let subject = format!("queue {}", information.queue);
    let report = admin.hub.attention.report();
    let findings = report.findings.iter().filter(|reported| reported.finding.subject == subject);
    let mut described = describe(&information);
    described["rates"] = describe_rates(&rates);
    described["findings"] = findings.map(describe_finding).collect();
    Ok(described)
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

fn describe(information: &QueueInformation) -> Value {
    let time = |ms: u64| (ms > 0).then_some(ms);
    json!({
        "queue": information.queue.to_string(),
        "status": information.options.status.as_str(),
        "missing_handler": information.missing_handler,
        "ready": (information.high_priority + information.normal).saturating_sub(information.delayed),
        "high_priority": information.high_priority,
        "delayed": information.delayed,
        "next_attempt_ms": time(information.next_attempt_ms),
        "in_flight": information.in_flight,
        "undecided": information.undecided,
        "consumers": information.consumers,
        "memory_bytes": information.memory_bytes,
        "options": describe_options(&information.options),
        "messages": describe_stats(&information.stats),
    })
}

fn describe_options(options: &QueueOptions) -> Value {
    // Destructured, so that a new option cannot be forgotten here.
    let QueueOptions {
        status,
        only_first_acquirer,
        request_acknowledge,
        acknowledge_timeout,
        message_timeout,
        use_message_id,
        wait_for_acknowledge,
        hide_client_names,
        message_limit,
        message_size_limit,
        tag,
        delivery_handler,
        put_back_limit,
        retry_delay,
        retry_delay_max,
        dead_letter,
        durability,
        deduplication_window,
        publish_limit,
    } = options;
    json!({
        "status": status.as_str(),
        "only_first_acquirer": only_first_acquirer,
        "request_acknowledge": request_acknowledge,
        "acknowledge_timeout": acknowledge_timeout.as_secs_f64(),
        "message_timeout": message_timeout.as_secs_f64(),
        "use_message_id": use_message_id,
        "wait_for_acknowledge": wait_for_acknowledge,
        "hide_client_names": hide_client_names,
        "message_limit": message_limit,
        "message_size_limit": message_size_limit,
        "tag": tag,
        "delivery_handler": delivery_handler,
        "put_back_limit": put_back_limit,
        "retry_delay": retry_delay.map(|delay| delay.as_secs_f64()),
        "retry_delay_max": retry_delay_max.as_secs_f64(),
        "dead_letter": dead_letter.as_ref().map(DeadLetter::to_string),
        "durability": durability.as_str(),
        "deduplication_window": deduplication_window.as_secs_f64(),
        "publish_limit": publish_limit.map(|limit| limit.to_string()),
    })
}

/// Bodies are data of users, so this has the same condition as traces.
pub(crate) async fn messages(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path((channel, id)): Path<(String, u16)>,
    uri: Uri,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message = "no users exist yet, so messages are shown only on the broker's own machine; create a user or token first";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    match peek(&admin, &channel, id, &uri).await {
        Ok(page) => Json(page).into_response(),
        Err(response) => response,
    }
}

async fn peek(admin: &Admin, channel: &str, id: u16, uri: &Uri) -> Result<Value, Response> {
    let queue = address(channel, id)?;
    let offset = number(uri, "offset", 0, usize::MAX)?;
    let limit = number(uri, "limit", MESSAGES.0, MESSAGES.1)?;
    let body_bytes = number(uri, "body_bytes", BODY_BYTES.0, BODY_BYTES.1)?;
    let wanted = offset.saturating_add(limit);
    let found =
        tokio::time::timeout(SHARD_TIMEOUT, snapshot::waiting(&admin.hub, queue.clone(), wanted)).await;
    let waiting = found.map_err(|_| busy())?.ok_or_else(|| missing(&queue))?;
    let mut room = BODIES_MAX;
    let described: Vec<Value> = waiting
        .iter()
        .skip(offset)
        .map(|waiting| {
            let shown = describe_message(waiting, body_bytes.min(room));
            room = room.saturating_sub(body_bytes);
            shown
        })
        .collect();
    Ok(json!({"queue": queue.to_string(), "offset": offset, "limit": limit, "messages": described}))
}

fn describe_message(waiting: &WaitingMessage, body_bytes: usize) -> Value {
    let WaitingMessage { message, attempts, requeues, saved, .. } = waiting;
    let mut described = json!({"attempts": attempts, "put_backs": requeues, "saved": saved});
    let Some(message) = message else {
        described["body_in_memory"] = false.into();
        return described;
    };
    described["id"] = String::from_utf8_lossy(message.id()).into();
    described["producer"] = String::from_utf8_lossy(message.source()).into();
    described["received_ms"] = message.received().0.into();
    described["priority"] = message.properties().level().into();
    described["headers"] = headers(message);
    described["body_bytes"] = message.body().len().into();
    let shown = &message.body()[..message.body().len().min(body_bytes)];
    // A cut in the middle of a character is still text.
    match std::str::from_utf8(shown) {
        Ok(text) => described["body"] = text.into(),
        Err(cut) if cut.error_len().is_none() && shown.len() < message.body().len() => {
            described["body"] = String::from_utf8_lossy(&shown[..cut.valid_up_to()]).into();
        }
        Err(_) => described["body_base64"] = STANDARD.encode(shown).into(),
    }
    described
}

/// Headers as pairs, because a name may occur twice.
fn headers(message: &Message) -> Value {
    let text = String::from_utf8_lossy(message.headers());
    let pairs = text.split("\r\n").filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| json!([name, value])).collect()
}
