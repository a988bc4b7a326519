//! Subscribing to events, and unsubscribing.

use mqcore_broker::model::command::{EventKind, EventScope, EventSubscription};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_wire::tmqp::Frame;
use mqcore_wire::tmqp::header::{self, key};
use mqcore_wire::tmqp::operation::EVENT_SUBSCRIBE;

use super::publish::{channel_name, queue_id};

/// Reads an event frame. Headers that the event does not need are ignored.
pub(super) fn read(frame: &Frame<'_>) -> Result<EventSubscription, Rejection> {
    let kind = str::from_utf8(frame.target).ok().and_then(EventKind::from_name);
    let kind = kind.ok_or_else(|| Rejection::new(RejectionKind::NotFound, "unknown event name"))?;
    let channel = match kind.scope() {
        EventScope::Server => None,
        EventScope::Channel | EventScope::Queue => Some(channel_name(needed(frame, key::CHANNEL_NAME)?)?),
    };
    let queue = match kind.scope() {
        EventScope::Server | EventScope::Channel => None,
        EventScope::Queue => Some(queue_id(needed(frame, key::QUEUE_ID)?)?),
    };
    Ok(EventSubscription { kind, channel, queue, on: frame.content_type == EVENT_SUBSCRIBE })
}

fn needed<'a>(frame: &Frame<'a>, key: &'static str) -> Result<&'a [u8], Rejection> {
    header::header_value(frame.headers, key).ok_or_else(|| {
        Rejection::new(RejectionKind::BadRequest, format!("this event needs the header {key}"))
    })
}
