//! Configuration of a server. Each limit has a name, a unit and a default.

pub mod address;
pub(crate) mod error;
pub mod history;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::options::ChannelOptions;
use mqcore_broker::model::policy;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::topic::TopicLimits;
use mqcore_limiter::limiter;
use mqcore_session::any::ListenerTerms;
use mqcore_session::protocol::LimitUse;
use mqcore_wire::codec::Limits;

pub use mqcore_session::any::Protocol;
pub use mqcore_tls::listener::{ClientCertificates, ListenerTls};

pub use self::error::ConfigError;
pub use crate::runtime::clock::{ClockConfig, MANUAL_START_MS};
pub use crate::shard::count::SHARDS_MAX;

use crate::authority::config::AuthorityConfig;
use crate::config::address::{ListenAddress, ListenerUrl};
use crate::config::history::HistoryConfig;
use crate::net::guard::Limit;
use crate::nodes::config::NodeConfig;
use crate::storage::data_dir::FRAME_BYTES_MAX;

/// All settings. `Config::default()` has no listeners and is still a complete broker, reached by
/// [`connect_local`](crate::server::Server::connect_local).
#[derive(Debug, Clone)]
pub struct Config {
    /// Listeners for clients. Default none.
    pub listeners: Vec<ListenerConfig>,
    /// Listener for health, metrics and the overview over HTTP. Default none.
    pub admin: Option<AdminConfig>,
    /// TLS configuration of encrypted listeners that name no files of their own. Default none.
    pub tls: Option<ListenerTls>,
    /// Maximum TLS handshakes in progress, over all listeners. Beyond it the oldest handshake is dropped, once it has
    /// had a fair time. Default 1,024.
    pub tls_handshakes_max: usize,
    /// How long before its expiry the broker warns about a certificate. Default 30 days.
    pub tls_expiry_warning: Duration,
    /// Whether listeners on addresses other than loopback are allowed while no login is required. Anyone who reaches
    /// such a listener may do everything except administer. Has no effect once there is a user, a token or an
    /// authenticator. Default no.
    pub allow_remote: bool,
    /// Number of shards; 0: one for each core, at most [`SHARDS_MAX`]. Default 0.
    pub shards: usize,
    /// Initial options of channels and, through them, of queues.
    pub channel: ChannelOptions,
    /// Publishing to, or joining, a missing channel creates it. Default no.
    pub auto_create_channels: bool,
    /// Publishing to a missing queue creates it. Default no.
    pub auto_create_queues: bool,
    /// Maximum clients; 0: no limit except `connections_max`. Default 0.
    pub client_limit: u32,
    /// Maximum channels of one shard; 0: no limit. Default 0.
    pub channel_limit: u32,
    /// The handler or policy of queues whose channel does not name one. Default `memory`.
    pub delivery_handler: String,
    /// The event handler that hears about all channels. Default none.
    pub event_handler: Option<String>,
    /// Maximum size of frames. Default 64 MiB, including at most 64 KiB - 1 of header text.
    pub limits: Limits,
    /// Maximum connections over all listeners; further ones are closed at once. Default 65,536.
    pub connections_max: usize,
    /// Maximum connections without a completed login; one more closes the oldest of them, so that idle peers cannot
    /// keep clients out. Default 16,384.
    pub half_open_max: usize,
    /// Maximum bytes of a login: of unfinished input of a peer that has to log in and has not. Protocols with a smaller
    /// limit for their handshake keep it. Default 64 KiB.
    pub login_bytes_max: u64,
    /// Maximum bytes of unfinished input of all connections without a completed login; beyond it, the connection whose
    /// input has waited longest is closed. Default 64 MiB.
    pub half_open_bytes_max: usize,
    /// Maximum bytes of unfinished frames of all clients, counting frames from 32 KiB on; beyond it, the client whose
    /// frame began first is disconnected. Default 1 GiB.
    pub unfinished_bytes_max: usize,
    /// Maximum bytes of output that wait for one connection. Above half of it the connection is congested and
    /// receives no deliveries until it is below a quarter. Above the maximum, the connection is closed. Default 8
    /// MiB.
    pub output_bytes_max: usize,
    /// Maximum time that a connection may stay congested before it is closed. Default 30 s.
    pub slow_consumer_timeout: Duration,
    /// Time to finish the TLS handshake, if there is one, and then the same time again to log in. Default 10 s.
    pub handshake_timeout: Duration,
    /// A peer that has sent nothing for this time is pinged. Default 60 s.
    pub ping_interval: Duration,
    /// Time for a peer to send something after a ping. Default 10 s.
    pub pong_timeout: Duration,
    /// The source of time. Default: the system clock.
    pub clock: ClockConfig,
    /// Maximum messages of one queue that wait for a handler's decision; further ones are rejected as busy. Default
    /// 100,000.
    pub undecided_max: usize,
    /// Maximum subscriptions to topics of connections and users.
    pub topic_limits: TopicLimits,
    /// Maximum bytes of saved messages in memory; each shard has an equal share. Above it, the bodies farthest from
    /// delivery leave memory, and are read back before they are needed. Bodies about to be delivered stay: up to 1
    /// MiB for each queue that is being consumed comes on top. Default 256 MiB.
    pub memory_watermark: u64,
    /// Directory for definitions and saved messages. Default none: everything stays in memory, and queues with a
    /// saving policy reject messages.
    pub data_dir: Option<PathBuf>,
    /// Maximum publish rate of one client; the rejection of further messages contains the time after which to retry.
    /// Default no limit.
    pub publish_limit: Option<Limit>,
    /// Maximum rate of connections and logins from one address; further ones are rejected likewise. Default no limit.
    pub connect_limit: Option<Limit>,
    /// Maximum counters and buffers of the limiter; at this number a new one replaces the one that expires soonest.
    /// Default 16,777,216.
    pub limiter_keys_max: u64,
    /// Maximum bytes of counters and buffers: 120 each, plus keys beyond 16 bytes and values of buffers. Default 2
    /// GiB.
    pub limiter_bytes_max: u64,
    /// Maximum time between a change to a counter or buffer that survives restarts (a listener with `persist=on`) and the
    /// write of it. A crash loses no more than this time and the write in progress. Default 100 ms.
    pub limiter_persist_interval: Duration,
    /// Routers created at every start. A definition here replaces what clients have changed. Default none.
    pub routers: Vec<RouterDefinition>,
    /// Channels and queues that exist from the start, and routers that clients may change later. Declared options replace
    /// those that clients have set. Default none.
    pub declarations: Vec<Declaration>,
    /// Users, tokens and permissions. Default: anyone who reaches a listener, which must be on loopback, may do
    /// everything.
    pub authority: AuthorityConfig,
    /// This broker's links to other brokers. Default none: other brokers are ordinary clients.
    pub node: Option<NodeConfig>,
    /// Whether and how the broker records what happens to each message. Needs a data directory. Default no.
    pub history: Option<HistoryConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            admin: None,
            tls: None,
            tls_handshakes_max: 1024,
            tls_expiry_warning: Duration::from_secs(30 * 24 * 3600),
            allow_remote: false,
            shards: 0,
            channel: ChannelOptions::default(),
            auto_create_channels: false,
            auto_create_queues: false,
            client_limit: 0,
            channel_limit: 0,
            delivery_handler: policy::MEMORY.key.into(),
            event_handler: None,
            limits: Limits::default(),
            connections_max: 65_536,
            half_open_max: 16_384,
            login_bytes_max: 64 * 1024,
            half_open_bytes_max: 64 << 20,
            unfinished_bytes_max: 1 << 30,
            output_bytes_max: 8 * 1024 * 1024,
            slow_consumer_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(60),
            pong_timeout: Duration::from_secs(10),
            clock: ClockConfig::System,
            undecided_max: 100_000,
            topic_limits: TopicLimits::default(),
            memory_watermark: 256 << 20,
            data_dir: None,
            publish_limit: None,
            connect_limit: None,
            limiter_keys_max: limiter::LimiterConfig::default().keys_max,
            limiter_bytes_max: limiter::LimiterConfig::default().bytes_max,
            limiter_persist_interval: Duration::from_millis(100),
            routers: Vec::new(),
            declarations: Vec::new(),
            authority: AuthorityConfig::default(),
            node: None,
            history: None,
        }
    }
}

