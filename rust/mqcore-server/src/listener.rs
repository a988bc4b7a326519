//! Binds addresses and accepts connections, within limits.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::client::Peer;
use mqcore_session::any::Protocol;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

use crate::address::{BoundAddress, ListenAddress};
use crate::connection::Connection;
use crate::hub::Hub;
use crate::registry::Refusal;
use crate::server::StartError;
use crate::shutdown::TaskGuard;
#[cfg(unix)]
use crate::unix_socket::UnixSocket;

/// Connections that the system may hold before they are accepted.
const BACKLOG: u32 = 4096;

/// How long to wait when the system has no descriptor or no memory left for another connection: first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A socket that is bound, and accepts nothing yet.
pub(crate) enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

/// Binds where a listener was told to.
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
    // A port that was ours a moment ago can be bound again at once. On Windows this would mean something else.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until the server stops.
pub(crate) async fn accept(socket: Socket, protocol: Protocol, hub: Arc<Hub>, alive: TaskGuard) {
    match socket {
        Socket::Tcp(listener) => accept_from(listener, protocol, hub, alive).await,
        #[cfg(unix)]
        Socket::Unix(listener) => accept_from(listener, protocol, hub, alive).await,
    }
}

/// What connections come out of, whatever carries them.
trait Source {
    /// Each kind of stream has a connection loop compiled for it: what one needs costs the others nothing.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next. The peer is as far known as the system knows it; `true` if it is one of this machine.
    async fn next(&self) -> io::Result<(Self::Stream, Peer, bool)>;
}

#[cfg(unix)]
impl Source for UnixSocket {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<(Self::Stream, Peer, bool)> {
        Ok((self.accept().await?, Peer::default(), true))
    }
}

impl Source for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, Peer, bool)> {
        let (stream, address) = self.accept().await?;
        // Without it small frames would wait for the acknowledgement of earlier ones. If it fails, the peer is gone
        // already.
        let _ = stream.set_nodelay(true);
        let peer = Peer { address: Some(address.to_string().into()), ..Peer::default() };
        Ok((stream, peer, address.ip().is_loopback()))
    }
}

async fn accept_from<L: Source>(listener: L, protocol: Protocol, hub: Arc<Hub>, _alive: TaskGuard) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let mut back_off = BACK_OFF.0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            () = &mut stop => return,
        };
        match accepted {
            Ok((stream, peer, local)) => {
                back_off = BACK_OFF.0;
                take_in(&hub, protocol, stream, peer, local);
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

/// Errors that say something about the peer that was to be accepted, and nothing about the next.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

fn take_in<S>(hub: &Arc<Hub>, protocol: Protocol, stream: S, peer: Peer, local: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match hub.registry.open(protocol) {
        Ok(outbox) => Connection::spawn(hub, stream, outbox, local, peer),
        Err(Refusal::Full) => hub.counters.of(protocol).turned_away.add(1),
        Err(Refusal::Stopping) => {}
    }
}
