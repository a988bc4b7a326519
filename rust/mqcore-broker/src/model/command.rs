//! What a peer may ask of the broker, in the core's own words.

use smallvec::SmallVec;

use crate::model::bindings::QueueBinding;
use crate::model::client::Introduction;
use crate::model::id::{ChannelName, QueueAddress, RequestId, RouterName, Tag, TopicName};
use crate::model::intake::Ticket;
use crate::model::message::Message;
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::router::{Binding, RouterMethod};
use crate::model::subscription::{QueueSubscription, Remote};
use crate::model::time::Timestamp;
use crate::model::topic::TopicPattern;

/// A message id as it was read, kept inline when it is short.
pub type MessageId = SmallVec<[u8; 36]>;

/// What a peer asks. Those with a [`RequestId`] are answered by exactly one `Event::Answered` (or, for a pull,
/// by the events of the pull).
#[derive(Debug, Clone)]
pub enum Command {
    /// Put a message into a queue. Refusals come as `Event::PublishRefused`.
    Publish {
        /// Where.
        queue: QueueAddress,
        /// What.
        message: Message,
    },
    /// Give a message to whoever subscribed to a topic, and a copy to each queue bound to it. It is never refused.
    PublishTopic {
        /// The topic.
        topic: TopicName,
        /// What.
        message: Message,
        /// Whether its producer gets it too, if that has subscribed.
        to_producer: bool,
        /// `Some`: answered by `Event::Answered` with `Reply::Published`.
        answer: Option<RequestId>,
    },
    /// Give a message to a router. If its producer waits for something and no receiver answers it, the router does, by
    /// `Event::Routed`.
    Route {
        /// The router.
        router: RouterName,
        /// What. It has an id.
        message: Message,
    },
    /// A consumer acknowledges a delivery of a queue.
    Acknowledge(Acknowledgement),
    /// A subscription settles all its deliveries of a queue.
    AcknowledgeAll {
        /// Of which queue.
        queue: QueueAddress,
        /// Which of the connection's subscriptions.
        tag: Tag,
        /// `None`: they were processed. `Some`: they were not; why.
        negative: Option<Box<str>>,
    },
    /// A consumer whose subscriptions share slots has some again: this queue may have something for it. Never answered.
    RoomFor {
        /// Which queue.
        queue: QueueAddress,
    },
    /// A consumer asks for messages of a pull or cache queue.
    Pull(Box<Pull>),
    /// Hello: the peer says who it is. Answered by `Event::Welcomed` or `Event::Refused`.
    Introduce(Box<Introduction>),
    /// A message to other clients.
    Direct {
        /// To whom.
        to: ClientPattern,
        /// What; its `first_acquirer` property means "only the oldest match".
        message: Message,
    },
    /// An acknowledgement of a direct message, for its sender.
    AcknowledgeDirect {
        /// The sender's client id.
        to: Box<str>,
        /// The acknowledgement: id of the acknowledged message, headers, hops.
        message: Message,
    },
    /// A response to a direct message, for its sender.
    Respond {
        /// The sender's client id.
        to: Box<str>,
        /// The response; `content_type` is the status.
        message: Message,
    },
    /// Another broker passes on what a client of its own asked for. Nobody is answered but that broker, by
    /// `Event::Confirmed` or `Event::Deferred`.
    PassedOn(Box<PassedOn>),
    /// Anything that is rare enough to be boxed.
    Request(RequestId, Box<Request>),
}

/// What another broker passes on.
#[derive(Debug, Clone)]
pub struct PassedOn {
    /// Which of its messages this is.
    pub ticket: Ticket,
    /// What it asks for: to publish, or one of the commands between clients. A message that is published carries the ticket too.
    pub command: Command,
}

/// A consumer's word about a delivery.
#[derive(Debug, Clone)]
pub struct Acknowledgement {
    /// Which of the consumer's subscriptions had the delivery; [`Tag::CHANNEL`] if it joined the channel.
    pub tag: Tag,
    /// The queue that the message came from.
    pub queue: QueueAddress,
    /// The message.
    pub message_id: MessageId,
    /// `None`: positive. `Some`: negative.
    pub refusal: Option<Box<Nack>>,
    /// All header text of the acknowledgement, to be relayed; empty as a rule.
    pub headers: Box<[u8]>,
    /// Hops left, to be relayed.
    pub hops: u8,
    /// The frame's first-acquirer bit, to be relayed.
    pub first_acquirer: bool,
}