impl Config {
    /// The number of shards: `shards`, or the number of cores, but never more than [`SHARDS_MAX`].
    pub fn shard_count(&self) -> usize {
        let wanted = match self.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        wanted.clamp(1, SHARDS_MAX)
    }

    /// Whether any listener saves the limits that are created through it.
    pub(crate) fn persists_limits(&self) -> bool {
        self.limit_uses().any(|limits| limits.persist)
    }

    /// How the listeners use the store of limits.
    pub(crate) fn limit_uses(&self) -> impl Iterator<Item = LimitUse> {
        self.listeners.iter().filter_map(|listener| listener.terms.limits())
    }

    /// Rejects values with which no server could work.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] names the value and its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let out_of_range =
            |name, value: usize, why| Err(ConfigError::OutOfRange { name, value: value as u64, why });
        if self.shards > SHARDS_MAX {
            return out_of_range("shards", self.shards, "at most 16 (0: one for each core)");
        }
        if let Some(node) = &self.node {
            node.check(self.data_dir.is_some())?;
        }
        if self.connections_max == 0 {
            return out_of_range("connections_max", 0, "at least 1");
        }
        if self.half_open_max == 0 {
            return out_of_range("half_open_max", 0, "at least 1");
        }
        if self.login_bytes_max < 1024 {
            let value = self.login_bytes_max;
            return Err(ConfigError::OutOfRange {
                name: "login_bytes_max",
                value,
                why: "at least 1024 bytes",
            });
        }
        for (name, value) in [
            ("half_open_bytes_max", self.half_open_bytes_max),
            ("unfinished_bytes_max", self.unfinished_bytes_max),
        ] {
            if value < 64 * 1024 {
                return out_of_range(name, value, "at least 65536 bytes");
            }
        }
        if self.tls_handshakes_max == 0 {
            return out_of_range("tls_handshakes_max", 0, "at least 1");
        }
        let TopicLimits { subscriptions_max, patterns_max, patterns_per_user_max } = self.topic_limits;
        for (name, value) in [
            ("topic_subscriptions_max", subscriptions_max),
            ("topic_patterns_max", patterns_max),
            ("topic_patterns_per_user_max", patterns_per_user_max),
        ] {
            if value == 0 {
                return out_of_range(name, 0, "at least 1");
            }
        }
        if self.output_bytes_max < 4096 {
            return out_of_range("output_bytes_max", self.output_bytes_max, "at least 4096 bytes");
        }
        if self.data_dir.is_some() && self.limits.frame_bytes_max > FRAME_BYTES_MAX {
            let value = self.limits.frame_bytes_max;
            let why = "at most 1 GiB - 4 KiB with a data directory";
            return Err(ConfigError::OutOfRange { name: "frame_bytes_max", value, why });
        }
        if self.data_dir.is_none() && self.persists_limits() {
            return Err(ConfigError::LimitsNowhere);
        }
        if self.history.is_some() && self.data_dir.is_none() {
            return Err(ConfigError::HistoryNowhere);
        }
        if self.limits.frame_bytes_max < 1024 {
            let value = self.limits.frame_bytes_max;
            return Err(ConfigError::OutOfRange {
                name: "frame_bytes_max",
                value,
                why: "at least 1024 bytes",
            });
        }
        Ok(())
    }
}

