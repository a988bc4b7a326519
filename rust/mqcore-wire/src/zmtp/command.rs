//! ZMTP commands: READY with its properties, ERROR, PING, PONG, SUBSCRIBE and CANCEL (ZMTP 3.1, "Commands").

use super::{COMMAND, IDENTITY_BYTES_MAX, encode_head};
use crate::error::WireError;

/// Maximum size of a PING's context in bytes.
pub const CONTEXT_BYTES_MAX: usize = 16;
/// Maximum size of an ERROR's reason in bytes: its length field has one byte.
pub const REASON_BYTES_MAX: usize = 255;

/// ZeroMQ socket type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of ZeroMQ's socket types")]
pub enum SocketType {
    Req,
    Rep,
    Dealer,
    Router,
    Pub,
    XPub,
    Sub,
    XSub,
    Push,
    Pull,
    Pair,
}

impl SocketType {
    const NAMES: [(Self, &'static str); 11] = [
        (Self::Req, "REQ"),
        (Self::Rep, "REP"),
        (Self::Dealer, "DEALER"),
        (Self::Router, "ROUTER"),
        (Self::Pub, "PUB"),
        (Self::XPub, "XPUB"),
        (Self::Sub, "SUB"),
        (Self::XSub, "XSUB"),
        (Self::Push, "PUSH"),
        (Self::Pull, "PULL"),
        (Self::Pair, "PAIR"),
    ];

    /// Returns the name used in READY.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Returns the socket type with this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(kind, _)| *kind)
    }

    /// Whether a socket of this type may connect to a socket of type `other`.
    pub fn talks_to(self, other: Self) -> bool {
        match self {
            Self::Router => matches!(other, Self::Dealer | Self::Req | Self::Router),
            Self::Dealer => matches!(other, Self::Dealer | Self::Rep | Self::Router),
            Self::Pub | Self::XPub => matches!(other, Self::Sub | Self::XSub),
            Self::Sub | Self::XSub => matches!(other, Self::Pub | Self::XPub),
            Self::Req => matches!(other, Self::Rep | Self::Router),
            Self::Rep => matches!(other, Self::Req | Self::Dealer),
            Self::Push => other == Self::Pull,
            Self::Pull => other == Self::Push,
            Self::Pair => other == Self::Pair,
        }
    }
}

/// The READY command: a peer's metadata. Unknown properties are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready<'a> {
    /// Socket type.
    pub socket: SocketType,
    /// Identity, at most 255 bytes. Empty: the other side chooses one. Never begins with a zero byte.
    pub identity: &'a [u8],
    /// Access token from the property `X-Token`, an mqcore extension because the NULL mechanism has no credentials.
    /// Empty: none.
    pub token: &'a [u8],
}

