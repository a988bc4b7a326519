//! Commands of ZMTP: READY with its properties, ERROR, PING and PONG, SUBSCRIBE and CANCEL.

use super::{COMMAND, IDENTITY_BYTES_MAX, encode_head};
use crate::error::WireError;

/// Octets of what a PING wants back, at most.
pub const CONTEXT_BYTES_MAX: usize = 16;
/// Octets of the text of an ERROR, at most: its length has one octet.
pub const REASON_BYTES_MAX: usize = 255;

/// What a socket is for.
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

    /// The name in READY.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The type of this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(kind, _)| *kind)
    }

    /// Whether sockets of these types talk to each other.
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

/// What a peer says of itself. Other properties are allowed and skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready<'a> {
    /// What its socket is for.
    pub socket: SocketType,
    /// What it is called; empty: as the other side likes. Never begins with a zero octet.
    pub identity: &'a [u8],
    /// The property `X-Token`, by which a peer may show who it is, as the mechanism NULL has no word for it; empty: it does
    /// not.
    pub token: &'a [u8],
}

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// The handshake is done.
    Ready(Ready<'a>),
    /// The peer gives up; why.
    Error(&'a [u8]),
    /// Wants a PONG.
    Ping {
        /// After how many tenths of a second without any life sign the peer gives up; 0: it does not say.
        time_to_live: u16,
        /// What comes back.
        context: &'a [u8],
    },
    /// The answer to a PING; what it wanted back.
    Pong(&'a [u8]),
    /// Wants the messages of topics that begin like this.
    Subscribe(&'a [u8]),
    /// No longer.
    Cancel(&'a [u8]),
    /// One that nobody has to know. Its name.
    Other(&'a [u8]),
}

fn malformed<T>(part: &'static str, why: &'static str) -> Result<T, WireError> {
    Err(WireError::Malformed { part, why })
}

impl<'a> Command<'a> {
    /// Reads the body of a command's frame.
    ///
    /// # Errors
    /// [`WireError::Malformed`].
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let Some((&length, rest)) = body.split_first() else { return malformed("command", "it has no name") };
        let Some((name, data)) = rest.split_at_checked(length.into()) else {
            return malformed("command", "its name goes beyond its end");
        };
        match name {
            b"" => malformed("command", "its name is empty"),
            b"READY" => Ready::parse(data).map(Self::Ready),
            b"ERROR" => match data.split_first() {
                Some((&length, reason)) if reason.len() == usize::from(length) => Ok(Self::Error(reason)),
                _ => malformed("ERROR", "the reason has another length than it says"),
            },
            b"PING" => match data.split_at_checked(2) {
                Some((_, context)) if context.len() > CONTEXT_BYTES_MAX => {
                    malformed("PING", "its context has more than 16 octets")
                }
                Some((time_to_live, context)) => Ok(Self::Ping {
                    time_to_live: u16::from_be_bytes([time_to_live[0], time_to_live[1]]),
                    context,
                }),
                None => malformed("PING", "it has no time to live"),
            },
            b"PONG" => Ok(Self::Pong(data)),
            b"SUBSCRIBE" => Ok(Self::Subscribe(data)),
            b"CANCEL" => Ok(Self::Cancel(data)),
            other => Ok(Self::Other(other)),
        }
    }

    /// Appends it as a frame. Contexts, reasons and names beyond what their lengths can say are cut.
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
                return malformed("READY", "a property goes beyond its end");
            };
            rest = behind;
            if name.is_empty() {
                return malformed("READY", "a property has no name");
            }
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                let Some(known) = SocketType::from_name(value) else {
                    return malformed("READY", "nobody knows the socket's type");
                };
                socket = Some(known);
            } else if name.eq_ignore_ascii_case(b"Identity") {
                if value.len() > IDENTITY_BYTES_MAX {
                    return malformed("READY", "the identity has more than 255 octets");
                }
                if value.first() == Some(&0) {
                    return malformed(
                        "READY",
                        "identities that begin with a zero octet are given by the other side",
                    );
                }
                identity = value;
            } else if name.eq_ignore_ascii_case(b"X-Token") {
                token = value;
            }
        }
        match socket {
            Some(socket) => Ok(Self { socket, identity, token }),
            None => malformed("READY", "it does not say the socket's type"),
        }
    }
}

/// The first property, and what comes behind it.
fn property(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&length, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(length.into())?;
    let (length, rest) = rest.split_at_checked(4)?;
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let (value, rest) = rest.split_at_checked(length as usize)?;
    Some((name, value, rest))
}

/// What a message of a subscriber of version 3.0 says: `01` and a topic subscribes, `00` and a topic does so no longer.
pub fn subscription(message: &[u8]) -> Option<Command<'_>> {
    match message.split_first()? {
        (1, topic) => Some(Command::Subscribe(topic)),
        (0, topic) => Some(Command::Cancel(topic)),
        _ => None,
    }
}
