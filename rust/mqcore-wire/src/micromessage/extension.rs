//! The known extensions, and the agreement that a handshake results in.
//!
//! | name | frames | purpose |
//! |---|---|---|
//! | `ack` | sequence number | acknowledge each message before the next is sent |
//! | `batch-ack` | sequence number | up to `max-count` unacknowledged messages; acknowledgements are cumulative |
//! | `json`, `xml`, `protobuf` | none | serializer of payloads |
//! | `dotnet` | type name | type of the next message and those after it |
//! | `pub-sub` | none | commands `subscribe` and `unsubscribe` |
//! | `x-nack` | sequence number | reject one message |
//! | `x-mqcore` | sequence number | responses to commands, prefetch; a frame acknowledges one message and no earlier ones |
//! | `x-...` | own | vendor extension |

use super::failure::{ErrorToken, ProtocolFailure};
use super::handshake::Extension;

/// Acknowledge each message before the next is sent.
pub const ACK: &str = "ack";
/// Acknowledge several messages at once.
pub const BATCH_ACK: &str = "batch-ack";
/// Name the type of the next message.
pub const DOTNET: &str = "dotnet";
/// Let a client subscribe.
pub const PUB_SUB: &str = "pub-sub";
/// Reject a single message.
pub const X_NACK: &str = "x-nack";
/// Respond to commands, limit deliveries, acknowledge single messages. The property `token` carries credentials.
pub const X_MQCORE: &str = "x-mqcore";
/// Serializers of payloads.
pub const SERIALIZERS: [&str; 3] = ["json", "xml", "protobuf"];

/// Property with the maximum number of unacknowledged messages.
pub const MAX_COUNT: &str = "max-count";
/// Accepted spellings of [`MAX_COUNT`]; only the first is written.
const MAX_COUNT_TOO: [&str; 4] = [MAX_COUNT, "count", "batch-max", "MessagesPerAck"];

/// Maximum number of unacknowledged messages under `batch-ack` if neither side specifies one.
pub const WINDOW_DEFAULT: u16 = 10;
/// Largest window that can be negotiated: half of all sequence numbers, so that old and new ones cannot be confused.
pub const WINDOW_MAX: u16 = 32_767;

/// The purpose of an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// `ack` or `batch-ack`.
    Acknowledges,
    /// `json`, `xml` or `protobuf`.
    Serializer,
    /// `dotnet`.
    Type,
    /// `pub-sub`.
    Subscribes,
    /// `x-nack`.
    Refuses,
    /// `x-mqcore`.
    Answers,
    /// A vendor extension.
    Vendor,
}

impl ExtensionKind {
    /// Returns the purpose of the extension `name`, or `None` for names reserved for later protocol versions.
    pub fn of(name: &str) -> Option<Self> {
        match canonical(name) {
            ACK | BATCH_ACK => Some(Self::Acknowledges),
            DOTNET => Some(Self::Type),
            PUB_SUB => Some(Self::Subscribes),
            X_NACK => Some(Self::Refuses),
            X_MQCORE => Some(Self::Answers),
            name if SERIALIZERS.contains(&name) => Some(Self::Serializer),
            name if name.starts_with("x-") && name.len() > 2 => Some(Self::Vendor),
            _ => None,
        }
    }

    /// Whether the extension has its own frames.
    pub fn has_frames(self) -> bool {
        match self {
            Self::Acknowledges | Self::Type | Self::Refuses | Self::Answers | Self::Vendor => true,
            Self::Serializer | Self::Subscribes => false,
        }
    }
}

/// Normalizes an extension name for comparison: some peers write `pubsub`.
pub fn canonical(name: &str) -> &str {
    if name == "pubsub" { PUB_SUB } else { name }
}

/// Returns the window that an extension specifies, if any. Values above [`WINDOW_MAX`] are reduced to it.
///
/// # Errors
/// [`ProtocolFailure`] if the value is not a number or is 0.
pub fn count(extension: &Extension<'_>) -> Result<Option<u16>, ProtocolFailure> {
    let Some(value) = MAX_COUNT_TOO.iter().find_map(|key| extension.property(key)) else { return Ok(None) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    match number.filter(|number| *number > 0) {
        Some(number) => Ok(Some(number.min(WINDOW_MAX.into()) as u16)),
        None => {
            let why = format!("max-count of {} must be a number from 1 to {WINDOW_MAX}", extension.name);
            Err(ProtocolFailure::new(ErrorToken::Extension, why))
        }
    }
}

/// How messages are acknowledged on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledging {
    /// Id of the extension whose frames acknowledge messages.
    pub id: u8,
    /// Maximum number of unacknowledged messages in each direction.
    pub window: u16,
}

