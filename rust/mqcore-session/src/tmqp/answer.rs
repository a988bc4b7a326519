//! Frames that answer a frame: responses and acknowledgements.

use std::time::Duration;

use mqcore_broker::model::command::Acknowledgement;
use mqcore_broker::model::message::Message;
use mqcore_broker::model::options::Status;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::subscription::JoinedQueues;
use mqcore_wire::tmqp::header::{self, key, nack_reason};
use mqcore_wire::tmqp::operation::status;
use mqcore_wire::tmqp::{self, Frame, HEADER_BYTES_MAX, HOPS_MAX, Kind, NAME_BYTES_MAX};

/// Maximum bytes of a reason in a header.
const REASON_BYTES_MAX: usize = 1024;

/// The parts of a frame that its answer repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatedParts<'a> {
    pub(super) id: &'a [u8],
    pub(super) first_acquirer: bool,
    pub(super) high_priority: bool,
}

impl<'a> RepeatedParts<'a> {
    pub(super) fn by_frame(frame: &Frame<'a>) -> Self {
        Self { id: frame.id, first_acquirer: frame.first_acquirer, high_priority: frame.high_priority }
    }

    pub(super) fn by_message(message: &'a Message) -> Self {
        let properties = message.properties();
        let (first_acquirer, high_priority) = (properties.first_acquirer, properties.high_priority);
        Self { id: message.id(), first_acquirer, high_priority }
    }
}

/// A name as a frame can hold it. Names of this protocol are never longer; names of peers that use another protocol may
/// be.
pub(super) fn name(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(NAME_BYTES_MAX)]
}

/// A response without headers and body.
fn response_frame<'a>(repeated: &RepeatedParts<'a>, target: &'a [u8], code: u16) -> Frame<'a> {
    Frame {
        first_acquirer: repeated.first_acquirer,
        high_priority: repeated.high_priority,
        content_type: code,
        id: repeated.id,
        target: name(target),
        ..Frame::new(Kind::RESPONSE)
    }
}

/// Writes a response.
pub(super) fn response(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    code: u16,
    body: &[u8],
    output: &mut Vec<u8>,
) {
    let frame = Frame { payload: body, ..response_frame(repeated, target, code) };
    tmqp::encode(&frame, output);
}

/// Writes the response to a list operation. `next`: the cursor of the next page.
pub(super) fn list(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    body: &[u8],
    next: Option<&str>,
    output: &mut Vec<u8>,
) {
    let mut headers = Vec::new();
    if let Some(next) = next {
        let pushed = header::push_header(&mut headers, key::NEXT_PAGE, next.as_bytes());
        debug_assert_eq!(pushed, Ok(()), "a name or digits");
    }
    let frame = Frame { headers: &headers, payload: body, ..response_frame(repeated, target, status::OK) };
    tmqp::encode(&frame, output);
}

/// Writes the response to a join by queues: the terms as the broker applies them.
pub(super) fn joined_queues(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    joined: &JoinedQueues,
    output: &mut Vec<u8>,
) {
    let timeout = |timeout: &Option<Duration>| timeout.map_or(0, |timeout| timeout.as_millis());
    let mut headers = Vec::new();
    for (name, value) in [
        (key::QUEUE_IDS, listed(&joined.join.queues)),
        (key::PREFETCH, joined.join.prefetch.to_string()),
        (key::ACKNOWLEDGE_TIMEOUTS, listed(joined.acknowledge_timeouts.iter().map(timeout))),
    ] {
        let pushed = header::push_header(&mut headers, name, value.as_bytes());
        debug_assert_eq!(pushed, Ok(()), "a limited number of digits and commas");
    }
    let frame = Frame {
        first_acquirer: repeated.first_acquirer,
        high_priority: repeated.high_priority,
        content_type: status::OK,
        id: repeated.id,
        target: name(target),
        headers: &headers,
        ..Frame::new(Kind::RESPONSE)
    };
    tmqp::encode(&frame, output);
}

