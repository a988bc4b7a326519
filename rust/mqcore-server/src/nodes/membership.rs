//! What the rest of the server knows of other brokers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mqcore_session::node::NodeTerms;

use crate::nodes::filter::NodeFilters;
use crate::nodes::forwarder::Forwarder;

/// What the rest of the server knows of nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// What sessions are told.
    pub(crate) terms: Arc<NodeTerms>,
    /// Addresses of the masters, in the order of the configuration.
    pub(crate) masters: Vec<String>,
    /// `None`: nothing is forwarded.
    pub(crate) forwarder: Option<Forwarder>,
    /// Filters of the program.
    pub(crate) filters: NodeFilters,
    /// How often a filter had no answer, so that its fallback decided.
    pub(crate) fallen_back: Arc<AtomicU64>,
}
