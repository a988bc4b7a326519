//! Where things are: queues (`orders/1001`) and brokers (`tmqp://host:2622`).

use std::fmt;
use std::sync::Arc;

use mqcore_wire::tmqp::NAME_BYTES_MAX;

use crate::error::ClientError;

/// The port of a TMQP listener when the address names none.
pub const DEFAULT_PORT: u16 = 2622;

/// A queue: the channel it belongs to, and its number there. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueAddress {
    channel: Arc<str>,
    id: u16,
}

impl QueueAddress {
    /// The queue with this number of this channel.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for a channel name that no broker takes.
    pub fn new(channel: &str, id: u16) -> Result<Self, ClientError> {
        Ok(Self { channel: channel_name(channel)?, id })
    }

    /// Reads `channel/id`; a plain name is queue 0 of that channel, and so is `logs/eu`, whose last part is no
    /// number of 16 bits.
    ///
    /// # Errors
    ///
    /// As [`QueueAddress::new`].
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        match text.rsplit_once('/').and_then(|(channel, id)| Some((channel, id.parse::<u16>().ok()?))) {
            Some((channel, id)) => Self::new(channel, id),
            None => Self::new(text, 0),
        }
    }

    /// The channel's name.
    #[must_use]
    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// The queue's number within its channel.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.channel, self.id)
    }
}

/// Takes a channel name that a broker takes: 1 to 255 octets, none of `@`, space, `;`, `*`, no control character.
///
/// # Errors
///
/// [`ClientError::InvalidArgument`] says what is wrong with it.
pub fn channel_name(name: &str) -> Result<Arc<str>, ClientError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ClientError::invalid("channel name", format!("{name:?} must have 1 to 255 octets")));
    }
    if let Some(c) = name.chars().find(|c| matches!(c, '@' | ' ' | ';' | '*') || c.is_control()) {
        return Err(ClientError::invalid("channel name", format!("{name:?} must not contain {c:?}")));
    }
    Ok(name.into())
}

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// Name or address of the machine.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// What the handshake gives as path; `/` as a rule.
    pub path: String,
}

impl BrokerAddress {
    /// Reads `tmqp://host[:port][/path]`; `tmq://` is the same, and so is `host:port`.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for another scheme, a missing host or a port that is none.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::invalid("address", format!("{text:?}: {why}"));
        let rest = match text.split_once("://") {
            None => text,
            Some(("tmqp" | "tmq", rest)) => rest,
            Some((scheme, _)) => {
                return Err(wrong(&format!("{scheme:?} is not spoken here; write tmqp://host:port")));
            }
        };
        let (authority, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        let (host, port) = match authority.rsplit_once(':') {
            // A colon inside brackets belongs to an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong("the port is a number up to 65535"))?)
            }
            _ => (authority, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "tmqp://[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "tmqp://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_queue_address_counts_only_if_it_is_a_number() {
        let read = |text: &str| {
            let queue = QueueAddress::parse(text).unwrap();
            (queue.channel().to_string(), queue.id())
        };
        assert_eq!(read("orders/1001"), ("orders".into(), 1001));
        assert_eq!(read("orders"), ("orders".into(), 0));
        assert_eq!(read("logs/eu"), ("logs/eu".into(), 0));
        assert_eq!(read("logs/eu/7"), ("logs/eu".into(), 7));
        assert_eq!(read("a/65536"), ("a/65536".into(), 0));
        for wrong in ["", "/1", "a b/1", "@name:x", "a;b", "*", "a\n"] {
            assert!(QueueAddress::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn broker_addresses_are_read_in_their_usual_spellings() {
        let read = |text: &str| {
            let address = BrokerAddress::parse(text).unwrap();
            (address.host, address.port, address.path)
        };
        assert_eq!(read("tmqp://localhost:2626"), ("localhost".into(), 2626, "/".into()));
        assert_eq!(read("tmq://h/path"), ("h".into(), DEFAULT_PORT, "/path".into()));
        assert_eq!(read("10.0.0.1:5"), ("10.0.0.1".into(), 5, "/".into()));
        assert_eq!(read("tmqp://[::1]:7"), ("::1".into(), 7, "/".into()));
        assert_eq!(read("tmqp://[::1]"), ("::1".into(), DEFAULT_PORT, "/".into()));
        for wrong in ["http://h", "tmqp://", "tmqp://:1", "h:99999", "h:x"] {
            assert!(BrokerAddress::parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(BrokerAddress::parse("tmqp://[::1]:7").unwrap().to_string(), "tmqp://[::1]:7");
    }
}
