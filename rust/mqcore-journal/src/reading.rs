//! Batch reading while the journal is in use: records are located first, which is quick, and then read by any thread, without
//! the journal.
//!
//! Located records stay readable whatever the journal does. Their files are held open, so a segment that housekeeping removes
//! or quarantines is deleted only after the last reader. Records that are not in a file yet are copied. A record that
//! housekeeping relocates also remains at its old place as long as the file is open.

use std::sync::Arc;

use crate::error::JournalError;
use crate::format::{self, Checked, Location, Record};
use crate::journal::Journal;
use crate::record::Show;
use crate::storage::{Storage, read_most};

/// Maximum gap in bytes between two records that are read together. A larger gap costs more than another request.
const READ_GAP_BYTES_MAX: u32 = 64 << 10;
/// Maximum bytes read at once, unless a single record is larger.
const READ_RUN_BYTES_MAX: u32 = 1 << 20;

/// Live records located by [`Journal::locate`].
#[derive(Debug)]
pub struct LocatedRecords<S: Storage> {
    storage: S,
    identity: u64,
    parts: Vec<LocatedPart<S::File>>,
}

#[derive(Debug)]
enum LocatedPart<F> {
    /// Records close to each other in one file, in ascending order.
    Run {
        file: Arc<F>,
        records: Vec<(u64, Location)>,
    },
    /// A record that was not in a file yet.
    Copied(u64, Vec<u8>),
    /// A record whose file could not be opened because of a shortage that may pass, and where it was.
    Postponed(u64, Location, JournalError),
    Failed(u64, JournalError),
}

impl<S: Storage + Clone> Journal<S> {
    /// Locates live records without reading them.
    pub fn locate(&self, sequences: &[u64]) -> LocatedRecords<S> {
        let mut parts = Vec::new();
        for &sequence in sequences {
            match self.state.puts.get(sequence) {
                Some(at) => self.locate_at(sequence, at, &mut parts),
                None => parts.push(LocatedPart::Failed(sequence, JournalError::NotLive(sequence))),
            }
        }
        LocatedRecords { storage: self.storage.clone(), identity: self.identity, parts }
    }

    /// Locates postponed records again. A record that was settled meanwhile is still readable, unless housekeeping has removed
    /// its segment.
    pub fn locate_again(&self, postponed: &LocatedRecords<S>) -> LocatedRecords<S> {
        let mut parts = Vec::new();
        for part in &postponed.parts {
            if let LocatedPart::Postponed(sequence, before, _) = *part {
                let at = self.state.puts.get(sequence).unwrap_or(before);
                self.locate_at(sequence, at, &mut parts);
            }
        }
        LocatedRecords { storage: self.storage.clone(), identity: self.identity, parts }
    }

    fn locate_at(&self, sequence: u64, at: Location, parts: &mut Vec<LocatedPart<S::File>>) {
        if let Some(buffered) = self.buffered(at) {
            return parts.push(LocatedPart::Copied(sequence, buffered.to_vec()));
        }
        if let Some(LocatedPart::Run { records, .. }) = parts.last_mut()
            && continues(records, at)
        {
            return records.push((sequence, at));
        }
        parts.push(match self.shared_file(at.segment) {
            Ok(file) => LocatedPart::Run { file, records: vec![(sequence, at)] },
            Err(error @ JournalError::Full { .. }) => LocatedPart::Postponed(sequence, at, error),
            Err(error) => LocatedPart::Failed(sequence, error),
        });
    }
}

/// Whether a record can be read together with a run.
fn continues(run: &[(u64, Location)], next: Location) -> bool {
    let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { return false };
    next.segment == last.segment
        && next.offset.checked_sub(last.end()).is_some_and(|gap| gap <= READ_GAP_BYTES_MAX)
        && next.end() - first.offset <= READ_RUN_BYTES_MAX
}

impl<S: Storage + Clone> LocatedRecords<S> {
    /// Removes and returns the records whose files could not be opened because no file descriptor was left, for
    /// [`Journal::locate_again`]. They hold no file open.
    pub fn take_postponed(&mut self) -> Option<Self> {
        let is_postponed = |part: &mut LocatedPart<S::File>| matches!(part, LocatedPart::Postponed(..));
        let parts: Vec<_> = self.parts.extract_if(.., is_postponed).collect();
        let postponed = Self { storage: self.storage.clone(), identity: self.identity, parts };
        (!postponed.parts.is_empty()).then_some(postponed)
    }
}

impl<S: Storage> LocatedRecords<S> {
    /// Calls `show` with the payload of each record, in the order in which they were requested.
    ///
    /// If a record was not live when it was located, or cannot be read, or is damaged, `show` receives the error.
    pub fn read(&self, show: &mut Show<'_>) {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                LocatedPart::Postponed(sequence, _, error) | LocatedPart::Failed(sequence, error) => {
                    show(*sequence, Err(error.clone()))
                }
                LocatedPart::Copied(sequence, record) => show(*sequence, payload(record, *sequence, None)),
                LocatedPart::Run { file, records } => self.read_run(file, records, &mut bytes, show),
            }
        }
    }

    fn read_run(
        &self,
        file: &S::File,
        records: &[(u64, Location)],
        bytes: &mut Vec<u8>,
        show: &mut Show<'_>,
    ) {
        let (Some((_, first)), Some((_, last))) = (records.first(), records.last()) else { return };
        bytes.resize((last.end() - first.offset) as usize, 0);
        let count = match read_most(&self.storage, file, u64::from(first.offset), bytes) {
            Ok(count) => count,
            Err(error) if records.len() == 1 => {
                let name = format::segment_name(first.segment);
                return show(records[0].0, Err(JournalError::io("reading", &name, &error)));
            }
            // An unreadable sector must not make the other records of the run unreadable.
            Err(_) => {
                return records
                    .iter()
                    .for_each(|&record| self.read_run(file, &[record], &mut Vec::new(), show));
            }
        };
        for &(sequence, at) in records {
            let from = (at.offset - first.offset) as usize;
            let record = bytes[..count].get(from..from + at.length as usize).unwrap_or_default();
            let payload = payload(record, sequence, Some((self.identity, at)));
            if payload.is_err() {
                // The reader gets the error in any case.
                let _ = self.storage.report_damage(&format::segment_name(at.segment), "checksum mismatch");
            }
            show(sequence, payload);
        }
    }
}

/// Returns the payload of a record, verified at its place unless it comes from the buffer.
fn payload(record: &[u8], sequence: u64, place: Option<(u64, Location)>) -> Result<&[u8], JournalError> {
    let damaged = |why| {
        let (segment, offset) = place.map_or((0, 0), |(_, at)| (at.segment, at.offset));
        Err(JournalError::Damaged { segment, offset, why })
    };
    if let Some((identity, at)) = place {
        match format::check_placed(record, identity, at) {
            Checked::Valid(length) if length == at.length => {}
            Checked::Valid(_) => return damaged("expected a record of another length here"),
            Checked::Implausible => return damaged("expected a record here"),
            Checked::Mismatch(_) => return damaged("checksum mismatch"),
        }
    }
    match format::decode(record) {
        Some(Record::Put { sequence: found, payload, .. }) if found == sequence => Ok(payload),
        _ => damaged("expected another record here"),
    }
}
