//! The JSON bodies that answer operations.
//!
//! Members have the names and the order of the original, because its clients read them. mqcore's own members come after
//! them.

use std::time::Duration;

use mqcore_broker::model::command::ClientPattern;
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::options::QueueOptions;
use mqcore_broker::model::route::RouteTest;
use mqcore_broker::model::router::{Binding, RouterDefinition, Target};
use mqcore_broker::model::stats::{ChannelInformation, ClientInformation, DropReason, QueueInformation};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::binding_type::BindingType;

/// Appends the items of a page to a list without its end, and returns the cursor of the next page. `max`: items to append;
/// the parts of several shards together may have more.
pub(super) fn append_page(page: Reply, max: usize, list: &mut Vec<u8>) -> Option<Box<str>> {
    match page {
        Reply::Channels(mut channels) => {
            channels.cut(max, |channel| channel.channel.as_str());
            append(channels.items.iter().map(Channel::from), list);
            channels.next
        }
        Reply::Routers(mut routers) => {
            routers.cut(max, |router| router.name.as_str());
            append(routers.items.iter().map(Router::from), list);
            routers.next
        }
        Reply::Queues(queues) => {
            append(queues.items.iter().map(Queue::from), list);
            queues.next
        }
        Reply::Clients(clients) => {
            append(clients.items.iter().map(Client::from), list);
            clients.next
        }
        Reply::Nodes(nodes) => {
            append(nodes.items.iter().map(Node::from), list);
            nodes.next
        }
        _ => None,
    }
}

fn append(items: impl Iterator<Item = impl Serialize>, list: &mut Vec<u8>) {
    for item in items {
        list.push(if list.is_empty() { b'[' } else { b',' });
        serde_json::to_writer(&mut *list, &item).expect("models are plain values with text for keys");
    }
}

/// Ends a list of any length.
pub(super) fn end_list(list: &mut Vec<u8>) {
    if list.is_empty() {
        list.push(b'[');
    }
    list.push(b']');
}

/// The body of a response with this reply. `Done` has none.
pub(super) fn body(reply: &Reply) -> Vec<u8> {
    match reply {
        // Replies that only other protocols request have no body here.
        Reply::Done
        | Reply::Published(_)
        | Reply::JoinedQueues(_)
        | Reply::ObjectCounts(_)
        | Reply::Declared(_)
        | Reply::Moved(_)
        | Reply::Policy(_)
        | Reply::Policies(_) => Vec::new(),
        // Answered in pages.
        Reply::Channels(_) | Reply::Queues(_) | Reply::Clients(_) | Reply::Nodes(_) | Reply::Routers(_) => {
            Vec::new()
        }
        Reply::Channel(channel) => json(&Channel::from(&**channel)),
        Reply::Queue(queue) => json(&Queue::from(&**queue)),
        Reply::Bindings(bindings) => json(&bindings.iter().map(RouterBinding::from).collect::<Vec<_>>()),
        Reply::RouteTest(test) => json(&Route::from(&**test)),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Router<'a> {
    name: &'a str,
    is_enabled: bool,
    method: u8,
}

impl<'a> From<&'a RouterDefinition> for Router<'a> {
    fn from(router: &'a RouterDefinition) -> Self {
        Self { name: router.name.as_str(), is_enabled: router.enabled, method: router.method as u8 }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct RouterBinding<'a> {
    name: &'a str,
    target: String,
    content_type: Option<u16>,
    priority: i32,
    interaction: u8,
    binding_type: u8,
    method: u8,
    // mqcore's own members:
    address: String,
}

impl<'a> From<&'a Binding> for RouterBinding<'a> {
    fn from(binding: &'a Binding) -> Self {
        let address = binding.target.to_string();
        let (target, content_type) = match &binding.target {
            Target::Queue(queue) => (queue.channel.to_string(), Some(queue.id)),
            Target::Client(ClientPattern::Id(id)) => (id.to_string(), binding.content_type),
            _ => (address.clone(), binding.content_type),
        };
        Self {
            name: &binding.name,
            target,
            content_type,
            priority: binding.priority,
            interaction: binding.interaction as u8,
            binding_type: BindingType::of(&binding.target) as u8,
            method: binding.method as u8,
            address,
        }
    }
}

