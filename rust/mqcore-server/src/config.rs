//! Configuration of a server. Each limit has a name, a unit and a default.

pub mod address;
pub mod backup;
pub(crate) mod error;
pub mod history;
mod listener;
pub mod mask;
mod memory;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::declaration::Declaration;
use mqcore_broker::model::names::CreationLimits;
use mqcore_broker::model::options::ChannelOptions;
use mqcore_broker::model::policy;
use mqcore_broker::model::router::RouterDefinition;
use mqcore_broker::model::topic::TopicLimits;
use mqcore_limiter::limiter;
use mqcore_replication::storage::DataFiles;
use mqcore_session::protocol::LimitUse;
use mqcore_wire::codec::Limits;

pub use mqcore_tls::listener::{ClientCertificates, ListenerTls};

pub use self::error::ConfigError;
pub use self::listener::{AdminConfig, Encryption, ListenerConfig, Protocol};
pub use crate::runtime::clock::{ClockConfig, MANUAL_START_MS};
pub use crate::shard::count::SHARDS_MAX;

use crate::authority::config::AuthorityConfig;
use crate::config::backup::BackupConfig;
use crate::config::history::HistoryConfig;
use crate::config::mask::MaskConfig;
use crate::net::guard::Limit;
use crate::nodes::config::NodeConfig;
use crate::spans::SpanBuffer;
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
    /// The event handler that receives events of all channels. Default none.
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
    /// Maximum bytes of unfinished frames and messages of all clients, counting those from 32 KiB on; beyond it, the
    /// client whose input has waited longest is disconnected. Default 1 GiB.
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
    /// Maximum channels and queues that users have created.
    pub creation_limits: CreationLimits,
    /// Maximum bytes of saved messages in memory; each shard has an equal share. Above it, the bodies farthest from
    /// delivery leave memory, and are read back before they are needed. Bodies about to be delivered stay: up to 1
    /// MiB for each queue that is being consumed comes on top. Default 256 MiB.
    pub memory_watermark: u64,
    /// Maximum bytes of messages that are only in memory; 0: no limit. Above it, queues that do not save messages reject
    /// them. Default: a third of the memory that the process may use, or none where the system does not tell.
    pub unsaved_memory_max: Option<u64>,
    /// Maximum bytes of messages of one user or token that are only in memory; 0: no limit besides
    /// `unsaved_memory_max`. Default 0.
    pub unsaved_memory_per_user_max: u64,
    /// Directory for definitions and saved messages. Default none: everything stays in memory, and queues with a
    /// saving policy reject messages.
    pub data_dir: Option<PathBuf>,
    /// Where the files of the data directory are written: on this disk, or on the nodes of a cluster. Default this disk.
    pub files: DataFiles,
    /// Directory with the files of the dashboard, which the admin side serves. Default none.
    pub dashboard_dir: Option<PathBuf>,
    /// Maximum publish rate of one client; the rejection of further messages contains the time after which to retry.
    /// Default no limit.
    pub publish_limit: Option<Limit>,
    /// Maximum rate of connections and logins from one address; further ones are rejected likewise. Default no limit.
    pub connect_limit: Option<Limit>,
    /// Maximum counters and buffers of the limiter; at this number a new one replaces the one that expires soonest.
    /// Default 16,777,216.
    pub limiter_keys_max: u64,
    /// Maximum entries of the store that one user or token, or one connection without a login, has created. Default
    /// 8,388,608.
    pub limiter_keys_per_user_max: u64,
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
    /// Restore points on object storage. Needs a data directory. Default none.
    pub backup: Option<BackupConfig>,
    /// Rules that hide parts of messages from the admin side. Default none.
    pub mask: MaskConfig,
    /// The destination of spans of traced messages. Default none: the broker makes no spans.
    pub spans: Option<Arc<SpanBuffer>>,
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
            creation_limits: CreationLimits::default(),
            memory_watermark: 256 << 20,
            unsaved_memory_max: None,
            unsaved_memory_per_user_max: 0,
            data_dir: None,
            files: DataFiles::Local,
            dashboard_dir: None,
            publish_limit: None,
            connect_limit: None,
            limiter_keys_max: limiter::LimiterConfig::default().keys_max,
            limiter_keys_per_user_max: limiter::LimiterConfig::default().keys_per_user_max,
            limiter_bytes_max: limiter::LimiterConfig::default().bytes_max,
            limiter_persist_interval: Duration::from_millis(100),
            routers: Vec::new(),
            declarations: Vec::new(),
            authority: AuthorityConfig::default(),
            node: None,
            history: None,
            backup: None,
            mask: MaskConfig::default(),
            spans: None,
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

    /// Maximum bytes of the answer to a list operation: the output of a connection, but at least 4 MiB, so that a page
    /// fits, and at most 64 MiB, which clients accept by default.
    pub(crate) fn answer_bytes_max(&self) -> u32 {
        self.output_bytes_max.clamp(4 << 20, 64 << 20) as u32
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
        let CreationLimits { channels_per_user_max, queues_per_user_max } = self.creation_limits;
        for (name, value) in [
            ("topic_subscriptions_max", subscriptions_max),
            ("topic_patterns_max", patterns_max),
            ("topic_patterns_per_user_max", patterns_per_user_max),
            ("channels_per_user_max", channels_per_user_max),
            ("queues_per_user_max", queues_per_user_max),
            (
                "limiter_keys_per_user_max",
                usize::try_from(self.limiter_keys_per_user_max).unwrap_or(usize::MAX),
            ),
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
        if let Some(backup) = &self.backup {
            self.check_backup(backup)?;
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

    fn check_backup(&self, backup: &BackupConfig) -> Result<(), ConfigError> {
        if self.data_dir.is_none() {
            return Err(ConfigError::BackupNowhere);
        }
        for (name, value) in [("backup_interval", backup.interval), ("backup_keep", backup.keep)] {
            if value < Duration::from_secs(1) {
                let value = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
                return Err(ConfigError::OutOfRange { name, value, why: "at least 1000 ms" });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let backup = BackupConfig::new("s3://bucket/backup");
        let broken = Config { backup: Some(backup.clone()), ..Config::default() };
        assert_eq!(broken.check(), Err(ConfigError::BackupNowhere));
        assert_eq!(Config { data_dir: Some("data".into()), ..broken }.check(), Ok(()));
        let backup = BackupConfig { interval: Duration::from_millis(999), ..backup };
        let broken = Config { backup: Some(backup), data_dir: Some("data".into()), ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "backup_interval", .. })));
        let listeners = vec!["throttr://127.0.0.1?persist=on".parse().unwrap()];
        let broken = Config { listeners, ..Config::default() };
        assert_eq!(broken.check(), Err(ConfigError::LimitsNowhere));
        assert_eq!(Config { data_dir: Some("data".into()), ..broken }.check(), Ok(()));
        let broken = Config { output_bytes_max: 1, ..Config::default() };
        assert!(matches!(broken.check(), Err(ConfigError::OutOfRange { name: "output_bytes_max", .. })));
    }
}
