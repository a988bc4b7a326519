//! What a server is started with: every bound has a name, a unit and a default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use mqcore_broker::options::ChannelOptions;
use mqcore_broker::policy;
use mqcore_broker::router::RouterDefinition;
use mqcore_wire::codec::Limits;

pub use mqcore_session::any::Protocol;

use crate::address::{ListenAddress, ListenerUrl};
use crate::data_dir::FRAME_BYTES_MAX;

/// Everything that can be set. `Config::default()` listens nowhere and is still a whole broker, reached by
/// [`connect_local`](crate::server::Server::connect_local).
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect. Default none.
    pub listeners: Vec<ListenerConfig>,
    /// Where health, metrics and the overview are served by HTTP. Default nowhere.
    pub admin: Option<SocketAddr>,
    /// Whether addresses other than loopback may be bound. Default no: as long as nobody has to log in,
    /// whoever reaches a listener may do everything.
    pub allow_remote: bool,
    /// How many shards; 0: one for each core, at most [`SHARDS_MAX`]. Default 0.
    pub shards: usize,
    /// What channels, and through them queues, start with.
    pub channel: ChannelOptions,
    /// Publishing to, or joining, a missing channel creates it. Default no.
    pub auto_create_channels: bool,
    /// Publishing to a missing queue creates it. Default no.
    pub auto_create_queues: bool,
    /// Clients at most; 0: no limit but `connections_max`. Default 0.
    pub client_limit: u32,
    /// Channels of one shard at most; 0: no limit. Default 0.
    pub channel_limit: u32,
    /// The handler or policy of queues whose channel names none. Default `memory`.
    pub delivery_handler: String,
    /// How large frames may be. Default 64 MiB, of them 64 KiB - 1 header text.
    pub limits: Limits,
    /// Connections at most, of all listeners together; further ones are closed at once. Default 65,536.
    pub connections_max: usize,
    /// Connections at most whose peers have not said yet who they are; one more closes the oldest of them, so
    /// that idle strangers cannot keep clients out. Default 16,384.
    pub half_open_max: usize,
    /// Octets at most that may wait for one connection to take them. Above half of it the connection is
    /// congested and is handed nothing new; below a quarter it is handed messages again; beyond all of it, it is
    /// closed instead of being told anything more. Default 8 MiB.
    pub output_bytes_max: usize,
    /// How long a congested connection may stay so before it is closed. Default 30 s.
    pub slow_consumer_timeout: Duration,
    /// How long a peer may take to say who it is. Default 10 s.
    pub handshake_timeout: Duration,
    /// A peer from which nothing came for this long is pinged. Default 60 s.
    pub ping_interval: Duration,
    /// How long after a ping something has to come. Default 10 s.
    pub pong_timeout: Duration,
    /// Who turns the clock. Default the system.
    pub clock: ClockConfig,
    /// Messages of one queue at most that wait for a handler's decision; more are refused as busy.
    /// Default 100,000.
    pub undecided_max: usize,
    /// Where definitions and saved messages are kept. Default nowhere: everything stays in memory, and queues
    /// whose policy saves refuse messages.
    pub data_dir: Option<PathBuf>,
    /// Routers that are there from the start, as they are written here whatever a peer made of them before. Default none.
    pub routers: Vec<RouterDefinition>,
}

/// Shards at most: connections remember in the bits of a small number which shards wait for them.
pub const SHARDS_MAX: usize = 16;

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            admin: None,
            allow_remote: false,
            shards: 0,
            channel: ChannelOptions::default(),
            auto_create_channels: false,
            auto_create_queues: false,
            client_limit: 0,
            channel_limit: 0,
            delivery_handler: policy::MEMORY.key.into(),
            limits: Limits::default(),
            connections_max: 65_536,
            half_open_max: 16_384,
            output_bytes_max: 8 * 1024 * 1024,
            slow_consumer_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            clock: ClockConfig::System,
            undecided_max: 100_000,
            data_dir: None,
            routers: Vec::new(),
        }
    }
}

impl Config {
    /// How many shards there will be: `shards`, or the number of cores, but never more than [`SHARDS_MAX`].
    pub fn shard_count(&self) -> usize {
        let wanted = match self.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        wanted.clamp(1, SHARDS_MAX)
    }

    /// Refuses values with which no server could work.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] names the value and what it may be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let out_of_range =
            |name, value: usize, why| Err(ConfigError::OutOfRange { name, value: value as u64, why });
        if self.shards > SHARDS_MAX {
            return out_of_range("shards", self.shards, "at most 16 (0: one for each core)");
        }
        if self.connections_max == 0 {
            return out_of_range("connections_max", 0, "at least 1");
        }
        if self.half_open_max == 0 {
            return out_of_range("half_open_max", 0, "at least 1");
        }
        if self.output_bytes_max < 4096 {
            return out_of_range("output_bytes_max", self.output_bytes_max, "at least 4096 octets");
        }
        if self.data_dir.is_some() && self.limits.frame_bytes_max > FRAME_BYTES_MAX {
            let value = self.limits.frame_bytes_max;
            let why = "at most 1 GiB - 4 KiB with a data directory";
            return Err(ConfigError::OutOfRange { name: "frame_bytes_max", value, why });
        }
        if self.limits.frame_bytes_max < 1024 {
            let value = self.limits.frame_bytes_max;
            return Err(ConfigError::OutOfRange {
                name: "frame_bytes_max",
                value,
                why: "at least 1024 octets",
            });
        }
        Ok(())
    }
}