/// One listener: one address, one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its protocol, with the protocol's settings.
    pub terms: ListenerTerms,
    /// Its address.
    pub address: ListenAddress,
    /// Whether it uses TLS.
    pub encryption: Encryption,
}

/// Whether a listener uses TLS, and with which files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Encryption {
    /// No TLS. The default.
    #[default]
    None,
    /// TLS with the files of [`Config::tls`].
    Shared,
    /// TLS with files of its own.
    Own(ListenerTls),
}

impl FromStr for ListenerConfig {
    type Err = ConfigError;

    /// Parses `tmqp://127.0.0.1:2622`; without a port, the protocol's default port. `tmqps://`, the protocol's name
    /// with an `s`, uses TLS: the options `?cert=FILE&key=FILE&client_ca=FILE&client_cert=required` are the fields of
    /// [`ListenerTls`]; without `cert` the files of [`Config::tls`] are used. `tmqp+unix:///run/mqcore.sock` is a
    /// Unix socket.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let (name, carrier) = parsed.scheme.split_once('+').unwrap_or((parsed.scheme, ""));
        let unknown = || ConfigError::UnknownScheme { scheme: parsed.scheme.into() };
        let (protocol, encrypted) = scheme(name).ok_or_else(unknown)?;
        let terms = ListenerTerms::read(protocol, &mut parsed.options);
        let terms = terms.map_err(|bad| parsed.bad_option(bad))?;
        let port = terms.default_port();
        let address = match carrier {
            "" => ListenAddress::Tcp(parsed.host_and_port(port)?),
            "unix" if cfg!(unix) && !encrypted => parsed.unix_socket()?,
            "unix" if encrypted => return Err(parsed.bad("a Unix socket needs no TLS; leave out the 's'")),
            _ => return Err(unknown()),
        };
        let encryption = if encrypted { encryption(&mut parsed)? } else { Encryption::None };
        parsed.finish()?;
        Ok(Self { terms, address, encryption })
    }
}

