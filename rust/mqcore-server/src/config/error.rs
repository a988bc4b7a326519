//! Why a configuration is rejected.

use mqcore_authority::pattern::PatternError;
use mqcore_session::any::Protocol;

/// The schemes of all protocols: `a, b and c`.
fn known_schemes() -> String {
    let schemes = Protocol::ALL.map(Protocol::as_str);
    match schemes.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not a URL.
    #[error("{url:?} has no scheme; write for example tmqp://127.0.0.1:2622")]
    NoScheme {
        /// The configured text.
        url: String,
    },
    /// A URL with an unknown scheme.
    #[error(
        "no listener speaks {scheme:?}; known are {} (clients), each also with s or +unix behind it, http and https (the admin side)",
        known_schemes()
    )]
    UnknownScheme {
        /// The configured scheme.
        scheme: String,
    },
    /// The part after the scheme is not a valid address.
    #[error("{url:?} is not a valid listener address: {why}")]
    BadAddress {
        /// The configured text.
        url: String,
        /// The reason.
        why: &'static str,
    },
    /// A rule of what the admin side hides is not a pattern.
    #[error("{setting}: {pattern:?} is not a pattern: {why}")]
    BadPattern {
        /// `mask_fields` or `mask_bodies`.
        setting: &'static str,
        /// The configured text.
        pattern: String,
        /// The reason.
        why: PatternError,
    },
    /// An encrypted listener without a certificate.
    #[error(
        "a listener with TLS has no certificate: name one behind its URL, ?cert=FILE&key=FILE, or for all of them in \
         the setting tls"
    )]
    NoCertificate,
    /// History is on, but there is no data directory to write it to.
    #[error("history is kept in the data directory, and there is none: set data_dir, or leave history off")]
    HistoryNowhere,
    /// There is a URL for backups, but nothing to back up.
    #[error(
        "there is nothing to back up, because the broker has no data directory: set data_dir, or remove backup_url"
    )]
    BackupNowhere,
    /// The dead-letter queue of all queues does not exist.
    #[error(
        "dead-letter queue {queue} does not exist; create it first, or let the broker create missing queues"
    )]
    NoDeadLetterQueue {
        /// The queue.
        queue: String,
    },
    /// A declared channel or queue cannot be created or changed.
    #[error("cannot declare {subject}: {why}")]
    Undeclarable {
        /// The declared object, with its kind and name.
        subject: String,
        /// The reason.
        why: String,
    },
    /// No delivery handler has this key.
    #[error("no delivery handler has the key {key:?}; known keys: {known}")]
    NoHandler {
        /// The key.
        key: String,
        /// The keys of the registered handlers and of the ready-made policies.
        known: String,
    },
    /// Persistent limits are on, but there is no data directory to write them to.
    #[error(
        "a listener with persist=on keeps its counters in the data directory, and there is none: set data_dir, or leave persist off"
    )]
    LimitsNowhere,
    /// A URL with an unknown option.
    #[error("{url:?} has the option {option:?}, which is not known there; known are: {known}")]
    UnknownOption {
        /// The configured URL.
        url: String,
        /// The option.
        option: String,
        /// The known options.
        known: String,
    },
    /// The configuration of this broker as a node is invalid.
    #[error("node: {what}: {why}")]
    Node {
        /// The field of [`NodeConfig`](crate::nodes::config::NodeConfig).
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// A number outside its range.
    #[error("{name} is {value}, but must be {why}")]
    OutOfRange {
        /// The field of [`Config`](crate::config::Config).
        name: &'static str,
        /// The configured value.
        value: u64,
        /// The allowed range.
        why: &'static str,
    },
}
