//! The names of all channels and queues of a broker. Its shards share them, so that each can check a name
//! that belongs to another one. Only creating, removing and naming a queue reads or changes them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::id::{ChannelName, QueueAddress};

/// The names of all channels and queues of a broker, without regard to case.
#[derive(Debug, Default)]
pub struct BrokerNames {
    /// The ids of each channel's queues.
    channels: Mutex<HashMap<Box<str>, HashSet<u16>>>,
}

impl BrokerNames {
    fn channels(&self) -> MutexGuard<'_, HashMap<Box<str>, HashSet<u16>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a channel, unless there are `limit` channels; 0: no limit. Returns whether it was added or
    /// known.
    pub(crate) fn add_channel(&self, name: &ChannelName, limit: u32) -> bool {
        let mut channels = self.channels();
        let full = limit > 0 && channels.len() >= limit as usize;
        if full && !channels.contains_key(&folded(name)) {
            return false;
        }
        channels.entry(folded(name)).or_default();
        true
    }

    /// Removes a channel with its queues.
    pub(crate) fn remove_channel(&self, name: &ChannelName) {
        self.channels().remove(&folded(name));
    }

    /// Adds a queue.
    pub(crate) fn add_queue(&self, queue: &QueueAddress) {
        self.channels().entry(folded(&queue.channel)).or_default().insert(queue.id);
    }

    /// Removes a queue.
    pub(crate) fn remove_queue(&self, queue: &QueueAddress) {
        if let Some(queues) = self.channels().get_mut(&folded(&queue.channel)) {
            queues.remove(&queue.id);
        }
    }

    /// Whether the channel exists.
    pub fn has_channel(&self, name: &ChannelName) -> bool {
        self.channels().contains_key(&folded(name))
    }

    /// Whether the queue exists.
    pub fn has_queue(&self, queue: &QueueAddress) -> bool {
        self.channels().get(&folded(&queue.channel)).is_some_and(|queues| queues.contains(&queue.id))
    }
}

fn folded(name: &ChannelName) -> Box<str> {
    name.as_str().to_ascii_lowercase().into()
}
