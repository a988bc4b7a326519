//! Decisions of delivery handlers at each step of a message, and how decisions combine.

/// Whether and where a message is requeued (`put_back` on the wire and in handlers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PutBack {
    /// Not requeued.
    #[default]
    No,
    /// At the start: delivered next.
    Start,
    /// At the end, behind all others.
    End,
}

/// Which acknowledgement the producer gets after the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Acknowledge {
    /// None.
    #[default]
    None,
    /// A positive one.
    Always,
    /// A positive one if the message is saved by now; otherwise none.
    IfSaved,
    /// A negative one.
    Negative,
}

/// The answer of a handler (Twino's Decision).
///
/// ```
/// use mqcore_broker::model::decision::{Decision, PutBack};
///
/// let requeue = Decision { put_back: PutBack::End, ..Decision::REFUSE };
/// let save = Decision { save: true, ..Decision::ALLOW };
/// let combined = requeue.combine(save);
/// assert!(combined.allow && combined.save);
/// assert_eq!(combined.put_back, PutBack::End);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether to continue with the next step; `false` stops the message here.
    pub allow: bool,
    /// Whether to save the message if it is not saved yet.
    pub save: bool,
    /// Whether and where to requeue the message.
    pub put_back: PutBack,
    /// Which acknowledgement to send to the producer.
    pub acknowledge: Acknowledge,
}

impl Decision {
    /// Continue, nothing else.
    pub const ALLOW: Self =
        Self { allow: true, save: false, put_back: PutBack::No, acknowledge: Acknowledge::None };
    /// Stop here, nothing else.
    pub const REFUSE: Self = Self { allow: false, ..Self::ALLOW };

    /// Combines the decisions of several consumers about one message, as the document defines it. The
    /// result saves, requeues (start wins over end) and allows if any of them does, and keeps a
    /// negative acknowledgement.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        use {Acknowledge as A, PutBack as P};
        Self {
            allow: self.allow || other.allow,
            save: self.save || other.save,
            put_back: match (self.put_back, other.put_back) {
                (P::Start, _) | (_, P::Start) => P::Start,
                (P::End, _) | (_, P::End) => P::End,
                _ => P::No,
            },
            acknowledge: match (self.acknowledge, other.acknowledge) {
                (A::Negative, _) | (_, A::Negative) => A::Negative,
                (A::Always, _) | (_, A::Always) => A::Always,
                (A::IfSaved, _) | (_, A::IfSaved) => A::IfSaved,
                _ => A::None,
            },
        }
    }
}

impl Default for Decision {
    fn default() -> Self {
        Self::ALLOW
    }
}

/// A step at which a handler may be asked about a message. The names are Twino's, in snake case in
/// Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// A message arrived and is not stored yet.
    ReceivedFromProducer,
    /// The message is about to be offered to the first consumer.
    BeginSend,
    /// The message is about to be delivered to one consumer.
    CanConsumerReceive,
    /// The message was delivered to one consumer.
    ConsumerReceived,
    /// Delivery to one consumer failed, or the consumer's connection ended before it settled the
    /// message.
    ConsumerReceiveFailed,
    /// All consumers were tried.
    EndSend,
    /// A consumer acknowledged the message, positively or negatively.
    AcknowledgeReceived,
    /// A consumer did not acknowledge the message in time.
    AcknowledgeTimedOut,
    /// The message exceeded its timeout in the queue.
    MessageTimedOut,
    /// The message left its queue for good. A notification, not a question.
    MessageDequeued,
    /// Another step raised an exception. Called by whatever runs the handler; listed so that it can be
    /// overridden.
    ExceptionThrown,
    /// A decision asks to save the message: the answer's `allow` tells whether the handler saved it.
    SaveMessage,
    /// A message arrived through a router: the answer's targets are its next queues, clients or topics.
    /// Without targets, `allow` tells whether the handler took the message itself. Asked of handlers
    /// that routers name, never for a queue.
    Route,
    /// A client wants to join a channel, or to consume a queue of it: `allow` tells whether it may. Asked of
    /// authenticators that channels name.
    Authenticate,
    // All further steps notify event handlers. They need no answer.
    /// A client connected.
    ClientConnected,
    /// A client disconnected.
    ClientDisconnected,
    /// A channel was created.
    ChannelCreated,
    /// A channel was removed.
    ChannelRemoved,
    /// A client joined a channel.
    ClientJoined,
    /// A client left a channel.
    ClientLeft,
    /// A queue was created.
    QueueCreated,
    /// Options of a queue changed.
    QueueUpdated,
    /// The status of a queue changed.
    QueueStatusChanged,
    /// A queue was removed.
    QueueRemoved,
    /// A queue took a message of a producer.
    MessageProduced,
    /// A broker connected to this one, or this one to another.
    NodeConnected,
    /// A link between brokers ended.
    NodeDisconnected,
    /// A client sent a custom message.
    CustomMessage,
}

