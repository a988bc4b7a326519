//! A relay between sockets of this machine.

use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};

use super::*;

/// Time after which a test fails that waits for a socket.
const TEST_PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn place(protocol: &str, leaders: watch::Receiver<Option<Leader>>) -> RelayPlace {
    RelayPlace { entrance: Arc::new(Entrance::new(0, protocol, Arc::new([]))), leaders }
}

/// An address of this machine that nothing uses.
fn free_address() -> SocketAddr {
    StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A relay with one listener, and the node that its clients are passed on to.
struct Relayed {
    relay: Relay,
    address: SocketAddr,
    leader: watch::Sender<Option<Leader>>,
    protocol: &'static str,
}

impl Relayed {
    fn new(protocol: &'static str) -> Self {
        Self::with_room(protocol, 100)
    }

    fn with_room(protocol: &'static str, connections: usize) -> Self {
        let (leader, leaders) = watch::channel(None);
        let address = free_address();
        let listeners = [RelayListener { protocol: protocol.to_owned(), address }];
        let status = LatestStatus::default();
        let relay = Relay::start(&listeners, &leaders, &status, connections).unwrap();
        Self { relay, address, leader, protocol }
    }

    fn lead(&self, host: &str, address: SocketAddr) {
        let listeners = vec![(self.protocol.to_owned(), address.to_string())];
        self.leader.send_replace(Some(Leader { node: 2, host: host.to_owned(), listeners }));
    }

    fn connect(&self) -> StdStream {
        let client = StdStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(TEST_PATIENCE)).unwrap();
        client
    }
}

#[test]
fn a_connection_is_passed_on_to_a_leader_on_the_same_machine() {
    let relayed = Relayed::new("tmqp");
    let broker = StdListener::bind("127.0.0.1:0").unwrap();
    relayed.lead("127.0.0.1", broker.local_addr().unwrap());
    let mut client = relayed.connect();
    client.write_all(b"ping").unwrap();
    let (mut server, _) = broker.accept().unwrap();
    server.set_read_timeout(Some(TEST_PATIENCE)).unwrap();
    let mut received = [0; 4];
    server.read_exact(&mut received).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"pong");
    drop(relayed.relay);
    assert_eq!(client.read(&mut received).unwrap_or(0), 0, "its connections end with the relay");
}

#[test]
fn a_relay_does_not_connect_to_itself() {
    let relayed = Relayed::new("tmqp");
    for host in ["127.0.0.1", "198.51.100.2"] {
        relayed.lead(host, relayed.address);
        let mut client = relayed.connect();
        let begun = std::time::Instant::now();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(begun.elapsed() < LEADER_PATIENCE, "the client does not wait for a leader");
    }
}

#[test]
fn the_admin_side_says_that_the_leader_listens_on_loopback() {
    let relayed = Relayed::new("admin");
    relayed.lead("198.51.100.2", relayed.address);
    let mut client = relayed.connect();
    let body = "x".repeat(100_000);
    let request = format!("POST /definitions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("leader-unreachable") && answer.contains("loopback"), "{answer}");
}

#[test]
fn a_relay_passes_on_as_many_connections_as_it_may() {
    let relayed = Relayed::with_room("tmqp", 4);
    let broker = StdListener::bind("127.0.0.1:0").unwrap();
    relayed.lead("127.0.0.1", broker.local_addr().unwrap());
    let mut pairs: Vec<_> = (0..3).map(|_| (relayed.connect(), broker.accept().unwrap())).collect();
    // One connection has room on the admin side.
    match relayed.connect().read(&mut [0]) {
        Ok(bytes) => assert_eq!(bytes, 0),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    drop(pairs.pop());
    // The relay notices the end of a connection a moment later.
    let begun = std::time::Instant::now();
    loop {
        let mut client = relayed.connect();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        match client.read(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            _ => assert!(begun.elapsed() < TEST_PATIENCE, "there is room again"),
        }
    }
}
