//! What a server says: answers, deliveries, updates.

use super::arguments::{WhenUnused, encode_manual_ack};
use super::split;

/// One line of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The id of the request it answers; of a delivery or an update, the consumer's.
    pub id: &'a [u8],
    /// What it says.
    pub said: Said<'a>,
}

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// It was done; with what is told about it, which may be nothing.
    Done(&'a [u8]),
    /// It was not; under this number the server's log says why.
    Failed(&'a [u8]),
}

/// A message on its way to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered<'a> {
    /// The message's id.
    pub message: &'a [u8],
    /// The event it was published as.
    pub event: &'a [u8],
    /// How often it was given back.
    pub retry: u32,
    /// The message.
    pub data: &'a [u8],
}

/// Appends `{id} ok {data}`. The space stands there even if nothing follows: the original's client waits for it.
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

/// Appends a delivery to `consumer`.
pub fn encode_delivered(consumer: &[u8], delivered: &Delivered<'_>, output: &mut Vec<u8>) {
    output.extend_from_slice(consumer);
    output.extend_from_slice(b" ok ");
    output.extend_from_slice(delivered.message);
    output.extend_from_slice(b" event=");
    output.extend_from_slice(delivered.event);
    // An event may be named like the property behind it; then the property is always written, or a reader would take the name for it.
    if delivered.retry > 0 || told_retry(delivered.event).is_some() {
        output.extend_from_slice(format!(",retry={}", delivered.retry).as_bytes());
    }
    output.push(b' ');
    output.extend_from_slice(delivered.data);
    output.push(b'\n');
}

/// Appends what a consumer is told when the bindings of its queue changed. `events` in the order of their octets.
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

/// Reads a line of a server; `None` if it is none.
pub fn parse(line: &[u8]) -> Option<Answer<'_>> {
    let (id, rest) = split(line)?;
    // The end of the line may have taken the space behind `ok` with it.
    let (word, data) = split(rest).unwrap_or((rest, &[]));
    match word {
        b"ok" => Some(Answer { id, said: Said::Done(data) }),
        b"error" => Some(Answer { id, said: Said::Failed(data) }),
        _ => None,
    }
}

/// Reads the data of an answer to a consumer as a delivery; `None` if it is something else.
pub fn delivered(data: &[u8]) -> Option<Delivered<'_>> {
    let (message, rest) = split(data)?;
    let (properties, data) = split(rest).unwrap_or((rest, &[]));
    let properties = properties.strip_prefix(b"event=")?;
    let (event, retry) = told_retry(properties).unwrap_or((properties, 0));
    Some(Delivered { message, event, retry, data })
}

/// Event and retries, if the text ends in `,retry=` and a number; otherwise all of it is the event's name.
fn told_retry(properties: &[u8]) -> Option<(&[u8], u32)> {
    let at = properties.iter().rposition(|octet| *octet == b',')?;
    let retry = properties[at + 1..].strip_prefix(b"retry=")?;
    Some((&properties[..at], std::str::from_utf8(retry).ok()?.parse().ok()?))
}
