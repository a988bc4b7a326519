//! Names and numbers of things. Newtypes keep one from being passed for another.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::model::placement::Placement;

/// One socket or in-memory transport. The server assigns it and never reuses it within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A number that a session gives to a request that it wants answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u32);

/// One of a connection's subscriptions to a queue. Sessions choose the number. A connection that joined
/// the channel has [`Tag::CHANNEL`] in all its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u32);

impl Tag {
    /// No subscription: the connection joined the channel.
    pub const CHANNEL: Self = Self(0);
}

/// A question to a delivery handler. Unique within one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuestionId(pub u64);

/// The number of a durable record: ascending within a shard and never reused. The broker's only notion
/// of durability is "committed up to this sequence".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sequence(pub u64);

/// The number of a message in the history: unique within a shard and never reused. 0 without a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MessageNumber(pub u64);

/// A registered delivery handler, by its index in the broker's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u16);

/// A channel's name as its creator wrote it. Cheap to clone. `==` respects case; the table of channels
/// ignores it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelName(Arc<str>);

/// Why a text is not a valid name of a channel or router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is longer than 255 bytes.
    #[error("the name has {0} bytes; the limit is 255")]
    TooLong(usize),
    /// It contains a character with a meaning in some protocol.
    #[error("the name contains {0:?}; names must not contain '@', ' ', ';', '*' or control characters")]
    Forbidden(char),
}

impl ChannelName {
    /// Validates a name: 1 to 255 bytes of UTF-8, without `@`, space, `;`, `*` and control characters.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > 255 {
            return Err(NameError::TooLong(name.len()));
        }
        match name.chars().find(|c| matches!(c, '@' | ' ' | ';' | '*') || c.is_control()) {
            Some(forbidden) => Err(NameError::Forbidden(forbidden)),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the same allocation, not only an equal name. Cheap; never true for different
    /// names.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The shard that owns this channel. Ignores case, as the lookup of channels does.
    pub fn shard(&self, placement: Placement) -> usize {
        placement.of_caseless(&self.0)
    }
}

/// For indexes in the order of the text.
impl Borrow<str> for ChannelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A router's name. The rules are those of a channel's name, but case matters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouterName(ChannelName);

impl RouterName {
    /// Validates a name as [`ChannelName::new`] does.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(name: &str) -> Result<Self, NameError> {
        ChannelName::new(name).map(Self)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether this is the same allocation, not only an equal name. Cheap; never true for different
    /// names.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    /// The channel name with the same text.
    pub(crate) fn as_channel(&self) -> &ChannelName {
        &self.0
    }

    /// The shard that owns this router.
    pub fn shard(&self, placement: Placement) -> usize {
        self.0.shard(placement)
    }
}

impl Borrow<str> for RouterName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for RouterName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A topic's name: up to 255 bytes of any kind, since every protocol writes topics in its own way.
/// Compared byte by byte. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<[u8]>);

impl TopicName {
    /// Validates a name, which may be empty.
    ///
    /// # Errors
    /// [`NameError::TooLong`] for more than 255 bytes.
    pub fn new(name: &[u8]) -> Result<Self, NameError> {
        if name.len() > 255 {
            return Err(NameError::TooLong(name.len()));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the same allocation, not only an equal name. Cheap; never true for different
    /// names.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The shard that owns this topic.
    pub fn shard(&self, placement: Placement) -> usize {
        placement.of(&self.0)
    }
}

impl Borrow<[u8]> for TopicName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TopicName {
    /// As text, with replacement characters for invalid UTF-8.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// A queue's address: channel and 16-bit id, written `orders/1001`.
///
/// ```
/// use mqcore_broker::model::id::QueueAddress;
///
/// let queue = QueueAddress::parse("orders/1001")?;
/// assert_eq!((queue.channel.as_str(), queue.id), ("orders", 1001));
/// assert_eq!(QueueAddress::parse("logs/eu")?.id, 0);
/// # Ok::<(), mqcore_broker::model::id::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueAddress {
    /// The channel that the queue belongs to.
    pub channel: ChannelName,
    /// The queue's id within its channel.
    pub id: u16,
}

/// The id of a channel's dead-letter queue, which the broker creates when it is needed.
pub const DEAD_LETTERS: u16 = u16::MAX;

impl QueueAddress {
    /// The address by which queues are compared, because the lookup of channels ignores case.
    pub(crate) fn in_lower_case(&self) -> Self {
        let name = self.channel.as_str();
        if !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.clone();
        }
        match ChannelName::new(&name.to_ascii_lowercase()) {
            Ok(channel) => Self { channel, id: self.id },
            Err(_) => self.clone(),
        }
    }

    /// The dead-letter queue of this queue's channel.
    #[must_use]
    pub fn dead_letters(&self) -> Self {
        Self { channel: self.channel.clone(), id: DEAD_LETTERS }
    }

    /// Whether both name the same queue. Channels are found without regard to case.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.id == other.id && self.channel.as_str().eq_ignore_ascii_case(other.channel.as_str())
    }

    /// Parses `channel/id`, or a plain name for queue 0 of that channel. The last `/` separates only if
    /// digits that fit 16 bits follow; so `logs/eu` is queue 0 of the channel `logs/eu`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if let Some((channel, id)) = text.rsplit_once('/')
            && let Ok(id) = id.parse::<u16>()
        {
            return Ok(Self { channel: ChannelName::new(channel)?, id });
        }
        Ok(Self { channel: ChannelName::new(text)?, id: 0 })
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.channel, self.id)
    }
}

/// A reference to a queue. The serial tells whether the queue is still the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueRef {
    pub(crate) channel: usize,
    pub(crate) queue: u16,
    pub(crate) serial: u64,
}

impl QueueRef {
    /// For things that belong to no queue.
    pub(crate) const NONE: Self = Self { channel: usize::MAX, queue: 0, serial: 0 };
}