/// The route of a message: mqcore's own.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Route<'a> {
    method: &'static str,
    taken: bool,
    refusal: Option<&'a str>,
    steps: Vec<RouteStep<'a>>,
    skipped: &'a [Box<str>],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct RouteStep<'a> {
    binding: Option<&'a str>,
    target: String,
    takes: bool,
    why: &'a str,
}

impl<'a> From<&'a RouteTest> for Route<'a> {
    fn from(test: &'a RouteTest) -> Self {
        let steps = test.steps.iter().map(|step| RouteStep {
            binding: (!step.binding.is_empty()).then_some(&*step.binding),
            target: step.target.to_string(),
            takes: step.takes,
            why: &step.why,
        });
        Self {
            method: test.method.as_str(),
            taken: test.refusal.is_none(),
            refusal: test.refusal.as_ref().map(|refusal| &*refusal.reason),
            steps: steps.collect(),
            skipped: &test.skipped,
        }
    }
}

/// A model as JSON.
pub(super) fn json(model: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(model).expect("models are plain values with text for keys")
}

/// Milliseconds that fit the signed 32 bits of the original's clients.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(i32::MAX as u64)
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Channel<'a> {
    name: &'a str,
    queues: &'a [u16],
    allow_multiple_queues: bool,
    allowed_queues: Option<&'a [u16]>,
    only_first_acquirer: bool,
    request_acknowledge: bool,
    acknowledge_timeout: u64,
    message_timeout: u64,
    use_message_id: bool,
    wait_for_acknowledge: bool,
    hide_client_names: bool,
    active_clients: u32,
    client_limit: u32,
    queue_limit: u32,
    destroy_when_empty: bool,
    // mqcore's own members:
    channel_event_handler: Option<&'a str>,
    authenticator: Option<&'a str>,
    status: &'static str,
    message_limit: u64,
    message_size_limit: u64,
    tag: Option<&'a str>,
    #[serde(flatten)]
    extensions: QueueExtensions<'a>,
}

impl<'a> From<&'a ChannelInformation> for Channel<'a> {
    fn from(information: &'a ChannelInformation) -> Self {
        let options = &information.options;
        Self {
            name: information.channel.as_str(),
            queues: &information.queues,
            allow_multiple_queues: options.allow_multiple_queues,
            allowed_queues: options.allowed_queues.as_deref(),
            only_first_acquirer: options.queue.only_first_acquirer,
            request_acknowledge: options.queue.request_acknowledge,
            acknowledge_timeout: millis(options.queue.acknowledge_timeout),
            message_timeout: millis(options.queue.message_timeout),
            use_message_id: options.queue.use_message_id,
            wait_for_acknowledge: options.queue.wait_for_acknowledge,
            hide_client_names: options.queue.hide_client_names,
            active_clients: information.active_clients,
            client_limit: options.client_limit,
            queue_limit: options.queue_limit,
            destroy_when_empty: options.destroy_when_empty,
            channel_event_handler: options.event_handler.as_deref(),
            authenticator: options.authenticator.as_deref(),
            status: options.queue.status.as_str(),
            message_limit: options.queue.message_limit,
            message_size_limit: options.queue.message_size_limit,
            tag: options.queue.tag.as_deref(),
            extensions: QueueExtensions::from(&options.queue),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Queue<'a> {
    channel: &'a str,
    tag_name: Option<&'a str>,
    id: u16,
    priority_messages: u64,
    messages: u64,
    status: &'static str,
    only_first_acquirer: bool,
    request_acknowledge: bool,
    acknowledge_timeout: u64,
    message_timeout: u64,
    use_message_id: bool,
    wait_for_acknowledge: bool,
    hide_client_names: bool,
    received_messages: u64,
    sent_messages: u64,
    deliveries: u64,
    negative_acks: u64,
    acks: u64,
    timeout_messages: u64,
    saved_messages: u64,
    removed_messages: u64,
    errors: u64,
    last_message_received: u64,
    last_message_sent: u64,
    message_limit: u64,
    message_size_limit: u64,
    // mqcore's own members:
    tag: Option<&'a str>,
    #[serde(flatten)]
    extensions: QueueExtensions<'a>,
    in_flight: u64,
    undecided: u64,
    unsettled: u64,
    memory_bytes: u64,
    put_back_messages: u64,
    dead_lettered_messages: u64,
    save_failed_messages: u64,
    dropped_messages: Dropped<'a>,
    delayed_messages: u64,
    next_attempt: u64,
    missing_handler: Option<&'a str>,
    consumers: u32,
}

impl<'a> From<&'a QueueInformation> for Queue<'a> {
    fn from(information: &'a QueueInformation) -> Self {
        let (options, stats) = (&information.options, &information.stats);
        Self {
            channel: information.queue.channel.as_str(),
            tag_name: options.tag.as_deref(),
            id: information.queue.id,
            priority_messages: information.high_priority,
            messages: information.normal,
            status: options.status.as_str(),
            only_first_acquirer: options.only_first_acquirer,
            request_acknowledge: options.request_acknowledge,
            acknowledge_timeout: millis(options.acknowledge_timeout),
            message_timeout: millis(options.message_timeout),
            use_message_id: options.use_message_id,
            wait_for_acknowledge: options.wait_for_acknowledge,
            hide_client_names: options.hide_client_names,
            received_messages: stats.received,
            sent_messages: stats.sent,
            deliveries: stats.deliveries,
            negative_acks: stats.negative_acks,
            acks: stats.acks,
            timeout_messages: stats.timed_out,
            saved_messages: stats.saved,
            removed_messages: stats.removed,
            errors: stats.errors,
            last_message_received: stats.last_received_ms,
            last_message_sent: stats.last_sent_ms,
            message_limit: options.message_limit,
            message_size_limit: options.message_size_limit,
            tag: options.tag.as_deref(),
            extensions: QueueExtensions::from(options),
            in_flight: information.in_flight,
            undecided: information.undecided,
            unsettled: information.unsettled,
            memory_bytes: information.memory_bytes,
            put_back_messages: stats.requeued,
            dead_lettered_messages: stats.dead_lettered,
            save_failed_messages: stats.save_failed,
            dropped_messages: Dropped(&stats.dropped),
            delayed_messages: information.delayed,
            next_attempt: information.next_attempt_ms,
            missing_handler: information.missing_handler.as_deref(),
            consumers: information.consumers,
        }
    }
}

