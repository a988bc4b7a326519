//! The state of links to other brokers, for the rest of the server.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mqcore_session::node::NodeTerms;

use crate::nodes::filter::NodeFilters;
use crate::nodes::forwarder::Forwarder;

/// The state of links to other brokers.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// Settings for sessions.
    pub(crate) terms: Arc<NodeTerms>,
    /// Addresses of the upstream brokers, in the order of the configuration.
    pub(crate) upstreams: Vec<String>,
    /// `None`: nothing is forwarded.
    pub(crate) forwarder: Option<Forwarder>,
    /// The program's filters.
    pub(crate) filters: NodeFilters,
    /// How often a filter had no answer, so that its fallback decided.
    pub(crate) fallen_back: Arc<AtomicU64>,
}
