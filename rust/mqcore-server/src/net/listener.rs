//! Binds addresses and accepts connections, within limits.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::Peer;
use mqcore_session::any::ListenerTerms;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

use crate::config::address::{BoundAddress, ListenAddress};
use crate::hub::Hub;
use crate::net::connection::Connection;
use crate::net::handshakes::HandshakeSlot;
use crate::net::outbox::Outbox;
use crate::net::registry::OpenError;
use crate::net::tls::TlsEndpoint;
use crate::net::tls_accept;
#[cfg(unix)]
use crate::net::unix_socket::UnixSocket;
use crate::runtime::shutdown::TaskGuard;
use crate::server::error::StartError;

/// Connections that the system may queue before they are accepted.
const BACKLOG: u32 = 4096;

/// Silence before the first probe, the time between probes, and how many probes without an answer end the connection.
/// Some protocols have no heartbeats: the consumers of a machine that lost its power would stay for ever.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

/// How long to wait when the system is out of descriptors or memory: first and maximum delay.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A bound socket that does not accept yet.
pub(crate) enum Socket {
    Tcp(TcpListener),
    Tls(TlsSocket),
    #[cfg(unix)]
    Unix(UnixSocket),
}

/// Binds the address of a listener.
pub(crate) async fn bind(
    address: &ListenAddress,
    allow_remote: bool,
) -> Result<(Socket, BoundAddress), StartError> {
    match address {
        ListenAddress::Tcp(address) => {
            let (socket, bound) = bind_tcp(address, allow_remote).await?;
            Ok((Socket::Tcp(socket), BoundAddress::Tcp(bound)))
        }
        #[cfg(unix)]
        ListenAddress::Unix { path, mode } => match UnixSocket::bind(path, *mode).await {
            Ok(socket) => Ok((Socket::Unix(socket), BoundAddress::Unix(Arc::new(path.clone())))),
            Err(source) => Err(StartError::Bind { address: path.display().to_string(), source }),
        },
        #[cfg(not(unix))]
        ListenAddress::Unix { path, .. } => {
            let source = io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets");
            Err(StartError::Bind { address: path.display().to_string(), source })
        }
    }
}

