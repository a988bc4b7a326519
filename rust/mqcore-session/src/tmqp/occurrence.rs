//! Events that a client subscribed to, as frames with a JSON body.

use mqcore_broker::model::command::EventKind;
use mqcore_broker::model::effect::{Notification, Subject};
use mqcore_broker::model::options::Status;
use mqcore_wire::tmqp::{self, Frame, Kind};
use serde::Serialize;

use super::information::{self, json};

/// Writes an event: it has no id, its source is the event's name, its target the channel whose events the client
/// subscribed to. Events of the whole broker have no target, even those about a channel: the original's client ignores
/// an event whose target is not that of its subscription.
pub(super) fn encode(occurrence: &Notification, output: &mut Vec<u8>) {
    let channel = occurrence.channel.as_ref().map_or("", |channel| channel.as_str());
    // Of the events of a queue, only this one has the queue in the content type; the others have it in the body.
    let content_type = match occurrence.kind {
        EventKind::MessageProduced => occurrence.queue.unwrap_or(0),
        _ => 0,
    };
    let target = match occurrence.subject {
        Subject::Channel { .. } => "",
        _ => channel,
    };
    let frame = Frame {
        content_type,
        source: occurrence.kind.as_str().as_bytes(),
        target: target.as_bytes(),
        payload: &body(occurrence, channel),
        ..Frame::new(Kind::EVENT)
    };
    tmqp::encode(&frame, output);
}

fn body(occurrence: &Notification, channel: &str) -> Vec<u8> {
    let queue = occurrence.queue.unwrap_or(0);
    match &occurrence.subject {
        Subject::Client { id, name, kind } => {
            json(&ClientEvent { id, name: name.as_deref(), r#type: kind.as_deref(), node: None })
        }
        Subject::Channel { active_clients, client_limit } => json(&ChannelEvent {
            name: channel,
            active_clients: *active_clients,
            client_limit: *client_limit,
            node: None,
        }),
        Subject::Subscription { client_id, client_name, client_kind } => json(&SubscriptionEvent {
            channel,
            client_id,
            client_name: client_name.as_deref(),
            client_type: client_kind.as_deref(),
            node: None,
        }),
        Subject::Queue { tag, status, high_priority, normal } => json(&QueueEvent {
            channel,
            id: queue,
            tag: tag.as_deref(),
            status: status_word(*status),
            priority_messages: *high_priority,
            messages: *normal,
            node: None,
        }),
        Subject::Node(node) => json(&information::Node::from(&**node)),
        Subject::Message { id, saved, producer } => json(&MessageEvent {
            channel,
            queue,
            id: &String::from_utf8_lossy(id),
            saved: *saved,
            producer_id: producer.as_ref().map(|producer| &*producer.id),
            producer_name: producer.as_ref().and_then(|producer| producer.name.as_deref()),
            producer_type: producer.as_ref().and_then(|producer| producer.kind.as_deref()),
        }),
    }
}

/// Events spell a status as the original's source does, unlike queue information.
fn status_word(status: Status) -> &'static str {
    match status {
        Status::Broadcast => "Broadcast",
        Status::Push => "Push",
        Status::RoundRobin => "RoundRobin",
        Status::Pull => "Pull",
        Status::Cache => "Cache",
        Status::Paused => "Paused",
        Status::Stopped => "Stopped",
    }
}

/// The node that an event came from: always null, it happened here.
type Node = Option<&'static str>;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ClientEvent<'a> {
    id: &'a str,
    name: Option<&'a str>,
    r#type: Option<&'a str>,
    node: Node,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ChannelEvent<'a> {
    name: &'a str,
    active_clients: u32,
    client_limit: u32,
    node: Node,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SubscriptionEvent<'a> {
    channel: &'a str,
    client_id: &'a str,
    client_name: Option<&'a str>,
    client_type: Option<&'a str>,
    node: Node,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct QueueEvent<'a> {
    channel: &'a str,
    id: u16,
    tag: Option<&'a str>,
    status: &'static str,
    priority_messages: u64,
    messages: u64,
    node: Node,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct MessageEvent<'a> {
    channel: &'a str,
    queue: u16,
    id: &'a str,
    saved: bool,
    producer_id: Option<&'a str>,
    producer_name: Option<&'a str>,
    producer_type: Option<&'a str>,
}
