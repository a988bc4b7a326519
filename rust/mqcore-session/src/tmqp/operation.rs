//! Server operations as requests to the broker.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::{Clear, ClientPattern, Command, MessageId, Request};
use mqcore_broker::model::id::{ChannelName, QueueAddress, Tag};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_broker::model::subscription::QueueJoin;
use mqcore_wire::tmqp::Frame;
use mqcore_wire::tmqp::header::{self, key};
use mqcore_wire::tmqp::operation::Operation;

use super::publish::{ChannelNames, channel_name, queue_id};
use super::{lists, options, routers, topic};

/// Maximum number of queues in one join.
const JOINED_QUEUES_MAX: usize = 1_000;

/// Reads what an operation asks for.
pub(super) fn request(
    operation: Operation,
    client: &Arc<Client>,
    frame: &Frame<'_>,
) -> Result<Request, Rejection> {
    use Operation as O;
    if let O::JoinChannel | O::LeaveChannel = operation
        && let Some(pattern) = topic::pattern(frame.target)
    {
        let pattern = pattern?;
        return Ok(match operation {
            O::JoinChannel => Request::SubscribeTopic { pattern },
            _ => Request::UnsubscribeTopic { pattern },
        });
    }
    Ok(match operation {
        O::JoinChannel => match queue_ids(frame.headers)? {
            Some(queues) => Request::JoinQueues(Box::new(QueueJoin {
                channel: channel(frame)?,
                queues,
                prefetch: prefetch(frame.headers)?,
            })),
            None => Request::Join { channel: channel(frame)? },
        },
        O::LeaveChannel => match queue_ids(frame.headers)? {
            Some(queues) => Request::LeaveQueues { channel: channel(frame)?, queues },
            None => Request::Leave { channel: channel(frame)? },
        },
        O::CreateChannel => Request::CreateChannel {
            channel: channel(frame)?,
            changes: options::channel_changes(frame.payload)?,
        },
        O::UpdateChannel => Request::UpdateChannel {
            channel: channel(frame)?,
            changes: options::channel_changes(frame.payload)?,
        },
        O::RemoveChannel => Request::RemoveChannel { channel: channel(frame)? },
        O::ChannelInformation => Request::ChannelInformation { channel: channel(frame)? },
        O::ChannelList => Request::ListChannels { filter: channel_filter(frame)?, page: lists::page(frame)? },
        O::ChannelConsumers => Request::ListConsumers { channel: channel(frame)?, page: lists::page(frame)? },
        O::CreateQueue => {
            let mut changes = options::queue_changes(frame.payload)?;
            options::apply_headers(frame.headers, &mut changes)?;
            Request::CreateQueue { queue: queue_by_header(frame)?, changes }
        }
        O::UpdateQueue => {
            if frame.payload.is_empty() {
                return Err(bad("updating a queue needs the new options as JSON in the body".into()));
            }
            let changes = options::queue_changes(frame.payload)?;
            Request::UpdateQueue { queue: queue_by_header(frame)?, changes }
        }
        O::RemoveQueue => Request::RemoveQueue { queue: queue(frame)? },
        O::ClearMessages => Request::ClearQueue { queue: queue(frame)?, clear: cleared(frame.headers) },
        O::QueueInformation => Request::QueueInformation { queue: queue(frame)? },
        O::QueueList => Request::ListQueues { channel: channel(frame)?, page: lists::page(frame)? },
        O::NodeList => Request::ListNodes { page: lists::page(frame)? },
        O::ClientList => Request::ListClients { kind: text_filter(frame.target)?, page: lists::page(frame)? },
        O::Disconnect => match str::from_utf8(frame.target).ok().filter(|to| !to.is_empty()) {
            Some(to) => Request::Disconnect { to: ClientPattern::parse(to) },
            None => return Err(bad("the target is a client id, @name:NAME or @type:TYPE".into())),
        },
        O::EnableRouter => Request::EnableRouter {
            router: routers::router_name(frame.target)?,
            enabled: routers::is_enabled(frame.headers)?,
        },
        O::RouterList => {
            Request::ListRouters { filter: text_filter(frame.target)?, page: lists::page(frame)? }
        }
        O::CreateRouter => routers::create(frame)?,
        O::RemoveRouter => Request::RemoveRouter { router: routers::router_name(frame.target)? },
        O::BindingList => Request::ListBindings { router: routers::router_name(frame.target)? },
        O::AddBinding => routers::add_binding(frame)?,
        O::RemoveBinding => routers::remove_binding(frame)?,
        O::TestRoute => routers::test(client, frame)?,
        other => {
            let reason = format!("operation {} is not supported", other.code());
            return Err(Rejection::new(RejectionKind::Unacceptable, reason));
        }
    })
}