/// Who turns the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockConfig {
    /// The system: Unix time at the start, and from then on a clock that never runs backwards.
    #[default]
    System,
    /// [`Server::advance`](crate::server::Server::advance) alone. Starts at [`MANUAL_START_MS`].
    Manual,
}

/// Where a manual clock starts, Unix milliseconds: a round number, so that tests can spell times out.
pub const MANUAL_START_MS: u64 = 1_800_000_000_000;

/// One place where clients connect: one port, one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where.
    pub address: ListenAddress,
}

impl FromStr for ListenerConfig {
    type Err = ConfigError;

    /// Reads `tmqp://127.0.0.1:2622`; without a port, the protocol's own. `tmqp+unix:///run/mqcore.sock` is a Unix
    /// socket.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let (name, carrier) = parsed.scheme.split_once('+').unwrap_or((parsed.scheme, ""));
        let unknown = || ConfigError::UnknownScheme { scheme: parsed.scheme.into() };
        let protocol = Protocol::from_scheme(name).ok_or_else(unknown)?;
        let address = match carrier {
            "" => ListenAddress::Tcp(parsed.host_and_port(protocol.default_port())?),
            "unix" if cfg!(unix) => parsed.unix_socket()?,
            _ => return Err(unknown()),
        };
        parsed.finish()?;
        Ok(Self { protocol, address })
    }
}

/// Reads the address of the admin side, `http://127.0.0.1:2627`.
///
/// # Errors
/// [`ConfigError`] if it is no such URL, or names a host instead of an address.
pub fn parse_admin_url(url: &str) -> Result<SocketAddr, ConfigError> {
    let parsed = ListenerUrl::parse(url)?;
    if !parsed.scheme.eq_ignore_ascii_case("http") {
        return Err(ConfigError::UnknownScheme { scheme: parsed.scheme.into() });
    }
    let address = parsed.host_and_port(2627)?.replace("localhost:", "127.0.0.1:");
    let address = address
        .parse()
        .map_err(|_| parsed.bad("expected an IP address and a port, such as 127.0.0.1:2627"))?;
    parsed.finish()?;
    Ok(address)
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not a URL.
    #[error("{url:?} has no scheme; write for example tmqp://127.0.0.1:2622")]
    NoScheme {
        /// What was given.
        url: String,
    },
    /// A URL of something that is not served here.
    #[error("no listener speaks {scheme:?}; known are tmqp (clients) and http (the admin side)")]
    UnknownScheme {
        /// What was given.
        scheme: String,
    },
    /// The part behind the scheme cannot be an address.
    #[error("{url:?} is no address to listen on: {why}")]
    BadAddress {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A URL with an option that means nothing there.
    #[error("{url:?} has the option {option:?}, which is not known there; known are: {known}")]
    UnknownOption {
        /// What was given.
        url: String,
        /// The option.
        option: String,
        /// What there is.
        known: String,
    },
    /// A number with which no server could work.
    #[error("{name} is {value}, but must be {why}")]
    OutOfRange {
        /// The field of [`Config`].
        name: &'static str,
        /// What was given.
        value: u64,
        /// What it may be.
        why: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<String, ConfigError> {
        url.parse::<ListenerConfig>().map(|listener| match listener.address {
            ListenAddress::Tcp(address) => address,
            ListenAddress::Unix { path, .. } => path.display().to_string(),
        })
    }

    #[test]
    fn a_url_gives_protocol_and_address() {
        let listener: ListenerConfig = "tmqp://127.0.0.1:0".parse().unwrap();
        let address = ListenAddress::Tcp("127.0.0.1:0".into());
        assert_eq!(listener, ListenerConfig { protocol: Protocol::Tmqp, address });
        assert_eq!(parsed("TMQP://localhost:99/").unwrap(), "localhost:99");
        assert_eq!(parsed("tmqp://[::1]:7").unwrap(), "[::1]:7");
    }

    #[test]
    fn a_missing_port_is_the_protocols_own() {
        assert_eq!(parsed("tmqp://localhost").unwrap(), "localhost:2622");
        assert_eq!(parsed("tmqp://[::1]").unwrap(), "[::1]:2622");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        assert!(matches!(parsed("127.0.0.1:2622"), Err(ConfigError::NoScheme { .. })));
        for url in ["amqp://127.0.0.1:2622", "tmqp+pipe://x", "amqp+unix:///x"] {
            assert!(matches!(parsed(url), Err(ConfigError::UnknownScheme { .. })), "{url}");
        }
        assert!(matches!(parsed("tmqp://h:1?a=b"), Err(ConfigError::UnknownOption { .. })));
        for url in ["tmqp://", "tmqp://:1", "tmqp://h:70000", "tmqp://h:x", "tmqp://h:1/path", "tmqp://::1:5"]
        {
            assert!(matches!(parsed(url), Err(ConfigError::BadAddress { .. })), "{url}");
        }
    }

    #[test]
    fn the_admin_url_is_http_and_an_address() {
        assert_eq!(parse_admin_url("http://127.0.0.1:0").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(parse_admin_url("http://localhost").unwrap(), "127.0.0.1:2627".parse().unwrap());
        assert!(parse_admin_url("https://127.0.0.1:1").is_err());
        assert!(parse_admin_url("http://example.invalid:1").is_err());
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        assert_eq!(Config::default().check(), Ok(()));
        let broken = Config { shards: 17, ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "shards", .. })));
        let limits = Limits { frame_bytes_max: 1 << 30, ..Limits::default() };
        let broken = Config { limits, data_dir: Some("data".into()), ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "frame_bytes_max", .. })));
        let broken = Config { output_bytes_max: 1, ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "output_bytes_max", .. })));
    }
}
