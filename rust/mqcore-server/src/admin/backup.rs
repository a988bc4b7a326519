//! `GET /backup`: streams a backup as the response body. The files stay on disk until the client has read it.

use std::io::{self, Read};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::admin::answers::ErrorAnswer;
use crate::admin::pieces::{PIECES, Pieces, REQUEST_HEADER, deliver};
use crate::admin::request::{Admin, Caller, error, may_read_everything};
use crate::storage::archive::BackupStream;
use crate::storage::backup::{BackupError, BackupKind};

/// Bytes read and sent at a time.
const PIECE: usize = 256 * 1024;
/// Header with the total size of the files in bytes, for a progress bar.
const TOTAL_HEADER: &str = "mqcore-backup-bytes";

#[utoipa::path(
    get,
    path = "/backup",
    tag = "storage",
    params(("Mqcore-Request" = Option<String>, Header, description = "backup")),
    responses(
        (status = 200, description = "A backup, for mqcore restore", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 409, description = "There is nothing to back up, or another backup runs", body = ErrorAnswer),
    )
)]
pub(crate) async fn download(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message = "no users exist yet, so backups are available only from the broker's own machine; create a user or token first";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    if headers.get(REQUEST_HEADER).is_none_or(|value| value != "backup") {
        let message = "the header 'Mqcore-Request: backup' is missing";
        return error(StatusCode::BAD_REQUEST, "bad-request", message);
    }
    let hub = admin.hub.clone();
    let backup =
        match tokio::task::spawn_blocking(move || hub.backups.pause_writers(BackupKind::Requested)).await {
            Ok(Ok(backup)) => backup,
            Ok(Err(refused)) => return refuse(&refused),
            Err(_) => return refuse(&BackupError::Stopping),
        };
    let archive = BackupStream::new(backup);
    let total = archive.file_bytes();
    let (sender, receiver) = mpsc::channel(PIECES);
    let alive = admin.hub.shutdown.enter();
    tokio::task::spawn_blocking(move || {
        send(archive, &sender);
        // Releases the directory for the next broker before this one counts as stopped.
        drop(alive);
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar".to_owned()),
        (header::HeaderName::from_static(TOTAL_HEADER), total.to_string()),
    ];
    (headers, Body::new(Pieces(receiver))).into_response()
}

/// The response for a backup that the journal writers did not start.
pub(crate) fn refuse(refused: &BackupError) -> Response {
    let (status, code) = match refused {
        BackupError::NothingKept => (StatusCode::CONFLICT, "nothing-kept"),
        BackupError::Busy | BackupError::TooSlow => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        BackupError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "storage"),
    };
    error(status, code, &refused.to_string())
}

/// Reads the archive piece by piece, as fast as the client takes it. The files are released however it ends.
fn send(mut archive: BackupStream, sender: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        match archive.by_ref().take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => return,
            Ok(_) => {
                if !deliver(sender, Ok(piece.into())) {
                    tracing::warn!("stopped a backup: the client disconnected, or read nothing for 60 s");
                    return;
                }
            }
            Err(failed) => {
                tracing::error!(error = %failed, "stopped a backup: cannot read a file");
                // The response ends early, so that the client cannot mistake it for a complete backup.
                deliver(sender, Err(failed));
                return;
            }
        }
    }
}
