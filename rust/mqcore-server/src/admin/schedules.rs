//! `GET /schedules`: lists schedules; `DELETE /schedules/ID`: removes one.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::id::QueueAddress;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::parameters::LimitParameter;
use crate::admin::request::{Admin, PathText, SHARD_TIMEOUT, busy, error, list_limit};
use crate::config::mask::{HIDDEN, MaskConfig, Shown};
use crate::schedules::{EndScheduleError, EntryId, ScheduleView};

/// Time for the removal of a schedule to become durable.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Schedules.
#[derive(Serialize, ToSchema)]
pub(crate) struct SchedulesAnswer {
    /// Number of all schedules.
    total: u64,
    schedules: Vec<ScheduleAnswer>,
    limit: usize,
}

/// A schedule and its progress.
#[derive(Serialize, ToSchema)]
pub(crate) struct ScheduleAnswer {
    /// A hash of its call.
    id: String,
    queue: String,
    headers: String,
    /// The JSON of the job; a long one is cut.
    job: String,
    /// Milliseconds between two runs; null if it has a cron expression.
    interval_ms: Option<u64>,
    cron: Option<String>,
    timezone: Option<String>,
    /// Missed runs that are made later: `none`, `latest` or `all`.
    catch_up: &'static str,
    /// The next run in Unix milliseconds.
    due_ms: u64,
    /// Runs so far.
    runs: u64,
    /// Remaining runs; null: unlimited.
    left: Option<u64>,
}

/// A schedule that was ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct ScheduleEnded {
    /// Its id.
    ended: String,
}

#[utoipa::path(
    get,
    path = "/schedules",
    tag = "jobs",
    params(LimitParameter),
    responses(
        (status = 200, description = "Schedules in the order in which they are due", body = SchedulesAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn list(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit,
        Err(response) => return response,
    };
    match tokio::time::timeout(SHARD_TIMEOUT, admin.hub.schedules.list(limit)).await {
        Ok(Some(list)) => {
            let schedules = list.schedules.iter().map(|schedule| describe(schedule, &admin.mask)).collect();
            Json(SchedulesAnswer { total: list.total, schedules, limit }).into_response()
        }
        Ok(None) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"),
        Err(_) => busy(),
    }
}

fn describe(schedule: &ScheduleView, mask: &MaskConfig) -> ScheduleAnswer {
    let queue =
        QueueAddress::parse(&schedule.queue).map_or_else(|_| String::new(), |queue| queue.to_string());
    let shown =
        if mask.hides_bodies_of(&queue) { Shown::Nothing } else { mask.body(schedule.job.as_bytes()) };
    let job = match shown {
        Shown::AsItIs => schedule.job.clone(),
        Shown::Rewritten { text, .. } => text,
        Shown::Nothing => HIDDEN.into(),
    };
    let (cron, timezone) = schedule.cron.clone().unzip();
    ScheduleAnswer {
        id: schedule.id.to_string(),
        queue: schedule.queue.clone(),
        headers: schedule.headers.clone(),
        job,
        interval_ms: schedule.interval_ms,
        cron,
        timezone,
        catch_up: schedule.catch_up,
        due_ms: schedule.due_ms,
        runs: schedule.runs,
        left: schedule.left.map(Into::into),
    }
}

/// Responds when the removal is durable. A crash after the response does not bring the schedule back.
#[utoipa::path(
    delete,
    path = "/schedules/{id}",
    tag = "jobs",
    params(("id" = String, Path, description = "Its id, 40 hexadecimal digits")),
    responses(
        (status = 200, description = "The schedule is ended", body = ScheduleEnded),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 507, description = "The end cannot be saved", body = ErrorAnswer),
    )
)]
pub(crate) async fn end(State(admin): State<Admin>, PathText(id): PathText) -> Response {
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
    let Err(refused) = ended else { return Json(ScheduleEnded { ended: id.to_string() }).into_response() };
    let (status, code) = match refused {
        EndScheduleError::Missing(_) => (StatusCode::NOT_FOUND, "not-found"),
        EndScheduleError::Failing => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        EndScheduleError::NotSaved { .. } => (StatusCode::INSUFFICIENT_STORAGE, "not-saved"),
        EndScheduleError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    error(status, code, &refused.to_string())
}
