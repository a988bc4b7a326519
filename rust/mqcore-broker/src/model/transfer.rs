//! Messages that go from one queue to another, possibly of another shard.

use std::sync::Arc;

use crate::model::id::{MessageNumber, QueueAddress, QueueRef, Sequence};
use crate::model::message::Message;
use crate::model::rejection::Rejection;
use crate::model::time::Timestamp;

/// A message that moves to another queue.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The new queue.
    pub to: QueueAddress,
    /// The queue that it leaves.
    pub from: Arc<QueueAddress>,
    /// The message; its headers contain origin, reason and attempts.
    pub message: Message,
    /// Its record until the new queue has saved it; `None` if it was never saved.
    pub origin: Option<Origin>,
    /// Its place in the queue until the new queue has taken it. `None` for a dead letter, which its queue has given up.
    pub departure: Option<Departure>,
}

/// How a transfer ended.
#[derive(Debug, Clone)]
pub struct TransferEnd {
    /// The record of the message in its previous queue.
    pub origin: Option<Origin>,
    /// The place of a moved message in its previous queue.
    pub departure: Option<Departure>,
    /// The place of a moved message in its new queue, if it waits there; or why that queue rejects it.
    pub result: Result<Option<ArrivedMessage>, Rejection>,
}

impl TransferEnd {
    /// The shard that the message comes from. `None`: nothing there waits for the end.
    #[must_use]
    pub fn shard(&self) -> Option<usize> {
        self.departure.map(|departure| departure.shard).or(self.origin.map(|origin| origin.shard))
    }
}

/// A message that is leaving its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// Its shard.
    pub shard: usize,
    /// Its queue.
    pub(crate) queue_ref: QueueRef,
    /// Its number among the departures of the queue.
    pub number: u64,
}

/// A message that is saved in its new queue, and that no consumer gets before its previous queue has settled it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivedMessage {
    /// Its shard.
    pub shard: usize,
    /// Its queue.
    pub queue: Arc<QueueAddress>,
    /// The sequence of its record.
    pub sequence: Sequence,
}

/// A saved message of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The shard whose journal has it.
    pub shard: usize,
    /// The number to confirm.
    pub sequence: Sequence,
}

/// A message that came from another queue, with the record that it had there.
#[derive(Debug, Clone)]
pub struct TransferredPut {
    /// The queue.
    pub queue: Arc<QueueAddress>,
    /// The message.
    pub message: Message,
    /// When it arrived in this queue.
    pub received: Timestamp,
    /// Its number in the history; 0 without a history.
    pub number: MessageNumber,
    /// Its record in the other queue.
    pub source: TransferSource,
}

/// The record that a transferred message had in its previous queue. After a crash both records may exist; then the
/// previous one is settled, so that the message is in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSource {
    /// Shard and sequence of the record.
    pub origin: Origin,
    /// The previous queue. The record is the right one only if it names this queue.
    pub queue: Arc<QueueAddress>,
}

/// The result of a move of messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MoveReport {
    /// Messages that are in their new queues, or erased, and not in the previous one.
    pub moved: u64,
    /// Messages that stay, because they do not name a queue that they come from.
    pub without_origin: u64,
    /// Messages that wait in the queue, delayed ones included.
    pub left: u64,
    /// Why it ended early: a queue rejects a message.
    pub rejection: Option<Rejection>,
}

/// Which messages to move, and where to.
#[derive(Debug, Clone)]
pub struct MoveMessages {
    /// The queue that they leave.
    pub queue: QueueAddress,
    /// Their target.
    pub to: MoveTarget,
    /// The ids of the messages to move; empty: all.
    pub ids: Vec<Box<[u8]>>,
    /// Maximum messages, of the first ones in the queue. At most [`MOVED_AT_ONCE_MAX`].
    pub max: u32,
}

/// The target of moved messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveTarget {
    /// To this queue.
    Queue(QueueAddress),
    /// Each returns to the queue that dead-lettered it.
    Origin,
    /// They are erased.
    Nowhere,
}

/// Maximum messages that one request moves.
pub const MOVED_AT_ONCE_MAX: u32 = 10_000;
