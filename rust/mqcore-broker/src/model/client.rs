//! The named peer behind a connection, as every part of the broker sees it.

use std::sync::Arc;

use crate::model::id::ConnectionId;
use crate::model::time::Timestamp;

/// Facts that the listener knows about a peer before the handshake; none of them is claimed by the peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Remote address, `192.0.2.7:50312`; `None` for in-process and Unix-socket connections.
    pub address: Option<Box<str>>,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// The verified client certificate, if the listener asks for one and the peer has one.
    pub certificate: Option<Arc<PeerCertificate>>,
}

/// A verified client certificate: a trusted authority issued it, it is valid now, and the peer has its
/// key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Common name of the subject; empty if it has none.
    pub subject: Box<str>,
    /// Alternative names, each prefixed by its kind: `dns:worker.example`, `email:ann@example.org`,
    /// `uri:spiffe://shop/worker`, `ip:192.0.2.7`.
    pub names: Box<[Box<str>]>,
    /// SHA-256 of the certificate: 64 lower-case hexadecimal digits.
    pub fingerprint: Box<str>,
    /// The last moment at which the certificate is valid.
    pub not_after: Timestamp,
}

/// A connected client. Created once, at the handshake, and shared from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The client's connection.
    pub connection: ConnectionId,
    /// Client id, unique among connected clients.
    pub id: Box<str>,
    /// Whether it showed valid credentials, or the program's authenticator accepted it.
    pub authenticated: bool,
    /// Client name, not unique; `None` if the client gave none.
    pub name: Option<Box<str>>,
    /// Client type (Twino's Client-Type); `None` if the client gave none.
    pub kind: Option<Box<str>>,
    /// Protocol, as listeners spell it; for the history and for people.
    pub protocol: &'static str,
    /// The user or token whose permissions it has; `None` if clients need not log in, or the client is part of the
    /// program.
    pub user: Option<Arc<str>>,
    /// Whether the client may use administrators' requests.
    pub admin: bool,
    /// When the handshake finished.
    pub connected_at: Timestamp,
    /// Further data that the client sent when it connected; `None` if there is none.
    pub data: Option<Arc<ConnectionData>>,
}

/// Data that a client sent when it connected, besides its id, name, type and credentials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionData {
    /// The path of the first line of TMQP's Hello; empty if the protocol has none.
    pub path: String,
    /// The method of that line; empty if the protocol has none.
    pub method: String,
    /// Its properties in the order sent, up to 4,096 bytes.
    pub properties: Vec<(String, String)>,
}

/// Maximum bytes of the path, method and properties that the broker keeps of a client; it drops further ones.
const PROPERTY_BYTES_MAX: usize = 4096;

impl ConnectionData {
    /// The data, unless there is none.
    pub fn shared(mut self) -> Option<Arc<Self>> {
        if self.path.len() + self.method.len() > PROPERTY_BYTES_MAX {
            (self.path, self.method) = (String::new(), String::new());
        }
        let mut room = PROPERTY_BYTES_MAX.saturating_sub(self.path.len() + self.method.len());
        self.properties.retain(|(key, value)| {
            let fits = key.len() + value.len() <= room;
            room = room.saturating_sub(key.len() + value.len());
            fits
        });
        (self != Self::default()).then(|| Arc::new(self))
    }
}

/// Data that a peer claims when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Introduction {
    /// Requested client id; `None` or empty: the broker generates one.
    pub id: Option<String>,
    /// Client name.
    pub name: Option<String>,
    /// Client type.
    pub kind: Option<String>,
    /// Token for the authenticator.
    pub token: Option<String>,
    /// All other properties that the peer sent.
    pub properties: Vec<(String, String)>,
    /// Path of the first line of TMQP's Hello; empty elsewhere.
    pub path: String,
    /// Method of that line; empty elsewhere.
    pub method: String,
    /// `Some`: the peer is a downstream broker that passes on what its clients produce; its host, if it
    /// sent one. It is not a client: it does not count toward the client limit, it is listed with the
    /// nodes, and it keeps its id even while an older connection of it still seems open.
    pub node: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(path: usize, method: usize, properties: &[(usize, usize)]) -> ConnectionData {
        let properties = properties.iter().map(|&(key, value)| ("k".repeat(key), "v".repeat(value)));
        ConnectionData {
            path: "p".repeat(path),
            method: "m".repeat(method),
            properties: properties.collect(),
        }
    }

    #[test]
    fn connection_without_data_keeps_none() {
        assert_eq!(ConnectionData::default().shared(), None);
    }

    #[test]
    fn path_and_method_are_kept_up_to_the_limit_and_dropped_together_beyond_it() {
        for (path, method) in [(4096, 0), (0, 4096), (4000, 96), (96, 4000)] {
            let kept = data(path, method, &[]);
            assert_eq!(kept.clone().shared().as_deref(), Some(&kept));
            let longer = data(path, method + 1, &[(1, 1)]);
            assert_eq!(longer.shared().as_deref(), Some(&data(0, 0, &[(1, 1)])));
        }
    }

    #[test]
    fn first_property_that_does_not_fit_is_dropped_with_all_further_ones() {
        let kept = data(1000, 96, &[(1000, 1000), (900, 100)]);
        assert_eq!(kept.clone().shared().as_deref(), Some(&kept));
        let more = data(1000, 97, &[(1000, 1000), (900, 100), (499, 500)]);
        assert_eq!(more.shared().as_deref(), Some(&data(1000, 97, &[(1000, 1000)])));
    }
}
