//! Long answers: sent piece by piece from a thread that may block, and dropped when the client stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;

/// Pieces that wait to be sent.
pub(crate) const PIECES: usize = 4;
/// How long a client may take nothing. Then the files are let go, whether it is slow or gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Must be in the request. A page in somebody's browser cannot send it here without being allowed to.
pub(crate) const REQUEST_HEADER: &str = "mqcore-request";
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