/// A consumer's word about a delivery that it does not want. Boxed, so that the many acknowledgements that are positive are small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// Why.
    pub reason: Box<str>,
    /// What the consumer wishes for the message.
    pub retry: Retry,
}

impl Nack {
    /// A refusal with a wish, as acknowledgements have it.
    #[must_use]
    pub fn new(reason: &str, retry: Retry) -> Box<Self> {
        Box::new(Self { reason: reason.into(), retry })
    }

    /// One for this reason, if there is one, without a wish of its own.
    #[must_use]
    pub fn of(reason: Option<&str>) -> Option<Box<Self>> {
        reason.map(|reason| Self::new(reason, Retry::AsDecided))
    }
}

impl Acknowledgement {
    /// Why the message is refused; `None`: it is not.
    #[must_use]
    pub fn negative(&self) -> Option<&str> {
        self.refusal.as_deref().map(|refusal| &*refusal.reason)
    }
}

/// When a message is to be handed out again that its consumer refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// As its queue's policy or handler decides: at once, if at all.
    #[default]
    AsDecided,
    /// Not before this time, if it is put back.
    NotBefore(Timestamp),
    /// Never: it has failed for good, and goes to the dead-letter queue. Only a handler of its queue may still put it back.
    Never,
}

/// Which clients a direct message is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientPattern {
    /// The one with this id.
    Id(Box<str>),
    /// All with this name, or the oldest of them.
    Name(Box<str>),
    /// All of this type, or the oldest of them.
    Kind(Box<str>),
}

/// Which stored messages are cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clear {
    /// Those of high priority.
    pub high_priority: bool,
    /// The others.
    pub normal: bool,
}

/// A pull request.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The session's number for it.
    pub request: RequestId,
    /// From where.
    pub queue: QueueAddress,
    /// How many at most. Zero is unacceptable, unless the queue is a cache, which has one message for whoever asks.
    pub count: u32,
    /// Newest first.
    pub lifo: bool,
    /// What is removed afterwards.
    pub clear: Clear,
    /// Whether each message tells how many are left.
    pub info: bool,
}

/// The names of the events that one can subscribe to.
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
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// What a subscription has to name: nothing, a channel, or a channel and a queue.
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

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventScope {
    /// The server as a whole.
    Server,
    /// One channel.
    Channel,
    /// One queue.
    Queue,
}

/// Subscribing to, or unsubscribing from, an event.
#[derive(Debug, Clone)]
pub struct EventSubscription {
    /// Which event.
    pub kind: EventKind,
    /// The channel, where the event's scope needs one.
    pub channel: Option<ChannelName>,
    /// The queue, where the event's scope needs one.
    pub queue: Option<u16>,
    /// `true` subscribes, `false` unsubscribes.
    pub on: bool,
}

