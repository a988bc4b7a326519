//! Spans of messages whose producer records a trace.
//!
//! They tell what happened to a message between its producer and its consumer. Their times are those of the lifecycle
//! events, in milliseconds.

use std::sync::Arc;

use crate::history::LifecycleEvent;
use crate::model::client::Client;
use crate::model::entry::Entry;
use crate::model::id::QueueAddress;
use crate::model::time::Timestamp;
use crate::model::trace_context::TraceContext;

/// The subject of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// From the arrival of the message at its first queue until it was saved.
    Save,
    /// From the arrival of the message at its first queue until it was delivered to a consumer.
    Deliver,
    /// From a delivery until the consumer settled it, or had no more time for it, or was lost.
    Settle,
    /// The moment at which the message left its queue for another reason.
    Leave,
    /// A call of a delivery handler.
    Decide,
}

impl SpanKind {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Deliver => "deliver",
            Self::Settle => "settle",
            Self::Leave => "leave",
            Self::Decide => "decide",
        }
    }
}

/// Something that the broker did with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its trace, and its parent: the span that published the message.
    pub context: TraceContext,
    /// Its subject.
    pub kind: SpanKind,
    /// The queue.
    pub queue: Arc<QueueAddress>,
    /// The id of the message.
    pub message_id: Box<[u8]>,
    /// Deliveries of the message so far.
    pub attempt: u16,
    /// When it began, in microseconds since 1970.
    pub start_micros: u64,
    /// When it ended, in microseconds since 1970.
    pub end_micros: u64,
    /// The id of the consumer, or the key of the handler and the step.
    pub subject: Box<str>,
    /// How it ended: `acked`, `nacked` and so on.
    pub outcome: &'static str,
    /// Why it failed; `None`: it did not fail.
    pub failure: Option<Box<str>>,
}

/// The spans of a shard until its caller takes them.
#[derive(Debug, Default)]
pub(crate) struct SpanLog {
    spans: Vec<Span>,
}

impl SpanLog {
    /// Moves the spans so far to `into`.
    pub(crate) fn take(&mut self, into: &mut Vec<Span>) {
        into.append(&mut self.spans);
    }

    /// Adds the span that ends with this event, if there is one. `since`: when the delivery began that the event ends.
    pub(crate) fn write(
        &mut self,
        now: Timestamp,
        queue: &Arc<QueueAddress>,
        entry: &Entry,
        what: LifecycleEvent<'_>,
        since: Timestamp,
    ) {
        let Some(context) = TraceContext::sampled(entry.message.headers()) else { return };
        let Some(ended) = Ended::by(what) else { return };
        let start = match ended.kind {
            SpanKind::Save | SpanKind::Deliver => entry.message.received(),
            SpanKind::Settle => since,
            SpanKind::Leave | SpanKind::Decide => now,
        };
        self.spans.push(Span {
            context,
            kind: ended.kind,
            queue: Arc::clone(queue),
            message_id: entry.message.id().into(),
            attempt: entry.attempts,
            start_micros: micros(if start.0 == 0 { now } else { start.min(now) }),
            end_micros: micros(now),
            subject: ended.consumer.map_or("", |consumer| &*consumer.id).into(),
            outcome: ended.outcome,
            failure: ended.failure,
        });
    }
}

fn micros(time: Timestamp) -> u64 {
    time.0.saturating_mul(1000)
}

/// The part of a span that its last event knows.
struct Ended<'a> {
    kind: SpanKind,
    consumer: Option<&'a Client>,
    outcome: &'static str,
    failure: Option<Box<str>>,
}

impl<'a> Ended<'a> {
    /// `None`: the event ends no span.
    fn by(what: LifecycleEvent<'a>) -> Option<Self> {
        let new = |kind, consumer, outcome, failure: Option<&str>| {
            Some(Self { kind, consumer, outcome, failure: failure.map(Into::into) })
        };
        let settled = |consumer, outcome, failure| new(SpanKind::Settle, Some(consumer), outcome, failure);
        match what {
            LifecycleEvent::Produced | LifecycleEvent::Arrived | LifecycleEvent::Requeued(_) => None,
            LifecycleEvent::Saved => new(SpanKind::Save, None, "saved", None),
            LifecycleEvent::Delivered(consumer) => new(SpanKind::Deliver, Some(consumer), "delivered", None),
            LifecycleEvent::Acked(consumer) => settled(consumer, "acked", None),
            LifecycleEvent::Nacked(consumer, reason) => settled(consumer, "nacked", Some(reason)),
            LifecycleEvent::TimedOut(consumer) => {
                settled(consumer, "timed-out", Some("the consumer did not acknowledge it in time"))
            }
            LifecycleEvent::ConsumerLost(consumer) => {
                settled(consumer, "consumer-lost", Some("the connection of the consumer ended"))
            }
            LifecycleEvent::Expired => new(SpanKind::Leave, None, "expired", Some("expired")),
            LifecycleEvent::DeadLettered(reason, _) => {
                new(SpanKind::Leave, None, "dead-lettered", Some(reason.as_str()))
            }
            LifecycleEvent::Moved(_) => new(SpanKind::Leave, None, "moved", None),
            LifecycleEvent::Dropped(reason) => new(SpanKind::Leave, None, "dropped", Some(reason.as_str())),
            LifecycleEvent::Missed(consumer) => {
                new(SpanKind::Leave, Some(consumer), "dropped", Some("the consumer is too slow"))
            }
            LifecycleEvent::Replaced => new(SpanKind::Leave, None, "replaced", None),
        }
    }
}
