//! What a delivery handler answers at each step of a message's way, and how answers combine.

/// Whether and where a message returns to its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PutBack {
    /// It does not.
    #[default]
    No,
    /// In front: consumed next.
    Start,
    /// Behind all others.
    End,
}

/// Whether the producer is told, right after the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Acknowledge {
    /// Nothing is sent.
    #[default]
    None,
    /// A positive acknowledgement.
    Always,
    /// A positive acknowledgement if the message is saved by now; else nothing.
    IfSaved,
    /// A negative acknowledgement.
    Negative,
}

/// One answer of a handler (Twino's Decision).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Go on to the next step; `false` ends the message's way here.
    pub allow: bool,
    /// Save the message if it is not saved yet.
    pub save: bool,
    /// Return it to its queue.
    pub put_back: PutBack,
    /// Tell its producer.
    pub acknowledge: Acknowledge,
}

impl Decision {
    /// Go on, nothing else.
    pub const ALLOW: Self =
        Self { allow: true, save: false, put_back: PutBack::No, acknowledge: Acknowledge::None };
    /// Stop here, nothing else.
    pub const REFUSE: Self = Self { allow: false, ..Self::ALLOW };

    /// Joins the decisions of several consumers about one message, as the document means it: what one of
    /// them wants saved is saved, what one of them puts back is put back (start wins over end, it is the
    /// sooner), a negative acknowledgement is never lost, and the way goes on if any of them allows it.
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

/// A step of a message's way at which a handler may be asked. Names are Twino's, in snake case in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// It arrived and is not stored yet.
    ReceivedFromProducer,
    /// It is about to be offered to the first consumer.
    BeginSend,
    /// It is about to be given to one consumer.
    CanConsumerReceive,
    /// It was given to one consumer.
    ConsumerReceived,
    /// It could not be given to one consumer, or that consumer's connection ended before it settled.
    ConsumerReceiveFailed,
    /// All consumers were tried.
    EndSend,
    /// A consumer acknowledged it, positively or negatively.
    AcknowledgeReceived,
    /// A consumer did not acknowledge it in time.
    AcknowledgeTimedOut,
    /// It waited in its queue for longer than it may.
    MessageTimedOut,
    /// It left its queue for good. Told, not asked.
    MessageDequeued,
    /// Another step raised an exception. Called by whoever runs the handler; listed to be overridable.
    ExceptionThrown,
    /// A decision says save: the answer's `allow` tells whether the handler saved it.
    SaveMessage,
    /// A message came through a router: the answer's targets tell where it goes, or, without any, `allow` whether the
    /// handler took it itself. Asked of handlers that routers name, never for a queue.
    Route,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub const ALL: [Self; 13] = [
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
    ];

    /// The method of `mqcore.DeliveryHandler` (of `mqcore.Router` for the last) for this step.
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
        }
    }
}

/// A set of steps: which of them a handler overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Steps(u16);

impl Steps {
    /// No step.
    pub const NONE: Self = Self(0);

    /// This set and `step`.
    #[must_use]
    pub const fn with(self, step: Step) -> Self {
        Self(self.0 | 1 << step as u8)
    }

    /// Whether `step` is in the set.
    pub const fn contains(self, step: Step) -> bool {
        self.0 & (1 << step as u8) != 0
    }

    /// Whether no step is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
