//! The listeners of a member that does not lead: each connection is passed on to the same listener of the leader.
//!
//! So clients of all protocols may connect to any node. The bytes are not looked at, and TLS ends at the leader. Only the admin
//! listener reads the first request, if it is plain HTTP: health checks ask about this node.

mod health;
mod leader;
mod room;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::leader::Unusable;
use self::room::Room;
use crate::status::LatestStatus;

pub use self::leader::Leader;

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

/// The listeners of a member that does not lead. They close when this is dropped, and so do their connections.
#[derive(Debug)]
pub struct Relay {
    tasks: JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

impl Relay {
    /// Listens on all addresses, and passes on at most so many connections at the same time.
    ///
    /// # Errors
    /// The address that cannot be used, and the error of the system.
    pub fn start(
        runtime: &tokio::runtime::Handle,
        listeners: &[RelayListener],
        leaders: watch::Receiver<Option<Leader>>,
        status: &LatestStatus,
        connections_max: usize,
    ) -> Result<Self, (String, io::Error)> {
        let _entered = runtime.enter();
        let mut tasks = JoinSet::new();
        let (clients, admin) = Room::divide(connections_max);
        let own: Arc<[SocketAddr]> = listeners.iter().map(|listener| listener.address).collect();
        for (number, listener) in listeners.iter().enumerate() {
            let bound = bind(listener.address).map_err(|error| (listener.address.to_string(), error))?;
            let target = RelayTarget {
                number,
                protocol: listener.protocol.clone(),
                own: Arc::clone(&own),
                told: Mutex::default(),
            };
            let place = RelayPlace { target: Arc::new(target), leaders: leaders.clone() };
            let room = if listener.protocol == ADMIN { &admin } else { &clients };
            tasks.spawn_on(accept(bound, place, Arc::clone(room), status.clone()), runtime);
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

/// The way of a connection of one listener to the leader.
#[derive(Debug, Clone)]
struct RelayPlace {
    target: Arc<RelayTarget>,
    leaders: watch::Receiver<Option<Leader>>,
}

/// The target of the connections of one listener: the same listener of the leader.
#[derive(Debug)]
struct RelayTarget {
    /// The number of the listener.
    number: usize,
    protocol: String,
    /// The addresses of all listeners here. A connection to one of them would be passed on without end.
    own: Arc<[SocketAddr]>,
    /// The last leader that could not be used, which is in the log.
    told: Mutex<Option<(u32, Unusable)>>,
}

/// Why a connection was not passed on.
#[derive(Debug, thiserror::Error)]
enum NotReached {
    #[error("no node leads the cluster")]
    NoLeader,
    #[error("the broker of the leader accepts no connections yet")]
    NotYet,
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

async fn accept(listener: TcpListener, place: RelayPlace, room: Arc<Room>, status: LatestStatus) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let Some(taken) = room.enter(&place.target.protocol) else { continue };
                    let (place, status) = (place.clone(), status.clone());
                    connections.spawn(async move {
                        let ended = match place.target.protocol.as_str() {
                            ADMIN => health::serve(client, place, &status).await,
                            _ => pass_on(client, place, &[]).await,
                        };
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a relayed connection has ended");
                        }
                        drop(taken);
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
    let (leader, server) = place.reach_within(LEADER_PATIENCE).await.map_err(io::Error::other)?;
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
    async fn reach_within(&mut self, patience: Duration) -> Result<(u32, TcpStream), NotReached> {
        match tokio::time::timeout(patience, self.reach()).await {
            Ok(reached) => reached,
            Err(_) if self.leaders.borrow().is_none() => Err(NotReached::NoLeader),
            Err(_) => Err(NotReached::NotYet),
        }
    }

    /// Connects to the leader, whose broker may be about to start. Follows if there is another one meanwhile.
    async fn reach(&mut self) -> Result<(u32, TcpStream), NotReached> {
        let leaders = &mut self.leaders;
        loop {
            // An error: this member leads, and its relay ends.
            let found = leaders.wait_for(Option::is_some).await.map_err(|_| NotReached::NoLeader)?.clone();
            let leader = found.ok_or(NotReached::NoLeader)?;
            tokio::select! {
                server = self.target.connect(&leader) => return Ok((leader.node, server?)),
                () = is_replaced(leaders, leader.node) => {}
            }
        }
    }
}

impl RelayTarget {
    /// Connects to the leader, however long it takes to accept connections.
    async fn connect(&self, leader: &Leader) -> Result<TcpStream, Unusable> {
        loop {
            let found = leader.addresses(self.number, &self.protocol, &self.own).await;
            let addresses = found.inspect_err(|why| self.warn(leader, *why))?;
            let connected = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(&*addresses)).await;
            if let Ok(Ok(server)) = connected {
                return Ok(server);
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    /// Logs once that the listener of this leader is not used.
    fn warn(&self, leader: &Leader, why: Unusable) {
        let now = Some((leader.node, why));
        let before = std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), now);
        if before != now {
            let (node, protocol) = (leader.node, &self.protocol);
            tracing::warn!(node, protocol, %why, "cannot pass connections on to the leader, and closes them");
        }
    }
}

/// Waits until this node does not lead any more.
async fn is_replaced(leaders: &mut watch::Receiver<Option<Leader>>, node: u32) {
    // An error: this member leads, and its relay ends.
    let _ = leaders.wait_for(|now| now.as_ref().is_none_or(|now| now.node != node)).await;
}
