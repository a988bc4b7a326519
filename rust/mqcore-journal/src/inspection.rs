//! Inspection: reads a journal in the same way as opening does, without changing a byte.
//!
//! Opening begins a new segment, cuts torn ends and removes unused files. Inspection leaves all that to the next opening,
//! which then finds the same state.

use std::collections::HashSet;
use std::fmt;

use crate::error::JournalError;
use crate::format;
use crate::journal::Journal;
use crate::options::Options;
use crate::record::{Live, Note};
use crate::recovery::Recovered;
use crate::stats::SegmentStats;
use crate::storage::Storage;

/// A journal as the next opening would find it.
///
/// The storage is only listed and read, so a read-only storage is sufficient.
pub struct Inspection<S: Storage> {
    /// Has no segment to write to. No method of this type writes.
    journal: Journal<S>,
    recovered: Recovered,
    open: Vec<u32>,
    unbegun: Vec<InspectedSegment>,
}

/// One segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Statistics of the segment.
    pub stats: SegmentStats,
    /// State of the segment.
    pub state: SegmentState,
}

/// The state of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// The end is recorded, so the whole segment was durable.
    Sealed,
    /// Records were appended to it when the journal was last used. The end may be torn.
    Open,
    /// Damage was found.
    Damaged,
    /// Created in advance and never used. The next opening removes it.
    Spare,
}

impl SegmentState {
    /// Returns the state in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Open => "open",
            Self::Damaged => "damaged",
            Self::Spare => "spare",
        }
    }
}

impl<S: Storage> fmt::Debug for Inspection<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inspection").field("recovered", &self.recovered).finish_non_exhaustive()
    }
}

impl<S: Storage> Inspection<S> {
    /// Reads all segments and verifies their checksums. Calls `progress` with the scanned and the total number of bytes.
    ///
    /// # Errors
    /// [`JournalError::Version`], [`JournalError::Shard`], and [`JournalError::Io`] if the directory cannot be listed. Damage is
    /// not an error; the report lists it.
    pub fn new(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, JournalError> {
        let (journal, recovered, endings) =
            Journal::read_only_state(storage, options, progress, &mut |_, _| {})?;
        let open = endings.closings.iter().filter(|closing| !closing.closed).map(|closing| closing.segment);
        let open = open.collect();
        let unbegun = endings
            .leftovers
            .iter()
            .map(|leftover| InspectedSegment {
                stats: SegmentStats {
                    number: leftover.segment,
                    file_bytes: file_bytes(journal.storage(), leftover.segment),
                    records: 0,
                    live: 0,
                    live_bytes: 0,
                    damaged: !leftover.empty,
                },
                state: if leftover.empty { SegmentState::Spare } else { SegmentState::Damaged },
            })
            .collect();
        Ok(Self { journal, recovered, open, unbegun })
    }

    /// The recovery report and the definitions.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// All segment files, by number.
    pub fn segments(&self) -> Vec<InspectedSegment> {
        let state = |stats: &SegmentStats| match stats {
            SegmentStats { damaged: true, .. } => SegmentState::Damaged,
            stats if self.open.contains(&stats.number) => SegmentState::Open,
            _ => SegmentState::Sealed,
        };
        let used = self.journal.stats().segments;
        let used = used.into_iter().map(|stats| InspectedSegment { stats, state: state(&stats) });
        let mut segments: Vec<_> = used.chain(self.unbegun.iter().copied()).collect();
        segments.sort_unstable_by_key(|segment| segment.stats.number);
        segments
    }

    /// Calls `show` with every live record. See [`Journal::each_live`].
    pub fn each_live(&self, first: u64, show: &mut dyn FnMut(u64, Result<Live<'_>, JournalError>)) {
        self.journal.each_live(first, show);
    }

    /// Number of notes. A note that a crash left twice counts twice.
    pub fn note_count(&self) -> u64 {
        self.journal.stats().notes
    }

    /// Calls `show` once with every note, in order of their numbers unless housekeeping rearranged them. Skips unreadable
    /// segments, which the report lists.
    pub fn each_note(&self, show: &mut dyn FnMut(Note<'_>)) {
        let mut segments: Vec<_> = self.journal.state.segments.iter().collect();
        segments.sort_unstable_by_key(|(_, segment)| segment.note_number_range);
        let mut seen = HashSet::new();
        for (&number, _) in segments {
            let _ = self.journal.each_note(number, &mut |note| {
                if seen.insert(note.number) {
                    show(note);
                }
            });
        }
    }

    /// Returns the payload of a live record. See [`Journal::read`].
    ///
    /// # Errors
    /// The same as [`Journal::read`].
    pub fn read(&self, sequence: u64) -> Result<Vec<u8>, JournalError> {
        self.journal.read(sequence)
    }
}

/// File size in bytes; 0 if the file was removed or cannot be opened.
fn file_bytes<S: Storage>(storage: &S, number: u32) -> u64 {
    let length = storage.open(&format::segment_name(number)).and_then(|file| storage.length(&file));
    length.unwrap_or(0)
}
