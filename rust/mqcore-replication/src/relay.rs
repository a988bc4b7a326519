//! The listeners of a member that does not lead: each connection is passed on to the same listener of the leader.
//!
//! So clients of all protocols may connect to any node. The bytes are not looked at, and TLS ends at the leader. Only the admin
//! listener reads the first request, if it is plain HTTP: health checks ask about this node.

mod entrance;
mod health;
mod leader;
mod room;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::entrance::Entrance;
use self::leader::Unusable;
use self::room::Room;
use crate::status::LatestStatus;

pub use self::leader::Leader;

/// The protocol of the admin side.
const ADMIN: &str = "admin";
/// How long a client waits while there is no leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 1024;
/// As at the broker's own listeners, which see only the relay.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);
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
    /// Its own thread: however many clients there are, members hear each other in time. `None` at the end.
    runtime: Option<Runtime>,
}

/// Why a relay cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// There is no thread for it.
    #[error("cannot start the thread for connections of clients: {0}")]
    Thread(io::Error),
    /// An address cannot be used.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
}

impl Relay {
    /// Listens on all addresses, and passes on at most so many connections at the same time.
    ///
    /// # Errors
    /// [`RelayError`].
    pub fn start(
        listeners: &[RelayListener],
        leaders: &watch::Receiver<Option<Leader>>,
        status: &LatestStatus,
        connections_max: usize,
    ) -> Result<Self, RelayError> {
        let mut threads = Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).thread_name("mqcore-relay").enable_all().build();
        let runtime = runtime.map_err(RelayError::Thread)?;
        let entered = runtime.enter();
        let mut tasks = JoinSet::new();
        let (clients, admin) = Room::divide(connections_max);
        let own: Arc<[SocketAddr]> = listeners.iter().map(|listener| listener.address).collect();
        for (number, listener) in listeners.iter().enumerate() {
            let bound =
                bind(listener.address).map_err(|error| RelayError::Listen(listener.address, error))?;
            let entrance = Arc::new(Entrance::new(number, &listener.protocol, Arc::clone(&own)));
            let place = RelayPlace { entrance, leaders: leaders.clone() };
            let room = if listener.protocol == ADMIN { &admin } else { &clients };
            tasks.spawn(accept(bound, place, Arc::clone(room), status.clone()));
        }
        drop(entered);
        Ok(Self { tasks, runtime: Some(runtime) })
    }
}

impl Drop for Relay {
    /// Returns when the addresses are free.
    fn drop(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(tasks.shutdown());
            // A name that is being resolved would keep it for long.
            runtime.shutdown_background();
        }
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
    entrance: Arc<Entrance>,
    leaders: watch::Receiver<Option<Leader>>,
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
                    let Some(taken) = room.enter(place.entrance.protocol()) else { continue };
                    let (place, status) = (place.clone(), status.clone());
                    connections.spawn(async move {
                        let ended = match place.entrance.protocol() {
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
    SockRef::from(&client).set_tcp_keepalive(&KEEP_ALIVE)?;
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
                server = self.entrance.enter(&leader) => return Ok((leader.node, server?)),
                () = is_changed(leaders, &leader) => {}
            }
        }
    }
}

/// Waits until another node leads, or this one with other listeners.
async fn is_changed(leaders: &mut watch::Receiver<Option<Leader>>, leader: &Leader) {
    // An error, here and below: this member leads, and its relay ends.
    let _ = leaders.wait_for(|now| now.as_ref() != Some(leader)).await;
}

/// Waits until this node does not lead any more.
async fn is_replaced(leaders: &mut watch::Receiver<Option<Leader>>, node: u32) {
    let _ = leaders.wait_for(|now| now.as_ref().is_none_or(|now| now.node != node)).await;
}
