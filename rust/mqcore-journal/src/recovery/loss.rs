//! Counts the records that damage has lost.

use super::report::{DamagedPart, RecordLoss};
use crate::format::Record;
use crate::scan::Gap;

/// Counts lost records: marks and seals contain the number of records before them.
pub(super) struct LossCounter<'a> {
    gaps: &'a [Gap],
    parts: Vec<DamagedPart>,
    pub(super) records: u32,
    lost: u64,
    /// No later mark or seal has counted the records of the last gap yet.
    uncounted: bool,
    floor: u64,
}

impl<'a> LossCounter<'a> {
    pub(super) fn new(gaps: &'a [Gap], floor: u64) -> Self {
        Self { gaps, parts: Vec::new(), records: 0, lost: 0, uncounted: false, floor }
    }

    /// Processes the next readable record.
    pub(super) fn see(&mut self, offset: u32, record: &Record<'_>) {
        while let Some((gap, rest)) = self.gaps.split_first().filter(|(gap, _)| gap.start < offset) {
            self.gaps = rest;
            self.part(*gap);
        }
        let floor = match *record {
            Record::Put { moved: false, sequence, .. } => {
                self.bound(sequence);
                Some(sequence.saturating_add(1))
            }
            Record::Mark { records, next_sequence, .. } | Record::Seal { records, next_sequence, .. } => {
                self.bound(next_sequence);
                self.expect(records);
                Some(next_sequence)
            }
            Record::Begin { next_sequence, .. } => Some(next_sequence),
            _ => None,
        };
        self.floor = self.floor.max(floor.unwrap_or(0));
        self.records += 1;
    }

    fn part(&mut self, gap: Gap) {
        self.uncounted = true;
        self.parts.push(DamagedPart { offset: gap.start, bytes: gap.end - gap.start, sequences: None });
    }

    /// Ends the number ranges of the parts without an upper bound before `next`.
    fn bound(&mut self, next: u64) {
        for part in self.parts.iter_mut().rev().take_while(|part| part.sequences.is_none()) {
            part.sequences = Some((self.floor.min(next), next));
        }
    }

    fn expect(&mut self, records: u32) {
        self.uncounted = false;
        self.lost += u64::from(records.saturating_sub(self.records));
        self.records = self.records.max(records);
    }

    pub(super) fn finish(&mut self, known: Option<u32>) -> (Vec<DamagedPart>, RecordLoss) {
        for gap in std::mem::take(&mut self.gaps) {
            self.part(*gap);
        }
        if let Some(records) = known {
            self.expect(records);
        }
        let lost =
            if self.uncounted { RecordLoss::AtLeast(self.lost + 1) } else { RecordLoss::Exactly(self.lost) };
        (std::mem::take(&mut self.parts), lost)
    }
}
