//! `GET /jobs`: queues of jobs with their waiting, running and failed jobs, and the workers.
//!
//! A failed job is a dead letter. `POST /queues/CHANNEL/ID/move` returns it to its queue, where a worker runs it again.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::DeadLetter;
use mqcore_broker::model::stats::QueueInformation;
use mqcore_session::job_figures::{JobQueueFigures, WorkerFigures};
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::parameters::PageParameters;
use crate::admin::request::{Admin, SHARD_TIMEOUT, busy, error, filter, list_limit, number};
use crate::stats::snapshot;

/// Queues of jobs, and workers.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobsAnswer {
    /// Number of all queues of jobs.
    total: usize,
    /// Number of queues that the filter matches.
    matched: usize,
    offset: usize,
    limit: usize,
    /// Queues that workers or clients have used since the start, by name.
    queues: Vec<JobQueueAnswer>,
    /// Number of connected workers.
    workers_total: usize,
    /// The first `limit` of them, by name.
    workers: Vec<WorkerAnswer>,
}

/// A queue of jobs. Counts of running and finished jobs begin with the broker's start.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobQueueAnswer {
    /// The name by which workers know the queue.
    name: String,
    /// Its address, `CHANNEL/ID`.
    queue: String,
    /// Jobs that a worker could take now.
    waiting: u64,
    /// Jobs that wait for the time of their next attempt.
    delayed: u64,
    /// Jobs that workers have.
    running: u64,
    finished: u64,
    /// Connected workers that serve the queue.
    workers: usize,
    /// Milliseconds that the last job took; null if none has finished.
    latency_ms: Option<u64>,
    /// The longest time in milliseconds; null if none has finished.
    latency_max_ms: Option<u64>,
    /// Jobs that failed for good and wait in `failed_queue`; null if failed jobs are dropped.
    failed: Option<u64>,
    /// The dead-letter queue. It may contain messages of other queues.
    failed_queue: Option<String>,
}

/// A connected worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkerAnswer {
    /// Its identity, or the number of its connection.
    name: String,
    /// The user or token of its login.
    user: Option<String>,
    /// Its queues.
    queues: Vec<ServedQueueAnswer>,
    /// Jobs that it can take now.
    free: u32,
    finished: u64,
    /// Seconds since the broker heard it.
    silent_seconds: f64,
}

/// A queue that a worker serves.
#[derive(Serialize, ToSchema)]
pub(crate) struct ServedQueueAnswer {
    name: String,
    /// Free workers with the largest weight get the next job.
    weight: i32,
}

#[utoipa::path(
    get,
    path = "/jobs",
    tag = "jobs",
    params(PageParameters),
    responses(
        (status = 200, description = "Queues of jobs, and workers", body = JobsAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, uri: Uri) -> Response {
    match page(&admin, &uri).await {
        Ok(page) => Json(page).into_response(),
        Err(response) => response,
    }
}

async fn page(admin: &Admin, uri: &Uri) -> Result<JobsAnswer, Response> {
    let (limit, offset) = (list_limit(uri)?, number(uri, "offset", 0, usize::MAX)?);
    let filter = filter(uri)?;
    let mut jobs = admin.hub.shared.jobs();
    let total = jobs.queues.len();
    jobs.queues.retain(|queue| queue.name.to_lowercase().contains(&filter));
    jobs.workers.sort_by(|one, other| one.name.cmp(&other.name));
    let shown = jobs.queues.iter().skip(offset).take(limit);
    let described = async {
        let mut queues = Vec::new();
        for queue in shown {
            queues.push(describe_queue(admin, queue, &jobs.workers).await?);
        }
        Some(queues)
    };
    let queues = match tokio::time::timeout(SHARD_TIMEOUT, described).await {
        Ok(Some(queues)) => queues,
        Ok(None) => return Err(error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")),
        Err(_) => return Err(busy()),
    };
    let now = admin.hub.clock.now().0;
    Ok(JobsAnswer {
        total,
        matched: jobs.queues.len(),
        offset,
        limit,
        queues,
        workers_total: jobs.workers.len(),
        workers: jobs.workers.iter().take(limit).map(|worker| describe_worker(worker, now)).collect(),
    })
}

/// `None`: the server is stopping.
async fn describe_queue(
    admin: &Admin,
    jobs: &JobQueueFigures,
    workers: &[WorkerFigures],
) -> Option<JobQueueAnswer> {
    if !admin.hub.shutdown.is_running() {
        return None;
    }
    let found = snapshot::queue(&admin.hub, jobs.queue.clone()).await;
    let failed_queue = match found.as_ref().and_then(|queue| queue.options.dead_letter.as_ref()) {
        None => Some(jobs.queue.dead_letters()),
        Some(DeadLetter::Queue(queue)) => Some(queue.clone()),
        Some(DeadLetter::Drop) => None,
    };
    let failed = match &failed_queue {
        // The broker creates it for the first dead letter.
        Some(queue) => Some(snapshot::queue(&admin.hub, queue.clone()).await.as_ref().map_or(0, stored)),
        None => None,
    };
    let serves = |worker: &&WorkerFigures| {
        let mut served = worker.queues.iter().filter_map(|(name, _)| QueueAddress::parse(name).ok());
        served.any(|queue| queue.is(&jobs.queue))
    };
    let measured = |millis| (jobs.finished > 0).then_some(millis);
    let delayed = found.as_ref().map_or(0, |queue| queue.delayed);
    Some(JobQueueAnswer {
        name: jobs.name.clone().into(),
        queue: jobs.queue.to_string(),
        waiting: found.as_ref().map_or(0, stored).saturating_sub(delayed),
        delayed,
        running: jobs.running,
        finished: jobs.finished,
        workers: workers.iter().filter(serves).count(),
        latency_ms: measured(jobs.latency_ms),
        latency_max_ms: measured(jobs.latency_max_ms),
        failed,
        failed_queue: failed_queue.map(|queue| queue.to_string()),
    })
}

fn stored(queue: &QueueInformation) -> u64 {
    queue.high_priority + queue.normal
}

fn describe_worker(worker: &WorkerFigures, now_ms: u64) -> WorkerAnswer {
    let queues = worker.queues.iter();
    WorkerAnswer {
        name: worker.name.clone(),
        user: worker.user.as_deref().map(Into::into),
        queues: queues
            .map(|(name, weight)| ServedQueueAnswer { name: name.clone(), weight: *weight })
            .collect(),
        free: worker.free,
        finished: worker.finished,
        silent_seconds: now_ms.saturating_sub(worker.heard.0) as f64 / 1000.0,
    }
}
