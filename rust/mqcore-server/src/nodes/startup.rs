//! Opens what a node has saved, and starts its links.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use mqcore_cluster::link::Link;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_session::node::NodeTerms;
use tokio::time::Instant;

use crate::hub::Hub;
use crate::nodes::config::NodeConfig;
use crate::nodes::dial::LocalIdentity;
use crate::nodes::filter::NodeFilters;
use crate::nodes::forwarder::{Forwarder, ForwarderStart};
use crate::nodes::membership::Nodes;
use crate::nodes::store::{ForwardJournal, NodeIdentity, OpenedStore, SavedForward};
use crate::nodes::upstream::UpstreamTask;
use crate::runtime::shutdown::{Shutdown, VitalGuard};
use crate::storage::data_dir::{DataDir, DataDirError, SideJournal};

/// Saved state, read before the server runs.
pub(crate) struct OpenedNodes {
    config: NodeConfig,
    identity: NodeIdentity,
    store: Option<ForwardJournal>,
    kept: Vec<SavedForward>,
    next: u64,
}

impl OpenedNodes {
    /// Determines the identity of this node, and reads its saved messages.
    pub(crate) fn open(
        config: &NodeConfig,
        directory: Option<&DataDir>,
        now_ms: u64,
    ) -> Result<Self, DataDirError> {
        let config = config.clone();
        let fresh = RandomState::new().build_hasher().finish();
        let random = format!("{fresh:016x}{:016x}", RandomState::new().build_hasher().finish());
        let Some(directory) = directory else {
            let id = if config.name.is_empty() { random } else { config.name.clone() };
            let identity = NodeIdentity { id, epoch: now_ms };
            return Ok(Self { config, identity, store: None, kept: Vec::new(), next: 1 });
        };
        let name = SideJournal::Nodes.as_str();
        let mut found = |report: &RecoveryReport| directory.found(name, report);
        let OpenedStore { store, identity, kept, next } = ForwardJournal::open(
            (&directory.side(SideJournal::Nodes), directory.files()),
            directory.identity_of(name),
            &config.upstreams,
            config.keep_messages,
            &random,
            now_ms,
            &mut found,
        )?;
        directory.register(&[(name.to_owned(), store.identity())])?;
        if !kept.is_empty() {
            tracing::info!(messages = kept.len(), "restored messages for upstream brokers");
        }
        Ok(Self { config, identity, store: Some(store), kept, next })
    }

    fn name(&self) -> String {
        if self.config.name.is_empty() { self.identity.id.clone() } else { self.config.name.clone() }
    }

    /// Starts the thread that forwards messages, if there is an upstream broker. `directory` is held as long as it
    /// runs.
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
            sends: config.upstreams.iter().map(|upstream| upstream.send.clone()).collect(),
        };
        let upstreams = config.upstreams.iter().map(|upstream| upstream.address.clone()).collect();
        let forwarder = if config.upstreams.is_empty() {
            None
        } else {
            let options = config.log_options();
            let start = ForwarderStart { options, upstreams: config.upstreams.len(), next, kept, store };
            Some(Forwarder::start(start, (directory, VitalGuard::from(shutdown.enter())))?)
        };
        let nodes =
            Nodes { terms: Arc::new(terms), upstreams, forwarder, filters, fallen_back: Arc::default() };
        Ok((nodes, Links { config, me: LocalIdentity { identity, name } }))
    }
}

/// Links that are not dialed yet.
pub(crate) struct Links {
    config: NodeConfig,
    me: LocalIdentity,
}

impl Links {
    /// Starts a task for each upstream broker.
    pub(crate) fn start(self, hub: &Arc<Hub>) {
        let Some(forwarder) = hub.nodes.as_ref().and_then(|nodes| nodes.forwarder.clone()) else { return };
        let options = self.config.link_options();
        let seeds = RandomState::new();
        for (index, config) in self.config.upstreams.into_iter().enumerate() {
            let seed = seeds.hash_one(index);
            let task = UpstreamTask {
                index,
                config,
                me: self.me.clone(),
                link: Link::new(options, 0, seed, 0),
                forwarder: forwarder.clone(),
                hub: Arc::clone(hub),
                started: Instant::now(),
                _alive: hub.shutdown.enter(),
            };
            tokio::spawn(task.run());
        }
    }
}
