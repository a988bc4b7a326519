//! The data of one connection: for its session, CONNECTION and CONNECTIONS.

use core::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use mqcore_wire::throttr::ID_BYTES;
use mqcore_wire::throttr::answer::{CONNECTION_NUMBERS, ConnectionRecord};

/// The counts of a connection, in the order of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Counted {
    ReadBytes,
    WriteBytes,
    PublishedBytes,
    ReceivedBytes,
    Insert = 6,
    Set,
    Query,
    Get,
    Update,
    Purge,
    List,
    Info,
    Stat,
    Stats,
    Publish,
    Subscribe,
    Unsubscribe,
    Connections,
    Connection,
    Channels,
    Channel,
    WhoAmI,
}

/// The address of a peer in records.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerAddress {
    /// A peer on this machine, without a network.
    local: bool,
    ip_version: u8,
    address: [u8; 16],
    port: u16,
}

/// The address shown for a peer without one, as the original shows peers of its Unix socket.
const LOCAL: (&str, u16) = ("127.0.0.1", 13_579);

impl PeerAddress {
    /// Parses `192.0.2.7:50312`; an absent address is local.
    pub(super) fn of(address: Option<&str>) -> Self {
        match address.and_then(|address| address.parse::<SocketAddr>().ok()) {
            Some(address) => Self {
                local: false,
                ip_version: if address.is_ipv4() { 4 } else { 6 },
                address: text(&address.ip().to_string()),
                port: address.port(),
            },
            None => Self { local: true, ip_version: 4, address: text(LOCAL.0), port: LOCAL.1 },
        }
    }
}

fn text(address: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    let length = address.len().min(16);
    bytes[..length].copy_from_slice(&address.as_bytes()[..length]);
    bytes
}

/// One connection. Only its session writes the counts; any thread may read them.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: [u8; ID_BYTES],
    origin: PeerAddress,
    /// In Unix nanoseconds.
    connected_at: u64,
    numbers: [AtomicU64; CONNECTION_NUMBERS],
}

impl Peer {
    pub(super) fn new(id: [u8; ID_BYTES], origin: PeerAddress, connected_at: u64) -> Self {
        Self { id, origin, connected_at, numbers: [const { AtomicU64::new(0) }; CONNECTION_NUMBERS] }
    }

    /// There is only one writer, so nothing is lost between the load and the store.
    #[inline]
    pub(super) fn add(&self, counted: Counted, by: u64) {
        let number = &self.numbers[counted as usize];
        number.store(number.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self, counted: Counted) -> u64 {
        self.numbers[counted as usize].load(Ordering::Relaxed)
    }

    pub(super) fn record(&self) -> ConnectionRecord {
        ConnectionRecord {
            id: self.id,
            role: 0,
            transport: u8::from(self.origin.local),
            ip_version: self.origin.ip_version,
            address: self.origin.address,
            port: self.origin.port,
            connected_at: self.connected_at,
            numbers: std::array::from_fn(|number| self.numbers[number].load(Ordering::Relaxed)),
        }
    }
}
