//! The current location of a message.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::{MessageNumber, QueueAddress};
use crate::model::time::Timestamp;

/// The message to look for.
#[derive(Debug, Clone, Default)]
pub struct MessageQuery {
    /// Client id.
    pub id: Box<[u8]>,
    /// Its numbers in the history of this shard. They also find paged-out messages, whose ids are not
    /// in memory.
    pub numbers: Vec<MessageNumber>,
    /// Maximum number of results: several messages may have the same id.
    pub max: usize,
}

impl MessageQuery {
    pub(crate) fn matches(&self, id: Option<&[u8]>, number: MessageNumber) -> bool {
        id == Some(&self.id) || (number.0 > 0 && self.numbers.contains(&number))
    }
}

/// A message that was found.
#[derive(Debug, Clone)]
pub struct Location {
    /// The queue.
    pub queue: QueueAddress,
    /// Its state in the queue.
    pub state: LocationState,
    /// Number of deliveries.
    pub attempts: u16,
    /// How often it was requeued.
    pub requeues: u16,
    /// Whether it is durable.
    pub saved: bool,
    /// Its number in the history; 0 without a history.
    pub number: MessageNumber,
    /// Its producer; `None` if the producer is unknown by now.
    pub producer: Option<Arc<Client>>,
}

/// The reason why a queued message waits.
#[derive(Debug, Clone)]
pub enum LocationState {
    /// The decision of its handler.
    Undecided,
    /// A consumer.
    Waiting,
    /// The end of its delay.
    Delayed(Timestamp),
    /// Acknowledgements of these consumers.
    Delivered(Vec<Arc<Client>>),
}

/// The result of a search on one shard.
#[derive(Debug, Clone, Default)]
pub struct Locations {
    /// Messages that were found.
    pub found: Vec<Location>,
    /// Whether the search stopped before it had looked at all messages.
    pub more: bool,
}
