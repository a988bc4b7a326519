//! Where a message is at this moment.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::id::{MessageNumber, QueueAddress};
use crate::model::time::Timestamp;

/// The message that is looked for.
#[derive(Debug, Clone, Default)]
pub struct MessageQuery {
    /// Its id.
    pub id: Box<[u8]>,
    /// Its numbers in the history of this shard. By them it is found also while its body, and with it its id, is not in memory.
    pub numbers: Vec<MessageNumber>,
    /// How often it is to be found at most: several messages may have one id.
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
    /// Where.
    pub queue: QueueAddress,
    /// In which state.
    pub state: LocationState,
    /// How often it was handed out.
    pub attempts: u16,
    /// How often it was put back.
    pub requeues: u16,
    /// Whether it is durable.
    pub saved: bool,
    /// Its number in the history; 0 without one.
    pub number: MessageNumber,
    /// Who brought it; `None` if that is not known any more.
    pub producer: Option<Arc<Client>>,
}

/// What a message in a queue is waiting for.
#[derive(Debug, Clone)]
pub enum LocationState {
    /// Its handler decides whether it is taken.
    Undecided,
    /// A consumer.
    Waiting,
    /// A time.
    Delayed(Timestamp),
    /// Those who have it.
    Delivered(Vec<Arc<Client>>),
}

/// What a shard found.
#[derive(Debug, Clone, Default)]
pub struct Locations {
    /// The messages.
    pub found: Vec<Location>,
    /// There was more to look at than a shard looks at.
    pub more: bool,
}
