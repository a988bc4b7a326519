//! A message and what its queue knows about it.

use crate::model::id::{MessageNumber, Sequence};
use crate::model::message::{Message, Properties};
use crate::model::time::Timestamp;

/// A message and what its queue knows about it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    /// When it expires; [`Timestamp::NEVER`] if it does not.
    pub(crate) deadline: Timestamp,
    /// Number of deliveries.
    pub(crate) attempts: u16,
    /// How often it was requeued.
    pub(crate) requeues: u16,
    /// The sequence of its record in the journal; 0 if it has none.
    pub(crate) sequence: Sequence,
    /// Its number in the history; 0 without a history.
    pub(crate) number: MessageNumber,
    /// Whether it is durable at its queue's level.
    pub(crate) saved: bool,
    /// Whether its producer got its confirmation, which is sent once.
    pub(crate) answered: bool,
    /// Whether it counts toward the limits of unsaved messages.
    pub(crate) counted: bool,
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
            counted: false,
        }
    }

    /// Its priority: higher is sooner.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.message.properties().level()
    }

    /// Whether a restart finds it in the journal.
    pub(crate) fn is_recorded(&self) -> bool {
        self.saved && self.sequence.0 > 0
    }
}

/// A saved message whose body is only in the journal: what its queue knows about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagedOut {
    pub(crate) deadline: Timestamp,
    pub(crate) attempts: u16,
    pub(crate) requeues: u16,
    pub(crate) sequence: Sequence,
    pub(crate) answered: bool,
    pub(crate) number: MessageNumber,
    /// Approximate size in memory once it is loaded, in bytes.
    pub(crate) bytes: u64,
}

impl PagedOut {
    pub(crate) fn with(self, message: Message) -> Entry {
        let Self { deadline, attempts, requeues, sequence, answered, number, .. } = self;
        Entry {
            message,
            deadline,
            attempts,
            requeues,
            sequence,
            saved: true,
            answered,
            number,
            counted: false,
        }
    }

    /// The entry without its message, for the history.
    pub(crate) fn bare(self) -> Entry {
        self.with(Message::from_parts(b"", b"", b"", Properties::default(), None))
    }
}
