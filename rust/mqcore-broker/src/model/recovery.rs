//! What a journal had when the broker starts.

use crate::model::id::{MessageNumber, QueueAddress, Sequence};
use crate::model::intake::Ticket;
use crate::model::record::{Definition, DeliveryProgress};

/// What a journal had when the broker starts. Messages stay there until they are wanted: millions of them may wait.
#[derive(Debug, Clone, Default)]
pub struct RecoveredState {
    /// Channels and queues.
    pub definitions: Vec<Definition>,
    /// The queues that messages name by their place here.
    pub queues: Vec<QueueAddress>,
    /// Messages that are not settled, by ascending sequence.
    pub messages: Vec<RecoveredMessage>,
    /// How far those got of which something was written about that, by ascending sequence.
    pub progress: Vec<(Sequence, DeliveryProgress)>,
    /// Of the messages that other brokers passed on: which of theirs they are.
    pub tickets: Vec<Ticket>,
    /// Keys of messages of which their queues have one at a time.
    pub unique_keys: Vec<(Sequence, Box<[u8]>)>,
    /// The highest sequence that was ever given.
    pub sequence: Sequence,
}

/// A message that the journal had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredMessage {
    /// The sequence under which it was put.
    pub sequence: Sequence,
    /// Its queue's place in [`RecoveredState::queues`].
    pub queue: u32,
    /// About how much memory it takes once it is read, in octets; at most 4 GiB - 1.
    pub bytes: u32,
    /// Its number in the history; 0 if there was none.
    pub number: MessageNumber,
    /// Whether it goes before all messages that have this not.
    pub high_priority: bool,
}
