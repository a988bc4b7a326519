//! Answers and options of administrative operations. Member names are those of the protocol's JSON.
//!
//! Every member of an answer may be missing: other servers of this protocol send fewer.

use serde::de::Error as _;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A channel as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ChannelInformation {
    /// Its name.
    pub name: String,
    /// Ids of its queues.
    pub queues: Vec<u16>,
    /// Whether it may have more than one queue.
    pub allow_multiple_queues: bool,
    /// Allowed queue ids; `None`: all.
    pub allowed_queues: Option<Vec<u16>>,
    /// Default of its queues: deliver each message to the first free consumer only.
    pub only_first_acquirer: bool,
    /// Default of its queues: consumers must acknowledge.
    pub request_acknowledge: bool,
    /// Default of its queues, milliseconds.
    pub acknowledge_timeout: u64,
    /// Default of its queues in milliseconds; 0: no expiry.
    pub message_timeout: u64,
    /// Default of its queues.
    pub use_message_id: bool,
    /// Default of its queues.
    pub wait_for_acknowledge: bool,
    /// Default of its queues.
    pub hide_client_names: bool,
    /// Clients joined.
    pub active_clients: u64,
    /// Clients that may join; 0: no limit.
    pub client_limit: u64,
    /// Queues that it may have; 0: no limit.
    pub queue_limit: u64,
    /// Whether the broker removes it after its last client left and its queues are empty.
    pub destroy_when_empty: bool,
}

/// A queue as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueueInformation {
    /// Its channel.
    pub channel: String,
    /// A label.
    pub tag_name: Option<String>,
    /// Its id in the channel.
    pub id: u16,
    /// Stored messages of high priority.
    pub priority_messages: u64,
    /// The other stored messages.
    pub messages: u64,
    /// `broadcast`, `push`, `roundrobin`, `pull`, `cache`, `paused` or `stopped`.
    pub status: String,
    /// Deliver each message to the first free consumer only.
    pub only_first_acquirer: bool,
    /// Consumers must acknowledge.
    pub request_acknowledge: bool,
    /// Milliseconds.
    pub acknowledge_timeout: u64,
    /// In milliseconds; 0: no expiry.
    pub message_timeout: u64,
    /// Whether the broker assigns ids to messages without one.
    pub use_message_id: bool,
    /// The next message waits for the acknowledgement of the one before.
    pub wait_for_acknowledge: bool,
    /// Consumers do not learn who produced a message.
    pub hide_client_names: bool,
    /// Messages accepted from producers.
    pub received_messages: u64,
    /// Delivered messages, each counted once.
    pub sent_messages: u64,
    /// Deliveries, once per consumer.
    pub deliveries: u64,
    /// Negative and timed-out acknowledgements.
    pub negative_acks: u64,
    /// Positive acknowledgements.
    pub acks: u64,
    /// Expired messages.
    pub timeout_messages: u64,
    /// Saved messages.
    pub saved_messages: u64,
    /// Messages that left the queue.
    pub removed_messages: u64,
    /// Failures of its handler.
    pub errors: u64,
    /// Unix milliseconds; 0: never.
    pub last_message_received: u64,
    /// Unix milliseconds; 0: never.
    pub last_message_sent: u64,
    /// Maximum stored messages; 0: no limit.
    pub message_limit: u64,
    /// Maximum bytes of a body; 0: no limit.
    pub message_size_limit: u64,
    /// Limit of publishes, for example `100/s`; `None`: no limit.
    pub publish_limit: Option<String>,
}

/// A client that is connected, or has joined a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClientInformation {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// The kind of program.
    #[serde(rename = "Type")]
    pub kind: Option<String>,
    /// Milliseconds since it connected, or joined.
    pub online: u64,
    /// Whether an authenticator accepted it.
    pub is_authenticated: bool,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeInformation {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The address of its listener.
    pub host: String,
    /// Whether it connected to this node.
    #[serde(rename = "Slave")]
    pub downstream: bool,
    /// Whether the link is connected.
    pub connected: bool,
    /// Milliseconds since the link connected.
    pub lifetime: u64,
}

/// How a router chooses the bindings that get a message. The numbers are the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum RouteMethod {
    /// Every binding gets it.
    #[default]
    Distribute = 0,
    /// One binding after the other gets one.
    RoundRobin = 1,
    /// The first binding that accepts it gets it.
    OnlyFirst = 2,
}

impl RouteMethod {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Distribute, Self::RoundRobin, Self::OnlyFirst];

    /// The spelling: `distribute`, `round-robin`, `only-first`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Distribute => "distribute",
            Self::RoundRobin => "round-robin",
            Self::OnlyFirst => "only-first",
        }
    }
}

/// The answer that a binding requests from its target. The numbers are the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Interaction {
    /// Nothing.
    #[default]
    None = 0,
    /// An acknowledgement.
    Acknowledge = 1,
    /// A response.
    Response = 2,
}

impl Interaction {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::None, Self::Acknowledge, Self::Response];

    /// The spelling: `none`, `acknowledge`, `response`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Acknowledge => "acknowledge",
            Self::Response => "response",
        }
    }
}

