//! Other brokers, as this one knows them.

use crate::model::time::Timestamp;

/// A broker that this one passes on to, as the server last told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its place in the configuration.
    pub index: usize,
    /// Its id; empty while it never answered, or if it tells none.
    pub id: String,
    /// Its name, or the address that is dialled where it told none.
    pub name: String,
    /// The address that is dialled.
    pub host: String,
    /// Since when it is connected; `None`: it is not.
    pub connected_since: Option<Timestamp>,
}

impl Upstream {
    pub(crate) fn information(&self, now: Timestamp) -> NodeInformation {
        NodeInformation {
            id: self.id.clone(),
            name: self.name.clone(),
            host: self.host.clone(),
            downstream: false,
            connected: self.connected_since.is_some(),
            lifetime_ms: self.connected_since.map_or(0, |since| now.since(since).as_millis() as u64),
        }
    }
}

/// A node, as `Reply::Nodes` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "Node Information of the document")]
pub struct NodeInformation {
    pub id: String,
    pub name: String,
    pub host: String,
    pub downstream: bool,
    pub connected: bool,
    pub lifetime_ms: u64,
}