// generated by tools/generate_options.py
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct QueueExtensions<'a> {
    message_delivery_handler: Option<&'a str>,
    put_back_limit: u16,
    retry_delay: Option<u64>,
    retry_delay_max: u64,
    dead_letter: Option<String>,
    durability: &'static str,
    deduplication_window: u64,
    publish_limit: Option<String>,
}

impl<'a> From<&'a QueueOptions> for QueueExtensions<'a> {
    fn from(options: &'a QueueOptions) -> Self {
        Self {
            message_delivery_handler: options.delivery_handler.as_deref(),
            put_back_limit: options.put_back_limit,
            retry_delay: options.retry_delay.map(millis),
            retry_delay_max: millis(options.retry_delay_max),
            dead_letter: options.dead_letter.as_ref().map(ToString::to_string),
            durability: options.durability.as_str(),
            deduplication_window: millis(options.deduplication_window),
            publish_limit: options.publish_limit.as_ref().map(ToString::to_string),
        }
    }
}
// end generated

/// Drops by reason, as an object with a member for each.
struct Dropped<'a>(&'a [u64; DropReason::ALL.len()]);

impl Serialize for Dropped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(DropReason::ALL.len()))?;
        for reason in DropReason::ALL {
            map.serialize_entry(reason.as_str(), &self.0[reason as usize])?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Node<'a> {
    id: &'a str,
    name: &'a str,
    host: &'a str,
    slave: bool,
    connected: bool,
    lifetime: u64,
}

impl<'a> From<&'a NodeInformation> for Node<'a> {
    fn from(information: &'a NodeInformation) -> Self {
        Self {
            id: &information.id,
            name: &information.name,
            host: &information.host,
            slave: information.downstream,
            connected: information.connected,
            lifetime: information.lifetime_ms,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Client<'a> {
    id: &'a str,
    name: Option<&'a str>,
    r#type: Option<&'a str>,
    online: u64,
    is_authenticated: bool,
}

impl<'a> From<&'a ClientInformation> for Client<'a> {
    fn from(information: &'a ClientInformation) -> Self {
        let client = &information.client;
        Self {
            id: &client.id,
            name: client.name.as_deref(),
            r#type: client.kind.as_deref(),
            online: information.online_ms,
            is_authenticated: client.authenticated,
        }
    }
}
