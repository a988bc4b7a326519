//! `GET /limits`: counters and buffers of the limiter; `POST /limits/KEY`: changes a counter; `DELETE /limits/KEY`: removes an
//! entry, which makes its full limit available again.
//!
//! A key in a path is percent-encoded. With `?base64=1` it is base64 for URLs, which can express keys that are not UTF-8.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mqcore_limiter::limiter::{Adjust, Limiter};
use mqcore_limiter::listing::ListedEntry;
use mqcore_limiter::time::Nanos;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::changes::Body;
use crate::admin::parameters::PageParameters;
use crate::admin::request::{Admin, PathText, bad_request, error, filter, flag, number, parameter};
use crate::hub::Hub;

/// Entries of one response: default and maximum.
const SHOWN: (usize, usize) = (100, 1_000);
const OFFSET_MAX: usize = 10_000;

/// A search ends after this many entries or this time. The answer reports that as not complete.
const SCANNED_MAX: u64 = 2_000_000;
const SCAN_TIME: Duration = Duration::from_millis(500);
/// Entries between two looks at the time.
const SLICE: u64 = 1_024;

/// A page of counters and buffers.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitsAnswer {
    /// Number of all entries, with those that have expired and are not yet removed.
    total: u64,
    /// Number of found entries that the filter matches.
    matched: u64,
    /// Whether the whole store was searched. If not, use a filter, or list them over the listener of limits.
    complete: bool,
    offset: usize,
    limit: usize,
    limits: Vec<LimitAnswer>,
}

/// A counter or buffer.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitAnswer {
    /// Its key as text; bytes that are not UTF-8 are replaced.
    key: String,
    /// Its key in base64 for URLs.
    key_base64: String,
    /// `counter` or `buffer`.
    kind: &'static str,
    /// Remaining quota; 0 for a buffer.
    left: u64,
    /// Bytes of a buffer; null for a counter.
    buffer_bytes: Option<u64>,
    /// Seconds until it expires; null: never.
    expires_in_seconds: Option<f64>,
    /// Reads in the last full minute.
    reads_per_minute: u64,
    /// Writes in the last full minute.
    writes_per_minute: u64,
}

/// A changed counter.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitChanged {
    key: String,
    left: u64,
}

/// A removed entry.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitRemoved {
    removed: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitBody {
    /// The new quota. Counters of fewer bits keep its lower bits.
    left: u64,
}

