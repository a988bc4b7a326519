//! Which records the journal has committed, and what waits for a commit.

use std::collections::VecDeque;

use crate::context::questions::Suspended;
use crate::model::effect::Event;
use crate::model::id::{ConnectionId, QueueRef, Sequence};
use crate::model::options::Durability;
use crate::model::transfer::{ArrivedMessage, TransferEnd};
use crate::model::unsaved::Lagging;

/// Whether the journal takes records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Storage {
    /// There is no journal: this broker keeps everything in memory.
    Absent,
    /// The journal takes records.
    Ready,
    /// The journal refuses records for the given reason.
    Refusing(Box<str>),
}

/// A message that waits until its record is committed.
#[derive(Debug)]
pub(crate) struct WaitingSave {
    pub(crate) queue: QueueRef,
    pub(crate) suspended: Suspended,
    /// Memory of the message.
    pub(crate) bytes: u64,
}

/// An action that waits until a record is committed.
#[derive(Debug)]
pub(crate) enum Awaiting {
    /// The admission or settlement of a message that must be saved first.
    Save(WaitingSave),
    /// The answer to a request that changed definitions.
    Answer(ConnectionId, Event),
    /// A message of another queue: when it is safe here, the other queue forgets it.
    Transfer(Box<TransferEnd>),
    /// A moved message: when this queue has forgotten it for good, its new queue delivers it.
    Release(Box<ArrivedMessage>),
    /// The confirmation of these numbers to a downstream broker.
    Confirm(ConnectionId, Vec<u64>),
}

/// The sequence of records and what waits for their commit.
#[derive(Debug)]
pub(crate) struct Commits {
    pub(crate) storage: Storage,
    /// Why records are lost, until an operator accepts the loss: definitions may be among them.
    pub(crate) lost: Option<Box<str>>,
    /// The sequence of the latest record.
    pub(crate) sequence: Sequence,
    /// Memory of the messages that wait for their commit.
    waiting_bytes: u64,
    /// Messages that do not wait for their commit and are not written.
    lagging: Lagging,
    /// Actions that wait until records are written, by ascending sequence.
    written: VecDeque<(Sequence, Awaiting)>,
    /// Actions that wait until records are synced, by ascending sequence.
    synced: VecDeque<(Sequence, Awaiting)>,
    /// Definitions that are not synced yet, by ascending sequence, with their keys in the journal.
    definitions: VecDeque<(Sequence, Vec<u8>)>,
    /// The latest record that changes a definition: of a channel, queue, router or topic binding.
    changed: Sequence,
    /// The latest record that is committed, written or synced.
    committed: Sequence,
    /// The latest record that is synced.
    durable: Sequence,
    /// A sync is wanted although no new record asks for it.
    sync_requested: bool,
    /// Ranges, first and last, of records that the journal may have refused although a later record is committed.
    doubtful: Vec<(Sequence, Sequence)>,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            storage: Storage::Absent,
            lost: None,
            sequence: Sequence(0),
            waiting_bytes: 0,
            lagging: Lagging::default(),
            written: VecDeque::new(),
            synced: VecDeque::new(),
            definitions: VecDeque::new(),
            changed: Sequence(0),
            committed: Sequence(0),
            durable: Sequence(0),
            sync_requested: false,
            doubtful: Vec::new(),
        }
    }
}

impl Commits {
    /// Removes and returns what waited for records up to `sequence` at this level of durability, in its order.
    pub(crate) fn committed(&mut self, level: Durability, sequence: Sequence) -> Vec<Awaiting> {
        self.committed = self.committed.max(sequence);
        if level == Durability::Fsync {
            self.durable = self.durable.max(sequence);
            let saved = self.definitions.partition_point(|(recorded, _)| *recorded <= sequence);
            self.definitions.drain(..saved);
        }
        let list = if level == Durability::Fsync { &mut self.synced } else { &mut self.written };
        let done = list.partition_point(|(waits_for, _)| *waits_for <= sequence);
        let done: Vec<_> = list.drain(..done).map(|(_, awaiting)| awaiting).collect();
        self.waiting_bytes -= bytes_of(&done);
        done
    }

    /// Removes and returns everything that waits for a commit, because no commit will come.
    pub(crate) fn uncommitted(&mut self) -> Vec<Awaiting> {
        self.waiting_bytes = 0;
        self.written.drain(..).chain(self.synced.drain(..)).map(|(_, awaiting)| awaiting).collect()
    }

