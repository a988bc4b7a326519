//! Why a configuration is rejected.

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
    #[error(
        "no listener speaks {scheme:?}; known are {} (clients), each also with s or +unix behind it, http and https (the admin side)",
        known_schemes()
    )]
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
    /// An encrypted listener for which no certificate was named.
    #[error(
        "a listener with TLS has no certificate: name one behind its URL, ?cert=FILE&key=FILE, or for all of them in \
         the setting tls"
    )]
    NoCertificate,
    /// A history has to be written somewhere.
    #[error("history is kept in the data directory, and there is none: set data_dir, or leave history off")]
    HistoryNowhere,
    /// Limits have to be written somewhere too.
    #[error(
        "a listener with persist=on keeps its counters in the data directory, and there is none: set data_dir, or leave persist off"
    )]
    LimitsNowhere,
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
    /// The configuration of this broker as a node is invalid.
    #[error("node: {what}: {why}")]
    Node {
        /// The field of [`NodeConfig`](crate::nodes::config::NodeConfig).
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A number with which no server could work.
    #[error("{name} is {value}, but must be {why}")]
    OutOfRange {
        /// The field of [`Config`](crate::config::Config).
        name: &'static str,
        /// What was given.
        value: u64,
        /// What it may be.
        why: &'static str,
    },
}
