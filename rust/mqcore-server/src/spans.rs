//! Spans of traced messages until the program exports them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mqcore_broker::spans::Span;

/// Number of spans that wait for an export. Further ones are dropped, so that a program that exports nothing does not
/// fill the memory.
pub const SPANS_MAX: usize = 1 << 16;

/// Finished spans of all shards and handlers. No thread that handles messages ever waits for the export.
#[derive(Debug, Default)]
pub struct SpanBuffer {
    finished: Mutex<VecDeque<Span>>,
    dropped: AtomicU64,
}

impl SpanBuffer {
    /// Adds spans and leaves `spans` empty.
    pub fn add(&self, spans: &mut Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = spans.len().min(SPANS_MAX - finished.len());
        finished.extend(spans.drain(..taken));
        drop(finished);
        self.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
        spans.clear();
    }

    /// Takes up to `limit` spans, the oldest first.
    #[must_use]
    pub fn take(&self, limit: usize) -> Vec<Span> {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = finished.len().min(limit);
        finished.drain(..taken).collect()
    }

    /// Number of spans dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqcore_broker::model::id::QueueAddress;
    use mqcore_broker::model::trace_context::TraceContext;
    use mqcore_broker::spans::SpanKind;

    use super::*;

    fn span(attempt: u16) -> Span {
        Span {
            context: TraceContext { trace: [1; 16], span: [2; 8] },
            kind: SpanKind::Deliver,
            queue: Arc::new(QueueAddress::parse("orders/1").expect("a good name")),
            message_id: Box::default(),
            attempt,
            start_micros: 0,
            end_micros: 0,
            subject: Box::default(),
            outcome: "delivered",
            failure: None,
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let buffer = SpanBuffer::default();
        let mut spans = vec![span(1); SPANS_MAX - 1];
        buffer.add(&mut spans);
        spans.extend([span(2), span(3), span(4)]);
        buffer.add(&mut spans);
        assert!(spans.is_empty());
        assert_eq!(buffer.dropped(), 2);
        let (first, taken) = (buffer.take(1), buffer.take(usize::MAX));
        assert_eq!(first, [span(1)]);
        assert_eq!((taken.len(), taken.last().map(|span| span.attempt)), (SPANS_MAX - 1, Some(2)));
        buffer.add(&mut vec![span(5)]);
        assert_eq!(buffer.take(usize::MAX), [span(5)]);
    }
}
