//! How a client connects and what it allows itself. Every limit with its unit and default.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::negotiation::Lists;
use tokio::io::DuplexStream;

pub use mqcore_tls::client::ClientTls;

use crate::address::{BrokerAddress, Protocol};
use crate::error::ClientError;

/// Who the client is, how patient it is and how much it may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The id it wants. `None`: the broker gives one, another on every connection. A broker that has not noticed yet
    /// that the last connection is gone refuses the same id for so long; the client goes on asking.
    pub id: Option<String>,
    /// A name that several clients may share; reached as `@name:NAME`.
    pub name: Option<String>,
    /// What sort of program it is; reached as `@type:KIND`.
    pub kind: Option<String>,
    /// What authenticates it.
    pub token: Option<String>,
    /// Anything else to tell in the handshake.
    pub properties: Vec<(String, String)>,
    /// Whom it trusts and what it proves on addresses that ask for TLS and say nothing of it themselves. Default:
    /// whom the system trusts, and nothing. Given, an address without TLS is an error.
    pub tls: Option<ClientTls>,
    /// MicroMessage2: the extensions that the broker must have, and those that it may. Default
    /// [`crate::micromessage::default_extensions`].
    pub extensions: Option<Lists>,
    /// How long to wait between attempts to connect.
    pub backoff: Backoff,
    /// How long one attempt may take, handshake included. Default 5 s.
    pub connect_timeout: Duration,
    /// How long the first connect goes on trying before it gives up. Zero, the default: every address once.
    pub patience: Duration,
    /// A broker from which nothing came for this long is pinged; a client that was silent for this long pings too.
    /// Default 30 s.
    pub ping_interval: Duration,
    /// How long after a ping something has to come, before the connection counts as lost. Default 10 s.
    pub pong_timeout: Duration,
    /// How long a confirmation or an answer may take, where the call says nothing else. Default 15 s.
    pub request_timeout: Duration,
    /// How long closing waits for what is under way. Default 5 s.
    pub drain_timeout: Duration,
    /// How large a received frame may be, and a sent one. Default 64 MiB.
    pub limits: Limits,
    /// Publishes and requests that wait for an answer, at most; further ones wait. Default 65,536.
    pub max_outstanding: usize,
    /// Bytes waiting to be written, above which publishing waits. Default 4 MiB.
    pub write_buffer_bytes: usize,
    /// Bytes of received messages that nobody has taken, over all consumers, above which the socket is not read: also
    /// not for answers, so what waits for one may then fail with a timeout. Default 64 MiB.
    pub read_buffer_bytes: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            id: None,
            name: None,
            kind: None,
            token: None,
            properties: Vec::new(),
            tls: None,
            extensions: None,
            backoff: Backoff::default(),
            connect_timeout: Duration::from_secs(5),
            patience: Duration::ZERO,
            ping_interval: Duration::from_secs(30),
            pong_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(5),
            limits: Limits::default(),
            max_outstanding: 65_536,
            write_buffer_bytes: 4 * 1024 * 1024,
            read_buffer_bytes: 64 * 1024 * 1024,
        }
    }
}

/// How the waits between attempts grow: doubled each time, and shortened at random by up to half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait. Default 100 ms.
    pub first: Duration,
    /// The longest wait. Default 15 s.
    pub max: Duration,
    /// Attempts in a row after which the client closes. Default none: it goes on for ever.
    pub attempts: Option<u32>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(15), attempts: None }
    }
}

impl Backoff {
    /// The wait before attempt number `attempt`, counted from 1, before jitter.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        self.first.saturating_mul(1 << attempt.saturating_sub(1).min(24)).min(self.max)
    }
}

/// Opens an in-memory connection to an embedded broker.
pub type LocalFactory = Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>;

/// How to reach the broker.
#[derive(Clone)]
pub enum Transport {
    /// Over the network, or a Unix socket. The first address to try is drawn by lot, the others follow in turn.
    Tcp(Vec<BrokerAddress>),
    /// Inside this process. Called once a connection.
    Local(LocalFactory),
}

impl Transport {
    /// What is spoken there. Inside this process that is TMQP.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for addresses of several protocols.
    pub fn protocol(&self) -> Result<Protocol, ClientError> {
        let Self::Tcp(addresses) = self else { return Ok(Protocol::Tmqp) };
        let mut protocols = addresses.iter().map(|address| address.protocol);
        let first = protocols.next().unwrap_or(Protocol::Tmqp);
        match protocols.find(|other| *other != first) {
            None => Ok(first),
            Some(other) => {
                let why = format!("{first}:// and {other}:// cannot stand for one another");
                Err(ClientError::invalid("addresses", why))
            }
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(_) => formatter.write_str("the embedded broker"),
            Self::Tcp(addresses) => {
                for (index, address) in addresses.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(formatter, "{separator}{address}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::default();
        let delays: Vec<_> = (1..=9).map(|attempt| backoff.delay(attempt).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 15_000]);
        assert_eq!(backoff.delay(u32::MAX), backoff.max);
    }
}
