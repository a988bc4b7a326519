//! Binds addresses and accepts connections, within limits.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mqcore_session::any::Protocol;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

use crate::connection::Connection;
use crate::hub::Hub;
use crate::registry::Refusal;
use crate::server::StartError;
use crate::shutdown::TaskGuard;

/// Connections that the system may hold before they are accepted.
const BACKLOG: u32 = 4096;

/// How long to wait when the system has no descriptor or no memory left for another connection: first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Binds the first address of `host:port` that can be bound. Nothing is accepted yet.
pub(crate) async fn bind(address: &str, allow_remote: bool) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Bind { address: address.into(), source };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for candidate in lookup_host(address).await.map_err(failed)? {
        if !allow_remote && !candidate.ip().is_loopback() {
            return Err(StartError::NotLoopback { address: candidate });
        }
        match bind_one(candidate) {
            Ok(listener) => return Ok(listener),
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
pub(crate) async fn accept(listener: TcpListener, protocol: Protocol, hub: Arc<Hub>, _alive: TaskGuard) {
    let shutdown = Arc::clone(&hub.shutdown);
    let mut stop = pin!(shutdown.begun());
    let mut back_off = BACK_OFF.0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                back_off = BACK_OFF.0;
                take_in(&hub, protocol, stream, peer);
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

fn take_in(hub: &Arc<Hub>, protocol: Protocol, stream: TcpStream, peer: SocketAddr) {
    // Without it small frames would wait for the acknowledgement of earlier ones. If it fails, the peer is gone already.
    let _ = stream.set_nodelay(true);
    match hub.registry.open(protocol) {
        Ok(outbox) => Connection::spawn(hub, stream, outbox, peer.ip().is_loopback()),
        Err(Refusal::Full) => hub.counters.of(protocol).turned_away.add(1),
        Err(Refusal::Stopping) => {}
    }
}