/// Reads a request for more time for a delivery: the channel is the target, the message the frame's id. `None` if it
/// names no delivery.
pub(super) fn extension(frame: &Frame<'_>, channels: &mut ChannelNames) -> Option<Command> {
    let id = queue_id(header::header_value(frame.headers, key::QUEUE_ID)?).ok()?;
    let channel = channels.name(frame.target).ok().filter(|_| !frame.id.is_empty())?;
    let message_id = MessageId::from_slice(frame.id);
    Some(Command::Extend { queue: QueueAddress { channel, id }, tag: Tag::CHANNEL, message_id })
}

/// The queues that a client wants to consume or leave; `None`: all queues of the channel.
fn queue_ids(headers: &[u8]) -> Result<Option<Vec<u16>>, Rejection> {
    let Some(value) = header::header_value(headers, key::QUEUE_IDS) else { return Ok(None) };
    let mut ids = Vec::new();
    for digits in value.split(|byte| *byte == b',').filter(|_| !value.trim_ascii().is_empty()) {
        let id = queue_id(digits)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
        if ids.len() > JOINED_QUEUES_MAX {
            let limit = format!("one join names at most {JOINED_QUEUES_MAX} queues; join several times");
            return Err(Rejection::new(RejectionKind::LimitExceeded, limit));
        }
    }
    Ok(Some(ids))
}

/// The maximum number of unsettled messages. Default: 0, no limit.
fn prefetch(headers: &[u8]) -> Result<u32, Rejection> {
    let Some(value) = header::header_value(headers, key::PREFETCH) else { return Ok(0) };
    let count = str::from_utf8(value.trim_ascii()).ok().and_then(|text| text.parse().ok());
    count.ok_or_else(|| bad(format!("the header {} must be a decimal number", key::PREFETCH)))
}

/// The channel is the target. Clients repeat it in a header, which replaces a missing target.
fn channel(frame: &Frame<'_>) -> Result<ChannelName, Rejection> {
    match (frame.target, header::header_value(frame.headers, key::CHANNEL_NAME)) {
        ([], Some(name)) => channel_name(name.trim_ascii()),
        (target, _) => channel_name(target),
    }
}

/// The program reads the filter from a header, the document from the target.
fn channel_filter(frame: &Frame<'_>) -> Result<Option<Box<str>>, Rejection> {
    text_filter(header::header_value(frame.headers, key::CHANNEL_NAME).unwrap_or(frame.target))
}

fn text_filter(bytes: &[u8]) -> Result<Option<Box<str>>, Rejection> {
    let text = str::from_utf8(bytes).map_err(|_| bad("the filter must be UTF-8 text".into()))?;
    Ok((!text.is_empty()).then(|| text.into()))
}

/// The queue of an operation whose body is its options.
fn queue_by_header(frame: &Frame<'_>) -> Result<QueueAddress, Rejection> {
    match header::header_value(frame.headers, key::QUEUE_ID) {
        Some(digits) => Ok(QueueAddress { channel: channel(frame)?, id: queue_id(digits)? }),
        None => Err(without_queue()),
    }
}

/// The queue of an operation without options: the document has its id in a header, the program as a body of two bytes.
fn queue(frame: &Frame<'_>) -> Result<QueueAddress, Rejection> {
    if header::header_value(frame.headers, key::QUEUE_ID).is_some() {
        return queue_by_header(frame);
    }
    match *frame.payload {
        [low, high] => Ok(QueueAddress { channel: channel(frame)?, id: u16::from_le_bytes([low, high]) }),
        [] => Err(without_queue()),
        _ => Err(bad("a queue id in the body must have two bytes".into())),
    }
}

fn without_queue() -> Rejection {
    let reason = format!("this operation needs a queue id, in the header {}", key::QUEUE_ID);
    Rejection::new(RejectionKind::Unacceptable, reason)
}

fn cleared(headers: &[u8]) -> Clear {
    let yes = |key| {
        header::header_value(headers, key)
            .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(header::VALUE_YES.as_bytes()))
    };
    Clear { high_priority: yes(key::PRIORITY_MESSAGES), normal: yes(key::MESSAGES) }
}

fn bad(reason: String) -> Rejection {
    Rejection::new(RejectionKind::BadRequest, reason)
}
