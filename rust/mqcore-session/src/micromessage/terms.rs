//! What a listener says about how MicroMessage2 is spoken.

use std::time::Duration;

use mqcore_wire::micromessage::extension::WINDOW_MAX;
use mqcore_wire::micromessage::handshake::Extension;
use mqcore_wire::micromessage::properties::Typing;

/// Octets of a message, all its parts together, if the listener says nothing else: 64 MiB.
pub const MESSAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How MicroMessage2 is spoken on one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Extensions that every client must have. Default none.
    pub required: Vec<Extension<'static>>,
    /// Messages at most that may be unacknowledged with `batch-ack`, 1 to 32,767. Default 32,767.
    pub window_max: u16,
    /// How the values of properties are read. Default [`Typing::Typed`].
    pub typing: Typing,
    /// Octets of a message at most, all its parts together. Default [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: u64,
    /// Where messages go that name no destination. Default nowhere: they are refused.
    pub default_destination: Option<Box<str>>,
    /// How long a peer may say nothing before its connection is closed; zero: for ever. Default for ever.
    pub idle_timeout: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            required: Vec::new(),
            window_max: WINDOW_MAX,
            typing: Typing::default(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            default_destination: None,
            idle_timeout: Duration::ZERO,
        }
    }
}
