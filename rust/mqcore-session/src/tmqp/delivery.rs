//! Frames with messages: deliveries, pulled and cached messages, and messages between clients.

use std::borrow::Cow;

use mqcore_broker::model::effect::{Deliver, Publication, PullOutcome};
use mqcore_broker::model::id::TopicName;
use mqcore_broker::model::message::Message;
use mqcore_wire::tmqp::header::{self, key, no_content, pairs};
use mqcore_wire::tmqp::operation::status;
use mqcore_wire::tmqp::{self, Frame, HEADER_BYTES_MAX, HOPS_MAX, Kind, NAME_BYTES_MAX};

use super::answer::{self, RepeatedParts, name};
use super::pending::PendingPull;
use super::topic;

/// Appends a delivery as its consumers get it. `first`: the reader is the message's first acquirer.
pub fn encode_delivery(deliver: &Deliver, first: bool, output: &mut Vec<u8>) {
    if shows_attempt(deliver) {
        let headers = with_attempt(deliver);
        tmqp::encode(&Frame { headers: &headers, ..delivered(deliver, first) }, output);
    } else {
        tmqp::encode(&delivered(deliver, first), output);
    }
}

/// Bytes that [`encode_delivery`] appends.
#[must_use]
pub fn delivery_size(deliver: &Deliver) -> usize {
    if shows_attempt(deliver) {
        let headers = with_attempt(deliver);
        return Frame { headers: &headers, ..delivered(deliver, false) }.encoded_size();
    }
    delivered(deliver, false).encoded_size()
}

/// Whether the headers have the number of the attempt. Without it, consumers that joined for the queue take the attempt for
/// the first. A header of the producer must not contradict that.
#[inline]
fn shows_attempt(deliver: &Deliver) -> bool {
    let headers = deliver.message.headers();
    deliver.by_queue
        && (deliver.attempt > 1
            || (!headers.is_empty() && header::header_value(headers, key::ATTEMPT).is_some()))
}

/// The headers of a delivery with the number of its attempt behind those of the producer.
#[cold]
fn with_attempt(deliver: &Deliver) -> Vec<u8> {
    let mut line = Vec::new();
    push(&mut line, key::ATTEMPT, deliver.attempt.to_string().as_bytes());
    behind(deliver.message.headers(), &line)
}

fn delivered(deliver: &Deliver, first: bool) -> Frame<'_> {
    Frame {
        first_acquirer: first,
        pending_acknowledge: deliver.acknowledge,
        content_type: deliver.queue.id,
        source: source(&deliver.message, deliver.hide_source),
        target: deliver.queue.channel.as_str().as_bytes(),
        ..carried(Kind::QUEUE, &deliver.message)
    }
}

/// Appends a topic's message as its subscribers receive it.
pub fn encode_publication(publication: &Publication, output: &mut Vec<u8>) {
    published(&publication.topic, &publication.message, output);
}

/// A topic's message: like one of a queue, with the topic as its target and nothing to acknowledge.
pub(super) fn published(topic: &TopicName, message: &Message, output: &mut Vec<u8>) {
    let mut target = [0; NAME_BYTES_MAX];
    let name = topic.as_bytes();
    // A frame cannot hold a longer name; peers of this protocol cannot publish to one either.
    let end = (topic::PREFIX.len() + name.len()).min(NAME_BYTES_MAX);
    target[..topic::PREFIX.len()].copy_from_slice(topic::PREFIX);
    target[topic::PREFIX.len()..end].copy_from_slice(&name[..end - topic::PREFIX.len()]);
    let frame = Frame {
        first_acquirer: false,
        pending_acknowledge: false,
        pending_response: false,
        source: source(message, false),
        target: &target[..end],
        ..carried(Kind::QUEUE, message)
    };
    tmqp::encode(&frame, output);
}

/// A message as it was sent, in a frame of this kind, without source and target.
fn carried(kind: Kind, message: &Message) -> Frame<'_> {
    let properties = message.properties();
    Frame {
        kind,
        first_acquirer: properties.first_acquirer,
        high_priority: properties.high_priority,
        pending_response: properties.pending_response,
        pending_acknowledge: properties.pending_acknowledge,
        hops: properties.hops.min(HOPS_MAX),
        content_type: properties.content_type,
        id: message.id(),
        source: &[],
        target: &[],
        headers: message.headers(),
        payload: message.body(),
    }
}

fn source(message: &Message, hidden: bool) -> &[u8] {
    if hidden { &[] } else { name(message.source()) }
}

/// A message from one client to another.
pub(super) fn relay(kind: Kind, message: &Message, target: &[u8], output: &mut Vec<u8>) {
    let frame = Frame { source: source(message, false), target: name(target), ..carried(kind, message) };
    tmqp::encode(&frame, output);
}

/// A pulled message and how it is delivered.
#[derive(Debug)]
pub(super) struct Pulled<'a> {
    pub(super) message: &'a Message,
    pub(super) acknowledge: bool,
    pub(super) hide_source: bool,
    pub(super) first: bool,
    pub(super) attempt: u16,
}

