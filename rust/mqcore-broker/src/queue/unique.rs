//! Unique messages: while a message with a key waits or is in flight, another one with the same key is
//! rejected.
//!
//! The key is in the header `Unique-Key`. A property of the message says that there is one, so that
//! other messages cost nothing. A paged-out message is identified by its sequence.

use foldhash::{HashMap, HashSet};

use crate::model::id::Sequence;
use crate::model::message::Message;
use crate::model::unique::key_in;

fn key_of(message: &Message) -> Option<&[u8]> {
    if message.properties().unique { key_in(message.headers()) } else { None }
}

/// The keys of one queue. Most queues never have one.
#[derive(Debug, Default)]
pub(crate) struct UniqueKeys(Option<Box<Keys>>);

#[derive(Debug, Default)]
struct Keys {
    taken: HashSet<Box<[u8]>>,
    /// Keys of paged-out messages.
    paged_out: HashMap<Sequence, Box<[u8]>>,
}

impl UniqueKeys {
    /// The key that prevents the message from being taken.
    pub(crate) fn conflict<'a>(&self, message: &'a Message) -> Option<&'a [u8]> {
        let keys = self.0.as_ref()?;
        key_of(message).filter(|key| keys.taken.contains(*key))
    }

    /// Adds the key of a message.
    pub(crate) fn take(&mut self, message: &Message) {
        if let Some(key) = key_of(message) {
            self.0.get_or_insert_default().taken.insert(key.into());
        }
    }

    /// Removes a message for good.
    pub(crate) fn release(&mut self, message: &Message) {
        if let Some(keys) = &mut self.0
            && let Some(key) = key_of(message)
        {
            keys.taken.remove(key);
        }
    }

    /// Notes that the body of a message leaves memory.
    pub(crate) fn page_out(&mut self, sequence: Sequence, message: &Message) {
        if let Some(key) = key_of(message) {
            self.0.get_or_insert_default().paged_out.insert(sequence, key.into());
        }
    }

    /// Notes that the body is in memory again.
    pub(crate) fn page_in(&mut self, sequence: Sequence) {
        if let Some(keys) = &mut self.0 {
            keys.paged_out.remove(&sequence);
        }
    }

    /// Restores the key of a message in the journal.
    pub(crate) fn restore(&mut self, sequence: Sequence, key: Box<[u8]>) {
        let keys = self.0.get_or_insert_default();
        keys.taken.insert(key.clone());
        keys.paged_out.insert(sequence, key);
    }

    /// Removes the key of a paged-out message.
    pub(crate) fn release_paged_out(&mut self, sequence: Sequence) {
        if let Some(keys) = &mut self.0
            && let Some(key) = keys.paged_out.remove(&sequence)
        {
            keys.taken.remove(&key);
        }
    }
}
