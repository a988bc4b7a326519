//! Routes to the addresses of a broker, with TLS settings that all connections share.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use mqcore_tls::client::{ClientTls, LoadedClientTls};
use mqcore_tls::failure::HandshakeFailure;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::address::{BrokerAddress, SocketKind};
use crate::config::{ClientConfig, LocalFactory, Transport};
use crate::dial::Stream;
use crate::error::ClientError;
use crate::mailbox::lock;

/// Silence before the first probe, the time between probes, and how many probes without an answer end the connection. A
/// consumer whose protocol has no heartbeats would wait for ever for a broker that lost its power.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

/// The addresses of a client.
pub(crate) enum Routes {
    Remote(Vec<Route>),
    Local(LocalFactory),
}

/// One address.
pub(crate) struct Route {
    address: BrokerAddress,
    tls: Option<RouteTls>,
}

struct RouteTls {
    settings: ClientTls,
    /// Reloaded after a handshake failed on a certificate, because its file may have been renewed.
    loaded: Mutex<LoadedClientTls>,
}

impl Routes {
    /// Loads the TLS files for addresses with TLS.
    pub(crate) fn prepare(transport: &Transport, config: &ClientConfig) -> Result<Self, ClientError> {
        match transport {
            Transport::Local(factory) => Ok(Self::Local(factory.clone())),
            Transport::Tcp(addresses) => {
                let routes = addresses.iter().map(|address| Route::prepare(address, config.tls.as_ref()));
                Ok(Self::Remote(routes.collect::<Result<_, _>>()?))
            }
        }
    }
}

impl Route {
    /// Loads the TLS files: those of the address, or of these settings.
    pub(crate) fn prepare(address: &BrokerAddress, tls: Option<&ClientTls>) -> Result<Self, ClientError> {
        let settings = match &address.carrier {
            SocketKind::Tls(Some(own)) => Some(own.clone()),
            SocketKind::Tls(None) => Some(tls.cloned().unwrap_or_default()),
            SocketKind::Tcp | SocketKind::Unix if tls.is_none() => None,
            SocketKind::Tcp | SocketKind::Unix => {
                let why = format!(
                    "TLS settings are given, but {address} does not use TLS; use {}s://",
                    address.protocol
                );
                return Err(ClientError::invalid("tls", why));
            }
        };
        let tls = match settings {
            None => None,
            Some(settings) => {
                let wrong = |error: &dyn std::fmt::Display| ClientError::invalid("tls", error.to_string());
                let loaded = settings.load().map_err(|error| wrong(&error))?;
                loaded.server_name(&address.host).map_err(|error| wrong(&error))?;
                if settings.dangerously_accept_any_certificate {
                    tracing::warn!(%address, "accepting any certificate: the identity of the broker is not verified");
                }
                Some(RouteTls { settings, loaded: Mutex::new(loaded) })
            }
        };
        Ok(Self { address: address.clone(), tls })
    }

    pub(crate) fn address(&self) -> &BrokerAddress {
        &self.address
    }

    /// Opens the transport.
    pub(crate) async fn open(&self) -> Result<Stream, ClientError> {
        let address = &self.address;
        let failed = |error: &io::Error| {
            let (addresses, cause) = (address.to_string().into(), error.to_string().into());
            ClientError::ConnectFailed { addresses, cause }
        };
        #[cfg(unix)]
        if matches!(address.carrier, SocketKind::Unix) {
            let stream = tokio::net::UnixStream::connect(&address.host).await;
            return stream.map(Stream::Unix).map_err(|error| failed(&error));
        }
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = stream.map_err(|error| failed(&error))?;
        // The client batches writes itself, so Nagle's algorithm would only add latency.
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEP_ALIVE).map_err(|error| failed(&error))?;
        match &self.tls {
            None => Ok(Stream::Tcp(stream)),
            Some(tls) => tls.shake_hands(stream, address).await,
        }
    }
}

impl RouteTls {
    async fn shake_hands(&self, stream: TcpStream, address: &BrokerAddress) -> Result<Stream, ClientError> {
        let loaded = lock(&self.loaded).clone();
        let name = loaded
            .server_name(&address.host)
            .map_err(|error| ClientError::invalid("tls", error.to_string()))?;
        match TlsConnector::from(loaded.config).connect(name, stream).await {
            Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
            Err(error) => {
                let HandshakeFailure { reason, words } = HandshakeFailure::of_handshake(&error);
                if reason.is_about_certificates() {
                    self.read_again();
                }
                Err(ClientError::Tls { address: address.to_string().into(), reason, words: words.into() })
            }
        }
    }

    /// Reloads the files for the next attempt. If that fails, the loaded ones stay in use.
    fn read_again(&self) {
        if let Ok(loaded) = self.settings.load() {
            *lock(&self.loaded) = loaded;
        }
    }
}
