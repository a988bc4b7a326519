//! The named peer behind a connection, as every part of the broker sees it.

use crate::id::ConnectionId;
use crate::time::Timestamp;

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
}