/// A ZMTP command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZmtpCommand<'a> {
    /// Completes the handshake.
    Ready(Ready<'a>),
    /// The peer closes the connection; the reason.
    Error(&'a [u8]),
    /// Heartbeat request.
    Ping {
        /// Silence in tenths of a second after which the peer closes the connection; 0: not specified.
        time_to_live: u16,
        /// Bytes that the PONG returns, at most [`CONTEXT_BYTES_MAX`].
        context: &'a [u8],
    },
    /// Heartbeat response with the PING's context.
    Pong(&'a [u8]),
    /// Subscribes to topics with this prefix.
    Subscribe(&'a [u8]),
    /// Cancels a subscription to this prefix.
    Cancel(&'a [u8]),
    /// An unknown command, which receivers ignore; its name.
    Other(&'a [u8]),
}

fn malformed<T>(part: &'static str, why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part, why })
}

impl<'a> ZmtpCommand<'a> {
    /// Parses the body of a command frame.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the name is missing or a known command has an invalid body.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let Some((&length, rest)) = body.split_first() else {
            return malformed("command", "the name is missing");
        };
        let Some((name, data)) = rest.split_at_checked(length.into()) else {
            return malformed("command", "the name is longer than the command");
        };
        match name {
            b"" => malformed("command", "the name is empty"),
            b"READY" => Ready::parse(data).map(Self::Ready),
            b"ERROR" => match data.split_first() {
                Some((&length, reason)) if reason.len() == usize::from(length) => Ok(Self::Error(reason)),
                _ => malformed("ERROR", "the announced length differs from the length of the reason"),
            },
            b"PING" => match data.split_at_checked(2) {
                Some((_, context)) if context.len() > CONTEXT_BYTES_MAX => {
                    malformed("PING", "the context exceeds 16 bytes")
                }
                Some((time_to_live, context)) => Ok(Self::Ping {
                    time_to_live: u16::from_be_bytes([time_to_live[0], time_to_live[1]]),
                    context,
                }),
                None => malformed("PING", "the time to live is missing"),
            },
            b"PONG" => Ok(Self::Pong(data)),
            b"SUBSCRIBE" => Ok(Self::Subscribe(data)),
            b"CANCEL" => Ok(Self::Cancel(data)),
            other => Ok(Self::Other(other)),
        }
    }

    /// Appends the command as a frame. Contexts, reasons and names are truncated to what their length fields can express.
    pub fn encode(&self, output: &mut Vec<u8>) {
        match *self {
            Self::Ready(ready) => {
                let kind = ready.socket.as_str().as_bytes();
                let properties: [(&[u8], &[u8]); 3] =
                    [(b"Socket-Type", kind), (b"Identity", ready.identity), (b"X-Token", ready.token)];
                let properties = &properties[..if ready.token.is_empty() { 2 } else { 3 }];
                let length = properties.iter().map(|(name, value)| 1 + name.len() + 4 + value.len()).sum();
                encode_name(b"READY", length, output);
                for (name, value) in properties {
                    output.push(name.len() as u8);
                    output.extend_from_slice(name);
                    output.extend_from_slice(&(value.len() as u32).to_be_bytes());
                    output.extend_from_slice(value);
                }
            }
            Self::Error(reason) => {
                let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
                encode_name(b"ERROR", 1 + reason.len(), output);
                output.push(reason.len() as u8);
                output.extend_from_slice(reason);
            }
            Self::Ping { time_to_live, context } => {
                let context = &context[..context.len().min(CONTEXT_BYTES_MAX)];
                encode_name(b"PING", 2 + context.len(), output);
                output.extend_from_slice(&time_to_live.to_be_bytes());
                output.extend_from_slice(context);
            }
            Self::Pong(context) => encode_data(b"PONG", context, output),
            Self::Subscribe(topic) => encode_data(b"SUBSCRIBE", topic, output),
            Self::Cancel(topic) => encode_data(b"CANCEL", topic, output),
            Self::Other(name) => encode_name(&name[..name.len().min(255)], 0, output),
        }
    }
}

fn encode_name(name: &[u8], data: usize, output: &mut Vec<u8>) {
    encode_head(COMMAND, 1 + name.len() + data, output);
    output.push(name.len() as u8);
    output.extend_from_slice(name);
}

fn encode_data(name: &[u8], data: &[u8], output: &mut Vec<u8>) {
    encode_name(name, data.len(), output);
    output.extend_from_slice(data);
}

impl<'a> Ready<'a> {
    fn parse(data: &'a [u8]) -> Result<Self, WireError> {
        let (mut socket, mut identity, mut token) = (None, &[][..], &[][..]);
        let mut rest = data;
        while !rest.is_empty() {
            let Some((name, value, behind)) = property(rest) else {
                return malformed("READY", "a property is longer than the command");
            };
            rest = behind;
            if name.is_empty() {
                return malformed("READY", "a property has an empty name");
            }
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                let Some(known) = SocketType::from_name(value) else {
                    return malformed("READY", "unknown socket type");
                };
                socket = Some(known);
            } else if name.eq_ignore_ascii_case(b"Identity") {
                if value.len() > IDENTITY_BYTES_MAX {
                    return malformed("READY", "the identity exceeds 255 bytes");
                }
                if value.first() == Some(&0) {
                    return malformed(
                        "READY",
                        "a peer must not choose an identity that begins with a zero byte",
                    );
                }
                identity = value;
            } else if name.eq_ignore_ascii_case(b"X-Token") {
                token = value;
            }
        }
        match socket {
            Some(socket) => Ok(Self { socket, identity, token }),
            None => malformed("READY", "the socket type is missing"),
        }
    }
}

/// Splits off the first property: its name, its value and the remaining data.
fn property(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&length, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(length.into())?;
    let (length, rest) = rest.split_at_checked(4)?;
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let (value, rest) = rest.split_at_checked(length as usize)?;
    Some((name, value, rest))
}

/// Parses a subscription that a ZMTP 3.0 subscriber sends as a message: `01` and a topic subscribes, `00` and a topic cancels.
pub fn subscription(message: &[u8]) -> Option<ZmtpCommand<'_>> {
    match message.split_first()? {
        (1, topic) => Some(ZmtpCommand::Subscribe(topic)),
        (0, topic) => Some(ZmtpCommand::Cancel(topic)),
        _ => None,
    }
}
