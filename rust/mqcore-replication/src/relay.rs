//! The listeners of a member that does not lead: each connection is passed on to the same listener of the leader.
//!
//! So clients of all protocols may connect to any node. The bytes are not looked at, and TLS ends at the leader. Only the admin
//! listener reads the first request, if it is plain HTTP: health checks ask about this node.

mod health;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::status::LatestStatus;

/// The protocol of the admin side.
const ADMIN: &str = "admin";
/// How long a client waits while there is no leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(3);
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
const BACKLOG: u32 = 1024;
/// Pause after an error of the listener, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayListener {
    /// Its protocol: all nodes have the same listeners in the same order.
    pub protocol: String,
    /// Its address on this node.
    pub address: SocketAddr,
}

impl RelayListener {
    pub(crate) fn told(&self) -> (String, String) {
        (self.protocol.clone(), self.address.to_string())
    }
}

/// The place of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its node.
    pub node: u32,
    /// Its host, as in the address of its member.
    pub host: String,
    /// Its listeners: protocol and address.
    pub listeners: Vec<(String, String)>,
}

impl Leader {
    /// The address of its listener with this number. `None`: its listeners are other ones than here.
    fn address(&self, number: usize, protocol: &str) -> Option<String> {
        let (its, address) = self.listeners.get(number)?;
        let address: SocketAddr = address.parse().ok()?;
        let port = address.port();
        // A listener on all addresses is reached where the member is.
        let host = if address.ip().is_unspecified() { self.host.clone() } else { address.ip().to_string() };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        (its == protocol).then(|| format!("{host}:{port}"))
    }
}

/// The listeners of a member that does not lead. They close when this is dropped, and so do their connections.
#[derive(Debug)]
pub struct Relay {
    tasks: JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

impl Relay {
    /// Listens on all addresses.
    ///
    /// # Errors
    /// The address that cannot be used, and the error of the system.
    pub fn start(
        runtime: &tokio::runtime::Handle,
        listeners: &[RelayListener],
        leaders: watch::Receiver<Option<Leader>>,
        status: &LatestStatus,
    ) -> Result<Self, (String, io::Error)> {
        let _entered = runtime.enter();
        let mut tasks = JoinSet::new();
        for (number, listener) in listeners.iter().enumerate() {
            let bound = bind(listener.address).map_err(|error| (listener.address.to_string(), error))?;
            let place = RelayPlace { number, protocol: listener.protocol.clone(), leaders: leaders.clone() };
            tasks.spawn_on(accept(bound, place, status.clone()), runtime);
        }
        Ok(Self { tasks, runtime: runtime.clone() })
    }
}

impl Drop for Relay {
    /// Returns when the addresses are free.
    fn drop(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        self.runtime.block_on(tasks.shutdown());
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The target of the connections of one listener: the same listener of the leader.
#[derive(Debug, Clone)]
struct RelayPlace {
    /// The number of the listener.
    number: usize,
    protocol: String,
    leaders: watch::Receiver<Option<Leader>>,
}

async fn accept(listener: TcpListener, place: RelayPlace, status: LatestStatus) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let (place, status) = (place.clone(), status.clone());
                    connections.spawn(async move {
                        let ended = match place.protocol.as_str() {
                            ADMIN => health::serve(client, place, &status).await,
                            _ => pass_on(client, place, &[]).await,
                        };
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a relayed connection has ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to be relayed; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Connects a client to the leader, which gets what was `received` first.
async fn pass_on(client: TcpStream, mut place: RelayPlace, received: &[u8]) -> io::Result<()> {
    let (leader, server) = place.reach_within(LEADER_PATIENCE).await?;
    join(client, server, received, &mut place, leader).await
}

/// Copies bytes until a side ends the connection or there is another leader.
async fn join(
    mut client: TcpStream,
    mut server: TcpStream,
    received: &[u8],
    place: &mut RelayPlace,
    leader: u32,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    server.write_all(received).await?;
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut server) => copied.map(drop),
        // A client that waits for an answer of an old leader would wait for ever.
        () = is_replaced(&mut place.leaders, leader) => Ok(()),
    }
}

impl RelayPlace {
    async fn reach_within(&mut self, patience: Duration) -> io::Result<(u32, TcpStream)> {
        tokio::time::timeout(patience, self.reach()).await?
    }

    /// Connects to the leader, whose broker may be about to start. Follows if there is another one meanwhile.
    async fn reach(&mut self) -> io::Result<(u32, TcpStream)> {
        let leaders = &mut self.leaders;
        loop {
            let found = leaders.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
            let leader = found.ok_or(io::ErrorKind::NotConnected)?;
            let address = leader.address(self.number, &self.protocol).ok_or_else(|| {
                tracing::warn!(
                    node = leader.node,
                    protocol = self.protocol,
                    "the leader has other listeners than this node; give all nodes the same ones"
                );
                io::Error::from(io::ErrorKind::AddrNotAvailable)
            })?;
            tokio::select! {
                connected = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(&address)) => {
                    if let Ok(Ok(server)) = connected {
                        return Ok((leader.node, server));
                    }
                }
                () = is_replaced(leaders, leader.node) => continue,
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }
}

/// Waits until this node does not lead any more.
async fn is_replaced(leaders: &mut watch::Receiver<Option<Leader>>, node: u32) {
    // An error: this member leads, and its relay ends.
    let _ = leaders.wait_for(|now| now.as_ref().is_none_or(|now| now.node != node)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_listener_of_the_leader() {
        let told = |address: &str| ("tmqp".to_owned(), address.to_owned());
        let listeners = vec![told("0.0.0.0:47200"), told("10.0.0.9:47201"), told("[::]:47202")];
        let leader = Leader { node: 2, host: "db-2".to_owned(), listeners };
        assert_eq!(leader.address(0, "tmqp").as_deref(), Some("db-2:47200"));
        assert_eq!(leader.address(1, "tmqp").as_deref(), Some("10.0.0.9:47201"));
        assert_eq!(leader.address(2, "tmqp").as_deref(), Some("db-2:47202"));
        assert_eq!(leader.address(0, "emqp"), None);
        assert_eq!(leader.address(3, "tmqp"), None);
    }
}
