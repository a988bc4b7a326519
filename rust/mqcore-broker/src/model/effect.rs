//! Effects: what the broker asks its caller to do.

use std::sync::Arc;

use crate::model::bindings::QueueBindings;
use crate::model::client::Client;
use crate::model::command::{Acknowledgement, EventKind, MessageId};
use crate::model::decision::{Decision, Step};
use crate::model::declaration::Declared;
use crate::model::id::{
    ChannelName, ConnectionId, HandlerId, QuestionId, QueueAddress, QueueRef, RequestId, RouterName,
    Sequence, Tag, TopicName,
};
use crate::model::job_notice::{JobNotice, PLAIN};
use crate::model::message::Message;
use crate::model::node::NodeInformation;
use crate::model::observation::Observation;
use crate::model::page::ListPage;
use crate::model::queue_policy::{PolicyReport, QueuePolicy};
use crate::model::record::Record;
use crate::model::rejection::Rejection;
use crate::model::route::{Route, RouteTest};
use crate::model::router::{Binding, RouterDefinition};
use crate::model::stats::{ChannelInformation, ClientInformation, ObjectCounts, QueueInformation};
use crate::model::subscription::JoinedQueues;
use crate::model::transfer::{ArrivedMessage, MoveReport, Transfer, TransferEnd};

/// One thing to do. The caller carries out effects in their order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Send an event to a connection's session.
    Notify(ConnectionId, Event),
    /// Deliver a message to consumers. The caller chooses by the protocol of each consumer: it encodes
    /// the message once for many consumers, or sends [`Event::Delivered`] to the session.
    Deliver(Deliver),
    /// Deliver a topic's message to subscribers. The caller chooses as with `Deliver`; the event is
    /// [`Event::Published`].
    Publication(Publication),
    /// Ask a delivery handler. The caller answers with `Broker::answer`, in any order, or never.
    Ask(Question),
    /// Notify an event handler. No answer is expected.
    Observe(Observation),
    /// Close a connection for the given reason.
    Close(ConnectionId, Rejection),
    /// Write a record. The caller reports the commit with `Broker::committed` if something waits for
    /// it.
    Record(Sequence, Record),
    /// Load message bodies from the journal. The caller returns every one of them with
    /// `Broker::loaded`, in any order.
    Load(Load),
    /// Notify a handler that a paged-out message left its queue for good: load the message, put it into
    /// the question, and ask. This effect precedes the record that settles the message, so the message
    /// can still be loaded.
    Dequeued(Sequence, Question),
    /// A transfer ended: notify the shard that the message comes from with `Broker::transferred`.
    Transferred(Box<TransferEnd>),
    /// Transfer a message to a queue of a shard, possibly this one, with `Broker::transfer`.
    Transfer(Box<Transfer>),
    /// The previous queue of a moved message has settled it: notify the shard of its new queue with `Broker::release`.
    Release(Box<ArrivedMessage>),
    /// Report something to the operator.
    Report(Box<Report>),
    /// Forward something to a shard with `Broker::forwarded`. Effects for one shard keep their order.
    Forward(usize, Forwarded),
}

/// Something that the operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The dead-letter queue of a channel was created.
    DeadLetterQueueCreated {
        /// The new queue.
        queue: QueueAddress,
        /// The queue whose message needed it.
        from: QueueAddress,
    },
    /// The dead-letter queue that a queue names does not exist any more, so another one is used.
    DeadLetterQueueMissing {
        /// The missing queue.
        missing: QueueAddress,
        /// The queue that names it.
        from: QueueAddress,
        /// The queue that is used.
        used: QueueAddress,
    },
    /// The journal has messages of a queue, and no definition of it: a damaged part had that.
    DefinitionLost {
        /// The queue, which is paused now.
        queue: QueueAddress,
    },
}

/// Data that one shard forwards to another.
#[derive(Debug, Clone)]
pub enum Forwarded {
    /// Put a copy of a topic's message into a queue.
    Copy {
        /// The queue.
        to: QueueAddress,
        /// The message.
        message: Message,
        /// Where the queue reports; `None` if no producer waits.
        origin: Option<CopyOrigin>,
    },
    /// A queue took and saved its copy of a topic's message, or rejected it.
    CopyReport {
        /// The origin of the copy.
        origin: CopyOrigin,
        /// The rejection if the queue did not take the copy.
        result: Result<(), Rejection>,
    },
    /// Continue the route of a message.
    Route(Box<Route>),
    /// Discard the counters of a router, or of one of its bindings.
    ForgetRouter(RouterName, Option<Box<str>>),
    /// Bind a queue to topics, unbind it from others, and confirm.
    Bind {
        /// The queue.
        queue: QueueAddress,
        /// Topics of the shard that receives this.
        bind: Vec<TopicName>,
        /// Topics of the shard that receives this.
        unbind: Vec<TopicName>,
        /// The shard to confirm to.
        from: usize,
        /// The number to confirm.
        ticket: u64,
    },
    /// The bindings were changed.
    Bound {
        /// The number of the change.
        ticket: u64,
    },
}

