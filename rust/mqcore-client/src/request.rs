//! What a client can ask, in the protocol's words: kind, number, target, headers, body. No ids and no flags yet.

use std::fmt;
use std::sync::Arc;

use mqcore_wire::tmqp::Kind;
use mqcore_wire::tmqp::header::{HeaderError, YES, clear, key, pull_order, push_header};
use mqcore_wire::tmqp::operation::{EVENT_SUBSCRIBE, EVENT_UNSUBSCRIBE, Operation};

use crate::address::QueueAddress;
use crate::error::ClientError;

/// What something was about, for messages to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue.
    Queue(QueueAddress),
    /// A channel, a client, a filter, or nothing.
    Name(Arc<str>),
}

impl Target {
    /// A place that, where protocols have names alone, is called by its name; without an allocation, as a rule.
    pub(crate) fn plain(queue: &QueueAddress) -> Self {
        if queue.id() == 0 { Self::Name(queue.channel().clone()) } else { Self::Queue(queue.clone()) }
    }

    /// As text.
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

/// Anything that is answered once, apart from publishing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// For people: `"create queue"`, ...
    pub operation: &'static str,
    /// For people: of whom.
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

    /// The channel's name and the queue's id as headers, which is how creating, changing and clearing want them.
    fn with_queue_headers(mut self, queue: &QueueAddress) -> Self {
        self.header(key::CHANNEL_NAME, queue.channel());
        self.header(key::QUEUE_ID, &queue.id().to_string());
        self
    }

    /// The queue's id as a body of two bytes, which is how removing and describing want it.
    fn with_queue_body(mut self, queue: &QueueAddress) -> Self {
        self.body = queue.id().to_le_bytes().to_vec();
        self
    }

    /// Adds a header that cannot be refused: the keys are ours, the values are checked names and numbers.
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
    /// [`ClientError::InvalidArgument`] for a filter that is no header value.
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
    /// [`ClientError::InvalidArgument`] for a tag that is no header value.
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
                request.header(key, YES);
            }
        }
        request
    }

    /// Describe the clients whose type matches a filter.
    #[must_use]
    pub fn client_list(filter: Option<&str>) -> Self {
        Self::operation(Operation::ClientList, "list clients", filter.unwrap_or("").into())
    }

    /// An operation on a router: headers of ours, and what it needs as its body.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a value that is no header.
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
            request.header(key::INFO, YES);
        }
        if pull.lifo {
            request.header(key::ORDER, pull_order::LIFO);
        }
        request
    }

    /// Make an intent so.
    #[must_use]
    pub fn take_up(intent: &Intent) -> Self {
        match intent {
            Intent::Join(channel) => Self::operation(Operation::JoinChannel, "join channel", channel.clone()),
            Intent::Event(subscription) => subscription.request("subscribe to", EVENT_SUBSCRIBE),
        }
    }

    /// Make an intent so no more.
    #[must_use]
    pub fn give_up(intent: &Intent) -> Self {
        match intent {
            Intent::Join(channel) => {
                Self::operation(Operation::LeaveChannel, "leave channel", channel.clone())
            }
            Intent::Event(subscription) => subscription.request("unsubscribe from", EVENT_UNSUBSCRIBE),
        }
    }
}

/// Which messages a pull asks for, and what goes with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullRequest {
    /// How many at most; at least 1.
    pub count: u32,
    /// Newest first.
    pub lifo: bool,
    /// What to remove from the queue afterwards.
    pub clear: Clear,
    /// Whether each message tells how many are left.
    pub info: bool,
}

/// Which stored messages are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clear {
    /// Those of high priority.
    pub high_priority: bool,
    /// The others.
    pub normal: bool,
}

/// What a client wants to stand on every connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Being a consumer of this channel's queues.
    Join(Arc<str>),
    /// Hearing of these events.
    Event(Subscription),
}

impl Intent {
    /// The same intent with the channel's name as channels are looked up: without respect to case.
    #[must_use]
    pub fn folded(&self) -> Self {
        match self {
            Self::Join(channel) => Self::Join(channel.to_ascii_lowercase().into()),
            Self::Event(subscription) => Self::Event(Subscription {
                channel: subscription.channel.as_ref().map(|channel| channel.to_ascii_lowercase().into()),
                ..subscription.clone()
            }),
        }
    }
}

/// Which events, of what.
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

/// Appends a header of the caller's.
///
/// # Errors
///
/// [`ClientError::InvalidArgument`] says why it cannot be one; [`ClientError::TooLarge`] if the block is full.
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
