//! Events of the broker: clients, channels, queues and published messages.

use std::sync::Arc;

use serde::Deserialize;

use crate::address::channel_name;
use crate::client::Client;
use crate::counters::ClientCounters;
use crate::dialogue::Part;
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox};
use crate::membership::Membership;
use crate::received::Received;
use crate::request::{Intent, Subscription};

/// Maximum events waiting in a stream. Later ones are dropped and counted, so that they do not delay other data.
pub const EVENTS_WAITING_MAX: usize = 4096;

/// The events, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are clear")]
pub enum EventKind {
    ClientConnected,
    ClientDisconnected,
    ClientJoined,
    ClientLeft,
    ChannelCreated,
    ChannelRemoved,
    QueueCreated,
    QueueUpdated,
    QueueRemoved,
    MessageProduced,
    NodeConnected,
    NodeDisconnected,
}

/// The scope that a subscription must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Server,
    Channel,
    Queue,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::ClientConnected,
        Self::ClientDisconnected,
        Self::ClientJoined,
        Self::ClientLeft,
        Self::ChannelCreated,
        Self::ChannelRemoved,
        Self::QueueCreated,
        Self::QueueUpdated,
        Self::QueueRemoved,
        Self::MessageProduced,
        Self::NodeConnected,
        Self::NodeDisconnected,
    ];

    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientConnected => "ClientConnected",
            Self::ClientDisconnected => "ClientDisconnected",
            Self::ClientJoined => "ClientJoined",
            Self::ClientLeft => "ClientLeft",
            Self::ChannelCreated => "ChannelCreated",
            Self::ChannelRemoved => "ChannelRemoved",
            Self::QueueCreated => "QueueCreated",
            Self::QueueUpdated => "QueueUpdated",
            Self::QueueRemoved => "QueueRemoved",
            Self::MessageProduced => "MessageProduced",
            Self::NodeConnected => "NodeConnected",
            Self::NodeDisconnected => "NodeDisconnected",
        }
    }

    /// The event of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    fn scope(self) -> Scope {
        match self {
            Self::ClientConnected
            | Self::ClientDisconnected
            | Self::NodeConnected
            | Self::NodeDisconnected
            | Self::ChannelCreated
            | Self::ChannelRemoved => Scope::Server,
            Self::ClientJoined
            | Self::ClientLeft
            | Self::QueueCreated
            | Self::QueueUpdated
            | Self::QueueRemoved => Scope::Channel,
            Self::MessageProduced => Scope::Queue,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The payload.
    pub kind: EventKind,
    /// The channel, if it is about one.
    pub channel: Option<String>,
    /// The queue, if it is about one.
    pub queue: Option<u16>,
    /// The name of the node that it happened on; `None`: the broker that sent it.
    pub node: Option<String>,
    /// To whom or what.
    pub subject: Subject,
}

/// To whom or what it happened. A member that the broker did not send is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the members of the protocol's event models")]
pub enum Subject {
    Client { id: String, name: Option<String>, kind: Option<String> },
    Channel { name: String, active_clients: u32, client_limit: u32 },
    Queue { tag: Option<String>, status: String, high_priority: u64, normal: u64 },
    Message { id: String, saved: bool, producer: Option<Producer> },
    Node { id: String, name: String, host: String, downstream: bool },
}

/// The producer of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Producer {
    /// Its client id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// The kind of program.
    pub kind: Option<String>,
}

/// Every member that any event has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Body {
    id: serde_json::Value,
    name: Option<String>,
    #[serde(rename = "Type")]
    kind: Option<String>,
    channel: Option<String>,
    client_id: Option<String>,
    client_name: Option<String>,
    client_type: Option<String>,
    active_clients: u32,
    client_limit: u32,
    tag: Option<String>,
    status: Option<String>,
    priority_messages: u64,
    messages: u64,
    queue: Option<u16>,
    saved: bool,
    producer_id: Option<String>,
    producer_name: Option<String>,
    producer_type: Option<String>,
    node: Option<String>,
    host: String,
    slave: bool,
}

