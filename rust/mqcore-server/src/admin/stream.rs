//! `GET /stream`: the state of the broker once a second, as server-sent events; `GET /totals`: its rates and contents so far.
//!
//! Each event is complete, so a client that reads slowly may skip some. Its id is the time in Unix milliseconds: a client that
//! returns with `Last-Event-ID` first gets the totals that it missed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mqcore_broker::model::id::QueueAddress;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::admin::answers::{ErrorAnswer, TickAnswer, TotalsAnswer};
use crate::admin::parameters::{OrderParameters, PageParameters};
use crate::admin::pieces::Pieces;
use crate::admin::request::{Admin, bad_request, error, parameter};
use crate::admin::{attention, queue, queues};
use crate::stats::totals::{RESOLUTIONS, TotalsAt};

/// The path of the stream.
pub(super) const PATH: &str = "/stream";

/// Time between two events.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a client may read nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Findings in an event.
const FINDINGS_MAX: usize = 200;

/// The data that a client wants besides findings and totals.
enum Topic {
    Nothing,
    /// A page of queues.
    Queues(queues::Query),
    /// One queue.
    Queue(QueueAddress),
}

impl Topic {
    #[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
    fn of(uri: &Uri) -> Result<Self, Response> {
        match parameter(uri, "topic") {
            None | Some("overview") => Ok(Self::Nothing),
            Some("queues") => queues::Query::of(uri).map(Self::Queues),
            Some("queue") => {
                let channel = parameter(uri, "channel").unwrap_or_default();
                let channel = percent_encoding::percent_decode_str(channel).decode_utf8_lossy().into_owned();
                match parameter(uri, "id").map(str::parse) {
                    Some(Ok(id)) => queue::address(&channel, id).map(Self::Queue),
                    _ => Err(bad_request(
                        "id is the number of a queue, such as ?topic=queue&channel=orders&id=1",
                    )),
                }
            }
            Some(_) => Err(bad_request("topic is overview, queues or queue")),
        }
    }
}

#[utoipa::path(
    get,
    path = "/totals",
    tag = "health",
    params(("step" = Option<String>, Query, description = "1s (10 minutes), 10s (6 hours) or 5min (7 days)")),
    responses(
        (status = 200, description = "Rates and contents", body = TotalsAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn totals(State(admin): State<Admin>, uri: Uri) -> Response {
    let step = parameter(&uri, "step").unwrap_or("1s");
    let Some(resolution) = ["1s", "10s", "5min"].iter().position(|known| *known == step) else {
        return bad_request("step is 1s (the last 10 minutes), 10s (6 hours) or 5min (7 days)");
    };
    let totals = admin.hub.totals.all(resolution);
    Json(TotalsAnswer { step_ms: RESOLUTIONS[resolution].0, totals }).into_response()
}

#[utoipa::path(
    get,
    path = "/stream",
    tag = "health",
    params(PageParameters, OrderParameters, ("topic" = Option<String>, Query, description = "overview, queues or queue"), ("channel" = Option<String>, Query, description = "With topic=queue"), ("id" = Option<u16>, Query, description = "With topic=queue"), ("Last-Event-ID" = Option<u64>, Header, description = "The id of the last event, to get the totals since then")),
    responses(
        (status = 200, description = "Server-sent events, one a second; the data of each is a TickAnswer", content_type = "text/event-stream", body = TickAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn stream(State(admin): State<Admin>, headers: HeaderMap, uri: Uri) -> Response {
    let topic = match Topic::of(&uri) {
        Ok(topic) => topic,
        Err(response) => return response,
    };
    let Ok(place) = Arc::clone(&admin.streams).try_acquire_owned() else {
        return error(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "too many streams are open; close other pages",
        );
    };
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(send(admin, topic, last, sender, place));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::new(Pieces(receiver))).into_response()
}

async fn send(
    admin: Admin,
    topic: Topic,
    last: Option<u64>,
    sender: mpsc::Sender<io::Result<Bytes>>,
    _place: OwnedSemaphorePermit,
) {
    let shutdown = Arc::clone(&admin.hub.shutdown);
    let mut ended = pin!(shutdown.ended());
    let mut seen =
        last.unwrap_or(admin.hub.clock.now().0.saturating_sub(RESOLUTIONS[0].0 * RESOLUTIONS[0].1 as u64));
    loop {
        let missed = admin.hub.totals.since(seen);
        seen = missed.last().map_or(seen, |sample| sample.at_ms);
        let event = tick(&admin, &topic, missed).await;
        let Ok(event) = serde_json::to_string(&event) else { return };
        let text = format!("id: {seen}\nevent: tick\ndata: {event}\n\n");
        let sent = tokio::select! {
            sent = tokio::time::timeout(STALL_TIMEOUT, sender.send(Ok(text.into()))) => sent,
            () = &mut ended => return,
        };
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = &mut ended => return,
            () = sender.closed() => return,
        }
    }
}

async fn tick(admin: &Admin, topic: &Topic, totals: Vec<TotalsAt>) -> TickAnswer {
    let attention = attention::describe(&admin.hub.attention.report(), FINDINGS_MAX);
    let (mut listed, mut shown) = (None, None);
    match topic {
        Topic::Nothing => {}
        Topic::Queues(query) => listed = Some(queues::page(admin, query).await.ok()),
        Topic::Queue(address) => shown = Some(queue::detail(admin, address.clone()).await.ok()),
    }
    TickAnswer { attention, totals, queues: listed, queue: shown }
}