/// Where a copy of a topic's message comes from, and where its queue reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOrigin {
    /// The shard of the topic.
    pub(crate) shard: usize,
    /// The number of the producer's confirmation on that shard.
    pub(crate) confirmation: usize,
}

/// A message of a topic, for one or many subscribers.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The topic.
    pub topic: TopicName,
    /// The message.
    pub message: Message,
    /// The subscribers. Consecutive publications share one list.
    pub to: Recipients,
}

/// Messages of one queue to load, in the order in which they are needed.
#[derive(Debug, Clone)]
pub struct Load {
    pub(crate) queue_ref: QueueRef,
    /// The sequences of their records.
    pub sequences: Vec<Sequence>,
}

impl Load {
    /// The result of a part of the request: each message, or `None` if it cannot be read. All parts
    /// together must name each sequence once.
    pub fn loaded(&self, messages: Vec<(Sequence, Option<Message>)>) -> Loaded {
        Loaded { queue_ref: self.queue_ref, messages }
    }
}

/// The result of a [`Load`].
#[derive(Debug, Clone)]
pub struct Loaded {
    pub(crate) queue_ref: QueueRef,
    pub(crate) messages: Vec<(Sequence, Option<Message>)>,
}

/// A message for one or many consumers.
#[derive(Debug, Clone)]
pub struct Deliver {
    /// The queue of the message, shared by all its deliveries.
    pub queue: Arc<QueueAddress>,
    /// The message.
    pub message: Message,
    /// The consumers in the order in which they joined. Consecutive deliveries share one list.
    pub to: Recipients,
    /// Whether consumers must acknowledge.
    pub acknowledge: bool,
    /// Whether the producer is hidden from consumers.
    pub hide_source: bool,
    /// Whether the first consumer is the message's first acquirer: `false` if the message was delivered
    /// before.
    pub first: bool,
    /// The subscription of the one consumer; [`Tag::CHANNEL`] for those who joined the channel.
    pub tag: Tag,
    /// The number of this attempt to deliver the message, from 1.
    pub attempt: u16,
    /// Whether the consumers joined for the queue, as far as it is known. They want the number of a repeated attempt.
    pub by_queue: bool,
    /// How often the message was requeued before.
    pub requeues: u16,
    /// The name of the subscription, if it has one.
    pub name: Option<Arc<[u8]>>,
}

/// The receivers of a delivery.
///
/// ```
/// use mqcore_broker::model::effect::Recipients;
/// use mqcore_broker::model::id::ConnectionId;
///
/// assert_eq!(Recipients::One(ConnectionId(1)).as_slice(), [ConnectionId(1)]);
/// ```
#[derive(Debug, Clone)]
pub enum Recipients {
    /// One consumer.
    One(ConnectionId),
    /// Several; never empty.
    Many(Arc<[ConnectionId]>),
}

impl Recipients {
    /// All connections, in order.
    pub fn as_slice(&self) -> &[ConnectionId] {
        match self {
            Self::One(connection) => std::slice::from_ref(connection),
            Self::Many(connections) => connections,
        }
    }
}

