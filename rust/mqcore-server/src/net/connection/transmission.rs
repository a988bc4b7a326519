//! Output to the peer, and the count of it that the outbox needs for backpressure.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::net::outbox::Outbox;
use crate::net::output::Output;
use crate::runtime::spares::SpareBytes;
use crate::stats::counter::Counter;

/// The output of one connection.
#[derive(Default)]
pub(super) struct Transmission {
    output: Output,
    /// The stream may still buffer bytes that it accepted.
    unflushed: bool,
    /// The stream accepts no more output: it is discarded.
    broken: bool,
    /// Bytes that were added to the output, and removed from it, since [`Transmission::settle`].
    added: usize,
    removed: usize,
    /// Bytes that waited in the session for the peer at the last count.
    waiting: usize,
}

impl Transmission {
    /// Appends the bytes that `encode` adds to its argument.
    #[inline]
    pub(super) fn append<T>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let (result, added) = self.output.append(encode);
        self.added += added;
        result
    }

    /// Appends frames for this connection only, which the outbox has counted.
    pub(super) fn push_own(&mut self, frames: Vec<u8>, spares: &SpareBytes) {
        self.output.push_own(frames, spares);
    }

    /// Appends frames that several connections share, which the outbox has counted.
    pub(super) fn push_shared(&mut self, frames: Bytes) {
        self.output.push_shared(frames);
    }

    /// Removes bytes that the outbox has counted and that are no longer output.
    pub(super) fn remove(&mut self, bytes: usize) {
        self.removed += bytes;
    }

    /// Bytes that are not written yet.
    pub(super) fn len(&self) -> usize {
        self.output.len()
    }

    /// Whether everything is written, and the stream buffers nothing.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty() && !self.unflushed
    }

    /// Drops the output.
    pub(super) fn clear(&mut self) {
        self.removed += self.output.len();
        self.output.clear();
        self.unflushed = false;
    }

    /// From now on all output is discarded: the stream has failed to accept it.
    pub(super) fn break_off(&mut self) {
        self.broken = true;
        self.clear();
    }

    /// Whether all output is discarded.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Writes as much as the stream accepts. True if that was anything.
    pub(super) fn write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        spares: &SpareBytes,
        bytes_out: &Counter,
    ) -> io::Result<bool> {
        if self.broken {
            let discards = !self.output.is_empty();
            self.clear();
            return Ok(discards);
        }
        let mut moved = false;
        while !self.output.is_empty() {
            match self.output.poll_write(stream, context, spares) {
                Poll::Pending => break,
                Poll::Ready(written) => {
                    let written = written?;
                    moved = true;
                    self.unflushed = true;
                    self.removed += written;
                    bytes_out.add(written as u64);
                }
            }
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(stream).poll_flush(context)
        {
            flushed?;
            self.unflushed = false;
        }
        Ok(moved)
    }

    /// Reports the change of the output, and of what waits in the session, to the outbox. Returns the shards that wait for
    /// room in it, as bits.
    pub(super) fn settle(&mut self, waiting: usize, outbox: &Outbox) -> u16 {
        self.added += waiting.saturating_sub(self.waiting);
        self.removed += self.waiting.saturating_sub(waiting);
        self.waiting = waiting;
        let (added, removed) = (std::mem::take(&mut self.added), std::mem::take(&mut self.removed));
        if added == removed {
            // Usually nothing has changed, or an answer is already written. There is as much room as before.
            return 0;
        }
        outbox.settle(added, removed)
    }
}
