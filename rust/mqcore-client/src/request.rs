//! Requests of TMQP: kind, number, target, headers and body, without ids and flags.

use std::fmt;
use std::sync::Arc;

use mqcore_wire::tmqp::Kind;
use mqcore_wire::tmqp::header::{HeaderError, VALUE_YES, clear, key, pull_order, push_header};
use mqcore_wire::tmqp::operation::{EVENT_SUBSCRIBE, EVENT_UNSUBSCRIBE, Operation};

use crate::address::QueueAddress;
use crate::error::ClientError;

/// Items of a page of a list: the maximum of the protocol.
const PAGE_SIZE: &str = "1000";

/// The target of an operation, for error texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue.
    Queue(QueueAddress),
    /// A channel, a client, a filter, or nothing.
    Name(Arc<str>),
}

impl Target {
    /// The target in protocols with plain names; usually without an allocation.
    pub(crate) fn plain(queue: &QueueAddress) -> Self {
        if queue.id() == 0 { Self::Name(queue.channel().clone()) } else { Self::Queue(queue.clone()) }
    }

    /// The text.
    #[must_use]
    pub fn to_text(&self) -> Arc<str> {
        match self {
            Self::Queue(queue) => queue.to_string().into(),
            Self::Name(name) => name.clone(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => queue.fmt(formatter),
            Self::Name(name) => formatter.write_str(name),
        }
    }
}

/// A request with one answer, other than a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The operation for error texts: `"create queue"`, ...
    pub operation: &'static str,
    /// The target for error texts.
    pub about: Target,
    /// Message type.
    pub kind: Kind,
    /// Operation, queue id or event number.
    pub content_type: u16,
    /// Target of the frame.
    pub target: Arc<str>,
    /// Header text.
    pub headers: Vec<u8>,
    /// Body.
    pub body: Vec<u8>,
}

