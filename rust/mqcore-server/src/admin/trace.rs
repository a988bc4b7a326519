//! `GET /trace/ID`: where a message is, and what happened to it, as far as history is stored.

use std::collections::BTreeSet;
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
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::history::{refuse, settle};
use crate::admin::request::{Admin, Caller, PathText, error, may_read_everything};
use crate::stats::snapshot;
use crate::storage::history::{Division, HistoryDir, HistoryError, HistoryRequest};

/// Maximum bytes of an ID; no protocol has longer ones.
const ID_BYTES_MAX: usize = 255;
/// Maximum messages of one response, and maximum steps of all of them together. Several messages may share an ID.
const MESSAGES_MAX: usize = 100;
const STEPS_MAX: usize = 10_000;
/// Bytes of history read in one piece.
const PIECE_BYTES: u64 = 256 << 20;

/// A message in the history: its shard and its number there.
type Key = (u32, u64);

/// All messages with an id.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceAnswer {
    id: String,
    /// Whether the broker has a history.
    history: bool,
    /// Their events, in order.
    steps: Vec<StepAnswer>,
    /// Whether there are more steps.
    truncated: bool,
    /// Their present locations.
    now: Vec<LocationAnswer>,
    /// Whether queues have more messages in memory than were looked at.
    not_all_looked_at: bool,
}

/// An event of a message. A message that moves to another queue gets another number there.
#[derive(Serialize, ToSchema)]
pub(crate) struct StepAnswer {
    shard: u32,
    number: u64,
    /// Time in Unix milliseconds.
    at_ms: i64,
    /// `produced`, `saved`, `delivered`, `acked`, ...
    kind: String,
    queue: Option<String>,
    attempt: Option<i32>,
    reason: Option<String>,
    /// The queue to which a dead letter goes.
    target: Option<String>,
    /// Whether the message left its queue with this event.
    last: bool,
    producer: Option<TracedClientAnswer>,
    consumer: Option<TracedClientAnswer>,
}

/// The present location of a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct LocationAnswer {
    shard: usize,
    number: u64,
    queue: String,
    /// `undecided`, `waiting`, `delayed` or `delivered`.
    state: &'static str,
    /// When a delayed message is delivered, in Unix milliseconds.
    until_ms: Option<u64>,
    /// Consumers that have it.
    consumers: Vec<TracedClientAnswer>,
    /// Deliveries so far.
    attempts: u16,
    /// How often it was requeued.
    put_backs: u16,
    saved: bool,
    producer: Option<TracedClientAnswer>,
}

/// A client that produced or received a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct TracedClientAnswer {
    id: String,
    name: Option<String>,
    r#type: Option<String>,
    protocol: String,
}

#[utoipa::path(
    get,
    path = "/trace/{id}",
    tag = "queues",
    params(("id" = String, Path, description = "The id of the message")),
    responses(
        (status = 200, description = "Locations of the message, and its lifecycle events", body = TraceAnswer),
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
    let now: Vec<LocationAnswer> = locations
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
    let steps = steps.into_iter().map(|step| step.answer).collect();
    Json(TraceAnswer { id, history: kept, steps, truncated, now, not_all_looked_at: more }).into_response()
}

fn who(client: &Client) -> TracedClientAnswer {
    TracedClientAnswer {
        id: client.id.to_string(),
        name: client.name.as_deref().map(Into::into),
        r#type: client.kind.as_deref().map(Into::into),
        protocol: client.protocol.into(),
    }
}

fn describe(shard: usize, location: &Location) -> LocationAnswer {
    let (state, until, consumers) = match &location.state {
        LocationState::Undecided => ("undecided", None, None),
        LocationState::Waiting => ("waiting", None, None),
        LocationState::Delayed(until) => ("delayed", Some(until.0), None),
        LocationState::Delivered(consumers) => ("delivered", None, Some(consumers)),
    };
    LocationAnswer {
        shard,
        number: location.number.0,
        queue: location.queue.to_string(),
        state,
        until_ms: until,
        consumers: consumers.into_iter().flatten().map(|client| who(client)).collect(),
        attempts: location.attempts,
        put_backs: location.requeues,
        saved: location.saved,
        producer: location.producer.as_deref().map(who),
    }
}

