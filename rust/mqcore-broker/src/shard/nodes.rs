//! Other brokers: those that pass on to this one, and those that this one passes on to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::ConnectionId;
use crate::model::node::{NodeInformation, Upstream};
use crate::model::time::Timestamp;

/// A broker that passes on to this one: it dialled.
#[derive(Debug)]
struct Downstream {
    client: Arc<Client>,
    host: String,
}

impl Downstream {
    fn information(&self, connected: bool, now: Timestamp) -> NodeInformation {
        NodeInformation {
            id: self.client.id.to_string(),
            name: self.client.name.as_deref().unwrap_or_default().to_owned(),
            host: self.host.clone(),
            downstream: true,
            connected,
            lifetime_ms: now.since(self.client.connected_at).as_millis() as u64,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    downstreams: BTreeMap<ConnectionId, Downstream>,
    upstreams: BTreeMap<usize, Upstream>,
}

impl Nodes {
    /// The connection of the slave with this id.
    pub(crate) fn connection(&self, id: &str) -> Option<ConnectionId> {
        self.downstreams
            .iter()
            .find(|(_, downstream)| &*downstream.client.id == id)
            .map(|(connection, _)| *connection)
    }

    /// A slave is there.
    pub(crate) fn add(&mut self, client: &Arc<Client>, host: String, now: Timestamp) -> NodeInformation {
        let downstream = Downstream { client: Arc::clone(client), host };
        let information = downstream.information(true, now);
        self.downstreams.insert(client.connection, downstream);
        information
    }

    /// A connection ended; what to tell if it was a slave's.
    pub(crate) fn remove(&mut self, connection: ConnectionId, now: Timestamp) -> Option<NodeInformation> {
        self.downstreams.remove(&connection).map(|downstream| downstream.information(false, now))
    }

    /// A master came, went or changed its name. What to tell, if it came or went.
    pub(crate) fn upstream(&mut self, upstream: Upstream, now: Timestamp) -> Option<NodeInformation> {
        let was = self.upstreams.get(&upstream.index).is_some_and(|known| known.connected_since.is_some());
        let is = upstream.connected_since.is_some();
        let information = upstream.information(now);
        self.upstreams.insert(upstream.index, upstream);
        (was != is).then_some(information)
    }

    /// Masters in the order of the configuration, then slaves in that of their connecting.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<NodeInformation> {
        let upstreams = self.upstreams.values().map(|upstream| upstream.information(now));
        upstreams
            .chain(self.downstreams.values().map(|downstream| downstream.information(true, now)))
            .collect()
    }
}
