//! Connections to one listener of the leader. While that accepts none, one client tries for all that wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::leader::{Leader, Unusable};

const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time between two attempts of all clients together, while the leader accepts none.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// The same listener of the leader as one of this node.
#[derive(Debug)]
pub(super) struct Entrance {
    /// The number of the listener.
    number: usize,
    protocol: String,
    /// The addresses of all listeners here. A connection to one of them would be passed on without end.
    own: Arc<[SocketAddr]>,
    /// The leader that has accepted a connection, and where. Clients connect without waiting for each other.
    open: watch::Sender<Option<(Leader, SocketAddr)>>,
    /// Locked by the client that tries.
    finding: Mutex<Finding>,
}

/// Attempts to connect to a leader that is not known to accept connections.
#[derive(Debug)]
struct Finding {
    attempts: u64,
    /// The next attempt of any client is not before this time.
    next: Instant,
    /// The last leader that could not be used, which is in the log.
    told: Option<(u32, Unusable)>,
}

impl Entrance {
    pub(super) fn new(number: usize, protocol: &str, own: Arc<[SocketAddr]>) -> Self {
        let finding = Mutex::new(Finding { attempts: 0, next: Instant::now(), told: None });
        Self { number, protocol: protocol.to_owned(), own, open: watch::Sender::new(None), finding }
    }

    pub(super) fn protocol(&self) -> &str {
        &self.protocol
    }

    /// Connects to this leader, however long it takes to accept connections.
    ///
    /// # Errors
    /// [`Unusable`].
    pub(super) async fn enter(&self, leader: &Leader) -> Result<TcpStream, Unusable> {
        let mut open = self.open.subscribe();
        loop {
            if let Some(address) = self.address_of(leader) {
                if let Some(server) = connect(&[address]).await {
                    return Ok(server);
                }
                self.close(leader, address);
            }
            tokio::select! {
                () = opened(&mut open, leader) => {}
                mut finding = self.finding.lock() => return self.find(&mut finding, leader).await,
            }
        }
    }

    /// The address at which this leader accepts connections, if it is known.
    fn address_of(&self, leader: &Leader) -> Option<SocketAddr> {
        self.open.borrow().as_ref().filter(|(known, _)| known == leader).map(|(_, address)| *address)
    }

    /// The leader has accepted no connection there.
    fn close(&self, leader: &Leader, address: SocketAddr) {
        self.open.send_if_modified(|open| {
            open.take_if(|(known, its)| known == leader && *its == address).is_some()
        });
    }

    async fn find(&self, finding: &mut Finding, leader: &Leader) -> Result<TcpStream, Unusable> {
        loop {
            let found = leader.addresses(self.number, &self.protocol, &self.own).await;
            let addresses = found.inspect_err(|why| finding.warn(&self.protocol, leader, *why))?;
            sleep_until(finding.next).await;
            finding.attempts += 1;
            // Before the attempt, because its client may give up meanwhile.
            finding.next = Instant::now() + CONNECT_PAUSE;
            if let Some(server) = connect(&addresses).await {
                let address = server.peer_addr().ok();
                self.open.send_replace(address.map(|address| (leader.clone(), address)));
                return Ok(server);
            }
        }
    }
}

impl Finding {
    /// Logs once that the listener of this leader is not used.
    fn warn(&mut self, protocol: &str, leader: &Leader, why: Unusable) {
        if self.told.replace((leader.node, why)) != Some((leader.node, why)) {
            let node = leader.node;
            tracing::warn!(node, protocol, %why, "cannot pass connections on to the leader, and closes them");
        }
    }
}

async fn connect(addresses: &[SocketAddr]) -> Option<TcpStream> {
    timeout(CONNECT_TIME, TcpStream::connect(addresses)).await.ok()?.ok()
}

/// Waits until the leader accepts connections.
async fn opened(open: &mut watch::Receiver<Option<(Leader, SocketAddr)>>, leader: &Leader) {
    // The sender is in the entrance, so this cannot fail during the wait.
    let _ = open.wait_for(|open| open.as_ref().is_some_and(|(known, _)| known == leader)).await;
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::task::JoinSet;

    use super::*;

    fn leader(address: SocketAddr) -> Leader {
        let listeners = vec![("tmqp".to_owned(), address.to_string())];
        Leader { node: 2, host: "127.0.0.1".to_owned(), listeners }
    }

    fn closed_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn enter_all(
        entrance: &Arc<Entrance>,
        leader: &Leader,
        clients: usize,
        patience: Duration,
    ) -> JoinSet<bool> {
        let mut entering = JoinSet::new();
        for _ in 0..clients {
            let (entrance, leader) = (Arc::clone(entrance), leader.clone());
            entering
                .spawn(async move { matches!(timeout(patience, entrance.enter(&leader)).await, Ok(Ok(_))) });
        }
        entering
    }

    #[tokio::test]
    async fn clients_that_wait_for_a_leader_try_as_often_as_one() {
        let entrance = Arc::new(Entrance::new(0, "tmqp", Arc::new([])));
        let address = closed_address();
        let wait = Duration::from_secs(1);
        let entered = enter_all(&entrance, &leader(address), 1000, wait).join_all().await;
        assert!(!entered.contains(&true), "it is closed");
        let attempts = entrance.finding.lock().await.attempts;
        assert!((2..=52).contains(&attempts), "{attempts}");
        // All of them connect as soon as it opens.
        let entering = enter_all(&entrance, &leader(address), 1000, Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        assert!(!entering.join_all().await.contains(&false), "it is open");
    }

    #[tokio::test]
    async fn a_leader_that_was_open_is_found_again() {
        let entrance = Arc::new(Entrance::new(0, "tmqp", Arc::new([])));
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let first_leader = leader(first.local_addr().unwrap());
        entrance.enter(&first_leader).await.unwrap();
        assert!(entrance.address_of(&first_leader).is_some());
        drop(first);
        let waits = timeout(Duration::from_millis(100), entrance.enter(&first_leader)).await;
        assert!(waits.is_err() && entrance.address_of(&first_leader).is_none());
        let second = TcpListener::bind("127.0.0.1:0").unwrap();
        let second_leader = leader(second.local_addr().unwrap());
        entrance.enter(&second_leader).await.unwrap();
        assert!(entrance.address_of(&first_leader).is_none());
        assert!(entrance.address_of(&second_leader).is_some());
    }
}