impl Request {
    fn operation(operation: Operation, name: &'static str, target: Arc<str>) -> Self {
        Self {
            operation: name,
            about: Target::Name(target.clone()),
            kind: Kind::SERVER,
            content_type: operation.code(),
            target,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    fn queue_operation(operation: Operation, name: &'static str, queue: &QueueAddress) -> Self {
        Self {
            about: Target::Queue(queue.clone()),
            ..Self::operation(operation, name, queue.channel().clone())
        }
    }

    /// Adds the channel's name and the queue's id as headers, as creating, updating and clearing require.
    fn with_queue_headers(mut self, queue: &QueueAddress) -> Self {
        self.header(key::CHANNEL_NAME, queue.channel());
        self.header(key::QUEUE_ID, &queue.id().to_string());
        self
    }

    /// Sets the queue's id as a body of two bytes, as removing and describing require.
    fn with_queue_body(mut self, queue: &QueueAddress) -> Self {
        self.body = queue.id().to_le_bytes().to_vec();
        self
    }

    /// Adds a header that is always valid: keys are constants, values are checked names and numbers.
    fn header(&mut self, key: &str, value: &str) {
        let pushed = push_header(&mut self.headers, key, value.as_bytes());
        debug_assert_eq!(pushed, Ok(()), "{key}:{value}");
    }

    /// Create a channel, with options as JSON or with the broker's.
    #[must_use]
    pub fn create_channel(channel: &Arc<str>, options: Vec<u8>) -> Self {
        let mut request = Self::operation(Operation::CreateChannel, "create channel", channel.clone());
        request.header(key::CHANNEL_NAME, channel);
        Self { body: options, ..request }
    }

    /// Change options of a channel, from JSON.
    #[must_use]
    pub fn update_channel(channel: &Arc<str>, options: Vec<u8>) -> Self {
        let mut request = Self::operation(Operation::UpdateChannel, "update channel", channel.clone());
        request.header(key::CHANNEL_NAME, channel);
        Self { body: options, ..request }
    }

    /// Remove a channel with its queues.
    #[must_use]
    pub fn remove_channel(channel: &Arc<str>) -> Self {
        Self::operation(Operation::RemoveChannel, "remove channel", channel.clone())
    }

    /// Describe a channel.
    #[must_use]
    pub fn channel_information(channel: &Arc<str>) -> Self {
        Self::operation(Operation::ChannelInformation, "describe channel", channel.clone())
    }

    /// List the channels that a filter matches.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a filter that is not a valid header value.
    pub fn channel_list(filter: Option<&str>) -> Result<Self, ClientError> {
        let mut request = Self::operation(Operation::ChannelList, "list channels", "".into());
        if let Some(filter) = filter {
            push(&mut request.headers, key::CHANNEL_NAME, filter)?;
        }
        Ok(request)
    }

    /// List the clients that have joined a channel.
    #[must_use]
    pub fn channel_consumers(channel: &Arc<str>) -> Self {
        Self::operation(Operation::ChannelConsumers, "list consumers of", channel.clone())
    }

    /// Create a queue, with options as JSON or with its channel's, and a tag.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a tag that is not a valid header value.
    pub fn create_queue(
        queue: &QueueAddress,
        options: Vec<u8>,
        tag: Option<&str>,
    ) -> Result<Self, ClientError> {
        let mut request = Self::queue_operation(Operation::CreateQueue, "create queue", queue);
        request = Self { body: options, ..request }.with_queue_headers(queue);
        if let Some(tag) = tag {
            push(&mut request.headers, key::QUEUE_TAG, tag)?;
        }
        Ok(request)
    }

    /// Change options of a queue.
    #[must_use]
    pub fn update_queue(queue: &QueueAddress, options: Vec<u8>) -> Self {
        let request = Self::queue_operation(Operation::UpdateQueue, "update queue", queue);
        Self { body: options, ..request }.with_queue_headers(queue)
    }

    /// Remove a queue with its messages.
    #[must_use]
    pub fn remove_queue(queue: &QueueAddress) -> Self {
        Self::queue_operation(Operation::RemoveQueue, "remove queue", queue).with_queue_body(queue)
    }

    /// Describe a queue.
    #[must_use]
    pub fn queue_information(queue: &QueueAddress) -> Self {
        Self::queue_operation(Operation::QueueInformation, "describe queue", queue).with_queue_body(queue)
    }

    /// Describe the queues of a channel.
    #[must_use]
    pub fn queue_list(channel: &Arc<str>) -> Self {
        Self::operation(Operation::QueueList, "list queues of", channel.clone())
    }

    /// Remove stored messages: those of high priority, the others, or both.
    #[must_use]
    pub fn clear_queue(queue: &QueueAddress, high_priority: bool, normal: bool) -> Self {
        let mut request =
            Self::queue_operation(Operation::ClearMessages, "clear queue", queue).with_queue_headers(queue);
        for (wanted, key) in [(high_priority, key::PRIORITY_MESSAGES), (normal, key::MESSAGES)] {
            if wanted {
                request.header(key, VALUE_YES);
            }
        }
        request
    }

    /// Describe the clients whose type matches a filter.
    #[must_use]
    pub fn client_list(filter: Option<&str>) -> Self {
        Self::operation(Operation::ClientList, "list clients", filter.unwrap_or("").into())
    }

    /// An operation on a router, with headers and a body.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an invalid header value.
    pub fn router(
        (operation, name): (Operation, &'static str),
        router: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Self, ClientError> {
        let mut request = Self { body, ..Self::operation(operation, name, router.into()) };
        for (key, value) in headers {
            push(&mut request.headers, key, value)?;
        }
        Ok(request)
    }

    /// The same list operation for one page: the first one, or the one after a cursor.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a cursor that is not a valid header value.
    pub fn page(&self, after: Option<&str>) -> Result<Self, ClientError> {
        let mut request = self.clone();
        request.header(key::PAGE_SIZE, PAGE_SIZE);
        if let Some(after) = after {
            push(&mut request.headers, key::PAGE_AFTER, after)?;
        }
        Ok(request)
    }

    /// Describe the nodes.
    #[must_use]
    pub fn node_list() -> Self {
        Self::operation(Operation::NodeList, "list nodes", "".into())
    }

    /// Ask for messages of a pull queue, or for the message of a cache queue.
    #[must_use]
    pub fn pull(queue: &QueueAddress, pull: &PullRequest) -> Self {
        let mut request = Self {
            kind: Kind::PULL,
            content_type: queue.id(),
            ..Self::queue_operation(Operation::QueueInformation, "pull from", queue)
        };
        request.header(key::COUNT, &pull.count.to_string());
        let clear = match (pull.clear.high_priority, pull.clear.normal) {
            (true, true) => Some(clear::ALL),
            (true, false) => Some(clear::HIGH_PRIORITY),
            (false, true) => Some(clear::DEFAULT_PRIORITY),
            (false, false) => None,
        };
        if let Some(clear) = clear {
            request.header(key::CLEAR, clear);
        }
        if pull.info {
            request.header(key::INFO, VALUE_YES);
        }
        if pull.lifo {
            request.header(key::ORDER, pull_order::LIFO);
        }
        if pull.attempts {
            request.header(key::ATTEMPT, VALUE_YES);
        }
        request
    }

    /// Request an intent.
    #[must_use]
    pub fn take_up(intent: &Intent) -> Self {
        match intent {
            Intent::Join(channel) => {
                let mut request = Self::operation(Operation::JoinChannel, "join channel", channel.clone());
                request.header(key::QUEUE_IDS, "");
                request
            }
            Intent::Consume(queue, prefetch) => {
                let mut request = Self::queue_operation(Operation::JoinChannel, "consume", queue);
                request.header(key::QUEUE_IDS, &queue.id().to_string());
                request.header(key::PREFETCH, &prefetch.to_string());
                request
            }
            Intent::Topic(topic) => Self::operation(Operation::JoinChannel, "subscribe to", topic.clone()),
            Intent::Event(subscription) => subscription.request("subscribe to", EVENT_SUBSCRIBE),
        }
    }

    /// Leave a channel.
    #[must_use]
    pub fn leave(channel: &Arc<str>) -> Self {
        Self::operation(Operation::LeaveChannel, "leave channel", channel.clone())
    }

    /// Cancel an intent.
    #[must_use]
    pub fn give_up(intent: &Intent) -> Self {
        match intent {
            Intent::Join(channel) | Intent::Topic(channel) => Self::leave(channel),
            Intent::Consume(queue, _) => {
                let mut request = Self::queue_operation(Operation::LeaveChannel, "leave", queue);
                request.header(key::QUEUE_IDS, &queue.id().to_string());
                request
            }
            Intent::Event(subscription) => subscription.request("unsubscribe from", EVENT_UNSUBSCRIBE),
        }
    }
}

/// The options of a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullRequest {
    /// Maximum messages, at least 1.
    pub count: u32,
    /// Newest messages first.
    pub lifo: bool,
    /// Messages to remove from the queue afterwards.
    pub clear: Clear,
    /// Whether each message has the number of remaining messages.
    pub info: bool,
    /// Whether each message has the number of its attempt. An extension of mqcore, which other servers ignore.
    pub attempts: bool,
}

/// The stored messages to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clear {
    /// Messages of high priority.
    pub high_priority: bool,
    /// Messages of normal priority.
    pub normal: bool,
}

/// A subscription that a client restores on every connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Membership in this channel, in order to pull from its queues. Servers that ignore the names of queues deliver the
    /// messages of all its queues.
    Join(Arc<str>),
    /// Consuming this queue, with a maximum of unsettled messages. All users share it, with the sum of their maxima.
    Consume(QueueAddress, u32),
    /// Subscription to a topic, or to a pattern of topics, as the target of a frame.
    Topic(Arc<str>),
    /// Subscription to these events.
    Event(Subscription),
}

impl Intent {
    /// The same intent with the channel's name in lower case, by which intents are compared. Topics stay as they are.
    #[must_use]
    pub fn folded(&self) -> Self {
        match self {
            Self::Join(channel) => Self::Join(channel.to_ascii_lowercase().into()),
            Self::Consume(queue, _) => Self::Consume(queue.folded(), 0),
            Self::Topic(topic) => Self::Topic(topic.clone()),
            Self::Event(subscription) => Self::Event(Subscription {
                channel: subscription.channel.as_ref().map(|channel| channel.to_ascii_lowercase().into()),
                ..subscription.clone()
            }),
        }
    }
}

impl Intent {
    /// The channel that it joins.
    pub(crate) fn joined(&self) -> Option<&Arc<str>> {
        match self {
            Self::Join(channel) => Some(channel),
            Self::Consume(queue, _) => Some(queue.channel()),
            Self::Topic(_) | Self::Event(_) => None,
        }
    }

