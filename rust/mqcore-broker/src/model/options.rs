//! Options of queues and channels, and partial changes to them.
//!
//! Options are inherited by copy at creation: the server's defaults become the channel's options, and
//! the channel's queue options become the queue's, each with the creator's [`QueueChanges`] or
//! [`ChannelChanges`] applied.

use std::time::Duration;

use crate::model::id::QueueAddress;
use crate::model::rate::Rate;

/// How a queue delivers messages. The numbers are those of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Status {
    /// To all current consumers; nothing is stored.
    Broadcast = 0,
    /// To all consumers; stored until there is one.
    #[default]
    Push = 1,
    /// To one consumer after the other; stored until there is one.
    RoundRobin = 2,
    /// To consumers that pull.
    Pull = 3,
    /// The latest message, to consumers that pull; it stays in the queue.
    Cache = 4,
    /// Stored, not delivered.
    Paused = 5,
    /// Rejected. Setting this status removes all messages of the queue.
    Stopped = 6,
}

impl Status {
    /// The status with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Broadcast, Self::Push, Self::RoundRobin, Self::Pull, Self::Cache, Self::Paused, Self::Stopped]
            .into_iter()
            .find(|status| *status as u64 == number)
    }

    /// Lower-case name as in queue information: `broadcast`, `push`, `roundrobin`, `pull`, `cache`,
    /// `paused`, `stopped`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Push => "push",
            Self::RoundRobin => "roundrobin",
            Self::Pull => "pull",
            Self::Cache => "cache",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }

    /// Parses the names of [`Status::as_str`], and `round-robin`, `round`, `pause`, `stop`, ignoring
    /// case.
    pub fn from_text(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "broadcast" => Self::Broadcast,
            "push" => Self::Push,
            "roundrobin" | "round-robin" | "round" | "round_robin" => Self::RoundRobin,
            "pull" => Self::Pull,
            "cache" => Self::Cache,
            "pause" | "paused" => Self::Paused,
            "stop" | "stopped" | "stoped" => Self::Stopped,
            _ => return None,
        })
    }
}

/// When a saved message counts as saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// At once; the journal writes it later. A crash may lose the latest messages.
    None,
    /// When the operating system has it: it survives the end of the process, but not of the machine.
    Os,
    /// When the disk has it.
    #[default]
    Fsync,
}

impl Durability {
    /// `none`, `os` or `fsync`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Os => "os",
            Self::Fsync => "fsync",
        }
    }

    /// Parses the names of [`Durability::as_str`], ignoring case.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::None, Self::Os, Self::Fsync].into_iter().find(|mode| mode.as_str().eq_ignore_ascii_case(text))
    }
}

/// Options of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// How the queue delivers. Default: push.
    pub status: Status,
    /// Whether only the first free consumer, in join order, gets each message. Default: false.
    pub only_first_acquirer: bool,
    /// Whether consumers must acknowledge. Default: false.
    pub request_acknowledge: bool,
    /// Time to acknowledge a delivery. Default: 15 s.
    pub acknowledge_timeout: Duration,
    /// How long a message may wait in the queue; 0: no limit. Default: 0.
    pub message_timeout: Duration,
    /// Whether messages without an id get one. Default: true.
    pub use_message_id: bool,
    /// Whether the next message waits until the previous one is acknowledged or times out. Default:
    /// false.
    pub wait_for_acknowledge: bool,
    /// Whether producers are hidden from consumers. Default: false.
    pub hide_client_names: bool,
    /// Maximum number of stored messages; 0: no limit. Default: 0.
    pub message_limit: u64,
    /// Maximum body size in bytes; 0: only the listener's limit. Default: 0.
    pub message_size_limit: u64,
    /// How often a message may be requeued before it is dead-lettered or dropped. Default: 16.
    pub put_back_limit: u16,
    /// The queue for messages that were requeued too often or timed out; `None`: they are dropped and
    /// counted.
    pub dead_letter: Option<QueueAddress>,
    /// Key of the delivery handler or policy; `None`: the channel's, then the server's.
    pub delivery_handler: Option<Box<str>>,
    /// A label for people and routers. Default: `None`.
    pub tag: Option<Box<str>>,
    /// When a message that a decision saves counts as saved. Default: fsync.
    pub durability: Durability,
    /// Rate limit of all producers together; further messages are rejected. `None`, the default: no
    /// limit.
    pub publish_limit: Option<Rate>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            status: Status::Push,
            only_first_acquirer: false,
            request_acknowledge: false,
            acknowledge_timeout: Duration::from_secs(15),
            message_timeout: Duration::ZERO,
            use_message_id: true,
            wait_for_acknowledge: false,
            hide_client_names: false,
            message_limit: 0,
            message_size_limit: 0,
            put_back_limit: 16,
            dead_letter: None,
            delivery_handler: None,
            tag: None,
            durability: Durability::Fsync,
            publish_limit: None,
        }
    }
}

