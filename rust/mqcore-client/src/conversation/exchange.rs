//! Input, output and results of a conversation.

use std::sync::Arc;
use std::time::Duration;

use crate::address::QueueAddress;
use crate::error::ClientError;
use crate::message_id::MessageId;
use crate::received::Received;
use crate::request::Target;

/// A message for a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueMessage<'a> {
    /// Its queue.
    pub queue: &'a QueueAddress,
    /// Its id. `None`: a new id.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// Whether it goes before messages of normal priority.
    pub high_priority: bool,
}

/// A message for clients.
#[derive(Debug, Clone, Copy)]
pub struct DirectMessage<'a> {
    /// A client id, `@name:NAME`, `@type:KIND`, or the router `@router:NAME`.
    pub target: &'a str,
    /// Its id. `None`: a new id.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// A number with a meaning for sender and receiver.
    pub content_type: u16,
    /// Whether it goes before messages of normal priority.
    pub high_priority: bool,
    /// Whether only the client connected longest among the matching ones gets it.
    pub only_first: bool,
    /// The answer to wait for.
    pub wait: Wait,
}

/// Which of a client's streams gets a message that comes from no queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbox {
    /// Messages of other clients.
    Direct,
    /// Custom messages of the broker's program.
    Custom,
}

/// The answer that the sender of a direct message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Nothing,
    /// An acknowledgement from the receiver.
    Acknowledge,
    /// A response from the receiver.
    Response,
}

/// The sender of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckedBy {
    /// The broker, which accepted the message.
    Server,
    /// A consumer, or the receiver of a direct message.
    Consumer,
}

/// A successful answer.
#[derive(Debug, Clone)]
pub enum RequestAnswer {
    /// A positive acknowledgement.
    Confirmed(AckedBy),
    /// A response with status 0 or an application's status.
    Response(Received),
    /// The result of a pull.
    Pulled(PullAnswer),
}

/// The messages of a pull, and how it ended.
#[derive(Debug, Clone)]
pub struct PullAnswer {
    /// The messages, in order.
    pub messages: Vec<Received>,
    /// How it ended.
    pub end: PullEnd,
}

/// How a pull ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEnd {
    /// With a `No-Content` of this value.
    NoContent(Box<str>),
    /// With the message of a cache queue.
    Cached,
    /// The connection was lost, or the caller's timeout expired.
    CutShort,
}

/// The meaning of a received frame.
#[derive(Debug)]
pub enum FrameEvent<W> {
    /// Nothing to do. A counter records it where it matters.
    Nothing,
    /// A request ended.
    Settled(W, Result<RequestAnswer, ClientError>),
    /// One answer ended several requests.
    SettledMany(Vec<(W, Result<RequestAnswer, ClientError>)>),
    /// The broker answered a request to consume a queue. `timeout`: the time to acknowledge its messages, if the client
    /// can extend it.
    Joined {
        /// The queue.
        queue: QueueAddress,
        /// The timeout.
        timeout: Option<Duration>,
        /// Whether the broker delivers only the queues that this client names, and numbers repeated attempts.
        by_queue: bool,
        /// The caller that waits for the answer.
        settled: Option<(W, Result<RequestAnswer, ClientError>)>,
    },
    /// The broker delivers no more messages of this queue: the client has left it.
    Left(QueueAddress),
    /// A message of a queue.
    Delivery(Received),
    /// A message of a streamed pull, with the id of the pull's request.
    Pulled(MessageId, Received),
    /// A direct or custom message.
    Direct(Inbox, Received),
    /// An event of a subscription.
    Event(Received),
    /// The broker refused an intent of this target after a reconnect. [`Conversation::restore`] requests it again.
    NotRestored(Target, ClientError),
    /// A frame of an extension, which its target names.
    Extension(Received),
    /// The broker terminates the connection.
    Terminated,
    /// The broker ends the conversation, with this reason.
    Refused(Arc<str>),
}

/// Whether an intent is in force.
#[derive(Debug)]
pub enum IntentState<W> {
    /// It is; the waiter is returned.
    Already(W),
    /// The client requested it under this id.
    Asked(MessageId),
}

/// Counters of events that are not the result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConversationCounts {
    /// Answers that arrived after their caller stopped waiting.
    pub late_answers: u64,
    /// Messages published without confirmation and refused by the broker.
    pub refused_unconfirmed: u64,
    /// Messages that arrived after their pull ended. Messages with acknowledgement are requeued; the next pull of their
    /// queue returns the others.
    pub late_pulled: u64,
}
