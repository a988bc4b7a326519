//! Lines that a server sends: responses, deliveries and binding updates.

use super::arguments::{WhenUnused, encode_manual_ack};
use super::split;

/// A line from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLine<'a> {
    /// Id of the request; for deliveries and updates, the consumer id.
    pub id: &'a [u8],
    /// Result of the request.
    pub said: AnswerResult<'a>,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerResult<'a> {
    /// The request succeeded; result data, which may be empty.
    Done(&'a [u8]),
    /// The request failed; the error id under which the server logged the reason.
    Failed(&'a [u8]),
}

/// A message delivered to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryLine<'a> {
    /// Message id.
    pub message: &'a [u8],
    /// Event under which the message was published.
    pub event: &'a [u8],
    /// How often the message was requeued.
    pub retry: u32,
    /// Message body.
    pub data: &'a [u8],
}

/// Appends `{id} ok {data}`. The space is written even without data, because the original client requires it.
pub fn encode_done(id: &[u8], data: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(id);
    output.extend_from_slice(b" ok ");
    output.extend_from_slice(data);
    output.push(b'\n');
}

/// Appends `{id} error {error}`.
pub fn encode_failed(id: &[u8], error: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(id);
    output.extend_from_slice(b" error ");
    output.extend_from_slice(error);
    output.push(b'\n');
}

/// Appends a delivery to the consumer with the id `consumer`.
pub fn encode_delivered(consumer: &[u8], delivered: &DeliveryLine<'_>, output: &mut Vec<u8>) {
    output.extend_from_slice(consumer);
    output.extend_from_slice(b" ok ");
    output.extend_from_slice(delivered.message);
    output.extend_from_slice(b" event=");
    output.extend_from_slice(delivered.event);
    // An event name may itself end with `,retry=` and a number. The retry count is then always written, because a reader would
    // otherwise take the end of the name for it.
    if delivered.retry > 0 || told_retry(delivered.event).is_some() {
        output.extend_from_slice(format!(",retry={}", delivered.retry).as_bytes());
    }
    output.push(b' ');
    output.extend_from_slice(delivered.data);
    output.push(b'\n');
}

/// Appends the update that a consumer receives when the bindings of its queue change. `events` are sorted by bytes.
pub fn encode_update(
    consumer: &[u8],
    queue: &[u8],
    events: &[&[u8]],
    when_unused: WhenUnused,
    manual_ack: bool,
    output: &mut Vec<u8>,
) {
    output.extend_from_slice(consumer);
    output.extend_from_slice(b" ok --update ");
    output.extend_from_slice(queue);
    for event in events {
        output.push(b' ');
        output.extend_from_slice(event);
    }
    when_unused.encode(output);
    encode_manual_ack(manual_ack, output);
    output.push(b'\n');
}

/// Parses a line from the server. Returns `None` if it is not valid.
pub fn parse(line: &[u8]) -> Option<ServerLine<'_>> {
    let (id, rest) = split(line)?;
    // Trimming the end of the line may have removed the space after `ok`.
    let (word, data) = split(rest).unwrap_or((rest, &[]));
    match word {
        b"ok" => Some(ServerLine { id, said: AnswerResult::Done(data) }),
        b"error" => Some(ServerLine { id, said: AnswerResult::Failed(data) }),
        _ => None,
    }
}

/// Parses the data of a consumer's line as a delivery. Returns `None` if it is something else.
pub fn delivered(data: &[u8]) -> Option<DeliveryLine<'_>> {
    let (message, rest) = split(data)?;
    let (properties, data) = split(rest).unwrap_or((rest, &[]));
    let properties = properties.strip_prefix(b"event=")?;
    let (event, retry) = told_retry(properties).unwrap_or((properties, 0));
    Some(DeliveryLine { message, event, retry, data })
}

/// Splits off a trailing `,retry=` and number. Returns `None` if there is none, so the whole text is the event name.
fn told_retry(properties: &[u8]) -> Option<(&[u8], u32)> {
    let at = properties.iter().rposition(|byte| *byte == b',')?;
    let retry = properties[at + 1..].strip_prefix(b"retry=")?;
    Some((&properties[..at], std::str::from_utf8(retry).ok()?.parse().ok()?))
}
