//! The extensions that are known by name, and what two sides agreed on.
//!
//! | name | frames | what it is for |
//! |---|---|---|
//! | `ack` | a number | one message at a time, each acknowledged |
//! | `batch-ack` | a number | as many as `max-count`, acknowledged up to a number |
//! | `json`, `xml`, `protobuf` | none | what payloads are written in |
//! | `dotnet` | a type's name | what the next message, and those behind it, are |
//! | `pub-sub` | none | the commands `subscribe` and `unsubscribe` |
//! | `x-nack` | a number | one message is refused |
//! | `x-mqcore` | none | commands are answered |
//! | `x-...` | its own | whatever both sides take it for |

use super::failure::{Failure, Token};
use super::handshake::Extension;

/// Acknowledges each message before the next is sent.
pub const ACK: &str = "ack";
/// Acknowledges several messages at once.
pub const BATCH_ACK: &str = "batch-ack";
/// Names the type of the next message.
pub const DOTNET: &str = "dotnet";
/// Lets a client subscribe.
pub const PUB_SUB: &str = "pub-sub";
/// Refuses one message.
pub const X_NACK: &str = "x-nack";
/// Answers commands, and carries credentials in its property `token`.
pub const X_MQCORE: &str = "x-mqcore";
/// What payloads may be written in.
pub const SERIALIZERS: [&str; 3] = ["json", "xml", "protobuf"];

/// The property that says how many messages may be unacknowledged.
pub const MAX_COUNT: &str = "max-count";
/// Other spellings of it, which are read and never written.
const MAX_COUNT_TOO: [&str; 4] = [MAX_COUNT, "count", "batch-max", "MessagesPerAck"];

/// Unacknowledged messages with `batch-ack` where nobody says how many.
pub const WINDOW_DEFAULT: u16 = 10;
/// The most that can be agreed on: half the numbers there are, so that old and new ones are never confused.
pub const WINDOW_MAX: u16 = 32_767;

/// What an extension is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
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
    /// A vendor's.
    Vendor,
}

impl Kind {
    /// What the extension of this name is about; `None` for names that only a later version could give a meaning.
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

    /// Whether it has frames of its own.
    pub fn has_frames(self) -> bool {
        match self {
            Self::Acknowledges | Self::Type | Self::Refuses | Self::Vendor => true,
            Self::Serializer | Self::Subscribes | Self::Answers => false,
        }
    }
}

/// The name under which an extension is compared: some peers write `pubsub`.
pub fn canonical(name: &str) -> &str {
    if name == "pubsub" { PUB_SUB } else { name }
}

/// How many messages an extension lets be unacknowledged, if it says so. More than [`WINDOW_MAX`] is that many.
///
/// # Errors
/// [`Failure`] if what it says is no number, or 0.
pub fn count(extension: &Extension<'_>) -> Result<Option<u16>, Failure> {
    let Some(value) = MAX_COUNT_TOO.iter().find_map(|key| extension.property(key)) else { return Ok(None) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    match number.filter(|number| *number > 0) {
        Some(number) => Ok(Some(number.min(WINDOW_MAX.into()) as u16)),
        None => {
            let why = format!("max-count of {} is a number from 1 to {WINDOW_MAX}", extension.name);
            Err(Failure::new(Token::Extension, why))
        }
    }
}

/// How messages are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledging {
    /// The number of the extension whose frames do it.
    pub id: u8,
    /// Messages that each side may have sent without their being acknowledged.
    pub window: u16,
}

/// What is in force on a connection: the last message of the handshake, understood.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agreement {
    /// By their ids, from 1.
    extensions: Vec<(Extension<'static>, Option<Kind>)>,
    acknowledging: Option<Acknowledging>,
}

impl Agreement {
    /// What these extensions, in the order of the last message, mean together.
    ///
    /// # Errors
    /// [`Failure`] if they cannot all be in force: two ways to acknowledge, two to write payloads, or refusals where nothing is
    /// acknowledged.
    pub fn of(extensions: Vec<Extension<'static>>) -> Result<Self, Failure> {
        let refuse = |why: &str| Err(Failure::new(Token::Extension, why));
        let extensions: Vec<_> =
            extensions.into_iter().map(|extension| (Kind::of(&extension.name), extension)).collect();
        let count_of = |kind| extensions.iter().filter(|(found, _)| *found == Some(kind)).count();
        if count_of(Kind::Acknowledges) > 1 {
            return refuse("ack and batch-ack exclude each other");
        }
        if count_of(Kind::Serializer) > 1 {
            return refuse(
                "payloads are written in one of json, xml and protobuf: the last message names one",
            );
        }
        if count_of(Kind::Refuses) > 0 && count_of(Kind::Acknowledges) == 0 {
            return refuse("x-nack needs ack or batch-ack");
        }
        let mut acknowledging = None;
        for (place, (kind, extension)) in extensions.iter().enumerate() {
            if *kind == Some(Kind::Acknowledges) {
                let count = count(extension)?;
                // Some peers write `ack:MessagesPerAck=10` and mean batch-ack.
                let window =
                    if extension.name == ACK { count.unwrap_or(1) } else { count.unwrap_or(WINDOW_DEFAULT) };
                acknowledging = Some(Acknowledging { id: id(place), window });
            }
        }
        let extensions = extensions.into_iter().map(|(kind, extension)| (extension, kind)).collect();
        Ok(Self { extensions, acknowledging })
    }

    /// How many extensions are in force.
    pub fn len(&self) -> u8 {
        self.extensions.len() as u8
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.extensions.is_empty()
    }

    /// The extension of this id, and what it is about.
    pub fn get(&self, id: u8) -> Option<(&Extension<'static>, Option<Kind>)> {
        let place = usize::from(id).checked_sub(1)?;
        self.extensions.get(place).map(|(extension, kind)| (extension, *kind))
    }

    /// All, in the order of their ids.
    pub fn all(&self) -> impl Iterator<Item = &Extension<'static>> {
        self.extensions.iter().map(|(extension, _)| extension)
    }

    /// The id of the extension of this name.
    pub fn id_of(&self, name: &str) -> Option<u8> {
        self.extensions
            .iter()
            .position(|(extension, _)| canonical(&extension.name) == canonical(name))
            .map(id)
    }

    /// The id of the extension that is about this.
    pub fn id_of_kind(&self, kind: Kind) -> Option<u8> {
        self.extensions.iter().position(|(_, found)| *found == Some(kind)).map(id)
    }

    /// How messages are acknowledged; `None`: they are not.
    pub fn acknowledging(&self) -> Option<Acknowledging> {
        self.acknowledging
    }

    /// What payloads are written in, if anybody says so.
    pub fn serializer(&self) -> Option<&str> {
        let id = self.id_of_kind(Kind::Serializer)?;
        self.get(id).map(|(extension, _)| &*extension.name)
    }
}

fn id(place: usize) -> u8 {
    (place + 1) as u8
}