impl Event {
    /// Reads an event frame. `None`: an event that this client does not know, or a body that is none.
    #[must_use]
    pub fn read(received: &Received) -> Option<Self> {
        let kind = EventKind::from_name(str::from_utf8(received.source()).ok()?)?;
        let body: Body = serde_json::from_slice(received.body_slice()).ok()?;
        let text_id = || body.id.as_str().unwrap_or_default().to_owned();
        let channel = body.channel.clone().filter(|name| !name.is_empty());
        let queue_id = || body.queue.or_else(|| body.id.as_u64()?.try_into().ok());
        let (queue, subject) = match kind {
            EventKind::ClientConnected | EventKind::ClientDisconnected => {
                (None, Subject::Client { id: text_id(), name: body.name, kind: body.kind })
            }
            EventKind::ClientJoined | EventKind::ClientLeft => {
                let id = body.client_id.unwrap_or_default();
                (None, Subject::Client { id, name: body.client_name, kind: body.client_type })
            }
            EventKind::ChannelCreated | EventKind::ChannelRemoved => {
                let name = body.name.unwrap_or_default();
                let (active_clients, client_limit) = (body.active_clients, body.client_limit);
                let subject = Subject::Channel { name: name.clone(), active_clients, client_limit };
                return Some(Self { kind, channel: Some(name), queue: None, node: body.node, subject });
            }
            EventKind::NodeConnected | EventKind::NodeDisconnected => {
                let (id, name, host) = (text_id(), body.name.unwrap_or_default(), body.host);
                (None, Subject::Node { id, name, host, downstream: body.slave })
            }
            EventKind::QueueCreated | EventKind::QueueUpdated | EventKind::QueueRemoved => {
                let (high_priority, normal) = (body.priority_messages, body.messages);
                let status = body.status.clone().unwrap_or_default();
                (queue_id(), Subject::Queue { tag: body.tag.clone(), status, high_priority, normal })
            }
            EventKind::MessageProduced => {
                let (name, kind) = (body.producer_name.clone(), body.producer_type.clone());
                let producer = body.producer_id.clone().map(|id| Producer { id, name, kind });
                (queue_id(), Subject::Message { id: text_id(), saved: body.saved, producer })
            }
        };
        Some(Self { kind, channel, queue, node: body.node, subject })
    }
}

/// An event and its scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventScope {
    /// The event.
    pub kind: EventKind,
    /// The channel, for events with a channel.
    pub channel: Option<String>,
    /// The queue, for events with a queue.
    pub queue: Option<u16>,
}

impl EventScope {
    fn subscription(&self) -> Result<Subscription, ClientError> {
        let (needed, place) = match self.kind.scope() {
            Scope::Server => ((false, false), "an event of the whole broker; give neither channel nor queue"),
            Scope::Channel => ((true, false), "an event of a channel; give a channel and no queue"),
            Scope::Queue => ((true, true), "an event of a queue; give its channel and id"),
        };
        let name = self.kind.as_str();
        if (self.channel.is_some(), self.queue.is_some()) != needed {
            return Err(ClientError::invalid("event", format!("{name} is {place}")));
        }
        let channel = self.channel.as_deref().map(channel_name).transpose()?;
        Ok(Subscription { name, channel, queue: self.queue })
    }
}

impl Client {
    /// Subscribes to events, across reconnects, in one stream. Events that occur without a connection are missed.
    ///
    /// Events of a channel (clients joining and leaving, queues) require a channel, published messages require a queue,
    /// and all others require neither.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a missing or superfluous channel or queue, [`ClientError::Refused`] if it
    /// does not exist, [`ClientError::ConnectionLost`], [`ClientError::RequestTimeout`].
    pub async fn subscribe_events(&self, scopes: &[EventScope]) -> Result<EventStream, ClientError> {
        let subscriptions: Vec<Subscription> =
            scopes.iter().map(EventScope::subscription).collect::<Result<_, _>>()?;
        let mailbox = Mailbox::new(self.shared.gauge.clone(), Bound::Waiting(EVENTS_WAITING_MAX));
        self.shared.with_core(|core| core.add_event_stream(subscriptions.clone(), mailbox.clone()));
        let mut stream = EventStream { client: self.clone(), mailbox, memberships: Vec::new() };
        for subscription in subscriptions {
            stream
                .memberships
                .push(self.shared.take_part(Part::Intent(Intent::Event(subscription)), None).await?);
        }
        Ok(stream)
    }
}

/// A stream of events. Dropping it ends subscriptions without other users in this client.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    mailbox: Arc<Mailbox>,
    memberships: Vec<Membership>,
}

impl EventStream {
    /// Waits for events, and takes up to `max`. Empty: the client is closed.
    pub async fn next_batch(&self, max: usize) -> Vec<Event> {
        loop {
            let messages = self.mailbox.next(max).await;
            let closed = messages.is_empty();
            let events: Vec<Event> =
                messages.iter().filter_map(|queued| Event::read(&queued.message)).collect();
            if closed || !events.is_empty() {
                return events;
            }
        }
    }

    /// Waits until [`EventStream::take`] returns something, or the stream ends. Cancel-safe.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Takes up to `max` available events without waiting.
    pub fn take(&self, max: usize) -> Vec<Event> {
        self.mailbox.take(max).iter().filter_map(|queued| Event::read(&queued.message)).collect()
    }

    /// Whether the stream has ended; available elements can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Events dropped because the program had not taken earlier ones.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.mailbox.dropped()
    }

    /// Ends the stream and wakes its waiting tasks.
    pub fn stop(&self) {
        self.mailbox.close();
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.memberships.clear();
        self.client.shared.with_core(|core| core.remove_event_stream(&self.mailbox));
        ClientCounters::add(&self.client.shared.counters.dropped_events, self.mailbox.dropped() as u64);
    }
}
