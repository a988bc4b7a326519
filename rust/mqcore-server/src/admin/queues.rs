//! `GET /queues`: queues with their contents and rates, sorted, filtered and paged here, so that a page of ten thousand queues
//! costs no more than one of ten.

use std::cmp::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::stats::QueueSample;

use crate::admin::answers::{ErrorAnswer, QueueRow, QueuesAnswer};
use crate::admin::parameters::{OrderParameters, PageParameters};
use crate::admin::request::{
    Admin, SHARD_TIMEOUT, bad_request, busy, error, filter, flag, list_limit, number, parameter,
};
use crate::attention::rates::QueueRates;
use crate::stats::snapshot;

/// A queue and its rates.
struct Row {
    sample: QueueSample,
    rates: QueueRates,
}

/// How rows compare in the order of a column.
type Compare = fn(&Row, &Row) -> Ordering;

/// The columns by which a list can be sorted. Numbers are in descending order, because the largest are of interest.
const COLUMNS: [(&str, Compare); 10] = [
    ("name", |left, right| left.sample.queue.cmp(&right.sample.queue)),
    ("ready", |left, right| right.sample.ready.cmp(&left.sample.ready)),
    ("delayed", |left, right| right.sample.delayed.cmp(&left.sample.delayed)),
    ("in_flight", |left, right| right.sample.in_flight.cmp(&left.sample.in_flight)),
    ("consumers", |left, right| right.sample.consumers.cmp(&left.sample.consumers)),
    ("oldest", |left, right| arrival(left).cmp(&arrival(right))),
    ("received", |left, right| right.rates.received.total_cmp(&left.rates.received)),
    ("delivered", |left, right| right.rates.delivered.total_cmp(&left.rates.delivered)),
    ("growth", |left, right| right.rates.growth.total_cmp(&left.rates.growth)),
    ("dead_lettered", |left, right| right.sample.stats.dead_lettered.cmp(&left.sample.stats.dead_lettered)),
];

/// When the oldest message arrived; queues without messages come last.
fn arrival(row: &Row) -> u64 {
    match row.sample.oldest_ms {
        0 => u64::MAX,
        at => at,
    }
}

#[utoipa::path(
    get,
    path = "/queues",
    tag = "queues",
    params(PageParameters, OrderParameters),
    responses(
        (status = 200, description = "A page of queues", body = QueuesAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, uri: Uri) -> Response {
    let query = match Query::of(&uri) {
        Ok(query) => query,
        Err(response) => return response,
    };
    match page(&admin, &query).await {
        Ok(page) => Json(page).into_response(),
        Err(response) => response,
    }
}

/// A page of queues.
pub(super) async fn page(admin: &Admin, query: &Query) -> Result<QueuesAnswer, Response> {
    let samples = match tokio::time::timeout(SHARD_TIMEOUT, snapshot::samples(&admin.hub, None)).await {
        Ok(Some(samples)) => samples,
        Ok(None) => {
            return Err(error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"));
        }
        Err(_) => return Err(busy()),
    };
    let total = samples.len();
    let mut rows: Vec<Row> = {
        let tracks = admin.hub.attention.tracks();
        let matching = samples.into_iter().filter(|sample| query.matches(sample));
        matching
            .map(|sample| {
                let rates = tracks.get(&sample.queue).map(|track| track.rates).unwrap_or_default();
                Row { sample, rates }
            })
            .collect()
    };
    rows.sort_unstable_by(|left, right| {
        let order = (query.compare)(left, right);
        let order = if query.is_reversed { order.reverse() } else { order };
        order.then_with(|| left.sample.queue.cmp(&right.sample.queue))
    });
    let now = admin.hub.clock.now().0;
    Ok(QueuesAnswer {
        total,
        matched: rows.len(),
        offset: query.offset,
        limit: query.limit,
        queues: rows.iter().skip(query.offset).take(query.limit).map(|row| describe(row, now)).collect(),
    })
}

/// The parameters of a request.
pub(super) struct Query {
    /// Lower-case text that names contain.
    filter: String,
    compare: Compare,
    is_reversed: bool,
    offset: usize,
    limit: usize,
}

impl Query {
    #[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
    pub(super) fn of(uri: &Uri) -> Result<Self, Response> {
        let column = parameter(uri, "sort").unwrap_or("name");
        let Some((_, compare)) = COLUMNS.into_iter().find(|(name, _)| *name == column) else {
            let known = COLUMNS.map(|(name, _)| name).join(", ");
            return Err(bad_request(&format!("sort by one of {known}, such as ?sort=ready")));
        };
        let is_reversed = flag(uri, "reverse")?;
        let offset = number(uri, "offset", 0, usize::MAX)?;
        Ok(Self { filter: filter(uri)?, compare, is_reversed, offset, limit: list_limit(uri)? })
    }

    fn matches(&self, sample: &QueueSample) -> bool {
        self.filter.is_empty() || sample.queue.to_string().to_lowercase().contains(&self.filter)
    }
}

fn describe(row: &Row, now: u64) -> QueueRow {
    let Row { sample, rates } = row;
    let age = |at: u64| (at > 0).then(|| now.saturating_sub(at) as f64 / 1000.0);
    QueueRow {
        queue: sample.queue.to_string(),
        status: sample.status.as_str(),
        delivery_handler: sample.handler.as_deref().map(Into::into),
        missing_handler: sample.missing_handler.as_deref().map(Into::into),
        dead_letter: sample.dead_letter.as_ref().map(ToString::to_string),
        ready: sample.ready,
        delayed: sample.delayed,
        in_flight: sample.in_flight,
        undecided: sample.undecided,
        consumers: sample.consumers.into(),
        oldest_seconds: age(sample.oldest_ms),
        block: sample.block.map(|block| block.as_str()),
        memory_bytes: sample.memory_bytes,
        rates: rates.into(),
        messages: (&sample.stats).into(),
    }
}
