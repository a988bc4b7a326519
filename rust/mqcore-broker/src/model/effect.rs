//! What the broker wants done: its only way to touch the world.

use std::sync::Arc;

use crate::model::bindings::QueueBindings;
use crate::model::client::Client;
use crate::model::command::{Acknowledgement, EventKind, MessageId};
use crate::model::decision::{Decision, Step};
use crate::model::id::{
    ChannelName, ConnectionId, HandlerId, QuestionId, QueueAddress, QueueRef, RequestId, RouterName,
    Sequence, Tag, TopicName,
};
use crate::model::message::Message;
use crate::model::node::NodeInformation;
use crate::model::record::Record;
use crate::model::rejection::Rejection;
use crate::model::route::{Route, RouteTest};
use crate::model::router::{Binding, RouterDefinition};
use crate::model::stats::{
    ChannelInformation, ClientInformation, ObjectCounts, QueueInformation, SubscriberInformation,
    TopicInformation,
};
use crate::model::topic::TopicPattern;

/// One thing to do. Effects are carried out in their order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Tell a connection's session something.
    Notify(ConnectionId, Event),
    /// Give a message to consumers. Kept apart from `Tell`, so that it can be encoded once for many.
    Deliver(Deliver),
    /// Give a topic's message to subscribers. Encoded once for many, as `Deliver` is.
    Publication(Publication),
    /// Ask a delivery handler. Answered by `Broker::answer`, in any order, or never.
    Ask(Question),
    /// End a connection; the rejection says why.
    Close(ConnectionId, Rejection),
    /// Write a record down. Answered by `Broker::committed` where somebody waits for it.
    Record(Sequence, Record),
    /// Read messages back from the journal. Answered by `Broker::loaded`, in any order; every one of them.
    Load(Load),
    /// Tell a handler that a message left for good whose body only the journal has: read it, put it into the question,
    /// and ask. It stands before the record that settles the message, so it can still be read.
    Dequeued(Sequence, Question),
    /// A dead-lettered message is safe in its new queue: tell its old shard, by `Broker::transferred`.
    Transferred(Origin),
    /// Hand a dead-lettered message to the queue of another shard (or of this one), by `Broker::transfer`.
    Transfer(Transfer),
    /// Hand something to another shard, by `Broker::forwarded`; what is handed to one shard keeps its order.
    Forward(usize, Forwarded),
}

/// What one shard asks another to do with a message.
#[derive(Debug, Clone)]
pub enum Forwarded {
    /// Put a copy into a queue, of whose fate nobody hears.
    Copy {
        /// Where.
        to: QueueAddress,
        /// What.
        message: Message,
    },
    /// Go on with a message's trip through a router.
    Route(Box<Route>),
    /// Forget what was counted about a router, or one of its bindings.
    ForgetRouter(RouterName, Option<Box<str>>),
    /// Bind a queue to topics and unbind it from others, and say so.
    Bind {
        /// The queue.
        queue: QueueAddress,
        /// Topics of the shard that is asked.
        bind: Vec<TopicName>,
        /// Topics of the shard that is asked.
        unbind: Vec<TopicName>,
        /// Who wants to know when it is done.
        from: usize,
        /// Under which number.
        ticket: u64,
    },
    /// That was done.
    Bound {
        /// Under this number.
        ticket: u64,
    },
}

/// A message of a topic, for one or many subscribers.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The topic.
    pub topic: TopicName,
    /// What.
    pub message: Message,
    /// To whom. Many publications in a row share one list.
    pub to: Recipients,
}

/// Messages of one queue that are to be read back, the one that is needed first at the front.
#[derive(Debug, Clone)]
pub struct Load {
    pub(crate) queue_ref: QueueRef,
    /// Under which numbers they were put.
    pub sequences: Vec<Sequence>,
}

impl Load {
    /// What a part of it brought: each message, or `None` for one that cannot be read. All parts together must name
    /// each number once.
    pub fn loaded(&self, messages: Vec<(Sequence, Option<Message>)>) -> Loaded {
        Loaded { queue_ref: self.queue_ref, messages }
    }
}

/// What [`Load::brought`].
#[derive(Debug, Clone)]
pub struct Loaded {
    pub(crate) queue_ref: QueueRef,
    pub(crate) messages: Vec<(Sequence, Option<Message>)>,
}

/// A message for one or many consumers.
#[derive(Debug, Clone)]
pub struct Deliver {
    /// The queue it comes from. Shared by all deliveries of that queue.
    pub queue: Arc<QueueAddress>,
    /// What.
    pub message: Message,
    /// To whom, in join order. Many deliveries in a row share one list.
    pub to: Recipients,
    /// Whether consumers must acknowledge.
    pub acknowledge: bool,
    /// Whether the producer stays unknown to consumers.
    pub hide_source: bool,
    /// Whether the first of the recipients is the message's first acquirer: `false` once it was sent before.
    pub first: bool,
    /// Which subscription of the one recipient it is for; [`Tag::CHANNEL`] for those who joined the channel.
    pub tag: Tag,
    /// How often the message was put back before.
    pub requeues: u16,
    /// The name of that subscription, if it has one.
    pub name: Option<Arc<[u8]>>,
}

