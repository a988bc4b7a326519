//! `GET /trace/ID`: where a message is, and what happened to it, as far as history is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mqcore_broker::model::client::Client;
use mqcore_broker::model::id::MessageNumber;
use mqcore_broker::model::location::{Location, LocationState, MessageQuery};
use serde_json::{Map, Value, json};

use crate::admin::answers::ErrorAnswer;
use crate::admin::history::{refuse, settle};
use crate::admin::request::{Admin, Caller, PathText, error, may_read_everything};
use crate::stats::snapshot;
use crate::storage::history::{HistoryDir, HistoryError, HistoryRequest};

/// Maximum bytes of an ID; no protocol has longer ones.
const ID_BYTES_MAX: usize = 255;
/// Maximum messages of one response, and maximum steps of all of them together. Several messages may share an ID.
const MESSAGES_MAX: usize = 100;
const STEPS_MAX: usize = 10_000;
/// Bytes of history read in one piece.
const PIECE_BYTES: u64 = 256 << 20;

/// A message in the history: its shard and its number there.
type Key = (u32, u64);

#[utoipa::path(
    get,
    path = "/trace/{id}",
    tag = "queues",
    params(("id" = String, Path, description = "The id of the message")),
    responses(
        (status = 200, description = "Locations of the message, and its lifecycle events", content_type = "application/json", body = serde_json::Value),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    PathText(id): PathText,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message = "no users exist yet, so traces are available only from the broker's own machine; create a user or token first";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        let message = format!("a message ID has 1 to {ID_BYTES_MAX} bytes");
        return error(StatusCode::BAD_REQUEST, "bad-request", &message);
    }
    let (mut kept, mut steps) = (false, Vec::new());
    if let Some(history) = &admin.history {
        if let Err(response) = settle(&admin).await {
            return response;
        }
        let (history, id) = (Arc::clone(history), id.clone());
        (kept, steps) = match tokio::task::spawn_blocking(move || read(&history, &id)).await {
            Ok(Ok(read)) => read,
            Ok(Err(failed)) => return refuse(&failed),
            Err(_) => return error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"),
        };
    }
    let keys: BTreeSet<Key> = steps.iter().map(|step| step.key).collect();
    let shards = admin.hub.shards.len();
    let sought = (0..shards).map(|shard| MessageQuery {
        id: id.as_bytes().into(),
        numbers: keys.iter().filter(|key| key.0 as usize == shard).map(|key| MessageNumber(key.1)).collect(),
        max: MESSAGES_MAX,
    });
    let Some(locations) = snapshot::locate(&admin.hub, sought.collect()).await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "a shard has stopped");
    };
    let more = locations.iter().any(|(_, located)| located.more);
    let now: Vec<Value> = locations
        .into_iter()
        .flat_map(|(shard, located)| located.found.into_iter().map(move |found| describe(shard, &found)))
        .take(MESSAGES_MAX)
        .collect();
    if now.is_empty() && steps.is_empty() && !more {
        let where_else =
            if kept { "nor is it in the history" } else { "and there is no history (history=on)" };
        let message = format!("no message {id} is in any queue, {where_else}");
        return error(StatusCode::NOT_FOUND, "not-found", &message);
    }
    let truncated = steps.len() >= STEPS_MAX;
    let steps: Vec<Value> = steps.into_iter().map(|step| step.json).collect();
    Json(json!({
        "id": id,
        "history": kept,
        "steps": steps,
        "truncated": truncated,
        "now": now,
        "not_all_looked_at": more,
    }))
    .into_response()
}

fn who(client: &Client) -> Value {
    json!({"id": client.id, "name": client.name, "type": client.kind, "protocol": client.protocol})
}

fn describe(shard: usize, location: &Location) -> Value {
    let (state, until, consumers) = match &location.state {
        LocationState::Undecided => ("undecided", None, None),
        LocationState::Waiting => ("waiting", None, None),
        LocationState::Delayed(until) => ("delayed", Some(until.0), None),
        LocationState::Delivered(consumers) => ("delivered", None, Some(consumers)),
    };
    let consumers: Vec<Value> = consumers.into_iter().flatten().map(|client| who(client)).collect();
    json!({
        "shard": shard,
        "number": location.number.0,
        "queue": location.queue.to_string(),
        "state": state,
        "until_ms": until,
        "consumers": consumers,
        "attempts": location.attempts,
        "put_backs": location.requeues,
        "saved": location.saved,
        "producer": location.producer.as_deref().map(who),
    })
}

// ---- History -------------------------------------------------------------------------------------------------------

