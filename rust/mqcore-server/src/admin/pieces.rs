//! Long responses: sent piece by piece from a thread that may block, and dropped when the client stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;

/// Pieces that may wait to be sent.
pub(crate) const PIECES: usize = 4;
/// How long a client may read nothing. After that the files are released, whether the client is slow or gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Header that these requests must carry. A page in a browser cannot add it to a cross-site request without
/// permission.
pub(crate) const REQUEST_HEADER: &str = "mqcore-request";
/// Sends a piece, on a thread that may block. False: the client has disconnected, or read nothing for a minute.
pub(crate) fn deliver(sender: &mpsc::Sender<io::Result<Bytes>>, piece: io::Result<Bytes>) -> bool {
    let sent = tokio::runtime::Handle::current()
        .block_on(async { tokio::time::timeout(STALL_TIMEOUT, sender.send(piece)).await });
    matches!(sent, Ok(Ok(())))
}

/// The pieces of a response body.
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
