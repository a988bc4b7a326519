//! Configuration of links to other brokers.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use mqcore_cluster::filter::{FilterRule, ForwardKind, LinkFilter, WildcardPattern};
use mqcore_cluster::link::LinkOptions;
use mqcore_cluster::log::{LogOptions, UPSTREAMS_MAX};
use mqcore_tls::client::ClientTls;

use crate::config::address::ListenerUrl;
use crate::config::error::ConfigError;

/// This broker as a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name for people, and its ID if no data directory stores one: unique among linked nodes. Default empty: the
    /// name is the ID.
    pub name: String,
    /// Whether other brokers may forward to this one. Default yes.
    pub accepts: bool,
    /// The token that downstream brokers must send. Default none; if clients must log in here, nodes without a token
    /// are rejected.
    pub token: Option<String>,
    /// Which of their messages this broker accepts. Default all.
    pub accept: LinkFilter,
    /// Upstream brokers, to which this broker forwards what its clients produce. Default none; at most
    /// [`UPSTREAMS_MAX`].
    pub upstreams: Vec<UpstreamConfig>,
    /// Whether the journal stores messages for a disconnected upstream broker. Needs a data directory. Default no.
    pub keep_messages: bool,
    /// Maximum bytes stored; beyond it the oldest are dropped. Default 1 GiB.
    pub keep_bytes_max: u64,
    /// How long a message is stored. `None`: until it is sent. Default `None`.
    pub keep_age_max: Option<Duration>,
    /// Maximum bytes in flight to connected upstream brokers, without `keep_messages`; beyond it, producers wait.
    /// Default 64 MiB.
    pub buffer_bytes_max: u64,
    /// The first pause before an upstream broker is dialed again; it doubles up to 30 s. Default 500 ms.
    pub reconnect_wait: Duration,
    /// How long a connected upstream broker may go without a confirmation of outstanding messages before it counts as
    /// disconnected. Default 30 s.
    pub confirm_timeout: Duration,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let link = LinkOptions::default();
        Self {
            name: String::new(),
            accepts: true,
            token: None,
            accept: LinkFilter::default(),
            upstreams: Vec::new(),
            keep_messages: false,
            keep_bytes_max: LogOptions::new(true).bytes_max,
            keep_age_max: None,
            buffer_bytes_max: LogOptions::new(false).bytes_max,
            reconnect_wait: Duration::from_millis(link.reconnect_ms),
            confirm_timeout: Duration::from_millis(link.confirm_timeout_ms),
        }
    }
}

impl NodeConfig {
    pub(crate) fn check(&self, has_data_dir: bool) -> Result<(), ConfigError> {
        let bad = |what: &'static str, why: String| Err(ConfigError::Node { what, why });
        if self.upstreams.len() > UPSTREAMS_MAX {
            return bad(
                "upstreams",
                format!("at most {UPSTREAMS_MAX}, and {} are given", self.upstreams.len()),
            );
        }
        if self.keep_messages && !has_data_dir {
            return bad("keep_messages", "messages are kept in the data directory, and there is none".into());
        }
        if self.name.len() > 255 || self.name.chars().any(char::is_control) {
            return bad("name", "at most 255 bytes, without control characters".into());
        }
        for (index, upstream) in self.upstreams.iter().enumerate() {
            if self.upstreams[..index].iter().any(|earlier| earlier.address == upstream.address) {
                return bad("upstreams", format!("{} is given twice", upstream.address));
            }
        }
        Ok(())
    }

    pub(crate) fn log_options(&self) -> LogOptions {
        let bytes_max = if self.keep_messages { self.keep_bytes_max } else { self.buffer_bytes_max };
        let age_max_ms = self.keep_age_max.map(|age| age.as_millis() as u64);
        LogOptions { bytes_max, age_max_ms, ..LogOptions::new(self.keep_messages) }
    }

