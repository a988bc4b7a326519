//! Pulls that are not complete.

use std::sync::Arc;

use crate::model::command::Pull;
use crate::model::entry::Entry;
use crate::queue::members::Consumer;

/// A pull that is not complete.
#[derive(Debug)]
pub(crate) struct Pulling {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) pull: Pull,
    /// Number of messages that it gets; `None` before it is first served.
    pub(crate) count: Option<u32>,
    /// Number of delivered messages.
    pub(crate) given: u32,
    /// Messages of a queue whose handler decides while they are delivered. They are delivered together,
    /// because the first one carries their number and the last one ends the pull.
    pub(crate) held: Vec<(Entry, Option<(u64, u64)>)>,
}