/// The extensions in force on a connection: the parsed final message of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Indexed by extension id minus 1.
    extensions: Vec<(Extension<'static>, Option<ExtensionKind>)>,
    acknowledging: Option<Acknowledging>,
}

impl Agreement {
    /// Combines these extensions, in the order of the final handshake message.
    ///
    /// # Errors
    /// [`ProtocolFailure`] if they are incompatible: two acknowledgement modes, two serializers, or `x-nack` without
    /// acknowledgements.
    pub fn of(extensions: Vec<Extension<'static>>) -> Result<Self, ProtocolFailure> {
        let refuse = |why: &str| Err(ProtocolFailure::new(ErrorToken::Extension, why));
        let extensions: Vec<_> =
            extensions.into_iter().map(|extension| (ExtensionKind::of(&extension.name), extension)).collect();
        let count_of = |kind| extensions.iter().filter(|(found, _)| *found == Some(kind)).count();
        if count_of(ExtensionKind::Acknowledges) > 1 {
            return refuse("ack and batch-ack exclude each other");
        }
        if count_of(ExtensionKind::Serializer) > 1 {
            return refuse(
                "json, xml and protobuf exclude each other; the final message must name one of them",
            );
        }
        if count_of(ExtensionKind::Refuses) > 0 && count_of(ExtensionKind::Acknowledges) == 0 {
            return refuse("x-nack requires ack or batch-ack");
        }
        let mut acknowledging = None;
        for (place, (kind, extension)) in extensions.iter().enumerate() {
            if *kind == Some(ExtensionKind::Acknowledges) {
                let count = count(extension)?;
                // Some peers write `ack:MessagesPerAck=10` but mean batch-ack.
                let window =
                    if extension.name == ACK { count.unwrap_or(1) } else { count.unwrap_or(WINDOW_DEFAULT) };
                acknowledging = Some(Acknowledging { id: id(place), window });
            }
        }
        let extensions = extensions.into_iter().map(|(kind, extension)| (extension, kind)).collect();
        Ok(Self { extensions, acknowledging })
    }

    /// Number of extensions in force.
    pub fn len(&self) -> u8 {
        self.extensions.len() as u8
    }

    /// Whether no extension is in force.
    pub fn is_empty(&self) -> bool {
        self.extensions.is_empty()
    }

    /// Returns the extension with this id and its purpose.
    pub fn get(&self, id: u8) -> Option<(&Extension<'static>, Option<ExtensionKind>)> {
        let place = usize::from(id).checked_sub(1)?;
        self.extensions.get(place).map(|(extension, kind)| (extension, *kind))
    }

    /// Iterates over all extensions, in the order of their ids.
    pub fn all(&self) -> impl Iterator<Item = &Extension<'static>> {
        self.extensions.iter().map(|(extension, _)| extension)
    }

    /// Returns the id of the extension with this name.
    pub fn id_of(&self, name: &str) -> Option<u8> {
        self.extensions
            .iter()
            .position(|(extension, _)| canonical(&extension.name) == canonical(name))
            .map(id)
    }

    /// Returns the id of the first extension with this purpose.
    pub fn id_of_kind(&self, kind: ExtensionKind) -> Option<u8> {
        self.extensions.iter().position(|(_, found)| *found == Some(kind)).map(id)
    }

    /// Returns how messages are acknowledged, or `None` if they are not.
    pub fn acknowledging(&self) -> Option<Acknowledging> {
        self.acknowledging
    }

    /// Returns the negotiated serializer, if any.
    pub fn serializer(&self) -> Option<&str> {
        let id = self.id_of_kind(ExtensionKind::Serializer)?;
        self.get(id).map(|(extension, _)| &*extension.name)
    }
}

fn id(place: usize) -> u8 {
    (place + 1) as u8
}
