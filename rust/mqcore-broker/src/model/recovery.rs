//! The contents of the journal when the broker started.

use crate::model::definition::Definition;
use crate::model::id::{MessageNumber, QueueAddress, Sequence};
use crate::model::intake::Ticket;
use crate::model::record::{DeliveryProgress, PutTerms};
use crate::model::time::Timestamp;

/// The contents of the journal when the broker started. Bodies stay in the journal until they are needed, since
/// millions of messages may wait.
#[derive(Debug, Clone, Default)]
pub struct RecoveredState {
    /// Channels, queues, routers and other definitions.
    pub definitions: Vec<Definition>,
    /// The queues, to which messages refer by index.
    pub queues: Vec<QueueAddress>,
    /// Unsettled messages by ascending sequence.
    pub messages: Vec<RecoveredMessage>,
    /// Progress of messages that have some, by ascending sequence.
    pub progress: Vec<(Sequence, DeliveryProgress)>,
    /// Tickets of messages from downstream brokers.
    pub tickets: Vec<Ticket>,
    /// Unique keys of messages.
    pub unique_keys: Vec<(Sequence, Box<[u8]>)>,
    /// Terms of messages that have some.
    pub terms: Vec<(Sequence, PutTerms)>,
    /// Ids and arrivals of messages whose queues remember the ids.
    pub remembered: Vec<(Sequence, Box<[u8]>, Timestamp)>,
    /// The highest sequence ever used.
    pub sequence: Sequence,
}

/// A message in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredMessage {
    /// The sequence of its record.
    pub sequence: Sequence,
    /// Index of its queue in [`RecoveredState::queues`].
    pub queue: u32,
    /// Approximate size in memory once it is loaded, in bytes; at most 4 GiB - 1.
    pub bytes: u32,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
    /// Whether it goes ahead of messages of normal priority.
    pub high_priority: bool,
}