    pub(crate) fn link_options(&self) -> LinkOptions {
        let default = LinkOptions::default();
        let reconnect_ms = (self.reconnect_wait.as_millis() as u64).max(1);
        LinkOptions {
            reconnect_ms,
            reconnect_max_ms: default.reconnect_max_ms.max(reconnect_ms),
            confirm_timeout_ms: (self.confirm_timeout.as_millis() as u64).max(1),
            ..default
        }
    }
}

/// An upstream broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// `host:port`.
    pub address: String,
    /// TLS settings; `None`: no TLS.
    pub tls: Option<ClientTls>,
    /// The token that this node sends. Default none.
    pub token: Option<String>,
    /// Which messages are forwarded to it. Default all.
    pub send: LinkFilter,
}

impl FromStr for UpstreamConfig {
    type Err = ConfigError;

    /// Parses `tmqp://127.0.0.1:2622`, or `tmqps://` with `?ca=FILE&cert=FILE&key=FILE&server_name=NAME`, the fields
    /// of [`ClientTls`]. `?token=TOKEN` is the token that this node sends.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let encrypted = match parsed.scheme {
            "tmqp" => false,
            "tmqps" => true,
            _ => return Err(parsed.bad("write an upstream broker as tmqp://host:port or tmqps://host:port")),
        };
        let address = parsed.host_and_port(2622)?;
        let token = parsed.take("token");
        let tls = encrypted.then(|| ClientTls {
            ca: parsed.take("ca").map(PathBuf::from),
            cert: parsed.take("cert").map(PathBuf::from),
            key: parsed.take("key").map(PathBuf::from),
            server_name: parsed.take("server_name"),
            ..ClientTls::default()
        });
        parsed.finish()?;
        Ok(Self { address, tls, token, send: LinkFilter::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_master_says_where_how_and_with_which_token() {
        let upstream: UpstreamConfig = "tmqp://10.0.0.1?token=a%20b".parse().unwrap();
        assert_eq!((&*upstream.address, upstream.token.as_deref()), ("10.0.0.1:2622", Some("a b")));
        let upstream: UpstreamConfig =
            "tmqps://north:7?ca=/ca.pem&server_name=north.example".parse().unwrap();
        let tls = upstream.tls.expect("it is encrypted");
        assert_eq!((tls.ca, tls.server_name.as_deref()), (Some("/ca.pem".into()), Some("north.example")));
        for url in ["http://x:1", "tmqp://x:1?ca=/x", "tmqp://", "tmqp://x/path"] {
            assert!(url.parse::<UpstreamConfig>().is_err(), "{url}");
        }
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused_by_name() {
        let upstream: UpstreamConfig = "tmqp://x:1".parse().unwrap();
        let twice =
            NodeConfig { upstreams: vec![upstream.clone(), upstream.clone()], ..NodeConfig::default() };
        assert!(matches!(twice.check(true), Err(ConfigError::Node { what: "upstreams", .. })));
        let keeps = NodeConfig { keep_messages: true, ..NodeConfig::default() };
        assert!(matches!(keeps.check(false), Err(ConfigError::Node { what: "keep_messages", .. })));
        assert_eq!(keeps.check(true), Ok(()));
        let named = NodeConfig { name: "a\nb".into(), ..NodeConfig::default() };
        assert!(matches!(named.check(true), Err(ConfigError::Node { what: "name", .. })));
    }

    #[test]
    fn limits_of_kept_messages_reach_the_log_of_their_kind() {
        let buffered = NodeConfig { buffer_bytes_max: 7, keep_bytes_max: 9, ..NodeConfig::default() };
        assert_eq!(buffered.log_options(), LogOptions { bytes_max: 7, ..LogOptions::new(false) });
        let age = Some(Duration::from_millis(1500));
        let kept = NodeConfig { keep_messages: true, keep_age_max: age, ..buffered };
        let wanted = LogOptions { bytes_max: 9, age_max_ms: Some(1500), ..LogOptions::new(true) };
        assert_eq!(kept.log_options(), wanted);
    }
}
