//! The named peer behind a connection, as every part of the broker sees it.

use std::sync::Arc;

use crate::model::id::ConnectionId;
use crate::model::time::Timestamp;

/// What is known of a peer before it has said anything: seen by the listener, not claimed by the peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Where it connects from, `192.0.2.7:50312`; `None` if it needs no network: inside this process, or through a
    /// Unix socket.
    pub address: Option<Box<str>>,
    /// Whether what it says cannot be read on the way.
    pub encrypted: bool,
    /// What it proved to be, if the listener asks for certificates and it has one.
    pub certificate: Option<Arc<PeerCertificate>>,
}

/// What a peer's certificate says, after the listener has checked it: it was issued by an authority that the
/// listener was told, it is valid now, and the peer has its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The common name of its subject; empty if it has none.
    pub subject: Box<str>,
    /// Its alternative names, each with its kind in front, so that none is taken for another:
    /// `dns:worker.example`, `email:ann@example.org`, `uri:spiffe://shop/worker`, `ip:192.0.2.7`.
    pub names: Box<[Box<str>]>,
    /// SHA-256 of the whole certificate, 64 lower-case hexadecimal digits.
    pub fingerprint: Box<str>,
    /// The last moment at which it is valid.
    pub not_after: Timestamp,
}

/// Who is connected. Made once, at the handshake, and shared from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The connection that it speaks through.
    pub connection: ConnectionId,
    /// Unique among those connected.
    pub id: Box<str>,
    /// Not unique; `None` if the client gave none.
    pub name: Option<Box<str>>,
    /// What sort of program it is; `None` if the client gave none. (Twino's Client-Type.)
    pub kind: Option<Box<str>>,
    /// What it speaks, as listeners spell it; for the history and for people.
    pub protocol: &'static str,
    /// Whether it may list clients, remove channels and the like.
    pub admin: bool,
    /// When the handshake was finished.
    pub connected_at: Timestamp,
}

/// What a peer says of itself when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Introduction {
    /// The id it wants; `None` or empty: the broker makes one.
    pub id: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its type.
    pub kind: Option<String>,
    /// Its token, for an authenticator.
    pub token: Option<String>,
    /// Everything else it sent.
    pub properties: Vec<(String, String)>,
    /// `Some`: the peer is another broker, which passes on what its clients produce; its host, if it told one. It is no
    /// client: it counts to no limit of clients, is listed with the nodes, and its id belongs to it even while an
    /// older connection of it seems to be there.
    pub node: Option<String>,
}
