//! Upstream and downstream brokers.

use crate::model::time::Timestamp;

/// An upstream broker, as the server last reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Index in the configuration.
    pub index: usize,
    /// Id; empty until it answers, or if it sends none.
    pub id: String,
    /// Name, or the dialed address if it sends none.
    pub name: String,
    /// The dialed address.
    pub host: String,
    /// Since when it is connected; `None` if it is not.
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

/// A node in `Reply::Nodes`.
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
