//! Why the broker rejects something; each session translates it to its protocol.

use std::borrow::Cow;

/// A rejection: its kind, and a sentence that says what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// The kind of rejection.
    pub kind: RejectionKind,
    /// Text for people. It names what was asked for and never contains a secret.
    pub reason: Cow<'static, str>,
}

/// Kinds of rejections, with Twino's status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// It failed for an unknown reason.
    Failed = 1,
    /// The request is invalid.
    BadRequest = 400,
    /// The client is not allowed to do this.
    Unauthorized = 401,
    /// The channel, queue, client or the like does not exist.
    NotFound = 404,
    /// The request is valid, but impossible in the current state.
    Unacceptable = 406,
    /// Something with this name exists already.
    AlreadyExists = 481,
    /// A limit would be exceeded.
    LimitExceeded = 482,
    /// The broker cannot do this now, but may be able to later.
    Busy = 503,
    /// The queue is stopped and takes no messages. On the wire it has the code of `Unauthorized`, as in the original.
    QueueStopped,
}

impl RejectionKind {
    /// The status code on the wire.
    pub fn code(self) -> u16 {
        match self {
            Self::QueueStopped => Self::Unauthorized as u16,
            kind => kind as u16,
        }
    }
}

impl Rejection {
    /// A rejection with its reason.
    pub fn new(kind: RejectionKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

/// Why a queue did not accept a published message. Every reason has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RejectReason {
    /// The queue is stopped.
    Stopped,
    /// The queue has as many messages as its `message_limit` allows.
    MessageLimit,
    /// The body exceeds the queue's `message_size_limit`.
    MessageSize,
    /// The queue's `publish_limit` was reached.
    PublishLimit,
    /// Messages that are not saved, or not saved yet, take all the memory that they may.
    Memory,
    /// The message must be saved, and the broker cannot save it.
    Storage,
    /// The queue's delivery handler is not registered, or too many messages wait for its decision.
    Handler,
    /// The queue has a message with the same unique key.
    UniqueKey,
    /// The message has a delay, and the queue cannot delay messages.
    Delay,
}

impl RejectReason {
    /// All reasons in numeric order.
    pub const ALL: [Self; 9] = [
        Self::Stopped,
        Self::MessageLimit,
        Self::MessageSize,
        Self::PublishLimit,
        Self::Memory,
        Self::Storage,
        Self::Handler,
        Self::UniqueKey,
        Self::Delay,
    ];

    /// The name in metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::MessageLimit => "message-limit",
            Self::MessageSize => "message-size",
            Self::PublishLimit => "publish-limit",
            Self::Memory => "memory",
            Self::Storage => "storage",
            Self::Handler => "handler",
            Self::UniqueKey => "unique-key",
            Self::Delay => "delay",
        }
    }
}
