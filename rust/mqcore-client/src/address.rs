//! Addresses of queues (`orders/1001`) and brokers (`tmqp://host:2622`) in the spelling of each protocol.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use mqcore_tls::client::ClientTls;
use mqcore_wire::tmqp::NAME_BYTES_MAX;

use crate::error::ClientError;

/// The protocol of a connection, from the scheme of its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TMQP/2.0, which has all operations.
    Tmqp,
    /// MQKS: lines of text.
    Mqks,
    /// MicroMessage2: negotiated extensions.
    Micromessage,
    /// Throttr, which has a client of its own: [`crate::throttr`].
    Throttr,
}

impl Protocol {
    /// The scheme of its URLs: `tmqp`, `mqks`, `mm2`, `throttr`.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Tmqp => "tmqp",
            Self::Mqks => "mqks",
            Self::Micromessage => "mm2",
            Self::Throttr => "throttr",
        }
    }

    /// The name in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tmqp => "TMQP/2.0",
            Self::Mqks => "MQKS",
            Self::Micromessage => "MicroMessage2",
            Self::Throttr => "Throttr",
        }
    }

    /// The port of its listener when an address names none.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Tmqp => 2622,
            Self::Mqks => 25_000,
            Self::Micromessage => 2623,
            Self::Throttr => 9000,
        }
    }

    /// Reads the scheme of a URL.
    fn from_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "tmqp" | "tmq" => Some(Self::Tmqp),
            "mqks" => Some(Self::Mqks),
            "mm2" => Some(Self::Micromessage),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.scheme())
    }
}

/// Prefix of the names of topics in TMQP.
pub const TOPIC_PREFIX: &str = "@topic:";

/// The address to publish to or to consume from. In TMQP a queue, its channel and its number there, or a topic; in
/// protocols with plain names also an event or a destination. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueAddress {
    channel: Arc<str>,
    id: u16,
}

impl QueueAddress {
    /// Creates the address of a queue of a channel.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an invalid channel name.
    pub fn new(channel: &str, id: u16) -> Result<Self, ClientError> {
        Ok(Self { channel: channel_name(channel)?, id })
    }

    /// Parses `channel/id`. A plain name is queue 0 of that channel, and so is `logs/eu`, whose last part is not a
    /// 16-bit number. `@topic:NAME` is a topic, or with `*` in its name a pattern of topics.
    ///
    /// # Errors
    ///
    /// As [`QueueAddress::new`]; for a topic whose name is empty or too long.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        if let Some(name) = text.strip_prefix(TOPIC_PREFIX) {
            if name.is_empty() || text.len() > NAME_BYTES_MAX {
                let most = NAME_BYTES_MAX - TOPIC_PREFIX.len();
                return Err(ClientError::invalid("topic", format!("{name:?} must have 1 to {most} bytes")));
            }
            return Ok(Self { channel: text.into(), id: 0 });
        }
        match text.rsplit_once('/').and_then(|(channel, id)| Some((channel, id.parse::<u16>().ok()?))) {
            Some((channel, id)) => Self::new(channel, id),
            None => Self::new(text, 0),
        }
    }

    /// Parses a plain name: a queue, an event or a destination. `orders/1001` is that queue, `orders` is queue 0.
    /// [`QueueAddress::name`] returns exactly the parsed text.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for an empty name, more than 255 bytes, white space, control characters, or a
    /// leading `--`, which begins a flag.
    pub fn plain(text: &str) -> Result<Self, ClientError> {
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(ClientError::invalid("name", format!("{text:?} must have 1 to 255 bytes")));
        }
        if let Some(c) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(ClientError::invalid("name", format!("{text:?} must not contain {c:?}")));
        }
        if text.starts_with("--") {
            return Err(ClientError::invalid(
                "name",
                format!("{text:?} must not start with --, which begins a flag"),
            ));
        }
        let split = text.rsplit_once('/').and_then(|(channel, id)| Some((channel, id.parse::<u16>().ok()?)));
        let written = split.filter(|(channel, id)| *id > 0 && text.len() == channel.len() + 1 + digits(*id));
        let (channel, id) = written.unwrap_or((text, 0));
        Ok(Self { channel: channel.into(), id })
    }

    /// The queue as protocols with plain names write it: `orders` for queue 0, `orders/1001` for others.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        if self.id == 0 { Cow::Borrowed(&self.channel) } else { Cow::Owned(self.to_string()) }
    }

    /// Whether it is a topic of TMQP, or a pattern of topics.
    #[must_use]
    pub fn is_topic(&self) -> bool {
        is_topic(self.channel.as_bytes())
    }

    /// The channel's name; for a topic its name with [`TOPIC_PREFIX`].
    #[must_use]
    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// The queue's number within its channel.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The same queue with its channel in lower case, by which queues are compared.
    #[must_use]
    pub(crate) fn folded(&self) -> Self {
        Self { channel: self.channel.to_ascii_lowercase().into(), id: self.id }
    }

    /// Whether it is this queue. Channels compare without regard to case.
    pub(crate) fn is(&self, channel: &[u8], id: u16) -> bool {
        self.id == id && self.channel.as_bytes().eq_ignore_ascii_case(channel)
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_topic() {
            return formatter.write_str(&self.channel);
        }
        write!(formatter, "{}/{}", self.channel, self.id)
    }
}