// ---- History -------------------------------------------------------------------------------------------------------

/// A step read from the history.
struct HistoryStep {
    key: Key,
    at_us: i64,
    answer: StepAnswer,
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
            if rows.column(1).is_null(row) {
                continue;
            }
            let number = numbers.value(row).cast_unsigned();
            let shard = shards.value(row).cast_unsigned();
            let mut named: Vec<Key> = Vec::new();
            for (first, last) in ranges_of(rows, row).unwrap_or_else(|| vec![(number, number)]) {
                named.extend(keys.range((shard, first)..=(shard, last)));
            }
            named.truncate(STEPS_MAX - steps.len());
            steps.extend(named.into_iter().map(|key| HistoryStep {
                key,
                at_us: times.value(row),
                answer: describe_step(rows, row, key),
            }));
        }
    })?;
    steps.sort_by_key(|step| step.at_us);
    Ok((kept, steps))
}

/// The first three are read by index; for the others see [`describe_step`].
const COLUMNS: [&str; 18] = [
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
    "numbers",
];

/// Index of `numbers` in [`COLUMNS`].
const NUMBERS: usize = 17;

/// First and last numbers of the messages that a step stands for; `None`: it stands for one message.
fn ranges_of(rows: &RecordBatch, row: usize) -> Option<Vec<(u64, u64)>> {
    let ranges = rows.column(NUMBERS).as_list::<i32>();
    let ranges = ranges.is_valid(row).then(|| ranges.value(row))?;
    let ranges = ranges.as_struct();
    let [first, last] =
        [0, 1].map(|column| ranges.column(column).as_primitive::<Int64Type>().values().to_vec());
    let unsigned = |(first, last): (i64, i64)| (first.cast_unsigned(), last.cast_unsigned());
    Some(first.into_iter().zip(last).map(unsigned).collect())
}

fn each_batch(
    history: &HistoryDir,
    columns: &[&str],
    show: &mut dyn FnMut(&RecordBatch),
) -> Result<(), HistoryError> {
    let request = json!({"view": "steps", "columns": columns}).to_string();
    let request = Arc::new(HistoryRequest::parse(&request)?);
    for ends in history.ends()? {
        let stretch = (ends.shard, ends.earliest..ends.latest);
        for piece in history.pieces(&request, &[stretch], Division::in_order(PIECE_BYTES))? {
            // Rows that retention removes meanwhile are missing from the response.
            for batch in history.read(&request, &piece, false)? {
                show(&batch?);
            }
        }
    }
    Ok(())
}

fn describe_step(rows: &RecordBatch, row: usize, (shard, number): Key) -> StepAnswer {
    let text = |column: usize| {
        let column = rows.column(column);
        column.is_valid(row).then(|| column.as_string::<i32>().value(row).to_owned())
    };
    let who = |first: usize| {
        Some(TracedClientAnswer {
            id: text(first)?,
            name: text(first + 1),
            r#type: text(first + 2),
            protocol: text(first + 3).unwrap_or_default(),
        })
    };
    let attempt = rows.column(3);
    StepAnswer {
        shard,
        number,
        at_ms: rows.column(2).as_primitive::<TimestampMicrosecondType>().value(row) / 1000,
        attempt: attempt.is_valid(row).then(|| attempt.as_primitive::<Int32Type>().value(row)),
        last: rows.column(4).as_boolean().value(row),
        kind: text(5).unwrap_or_default(),
        queue: text(6),
        reason: text(7),
        target: text(8),
        producer: who(9),
        consumer: who(13),
    }
}
