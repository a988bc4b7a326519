//! MQKS at the client's side: the lines that it sends, and what received lines mean.

use mqcore_wire::mqks::answer::{AnswerResult, delivered, parse};
use mqcore_wire::mqks::encode_request;

use super::body::{label_of, message_id};
use super::{Received, by_id};

/// Begins to consume a queue, under a name of the consumer.
pub(super) fn consume(name: &str, address: &str, prefetch: u32) -> Vec<u8> {
    let (prefetch, mut lines) = (prefetch.to_string(), Vec::new());
    encode_request(b"p", "prefetch", false, &[name.as_bytes(), prefetch.as_bytes()], &mut lines);
    let consume: [&[u8]; 2] = [address.as_bytes(), b"--manual-ack"];
    encode_request(name.as_bytes(), "consume", true, &consume, &mut lines);
    lines
}

/// Binds a queue to an event, which is a topic.
pub(super) fn bind(address: &str, event: &str) -> Vec<u8> {
    let mut lines = Vec::new();
    let bind: [&[u8]; 3] = [address.as_bytes(), b"--add", event.as_bytes()];
    encode_request(b"b", "rebind", true, &bind, &mut lines);
    lines
}

/// A message that asks for a confirmation.
pub(super) fn publish(event: &str, label: u32, body: &str) -> Vec<u8> {
    let mut lines = Vec::new();
    let data: [&[u8]; 2] = [event.as_bytes(), body.as_bytes()];
    encode_request(message_id(label, 0).as_bytes(), "publish", true, &data, &mut lines);
    lines
}

/// Settles a message of a consumer.
pub(super) fn settle(name: &str, id: &[u8], positive: bool) -> Vec<u8> {
    let (mut lines, action) = (Vec::new(), if positive { "ack" } else { "reject" });
    encode_request(b"a", action, false, &[name.as_bytes(), id], &mut lines);
    lines
}

/// The meaning of a line.
pub(super) fn received(line: &[u8]) -> Received {
    let Some(answer) = parse(line) else { return Received::Other };
    let answered = |label, part, confirmed| Received::Answers { labels: vec![label], part, confirmed };
    match (answer.said, label_of(answer.id)) {
        (AnswerResult::Done(_), Some((label, part))) => answered(label, part, true),
        (AnswerResult::Failed(_), Some((label, part))) => answered(label, part, false),
        (AnswerResult::Done(data), None) => match delivered(data) {
            Some(message) => by_id(message.message, message.data, message.retry > 0),
            None if data.is_empty() => Received::Ready,
            None => Received::Other,
        },
        (AnswerResult::Failed(error), None) => {
            Received::Refused(format!("error {}", String::from_utf8_lossy(error)))
        }
    }
}