/// The protocol of a scheme, and whether an `s` after its name requests TLS.
fn scheme(name: &str) -> Option<(Protocol, bool)> {
    if let Some(protocol) = Protocol::from_scheme(name) {
        return Some((protocol, false));
    }
    Some((Protocol::from_scheme(name.strip_suffix(['s', 'S'])?)?, true))
}

impl ListenerConfig {
    /// The protocol of this listener.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.terms.protocol()
    }

    /// All listeners that a URL describes. Most URLs describe one; a protocol may add listeners on further ports to a
    /// TCP URL. `emqp://host:port` without a role describes the five sockets of EventMQ: workers connect to the port
    /// in the URL, or 47290; clients, administrators, publishers and subscribers connect 1, 3, 8 and 9 above it, or
    /// to the ports of `?frontend=PORT&admin=PORT&publish=PORT&subscribe=PORT`. With port 0, each listener picks its
    /// own.
    ///
    /// # Errors
    /// [`ConfigError`], as for the URL of one listener.
    pub fn all_of(url: &str) -> Result<Vec<Self>, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let Some((protocol, _)) = scheme(parsed.scheme) else { return Ok(vec![url.parse()?]) };
        let companions = ListenerTerms::companions(protocol, &mut parsed.options);
        let companions = companions.map_err(|bad| parsed.bad_option(bad))?;
        if companions.is_empty() {
            return Ok(vec![url.parse()?]);
        }
        let address = parsed.host_and_port(protocol.default_port())?;
        let (host, port) = address.rsplit_once(':').ok_or_else(|| parsed.bad("the port is missing"))?;
        let port: u16 = port.parse().map_err(|_| parsed.bad("the port is not a number from 0 to 65535"))?;
        let first: Self = parsed.without_ports(&format!("{host}:{port}")).parse()?;
        let mut all = vec![first.clone()];
        for companion in companions {
            let port = match companion.port {
                Some(given) => given,
                None if port == 0 => 0,
                None => port
                    .checked_add(companion.offset)
                    .ok_or_else(|| parsed.bad("the ports above it would go beyond 65535"))?,
            };
            let address = ListenAddress::Tcp(format!("{host}:{port}"));
            all.push(Self { address, terms: companion.terms, ..first.clone() });
        }
        Ok(all)
    }
}

/// The TLS options of a listener's URL.
fn encryption(url: &mut ListenerUrl<'_>) -> Result<Encryption, ConfigError> {
    let cert = url.take("cert").map(PathBuf::from);
    let key = url.take("key").map(PathBuf::from);
    let client_ca = url.take("client_ca").map(PathBuf::from);
    let client_cert = url.take("client_cert");
    let Some(cert) = cert else {
        if key.is_some() || client_ca.is_some() || client_cert.is_some() {
            return Err(url.bad("key, client_ca and client_cert belong to a cert, which is missing"));
        }
        return Ok(Encryption::Shared);
    };
    if client_cert.is_some() && client_ca.is_none() {
        return Err(url.bad("client_cert needs a client_ca, the authorities of the clients"));
    }
    let client_cert = match client_cert.as_deref() {
        None => ClientCertificates::default(),
        Some(word) => ClientCertificates::from_text(word)
            .ok_or_else(|| url.bad("client_cert is 'required' or 'optional'"))?,
    };
    Ok(Encryption::Own(ListenerTls { cert, key, client_ca, client_cert }))
}

