//! Commands and requests: what peers ask of the broker.
//!
//! Longer than 600 lines because it declares every command and request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::model::bindings::QueueBinding;
use crate::model::client::Introduction;
use crate::model::id::{ChannelName, QueueAddress, RequestId, RouterName, Tag, TopicName};
use crate::model::intake::Ticket;
use crate::model::message::Message;
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::page::Page;
use crate::model::placement::Placement;
use crate::model::queue_policy::QueuePolicy;
use crate::model::router::{Binding, RouterMethod};
use crate::model::subscription::{QueueJoin, QueueSubscription, Remote};
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;
use crate::model::transfer::MoveMessages;

/// A message id, stored inline when it is short.
pub type MessageId = SmallVec<[u8; 36]>;

/// A command of a peer. The broker answers each [`RequestId`] with exactly one `Event::Answered`, or
/// with the events of a pull.
///
/// ```
/// use mqcore_broker::model::command::{Command, Destination};
/// use mqcore_broker::model::id::QueueAddress;
/// use mqcore_broker::model::message::{Message, Properties};
/// use mqcore_broker::model::placement::Placement;
///
/// let queue = QueueAddress::parse("orders/1")?;
/// let message = Message::from_parts(b"m-1", b"", b"hello", Properties::default(), None);
/// let publish = Command::Publish { queue: queue.clone(), message };
/// let placement = Placement::unkeyed(4);
/// assert_eq!(publish.destination(placement), Destination::Shard(queue.channel.shard(placement)));
/// # Ok::<(), mqcore_broker::model::id::NameError>(())
/// ```
#[derive(Debug, Clone)]
pub enum Command {
    /// Publish a message to a queue. A rejection arrives as `Event::PublishRefused`.
    Publish {
        /// The queue.
        queue: QueueAddress,
        /// The message.
        message: Message,
    },
    /// Publish a message to a topic: to its subscribers, and a copy to each bound queue. It is
    /// rejected only if it asks for an answer while bindings may be lost.
    PublishTopic {
        /// The topic.
        topic: TopicName,
        /// The message.
        message: Message,
        /// Whether the producer receives it too, if it has subscribed.
        to_producer: bool,
        /// `Some`: the broker answers with `Event::Answered` and `Reply::Published`.
        answer: Option<RequestId>,
    },
    /// Publish a message to a router. If the producer waits for an answer and no receiver answers, the
    /// router does, with `Event::Routed`.
    Route {
        /// The router.
        router: RouterName,
        /// The message, which has an id.
        message: Message,
    },
    /// Acknowledge a delivery.
    Acknowledge(Acknowledgement),
    /// Settle all deliveries of one subscription.
    AcknowledgeAll {
        /// The queue.
        queue: QueueAddress,
        /// The subscription.
        tag: Tag,
        /// `None`: acknowledge. `Some`: acknowledge negatively, with this reason.
        negative: Option<Box<str>>,
    },
    /// A consumer still has a delivery and needs more time: its acknowledge timeout starts again. Ignored if the
    /// delivery is settled. Never answered.
    Extend {
        /// The queue.
        queue: QueueAddress,
        /// The subscription; [`Tag::CHANNEL`] if the consumer joined the channel.
        tag: Tag,
        /// The message.
        message_id: MessageId,
    },
    /// Slots of a consumer are free again, so this queue may have a message for it. Never answered.
    RoomFor {
        /// The queue.
        queue: QueueAddress,
    },
    /// Pull messages from a pull queue or a cache queue.
    Pull(Box<Pull>),
    /// Introduce the peer. The broker answers with `Event::Welcomed` or `Event::Refused`.
    Introduce(Box<Introduction>),
    /// Send a message to other clients.
    Direct {
        /// The receivers.
        to: ClientPattern,
        /// The message; its `first_acquirer` property means "only the oldest match".
        message: Message,
    },
    /// Acknowledge a direct message to its sender.
    AcknowledgeDirect {
        /// Client id of the sender.
        to: Box<str>,
        /// The acknowledgement: id of the acknowledged message, headers, hops.
        message: Message,
    },
    /// Respond to a direct message.
    Respond {
        /// Client id of the sender.
        to: Box<str>,
        /// The response; `content_type` is the status.
        message: Message,
    },
    /// Send a custom message to the program that the broker is part of. Sent to the home shard. Never answered.
    Custom(Message),
    /// A downstream broker passes on a command of one of its clients. The broker answers only the
    /// downstream broker, with `Event::Confirmed` or `Event::Deferred`.
    PassedOn(Box<PassedOn>),
    /// A request: rare enough to be boxed.
    Request(RequestId, Box<Request>),
}

