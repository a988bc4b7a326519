//! Messages as they are in the next queue: dead letters, and messages that an operator moves.

use crate::model::id::QueueAddress;
use crate::model::message::{Message, Properties};
use crate::model::record::address;

/// Headers of dead letters, up to their values.
pub(super) const REASON: &str = "Dead-Letter-Reason:";
pub(super) const ORIGIN: &str = "Dead-Letter-Queue:";
pub(super) const ATTEMPTS: &str = "Dead-Letter-Attempts:";
pub(super) const ERROR: &str = "Dead-Letter-Error:";

/// A message with other headers, for another queue.
pub(super) fn transferred_message(
    message: &Message,
    headers: &[u8],
    to: &QueueAddress,
    priority: u8,
) -> Message {
    let properties = Properties {
        content_type: to.id,
        pending_acknowledge: false,
        pending_response: false,
        // The key does not apply there: two failed messages with the same key are two messages.
        unique: false,
        // It was delayed once, and it must not expire there.
        terms: false,
        remembered: false,
        priority,
        ..message.properties()
    };
    Message::from_parts(message.id(), headers, message.body(), properties, message.producer().cloned())
}

/// The queue that a dead letter comes from; the last one, if it was dead-lettered more than once.
pub(crate) fn origin_of(message: &Message) -> Option<QueueAddress> {
    let lines = message.headers().split(|byte| *byte == b'\n').rev();
    let mut named = lines.filter_map(|line| line.trim_ascii_end().strip_prefix(ORIGIN.as_bytes()));
    named.find_map(|name| address(std::str::from_utf8(name).ok()?.trim()))
}

/// Whether a header line describes why a message is a dead letter.
fn is_origin_line(line: &[u8]) -> bool {
    [REASON, ORIGIN, ATTEMPTS, ERROR].iter().any(|header| line.starts_with(header.as_bytes()))
}

/// The message for its new queue. A message that returns to the queue that dead-lettered it loses the headers about
/// that.
pub(crate) fn moved_message(message: &Message, to: &QueueAddress, returns: bool) -> Message {
    let headers = message.headers();
    if !returns {
        return transferred_message(message, headers, to, message.properties().priority);
    }
    let lines = headers.split_inclusive(|byte| *byte == b'\n');
    let kept: Vec<u8> = lines.filter(|line| !is_origin_line(line)).flatten().copied().collect();
    transferred_message(message, &kept, to, message.properties().priority)
}
