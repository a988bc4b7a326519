//! Bodies being loaded from the journal, by the sequence of their records: requested, ready, or lost.

use foldhash::HashMap;

use crate::model::id::Sequence;
use crate::model::memory::MemoryGauge;
use crate::model::message::Message;

/// The state of a requested body.
#[derive(Debug)]
pub(crate) enum LoadState {
    Requested,
    Ready(Message),
    /// It cannot be read.
    Lost,
}

/// The requested bodies of one queue. Their number is bounded by the window that is requested at a
/// time.
#[derive(Debug)]
pub(crate) struct PendingLoads {
    bodies: HashMap<Sequence, LoadState>,
    bytes: u64,
    memory: MemoryGauge,
}

impl PendingLoads {
    pub(crate) fn new(memory: MemoryGauge) -> Self {
        Self { bodies: HashMap::default(), bytes: 0, memory }
    }

    /// Bytes of the bodies that are ready.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Requests a body; false if it was requested before.
    pub(crate) fn ask(&mut self, sequence: Sequence) -> bool {
        let new = !self.bodies.contains_key(&sequence);
        if new {
            self.bodies.insert(sequence, LoadState::Requested);
        }
        new
    }

    /// Adds a loaded body. False if it is no longer needed.
    pub(crate) fn put(&mut self, sequence: Sequence, message: Option<Message>) -> bool {
        let Some(slot @ LoadState::Requested) = self.bodies.get_mut(&sequence) else { return false };
        let bytes = message.as_ref().map_or(0, |message| message.memory_bytes() as u64);
        *slot = message.map_or(LoadState::Lost, LoadState::Ready);
        self.bytes += bytes;
        self.memory.add(bytes);
        true
    }

    pub(crate) fn has_answer(&self, sequence: Sequence) -> bool {
        matches!(self.bodies.get(&sequence), Some(LoadState::Ready(_) | LoadState::Lost))
    }

    pub(crate) fn is_lost(&self, sequence: Sequence) -> bool {
        matches!(self.bodies.get(&sequence), Some(LoadState::Lost))
    }

    pub(crate) fn look(&self, sequence: Sequence) -> Option<&Message> {
        match self.bodies.get(&sequence) {
            Some(LoadState::Ready(message)) => Some(message),
            _ => None,
        }
    }

    /// Removes a body because it is used or no longer needed.
    pub(crate) fn take(&mut self, sequence: Sequence) -> Option<LoadState> {
        if self.bodies.is_empty() {
            return None;
        }
        let load = self.bodies.remove(&sequence);
        if let Some(LoadState::Ready(message)) = &load {
            self.bytes -= message.memory_bytes() as u64;
            self.memory.subtract(message.memory_bytes() as u64);
        }
        load
    }
}

impl Drop for PendingLoads {
    fn drop(&mut self) {
        self.memory.subtract(self.bytes);
    }
}