/// A command that a downstream broker passes on.
#[derive(Debug, Clone)]
pub struct PassedOn {
    /// Identifies the message at the downstream broker.
    pub ticket: Ticket,
    /// A publish or a command between clients. A published message carries the ticket too.
    pub command: Command,
}

/// A consumer's acknowledgement of a delivery, positive or negative.
#[derive(Debug, Clone)]
pub struct Acknowledgement {
    /// The subscription that had the delivery; [`Tag::CHANNEL`] if the consumer joined the channel.
    pub tag: Tag,
    /// The queue of the message.
    pub queue: QueueAddress,
    /// The message id.
    pub message_id: MessageId,
    /// `None`: positive. `Some`: negative.
    pub refusal: Option<Box<Nack>>,
    /// Header text to relay; usually empty.
    pub headers: Box<[u8]>,
    /// Remaining hops, to relay.
    pub hops: u8,
    /// The frame's first-acquirer bit, to relay.
    pub first_acquirer: bool,
}

/// A negative acknowledgement. Boxed, so that the far more frequent positive ones stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// The reason.
    pub reason: Box<str>,
    /// Whether and when the consumer wants the message redelivered.
    pub retry: Retry,
}

impl Nack {
    /// A boxed negative acknowledgement.
    #[must_use]
    pub fn new(reason: &str, retry: Retry) -> Box<Self> {
        Box::new(Self { reason: reason.into(), retry })
    }

    /// A negative acknowledgement if there is a reason, retried as the queue decides.
    #[must_use]
    pub fn of(reason: Option<&str>) -> Option<Box<Self>> {
        reason.map(|reason| Self::new(reason, Retry::AsDecided))
    }
}

impl Acknowledgement {
    /// The reason if the acknowledgement is negative.
    #[must_use]
    pub fn negative(&self) -> Option<&str> {
        self.refusal.as_deref().map(|refusal| &*refusal.reason)
    }
}

/// When to redeliver a negatively acknowledged message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// As the queue's policy or handler decides.
    #[default]
    AsDecided,
    /// Not before this time, if it is requeued.
    NotBefore(Timestamp),
    /// Not before this delay has passed, if it is requeued.
    After(Duration),
    /// Never: the message has failed for good and goes to the dead-letter queue. Only a handler of the
    /// queue may still requeue it.
    Never,
    /// At once, at its old position: the consumer returns a message that no program has seen. It does not count
    /// as an attempt, and the broker notifies neither the producer nor a handler.
    Unstarted,
    /// The same, but not before this time: the consumer must not begin it now. Other messages pass it.
    Postponed(Timestamp),
}

/// The receivers of a direct message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientPattern {
    /// The client with this id.
    Id(Box<str>),
    /// All clients with this name, or the oldest of them.
    Name(Box<str>),
    /// All clients of this type, or the oldest of them.
    Kind(Box<str>),
}

impl ClientPattern {
    /// Reads `@name:NAME`, `@type:TYPE`, or else an id. Names may be quoted, as in TMQP's document.
    pub fn parse(text: &str) -> Self {
        let unquoted = |text: &str| -> Box<str> {
            text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).into()
        };
        if let Some(name) = text.strip_prefix("@name:") {
            Self::Name(unquoted(name))
        } else if let Some(kind) = text.strip_prefix("@type:") {
            Self::Kind(unquoted(kind))
        } else {
            Self::Id(text.into())
        }
    }
}

/// Which stored messages to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clear {
    /// Messages of high priority.
    pub high_priority: bool,
    /// All other messages.
    pub normal: bool,
}

