//! The bytes that one connection has still to write, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::runtime::spares::SpareBytes;

/// Chunks up to this size are copied together, so that a write has few slices; larger ones are written from where
/// they are.
const COPY_BYTES_MAX: usize = 4096;

/// At this size the tail is closed and a new one started, so that written bytes are freed soon.
const TAIL_BYTES_MAX: usize = 64 * 1024;

/// Maximum slices in one write.
const SLICES_MAX: usize = 64;

#[derive(Debug)]
enum Chunk {
    Own(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Chunks, followed by the tail to which small output is appended.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Chunk>,
    /// Bytes in `chunks` and `tail` that are not written yet.
    unwritten: usize,
    tail: Vec<u8>,
    /// Written bytes of the first chunk or, without chunks, of the tail.
    at: usize,
}

impl Output {
    /// Appends what `encode` appends to its argument, and returns how many bytes that was.
    pub(crate) fn append<T>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> T) -> (T, usize) {
        if self.tail.len() > TAIL_BYTES_MAX {
            self.close_tail();
        }
        let before = self.tail.len();
        let result = encode(&mut self.tail);
        let added = self.tail.len() - before;
        self.unwritten += added;
        (result, added)
    }

    pub(crate) fn push_own(&mut self, bytes: Vec<u8>, spares: &SpareBytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.append(|tail| tail.extend_from_slice(&bytes));
            spares.give(bytes);
        } else {
            self.push(Chunk::Own(bytes));
        }
    }

    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.append(|tail| tail.extend_from_slice(&bytes));
        } else {
            self.push(Chunk::Shared(bytes));
        }
    }

    fn push(&mut self, chunk: Chunk) {
        self.close_tail();
        self.unwritten += chunk.as_slice().len();
        self.chunks.push_back(chunk);
    }

    /// The tail becomes a chunk. If it is the first, `at` now counts in it.
    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(Chunk::Own(std::mem::take(&mut self.tail)));
        }
    }

    /// Bytes not yet written.
    pub(crate) fn len(&self) -> usize {
        self.unwritten
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unwritten == 0
    }

    /// Writes once, as much as the stream accepts, and returns how much that was. Must not be called when empty.
    pub(crate) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        spares: &SpareBytes,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(!self.is_empty());
        let written = if self.chunks.is_empty() {
            ready!(Pin::new(stream).poll_write(context, &self.tail[self.at..]))?
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut used = 0;
            let parts = self.chunks.iter().map(Chunk::as_slice).chain([&*self.tail]);
            for (slice, part) in slices.iter_mut().zip(parts) {
                *slice = IoSlice::new(if used == 0 { &part[self.at..] } else { part });
                used += 1;
            }
            ready!(Pin::new(stream).poll_write_vectored(context, &slices[..used]))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written, spares);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, written: usize, spares: &SpareBytes) {
        self.unwritten -= written;
        self.at += written;
        while let Some(first) = self.chunks.front() {
            let size = first.as_slice().len();
            if self.at < size {
                return;
            }
            self.at -= size;
            if let Some(Chunk::Own(bytes)) = self.chunks.pop_front() {
                spares.give(bytes);
            }
        }
        if self.unwritten == 0 {
            // Idle connections hold no buffer.
            spares.give(std::mem::take(&mut self.tail));
            self.chunks = VecDeque::new();
            self.at = 0;
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts at most `step` bytes per write.
    struct Slow {
        taken: Vec<u8>,
        step: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &[u8],
        ) -> Poll<io::Result<usize>> {
            let step = self.step.min(buffer.len());
            self.taken.extend_from_slice(&buffer[..step]);
            Poll::Ready(Ok(step))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffers: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut taken = 0;
            for buffer in buffers {
                let step = (self.step - taken).min(buffer.len());
                self.taken.extend_from_slice(&buffer[..step]);
                taken += step;
            }
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_was_pushed_is_written_in_order_however_little_the_stream_takes() {
        for step in [1, 7, 4096, 10_000, usize::MAX] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut slow = Slow { taken: Vec::new(), step };
            let spares = SpareBytes::new();
            for (round, size) in [3, 5000, 4096, 70_000, 1, 9000].into_iter().enumerate() {
                let chunk = vec![round as u8; size];
                expected.extend_from_slice(&chunk);
                if round % 2 == 0 {
                    output.push_own(chunk, &spares);
                } else {
                    output.push_shared(chunk.into());
                }
                output.append(|tail| tail.extend_from_slice(b"tail"));
                expected.extend_from_slice(b"tail");
                // Appending to a half-written tail is where bytes could get lost.
                let written = output.poll_write(&mut slow, &mut context, &spares);
                assert!(matches!(written, Poll::Ready(Ok(1..))));
                assert_eq!(output.len() + slow.taken.len(), expected.len());
            }
            while !output.is_empty() {
                assert!(output.poll_write(&mut slow, &mut context, &spares).is_ready());
            }
            assert!(slow.taken == expected, "step {step}");
        }
    }

    #[test]
    fn nothing_is_kept_once_all_is_written() {
        let spares = SpareBytes::new();
        let mut output = Output::default();
        output.push_own(vec![0; 100], &spares);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut slow = Slow { taken: Vec::new(), step: usize::MAX };
        assert!(output.poll_write(&mut slow, &mut context, &spares).is_ready());
        assert_eq!((output.len(), output.tail.capacity(), output.chunks.capacity()), (0, 0, 0));
    }
}
