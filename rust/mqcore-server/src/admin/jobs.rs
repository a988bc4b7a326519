//! `GET /jobs`: queues of jobs with their waiting, running and failed jobs, running jobs, and the workers.
//!
//! A failed job is a dead letter. `POST /queues/CHANNEL/ID/move` returns it to its queue, where a worker runs it again.

use std::collections::{BTreeSet, HashMap};

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::options::DeadLetter;
use mqcore_broker::model::stats::QueueInformation;
use mqcore_session::job_figures::{JobQueueFigures, WorkerFigures};
use mqcore_session::jobs::{JobLedger, RunningJob};
use serde::{Deserialize, Serialize};
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
    /// Number of all running jobs that can be cancelled. Workers of the original EventMQ cannot be asked to end a job.
    running_total: usize,
    /// Up to `limit` of them, those that run longest first.
    running: Vec<RunningJobAnswer>,
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

/// A running job.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunningJobAnswer {
    id: String,
    /// Its queue, `CHANNEL/ID`.
    queue: String,
    /// The name of its worker; null while its connection ends.
    worker: Option<String>,
    /// Seconds since the worker got it.
    seconds: f64,
    /// Its last report of progress, from 0 to 1; null without one.
    progress: Option<f64>,
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
    let matches = |queue: &JobQueueFigures| {
        queue.name.to_lowercase().contains(&filter)
            || queue.queue.to_string().to_lowercase().contains(&filter)
    };
    jobs.queues.retain(matches);
    jobs.workers.sort_by(|one, other| one.name.cmp(&other.name));
    let shown: Vec<_> = jobs.queues.iter().skip(offset).take(limit).collect();
    let served = served_by(&jobs.workers);
    let described = describe_queues(admin, &shown, &served);
    let queues = match tokio::time::timeout(SHARD_TIMEOUT, described).await {
        Ok(queues) if admin.hub.shutdown.is_running() => queues,
        Ok(_) => return Err(error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")),
        Err(_) => return Err(busy()),
    };
    let now = admin.hub.clock.now().0;
    let running = admin.hub.schedules.board().longest_running(limit);
    let names = jobs.workers.iter().map(|worker| (worker.connection, &*worker.name)).collect();
    Ok(JobsAnswer {
        total,
        matched: jobs.queues.len(),
        offset,
        limit,
        queues,
        workers_total: jobs.workers.len(),
        workers: jobs.workers.iter().take(limit).map(|worker| describe_worker(worker, now)).collect(),
        running_total: running.total,
        running: running.jobs.iter().map(|(id, job)| describe_running(id, job, &names, now)).collect(),
    })
}

/// Number of workers by the queues that they serve, with names in lower case.
fn served_by(workers: &[WorkerFigures]) -> HashMap<String, usize> {
    let mut served = HashMap::new();
    for worker in workers {
        let queues = worker.queues.iter().filter_map(|(name, _)| QueueAddress::parse(name).ok());
        for queue in queues.map(|queue| key(&queue)).collect::<BTreeSet<_>>() {
            *served.entry(queue).or_default() += 1;
        }
    }
    served
}

fn key(queue: &QueueAddress) -> String {
    queue.to_string().to_ascii_lowercase()
}

/// Asks the shards for all queues at once, and then for all their dead-letter queues.
async fn describe_queues(
    admin: &Admin,
    jobs: &[&JobQueueFigures],
    served: &HashMap<String, usize>,
) -> Vec<JobQueueAnswer> {
    let found = snapshot::queues(&admin.hub, jobs.iter().map(|jobs| Some(jobs.queue.clone()))).await;
    let letters: Vec<_> =
        jobs.iter().zip(&found).map(|(jobs, found)| dead_letters(jobs, found.as_ref())).collect();
    let failed = snapshot::queues(&admin.hub, letters.iter().cloned()).await;
    let all = jobs.iter().zip(found).zip(letters.into_iter().zip(failed));
    all.map(|((jobs, found), (letters, failed))| {
        let measured = |millis| (jobs.finished > 0).then_some(millis);
        let delayed = found.as_ref().map_or(0, |queue| queue.delayed);
        JobQueueAnswer {
            name: jobs.name.clone().into(),
            queue: jobs.queue.to_string(),
            waiting: found.as_ref().map_or(0, stored).saturating_sub(delayed),
            delayed,
            running: jobs.running,
            finished: jobs.finished,
            workers: served.get(&key(&jobs.queue)).copied().unwrap_or(0),
            latency_ms: measured(jobs.latency_ms),
            latency_max_ms: measured(jobs.latency_max_ms),
            // The broker creates the queue for the first dead letter.
            failed: letters.as_ref().map(|_| failed.as_ref().map_or(0, stored)),
            failed_queue: letters.map(|queue| queue.to_string()),
        }
    })
    .collect()
}

/// The queue for failed jobs; `None`: they are dropped.
fn dead_letters(jobs: &JobQueueFigures, found: Option<&QueueInformation>) -> Option<QueueAddress> {
    match found.and_then(|queue| queue.options.dead_letter.as_ref()) {
        None => Some(jobs.queue.dead_letters()),
        Some(DeadLetter::Queue(queue)) => Some(queue.clone()),
        Some(DeadLetter::Drop) => None,
    }
}

fn stored(queue: &QueueInformation) -> u64 {
    queue.high_priority + queue.normal
}

/// The part of a report that is a number.
#[derive(Deserialize)]
struct ReportedProgress {
    fraction: f64,
}

fn describe_running(
    id: &[u8],
    job: &RunningJob,
    workers: &HashMap<ConnectionId, &str>,
    now_ms: u64,
) -> RunningJobAnswer {
    let report = job.progress.as_deref().and_then(|text| serde_json::from_str::<ReportedProgress>(text).ok());
    RunningJobAnswer {
        id: String::from_utf8_lossy(id).into_owned(),
        queue: job.queue.to_string(),
        worker: workers.get(&job.worker).map(|name| (*name).to_owned()),
        seconds: now_ms.saturating_sub(job.began.0) as f64 / 1000.0,
        progress: report.map(|report| report.fraction),
    }
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