/// Whether the target of a frame is a topic.
pub(crate) fn is_topic(target: &[u8]) -> bool {
    target.starts_with(TOPIC_PREFIX.as_bytes())
}

/// Whether a topic matches a pattern, both with [`TOPIC_PREFIX`]. In a pattern, `*` matches any bytes but a dot, and
/// only names with a dot match. Topics compare byte by byte.
pub(crate) fn topic_matches(pattern: &[u8], topic: &[u8]) -> bool {
    if !pattern.contains(&b'*') {
        return pattern == topic;
    }
    let parts = |name: &[u8]| name.split(|byte| *byte == b'.').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (wanted, found) = (parts(pattern), parts(topic));
    found.len() > 1
        && wanted.len() == found.len()
        && wanted.iter().zip(&found).all(|(wanted, found)| part_matches(wanted, found))
}

/// Each piece between stars is searched behind the one before it; the first and the last have fixed places.
fn part_matches(pattern: &[u8], part: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = part.strip_prefix(first) else { return false };
    let mut pieces: Vec<_> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        match rest.windows(piece.len()).position(|window| window == piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Number of decimal digits.
fn digits(number: u16) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Checks a channel name: 1 to 255 bytes without `@`, space, `;`, `*` and control characters.
///
/// # Errors
///
/// [`ClientError::InvalidArgument`] describes the defect.
pub fn channel_name(name: &str) -> Result<Arc<str>, ClientError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ClientError::invalid("channel name", format!("{name:?} must have 1 to 255 bytes")));
    }
    if let Some(c) = name.chars().find(|c| matches!(c, '@' | ' ' | ';' | '*') || c.is_control()) {
        return Err(ClientError::invalid("channel name", format!("{name:?} must not contain {c:?}")));
    }
    Ok(name.into())
}

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// The protocol.
    pub protocol: Protocol,
    /// Host name or IP address; for a Unix socket, its file.
    pub host: String,
    /// TCP port; 0 for a Unix socket.
    pub port: u16,
    /// The path in the handshake, usually `/`.
    pub path: String,
    /// The transport.
    pub carrier: SocketKind,
}

/// The transport of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP without encryption.
    Tcp,
    /// TLS, with settings of the address, or `None` for those of the client.
    Tls(Option<ClientTls>),
    /// A Unix socket.
    Unix,
}

