//! The octets that one connection has still to write, in order, and the writing of them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Chunks up to this size are copied together, so that a write has few slices; larger ones are written from
/// where they are.
const COPY_BYTES_MAX: usize = 4096;

/// A tail of this size is closed and a new one begun, so that what is written is freed soon.
const TAIL_BYTES_MAX: usize = 64 * 1024;

/// Slices in one write at most.
const SLICES_MAX: usize = 64;

/// Chunks, and behind them the tail to which small things are appended.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Bytes>,
    /// Octets in `chunks`.
    chunk_bytes: usize,
    tail: Vec<u8>,
    /// How much of the tail is written.
    tail_at: usize,
}

impl Output {
    /// Where a session appends what it encodes.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        if self.tail.len() > TAIL_BYTES_MAX {
            self.close_tail();
        }
        &mut self.tail
    }

    pub(crate) fn push(&mut self, chunk: Bytes) {
        if chunk.len() <= COPY_BYTES_MAX {
            self.tail().extend_from_slice(&chunk);
        } else {
            self.close_tail();
            self.chunk_bytes += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    fn close_tail(&mut self) {
        let mut tail = Bytes::from(std::mem::take(&mut self.tail));
        tail.advance(std::mem::take(&mut self.tail_at));
        if !tail.is_empty() {
            self.chunk_bytes += tail.len();
            self.chunks.push_back(tail);
        }
    }

    /// Octets not yet written.
    pub(crate) fn len(&self) -> usize {
        self.chunk_bytes + self.tail.len() - self.tail_at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes once, as much as the stream takes; not to be called when empty. Answers how much that was.
    pub(crate) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(!self.is_empty());
        let written = if self.chunks.is_empty() {
            ready!(Pin::new(stream).poll_write(context, &self.tail[self.tail_at..]))?
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut used = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
                *slice = IoSlice::new(chunk);
                used += 1;
            }
            if used < SLICES_MAX && self.tail.len() > self.tail_at {
                slices[used] = IoSlice::new(&self.tail[self.tail_at..]);
                used += 1;
            }
            ready!(Pin::new(stream).poll_write_vectored(context, &slices[..used]))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(chunk) = self.chunks.front_mut() {
            let step = written.min(chunk.len());
            chunk.advance(step);
            self.chunk_bytes -= step;
            written -= step;
            if !chunk.is_empty() {
                return;
            }
            self.chunks.pop_front();
        }
        self.tail_at += written;
        if self.tail_at == self.tail.len() {
            // Idle connections hold no buffer.
            *self = Self::default();
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes at most `step` octets a write.
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
            for (round, size) in [3, 5000, 4096, 70_000, 1, 9000].into_iter().enumerate() {
                let chunk = vec![round as u8; size];
                expected.extend_from_slice(&chunk);
                output.push(chunk.into());
                output.tail().extend_from_slice(b"tail");
                expected.extend_from_slice(b"tail");
                // Appending behind a tail that is half written is where octets could get lost.
                let written = output.poll_write(&mut slow, &mut context);
                assert!(matches!(written, Poll::Ready(Ok(1..))));
                assert_eq!(output.len() + slow.taken.len(), expected.len());
            }
            while !output.is_empty() {
                assert!(output.poll_write(&mut slow, &mut context).is_ready());
            }
            assert!(slow.taken == expected, "step {step}");
        }
    }

    #[test]
    fn nothing_is_kept_once_all_is_written() {
        let mut output = Output::default();
        output.push(vec![0; 100].into());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut slow = Slow { taken: Vec::new(), step: usize::MAX };
        assert!(output.poll_write(&mut slow, &mut context).is_ready());
        assert_eq!((output.len(), output.tail.capacity(), output.chunks.capacity()), (0, 0, 0));
    }
}
