//! Names and numbers that identify things. Newtypes, so that one cannot be passed for another.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// One socket, or one in-memory transport. Given by the server, never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A session's own number for something it asked and wants answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u32);

/// Which of a connection's subscriptions to a queue. Sessions choose them; a connection that consumes because it joined the
/// channel has [`Tag::CHANNEL`] in all of its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u32);

impl Tag {
    /// No subscription: the connection joined the channel.
    pub const CHANNEL: Self = Self(0);
}

/// A question to a delivery handler. Unique within one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuestionId(pub u64);

/// A number that the broker gives each durable record: ascending within a shard, never used again. "Committed up to a sequence"
/// is all that the broker knows of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sequence(pub u64);

/// A number that the history gives each message: unique within a shard, never used again. 0: none, as there is no history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MessageNumber(pub u64);

/// A registered delivery handler: its place in the broker's table of handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u16);

/// A channel's name as its creator wrote it. Cheap to clone; compared with respect to case here,
/// without respect to case by the table of channels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelName(Arc<str>);

/// Why a name cannot be a channel's (or a router's) name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing was given.
    #[error("the name is empty")]
    Empty,
    /// More than 255 octets.
    #[error("the name has {0} octets, at most 255 are allowed")]
    TooLong(usize),
    /// A character that means something elsewhere in a protocol.
    #[error("the name contains {0:?}; names must not contain '@', ' ', ';', '*' or control characters")]
    Forbidden(char),
}

impl ChannelName {
    /// Checks and takes a name: 1 to 255 octets of UTF-8, none of `@`, space, `;`, `*`, no control character.
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

    /// Whether this is the very same name, not only an equal one. Cheap, and never wrong when it says yes.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Which of `shards` owns this channel. Without respect to case, as channels are looked up.
    pub fn shard(&self, shards: usize) -> usize {
        debug_assert!(shards > 0);
        let hash = fnv(self.0.bytes().map(|octet| octet.to_ascii_lowercase()));
        ((hash >> 32) as usize) % shards
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A router's name, under the same rules as a channel's, but compared with respect to case. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouterName(ChannelName);

impl RouterName {
    /// Checks and takes a name; see [`ChannelName::new`].
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

    /// Whether this is the very same name, not only an equal one. Cheap, and never wrong when it says yes.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    /// The channel's name that is written the same.
    pub(crate) fn as_channel(&self) -> &ChannelName {
        &self.0
    }

    /// Which of `shards` this router lives on.
    pub fn shard(&self, shards: usize) -> usize {
        self.0.shard(shards)
    }
}

impl fmt::Display for RouterName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A topic's name: up to 255 octets of any kind, since every protocol that has topics writes them its own way. Compared
/// octet by octet. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<[u8]>);

impl TopicName {
    /// Checks and takes a name. Empty is fine.
    ///
    /// # Errors
    /// [`NameError::TooLong`] for more than 255 octets.
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

    /// Whether this is the very same name, not only an equal one. Cheap, and never wrong when it says yes.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Which of `shards` this topic lives on.
    pub fn shard(&self, shards: usize) -> usize {
        debug_assert!(shards > 0);
        ((fnv(self.0.iter().copied()) >> 32) as usize) % shards
    }
}

impl Borrow<[u8]> for TopicName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TopicName {
    /// As text, whatever octets it has.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// FNV-1a: stable across runs and versions, so that a journal written per shard can be found again.
fn fnv(octets: impl Iterator<Item = u8>) -> u64 {
    octets.fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A queue's address: channel and 16-bit id, written `orders/1001`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueAddress {
    /// The channel that the queue belongs to.
    pub channel: ChannelName,
    /// The queue's id within its channel.
    pub id: u16,
}

impl QueueAddress {
    /// Reads `channel/id`, or a plain name for queue 0 of that channel. The last `/` separates, and only if
    /// digits follow it that fit 16 bits; so `logs/eu` is queue 0 of the channel `logs/eu`.
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

/// Which queue something is about. The serial makes sure that it is still the same queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueRef {
    pub(crate) channel: usize,
    pub(crate) queue: u16,
    pub(crate) serial: u64,
}

impl QueueRef {
    /// Where what is at no queue is.
    pub(crate) const NOWHERE: Self = Self { channel: usize::MAX, queue: 0, serial: 0 };
}
