//! What a conversation sends, what it receives, and how its requests end.

use std::sync::Arc;

use crate::address::QueueAddress;
use crate::error::ClientError;
use crate::message_id::MessageId;
use crate::received::Received;
use crate::request::Target;

/// A message for a queue.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    /// Where.
    pub queue: &'a QueueAddress,
    /// Its id; `None`: a new one.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// Before all others.
    pub high_priority: bool,
}

/// A message for clients.
#[derive(Debug, Clone, Copy)]
pub struct DirectMessage<'a> {
    /// A client id, `@name:NAME` or `@type:KIND`; or `@router:NAME`, which sends the message to a router.
    pub target: &'a str,
    /// Its id; `None`: a new one.
    pub id: Option<&'a str>,
    /// Header text.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// What sender and receiver agreed on.
    pub content_type: u16,
    /// Before all others.
    pub high_priority: bool,
    /// Only the oldest of the clients that match.
    pub only_first: bool,
    /// What is waited for.
    pub wait: Wait,
}

/// What the sender of a direct message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Nothing,
    /// An acknowledgement of the receiver.
    Acknowledge,
    /// A response of the receiver.
    Response,
}

/// Who acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The broker: it has taken the message.
    Server,
    /// A consumer, or the receiver of a direct message.
    Consumer,
}

/// An answer that is no error.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A positive acknowledgement.
    Confirmed(By),
    /// A response of success, or of a number that belongs to applications.
    Response(Received),
    /// What a pull brought.
    Pulled(PullAnswer),
}

/// What a pull brought, and why it ended.
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
    /// It was cut short: by a lost connection, or because the caller would not wait longer.
    CutShort,
}

/// What a frame meant.
#[derive(Debug)]
pub enum Arrival<W> {
    /// Nothing to anybody here; where it matters, a counter says so.
    Nothing,
    /// Somebody's wait is over.
    Settled(W, Result<Answer, ClientError>),
    /// One word ended the waits of several.
    SettledMany(Vec<(W, Result<Answer, ClientError>)>),
    /// A message of a queue.
    Delivery(Received),
    /// A direct message.
    Direct(Received),
    /// Something happened that was subscribed to.
    Event(Received),
    /// The broker would not let an intent of this target stand after a reconnect. It is asked again by
    /// [`Conversation::restore`].
    NotRestored(Target, ClientError),
    /// A frame of an extension, which its target names.
    Extension(Received),
    /// The broker says goodbye.
    Terminated,
    /// The broker ends the conversation; why.
    Refused(Arc<str>),
}

/// Whether an intent already stands.
#[derive(Debug)]
pub enum TakenUp<W> {
    /// It does; nobody has to wait.
    Already(W),
    /// It was asked for.
    Asked(MessageId),
}

/// What happened and is nobody's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Answers that nobody waited for any more.
    pub late_answers: u64,
    /// Messages published without confirmation that the broker refused.
    pub refused_unconfirmed: u64,
    /// Messages of pulls that nobody waits for any more. Those that ask for it are handed back.
    pub late_pulled: u64,
}