/// A pull request.
#[derive(Debug, Clone)]
pub struct Pull {
    /// Request number, chosen by the session.
    pub request: RequestId,
    /// The queue.
    pub queue: QueueAddress,
    /// Maximum number of messages. Zero is unacceptable, except for a cache queue, which has one
    /// message for everyone.
    pub count: u32,
    /// Whether the newest messages come first.
    pub lifo: bool,
    /// The messages to remove afterwards.
    pub clear: Clear,
    /// Whether each message carries the number of messages left.
    pub info: bool,
}

/// Events that clients can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it; the document lists them under Event Types")]
#[repr(u8)]
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

impl EventKind {
    /// All variants.
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

    /// The event with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The names that a subscription needs: none, a channel, or a channel and a queue.
    pub fn scope(self) -> EventScope {
        match self {
            Self::ClientConnected
            | Self::ClientDisconnected
            | Self::NodeConnected
            | Self::NodeDisconnected
            | Self::ChannelCreated
            | Self::ChannelRemoved => EventScope::Server,
            Self::ClientJoined
            | Self::ClientLeft
            | Self::QueueCreated
            | Self::QueueUpdated
            | Self::QueueRemoved => EventScope::Channel,
            Self::MessageProduced => EventScope::Queue,
        }
    }
}

/// The scope of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventScope {
    /// The server as a whole.
    Server,
    /// One channel.
    Channel,
    /// One queue.
    Queue,
}

/// Subscribes to an event, or ends that subscription.
#[derive(Debug, Clone)]
pub struct EventSubscription {
    /// The event.
    pub kind: EventKind,
    /// The channel, if the event's scope needs one.
    pub channel: Option<ChannelName>,
    /// The queue, if the event's scope needs one.
    pub queue: Option<u16>,
    /// `true` subscribes, `false` unsubscribes.
    pub on: bool,
}

