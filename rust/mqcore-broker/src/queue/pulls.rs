//! Pull requests that a queue has not completed yet.

use std::sync::Arc;

use crate::model::command::Pull;
use crate::model::entry::Entry;
use crate::queue::members::Consumer;

/// A pull that has not got everything yet.
#[derive(Debug)]
pub(crate) struct Pulling {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) pull: Pull,
    /// How many messages it gets; `None` before it has its turn.
    pub(crate) count: Option<u32>,
    /// How many it got.
    pub(crate) given: u32,
    /// Messages for a queue whose handler decides while sending: these set out together, because their number is told
    /// with the first, and the last one ends the pull.
    pub(crate) held: Vec<(Entry, Option<(u64, u64)>)>,
}
