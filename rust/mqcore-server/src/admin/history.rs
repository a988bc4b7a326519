//! `GET /history`: message history for programs that do not share a file system with the broker.
//!
//! The header `Mqcore-HistoryRequest` holds the query as JSON. Queries about the extent and the partition of the history
//! return JSON; rows are returned as one Arrow stream, produced while it is read. The broker keeps no state between
//! two requests: a client tracks its own position.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatchReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::admin::answers::ErrorAnswer;
use crate::admin::backup::refuse as refuse_backup;
use crate::admin::pieces::{PIECES, Pieces, REQUEST_HEADER, deliver};
use crate::admin::request::{Admin, Caller, error, may_read_everything};
use crate::stats::snapshot;
use crate::storage::backup::{BackupError, BackupKind};
use crate::storage::history::{Batches, Division, HistoryDir, HistoryError, HistoryRequest, Piece};

/// Maximum ranges in one query: far more than there are shards.
const STRETCHES_MAX: usize = 4096;
/// Bytes collected before they are sent.
const CHUNK: usize = 256 * 1024;

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
enum HistoryQuery {
    /// How far each shard's history reaches. With `settled`, after all events so far are written.
    Ends {
        #[serde(default)]
        settled: bool,
    },
    /// How to split ranges into pieces.
    Pieces { request: String, stretches: Vec<(u32, u64, u64)>, target_bytes: u64 },
    /// Ends of the next `rows` rows of the ranges.
    Advance { request: String, stretches: Vec<(u32, u64, u64)>, rows: u64, fail_on_loss: bool },
    /// The rows of a piece.
    Rows { request: String, piece: Piece, fail_on_loss: bool },
}

#[utoipa::path(
    get,
    path = "/history",
    tag = "storage",
    params(("Mqcore-HistoryRequest" = Option<String>, Header, description = "The query as JSON")),
    responses(
        (status = 200, description = "JSON about the history, or rows as an Arrow stream", content_type = "application/vnd.apache.arrow.stream", body = Vec<u8>),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "The history changed meanwhile", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message = "no users exist yet, so history is available only from the broker's own machine; create a user or token first";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    let Some(history) = admin.history.clone() else {
        let message = "this broker has no data directory, so it has no history; start it with --data-dir";
        return error(StatusCode::CONFLICT, "nothing-kept", message);
    };
    let words = headers.get(REQUEST_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let question: HistoryQuery = match serde_json::from_str(words) {
        Ok(question) => question,
        Err(wrong) => {
            let message = format!("the header Mqcore-Request is not a valid request in JSON: {wrong}");
            return error(StatusCode::BAD_REQUEST, "bad-request", &message);
        }
    };
    if let HistoryQuery::Ends { settled: true } = question
        && let Err(response) = settle(&admin).await
    {
        return response;
    }
    let outcome = tokio::task::spawn_blocking(move || consult(&history, question)).await;
    match outcome {
        Ok(Ok(Found::Json(value))) => Json(value).into_response(),
        Ok(Ok(Found::Rows(batches))) => rows(&admin, *batches),
        Ok(Err(failed)) => refuse(&failed),
        Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"),
    }
}

/// How often each writer thread is asked to write what is pending. One request may not cover all earlier events,
/// because a writer takes a limited batch at a time.
const ROUNDS: usize = 2;

/// Returns when each shard has run once and each journal writer has written what it had then.
pub(crate) async fn settle(admin: &Admin) -> Result<(), Response> {
    snapshot::waiting_for_handlers(&admin.hub).await;
    for _ in 0..ROUNDS {
        let hub = Arc::clone(&admin.hub);
        match tokio::task::spawn_blocking(move || hub.backups.pause_writers(BackupKind::Requested)).await {
            Ok(Ok(_at_once_let_go)) => {}
            Ok(Err(refused)) => return Err(refuse_backup(&refused)),
            Err(_) => return Err(refuse_backup(&BackupError::Stopping)),
        }
    }
    Ok(())
}

enum Found {
    Json(serde_json::Value),
    Rows(Box<Batches>),
}

fn consult(history: &HistoryDir, question: HistoryQuery) -> Result<Found, HistoryError> {
    Ok(match question {
        HistoryQuery::Ends { .. } => Found::Json(json!({"ends": history.ends()?})),
        HistoryQuery::Pieces { request, stretches, target_bytes } => {
            let request = HistoryRequest::parse(&request)?;
            // Clients of earlier versions do not know pieces of some queues.
            let pieces = history.pieces(&request, &ranges(&stretches)?, Division::in_order(target_bytes))?;
            Found::Json(json!({"pieces": pieces}))
        }
        HistoryQuery::Advance { request, stretches, rows, fail_on_loss } => {
            let request = Arc::new(HistoryRequest::parse(&request)?);
            let ends = history.advance(&request, &ranges(&stretches)?, rows, fail_on_loss)?;
            Found::Json(json!({"ends": ends}))
        }
        HistoryQuery::Rows { request, piece, fail_on_loss } => {
            let request = Arc::new(HistoryRequest::parse(&request)?);
            Found::Rows(Box::new(Batches(history.read(&request, &piece, fail_on_loss)?)))
        }
    })
}

fn ranges(stretches: &[(u32, u64, u64)]) -> Result<Vec<(u32, Range<u64>)>, HistoryError> {
    if stretches.len() > STRETCHES_MAX {
        return Err(HistoryError::Request(format!("more than {STRETCHES_MAX} stretches are named")));
    }
    Ok(stretches.iter().map(|&(shard, from, until)| (shard, from..until)).collect())
}

pub(crate) fn refuse(failed: &HistoryError) -> Response {
    let (status, code) = match failed {
        HistoryError::Request(_) => (StatusCode::BAD_REQUEST, "bad-request"),
        HistoryError::Lost { .. } => (StatusCode::GONE, "lost"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "storage"),
    };
    error(status, code, &failed.to_string())
}

fn rows(admin: &Admin, batches: Batches) -> Response {
    let (sender, receiver) = mpsc::channel(PIECES);
    let alive = admin.hub.shutdown.enter();
    tokio::task::spawn_blocking(move || {
        send(batches, &sender);
        drop(alive);
    });
    ([(header::CONTENT_TYPE, "application/vnd.apache.arrow.stream")], Body::new(Pieces(receiver)))
        .into_response()
}

/// Sends batch after batch, as fast as the client takes them.
fn send(batches: Batches, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut output = Chunks { sender, gathered: Vec::with_capacity(CHUNK), gone: false };
    if let Err(failed) = write(batches, &mut output)
        && !output.gone
    {
        tracing::error!(error = %failed, "stopped an answer about history: cannot read the history");
        // The response ends early, so that the client cannot mistake it for a complete answer.
        deliver(sender, Err(io::Error::other(failed)));
    }
}

fn write(batches: Batches, output: &mut Chunks<'_>) -> Result<(), ArrowError> {
    let mut writer = StreamWriter::try_new(&mut *output, &batches.schema())?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    output.flush()?;
    Ok(())
}

/// Bytes being sent to a client.
struct Chunks<'a> {
    sender: &'a mpsc::Sender<io::Result<Bytes>>,
    gathered: Vec<u8>,
    /// The client has disconnected or has stopped reading.
    gone: bool,
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.gathered, Vec::with_capacity(CHUNK));
        self.gone = !deliver(self.sender, Ok(piece.into()));
        if self.gone { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}
