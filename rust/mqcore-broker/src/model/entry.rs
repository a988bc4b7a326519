//! A message with what its queue remembers of it.

use crate::model::id::{MessageNumber, Sequence};
use crate::model::message::{Message, Properties};
use crate::model::time::Timestamp;

/// A message with what its queue remembers of it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    /// When it has waited too long; [`Timestamp::NEVER`] if it may wait for ever.
    pub(crate) deadline: Timestamp,
    /// How often it was handed out.
    pub(crate) attempts: u16,
    /// How often it was put back.
    pub(crate) requeues: u16,
    /// Under which number the journal has it; 0 if it does not.
    pub(crate) sequence: Sequence,
    /// Under which number the history knows it; 0 without a history.
    pub(crate) number: MessageNumber,
    /// It is durable, as its queue understands that.
    pub(crate) saved: bool,
    /// Its producer was told its fate: that happens once.
    pub(crate) answered: bool,
}

impl Entry {
    pub(crate) fn new(message: Message, deadline: Timestamp) -> Self {
        Self {
            message,
            deadline,
            attempts: 0,
            requeues: 0,
            sequence: Sequence(0),
            number: MessageNumber(0),
            saved: false,
            answered: false,
        }
    }

    pub(crate) fn is_high(&self) -> bool {
        self.message.properties().high_priority
    }
}

/// A saved message whose body only the journal has: what its queue remembers of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagedOut {
    pub(crate) deadline: Timestamp,
    pub(crate) attempts: u16,
    pub(crate) requeues: u16,
    pub(crate) sequence: Sequence,
    pub(crate) answered: bool,
    pub(crate) number: MessageNumber,
    /// About how much memory it takes once it is read, in octets.
    pub(crate) bytes: u64,
}

impl PagedOut {
    pub(crate) fn with(self, message: Message) -> Entry {
        let Self { deadline, attempts, requeues, sequence, answered, number, .. } = self;
        Entry { message, deadline, attempts, requeues, sequence, saved: true, answered, number }
    }

    /// For the history: what there is of it, without a message.
    pub(crate) fn bare(self) -> Entry {
        self.with(Message::from_parts(b"", b"", b"", Properties::default(), None))
    }
}