/// A change of some options of a queue; `None` keeps the option.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each field changes the option of the same name in QueueOptions")]
pub struct QueueChanges {
    pub status: Option<Status>,
    pub only_first_acquirer: Option<bool>,
    pub request_acknowledge: Option<bool>,
    pub acknowledge_timeout: Option<Duration>,
    pub message_timeout: Option<Duration>,
    pub use_message_id: Option<bool>,
    pub wait_for_acknowledge: Option<bool>,
    pub hide_client_names: Option<bool>,
    pub message_limit: Option<u64>,
    pub message_size_limit: Option<u64>,
    pub put_back_limit: Option<u16>,
    /// `Some(None)` removes the dead-letter queue.
    pub dead_letter: Option<Option<QueueAddress>>,
    pub delivery_handler: Option<Box<str>>,
    pub tag: Option<Box<str>>,
    pub durability: Option<Durability>,
    /// `Some(None)` removes the limit.
    pub publish_limit: Option<Option<Rate>>,
}

macro_rules! take {
    ($changes:ident => $options:ident: $($field:ident),+ $(,)?) => {
        $(if let Some(value) = &$changes.$field { $options.$field = value.clone(); })+
    };
}

impl QueueChanges {
    /// Applies the changes to `options`.
    pub fn apply_to(&self, options: &mut QueueOptions) {
        take!(self => options: status, only_first_acquirer, request_acknowledge, acknowledge_timeout,
            message_timeout, use_message_id, wait_for_acknowledge, hide_client_names, message_limit,
            message_size_limit, put_back_limit, dead_letter, durability, publish_limit);
        if self.delivery_handler.is_some() {
            options.delivery_handler.clone_from(&self.delivery_handler);
        }
        if self.tag.is_some() {
            options.tag.clone_from(&self.tag);
        }
    }
}

/// Options of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelOptions {
    /// Default options of the channel's queues.
    pub queue: QueueOptions,
    /// Whether it may have more than one queue. Default: true.
    pub allow_multiple_queues: bool,
    /// Allowed queue ids; `None`: all.
    pub allowed_queues: Option<Vec<u16>>,
    /// Maximum number of joined clients; 0: no limit. Default: 0.
    pub client_limit: u32,
    /// Maximum number of queues; 0: no limit. Default: 0.
    pub queue_limit: u32,
    /// Whether the channel is removed when its last client leaves and its queues are empty. Default:
    /// false.
    pub destroy_when_empty: bool,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            queue: QueueOptions::default(),
            allow_multiple_queues: true,
            allowed_queues: None,
            client_limit: 0,
            queue_limit: 0,
            destroy_when_empty: false,
        }
    }
}

/// A change of some options of a channel; `None` keeps the option.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each field changes the option of the same name in ChannelOptions")]
pub struct ChannelChanges {
    pub queue: QueueChanges,
    pub allow_multiple_queues: Option<bool>,
    /// `Some(None)` allows all ids.
    pub allowed_queues: Option<Option<Vec<u16>>>,
    pub client_limit: Option<u32>,
    pub queue_limit: Option<u32>,
    pub destroy_when_empty: Option<bool>,
}

impl ChannelChanges {
    /// Applies the changes to `options`.
    pub fn apply_to(&self, options: &mut ChannelOptions) {
        self.queue.apply_to(&mut options.queue);
        take!(self => options: allow_multiple_queues, allowed_queues, client_limit, queue_limit,
            destroy_when_empty);
    }
}