impl BrokerAddress {
    /// Parses `tmqp://host[:port][/path]`; `tmq://` and `host:port` mean the same. `tmqps://` and `tmqs://` are TLS and
    /// may have `?ca=FILE&cert=FILE&key=FILE&server_name=NAME`; `tmqp+unix:///run/mqcore.sock` is a Unix socket.
    /// `mqks://`, `mqkss://` and `mqks+unix://` are for MQKS; `mm2://`, `mm2s://` and `mm2+unix://` for MicroMessage2.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for another scheme, a missing host, an invalid port or an unknown option.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::invalid("address", format!("{:?}: {why}", shown(text)));
        let (scheme, rest) = text.split_once("://").unwrap_or(("tmqp", text));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let unknown = || {
            wrong(&format!(
                "{scheme:?} is not a known scheme; use tmqp://host:port, mqks://host:port or mm2://host:port"
            ))
        };
        let (protocol, carrier) = if let Some(name) = scheme.strip_suffix("+unix")
            && cfg!(unix)
        {
            (Protocol::from_scheme(name).ok_or_else(unknown)?, SocketKind::Unix)
        } else if let Some(protocol) = Protocol::from_scheme(scheme) {
            (protocol, SocketKind::Tcp)
        } else {
            let protocol = scheme.strip_suffix('s').and_then(Protocol::from_scheme).ok_or_else(unknown)?;
            (protocol, SocketKind::Tls(tls_options(query).map_err(|why| wrong(&why))?))
        };
        if !query.is_empty() && !matches!(carrier, SocketKind::Tls(_)) {
            return Err(wrong(&format!("only {protocol}s:// has options")));
        }
        Self::located(protocol, carrier, rest).map_err(|why| wrong(&why))
    }

    /// Parses the part between the scheme and the options.
    pub(crate) fn located(protocol: Protocol, carrier: SocketKind, rest: &str) -> Result<Self, String> {
        if carrier == SocketKind::Unix {
            let host = percent_decoded(rest).ok_or("invalid percent escape")?;
            if !host.starts_with('/') {
                return Err("a Unix socket is an absolute path".to_owned());
            }
            return Ok(Self { protocol, host, port: 0, path: "/".into(), carrier });
        }
        let (authority, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        if authority.contains('@') {
            return Err(format!(
                "the URL of a {protocol} broker has no credentials; remove what is before the @"
            ));
        }
        let (host, port) = match authority.rsplit_once(':') {
            // A colon inside brackets belongs to an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| "the port is a number up to 65535")?)
            }
            _ => (authority, protocol.default_port()),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("the host is missing".to_owned());
        }
        Ok(Self { protocol, host: host.to_owned(), port, path: path.to_owned(), carrier })
    }
}

/// A URL for an error, without credentials.
pub(crate) fn shown(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let place = rest.find(['/', '?']).map_or(rest, |end| &rest[..end]);
    let Some(at) = place.rfind('@') else { return text.to_owned() };
    let separator = if text.contains("://") { "://" } else { "" };
    format!("{scheme}{separator}***{}", &rest[at..])
}

