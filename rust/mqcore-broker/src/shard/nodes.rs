//! Upstream and downstream brokers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::ConnectionId;
use crate::model::node::{NodeInformation, Upstream};
use crate::model::time::Timestamp;

/// A downstream broker, which connected to this one.
#[derive(Debug)]
struct Downstream {
    client: Arc<Client>,
    user: Option<Arc<str>>,
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

/// The place of a node in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePlace {
    /// An upstream broker with this index in the configuration.
    Upstream(usize),
    /// A downstream broker with this connection.
    Downstream(ConnectionId),
}

/// All nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    downstreams: BTreeMap<ConnectionId, Downstream>,
    upstreams: BTreeMap<usize, Upstream>,
}

impl Nodes {
    /// The connection of the downstream broker with this id, and the user that it logged in as.
    pub(crate) fn connection(&self, id: &str) -> Option<(ConnectionId, Option<&str>)> {
        self.downstreams
            .iter()
            .find(|(_, downstream)| &*downstream.client.id == id)
            .map(|(connection, downstream)| (*connection, downstream.user.as_deref()))
    }

    /// Adds a downstream broker, which logged in as this user.
    pub(crate) fn add(
        &mut self,
        client: &Arc<Client>,
        user: Option<Arc<str>>,
        host: String,
        now: Timestamp,
    ) -> NodeInformation {
        let downstream = Downstream { client: Arc::clone(client), user, host };
        let information = downstream.information(true, now);
        self.downstreams.insert(client.connection, downstream);
        information
    }

    /// Removes a closed connection; returns what to notify if it was a downstream broker's.
    pub(crate) fn remove(&mut self, connection: ConnectionId, now: Timestamp) -> Option<NodeInformation> {
        self.downstreams.remove(&connection).map(|downstream| downstream.information(false, now))
    }

    /// An upstream broker connected, disconnected or changed its name. Returns what to notify if it
    /// connected or disconnected.
    pub(crate) fn upstream(&mut self, upstream: Upstream, now: Timestamp) -> Option<NodeInformation> {
        let was = self.upstreams.get(&upstream.index).is_some_and(|known| known.connected_since.is_some());
        let is = upstream.connected_since.is_some();
        let information = upstream.information(now);
        self.upstreams.insert(upstream.index, upstream);
        (was != is).then_some(information)
    }

    /// The nodes that follow this place, in the order of [`Self::list`], with their places.
    pub(crate) fn following(
        &self,
        after: Option<NodePlace>,
        now: Timestamp,
    ) -> impl Iterator<Item = (NodePlace, NodeInformation)> {
        let (upstreams, downstreams) = match after {
            None => (Some(Bound::Unbounded), Bound::Unbounded),
            Some(NodePlace::Upstream(index)) => (Some(Bound::Excluded(index)), Bound::Unbounded),
            Some(NodePlace::Downstream(connection)) => (None, Bound::Excluded(connection)),
        };
        let upstreams =
            upstreams.into_iter().flat_map(|begin| self.upstreams.range((begin, Bound::Unbounded)));
        let downstreams = self.downstreams.range((downstreams, Bound::Unbounded));
        upstreams
            .map(move |(index, upstream)| (NodePlace::Upstream(*index), upstream.information(now)))
            .chain(downstreams.map(move |(connection, downstream)| {
                (NodePlace::Downstream(*connection), downstream.information(true, now))
            }))
    }

    /// Upstream brokers in configuration order, then downstream brokers in the order of their
    /// connections.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<NodeInformation> {
        let upstreams = self.upstreams.values().map(|upstream| upstream.information(now));
        upstreams
            .chain(self.downstreams.values().map(|downstream| downstream.information(true, now)))
            .collect()
    }
}
