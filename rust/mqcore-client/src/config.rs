//! Client identity, timeouts and limits, each with its unit and default.

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

/// Client identity, timeouts and buffer limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The requested id. `None`: the broker assigns a new one on every connection. A broker that has not yet detected
    /// the loss of the last connection refuses the same id; the client keeps trying.
    pub id: Option<String>,
    /// A name that several clients may share, addressed as `@name:NAME`.
    pub name: Option<String>,
    /// The kind of program, addressed as `@type:KIND`.
    pub kind: Option<String>,
    /// Access token sent when connecting.
    pub token: Option<String>,
    /// Further properties in the handshake.
    pub properties: Vec<(String, String)>,
    /// TLS settings for addresses with TLS and without settings of their own. Default: the system's authorities and no
    /// client certificate. If set, an address without TLS is an error.
    pub tls: Option<ClientTls>,
    /// MicroMessage2: the required and optional extensions. Default: [`crate::micromessage::default_extensions`].
    pub extensions: Option<Lists>,
    /// Delay between attempts to connect.
    pub backoff: Backoff,
    /// Timeout of one attempt, including the handshake. Default 5 s.
    pub connect_timeout: Duration,
    /// Time during which the first connect retries. Default zero: it tries every address once.
    pub patience: Duration,
    /// Interval without received or sent data after which the client sends a ping. Default 30 s.
    pub ping_interval: Duration,
    /// Time after a ping within which data must arrive; then the connection counts as lost. Default 10 s.
    pub pong_timeout: Duration,
    /// Timeout of confirmations and answers if the call gives none. Default 15 s.
    pub request_timeout: Duration,
    /// Time to finish in-flight work when closing. Default 5 s.
    pub drain_timeout: Duration,
    /// Maximum size of a received or sent frame. Default 64 MiB.
    pub limits: Limits,
    /// Maximum publishes and requests without an answer; further calls wait. Default 65,536.
    pub max_outstanding: usize,
    /// Bytes of unwritten output above which publishing waits. Default 4 MiB.
    pub write_buffer_bytes: usize,
    /// Bytes of received messages of all consumers that the program has not taken. Above this limit the client pauses
    /// reads, including answers, so pending requests may time out. Default 64 MiB.
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

/// Delays between attempts: doubled each time, and shortened at random by up to half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay. Default 100 ms.
    pub first: Duration,
    /// The longest delay. Default 15 s.
    pub max: Duration,
    /// Consecutive attempts after which the client closes. Default: no limit.
    pub attempts: Option<u32>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(15), attempts: None }
    }
}

impl Backoff {
    /// The delay before attempt number `attempt`, counted from 1, before jitter.
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
    /// Over the network or a Unix socket. The client starts with a random address and continues in order.
    Tcp(Vec<BrokerAddress>),
    /// Inside this process. Called once per connection.
    Local(LocalFactory),
}

impl Transport {
    /// The protocol. Inside this process it is TMQP.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidArgument`] for addresses with different protocols.
    pub fn protocol(&self) -> Result<Protocol, ClientError> {
        let Self::Tcp(addresses) = self else { return Ok(Protocol::Tmqp) };
        let mut protocols = addresses.iter().map(|address| address.protocol);
        let first = protocols.next().unwrap_or(Protocol::Tmqp);
        match protocols.find(|other| *other != first) {
            None => Ok(first),
            Some(other) => {
                let why = format!(
                    "{first}:// and {other}:// are different protocols; give addresses of one protocol"
                );
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