/// Reads enums that lists have as numbers, and tests of routers as text.
macro_rules! number_or_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Spelling {
                    Number(u8),
                    Text(String),
                }
                let spelling = Spelling::deserialize(deserializer)?;
                let found = Self::ALL.into_iter().find(|each| match &spelling {
                    Spelling::Number(number) => *each as u8 == *number,
                    Spelling::Text(text) => each.as_str() == text,
                });
                found.ok_or_else(|| D::Error::custom(concat!("unknown ", stringify!($name))))
            }
        }
    )*};
}

number_or_text!(RouteMethod, Interaction);

/// A router.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RouterInformation {
    /// Its name.
    pub name: String,
    /// Whether it accepts messages.
    pub is_enabled: bool,
    /// How it chooses bindings.
    pub method: RouteMethod,
}

/// A binding of a router.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Binding {
    /// Its name; `None` in a binding to add: its target.
    pub name: Option<String>,
    /// Its target: `channel/id`, `@client:ID`, `@name:NAME`, `@type:KIND` or `@topic:NAME`.
    #[serde(rename = "Address")]
    pub target: String,
    /// Bindings with a higher priority come first.
    pub priority: i32,
    /// The answer that it requests from its target.
    pub interaction: Interaction,
    /// The content type of its messages; `None`: unchanged.
    pub content_type: Option<u16>,
    /// The clients that get a message if several match its target.
    pub method: RouteMethod,
}

impl Serialize for Binding {
    /// As the broker takes it: the address is the member `Target`, enums are text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let members = 5 + usize::from(self.content_type.is_some());
        let mut binding = serializer.serialize_struct("Binding", members)?;
        binding.serialize_field("Name", &self.name)?;
        binding.serialize_field("Target", &self.target)?;
        binding.serialize_field("Priority", &self.priority)?;
        binding.serialize_field("Interaction", self.interaction.as_str())?;
        binding.serialize_field("Method", self.method.as_str())?;
        if let Some(content_type) = self.content_type {
            binding.serialize_field("ContentType", &content_type)?;
        }
        binding.end()
    }
}

/// The route that a message would take.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RouterTest {
    /// How the router chooses bindings.
    pub method: RouteMethod,
    /// Whether any target would accept the message.
    pub taken: bool,
    /// Why no target would.
    pub refusal: Option<String>,
    /// The steps in order.
    pub steps: Vec<RouterStep>,
    /// Bindings that would not be tried, because an earlier one accepts the message.
    pub skipped: Vec<String>,
}

/// A step of a route: one binding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RouterStep {
    /// The binding; `None` for a target that a handler chose.
    pub binding: Option<String>,
    /// The target of the binding.
    pub target: String,
    /// Whether the target would accept the message.
    pub takes: bool,
    /// Why, or why not.
    pub why: String,
}

/// How a queue delivers its messages. The numbers are the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum QueueStatus {
    Broadcast = 0,
    Push = 1,
    RoundRobin = 2,
    Pull = 3,
    Cache = 4,
    Paused = 5,
    Stopped = 6,
}

impl QueueStatus {
    /// Parses the known spellings, ignoring case.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "broadcast" => Self::Broadcast,
            "push" => Self::Push,
            "roundrobin" | "round-robin" | "round_robin" | "round" => Self::RoundRobin,
            "pull" => Self::Pull,
            "cache" => Self::Cache,
            "paused" | "pause" => Self::Paused,
            "stopped" | "stop" => Self::Stopped,
            _ => return None,
        })
    }
}

impl Serialize for QueueStatus {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// Options of a queue to create or change. `None`: the channel's option, or unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct QueueOptions {
    /// How it delivers messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<QueueStatus>,
    /// Deliver each message to the first free consumer only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_only_first_acquirer: Option<bool>,
    /// Consumers must acknowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_acknowledge: Option<bool>,
    /// Timeout of acknowledgements in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledge_timeout: Option<u64>,
    /// Expiry of messages in milliseconds; 0: no expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_timeout: Option<u64>,
    /// Whether the broker assigns ids to messages without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_message_id: Option<bool>,
    /// The next message waits for the acknowledgement of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_for_acknowledge: Option<bool>,
    /// Consumers do not learn who produced a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hide_client_names: Option<bool>,
    /// Maximum stored messages; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_limit: Option<u64>,
    /// Maximum bytes of a body; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_size_limit: Option<u64>,
    /// How often a message may be requeued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_back_limit: Option<u16>,
    /// The dead-letter queue for messages requeued more often, `channel/id`; empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    /// The key of a delivery handler or ready-made policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_delivery_handler: Option<String>,
    /// A label for people and routers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// When a saved message counts as saved: `none`, `os` or `fsync`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// Limit of publishes, for example `100/s`; `none` removes the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_limit: Option<String>,
}

/// Options of a channel to create. `None`: the broker's option.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ChannelOptions {
    /// Default options of its queues.
    #[serde(flatten)]
    pub queue: QueueOptions,
    /// Whether it may have more than one queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_multiple_queues: Option<bool>,
    /// Allowed queue ids; `Some(None)`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_queues: Option<Option<Vec<u16>>>,
    /// Clients that may join; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_limit: Option<u32>,
    /// Queues that it may have; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<u32>,
    /// Whether the broker removes it after its last client left and its queues are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destroy_when_empty: Option<bool>,
}
