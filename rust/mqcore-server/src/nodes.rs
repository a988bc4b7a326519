//! This broker among others: who it is, what is passed on, and the links to its masters.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | what a broker is told about others |
//! | [`judge`] | filters that a program wrote, and the wait for their word |
//! | `outlet` | the thread that numbers, keeps and hands out what is passed on |
//! | `store` | its journal |
//! | `master` | the task that looks after one master |
//! | `dial` | the transport and the handshake |

pub mod config;
mod dial;
pub mod judge;
mod master;
pub(crate) mod outlet;
mod store;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mqcore_cluster::link::Link;
use mqcore_session::node::NodeTerms;
use tokio::time::Instant;

use self::config::NodeConfig;
use self::dial::Introduced;
use self::judge::NodeFilters;
use self::master::MasterTask;
use self::outlet::{Beginning, Outlet};
use self::store::{Identity, Kept, OpenedStore, Store};
use crate::hub::Hub;
use crate::runtime::shutdown::Shutdown;
use crate::storage::data_dir::DataDirError;

/// The directory of the journal, in the data directory.
const DIRECTORY: &str = "nodes";

/// What the rest of the server knows of nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// What sessions are told.
    pub(crate) terms: Arc<NodeTerms>,
    /// Addresses of the masters, in the order of the configuration.
    pub(crate) masters: Vec<String>,
    /// `None`: nothing is passed on.
    pub(crate) outlet: Option<Outlet>,
    /// Those that the program wrote.
    pub(crate) filters: NodeFilters,
    /// How often one of them had no answer, so that its fallback held.
    pub(crate) fallen_back: Arc<AtomicU64>,
}

/// What was read before the server runs.
pub(crate) struct OpenedNodes {
    config: NodeConfig,
    identity: Identity,
    store: Option<Store>,
    kept: Vec<Kept>,
    next: u64,
}

impl OpenedNodes {
    /// Finds out who this node is, and what it kept.
    pub(crate) fn open(
        config: &NodeConfig,
        data_dir: Option<&Path>,
        now_ms: u64,
    ) -> Result<Self, DataDirError> {
        let config = config.clone();
        let fresh = RandomState::new().build_hasher().finish();
        let random = format!("{fresh:016x}{:016x}", RandomState::new().build_hasher().finish());
        let Some(path) = data_dir else {
            let id = if config.name.is_empty() { random } else { config.name.clone() };
            let identity = Identity { id, epoch: now_ms };
            return Ok(Self { config, identity, store: None, kept: Vec::new(), next: 1 });
        };
        let path = path.join(DIRECTORY);
        let OpenedStore { store, identity, kept, next } =
            Store::open(&path, &config.masters, config.keep_messages, &random, now_ms)?;
        if !kept.is_empty() {
            tracing::info!(messages = kept.len(), "messages were kept for masters");
        }
        Ok(Self { config, identity, store: Some(store), kept, next })
    }

    fn name(&self) -> String {
        if self.config.name.is_empty() { self.identity.id.clone() } else { self.config.name.clone() }
    }

    /// Starts the thread of what is passed on, if there is a master. `directory` is held as long as it runs.
    pub(crate) fn start<T: Send + 'static>(
        self,
        shutdown: &Arc<Shutdown>,
        directory: T,
        filters: NodeFilters,
    ) -> std::io::Result<(Nodes, Links)> {
        let name = self.name();
        let Self { config, identity, store, kept, next } = self;
        let terms = NodeTerms {
            id: identity.id.clone(),
            name: name.clone(),
            accepts: config.accepts,
            token: config.token.clone(),
            accept: config.accept.clone(),
            sends: config.masters.iter().map(|master| master.send.clone()).collect(),
        };
        let masters = config.masters.iter().map(|master| master.address.clone()).collect();
        let outlet = if config.masters.is_empty() {
            None
        } else {
            let options = config.log_options();
            let beginning = Beginning { options, masters: config.masters.len(), next, kept, store };
            Some(Outlet::start(beginning, (directory, shutdown.enter()))?)
        };
        let nodes = Nodes { terms: Arc::new(terms), masters, outlet, filters, fallen_back: Arc::default() };
        Ok((nodes, Links { config, me: Introduced { identity, name } }))
    }
}

/// Links that are not dialled yet.
pub(crate) struct Links {
    config: NodeConfig,
    me: Introduced,
}

impl Links {
    /// Starts a task for each master.
    pub(crate) fn start(self, hub: &Arc<Hub>) {
        let Some(outlet) = hub.nodes.as_ref().and_then(|nodes| nodes.outlet.clone()) else { return };
        let options = self.config.link_options();
        let seeds = RandomState::new();
        for (index, config) in self.config.masters.into_iter().enumerate() {
            let seed = seeds.hash_one(index);
            let task = MasterTask {
                index,
                config,
                me: self.me.clone(),
                link: Link::new(options, 0, seed, 0),
                outlet: outlet.clone(),
                hub: Arc::clone(hub),
                started: Instant::now(),
                _alive: hub.shutdown.enter(),
            };
            tokio::spawn(task.run());
        }
    }
}
