//! Spans of the decisions of a handler, for messages whose producer records a trace.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mqcore_broker::model::effect::{HandlerFailure, Question};
use mqcore_broker::model::trace_context::TraceContext;
use mqcore_broker::spans::{Span, SpanKind};
use mqcore_server::spans::SpanBuffer;

/// Begins the spans of one handler.
pub(crate) struct DecisionSpans {
    key: Box<str>,
    /// `None`: this broker records no spans.
    buffer: Option<Arc<SpanBuffer>>,
}

impl DecisionSpans {
    pub(crate) fn new(key: &str, buffer: Option<Arc<SpanBuffer>>) -> Self {
        Self { key: key.into(), buffer }
    }

    /// Begins the span of a decision, if its message is traced.
    pub(crate) fn begin(&self, question: &Question) -> Option<DecisionSpan> {
        let buffer = self.buffer.as_ref()?;
        let message = question.message.as_ref()?;
        let now = micros();
        let span = Span {
            context: TraceContext::sampled(message.headers())?,
            kind: SpanKind::Decide,
            queue: Arc::clone(&question.queue),
            message_id: message.id().into(),
            attempt: question.attempt,
            start_micros: now,
            end_micros: now,
            subject: format!("{}.{}", self.key, question.step.method()).into(),
            outcome: "decided",
            failure: None,
        };
        Some(DecisionSpan { span, buffer: Arc::clone(buffer) })
    }
}

/// A decision that is being made.
pub(crate) struct DecisionSpan {
    span: Span,
    buffer: Arc<SpanBuffer>,
}

impl DecisionSpan {
    /// Ends it. `failure`: why the handler made no decision.
    pub(crate) fn end(mut self, failure: Option<HandlerFailure>) {
        self.span.end_micros = micros();
        if let Some(failure) = failure {
            self.span.outcome = "failed";
            self.span.failure = Some(match failure {
                HandlerFailure::Raised => "the handler raised an exception".into(),
                HandlerFailure::Gone => "the handler was stopped".into(),
            });
        }
        self.buffer.add(&mut vec![self.span]);
    }
}

/// The time in microseconds since 1970.
fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
