//! `POST /jobs/ID/cancel`: cancels a job, as the command CANCEL of EventMQ does.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_session::jobs::{JOB_ID_BYTES_MAX, JobEnd, LedgerRequest};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::changes::{Body, parse_queue};
use crate::admin::request::{Admin, PathText, bad_request, error};

/// Time for a cancellation to become durable.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// How to cancel a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CancelJobBody {
    /// Its queue. It may be missing if the job runs, has ended or is part of a flow.
    #[serde(default)]
    queue: Option<String>,
    /// Whether the process of a running job is killed (false: the job is asked to end).
    #[serde(default)]
    hard: bool,
}

/// The result of a cancellation.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobCancelAnswer {
    /// The id of the job.
    id: String,
    /// Whether it is cancelled; false if it has ended already.
    cancelled: bool,
    /// Its state before: `waiting`, `running`, `done`, `failed` or `cancelled`; `unknown` for a job of a flow in another queue.
    state: String,
    /// Its queue, `CHANNEL/ID`.
    queue: String,
}

/// An answer of the ledger of jobs.
#[derive(Deserialize)]
struct LedgerAnswer {
    #[serde(default)]
    state: String,
    #[serde(default)]
    cancelled: bool,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    error: Option<LedgerError>,
}

#[derive(Deserialize)]
struct LedgerError {
    message: String,
}

/// Responds when the cancellation is durable.
#[utoipa::path(
    post,
    path = "/jobs/{id}/cancel",
    tag = "jobs",
    params(("id" = String, Path, description = "The id of the job", min_length = 1, max_length = 255)),
    request_body = Option<CancelJobBody>,
    responses(
        (status = 200, description = "The job is cancelled, or has ended already", body = JobCancelAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "The request names no queue, and no job with this id runs", body = ErrorAnswer),
        (status = 507, description = "The cancellation cannot be saved", body = ErrorAnswer),
    )
)]
pub(crate) async fn cancel(
    State(admin): State<Admin>,
    PathText(id): PathText,
    Body(CancelJobBody { queue, hard }): Body<CancelJobBody>,
) -> Result<Response, Response> {
    if id.is_empty() || id.len() > JOB_ID_BYTES_MAX {
        let message = format!("the id of a job has 1 to {JOB_ID_BYTES_MAX} bytes, not {}", id.len());
        return Err(bad_request(&message));
    }
    let queue = match queue {
        Some(queue) => parse_queue(&queue)?,
        None => {
            let known = look_up(&admin, &id).await?;
            let Some(queue) = &known.queue else { return Err(unknown(&id)) };
            if has_ended(&known.state) {
                let (state, queue) = (known.state.clone(), queue.clone());
                return Ok(Json(JobCancelAnswer { id, cancelled: false, state, queue }).into_response());
            }
            parse_queue(queue)?
        }
    };
    let request = LedgerRequest::Cancel {
        request: id.as_bytes().into(),
        job: id.as_bytes().into(),
        queue: queue.clone(),
        hard,
    };
    let LedgerAnswer { cancelled, state, .. } = ask(&admin, request).await?;
    if cancelled {
        tracing::info!(job = %id, %queue, hard, "an administrator cancelled a job");
    }
    Ok(Json(JobCancelAnswer { id, cancelled, state, queue: queue.to_string() }).into_response())
}

/// The state and the queue of a job, as far as the ledger knows them.
async fn look_up(admin: &Admin, id: &str) -> Result<LedgerAnswer, Response> {
    ask(admin, LedgerRequest::Lookup { request: id.as_bytes().into(), job: id.as_bytes().into() }).await
}

/// Whether a job in this state has ended by itself. Cancelling a cancelled job again may kill it.
fn has_ended(state: &str) -> bool {
    [JobEnd::Done, JobEnd::Failed].iter().any(|end| end.as_str() == state)
}

async fn ask(admin: &Admin, request: LedgerRequest) -> Result<LedgerAnswer, Response> {
    let answer = admin.hub.schedules.ask_about_job(request);
    let answer = match tokio::time::timeout(CANCEL_TIMEOUT, answer).await {
        Ok(Some(JobNotice::Told { message, .. })) => message,
        Ok(_) => return Err(error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")),
        Err(_) => {
            let message =
                "the cancellation is not saved after 10 s; cancel the job again to see whether it is";
            return Err(error(StatusCode::INSUFFICIENT_STORAGE, "not-saved", message));
        }
    };
    let answer: LedgerAnswer = serde_json::from_slice(answer.body())
        .map_err(|refused| error(StatusCode::SERVICE_UNAVAILABLE, "busy", &refused.to_string()))?;
    match answer.error {
        Some(refused) => Err(error(StatusCode::SERVICE_UNAVAILABLE, "busy", &refused.message)),
        None => Ok(answer),
    }
}

fn unknown(id: &str) -> Response {
    let message = format!(
        "no worker runs job {id:?}, so its queue is unknown; name the queue, such as {{\"queue\": \"default\"}}"
    );
    error(StatusCode::NOT_FOUND, "not-found", &message)
}
