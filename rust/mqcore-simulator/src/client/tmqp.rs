//! TMQP at the client's side: the frames that it sends, and what received frames mean.

use mqcore_broker::model::options::Status;
use mqcore_broker::model::router::RouterMethod;
use mqcore_wire::tmqp::header::{VALUE_YES, header_value, key, no_content, push_header};
use mqcore_wire::tmqp::operation::{Operation, status};
use mqcore_wire::tmqp::{self, Frame, Kind};

use super::body::{label_of, message_id};
use super::{Received, by_id, cached};
use crate::scenario::{PublishTerms, RouteKind, SimulatedRoute};

/// Prefix of targets that name topics.
const TOPIC: &str = "@topic:";
/// Prefix of the ids of requests that define a route.
const DEFINITION: &[u8] = b"define";
const JOIN: &[u8] = b"join";
const PULL: &[u8] = b"pull";

fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut headers = Vec::new();
    for (name, value) in lines {
        push_header(&mut headers, name, value.as_bytes()).expect("a plain header");
    }
    headers
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    tmqp::encode(frame, &mut bytes);
    bytes
}

fn request(operation: Operation, id: &[u8], target: &str, lines: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    bytes(&Frame {
        pending_response: true,
        content_type: operation.code(),
        id,
        target: target.as_bytes(),
        headers: &headers(lines),
        payload,
        ..Frame::new(Kind::SERVER)
    })
}

/// Joins a queue as a consumer.
pub(super) fn join((channel, queue): (&str, u16), prefetch: u32) -> Vec<u8> {
    let (queue, prefetch) = (queue.to_string(), prefetch.to_string());
    request(
        Operation::JoinChannel,
        JOIN,
        channel,
        &[(key::QUEUE_IDS, &queue), (key::PREFETCH, &prefetch)],
        b"",
    )
}

/// Subscribes to a topic.
pub(super) fn subscribe(topic: &str) -> Vec<u8> {
    request(Operation::JoinChannel, JOIN, &format!("{TOPIC}{topic}"), &[], b"")
}

/// The requests that define a route: their bytes and their number.
pub(super) fn define(route: &SimulatedRoute, index: usize, addresses: &[&str]) -> (Vec<u8>, usize) {
    let mut requests = Vec::new();
    let mut add = |operation, target: &str, lines: &[(&str, &str)], payload: String| {
        let id = [DEFINITION, requests.len().to_string().as_bytes()].concat();
        requests.push(request(operation, &id, target, lines, payload.as_bytes()));
    };
    match route.kind {
        RouteKind::Topic { .. } => {
            let topic = format!("{TOPIC}{}", route.bound_name(index));
            for address in addresses {
                add(Operation::AddBinding, &topic, &[], format!("{{\"Target\": \"{address}\"}}"));
            }
        }
        RouteKind::Router(method) => {
            let name = route.name(index);
            let number = (method as u8).to_string();
            add(Operation::CreateRouter, &name, &[(key::ROUTE_METHOD, &number)], String::new());
            for (place, address) in addresses.iter().enumerate() {
                let acknowledges = place == 0 || method != RouterMethod::Distribute;
                let (interaction, priority) = (u8::from(acknowledges), 0 - place as i32);
                let binding = format!(
                    "{{\"Target\": \"{address}\", \"Name\": \"b{place}\", \"Priority\": {priority}, \"Interaction\": {interaction}}}"
                );
                add(Operation::AddBinding, &name, &[], binding);
            }
        }
        RouteKind::Copies => {}
    }
    (requests.concat(), requests.len())
}

