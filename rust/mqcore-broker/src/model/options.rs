//! Options of queues and channels, and partial changes to them as clients send them.
//!
//! Inheritance is by copy at creation: the server's defaults become the channel's options, the channel's
//! queue options become the queue's, each with the creator's [`QueueChanges`] or [`ChannelChanges`] applied.

use std::time::Duration;

use crate::model::id::QueueAddress;
use crate::model::rate::Rate;

/// How a queue hands its messages out. The numbers are those of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Status {
    /// To all consumers that are there now; nothing is stored.
    Broadcast = 0,
    /// To all consumers; stored until there is at least one.
    #[default]
    Push = 1,
    /// To one consumer after the other; stored until there is one.
    RoundRobin = 2,
    /// To whoever asks.
    Pull = 3,
    /// The latest message, to whoever asks; it stays.
    Cache = 4,
    /// Stored, handed to nobody.
    Paused = 5,
    /// Refused; entering this status erases the queue.
    Stopped = 6,
}

impl Status {
    /// The status with this number, if there is one.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Broadcast, Self::Push, Self::RoundRobin, Self::Pull, Self::Cache, Self::Paused, Self::Stopped]
            .into_iter()
            .find(|status| *status as u64 == number)
    }

    /// Lower-case text as queue information shows it: `broadcast`, `push`, `roundrobin`, `pull`, `cache`,
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

    /// Reads any of the spellings in use: those of [`Status::as_str`], and `round-robin`, `round`, `pause`,
    /// `stop`, without respect to case.
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
    /// At once; it is written behind. A crash may lose the latest.
    None,
    /// When the operating system has it: survives the end of the process, not of the machine.
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

    /// Reads what [`Durability::as_str`] gives, without respect to case.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::None, Self::Os, Self::Fsync].into_iter().find(|mode| mode.as_str().eq_ignore_ascii_case(text))
    }
}

/// Options of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// How it hands out. Default push.
    pub status: Status,
    /// Only the first consumer (in join order) that may receive gets each message. Default no.
    pub only_first_acquirer: bool,
    /// Consumers must acknowledge. Default no.
    pub request_acknowledge: bool,
    /// How long a consumer may take to acknowledge. Default 15 s.
    pub acknowledge_timeout: Duration,
    /// How long a message may wait in the queue; zero: for ever. Default zero.
    pub message_timeout: Duration,
    /// Messages without an id get one. Default yes.
    pub use_message_id: bool,
    /// The next message waits until the previous one is acknowledged or timed out. Default no.
    pub wait_for_acknowledge: bool,
    /// Consumers do not learn who produced a message. Default no.
    pub hide_client_names: bool,
    /// Messages stored at most; zero: no limit. Default zero.
    pub message_limit: u64,
    /// Octets of a body at most; zero: no limit but the listener's. Default zero.
    pub message_size_limit: u64,
    /// How often one message may be put back before it is dead-lettered or dropped. Default 16.
    pub put_back_limit: u16,
    /// Where messages go that were put back too often or timed out there; `None`: they are dropped and counted.
    pub dead_letter: Option<QueueAddress>,
    /// The key of the delivery handler or ready-made policy; `None`: the channel's, then the server's.
    pub delivery_handler: Option<Box<str>>,
    /// A word for people and for routers. `None` by default.
    pub tag: Option<Box<str>>,
    /// When a message that a decision saves counts as saved. Default fsync.
    pub durability: Durability,
    /// How much may be published to it, by everybody together; more is refused. `None`: no limit, the default.
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

/// A change to some options of a queue; `None` leaves the option as it is.
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
    /// Writes what is to change into `options`.
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
    /// What a queue created in it starts with.
    pub queue: QueueOptions,
    /// May it have more than one queue? Default yes.
    pub allow_multiple_queues: bool,
    /// Which queue ids it may have; `None`: all.
    pub allowed_queues: Option<Vec<u16>>,
    /// Clients joined at most; zero: no limit. Default zero.
    pub client_limit: u32,
    /// Queues at most; zero: no limit. Default zero.
    pub queue_limit: u32,
    /// The channel goes when its last client leaves and all its queues are empty. Default no.
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

/// A change to some options of a channel; `None` leaves the option as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each field changes the option of the same name in ChannelOptions")]
pub struct ChannelChanges {
    pub queue: QueueChanges,
    pub allow_multiple_queues: Option<bool>,
    /// `Some(None)` allows all.
    pub allowed_queues: Option<Option<Vec<u16>>>,
    pub client_limit: Option<u32>,
    pub queue_limit: Option<u32>,
    pub destroy_when_empty: Option<bool>,
}

impl ChannelChanges {
    /// Writes what is to change into `options`.
    pub fn apply_to(&self, options: &mut ChannelOptions) {
        self.queue.apply_to(&mut options.queue);
        take!(self => options: allow_multiple_queues, allowed_queues, client_limit, queue_limit,
            destroy_when_empty);
    }
}