/// Requests: rare operations that are answered one by one.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are what the operation is about")]
pub enum Request {
    /// Consume all queues of a channel. Joining twice has no effect.
    Join { channel: ChannelName },
    /// Join a channel and consume only some of its queues. Joining again adds queues or changes their terms; a
    /// client that had joined the whole channel consumes only these queues from now on.
    JoinQueues(Box<QueueJoin>),
    /// Leave a channel.
    Leave { channel: ChannelName },
    /// Consume these queues of a channel no longer. Leaves the channel if no queue is left.
    LeaveQueues { channel: ChannelName, queues: Vec<u16> },
    /// Check whether the client may publish to a queue; `NotFound` if the queue does not exist and
    /// publishing would not create it.
    MayPublish { queue: QueueAddress },
    /// Check whether the client may send to these clients; `NotFound` if none is connected. Sent to the
    /// home shard.
    MayDirect { to: ClientPattern },
    /// Check whether the client may receive and run the schedules of all clients. Sent to the home shard.
    MayRunSchedules,
    /// Check whether the client may administer the whole broker. Sent to the home shard.
    MayAdminister,
    /// Create a channel; `AlreadyExists` if it exists.
    CreateChannel { channel: ChannelName, changes: ChannelChanges },
    /// Change options of a channel. Its queues keep theirs. For administrators.
    UpdateChannel { channel: ChannelName, changes: ChannelChanges },
    /// Remove a channel with its queues and their messages. For administrators.
    RemoveChannel { channel: ChannelName },
    /// One channel's information. For administrators.
    ChannelInformation { channel: ChannelName },
    /// List channels whose name matches (see [`crate::model::filter`]), by name. Sent to every shard. For
    /// administrators.
    ListChannels { filter: Option<Box<str>>, page: Page },
    /// List the clients that joined a channel, oldest first, and then the subscribers of its queues. For
    /// administrators.
    ListConsumers { channel: ChannelName, page: Page },
    /// Create a queue, and its channel if it does not exist; `AlreadyExists` if the queue exists.
    CreateQueue { queue: QueueAddress, changes: QueueChanges },
    /// Change options of a queue, including its status. For administrators.
    UpdateQueue { queue: QueueAddress, changes: QueueChanges },
    /// Remove a queue with its messages. For administrators.
    RemoveQueue { queue: QueueAddress },
    /// Remove stored messages of a queue. For administrators.
    ClearQueue { queue: QueueAddress, clear: Clear },
    /// Move stored messages to other queues. For administrators.
    MoveMessages(Box<MoveMessages>),
    /// One queue's information. For administrators.
    QueueInformation { queue: QueueAddress },
    /// List the queues of a channel, by id. For administrators.
    ListQueues { channel: ChannelName, page: Page },
    /// List connected clients whose type matches, oldest first. Sent to the home shard. For administrators.
    ListClients { kind: Option<Box<str>>, page: Page },
    /// List nodes: upstream brokers in the order of the configuration, then downstream brokers, oldest connection first.
    /// Sent to the home shard. For administrators.
    ListNodes { page: Page },
    /// Subscribe to events. Subscriptions to server-wide channel events are sent to every shard.
    Subscribe(EventSubscription),
    /// Subscribe to a queue.
    SubscribeQueue(Box<QueueSubscription>),
    /// End a subscription; its unsettled deliveries are requeued. `started`: the number of the oldest of them that the
    /// consumer's program got. The attempts of the others do not count. `None`: it may have got all.
    UnsubscribeQueue { queue: QueueAddress, tag: Tag, started: Option<u32> },
    /// Act on all subscriptions with a name, whichever connection has them. Every shard without one
    /// answers `NotFound`. Sent to every shard.
    ToSubscriptions { name: Box<[u8]>, what: Remote },
    /// Change the topics of a queue, which need not exist yet. Answered once no message can be missed
    /// any more.
    RebindQueue { queue: QueueAddress, binding: Box<QueueBinding> },
    /// Count clients, queues, messages and so on. Sent to every shard.
    ObjectCounts,
    /// Remove a queue that its consumers created, with its topics, whether or not it exists. Its
    /// subscriptions are notified of their bindings one last time.
    DropQueue { queue: QueueAddress },
    /// Subscribe to topics. The client gets each message once, however many of its subscriptions match.
    /// Subscribing twice has no effect. Patterns are sent to every shard.
    SubscribeTopic { pattern: TopicPattern },
    /// End a subscription to topics; `NotFound` if there is none. Patterns are sent to every shard.
    UnsubscribeTopic { pattern: TopicPattern },
    /// Bind a queue to topics: it gets copies of their messages from now on, once it exists. Binding
    /// twice has no effect. Patterns are sent to every shard.
    BindTopic { pattern: TopicPattern, queue: QueueAddress },
    /// Unbind a queue from topics; `NotFound` if it is not bound. Patterns are sent to every shard.
    UnbindTopic { pattern: TopicPattern, queue: QueueAddress },
    /// Create a router; no effect if a router with this name and method exists. For administrators.
    CreateRouter { router: RouterName, method: RouterMethod },
    /// Remove a router with its bindings; no effect if it does not exist. For administrators.
    RemoveRouter { router: RouterName },
    /// Enable or disable a router. A disabled one takes no messages. For administrators.
    EnableRouter { router: RouterName, enabled: bool },
    /// Close the connections of these clients; `NotFound` if none is connected. For administrators.
    Disconnect { to: ClientPattern },
    /// List routers whose name matches (see [`crate::model::filter`]), by name. Sent to every shard. For
    /// administrators.
    ListRouters { filter: Option<Box<str>>, page: Page },
    /// List the bindings of a router. For administrators.
    ListBindings { router: RouterName },
    /// Add a binding to a router. For administrators.
    AddBinding { router: RouterName, binding: Binding },
    /// Remove a binding of a router; no effect if it does not exist. For administrators.
    RemoveBinding { router: RouterName, binding: Box<str> },
    /// Show where a message would go, and why. Nothing is delivered, but handlers are asked. For
    /// administrators.
    TestRoute { router: RouterName, message: Message },
    /// Set a policy for queues, and apply it to those that exist. Sent to every shard. For administrators.
    SetPolicy(Box<QueuePolicy>),
    /// Remove a policy. Queues keep their options. Sent to every shard. For administrators.
    RemovePolicy { name: Box<str> },
    /// List policies, those that apply last at the end. Every shard has the same ones. For administrators.
    ListPolicies,
}

