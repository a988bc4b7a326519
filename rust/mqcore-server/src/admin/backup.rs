//! `GET /backup`: a backup as the body of the answer, which holds the files for as long as somebody reads it.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;

use crate::admin::{Admin, Caller, error};
use crate::storage::archive::Archive;
use crate::storage::backup::BackupError;

/// Octets read and sent at a time.
const PIECE: usize = 256 * 1024;
/// Pieces that wait to be sent.
pub(crate) const PIECES: usize = 4;
/// How long a client may take nothing. Then the files are let go, whether it is slow or gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Must be in the request. A page in somebody's browser cannot send it here without being allowed to.
pub(crate) const REQUEST_HEADER: &str = "mqcore-request";
/// Tells octets of files, for a progress bar.
const TOTAL_HEADER: &str = "mqcore-backup-bytes";

/// Whether this caller may read everything that is saved. Where there are users, whoever got here has shown that he may
/// administer this page; as long as nobody can log in, those on the same machine may.
pub(crate) fn may_read_everything(admin: &Admin, caller: &Caller) -> bool {
    !admin.hub.authority.is_open() || caller.0.ip().is_loopback()
}

pub(crate) async fn download(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if !may_read_everything(&admin, &caller) {
        let message =
            "as long as nobody can log in, a backup is given to callers on the broker's own machine only";
        return error(StatusCode::FORBIDDEN, "forbidden", message);
    }
    if headers.get(REQUEST_HEADER).is_none_or(|value| value != "backup") {
        let message = "a request for a backup has the header 'Mqcore-Request: backup'";
        return error(StatusCode::BAD_REQUEST, "bad-request", message);
    }
    let hub = admin.hub.clone();
    let backup = match tokio::task::spawn_blocking(move || hub.backups.meet()).await {
        Ok(Ok(backup)) => backup,
        Ok(Err(refused)) => return refuse(&refused),
        Err(_) => return refuse(&BackupError::Stopping),
    };
    let archive = Archive::new(backup);
    let total = archive.file_bytes();
    let (sender, receiver) = mpsc::channel(PIECES);
    let alive = admin.hub.shutdown.enter();
    tokio::task::spawn_blocking(move || {
        send(archive, &sender);
        // The directory is free for the next broker before this one counts as stopped.
        drop(alive);
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar".to_owned()),
        (header::HeaderName::from_static(TOTAL_HEADER), total.to_string()),
    ];
    (headers, Body::new(Pieces(receiver))).into_response()
}

/// Why writers did not meet.
pub(crate) fn refuse(refused: &BackupError) -> Response {
    let (status, code) = match refused {
        BackupError::NothingKept => (StatusCode::CONFLICT, "nothing-kept"),
        BackupError::Busy | BackupError::TooSlow => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        BackupError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "storage"),
    };
    error(status, code, &refused.to_string())
}

/// Reads the archive piece by piece, as fast as they are taken. However it ends, the files are let go.
fn send(mut archive: Archive, sender: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        match archive.by_ref().take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => return,
            Ok(_) => {
                if !deliver(sender, Ok(piece.into())) {
                    tracing::warn!("a backup was broken off by its client, or not read for a minute");
                    return;
                }
            }
            Err(failed) => {
                tracing::error!(error = %failed, "a backup was broken off, because a file cannot be read");
                // The connection ends in the middle, so nobody takes it for whole.
                deliver(sender, Err(failed));
                return;
            }
        }
    }
}

/// Hands a piece over, on a thread that may block. False: the client has gone, or took nothing for a minute.
pub(crate) fn deliver(sender: &mpsc::Sender<io::Result<Bytes>>, piece: io::Result<Bytes>) -> bool {
    let sent = tokio::runtime::Handle::current()
        .block_on(async { tokio::time::timeout(PATIENCE, sender.send(piece)).await });
    matches!(sent, Ok(Ok(())))
}

/// What a client is to be sent.
pub(crate) struct Pieces(pub(crate) mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.get_mut().0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
