//! Messages as lines, and lines as messages.
//!
//! The header `Topic` contains the event of a message, so that it is still known when the queue delivers the message. A
//! message that was published to its queue in another way gets the queue's name as its event. In a body with line ends
//! or TABs, which only other protocols can send, `\n`, `\r` and `\t` replace them.

use std::borrow::Cow;
use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::effect::Deliver;
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::topic_header::{header_line, topic_in};
use mqcore_wire::mqks::answer::{DeliveryLine, encode_delivered};
use mqcore_wire::mqks::message_id;

use super::names;

/// The message for data that is published under an event.
pub(super) fn message(id: &[u8], event: &[u8], data: &[u8], client: &Arc<Client>) -> Message {
    let headers = header_line(event).unwrap_or_default();
    Message::from_parts(id, &headers, data, Properties::default(), Some(client.clone()))
}

/// The topic that a message was published to, if its headers contain it and a line can.
fn event(headers: &[u8]) -> Option<&[u8]> {
    topic_in(headers).filter(|name| !name.is_empty() && !name.contains(&b' '))
}

/// A body as the data of a line.
fn data(body: &[u8]) -> Cow<'_, [u8]> {
    if !body.iter().any(|byte| matches!(byte, b'\n' | b'\r' | b'\t')) {
        return Cow::Borrowed(body);
    }
    let mut escaped = Vec::with_capacity(body.len() + 16);
    for byte in body {
        match byte {
            b'\n' => escaped.extend_from_slice(b"\\n"),
            b'\r' => escaped.extend_from_slice(b"\\r"),
            b'\t' => escaped.extend_from_slice(b"\\t"),
            other => escaped.push(*other),
        }
    }
    Cow::Owned(escaped)
}

/// Appends a delivery to the consumer that its subscription is named after.
pub fn encode_delivery(deliver: &Deliver, _first: bool, output: &mut Vec<u8>) {
    let consumer = deliver.name.as_deref().unwrap_or_default();
    let message = &deliver.message;
    let queue;
    let event = match event(message.headers()) {
        Some(event) => event,
        None => {
            queue = names::shown(&deliver.queue);
            queue.as_bytes()
        }
    };
    let delivered = DeliveryLine {
        message: &message_id::write(message.id()),
        event,
        retry: deliver.requeues.into(),
        data: &data(message.body()),
    };
    encode_delivered(consumer, &delivered, output);
}

/// About how many bytes [`encode_delivery`] appends.
#[must_use]
pub fn delivery_size(deliver: &Deliver) -> usize {
    let names = deliver.name.as_deref().map_or(0, <[u8]>::len) + deliver.message.id().len();
    names + deliver.message.headers().len() + deliver.message.body().len() + 32
}