/// The shard or shards that a command is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The shard with this number, which owns the channel.
    Shard(usize),
    /// The home shard, number 0, which knows all clients.
    Home,
    /// Every shard; each answers with its part.
    Every,
}

impl Command {
    /// The queue of a frequent command.
    fn queue(&self) -> Option<&QueueAddress> {
        match self {
            Self::Publish { queue, .. } => Some(queue),
            Self::Acknowledge(word) => Some(&word.queue),
            _ => None,
        }
    }

    /// Whether this command goes to the same shard as `other`, judged by pointer equality of the
    /// channel name, which is cheaper than hashing. May return false for commands that go to the same
    /// shard.
    pub fn goes_with(&self, other: &Self) -> bool {
        let queues = self.queue().zip(other.queue());
        queues.is_some_and(|(mine, its)| mine.channel.is_same(&its.channel))
    }

    /// The destination of this command in a broker with this placement.
    pub fn destination(&self, placement: Placement) -> Destination {
        let of = |channel: &ChannelName| Destination::Shard(channel.shard(placement));
        match self {
            Self::Publish { queue, .. } => of(&queue.channel),
            Self::PublishTopic { topic, .. } => Destination::Shard(topic.shard(placement)),
            Self::Route { router, .. } => Destination::Shard(router.shard(placement)),
            Self::Acknowledge(acknowledgement) => of(&acknowledgement.queue.channel),
            Self::AcknowledgeAll { queue, .. } | Self::Extend { queue, .. } | Self::RoomFor { queue } => {
                of(&queue.channel)
            }
            Self::Pull(pull) => of(&pull.queue.channel),
            Self::Introduce(_)
            | Self::Direct { .. }
            | Self::AcknowledgeDirect { .. }
            | Self::Respond { .. }
            | Self::Custom(_) => Destination::Home,
            Self::PassedOn(passed_on) => passed_on.command.destination(placement),
            Self::Request(_, request) => request.destination(placement),
        }
    }
}

/// The state that must be saved before a request is answered, even if an earlier request changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredState {
    Nothing,
    /// Which channels, queues, routers and topic bindings exist, and their options.
    Definitions,
    /// That messages are gone.
    Removals,
}

impl Request {
    /// The state that its answer relies on.
    pub(crate) fn required(&self) -> RequiredState {
        match self {
            Self::CreateChannel { .. }
            | Self::UpdateChannel { .. }
            | Self::RemoveChannel { .. }
            | Self::CreateQueue { .. }
            | Self::UpdateQueue { .. }
            | Self::RemoveQueue { .. }
            | Self::DropQueue { .. }
            | Self::BindTopic { .. }
            | Self::UnbindTopic { .. }
            | Self::CreateRouter { .. }
            | Self::RemoveRouter { .. }
            | Self::EnableRouter { .. }
            | Self::AddBinding { .. }
            | Self::RemoveBinding { .. }
            | Self::SetPolicy(_)
            | Self::RemovePolicy { .. } => RequiredState::Definitions,
            Self::ClearQueue { .. } => RequiredState::Removals,
            _ => RequiredState::Nothing,
        }
    }

    /// The page of a list that is returned in pages; `None` for other requests.
    #[must_use]
    pub fn page_mut(&mut self) -> Option<&mut Page> {
        match self {
            Self::ListChannels { page, .. }
            | Self::ListConsumers { page, .. }
            | Self::ListQueues { page, .. }
            | Self::ListClients { page, .. }
            | Self::ListNodes { page }
            | Self::ListRouters { page, .. } => Some(page),
            _ => None,
        }
    }

    /// The number of answers in a broker with `shards` shards: every shard that the request is sent to answers with its part.
    #[must_use]
    pub fn answers(&self, shards: usize) -> usize {
        match self.destination(Placement::unkeyed(1)) {
            Destination::Every => shards,
            Destination::Shard(_) | Destination::Home => 1,
        }
    }

