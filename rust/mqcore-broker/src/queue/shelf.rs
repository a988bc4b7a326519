//! Bodies on their way back from the journal, by the number of their record: asked for, here, or lost.

use foldhash::HashMap;

use crate::model::id::Sequence;
use crate::model::memory::Meter;
use crate::model::message::Message;

/// What became of a body that was asked for.
#[derive(Debug)]
pub(crate) enum Shelved {
    Asked,
    Here(Message),
    /// It cannot be read.
    Lost,
}

/// The bodies of one queue that were asked for. Bounded by the window that is asked for at a time.
#[derive(Debug)]
pub(crate) struct Shelf {
    bodies: HashMap<Sequence, Shelved>,
    bytes: u64,
    meter: Meter,
}

impl Shelf {
    pub(crate) fn new(meter: Meter) -> Self {
        Self { bodies: HashMap::default(), bytes: 0, meter }
    }

    /// Octets of the bodies that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that a body is asked for; false if it was before.
    pub(crate) fn ask(&mut self, sequence: Sequence) -> bool {
        let new = !self.bodies.contains_key(&sequence);
        if new {
            self.bodies.insert(sequence, Shelved::Asked);
        }
        new
    }

    /// Takes in what was asked for. False if nobody waits for it any more.
    pub(crate) fn put(&mut self, sequence: Sequence, message: Option<Message>) -> bool {
        let Some(slot @ Shelved::Asked) = self.bodies.get_mut(&sequence) else { return false };
        let bytes = message.as_ref().map_or(0, |message| message.memory_bytes() as u64);
        *slot = message.map_or(Shelved::Lost, Shelved::Here);
        self.bytes += bytes;
        self.meter.add(bytes);
        true
    }

    pub(crate) fn has_answer(&self, sequence: Sequence) -> bool {
        matches!(self.bodies.get(&sequence), Some(Shelved::Here(_) | Shelved::Lost))
    }

    pub(crate) fn is_lost(&self, sequence: Sequence) -> bool {
        matches!(self.bodies.get(&sequence), Some(Shelved::Lost))
    }

    pub(crate) fn look(&self, sequence: Sequence) -> Option<&Message> {
        match self.bodies.get(&sequence) {
            Some(Shelved::Here(message)) => Some(message),
            _ => None,
        }
    }

    /// Nobody waits for this body any more, or here is who did.
    pub(crate) fn take(&mut self, sequence: Sequence) -> Option<Shelved> {
        if self.bodies.is_empty() {
            return None;
        }
        let shelved = self.bodies.remove(&sequence);
        if let Some(Shelved::Here(message)) = &shelved {
            self.bytes -= message.memory_bytes() as u64;
            self.meter.subtract(message.memory_bytes() as u64);
        }
        shelved
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.meter.subtract(self.bytes);
    }
}
