//! Looking at a journal without opening it: the same reading as opening, and not one byte changed.
//!
//! Opening begins a new segment, cuts torn ends and removes what was never begun. Whoever only wants to know what is
//! there must leave all that to the next opening, which then finds what this saw.

use std::collections::HashSet;
use std::fmt;

use crate::error::JournalError;
use crate::format;
use crate::journal::{Journal, Live, Note};
use crate::options::Options;
use crate::recovery::Recovered;
use crate::stats::SegmentStats;
use crate::storage::Storage;

/// A journal as the next opening would find it.
///
/// The storage is only listed and read, so one that refuses every change will do.
pub struct Inspection<S: Storage> {
    /// Without a segment to write: nothing that writes is reachable from here.
    journal: Journal<S>,
    recovered: Recovered,
    open: Vec<u32>,
    unbegun: Vec<InspectedSegment>,
}

/// One segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Its numbers.
    pub stats: SegmentStats,
    /// What it is.
    pub state: SegmentState,
}

/// What a segment file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Something says where it ends, so all of it was durable.
    Sealed,
    /// Records were appended to it when the journal was last used. Its end may be torn.
    Open,
    /// Damage was found in it.
    Damaged,
    /// Made for records that never came; the next opening puts it away.
    Spare,
}

impl SegmentState {
    /// One word.
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
    /// Reads all segments with their checksums. `progress` is told how many bytes of how many are scanned.
    ///
    /// # Errors
    /// [`JournalError::Version`], [`JournalError::Shard`], and [`JournalError::Io`] if the directory cannot be listed.
    /// Damage is no error: it is in the report.
    pub fn new(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, JournalError> {
        let (journal, recovered, endings) = Journal::unopened(storage, options, progress, &mut |_, _| {})?;
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

    /// What was found, and the definitions that hold.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Every segment file that could be looked at, by number.
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

    /// See [`Journal::each_live`].
    pub fn each_live(&self, first: u64, show: &mut dyn FnMut(u64, Result<Live<'_>, JournalError>)) {
        self.journal.each_live(first, show);
    }

    /// How many notes there are; one that a crash left twice counts twice.
    pub fn note_count(&self) -> u64 {
        self.journal.stats().notes
    }

    /// Shows every note that is there, once; in the order of their numbers, unless housekeeping rearranged them. Segments that
    /// cannot be read are passed over: the report names them.
    pub fn each_note(&self, show: &mut dyn FnMut(Note<'_>)) {
        let mut segments: Vec<_> = self.journal.state.segments.iter().collect();
        segments.sort_unstable_by_key(|(_, segment)| segment.note_numbers);
        let mut seen = HashSet::new();
        for (&number, _) in segments {
            let _ = self.journal.each_note(number, &mut |note| {
                if seen.insert(note.number) {
                    show(note);
                }
            });
        }
    }

    /// See [`Journal::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, sequence: u64) -> Result<Vec<u8>, JournalError> {
        self.journal.read(sequence)
    }
}

/// 0 for a file that went meanwhile or cannot be opened: there is nothing more to say of it.
fn file_bytes<S: Storage>(storage: &S, number: u32) -> u64 {
    let length = storage.open(&format::segment_name(number)).and_then(|file| storage.length(&file));
    length.unwrap_or(0)
}