/// Operations: rare, and answered each.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are what the operation is about")]
pub enum Request {
    /// Become a consumer of all queues of a channel. Twice is fine.
    Join { channel: ChannelName },
    /// Stop being one.
    Leave { channel: ChannelName },
    /// Say whether the client may publish to a queue; `NotFound` if there is none and publishing would not make one.
    MayPublish { queue: QueueAddress },
    /// Create a channel; `AlreadyExists` if there is one.
    CreateChannel { channel: ChannelName, changes: ChannelChanges },
    /// Remove a channel with its queues and their messages. For administrators.
    RemoveChannel { channel: ChannelName },
    /// One channel's information. For administrators.
    ChannelInformation { channel: ChannelName },
    /// Channels whose name matches (see [`crate::model::filter`]). Asked of every shard. For administrators.
    ListChannels { filter: Option<Box<str>> },
    /// The clients joined to a channel. For administrators.
    ListConsumers { channel: ChannelName },
    /// Create a queue, and its channel if it is missing; `AlreadyExists` if there is one.
    CreateQueue { queue: QueueAddress, changes: QueueChanges },
    /// Change options of a queue, its status among them. For administrators.
    UpdateQueue { queue: QueueAddress, changes: QueueChanges },
    /// Remove a queue with its messages. For administrators.
    RemoveQueue { queue: QueueAddress },
    /// Remove stored messages. For administrators.
    ClearQueue { queue: QueueAddress, clear: Clear },
    /// One queue's information. For administrators.
    QueueInformation { queue: QueueAddress },
    /// All queues of a channel. For administrators.
    ListQueues { channel: ChannelName },
    /// Connected clients whose type matches. Asked of the home shard. For administrators.
    ListClients { kind: Option<Box<str>> },
    /// Nodes. Asked of the home shard. For administrators.
    ListNodes,
    /// Event subscriptions. Those of scope `Server` about channels are asked of every shard.
    Subscribe(EventSubscription),
    /// Consume a queue on one's own terms.
    SubscribeQueue(Box<QueueSubscription>),
    /// End that; what is not settled goes back.
    UnsubscribeQueue { queue: QueueAddress, tag: Tag },
    /// Do something to the subscriptions of a name, whoever has them. `NotFound` from every shard that has none. Asked of
    /// every shard.
    ToSubscriptions { name: Box<[u8]>, what: Remote },
    /// Change what a queue is bound to, whether or not it exists yet. Answered when no message can be missed any more.
    RebindQueue { queue: QueueAddress, binding: Box<QueueBinding> },
    /// How much there is of what. Asked of every shard.
    ObjectCounts,
    /// Remove a queue that its consumers made, and what it is bound to, whether or not it exists. Who consumes it is told of
    /// its bindings once more.
    DropQueue { queue: QueueAddress },
    /// Get the messages of topics from now on; each once, however many subscriptions match. Twice is fine. `told`: each
    /// as an `Event::Published` of its own, for sessions that number, filter or acknowledge; else encoded once for all.
    /// Patterns are asked of every shard.
    SubscribeTopic { pattern: TopicPattern, told: bool },
    /// No longer; `NotFound` without such a subscription. Patterns are asked of every shard.
    UnsubscribeTopic { pattern: TopicPattern },
    /// A queue gets copies of the messages of topics from now on, once it exists. Twice is fine. Patterns are asked of
    /// every shard.
    BindTopic { pattern: TopicPattern, queue: QueueAddress },
    /// No longer; `NotFound` without such a binding. Patterns are asked of every shard.
    UnbindTopic { pattern: TopicPattern, queue: QueueAddress },
    /// The topics and patterns that a queue is bound to. Asked of every shard.
    ListTopicBindings { queue: QueueAddress },
    /// Topics that have a subscriber or a queue, or were published to lately. Asked of every shard.
    ListTopics,
    /// Who gets the messages of a topic.
    ListSubscribers { topic: TopicName },
    /// Create a router; fine if there is one of this name and method. For administrators.
    CreateRouter { router: RouterName, method: RouterMethod },
    /// Remove a router with its bindings; fine if there is none. For administrators.
    RemoveRouter { router: RouterName },
    /// Routers whose name matches (see [`crate::model::filter`]). Asked of every shard. For administrators.
    ListRouters { filter: Option<Box<str>> },
    /// The bindings of a router. For administrators.
    ListBindings { router: RouterName },
    /// Add a binding to a router. For administrators.
    AddBinding { router: RouterName, binding: Binding },
    /// Remove a binding of a router; fine if there is none. For administrators.
    RemoveBinding { router: RouterName, binding: Box<str> },
    /// Say where a message would go, and why; nothing is sent, but handlers are asked. For administrators.
    TestRoute { router: RouterName, message: Message },
}

/// Which shard or shards a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The shard with this number, which owns the channel concerned.
    Shard(usize),
    /// The shard that knows all clients: number 0.
    Home,
    /// Every shard; each gives its part of the answer.
    Every,
}

impl Command {
    /// The queue that it is about, if it is one of the commands that come by the thousand.
    fn queue(&self) -> Option<&QueueAddress> {
        match self {
            Self::Publish { queue, .. } => Some(queue),
            Self::Acknowledge(word) => Some(&word.queue),
            _ => None,
        }
    }