/// A notification of a session.
#[derive(Debug, Clone)]
pub enum Event {
    /// The peer is now a client.
    Welcomed(Arc<Client>),
    /// The peer is rejected; its connection is closed after this.
    Refused(Rejection),
    /// The answer to a request, or one shard's part of it.
    Answered(RequestId, Result<Reply, Rejection>),
    /// A message was rejected. Sent whether or not the producer asked for a confirmation.
    PublishRefused {
        /// The queue that it was published to.
        queue: QueueAddress,
        /// The message id.
        message: Message,
        /// The reason.
        rejection: Rejection,
    },
    /// A message for a topic was rejected and its producer waits for no answer.
    TopicRefused {
        /// The message id.
        message: Message,
        /// The reason.
        rejection: Rejection,
    },
    /// The confirmation of a message for its producer.
    Acknowledged {
        /// The queue it was published to.
        queue: Arc<QueueAddress>,
        /// The message id.
        message: Message,
        /// `None`: positive; otherwise the reason (`none`, `timeout`, `not-saved`, or a consumer's
        /// own).
        negative: Option<Box<str>>,
        /// The consumer's acknowledgement if this relays one, with the consumer's id (`None` if names
        /// are hidden).
        relayed: Option<Box<(Acknowledgement, Option<Box<str>>)>>,
    },
    /// The topics of a subscription's queue changed, or when the queue is removed.
    BindingsChanged {
        /// The subscription.
        tag: Tag,
        /// The new state.
        bindings: Arc<QueueBindings>,
    },
    /// A subscription ended because its queue was removed.
    SubscriptionEnded {
        /// The queue.
        queue: QueueAddress,
        /// The subscription.
        tag: Tag,
    },
    /// A message for a session that encodes deliveries itself. Made of [`Effect::Deliver`]; the broker
    /// emits no such event.
    Delivered(Deliver),
    /// One message of a pull.
    Pulled {
        /// The pull.
        request: RequestId,
        /// The message.
        message: Message,
        /// Whether the consumer must acknowledge.
        acknowledge: bool,
        /// Whether the producer is hidden.
        hide_source: bool,
        /// Whether the message was never delivered before.
        first: bool,
        /// The number of this attempt to deliver the message, from 1.
        attempt: u16,
        /// Position of the message, from 1.
        index: u32,
        /// Number of messages in all.
        count: u32,
        /// Messages left, of high priority and others, if the pull asked for them.
        left: Option<(u64, u64)>,
    },
    /// The pull is complete.
    PullEnded {
        /// The pull.
        request: RequestId,
        /// The outcome.
        outcome: PullOutcome,
    },
    /// The message of a cache queue. Completes the pull.
    Cached {
        /// The pull.
        request: RequestId,
        /// The message.
        message: Message,
        /// Whether the producer is hidden.
        hide_source: bool,
    },
    /// A direct message.
    Direct {
        /// The receivers as the sender addressed them.
        to: crate::model::command::ClientPattern,
        /// The message.
        message: Message,
    },
    /// A direct message found no receiver.
    DirectRefused {
        /// The receivers as the sender addressed them.
        to: crate::model::command::ClientPattern,
        /// The message id.
        message: Message,
        /// The reason.
        rejection: Rejection,
    },
    /// An acknowledgement of a direct message that this peer sent.
    DirectAcknowledged(Message),
    /// A response to a direct message that this peer sent.
    Responded(Message),
    /// A custom message of the program that the broker is part of.
    Custom(Message),
    /// For a downstream broker: the messages with these numbers are done, at the durability of their
    /// queues.
    Confirmed(Vec<u64>),
    /// For a downstream broker: the message with this number cannot be taken now and must be sent again
    /// later.
    Deferred(u64, Rejection),
    /// A message of a topic, for a session that encodes such messages itself. Made of
    /// [`Effect::Publication`]; the broker emits no such event.
    Published {
        /// The topic.
        topic: TopicName,
        /// The message.
        message: Message,
    },
    /// The outcome of a routed message whose producer waits and that no receiver will answer.
    Routed {
        /// The router.
        router: RouterName,
        /// The message as it was published.
        message: Message,
        /// `None`: a binding took it. `NotFound`: no binding took it, or the router does not exist.
        refusal: Option<Rejection>,
    },
    /// An event that this peer subscribed to. Shared by all subscribers.
    Notified(Arc<Notification>),
    /// About a job, from what keeps results of jobs. The broker emits no such event.
    Job(Box<JobNotice>),
}

/// The outcome of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullOutcome {
    /// All available messages were delivered.
    Complete,
    /// The queue was empty.
    Empty,
    /// The request is invalid, or the queue is not a pull queue.
    Unacceptable,
    /// The client has not joined the channel or may not pull.
    Unauthorized,
    /// The channel does not exist.
    NoChannel,
    /// The queue does not exist.
    NoQueue,
}

/// The result of a request.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the variants are lists of what they name")]
pub enum Reply {
    Done,
    Channel(Box<ChannelInformation>),
    Channels(ListPage<ChannelInformation>),
    Queue(Box<QueueInformation>),
    Queues(ListPage<QueueInformation>),
    Clients(ListPage<ClientInformation>),
    Nodes(ListPage<NodeInformation>),
    Routers(ListPage<RouterDefinition>),
    Bindings(Vec<Binding>),
    RouteTest(Box<RouteTest>),
    /// Subscribers that received the message, and queues that took and saved a copy.
    Published(u32),
    JoinedQueues(Box<JoinedQueues>),
    ObjectCounts(Box<ObjectCounts>),
    Declared(Declared),
    Moved(Box<MoveReport>),
    Policy(Box<PolicyReport>),
    Policies(Vec<QueuePolicy>),
}

/// An event for its subscribers.
#[derive(Debug, Clone)]
pub struct Notification {
    /// The event.
    pub kind: EventKind,
    /// The channel, if the event is about one.
    pub channel: Option<ChannelName>,
    /// The queue, if the event is about one.
    pub queue: Option<u16>,
    /// The details.
    pub subject: Subject,
}

