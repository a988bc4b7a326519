//! `GET /schedules`: lists schedules; `DELETE /schedules/ID`: removes one.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::admin::request::{Admin, SHARD_TIMEOUT, busy, error, list_limit};
use crate::schedules::{EndScheduleError, EntryId, ScheduleView};

/// Time for the removal of a schedule to become durable.
const END_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn list(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit,
        Err(response) => return response,
    };
    match tokio::time::timeout(SHARD_TIMEOUT, admin.hub.schedules.list(limit)).await {
        Ok(Some(list)) => {
            let schedules: Vec<Value> = list.schedules.iter().map(describe).collect();
            Json(json!({"total": list.total, "schedules": schedules, "limit": limit})).into_response()
        }
        Ok(None) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"),
        Err(_) => busy(),
    }
}

fn describe(schedule: &ScheduleView) -> Value {
    let (cron, timezone) = schedule.cron.as_ref().map(|(cron, timezone)| (cron, timezone)).unzip();
    json!({
        "id": schedule.id.to_string(),
        "queue": schedule.queue,
        "headers": schedule.headers,
        "job": schedule.job,
        "interval_ms": schedule.interval_ms,
        "cron": cron,
        "timezone": timezone,
        "catch_up": schedule.catch_up,
        "due_ms": schedule.due_ms,
        "runs": schedule.runs,
        "left": schedule.left,
    })
}

/// Responds when the removal is durable. A crash after the response does not bring the schedule back.
pub(crate) async fn end(State(admin): State<Admin>, Path(id): Path<String>) -> Response {
    let id: EntryId = match id.parse() {
        Ok(id) => id,
        Err(refused) => return error(StatusCode::BAD_REQUEST, "bad-request", &format!("{id:?}: {refused}")),
    };
    let ended = match tokio::time::timeout(END_TIMEOUT, admin.hub.schedules.end_schedule(id)).await {
        Ok(ended) => ended,
        Err(_) => {
            let message =
                "cannot save the end of the schedule within 10 s; look at /schedules whether it still exists";
            return error(StatusCode::INSUFFICIENT_STORAGE, "not-saved", message);
        }
    };
    let Err(refused) = ended else { return Json(json!({"ended": id.to_string()})).into_response() };
    let (status, code) = match refused {
        EndScheduleError::Missing(_) => (StatusCode::NOT_FOUND, "not-found"),
        EndScheduleError::Failing => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        EndScheduleError::NotSaved { .. } => (StatusCode::INSUFFICIENT_STORAGE, "not-saved"),
        EndScheduleError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    error(status, code, &refused.to_string())
}