/// How and where a message goes.
pub(super) enum Destination<'a> {
    Queue(&'a str, u16),
    Topic(String),
    Router(String),
    /// The first queue, and the addresses of those that get copies.
    Copies(&'a str, u16, &'a [&'a str]),
}

/// A message that asks for a confirmation.
pub(super) fn publish(destination: &Destination<'_>, label: u32, terms: PublishTerms, body: &str) -> Vec<u8> {
    let mut lines = headers_of(terms);
    let (kind, target, content_type) = match destination {
        Destination::Queue(channel, queue) | Destination::Copies(channel, queue, _) => {
            (Kind::QUEUE, (*channel).to_owned(), *queue)
        }
        Destination::Topic(topic) => (Kind::QUEUE, format!("{TOPIC}{topic}"), 0),
        Destination::Router(router) => (Kind::ROUTER, router.clone(), 0),
    };
    if let Destination::Copies(_, _, others) = destination {
        for (index, address) in others.iter().enumerate() {
            let (channel, queue) = address.split_once('/').unwrap_or((address, "0"));
            let copy = format!("{channel};{queue};{}", message_id(label, index + 1));
            push_header(&mut lines, key::CC, copy.as_bytes()).expect("a plain header");
        }
    }
    bytes(&Frame {
        pending_acknowledge: true,
        content_type,
        id: message_id(label, 0).as_bytes(),
        target: target.as_bytes(),
        headers: &lines,
        payload: body.as_bytes(),
        ..Frame::new(kind)
    })
}

fn headers_of(terms: PublishTerms) -> Vec<u8> {
    let mut headers = Vec::new();
    let wanted = [
        (key::DELAY, terms.delay_ms),
        (key::EXPIRES_IN, terms.expires_ms),
        (key::PRIORITY, u64::from(terms.priority)),
    ];
    for (name, value) in wanted.into_iter().filter(|(_, value)| *value > 0) {
        push_header(&mut headers, name, value.to_string().as_bytes()).expect("a plain header");
    }
    headers
}

/// Pulls messages from a queue, or the message of a cache.
pub(super) fn pull((channel, queue): (&str, u16), count: u32) -> Vec<u8> {
    bytes(&Frame {
        content_type: queue,
        id: PULL,
        target: channel.as_bytes(),
        headers: &headers(&[(key::COUNT, &count.to_string()), (key::ATTEMPT, VALUE_YES)]),
        ..Frame::new(Kind::PULL)
    })
}

/// Settles a message.
pub(super) fn acknowledge((channel, queue): (&str, u16), id: &[u8], positive: bool) -> Vec<u8> {
    let reason: &[(&str, &str)] = if positive { &[] } else { &[(key::NACK_REASON, "no")] };
    settle((channel, queue), id, reason)
}

/// Returns a message that no program has seen.
pub(super) fn return_unstarted(queue: (&str, u16), id: &[u8]) -> Vec<u8> {
    settle(queue, id, &[(key::NACK_REASON, "consumer-closed"), (key::UNSTARTED, VALUE_YES)])
}

fn settle((channel, queue): (&str, u16), id: &[u8], lines: &[(&str, &str)]) -> Vec<u8> {
    bytes(&Frame {
        content_type: queue,
        id,
        target: channel.as_bytes(),
        headers: &headers(lines),
        ..Frame::new(Kind::ACKNOWLEDGE)
    })
}

/// The meaning of a frame. `queue_status`: that of the queue that the client consumes.
pub(super) fn received(frame: &Frame<'_>, queue_status: Option<Status>) -> Received {
    match frame.kind {
        Kind::PING => Received::Ping(tmqp::PONG.to_vec()),
        Kind::RESPONSE => response(frame),
        Kind::ACKNOWLEDGE => match label_of(frame.id) {
            Some((label, part)) => {
                let confirmed = header_value(frame.headers, key::NACK_REASON).is_none();
                Received::Answers { labels: vec![label], part, confirmed }
            }
            None => Received::Other,
        },
        Kind::QUEUE => match header_value(frame.headers, key::NO_CONTENT) {
            Some(_) if queue_status == Some(Status::Cache) => Received::Cached(None),
            Some(reason) => Received::PullEnd { is_empty: reason != no_content::END.as_bytes() },
            None => {
                let attempt = header_value(frame.headers, key::ATTEMPT);
                let repeated = attempt.is_some_and(|attempt| attempt != b"1");
                by_id(frame.id, frame.payload, repeated)
            }
        },
        _ => Received::Other,
    }
}

fn response(frame: &Frame<'_>) -> Received {
    let is_ok = frame.content_type == status::OK;
    let refused = || Received::Refused(String::from_utf8_lossy(frame.headers).into_owned());
    match frame.id {
        JOIN if is_ok => Received::Ready,
        JOIN => refused(),
        PULL if is_ok => cached(frame.payload),
        PULL => Received::Cached(None),
        id if id.starts_with(DEFINITION) => match frame.content_type {
            status::OK => Received::Defined { is_new: true },
            status::DUPLICATE => Received::Defined { is_new: false },
            _ => refused(),
        },
        // A request that is rejected as a whole: a message, if its id is one.
        id => match label_of(id) {
            Some((label, part)) => Received::Answers { labels: vec![label], part, confirmed: false },
            None => Received::Other,
        },
    }
}
