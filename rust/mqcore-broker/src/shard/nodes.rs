//! Other brokers: those that pass on to this one, and those that this one passes on to.

use crate::model::client::Client;
use crate::model::id::ConnectionId;
use crate::model::node::{Master, NodeInformation};
use crate::model::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A broker that passes on to this one: it dialled.
#[derive(Debug)]
struct Slave {
    client: Arc<Client>,
    host: String,
}

impl Slave {
    fn information(&self, connected: bool, now: Timestamp) -> NodeInformation {
        NodeInformation {
            id: self.client.id.to_string(),
            name: self.client.name.as_deref().unwrap_or_default().to_owned(),
            host: self.host.clone(),
            slave: true,
            connected,
            lifetime_ms: now.since(self.client.connected_at).as_millis() as u64,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    slaves: BTreeMap<ConnectionId, Slave>,
    masters: BTreeMap<usize, Master>,
}

impl Nodes {
    /// The connection of the slave with this id.
    pub(crate) fn connection(&self, id: &str) -> Option<ConnectionId> {
        self.slaves.iter().find(|(_, slave)| &*slave.client.id == id).map(|(connection, _)| *connection)
    }

    /// A slave is there.
    pub(crate) fn add(&mut self, client: &Arc<Client>, host: String, now: Timestamp) -> NodeInformation {
        let slave = Slave { client: Arc::clone(client), host };
        let information = slave.information(true, now);
        self.slaves.insert(client.connection, slave);
        information
    }

    /// A connection ended; what to tell if it was a slave's.
    pub(crate) fn remove(&mut self, connection: ConnectionId, now: Timestamp) -> Option<NodeInformation> {
        self.slaves.remove(&connection).map(|slave| slave.information(false, now))
    }

    /// A master came, went or changed its name. What to tell, if it came or went.
    pub(crate) fn master(&mut self, master: Master, now: Timestamp) -> Option<NodeInformation> {
        let was = self.masters.get(&master.index).is_some_and(|known| known.connected_since.is_some());
        let is = master.connected_since.is_some();
        let information = master.information(now);
        self.masters.insert(master.index, master);
        (was != is).then_some(information)
    }

    /// Masters in the order of the configuration, then slaves in that of their connecting.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<NodeInformation> {
        let masters = self.masters.values().map(|master| master.information(now));
        masters.chain(self.slaves.values().map(|slave| slave.information(true, now))).collect()
    }
}