fn listed(numbers: impl IntoIterator<Item = impl ToString>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

/// Writes a response that rejects the request. It has no body, because the original's clients parse every body as the
/// requested model; a header has the reason.
pub(super) fn refusal(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    rejection: &Rejection,
    output: &mut Vec<u8>,
) {
    let mut headers = Vec::new();
    push_reason(&mut headers, key::REASON, &rejection.reason);
    if rejection.kind == RejectionKind::QueueStopped {
        // The code is that of a missing permission.
        let pushed =
            header::push_header(&mut headers, key::QUEUE_STATUS, Status::Stopped.as_str().as_bytes());
        debug_assert_eq!(pushed, Ok(()), "a short word");
    }
    let frame = Frame { headers: &headers, ..response_frame(repeated, target, rejection.kind.code()) };
    tmqp::encode(&frame, output);
}

/// Like [`refusal`], with a status that does not depend on the reason.
pub(super) fn refusal_with_code(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    code: u16,
    reason: &str,
    output: &mut Vec<u8>,
) {
    let mut headers = Vec::new();
    push_reason(&mut headers, key::REASON, reason);
    let frame = Frame { headers: &headers, ..response_frame(repeated, target, code) };
    tmqp::encode(&frame, output);
}

/// Writes the broker's own acknowledgement of a message for `target`; negative if there is a reason.
pub(super) fn acknowledgement(
    repeated: &RepeatedParts<'_>,
    target: &[u8],
    content_type: u16,
    negative: Option<&str>,
    output: &mut Vec<u8>,
) {
    let mut headers = Vec::new();
    if let Some(reason) = negative {
        push_reason(&mut headers, key::NACK_REASON, reason);
    }
    let frame = Frame {
        first_acquirer: repeated.first_acquirer,
        high_priority: repeated.high_priority,
        content_type,
        id: repeated.id,
        target: name(target),
        headers: &headers,
        ..Frame::new(Kind::ACKNOWLEDGE)
    };
    tmqp::encode(&frame, output);
}

/// Notifies a producer that its message was rejected: with a response, as the original does, and with an
/// acknowledgement if the producer waits for one, because its client accepts no other answer then.
pub(super) fn publish_refused(
    repeated: &RepeatedParts<'_>,
    pending_acknowledge: bool,
    channel: &[u8],
    queue: u16,
    rejection: &Rejection,
    output: &mut Vec<u8>,
) {
    if repeated.id.is_empty() {
        return;
    }
    refusal(repeated, channel, rejection, output);
    if pending_acknowledge {
        // High priority would make it the acknowledgement of a direct message.
        let repeated = RepeatedParts { high_priority: false, ..*repeated };
        acknowledgement(&repeated, channel, queue, Some(&rejection.reason), output);
    }
}

/// Notifies a producer how its message was settled, in the broker's own name.
pub(super) fn settled(
    message: &Message,
    channel: &[u8],
    queue: u16,
    negative: Option<&str>,
    output: &mut Vec<u8>,
) {
    let repeated = RepeatedParts { id: message.id(), first_acquirer: true, high_priority: false };
    acknowledgement(&repeated, channel, queue, negative, output);
}

/// Passes a consumer's acknowledgement on to the producer. `negative` decides whether it is negative: a handler's
/// decision may have reversed the consumer's.
pub(super) fn relayed(
    message: &Message,
    channel: &[u8],
    queue: u16,
    negative: Option<&str>,
    word: &Acknowledgement,
    consumer: Option<&str>,
    output: &mut Vec<u8>,
) {
    let said_negative = header::header_value(&word.headers, key::NACK_REASON).is_some();
    let rewritten = (said_negative != negative.is_some()).then(|| with_reason(&word.headers, negative));
    let frame = Frame {
        first_acquirer: word.first_acquirer,
        hops: word.hops.min(HOPS_MAX),
        content_type: queue,
        id: message.id(),
        source: name(consumer.unwrap_or_default().as_bytes()),
        target: name(channel),
        headers: rewritten.as_deref().unwrap_or(&word.headers),
        ..Frame::new(Kind::ACKNOWLEDGE)
    };
    tmqp::encode(&frame, output);
}

/// The header lines without any reason, followed by `negative` as the reason.
fn with_reason(headers: &[u8], negative: Option<&str>) -> Vec<u8> {
    let mut lines = without(headers, key::NACK_REASON);
    if let Some(reason) = negative {
        truncate_lines(&mut lines, HEADER_BYTES_MAX - key::NACK_REASON.len() - 3 - REASON_BYTES_MAX);
        push_reason(&mut lines, key::NACK_REASON, reason);
    }
    lines
}

/// The usable header lines whose key is not `key`.
pub(super) fn without(headers: &[u8], key: &str) -> Vec<u8> {
    let mut lines = Vec::with_capacity(headers.len() + 2);
    for (name, value) in header::pairs(headers) {
        if !name.eq_ignore_ascii_case(key.as_bytes()) {
            lines.extend_from_slice(name);
            lines.push(b':');
            lines.extend_from_slice(value);
            lines.extend_from_slice(b"\r\n");
        }
    }
    // The last line may have lacked its line end and has one now.
    truncate_lines(&mut lines, HEADER_BYTES_MAX);
    lines
}

/// Removes whole lines from the end until at most `bytes` are left.
pub(super) fn truncate_lines(lines: &mut Vec<u8>, bytes: usize) {
    if lines.len() > bytes {
        let end = lines[..bytes].windows(2).rposition(|pair| pair == b"\r\n").map_or(0, |at| at + 2);
        lines.truncate(end);
    }
}

fn push_reason(headers: &mut Vec<u8>, key: &str, reason: &str) {
    let line = one_line(reason);
    let line = if line.is_empty() { nack_reason::NONE } else { &line };
    let pushed = header::push_header(headers, key, line.as_bytes());
    debug_assert_eq!(pushed, Ok(()), "one line, and room was left for it");
}

/// The reason as a header can hold it: without line breaks, and truncated.
fn one_line(reason: &str) -> String {
    let ends = reason.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = ends.take_while(|&end| end <= REASON_BYTES_MAX).last().unwrap_or(0);
    reason[..end].replace(char::is_control, " ")
}