    /// The maximum of unsettled messages that a user adds.
    pub(crate) fn prefetch(&self) -> u32 {
        match self {
            Self::Consume(_, prefetch) => *prefetch,
            Self::Join(_) | Self::Topic(_) | Self::Event(_) => 0,
        }
    }
}

/// An event and its scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// The event's name on the wire.
    pub name: &'static str,
    /// The channel, for events that need one.
    pub channel: Option<Arc<str>>,
    /// The queue, for events that need one.
    pub queue: Option<u16>,
}

impl Subscription {
    fn request(&self, operation: &'static str, content_type: u16) -> Request {
        let mut request = Request {
            operation,
            about: Target::Name(self.name.into()),
            kind: Kind::EVENT,
            content_type,
            target: self.name.into(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        if let Some(channel) = &self.channel {
            request.header(key::CHANNEL_NAME, channel);
        }
        if let Some(queue) = self.queue {
            request.header(key::QUEUE_ID, &queue.to_string());
        }
        request
    }
}

/// Appends a header given by the caller.
///
/// # Errors
///
/// [`ClientError::InvalidArgument`] for an invalid header; [`ClientError::TooLarge`] if the block is full.
pub fn push(headers: &mut Vec<u8>, key: &str, value: &str) -> Result<(), ClientError> {
    push_header(headers, key, value.as_bytes()).map_err(|error| match error {
        HeaderError::BlockTooLarge { size } => ClientError::TooLarge {
            part: "header",
            size: size as u64,
            limit: mqcore_wire::tmqp::HEADER_BYTES_MAX as u64,
        },
        other => ClientError::invalid("header", format!("{key:?}: {other}")),
    })
}