/// The details of an event, by kind.
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
    /// To repeat in the answer.
    pub id: QuestionId,
    /// The handler.
    pub handler: HandlerId,
    /// The step.
    pub step: Step,
    /// The queue. At `Step::Route`: queue 0 of a channel with the name of the router. At
    /// `Step::Authenticate`: queue 0 of the channel.
    pub queue: Arc<QueueAddress>,
    /// The status of the queue when the question was asked.
    pub status: crate::model::options::Status,
    /// The message; `None` only for an acknowledgement of an unknown message.
    pub message: Option<Message>,
    /// Deliveries of this message so far, including the current one.
    pub attempt: u16,
    /// Whether the message is saved.
    pub saved: bool,
    /// The consumer, for steps that concern one. At `Step::Authenticate`: the client.
    pub consumer: Option<Arc<Client>>,
    /// The consumer's acknowledgement, for `AcknowledgeReceived`.
    pub acknowledgement: Option<Box<AcknowledgementView>>,
    /// `false` for notifications, which need no answer.
    pub wants_answer: bool,
}

/// A consumer's acknowledgement as a handler sees it.
#[derive(Debug, Clone)]
pub struct AcknowledgementView {
    /// The acknowledged message.
    pub message_id: MessageId,
    /// `None`: positive; otherwise the reason.
    pub negative: Option<Box<str>>,
}

/// A handler's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The question.
    pub id: QuestionId,
    /// The decision; `Err` if the handler raised and its `exception_thrown` did not decide either.
    pub result: Result<Decision, HandlerFailure>,
    /// At `Step::Route`: the targets, if the handler names some instead of taking the message. `None`
    /// elsewhere.
    pub targets: Option<Box<[Binding]>>,
    /// Header lines to add to the message, before its own: `key:value`, each ended by CR LF. Only at
    /// `Step::ReceivedFromProducer` and `Step::BeginSend`.
    pub headers: Option<Arc<[u8]>>,
}

impl Answer {
    /// An answer with a decision or a failure.
    pub fn new(id: QuestionId, result: Result<Decision, HandlerFailure>) -> Self {
        Self { id, result, targets: None, headers: None }
    }
}

/// Why a handler made no decision. Its registered fallback applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerFailure {
    /// It raised an exception or returned an invalid decision.
    Raised,
    /// It is no longer running.
    Gone,
}

impl Event {
    /// Its estimated size in bytes until a session has encoded it: roughly the output and memory that it adds.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        match self {
            // These name a message, and do not contain its body.
            Self::PublishRefused { message, .. }
            | Self::TopicRefused { message, .. }
            | Self::Acknowledged { message, .. } => PLAIN + message.bytes_without_body(),
            Self::Pulled { message, .. }
            | Self::Cached { message, .. }
            | Self::Direct { message, .. }
            | Self::Published { message, .. }
            | Self::Routed { message, .. }
            | Self::DirectRefused { message, .. }
            | Self::DirectAcknowledged(message)
            | Self::Custom(message)
            | Self::Responded(message) => PLAIN + message.memory_bytes(),
            Self::Delivered(deliver) => PLAIN + deliver.message.memory_bytes(),
            Self::Job(notice) => notice.pending_bytes(),
            Self::Confirmed(numbers) => PLAIN + size_of_val(numbers.as_slice()),
            Self::BindingsChanged { bindings, .. } => {
                PLAIN + bindings.topics.iter().map(|topic| topic.as_bytes().len() + 1).sum::<usize>()
            }
            Self::Welcomed(_)
            | Self::Deferred(..)
            | Self::Refused(_)
            | Self::Answered(..)
            | Self::PullEnded { .. }
            | Self::SubscriptionEnded { .. }
            | Self::Notified(_) => PLAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::message::Properties;

    #[test]
    fn effects_and_deliveries_stay_small() {
        // One call appends thousands of them before the caller carries out the first.
        assert_eq!((size_of::<Deliver>(), size_of::<Effect>()), (64, 96));
    }

    #[test]
    fn a_confirmation_does_not_count_the_body_of_its_message() {
        let message = |body: &[u8]| Message::from_parts(b"id", b"", body, Properties::default(), None);
        let acknowledged = |body: &[u8]| Event::Acknowledged {
            queue: QueueAddress::parse("orders/1").expect("valid").into(),
            message: message(body),
            negative: None,
            relayed: None,
        };
        assert_eq!(acknowledged(&[0; 20_000]).pending_bytes(), acknowledged(b"").pending_bytes());
        let custom = Event::Custom(message(&[0; 20_000])).pending_bytes();
        assert!(custom > 20_000, "{custom}");
    }
}