    /// Notes that the journal refused some of the records after the last commit.
    pub(crate) fn doubt_uncommitted(&mut self) {
        if self.committed < self.sequence {
            self.doubtful.push((Sequence(self.committed.0 + 1), self.sequence));
        }
        // After many refusals one long range replaces the list: it keeps more bodies in memory, but loses no message.
        if self.doubtful.len() > 16 {
            let first = self.doubtful[0].0;
            self.doubtful = vec![(first, self.sequence)];
        }
    }

    /// Notes that everything so far is in the journal, because it was restored from there.
    pub(crate) fn committed_all(&mut self) {
        self.committed = self.sequence;
        self.durable = self.sequence;
    }

    /// Whether the journal certainly has this record.
    pub(crate) fn is_committed(&self, sequence: Sequence) -> bool {
        sequence.0 > 0
            && sequence <= self.committed
            && !self.doubtful.iter().any(|(first, last)| (first..=last).contains(&&sequence))
    }

    /// Waits until the latest record is committed at this level, which must not be [`Durability::None`].
    pub(crate) fn wait(&mut self, durability: Durability, awaiting: Awaiting) {
        debug_assert_ne!(durability, Durability::None, "this level promises no commit");
        let list = if durability == Durability::Fsync { &mut self.synced } else { &mut self.written };
        if let Awaiting::Save(save) = &awaiting {
            self.waiting_bytes += save.bytes;
        }
        list.push_back((self.sequence, awaiting));
    }

    /// Notes that the latest record has a message of this size that waits for no commit.
    pub(crate) fn lag(&mut self, bytes: u64) {
        self.lagging.add(self.sequence, bytes);
    }

    /// The bytes of such messages that have been written since the last call.
    pub(crate) fn caught_up(&mut self) -> u64 {
        self.lagging.written(self.committed)
    }

    /// The bytes of such messages that the journal will not write, because it refuses records.
    pub(crate) fn given_up(&mut self) -> u64 {
        self.lagging.give_up()
    }

    /// Memory of all messages that the journal has not committed, in bytes.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.waiting_bytes + self.lagging.bytes()
    }

    /// Notes that the latest record changes a definition.
    pub(crate) fn definition_changed(&mut self) {
        self.changed = self.sequence;
    }

    /// Whether a change of a definition is not synced yet.
    pub(crate) fn has_unsynced_changes(&self) -> bool {
        self.changed > self.durable
    }

    /// Waits until all changes of definitions are synced.
    pub(crate) fn wait_for_changes(&mut self, awaiting: Awaiting) {
        let at = self.synced.partition_point(|(waits_for, _)| *waits_for <= self.changed);
        self.synced.insert(at, (self.changed, awaiting));
        self.sync_requested = true;
    }

    /// Whether any record is not synced yet.
    pub(crate) fn has_unsynced_records(&self) -> bool {
        self.sequence > self.durable
    }

    /// Waits until all records are synced.
    pub(crate) fn wait_for_records(&mut self, awaiting: Awaiting) {
        self.wait(Durability::Fsync, awaiting);
        self.sync_requested = true;
    }

    /// Whether something waits for a sync that no new record asks for. False from then on.
    pub(crate) fn take_sync_request(&mut self) -> bool {
        std::mem::take(&mut self.sync_requested)
    }

    /// Notes the key of the definition that the latest record contains.
    pub(crate) fn defined(&mut self, key: Vec<u8>) {
        self.definitions.push_back((self.sequence, key));
    }

    /// Whether the latest definition with this key is not synced, or never will be.
    pub(crate) fn is_unsaved(&self, key: &[u8]) -> bool {
        self.definitions.iter().any(|(_, unsaved)| unsaved == key)
    }

    /// The journal takes records again, and all definitions are recorded once more.
    pub(crate) fn define_anew(&mut self) {
        self.definitions.clear();
    }

    /// Whether something waits until records are written.
    pub(crate) fn waits_for_write(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether something waits until records are synced.
    pub(crate) fn waits_for_sync(&self) -> bool {
        !self.synced.is_empty()
    }

    /// Whether something waits until records are written or synced.
    pub(crate) fn waits_for_commit(&self) -> bool {
        !self.synced.is_empty() || !self.written.is_empty()
    }
}

/// Memory of the messages among these actions.
fn bytes_of(done: &[Awaiting]) -> u64 {
    let bytes = done.iter().map(|awaiting| match awaiting {
        Awaiting::Save(save) => save.bytes,
        Awaiting::Answer(..) | Awaiting::Transfer(_) | Awaiting::Release(_) | Awaiting::Confirm(..) => 0,
    });
    bytes.sum()
}