/// Who gets a delivery.
#[derive(Debug, Clone)]
pub enum Recipients {
    /// One consumer.
    One(ConnectionId),
    /// Several; never empty.
    Many(Arc<[ConnectionId]>),
}

impl Recipients {
    /// All of them, in order.
    pub fn as_slice(&self) -> &[ConnectionId] {
        match self {
            Self::One(connection) => std::slice::from_ref(connection),
            Self::Many(connections) => connections,
        }
    }
}

/// What a session is told.
#[derive(Debug, Clone)]
pub enum Event {
    /// The peer is a client now.
    Welcomed(Arc<Client>),
    /// The peer is refused; its connection is closed after this.
    Refused(Rejection),
    /// The answer, or one shard's part of the answer, to a request.
    Answered(RequestId, Result<Reply, Rejection>),
    /// A message was not taken. Sent whether or not the producer asked for anything.
    PublishRefused {
        /// Where it should have gone.
        queue: QueueAddress,
        /// The message.
        message: Message,
        /// Why not.
        rejection: Rejection,
    },
    /// A message for a topic was not taken, and its producer waits for no answer. With one, that says it.
    TopicRefused {
        /// The message.
        message: Message,
        /// Why not.
        rejection: Rejection,
    },
    /// A message's fate, for its producer.
    Acknowledged {
        /// The queue it was published to.
        queue: Arc<QueueAddress>,
        /// The message.
        message: Message,
        /// `None`: positive; else the reason (`none`, `timeout`, `not-saved`, a consumer's own).
        negative: Option<Box<str>>,
        /// The consumer's own word, if this relays one, with that consumer's id (`None` if names are hidden).
        relayed: Option<Box<(Acknowledgement, Option<Box<str>>)>>,
    },
    /// What the queue of a subscription is bound to changed, or when that queue goes.
    BindingsChanged {
        /// Which subscription.
        tag: Tag,
        /// How it is now.
        bindings: Arc<QueueBindings>,
    },
    /// A subscription ended without its session having asked: its queue was removed.
    SubscriptionEnded {
        /// The queue.
        queue: QueueAddress,
        /// Which subscription.
        tag: Tag,
    },
    /// A message for a subscription whose terms want its session told of each.
    Delivered(Deliver),
    /// One message of a pull.
    Pulled {
        /// The pull.
        request: RequestId,
        /// What.
        message: Message,
        /// Whether the consumer must acknowledge.
        acknowledge: bool,
        /// Whether the producer stays unknown.
        hide_source: bool,
        /// Whether it was never sent before.
        first: bool,
        /// One-based.
        index: u32,
        /// How many come in all.
        count: u32,
        /// Messages left, (high priority, others), if asked for.
        left: Option<(u64, u64)>,
    },
    /// The pull is over.
    PullEnded {
        /// The pull.
        request: RequestId,
        /// How it went.
        outcome: PullOutcome,
    },
    /// The message of a cache queue. Ends the pull.
    Cached {
        /// The pull.
        request: RequestId,
        /// What.
        message: Message,
        /// Whether the producer stays unknown.
        hide_source: bool,
    },
    /// A direct message.
    Direct {
        /// As the sender addressed it.
        to: crate::model::command::ClientPattern,
        /// What.
        message: Message,
    },
    /// A direct message found nobody.
    DirectRefused {
        /// As the sender addressed it.
        to: crate::model::command::ClientPattern,
        /// The message.
        message: Message,
        /// Why not.
        rejection: Rejection,
    },
    /// An acknowledgement of a direct message that this peer sent.
    DirectAcknowledged(Message),
    /// A response to a direct message that this peer sent.
    Responded(Message),
    /// To a broker that passes on: what came under these numbers is done, as safe as its queue keeps it.
    Confirmed(Vec<u64>),
    /// To a broker that passes on: what came under this number cannot be taken now, and must come again later.
    Deferred(u64, Rejection),
    /// A message of a topic, for a subscriber that wants to be told of each.
    Published {
        /// The topic.
        topic: TopicName,
        /// What.
        message: Message,
    },
    /// What a router did with a message whose producer waits, and whom no receiver will answer.
    Routed {
        /// The router.
        router: RouterName,
        /// The message as it was published.
        message: Message,
        /// `None`: it was taken. `NotFound`: nobody took it, or there is no such router.
        refusal: Option<Rejection>,
    },
    /// Something happened that this peer subscribed to. Shared by all subscribers.
    Notified(Arc<Notification>),
}

