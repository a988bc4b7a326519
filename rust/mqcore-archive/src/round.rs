//! The notes that one round of an archive takes from a journal, and their events in order.
//!
//! Housekeeping may copy notes to later segments while a round runs. A round therefore takes only notes below a number that
//! no other segment can contain, and each note once, however many segments contain it.

use std::collections::HashSet;
use std::sync::Arc;

use mqcore_broker::history::LifecycleStep;
use mqcore_broker::history::packing::unpack;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::record::RecordError;
use mqcore_journal::notes::{self, NoteInventory, SealedNotes};
use mqcore_journal::storage::Storage;

use crate::archive::{ArchiveError, failed};
use crate::export::ExportError;
use crate::tables::StepPlace;

/// Bytes of notes after which a round takes no further segment.
const ROUND_BYTES: u64 = 32 * 1024 * 1024;
/// Number of events after which a round takes no further note. Each takes about 200 bytes of memory until its file is written.
const ROUND_STEPS: u64 = 256 * 1024;
/// Bytes of unpacked notes after which a round takes no further note.
const ROUND_UNPACKED_BYTES: usize = 64 * 1024 * 1024;

/// Whether to continue; [`ArchiveError::Interrupted`] if the caller asked to stop.
pub type GoOn<'a> = &'a dyn Fn() -> Result<(), ArchiveError>;

/// The segments of one shard that a round has read.
#[derive(Debug)]
pub struct RoundNotes {
    journal: u64,
    read: Vec<(SealedNotes, Vec<u8>)>,
    below: u64,
    more: bool,
}

/// How far a round came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenNotes {
    /// Number of distinct notes read.
    pub notes: u64,
    /// All notes below this number were taken, are unreadable, or do not exist.
    pub below: u64,
}

impl RoundNotes {
    /// Reads some megabytes of sealed segments that contain notes from number `from` on. `None`: there are none.
    ///
    /// # Errors
    /// [`ArchiveError::Io`]; [`std::io::ErrorKind::NotFound`] means that housekeeping has removed a segment. An error of `go_on`.
    pub fn read<J: Storage>(
        shard: u32,
        journal: &J,
        inventory: &NoteInventory,
        from: u64,
        go_on: GoOn<'_>,
    ) -> Result<Option<Self>, ArchiveError> {
        let plan = Plan::new(inventory, from);
        if plan.below <= from {
            return Ok(None);
        }
        let mut read = Vec::new();
        for sealed in &plan.segments {
            go_on()?;
            let name = format!("segment {} of shard {shard}", sealed.segment);
            read.push((*sealed, notes::read(journal, sealed).map_err(failed("reading", &name))?));
        }
        Ok(Some(Self { journal: inventory.journal, read, below: plan.below, more: plan.more }))
    }

    /// The round can take notes below this number.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Whether the journal has further segments that can be read.
    pub fn more(&self) -> bool {
        self.more
    }

    /// Calls `show` with the events of the notes from number `from` on, in the order of their notes, until there are enough
    /// for one round.
    ///
    /// # Errors
    /// An error of `go_on` or `show`, and [`ArchiveError::Record`] if a newer version wrote the history.
    pub fn each_step(
        &self,
        shard: u32,
        from: u64,
        go_on: GoOn<'_>,
        show: &mut dyn FnMut(StepPlace, &LifecycleStep<'_>) -> Result<(), ExportError>,
    ) -> Result<TakenNotes, ArchiveError> {
        let (mut steps, mut bytes, mut notes) = (0, 0, 0);
        let mut memory = Vec::new();
        for (number, payload) in self.found(from) {
            go_on()?;
            if steps >= ROUND_STEPS || bytes >= ROUND_UNPACKED_BYTES {
                return Ok(TakenNotes { notes, below: number });
            }
            let mut position = 0;
            let mut broken = None;
            let mut show = |step: LifecycleStep<'_>| {
                let place = StepPlace { shard, note: number, position };
                position += 1;
                if broken.is_none() {
                    broken = show(place, &step).err();
                }
            };
            let outcome = unpack(payload, &mut memory).and_then(|block| {
                bytes += block.len();
                each_step(block, &mut show)
            });
            steps += u64::from(position);
            if let Some(error) = broken {
                return Err(error.into());
            }
            match outcome {
                Ok(()) => notes += 1,
                // The checksum matches, but mqcore did not write this content. The readable part is archived.
                Err(RecordError::Malformed { .. }) => {}
                Err(later) => return Err(ArchiveError::Record(later)),
            }
        }
        Ok(TakenNotes { notes, below: self.below })
    }

    /// Returns number and content of the notes, in ascending order.
    fn found(&self, from: u64) -> Vec<(u64, &[u8])> {
        let mut found: Vec<(u64, &[u8])> = Vec::new();
        for (sealed, bytes) in &self.read {
            notes::each(self.journal, sealed, bytes, &mut |note| {
                if (from..self.below).contains(&note.number) {
                    found.push((note.number, note.payload));
                }
            });
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        // Interrupted housekeeping may leave a note twice.
        found.dedup_by_key(|(number, _)| *number);
        found
    }
}

/// Names of queues. Many events share each of them.
#[derive(Debug, Default)]
pub struct QueueNames(HashSet<Arc<str>>);

impl QueueNames {
    /// Returns the shared copy of a name.
    pub fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(queue) = self.0.get(name) {
            return Arc::clone(queue);
        }
        let queue: Arc<str> = name.into();
        self.0.insert(Arc::clone(&queue));
        queue
    }
}

/// The segments that a round reads, and the number up to which it may archive.
struct Plan {
    segments: Vec<SealedNotes>,
    /// All remaining notes below this number are in `segments`, or do not exist.
    below: u64,
    more: bool,
}

impl Plan {
    /// Selects segments by their smallest note number, until there are enough. Housekeeping may have copied notes to later
    /// segments, so only numbers that no other segment can contain are archived.
    fn new(inventory: &NoteInventory, from: u64) -> Self {
        let mut sealed: Vec<_> =
            inventory.sealed.iter().filter(|sealed| sealed.last >= from).copied().collect();
        sealed.sort_unstable_by_key(|sealed| (sealed.first, sealed.segment));
        let mut plan = Self { segments: Vec::new(), below: from, more: false };
        let mut bytes = 0;
        for (index, segment) in sealed.iter().enumerate() {
            if bytes >= ROUND_BYTES && plan.below > from {
                plan.more = true;
                break;
            }
            bytes += segment.bytes;
            plan.segments.push(*segment);
            let last = plan.segments.iter().map(|sealed| sealed.last.saturating_add(1)).max().unwrap_or(from);
            let others = sealed.get(index + 1).map_or(u64::MAX, |next| next.first);
            plan.below = last.min(others).min(inventory.open_from).max(from);
        }
        plan
    }
}