/// The listener of the admin side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address and port; port 0 picks a free port.
    pub address: SocketAddr,
    /// Whether it uses TLS.
    pub encryption: Encryption,
}

impl From<SocketAddr> for AdminConfig {
    /// Without TLS.
    fn from(address: SocketAddr) -> Self {
        Self { address, encryption: Encryption::None }
    }
}

impl FromStr for AdminConfig {
    type Err = ConfigError;

    /// Parses `http://127.0.0.1:2627`, or `https://` with the options of an encrypted listener.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let encrypted = parsed.scheme.eq_ignore_ascii_case("https");
        if !encrypted && !parsed.scheme.eq_ignore_ascii_case("http") {
            return Err(ConfigError::UnknownScheme { scheme: parsed.scheme.into() });
        }
        let address = parsed.host_and_port(2627)?.replace("localhost:", "127.0.0.1:");
        let address = address
            .parse()
            .map_err(|_| parsed.bad("expected an IP address and a port, such as 127.0.0.1:2627"))?;
        let encryption = if encrypted { encryption(&mut parsed)? } else { Encryption::None };
        parsed.finish()?;
        Ok(Self { address, encryption })
    }
}

#[cfg(test)]
mod tests {
    use mqcore_session::listener::ListenerOptions;

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
        let encryption = Encryption::None;
        let terms = ListenerTerms::read(listener.protocol(), &mut ListenerOptions::new()).unwrap();
        assert_eq!(listener.protocol().as_str(), "tmqp");
        let wanted = ListenerConfig { terms, address, encryption };
        assert_eq!(listener, wanted);
        assert_eq!(parsed("TMQP://localhost:99/").unwrap(), "localhost:99");
        assert_eq!(parsed("tmqp://[::1]:7").unwrap(), "[::1]:7");
    }

    #[test]
    fn a_url_of_eventmq_stands_for_five_sockets_unless_it_names_one() {
        let ports = |url: &str| {
            let all = ListenerConfig::all_of(url)?;
            let ports = all.into_iter().map(|listener| match listener.address {
                ListenAddress::Tcp(address) => {
                    let query = listener.terms.client_query();
                    format!("{} {address}", query.strip_prefix("?role=").unwrap_or_default())
                }
                ListenAddress::Unix { path, .. } => path.display().to_string(),
            });
            Ok::<_, ConfigError>(ports.collect::<Vec<_>>())
        };
        let original =
            ["backend h:47290", "frontend h:47291", "admin h:47293", "publish h:47298", "subscribe h:47299"];
        assert_eq!(ports("emqp://h").unwrap(), original);
        assert_eq!(ports("emqp://h:0?admin=7").unwrap()[..3], ["backend h:0", "frontend h:0", "admin h:7"]);
        assert_eq!(ports("emqp://h?role=frontend").unwrap(), ["frontend h:47291"]);
        assert_eq!(ports("emqp://[::1]:9?role=subscribe").unwrap(), ["subscribe [::1]:9"]);
        assert_eq!(ports("emqp+unix:///run/e.sock").unwrap(), ["/run/e.sock"]);
        assert_eq!(ports("tmqp://h:1").unwrap().len(), 1);
        for wrong in [
            "emqp://h?role=worker",
            "emqp://h?frontend=x",
            "emqp://h?frontend=70000",
            "emqp://h:65530",
            "emqp://h?role=frontend&frontend=1",
            "emqp://h?what=1",
        ] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_protocol_has_options_of_its_own() {
        let read = |url: &str| url.parse::<ListenerConfig>();
        let throttr = read("throttr://127.0.0.1?value=uint64&protocol=7.3&metrics=off").unwrap();
        assert_eq!(throttr.address, ListenAddress::Tcp("127.0.0.1:9000".into()));
        assert_eq!(throttr.terms.limits(), Some(LimitUse { persist: false, metrics: false }));
        assert_eq!(parsed("mqks://127.0.0.1").unwrap(), "127.0.0.1:25000");
        assert_eq!(parsed("mm2://127.0.0.1").unwrap(), "127.0.0.1:2623");
        assert!(read("mm2s://h?cert=c&window_max=50&idle_timeout=1.5").is_ok());
        for wrong in ["throttr://h?value=uint128", "mqks://h?line_bytes_max=1k", "mm2://h?window_max=0"] {
            assert!(matches!(parsed(wrong), Err(ConfigError::BadAddress { .. })), "{wrong}");
        }
        for wrong in [
            "throttr://h?values=uint8",
            "tmqp://h?value=uint8",
            "tmqp://h?line_bytes_max=4096",
            "mqks://h?window_max=5",
        ] {
            assert!(matches!(parsed(wrong), Err(ConfigError::UnknownOption { .. })), "{wrong}");
        }
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
    fn an_s_behind_the_protocol_asks_for_tls_with_files_of_its_own_or_shared() {
        let read = |url: &str| url.parse::<ListenerConfig>().map(|listener| listener.encryption);
        assert_eq!(read("tmqps://127.0.0.1:1"), Ok(Encryption::Shared));
        let mut files = ListenerTls {
            cert: "/etc/a b.pem".into(),
            key: None,
            client_ca: None,
            client_cert: ClientCertificates::Required,
        };
        assert_eq!(read("TMQPS://h:1?cert=/etc/a%20b.pem"), Ok(Encryption::Own(files.clone())));
        files.key = Some("k".into());
        files.client_ca = Some("ca".into());
        files.client_cert = ClientCertificates::Optional;
        let url = "tmqps://h:1?client_cert=optional&cert=/etc/a%20b.pem&key=k&client_ca=ca";
        assert_eq!(read(url), Ok(Encryption::Own(files)));
        for wrong in [
            "tmqps://h:1?key=k",
            "tmqps://h:1?cert=c&client_cert=required",
            "tmqps://h:1?cert=c&client_ca=a&client_cert=maybe",
            "tmqps+unix:///a",
        ] {
            assert!(matches!(read(wrong), Err(ConfigError::BadAddress { .. })), "{wrong}");
        }
        assert!(matches!(read("tmqp://h:1?cert=c"), Err(ConfigError::UnknownOption { .. })));
    }

    #[test]
    fn the_admin_url_is_http_or_https_and_an_address() {
        let read = |url: &str| url.parse::<AdminConfig>();
        let plain = |address: &str| AdminConfig::from(address.parse::<SocketAddr>().unwrap());
        assert_eq!(read("http://127.0.0.1:0").unwrap(), plain("127.0.0.1:0"));
        assert_eq!(read("http://localhost").unwrap(), plain("127.0.0.1:2627"));
        let encrypted = AdminConfig { encryption: Encryption::Shared, ..plain("127.0.0.1:1") };
        assert_eq!(read("https://127.0.0.1:1").unwrap(), encrypted);
        assert!(read("http://example.invalid:1").is_err());
        assert!(read("http://127.0.0.1:1?cert=c").is_err());
        assert!(read("tmqp://127.0.0.1:1").is_err());
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        assert_eq!(Config::default().check(), Ok(()));
        let broken = Config { shards: 17, ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "shards", .. })));
        let limits = Limits { frame_bytes_max: 1 << 30, ..Limits::default() };
        let broken = Config { limits, data_dir: Some("data".into()), ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "frame_bytes_max", .. })));
        let broken = Config { history: Some(HistoryConfig::default()), ..Config::default() };
        assert_eq!(broken.check(), Err(ConfigError::HistoryNowhere));
        let listeners = vec!["throttr://127.0.0.1?persist=on".parse().unwrap()];
        let broken = Config { listeners, ..Config::default() };
        assert_eq!(broken.check(), Err(ConfigError::LimitsNowhere));
        assert_eq!(Config { data_dir: Some("data".into()), ..broken }.check(), Ok(()));
        let broken = Config { output_bytes_max: 1, ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "output_bytes_max", .. })));
    }
}