#[utoipa::path(
    get,
    path = "/limits",
    tag = "limits",
    params(
        PageParameters,
        ("sort" = Option<String>, Query, description = "key, or the largest first: left, expires, reads, writes"),
        ("reverse" = Option<u8>, Query, minimum = 0, maximum = 1, description = "1: the other way around"),
    ),
    responses(
        (status = 200, description = "Counters and buffers of the limiter", body = LimitsAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn list(State(admin): State<Admin>, uri: Uri) -> Response {
    let search = match Search::of(&uri) {
        Ok(search) => search,
        Err(response) => return response,
    };
    let hub = Arc::clone(&admin.hub);
    // A search of millions of entries must not hold up other requests.
    let found = admin.hub.runtime.spawn_blocking(move || search.run(&hub.limiter, now(&hub))).await;
    match found {
        Ok(page) => Json(page).into_response(),
        Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"),
    }
}

fn now(hub: &Hub) -> Nanos {
    Nanos(hub.clock.nanos())
}

type Compare = fn(&ListedEntry, &ListedEntry) -> Ordering;

/// The parameters of a request.
struct Search {
    /// Lower-case text that keys contain.
    filter: String,
    compare: Compare,
    is_reversed: bool,
    offset: usize,
    limit: usize,
}

impl Search {
    #[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
    fn of(uri: &Uri) -> Result<Self, Response> {
        let compare: Compare = match parameter(uri, "sort") {
            None | Some("key") => |left, right| left.key.cmp(&right.key),
            Some("left") => |left, right| right.quota.cmp(&left.quota),
            Some("expires") => |left, right| right.deadline.cmp(&left.deadline),
            Some("reads") => |left, right| right.uses.reads_per_minute.cmp(&left.uses.reads_per_minute),
            Some("writes") => |left, right| right.uses.writes_per_minute.cmp(&left.uses.writes_per_minute),
            Some(_) => return Err(bad_request("sort is key, left, expires, reads or writes")),
        };
        Ok(Self {
            filter: filter(uri)?,
            compare,
            is_reversed: flag(uri, "reverse")?,
            offset: match number(uri, "offset", 0, usize::MAX)? {
                offset @ ..=OFFSET_MAX => offset,
                _ => return Err(bad_request(&format!("offset is at most {OFFSET_MAX}; use a filter"))),
            },
            limit: number(uri, "limit", SHOWN.0, SHOWN.1)?,
        })
    }

    fn run(&self, limiter: &Arc<Limiter>, now: Nanos) -> LimitsAnswer {
        let wanted = self.offset + self.limit;
        let (mut matched, mut scanned, mut complete) = (0, 0, true);
        let began = Instant::now();
        let mut listing = limiter.list();
        let mut best: Vec<ListedEntry> = Vec::new();
        while let Some(entry) = listing.next(now, false) {
            scanned += 1;
            if self.matches(&entry.key) {
                matched += 1;
                best.push(entry);
                // Sorting now and then bounds the memory, and costs less than a heap with a comparison of its own.
                if best.len() >= 2 * wanted + 1_024 {
                    self.keep(&mut best, wanted);
                }
            }
            if scanned >= SCANNED_MAX || (scanned % SLICE == 0 && began.elapsed() > SCAN_TIME) {
                complete = false;
                break;
            }
        }
        self.keep(&mut best, wanted);
        LimitsAnswer {
            total: limiter.keys(),
            matched,
            complete,
            offset: self.offset,
            limit: self.limit,
            limits: best.into_iter().skip(self.offset).map(|entry| describe(&entry, now)).collect(),
        }
    }

    fn matches(&self, key: &[u8]) -> bool {
        self.filter.is_empty() || String::from_utf8_lossy(key).to_lowercase().contains(&self.filter)
    }

    /// Sorts, and keeps the first entries.
    fn keep(&self, entries: &mut Vec<ListedEntry>, wanted: usize) {
        entries.sort_unstable_by(|left, right| {
            let order = (self.compare)(left, right);
            let order = if self.is_reversed { order.reverse() } else { order };
            order.then_with(|| left.key.cmp(&right.key))
        });
        entries.truncate(wanted);
    }
}

fn describe(entry: &ListedEntry, now: Nanos) -> LimitAnswer {
    let expires = (entry.deadline != Nanos::NEVER).then(|| entry.deadline.since(now) as f64 / 1e9);
    LimitAnswer {
        key: String::from_utf8_lossy(&entry.key).into_owned(),
        key_base64: URL_SAFE_NO_PAD.encode(&entry.key),
        kind: if entry.buffer_bytes.is_some() { "buffer" } else { "counter" },
        left: entry.quota,
        buffer_bytes: entry.buffer_bytes,
        expires_in_seconds: expires,
        reads_per_minute: entry.uses.reads_per_minute,
        writes_per_minute: entry.uses.writes_per_minute,
    }
}

#[utoipa::path(
    post,
    path = "/limits/{key}",
    tag = "limits",
    params(
        ("key" = String, Path, description = "The key of the counter"),
        ("base64" = Option<u8>, Query, minimum = 0, maximum = 1, description = "1: the key is base64 for URLs"),
    ),
    request_body = LimitBody,
    responses(
        (status = 200, description = "The quota is changed", body = LimitChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "It is not a counter", body = ErrorAnswer),
    )
)]
pub(crate) async fn set(
    State(admin): State<Admin>,
    PathText(text): PathText,
    uri: Uri,
    Body(LimitBody { left }): Body<LimitBody>,
) -> Result<Response, Response> {
    let key = key(&text, &uri)?;
    let (limiter, now) = (&admin.hub.limiter, now(&admin.hub));
    let Some(before) = limiter.query(&key, now) else { return Err(missing(&key)) };
    if !limiter.adjust_quota(&key, Adjust::Patch, left, now) {
        let message = format!(
            "{:?} is a buffer, a sliding window or a bucket with {} left; remove it to make its full limit available again",
            String::from_utf8_lossy(&key),
            before.quota
        );
        return Err(error(StatusCode::CONFLICT, "unacceptable", &message));
    }
    // A counter of fewer bits keeps its lower ones.
    let left = limiter.query(&key, now).map_or(left, |counter| counter.quota);
    Ok(Json(LimitChanged { key: text, left }).into_response())
}

#[utoipa::path(
    delete,
    path = "/limits/{key}",
    tag = "limits",
    params(
        ("key" = String, Path, description = "The key of the entry"),
        ("base64" = Option<u8>, Query, minimum = 0, maximum = 1, description = "1: the key is base64 for URLs"),
    ),
    responses(
        (status = 200, description = "The entry is removed", body = LimitRemoved),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn remove(
    State(admin): State<Admin>,
    PathText(text): PathText,
    uri: Uri,
) -> Result<Response, Response> {
    let key = key(&text, &uri)?;
    if !admin.hub.limiter.purge(&key, now(&admin.hub)) {
        return Err(missing(&key));
    }
    Ok(Json(LimitRemoved { removed: text }).into_response())
}

#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
fn key(text: &str, uri: &Uri) -> Result<Vec<u8>, Response> {
    if !flag(uri, "base64")? {
        return Ok(text.as_bytes().to_vec());
    }
    URL_SAFE_NO_PAD.decode(text).map_err(|refused| bad_request(&format!("key {text:?}: {refused}")))
}

fn missing(key: &[u8]) -> Response {
    let key = String::from_utf8_lossy(key);
    let message = format!("no counter or buffer has the key {key:?}; /limits lists those that exist");
    error(StatusCode::NOT_FOUND, "not-found", &message)
}