/// A step read from the history.
struct HistoryStep {
    key: Key,
    at_us: i64,
    json: Value,
}

/// Whether there is a history, and the steps of all messages with an ID, in order. Reads the history twice, because
/// not every step contains the ID.
fn read(history: &HistoryDir, id: &str) -> Result<(bool, Vec<HistoryStep>), HistoryError> {
    let kept = history.ends()?.iter().any(|ends| ends.earliest < ends.latest);
    let mut keys = BTreeSet::new();
    each_batch(history, &["shard", "number", "message_id"], &mut |rows| {
        let (shards, numbers, ids) = (
            rows.column(0).as_primitive::<Int32Type>(),
            rows.column(1).as_primitive::<Int64Type>(),
            rows.column(2).as_string::<i32>(),
        );
        for row in 0..rows.num_rows() {
            if rows.column(2).is_valid(row) && ids.value(row) == id && keys.len() < MESSAGES_MAX {
                keys.insert((shards.value(row) as u32, numbers.value(row) as u64));
            }
        }
    })?;
    let mut steps = Vec::new();
    if keys.is_empty() {
        return Ok((kept, steps));
    }
    each_batch(history, &COLUMNS, &mut |rows| {
        let (shards, numbers, times) = (
            rows.column(0).as_primitive::<Int32Type>(),
            rows.column(1).as_primitive::<Int64Type>(),
            rows.column(2).as_primitive::<TimestampMicrosecondType>(),
        );
        for row in 0..rows.num_rows() {
            let key = (shards.value(row) as u32, numbers.value(row) as u64);
            if rows.column(1).is_valid(row) && keys.contains(&key) && steps.len() < STEPS_MAX {
                steps.push(HistoryStep { key, at_us: times.value(row), json: row_json(rows, row) });
            }
        }
    })?;
    steps.sort_by_key(|step| step.at_us);
    Ok((kept, steps))
}

/// The first three are read by index; for the others see [`row_json`].
const COLUMNS: [&str; 17] = [
    "shard",
    "number",
    "timestamp",
    "attempt",
    "last",
    "kind",
    "queue",
    "reason",
    "target",
    "producer_id",
    "producer_name",
    "producer_type",
    "producer_protocol",
    "consumer_id",
    "consumer_name",
    "consumer_type",
    "consumer_protocol",
];

fn each_batch(
    history: &HistoryDir,
    columns: &[&str],
    show: &mut dyn FnMut(&RecordBatch),
) -> Result<(), HistoryError> {
    let request = json!({"view": "steps", "columns": columns}).to_string();
    let request = Arc::new(HistoryRequest::parse(&request)?);
    for ends in history.ends()? {
        let stretch = (ends.shard, ends.earliest..ends.latest);
        for piece in history.pieces(&request, &[stretch], PIECE_BYTES)? {
            // Rows that retention removes meanwhile are missing from the response.
            for batch in history.read(&request, &piece, false)? {
                show(&batch?);
            }
        }
    }
    Ok(())
}

/// One row as JSON.
fn row_json(rows: &RecordBatch, row: usize) -> Value {
    let text = |column: usize| {
        let column = rows.column(column);
        column.is_valid(row).then(|| Value::from(column.as_string::<i32>().value(row)))
    };
    let who = |first: usize| {
        let id = text(first)?;
        Some(json!({
            "id": id,
            "name": text(first + 1),
            "type": text(first + 2),
            "protocol": text(first + 3),
        }))
    };
    let mut json: BTreeMap<&str, Option<Value>> = BTreeMap::new();
    json.insert("shard", Some(rows.column(0).as_primitive::<Int32Type>().value(row).into()));
    json.insert("number", Some(rows.column(1).as_primitive::<Int64Type>().value(row).into()));
    json.insert(
        "at_ms",
        Some((rows.column(2).as_primitive::<TimestampMicrosecondType>().value(row) / 1000).into()),
    );
    let attempt = rows.column(3);
    json.insert(
        "attempt",
        attempt.is_valid(row).then(|| attempt.as_primitive::<Int32Type>().value(row).into()),
    );
    json.insert("last", Some(rows.column(4).as_boolean().value(row).into()));
    for (at, name) in ["kind", "queue", "reason", "target"].into_iter().enumerate() {
        json.insert(name, text(5 + at));
    }
    json.insert("producer", who(9));
    json.insert("consumer", who(13));
    let json: Map<String, Value> =
        json.into_iter().map(|(name, value)| (name.to_owned(), value.unwrap_or(Value::Null))).collect();
    Value::Object(json)
}
