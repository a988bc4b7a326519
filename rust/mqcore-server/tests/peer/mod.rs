//! A raw TMQP client, and a temporary data directory for a server.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::{self, Operation};
use mqcore_wire::tmqp::{self, Frame, Kind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of its own, gone with the test. It is not made yet.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mqcore-server-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One peer, and what it has read of the next frame.
pub(crate) struct Peer<S> {
    pub(crate) stream: S,
    input: Vec<u8>,
}

/// A frame that outlives its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) content_type: u16,
    pub(crate) id: Vec<u8>,
    pub(crate) source: Vec<u8>,
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// One that has said nothing yet.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, input: Vec::new() }
    }

    /// Says Hello; with the answer.
    pub(crate) async fn shake_hands(stream: S, hello: &Hello<'_>) -> (Self, Received) {
        let mut peer = Self::new(stream);
        let bytes = hello::opening(hello, b"hello").expect("a plain Hello");
        peer.write(&bytes).await;
        let mut preamble = [0; 8];
        peer.stream.read_exact(&mut preamble).await.expect("the preamble comes back");
        assert_eq!(preamble, tmqp::PREAMBLE);
        let answer = peer.frame().await;
        (peer, answer)
    }

    /// Sends Hello and reads the acceptance.
    pub(crate) async fn welcome(stream: S, hello: &Hello<'_>) -> Self {
        let (peer, answer) = Self::shake_hands(stream, hello).await;
        assert_eq!((answer.kind, answer.content_type), (Kind::SERVER, operation::ACCEPTED));
        peer
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let written = timeout(PATIENCE, self.stream.write_all(bytes)).await;
        written.expect("in time").expect("the other side reads");
    }

    pub(crate) async fn send(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        tmqp::encode(frame, &mut bytes);
        self.write(&bytes).await;
    }

    /// The next frame; `None` when the other side has closed.
    pub(crate) async fn receive(&mut self) -> Option<Received> {
        loop {
            if let Some((frame, size)) = tmqp::decode(&self.input, &Limits::default()).expect("sound frames")
            {
                let received = Received {
                    kind: frame.kind,
                    content_type: frame.content_type,
                    id: frame.id.to_vec(),
                    source: frame.source.to_vec(),
                    headers: frame.headers.to_vec(),
                    payload: frame.payload.to_vec(),
                };
                self.input.drain(..size);
                return Some(received);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.input)).await.expect("in time");
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next frame, which must come.
    pub(crate) async fn frame(&mut self) -> Received {
        self.receive().await.expect("it was closed")
    }

    /// Asks for an operation; the status of the answer.
    pub(crate) async fn operate(&mut self, operation: Operation, target: &str) -> u16 {
        let frame = Frame {
            content_type: operation.code(),
            id: b"op",
            target: target.as_bytes(),
            pending_response: true,
            ..Frame::new(Kind::SERVER)
        };
        self.send(&frame).await;
        let answer = self.frame().await;
        assert_eq!(answer.kind, Kind::RESPONSE);
        answer.content_type
    }

    pub(crate) async fn join(&mut self, channel: &str) {
        assert_eq!(self.operate(Operation::JoinChannel, channel).await, operation::status::OK);
    }

    pub(crate) async fn publish(&mut self, channel: &str, id: &str, payload: &[u8]) {
        let target = channel.as_bytes();
        self.send(&Frame { id: id.as_bytes(), target, payload, ..Frame::new(Kind::QUEUE) }).await;
    }

    /// Publishes its own id, and waits until that is acknowledged.
    pub(crate) async fn publish_confirmed(&mut self, channel: &str, id: &str) {
        let frame = Frame {
            id: id.as_bytes(),
            target: channel.as_bytes(),
            payload: id.as_bytes(),
            pending_acknowledge: true,
            ..Frame::new(Kind::QUEUE)
        };
        self.send(&frame).await;
        self.acknowledged(id).await;
    }

    /// Waits for the acknowledgement of a message: not a negative one, which says why in its headers.
    pub(crate) async fn acknowledged(&mut self, id: &str) {
        let Received { kind, id: of, headers, .. } = self.frame().await;
        assert_eq!((kind, &*of, &*headers), (Kind::ACKNOWLEDGE, id.as_bytes(), &b""[..]));
    }

    pub(crate) async fn acknowledge(&mut self, channel: &str, id: &str) {
        let target = channel.as_bytes();
        self.send(&Frame { id: id.as_bytes(), target, ..Frame::new(Kind::ACKNOWLEDGE) }).await;
    }

    /// Waits for the other side to close; what comes before that is thrown away, whatever it is.
    pub(crate) async fn closed(mut self) {
        let mut scratch = vec![0; 64 * 1024];
        while timeout(PATIENCE, self.stream.read(&mut scratch)).await.expect("in time").unwrap_or(0) > 0 {}
    }
}
