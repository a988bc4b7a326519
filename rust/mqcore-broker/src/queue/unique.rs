//! Messages of which a queue has one at a time: as long as one of a key waits or is in flight, another one is refused.
//!
//! The key stands in the header `Unique-Key`; that there is one, in the message's properties, so that other messages cost
//! nothing. A message whose body left memory is known by its sequence.

use foldhash::{HashMap, HashSet};

use crate::model::id::Sequence;
use crate::model::message::Message;
use crate::model::unique::key_in;

fn key_of(message: &Message) -> Option<&[u8]> {
    if message.properties().unique { key_in(message.headers()) } else { None }
}

/// The keys of one queue.
#[derive(Debug, Default)]
pub(crate) struct UniqueKeys {
    taken: HashSet<Box<[u8]>>,
    /// Of messages whose bodies, and with them their headers, are not in memory.
    paged_out: HashMap<Sequence, Box<[u8]>>,
}

impl UniqueKeys {
    /// The key that keeps a message out.
    pub(crate) fn conflict<'a>(&self, message: &'a Message) -> Option<&'a [u8]> {
        key_of(message).filter(|key| self.taken.contains(*key))
    }

    /// A message is in the queue from now on.
    pub(crate) fn take(&mut self, message: &Message) {
        if let Some(key) = key_of(message) {
            self.taken.insert(key.into());
        }
    }

    /// A message leaves for good.
    pub(crate) fn release(&mut self, message: &Message) {
        if let Some(key) = key_of(message) {
            self.taken.remove(key);
        }
    }

    /// The body of a message leaves memory.
    pub(crate) fn page_out(&mut self, sequence: Sequence, message: &Message) {
        if let Some(key) = key_of(message) {
            self.paged_out.insert(sequence, key.into());
        }
    }

    /// It is back.
    pub(crate) fn page_in(&mut self, sequence: Sequence) {
        if !self.paged_out.is_empty() {
            self.paged_out.remove(&sequence);
        }
    }

    /// The journal had a message with a key.
    pub(crate) fn restore(&mut self, sequence: Sequence, key: Box<[u8]>) {
        self.taken.insert(key.clone());
        self.paged_out.insert(sequence, key);
    }

    /// A message leaves for good that was not read.
    pub(crate) fn release_paged_out(&mut self, sequence: Sequence) {
        if self.paged_out.is_empty() {
            return;
        }
        if let Some(key) = self.paged_out.remove(&sequence) {
            self.taken.remove(&key);
        }
    }
}
