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
    /// `None`: nothing is passed on.
    pub(crate) forwarder: Option<Forwarder>,
    /// Those that the program wrote.
    pub(crate) filters: NodeFilters,
    /// How often one of them had no answer, so that its fallback held.
    pub(crate) fallen_back: Arc<AtomicU64>,
}