/// The settings of an address; `None` if it has none of its own.
pub(crate) fn tls_options(query: &str) -> Result<Option<ClientTls>, String> {
    if query.is_empty() {
        return Ok(None);
    }
    let mut tls = ClientTls::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("write options as ?name=value&other=value")?;
        let value = percent_decoded(value).ok_or("invalid percent escape")?;
        match name {
            "ca" => tls.ca = Some(value.into()),
            "cert" => tls.cert = Some(value.into()),
            "key" => tls.key = Some(value.into()),
            "server_name" => tls.server_name = Some(value),
            _ => return Err(format!("unknown option {name:?}; use ca, cert, key or server_name")),
        }
    }
    Ok(Some(tls))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secure = match self.carrier {
            SocketKind::Unix => return write!(formatter, "{}+unix://{}", self.protocol, self.host),
            SocketKind::Tcp => "",
            SocketKind::Tls(_) => "s",
        };
        if self.host.contains(':') {
            write!(formatter, "{}{secure}://[{}]:{}", self.protocol, self.host, self.port)
        } else {
            write!(formatter, "{}{secure}://{}:{}", self.protocol, self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_an_address_without_a_number() {
        let topic = QueueAddress::parse("@topic:Orders.new/7").unwrap();
        assert!(topic.is_topic());
        assert_eq!((topic.to_string().as_str(), topic.id()), ("@topic:Orders.new/7", 0));
        assert!(!QueueAddress::parse("orders/7").unwrap().is_topic());
        let long = format!("@topic:{}", "x".repeat(249));
        assert!(QueueAddress::parse("@topic:").is_err() && QueueAddress::parse(&long).is_err());
        assert!(QueueAddress::parse(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn a_star_matches_within_one_part_of_a_topic() {
        for (pattern, topic, expected) in [
            ("orders.new", "orders.new", true),
            ("orders.new", "Orders.new", false),
            ("orders.*", "orders.eu", true),
            ("orders.*", "orders.", true),
            ("orders.*", "orders.eu.north", false),
            ("*", "orders", false),
            ("*.*", "orders.eu", true),
            ("*.eu", "orders.us", false),
            ("o*r*s.e*", "orders.eu", true),
            ("o*z*s.e*", "orders.eu", false),
            ("a*a.x", "a.x", false),
            ("a*a.x", "aa.x", true),
        ] {
            assert_eq!(topic_matches(pattern.as_bytes(), topic.as_bytes()), expected, "{pattern} {topic}");
        }
    }

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
        assert_eq!(read("tmq://h/path"), ("h".into(), 2622, "/path".into()));
        assert_eq!(read("10.0.0.1:5"), ("10.0.0.1".into(), 5, "/".into()));
        assert_eq!(read("tmqp://[::1]:7"), ("::1".into(), 7, "/".into()));
        assert_eq!(read("tmqp://[::1]"), ("::1".into(), 2622, "/".into()));
        for wrong in ["http://h", "tmqp://", "tmqp://:1", "h:99999", "h:x"] {
            assert!(BrokerAddress::parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(BrokerAddress::parse("tmqp://[::1]:7").unwrap().to_string(), "tmqp://[::1]:7");
    }

    #[test]
    fn a_plain_name_is_given_back_as_it_was_written() {
        for name in ["orders", "orders/7", "x/0", "x/007", "logs/eu", "a@b;*.c", "x/65536", "/7"] {
            assert_eq!(QueueAddress::plain(name).unwrap().name(), name);
        }
        assert_eq!(QueueAddress::plain("orders/7").unwrap(), QueueAddress::parse("orders/7").unwrap());
        for wrong in ["", "a b", "--add", "a\tb", &"x".repeat(256)] {
            assert!(QueueAddress::plain(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn credentials_are_rejected_and_not_shown() {
        for text in [
            "tmqp://SECRET@h:7/p",
            "mqks://user:SECRET@h",
            "mm2s://SECRET@h?ca=c",
            "SECRET@h:9",
            "x://SECRET@h",
        ] {
            let error = BrokerAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains("***@h") && !error.contains("SECRET"), "{error}");
        }
        assert!(BrokerAddress::parse("tmqp://h/p@q").is_ok(), "behind the host it is no credential");
    }

    #[test]
    fn the_scheme_says_what_is_spoken_and_through_what() {
        let read = |text: &str| {
            let address = BrokerAddress::parse(text).unwrap();
            (address.protocol, address.port, address.to_string())
        };
        assert_eq!(read("mqks://h"), (Protocol::Mqks, 25_000, "mqks://h:25000".into()));
        assert_eq!(read("mqkss://h:9?ca=c"), (Protocol::Mqks, 9, "mqkss://h:9".into()));
        assert_eq!(read("mm2s://h"), (Protocol::Micromessage, 2623, "mm2s://h:2623".into()));
        assert_eq!(read("tmqs://h"), (Protocol::Tmqp, 2622, "tmqps://h:2622".into()));
        for wrong in ["mqk://h", "throttr://h", "mqks://h?ca=c", "s://h"] {
            assert!(BrokerAddress::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_address_says_what_the_conversation_goes_through() {
        let read = |text: &str| BrokerAddress::parse(text).unwrap();
        assert_eq!(read("tmqps://h").carrier, SocketKind::Tls(None));
        let url = "tmqps://h:9/p?ca=/a%20b&cert=c&key=k&server_name=n";
        let own = ClientTls {
            ca: Some("/a b".into()),
            cert: Some("c".into()),
            key: Some("k".into()),
            server_name: Some("n".into()),
            ..ClientTls::default()
        };
        assert_eq!(read(url).carrier, SocketKind::Tls(Some(own)));
        assert_eq!((read(url).path.as_str(), read(url).to_string().as_str()), ("/p", "tmqps://h:9"));
        for wrong in ["tmqps://h?insecure=1", "tmqps://h?ca", "tmqps://h?ca=%f", "tmqp://h?ca=c"] {
            assert!(BrokerAddress::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_is_an_address_too() {
        let address = BrokerAddress::parse("tmqp+unix:///run/a%20b.sock").unwrap();
        assert_eq!((address.host.as_str(), &address.carrier), ("/run/a b.sock", &SocketKind::Unix));
        assert_eq!(address.to_string(), "tmqp+unix:///run/a b.sock");
        assert!(BrokerAddress::parse("tmqp+unix://a.sock").is_err());
    }
}