/// Message `index` of the `count` of a pull. `left`: the numbers of high-priority and of other messages that stay in
/// the queue.
pub(super) fn pulled(
    pull: &PendingPull,
    pulled: &Pulled<'_>,
    index: u32,
    count: u32,
    left: Option<(u64, u64)>,
    output: &mut Vec<u8>,
) {
    let mut lines = Vec::new();
    push(&mut lines, key::REQUEST_ID, &pull.id);
    push(&mut lines, key::COUNT, count.to_string().as_bytes());
    push(&mut lines, key::INDEX, index.to_string().as_bytes());
    if pull.attempts {
        push(&mut lines, key::ATTEMPT, pulled.attempt.to_string().as_bytes());
    }
    if let Some((high_priority, normal)) = left {
        push(&mut lines, key::PRIORITY_MESSAGES, high_priority.to_string().as_bytes());
        push(&mut lines, key::MESSAGES, normal.to_string().as_bytes());
    }
    let own = own_lines(pulled.message.headers(), &lines);
    let headers = behind(&own, &lines);
    let frame = Frame {
        first_acquirer: pulled.first,
        pending_acknowledge: pulled.acknowledge,
        content_type: pull.queue,
        source: source(pulled.message, pulled.hide_source),
        target: &pull.channel,
        headers: &headers,
        ..carried(Kind::QUEUE, pulled.message)
    };
    tmqp::encode(&frame, output);
}

/// Keys of a pulled message that its own headers may share with the pull, because clients ignore these.
const SHARED: [&str; 2] = [key::COUNT, key::INDEX];

/// A message's own header text without the lines that the pull's `lines` replace, and without a `No-Content`: clients
/// take the first line with a key, and a message with a `No-Content` for the end of the pull.
fn own_lines<'a>(own: &'a [u8], lines: &[u8]) -> Cow<'a, [u8]> {
    let is_replaced = |name: &[u8]| {
        let is = |key: &str| name.eq_ignore_ascii_case(key.as_bytes());
        let is_of_pull = || pairs(lines).any(|(key, _)| name.eq_ignore_ascii_case(key));
        is(key::NO_CONTENT) || (!SHARED.into_iter().any(is) && is_of_pull())
    };
    if !pairs(own).any(|(name, _)| is_replaced(name)) {
        return Cow::Borrowed(own);
    }
    let mut others = Vec::with_capacity(own.len());
    for (name, value) in pairs(own).filter(|(name, _)| !is_replaced(name)) {
        others.extend_from_slice(name);
        others.push(b':');
        others.extend_from_slice(value);
        others.extend_from_slice(b"\r\n");
    }
    Cow::Owned(others)
}

/// A message's own header text and then `lines`, which must be complete: whole lines of the message are dropped for
/// them.
fn behind(own: &[u8], lines: &[u8]) -> Vec<u8> {
    let mut headers = Vec::with_capacity(own.len() + 2 + lines.len());
    headers.extend_from_slice(own);
    if !own.is_empty() && !own.ends_with(b"\r\n") {
        headers.extend_from_slice(b"\r\n");
    }
    answer::truncate_lines(&mut headers, HEADER_BYTES_MAX - lines.len());
    headers.extend_from_slice(lines);
    headers
}

/// Ends a pull, or rejects it with a reason.
pub(super) fn no_content(
    repeated: &RepeatedParts<'_>,
    channel: &[u8],
    queue: u16,
    why: &'static str,
    output: &mut Vec<u8>,
) {
    let mut headers = Vec::new();
    if !repeated.id.is_empty() {
        push(&mut headers, key::REQUEST_ID, repeated.id);
    }
    push(&mut headers, key::NO_CONTENT, why.as_bytes());
    let frame = Frame {
        content_type: queue,
        id: repeated.id,
        target: channel,
        headers: &headers,
        ..Frame::new(Kind::QUEUE)
    };
    tmqp::encode(&frame, output);
}

pub(super) fn no_content_word(outcome: PullOutcome) -> &'static str {
    match outcome {
        PullOutcome::Complete => no_content::END,
        PullOutcome::Empty => no_content::EMPTY,
        PullOutcome::Unacceptable => no_content::UNACCEPTABLE,
        PullOutcome::Unauthorized => no_content::UNAUTHORIZED,
        PullOutcome::NoChannel => no_content::NO_CHANNEL,
        PullOutcome::NoQueue => no_content::NO_QUEUE,
    }
}

/// The message of a cache queue: a response to the pull, under the pull's id.
pub(super) fn cached(
    pull: &PendingPull,
    message: &Message,
    hide_source: bool,
    client_id: &[u8],
    output: &mut Vec<u8>,
) {
    let repeated = pull.repeated();
    let frame = Frame {
        first_acquirer: repeated.first_acquirer,
        high_priority: repeated.high_priority,
        content_type: status::OK,
        id: repeated.id,
        source: source(message, hide_source),
        target: name(client_id),
        headers: message.headers(),
        payload: message.body(),
        ..Frame::new(Kind::RESPONSE)
    };
    tmqp::encode(&frame, output);
}

/// Appends a header line. An id may be any bytes, but a header cannot hold one with a line break: the header is left
/// out, and the frame's own id remains.
fn push(lines: &mut Vec<u8>, key: &str, value: &[u8]) {
    let _ = header::push_header(lines, key, value);
}