    /// The destination of this request in a broker with this placement.
    pub fn destination(&self, placement: Placement) -> Destination {
        let of = |channel: &ChannelName| Destination::Shard(channel.shard(placement));
        match self {
            Self::Join { channel }
            | Self::Leave { channel }
            | Self::LeaveQueues { channel, .. }
            | Self::CreateChannel { channel, .. }
            | Self::UpdateChannel { channel, .. }
            | Self::RemoveChannel { channel }
            | Self::ChannelInformation { channel }
            | Self::ListConsumers { channel, .. }
            | Self::ListQueues { channel, .. } => of(channel),
            Self::CreateQueue { queue, .. }
            | Self::UpdateQueue { queue, .. }
            | Self::RemoveQueue { queue }
            | Self::ClearQueue { queue, .. }
            | Self::QueueInformation { queue }
            | Self::UnsubscribeQueue { queue, .. }
            | Self::RebindQueue { queue, .. }
            | Self::MayPublish { queue }
            | Self::DropQueue { queue } => of(&queue.channel),
            Self::ToSubscriptions { .. }
            | Self::ObjectCounts
            | Self::SetPolicy(_)
            | Self::RemovePolicy { .. } => Destination::Every,
            Self::SubscribeQueue(subscription) => of(&subscription.queue.channel),
            Self::MoveMessages(wanted) => of(&wanted.queue.channel),
            Self::JoinQueues(join) => of(&join.channel),
            Self::ListChannels { .. } => Destination::Every,
            Self::ListClients { .. }
            | Self::ListNodes { .. }
            | Self::Disconnect { .. }
            | Self::MayDirect { .. }
            | Self::MayRunSchedules
            | Self::ListPolicies
            | Self::MayAdminister => Destination::Home,
            Self::Subscribe(subscription) => match (&subscription.channel, subscription.kind) {
                (Some(channel), kind) if kind.scope() != EventScope::Server => of(channel),
                (_, EventKind::ChannelCreated | EventKind::ChannelRemoved) => Destination::Every,
                _ => Destination::Home,
            },
            Self::SubscribeTopic { pattern }
            | Self::UnsubscribeTopic { pattern }
            | Self::BindTopic { pattern, .. }
            | Self::UnbindTopic { pattern, .. } => match pattern {
                TopicPattern::Exact(topic) => Destination::Shard(topic.shard(placement)),
                TopicPattern::Mask(_) | TopicPattern::Prefix(_) => Destination::Every,
            },
            Self::ListRouters { .. } => Destination::Every,
            Self::CreateRouter { router, .. }
            | Self::RemoveRouter { router }
            | Self::EnableRouter { router, .. }
            | Self::ListBindings { router }
            | Self::AddBinding { router, .. }
            | Self::RemoveBinding { router, .. }
            | Self::TestRoute { router, .. } => Destination::Shard(router.shard(placement)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_as_large_as_an_acknowledgement_without_a_refusal() {
        // Sessions write and shards read thousands of commands at a time, so rare parts are boxed.
        assert_eq!(size_of::<Acknowledgement>(), 104);
        assert_eq!(size_of::<Command>(), size_of::<Acknowledgement>());
    }

    #[test]
    fn commands_that_go_with_another_have_its_destination() {
        let name = |text: &str| ChannelName::new(text).expect("a good name");
        let (one, other) = (name("one"), name("another"));
        let word = |channel: &ChannelName, id| {
            Command::Acknowledge(Acknowledgement {
                tag: Tag::CHANNEL,
                queue: QueueAddress { channel: channel.clone(), id },
                message_id: MessageId::from_slice(b"m"),
                refusal: None,
                headers: Box::default(),
                hops: 0,
                first_acquirer: false,
            })
        };
        assert!(word(&one, 1).goes_with(&word(&one, 2)), "queues of a channel are in one shard");
        assert!(!word(&one, 1).goes_with(&word(&other, 1)));
        let room = Command::RoomFor { queue: QueueAddress { channel: one.clone(), id: 1 } };
        assert!(!word(&one, 1).goes_with(&room) && !room.goes_with(&word(&one, 1)), "that is looked up");
    }
}