/// How a pull ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullOutcome {
    /// All messages that could be given were given.
    Complete,
    /// There was none.
    Empty,
    /// The request is wrong, or the queue is not one to pull from.
    Unacceptable,
    /// The client has not joined the channel or may not pull.
    Unauthorized,
    /// No such channel.
    NoChannel,
    /// No such queue.
    NoQueue,
}

/// What a request brings.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the variants are lists of what they name")]
pub enum Reply {
    Done,
    Channel(Box<ChannelInformation>),
    Channels(Vec<ChannelInformation>),
    Queue(Box<QueueInformation>),
    Queues(Vec<QueueInformation>),
    Clients(Vec<ClientInformation>),
    Nodes(Vec<NodeInformation>),
    Topics(Vec<TopicInformation>),
    TopicBindings(Vec<TopicPattern>),
    Subscribers(Vec<SubscriberInformation>),
    Routers(Vec<RouterDefinition>),
    Bindings(Vec<Binding>),
    RouteTest(Box<RouteTest>),
    /// Subscribers and queues that a topic's message was handed to.
    Published(u32),
    ObjectCounts(ObjectCounts),
}

/// Something that happened, for those who subscribed to it.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Which event.
    pub kind: EventKind,
    /// The channel, if it is about one.
    pub channel: Option<ChannelName>,
    /// The queue, if it is about one.
    pub queue: Option<u16>,
    /// The rest.
    pub subject: Subject,
}

/// What an event tells, by kind.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the models of the document's chapter Event Types")]
pub enum Subject {
    Client { id: Box<str>, name: Option<Box<str>>, kind: Option<Box<str>> },
    Channel { active_clients: u32, client_limit: u32 },
    Subscription { client_id: Box<str>, client_name: Option<Box<str>>, client_kind: Option<Box<str>> },
    Queue { tag: Option<Box<str>>, status: crate::model::options::Status, high_priority: u64, normal: u64 },
    Message { id: Box<[u8]>, saved: bool, producer: Option<Arc<Client>> },
    Node(Box<NodeInformation>),
}

/// A question to a delivery handler.
#[derive(Debug, Clone)]
pub struct Question {
    /// To be repeated in the answer.
    pub id: QuestionId,
    /// Who is asked.
    pub handler: HandlerId,
    /// At which step.
    pub step: Step,
    /// About which queue. At `Step::Route`: queue 0 of a channel that is called as the router is.
    pub queue: Arc<QueueAddress>,
    /// The queue's status when it was asked.
    pub status: crate::model::options::Status,
    /// About which message; `None` only for an acknowledgement of something unknown.
    pub message: Option<Message>,
    /// Deliveries of this message so far, this one included where there is one.
    pub attempt: u16,
    /// The consumer concerned, for steps that concern one.
    pub consumer: Option<Arc<Client>>,
    /// The consumer's word, for `AcknowledgeReceived`.
    pub acknowledgement: Option<Box<AcknowledgementView>>,
    /// `false` for steps that are told, not asked: no answer is waited for.
    pub wants_answer: bool,
}

/// A consumer's word as a handler sees it.
#[derive(Debug, Clone)]
pub struct AcknowledgementView {
    /// The acknowledged message.
    pub message_id: MessageId,
    /// `None`: positive; else the reason.
    pub negative: Option<Box<str>>,
}

/// A handler's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The question.
    pub id: QuestionId,
    /// What it decided; `Err` if it raised and `exception_thrown` did not decide either.
    pub result: Result<Decision, HandlerFailure>,
    /// At `Step::Route`: where the message goes, if the handler says so instead of taking it. `None` elsewhere.
    pub targets: Option<Box<[Binding]>>,
}

impl Answer {
    /// An answer that is a decision, or none at all.
    pub fn new(id: QuestionId, result: Result<Decision, HandlerFailure>) -> Self {
        Self { id, result, targets: None }
    }
}

/// Why a handler gave no decision. Its registered fallback applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerFailure {
    /// It raised an exception or returned something that is no decision.
    Raised,
    /// It is not running any more.
    Gone,
}

/// A message on its way to another queue.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Where to.
    pub to: QueueAddress,
    /// What; its headers already tell origin, reason and attempts.
    pub message: Message,
    /// Where it is saved until the new queue has saved it; `None` if it never was.
    pub origin: Option<Origin>,
}

/// A saved message of some shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The shard whose journal has it.
    pub shard: usize,
    /// Under which number.
    pub sequence: Sequence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_and_deliveries_stay_small() {
        // A turn makes thousands of them before any is carried out.
        assert_eq!((size_of::<Deliver>(), size_of::<Effect>()), (64, 104));
    }
}