    /// Whether this command goes where `other` does for the very same name, which is cheaper to see than where that is. May
    /// say no to what goes there all the same.
    pub fn goes_with(&self, other: &Self) -> bool {
        let queues = self.queue().zip(other.queue());
        queues.is_some_and(|(mine, its)| mine.channel.is_same(&its.channel))
    }

    /// Where this command has to go in a broker of `shards` shards.
    pub fn destination(&self, shards: usize) -> Destination {
        let of = |channel: &ChannelName| Destination::Shard(channel.shard(shards));
        match self {
            Self::Publish { queue, .. } => of(&queue.channel),
            Self::PublishTopic { topic, .. } => Destination::Shard(topic.shard(shards)),
            Self::Route { router, .. } => Destination::Shard(router.shard(shards)),
            Self::Acknowledge(acknowledgement) => of(&acknowledgement.queue.channel),
            Self::AcknowledgeAll { queue, .. } | Self::RoomFor { queue } => of(&queue.channel),
            Self::Pull(pull) => of(&pull.queue.channel),
            Self::Introduce(_)
            | Self::Direct { .. }
            | Self::AcknowledgeDirect { .. }
            | Self::Respond { .. } => Destination::Home,
            Self::PassedOn(passed_on) => passed_on.command.destination(shards),
            Self::Request(_, request) => request.destination(shards),
        }
    }
}

impl Request {
    /// Where this request has to go in a broker of `shards` shards.
    pub fn destination(&self, shards: usize) -> Destination {
        let of = |channel: &ChannelName| Destination::Shard(channel.shard(shards));
        match self {
            Self::Join { channel }
            | Self::Leave { channel }
            | Self::CreateChannel { channel, .. }
            | Self::RemoveChannel { channel }
            | Self::ChannelInformation { channel }
            | Self::ListConsumers { channel }
            | Self::ListQueues { channel } => of(channel),
            Self::CreateQueue { queue, .. }
            | Self::UpdateQueue { queue, .. }
            | Self::RemoveQueue { queue }
            | Self::ClearQueue { queue, .. }
            | Self::QueueInformation { queue }
            | Self::UnsubscribeQueue { queue, .. }
            | Self::RebindQueue { queue, .. }
            | Self::MayPublish { queue }
            | Self::DropQueue { queue } => of(&queue.channel),
            Self::ToSubscriptions { .. } | Self::ObjectCounts => Destination::Every,
            Self::SubscribeQueue(subscription) => of(&subscription.queue.channel),
            Self::ListChannels { .. } => Destination::Every,
            Self::ListClients { .. } | Self::ListNodes => Destination::Home,
            Self::Subscribe(subscription) => match (&subscription.channel, subscription.kind) {
                (Some(channel), kind) if kind.scope() != EventScope::Server => of(channel),
                (_, EventKind::ChannelCreated | EventKind::ChannelRemoved) => Destination::Every,
                _ => Destination::Home,
            },
            Self::SubscribeTopic { pattern, .. }
            | Self::UnsubscribeTopic { pattern }
            | Self::BindTopic { pattern, .. }
            | Self::UnbindTopic { pattern, .. } => match pattern {
                TopicPattern::Exact(topic) => Destination::Shard(topic.shard(shards)),
                TopicPattern::Mask(_) | TopicPattern::Prefix(_) => Destination::Every,
            },
            Self::ListTopicBindings { .. } | Self::ListTopics | Self::ListRouters { .. } => {
                Destination::Every
            }
            Self::CreateRouter { router, .. }
            | Self::RemoveRouter { router }
            | Self::ListBindings { router }
            | Self::AddBinding { router, .. }
            | Self::RemoveBinding { router, .. }
            | Self::TestRoute { router, .. } => Destination::Shard(router.shard(shards)),
            Self::ListSubscribers { topic } => Destination::Shard(topic.shard(shards)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_as_large_as_an_acknowledgement_without_a_refusal() {
        // Each is written by its session and read by its shard, by the thousand; what is rare in one is boxed.
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
