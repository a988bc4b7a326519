//! Messages that move from or to a queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::model::entry::{Entry, PagedOut};
use crate::model::id::{ConnectionId, QueueAddress, RequestId, Sequence};
use crate::model::transfer::{MoveMessages, MoveReport};

/// Messages that move from or to a queue.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Moves from this queue: the first one runs, the others wait.
    pub(crate) requests: VecDeque<Moving>,
    /// Messages that are leaving, by number, with their targets.
    pub(crate) departing: BTreeMap<u64, (Entry, Arc<QueueAddress>)>,
    /// The number of the last departure.
    pub(crate) departures: u64,
    /// Messages that have arrived and may be delivered once their previous queue has settled them.
    pub(crate) arriving: BTreeMap<Sequence, Arriving>,
}

/// A message that has arrived.
#[derive(Debug)]
pub(crate) enum Arriving {
    /// From this queue.
    Saved(Entry, Arc<QueueAddress>),
    /// In an earlier run of the broker, with this priority.
    Restored(PagedOut, u8),
}

/// A move of messages.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) client: ConnectionId,
    pub(crate) request: RequestId,
    pub(crate) wanted: MoveMessages,
    /// Messages to look at; `None` before the move begins.
    pub(crate) left: Option<u64>,
    /// Messages that stay, each with its place in the queue.
    pub(crate) staying: Vec<(u64, Entry)>,
    pub(crate) report: MoveReport,
}

impl Moves {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.departing.is_empty() && self.arriving.is_empty()
    }

    pub(crate) fn messages(&self) -> usize {
        let staying: usize = self.requests.iter().map(|moving| moving.staying.len()).sum();
        self.departing.len() + self.arriving.len() + staying
    }
}