impl Step {
    /// All steps in numeric order.
    pub const ALL: [Self; 28] = [
        Self::ReceivedFromProducer,
        Self::BeginSend,
        Self::CanConsumerReceive,
        Self::ConsumerReceived,
        Self::ConsumerReceiveFailed,
        Self::EndSend,
        Self::AcknowledgeReceived,
        Self::AcknowledgeTimedOut,
        Self::MessageTimedOut,
        Self::MessageDequeued,
        Self::ExceptionThrown,
        Self::SaveMessage,
        Self::Route,
        Self::Authenticate,
        Self::ClientConnected,
        Self::ClientDisconnected,
        Self::ChannelCreated,
        Self::ChannelRemoved,
        Self::ClientJoined,
        Self::ClientLeft,
        Self::QueueCreated,
        Self::QueueUpdated,
        Self::QueueStatusChanged,
        Self::QueueRemoved,
        Self::MessageProduced,
        Self::NodeConnected,
        Self::NodeDisconnected,
        Self::CustomMessage,
    ];

    /// Whether the step notifies a handler, which decides nothing.
    pub fn is_notification(self) -> bool {
        self == Self::MessageDequeued || self as u8 >= Self::ClientConnected as u8
    }

    /// The method for this step of `mqcore.DeliveryHandler`, `mqcore.Router`, `mqcore.Authenticator` or
    /// `mqcore.EventHandler`.
    pub fn method(self) -> &'static str {
        match self {
            Self::ReceivedFromProducer => "received_from_producer",
            Self::BeginSend => "begin_send",
            Self::CanConsumerReceive => "can_consumer_receive",
            Self::ConsumerReceived => "consumer_received",
            Self::ConsumerReceiveFailed => "consumer_receive_failed",
            Self::EndSend => "end_send",
            Self::AcknowledgeReceived => "acknowledge_received",
            Self::AcknowledgeTimedOut => "acknowledge_timed_out",
            Self::MessageTimedOut => "message_timed_out",
            Self::MessageDequeued => "message_dequeued",
            Self::ExceptionThrown => "exception_thrown",
            Self::SaveMessage => "save_message",
            Self::Route => "route",
            Self::Authenticate => "authenticate",
            Self::ClientConnected => "client_connected",
            Self::ClientDisconnected => "client_disconnected",
            Self::ChannelCreated => "channel_created",
            Self::ChannelRemoved => "channel_removed",
            Self::ClientJoined => "client_joined",
            Self::ClientLeft => "client_left",
            Self::QueueCreated => "queue_created",
            Self::QueueUpdated => "queue_updated",
            Self::QueueStatusChanged => "queue_status_changed",
            Self::QueueRemoved => "queue_removed",
            Self::MessageProduced => "message_produced",
            Self::NodeConnected => "node_connected",
            Self::NodeDisconnected => "node_disconnected",
            Self::CustomMessage => "custom_message",
        }
    }
}

/// A set of steps: which of them a handler overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Steps(u32);

impl Steps {
    /// No step.
    pub const NONE: Self = Self(0);

    /// This set plus `step`.
    #[must_use]
    pub const fn with(self, step: Step) -> Self {
        Self(self.0 | 1 << step as u8)
    }

    /// Whether `step` is in the set.
    pub const fn contains(self, step: Step) -> bool {
        self.0 & (1 << step as u8) != 0
    }

    /// Whether some step notifies an event handler.
    pub const fn observe(self) -> bool {
        self.0 >> Step::ClientConnected as u8 != 0
    }

    /// Whether no step is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