/// Binds the first address of `host:port` that can be bound.
pub(crate) async fn bind_tcp(
    address: &str,
    allow_remote: bool,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { address: address.into(), source };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for candidate in lookup_host(address).await.map_err(failed)? {
        if !allow_remote && !candidate.ip().is_loopback() {
            return Err(StartError::NotLoopback { address: candidate });
        }
        match bind_one(candidate) {
            Ok(listener) => {
                let bound = listener.local_addr().map_err(failed)?;
                return Ok((listener, bound));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port that was used a moment ago can be bound again at once. On Windows this option means something else.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until the server stops.
pub(crate) async fn accept(socket: Socket, terms: ListenerTerms, hub: Arc<Hub>, alive: TaskGuard) {
    match socket {
        Socket::Tcp(listener) => accept_from(alive, listener, terms, hub).await,
        Socket::Tls(listener) => accept_from(alive, listener, terms, hub).await,
        #[cfg(unix)]
        Socket::Unix(listener) => accept_from(alive, listener, terms, hub).await,
    }
}

/// A source of connections of one transport.
trait ConnectionSource {
    /// A connection as the system returns it.
    type Accepted;

    /// Waits for the next one.
    async fn next(&self, hub: &Hub) -> io::Result<Self::Accepted>;

    /// Starts its task. Each transport has a connection loop compiled for it, so one transport's needs cost the
    /// others nothing.
    fn take_in(&self, hub: &Arc<Hub>, outbox: Opening, accepted: Self::Accepted);
}

impl ConnectionSource for TcpListener {
    type Accepted = (TcpStream, SocketAddr);

    async fn next(&self, _hub: &Hub) -> io::Result<Self::Accepted> {
        let (stream, address) = self.accept().await?;
        // If a call fails, the peer has already disconnected. Without the first one, small frames would wait for the
        // acknowledgement of earlier ones.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&KEEP_ALIVE);
        Ok((stream, address))
    }

    fn take_in(&self, hub: &Arc<Hub>, opening: Opening, (stream, address): Self::Accepted) {
        let peer = Peer { address: Some(address.to_string().into()), ..Peer::default() };
        Connection::spawn(hub, stream, opening.open(), address.ip().is_loopback(), peer);
    }
}

/// A TCP socket with TLS.
pub(crate) struct TlsSocket {
    pub(crate) listener: TcpListener,
    pub(crate) endpoint: Arc<TlsEndpoint>,
}

impl ConnectionSource for TlsSocket {
    type Accepted = (TcpStream, SocketAddr, HandshakeSlot);

    async fn next(&self, hub: &Hub) -> io::Result<Self::Accepted> {
        hub.tls.handshakes.room().await;
        let (stream, address) = self.listener.next(hub).await?;
        Ok((stream, address, hub.tls.handshakes.enter()))
    }

    fn take_in(&self, hub: &Arc<Hub>, opening: Opening, (stream, address, place): Self::Accepted) {
        let endpoint = Arc::clone(&self.endpoint);
        let hub = Arc::clone(hub);
        let alive = hub.shutdown.enter();
        tokio::spawn(async move {
            let outbox = Some(&*opening.outbox);
            let secured = tls_accept::secure(&hub, &endpoint, stream, address, &place, outbox).await;
            if let Some((stream, certificate)) = secured {
                let peer = tls_accept::peer(address, certificate);
                Connection::spawn(&hub, stream, opening.open(), address.ip().is_loopback(), peer);
            }
            drop((place, alive));
        });
    }
}

#[cfg(unix)]
impl ConnectionSource for UnixSocket {
    type Accepted = tokio::net::UnixStream;

    async fn next(&self, _hub: &Hub) -> io::Result<Self::Accepted> {
        self.accept().await
    }

    fn take_in(&self, hub: &Arc<Hub>, opening: Opening, stream: Self::Accepted) {
        Connection::spawn(hub, stream, opening.open(), true, Peer::default());
    }
}

/// A slot in the registry for a connection whose stream is not ready. Released when dropped.
struct Opening {
    hub: Arc<Hub>,
    outbox: Arc<Outbox>,
    opened: bool,
}

impl Opening {
    /// From here on the connection itself releases it.
    fn open(mut self) -> Arc<Outbox> {
        self.opened = true;
        Arc::clone(&self.outbox)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.opened {
            self.outbox.end();
            self.hub.registry.close(self.outbox.connection);
        }
    }
}

/// Accepts until the server stops. The guard is dropped last: when the server has ended, its addresses are free.
async fn accept_from<L: ConnectionSource>(
    _alive: TaskGuard,
    listener: L,
    terms: ListenerTerms,
    hub: Arc<Hub>,
) {
    let protocol = terms.protocol();
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let mut back_off = BACK_OFF.0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.next(&hub) => accepted,
            () = &mut stop => return,
        };
        match accepted {
            Ok(accepted) => {
                back_off = BACK_OFF.0;
                match hub.registry.open_as(terms.clone()) {
                    Ok(outbox) => {
                        let opening = Opening { hub: Arc::clone(&hub), outbox, opened: false };
                        listener.take_in(&hub, opening, accepted);
                    }
                    Err(OpenError::Full) => hub.counters.of(protocol).rejected.add(1),
                    Err(OpenError::Stopping) => {}
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(protocol = protocol.as_str(), %error, "cannot accept; waiting {back_off:?}");
                tokio::select! {
                    () = tokio::time::sleep(back_off) => {}
                    () = &mut stop => return,
                }
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
    }
}

/// Errors that concern one peer only, and not the next.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::handler::NoHandlers;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread")]
    async fn accepted_sockets_have_keep_alive() {
        let server = Server::start(Config::default(), Vec::new(), Arc::new(NoHandlers)).await.unwrap();
        let (listener, address) = bind_tcp("127.0.0.1:0", false).await.unwrap();
        let _peer = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.next(server.hub()).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 6);
        server.stop(Duration::ZERO).await;
    }
}
