//! Reading many records while others are written: first they are located, which is quick, then read, by whoever and
//! whenever, without the journal.
//!
//! What was located stays readable whatever the journal does meanwhile: the files are held open, so that a segment that
//! housekeeping removes or sets aside goes only when nobody reads it any more, and records that are not in a file yet
//! are copied. A record that housekeeping moves stands at its old place too for as long as that file is open.

use std::sync::Arc;

use crate::error::JournalError;
use crate::format::{self, Checked, Location, Record};
use crate::journal::Journal;
use crate::storage::{Storage, read_most};

/// Records this far apart, in bytes, are read in one go: what is between costs less than another request.
const GAP_BYTES: u32 = 64 << 10;
/// What is read in one go, in bytes, but for a single record that is larger.
const RUN_BYTES: u32 = 1 << 20;

/// Who is shown numbers and payloads, or why there is none.
pub type Show<'a> = dyn FnMut(u64, Result<&[u8], JournalError>) + 'a;

/// Live records that were located.
#[derive(Debug)]
pub struct Located<S: Storage> {
    storage: S,
    identity: u64,
    parts: Vec<Part<S::File>>,
}

#[derive(Debug)]
enum Part<F> {
    /// Neighbours in one file, in ascending order.
    Run {
        file: Arc<F>,
        records: Vec<(u64, Location)>,
    },
    /// What was not in a file yet.
    Copied(u64, Vec<u8>),
    Failed(u64, JournalError),
}

impl<S: Storage + Clone> Journal<S> {
    /// Locates live records. Reads nothing.
    pub fn locate(&self, sequences: &[u64]) -> Located<S> {
        let mut parts: Vec<Part<S::File>> = Vec::new();
        for &sequence in sequences {
            let Some(at) = self.state.puts.get(sequence) else {
                parts.push(Part::Failed(sequence, JournalError::NotLive(sequence)));
                continue;
            };
            if let Some(buffered) = self.buffered(at) {
                parts.push(Part::Copied(sequence, buffered.to_vec()));
                continue;
            }
            if let Some(Part::Run { records, .. }) = parts.last_mut()
                && continues(records, at)
            {
                records.push((sequence, at));
                continue;
            }
            parts.push(match self.shared_file(at.segment) {
                Ok(file) => Part::Run { file, records: vec![(sequence, at)] },
                Err(error) => Part::Failed(sequence, error),
            });
        }
        Located { storage: self.storage.clone(), identity: self.identity, parts }
    }
}

/// Whether a record belongs to a run.
fn continues(run: &[(u64, Location)], next: Location) -> bool {
    let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { return false };
    next.segment == last.segment
        && next.offset.checked_sub(last.end()).is_some_and(|gap| gap <= GAP_BYTES)
        && next.end() - first.offset <= RUN_BYTES
}

impl<S: Storage> Located<S> {
    /// Shows the payload of each record in the order in which they were named, or why it cannot be read: it was not
    /// live when it was located, the disk refuses, or the bytes are damaged.
    pub fn read(&self, show: &mut Show<'_>) {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                Part::Failed(sequence, error) => show(*sequence, Err(error.clone())),
                Part::Copied(sequence, record) => show(*sequence, payload(record, *sequence, None)),
                Part::Run { file, records } => self.read_run(file, records, &mut bytes, show),
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
            // One bad sector must not cost its neighbours.
            Err(_) => {
                return records
                    .iter()
                    .for_each(|&record| self.read_run(file, &[record], &mut Vec::new(), show));
            }
        };
        for &(sequence, at) in records {
            let from = (at.offset - first.offset) as usize;
            let record = bytes[..count].get(from..from + at.length as usize).unwrap_or_default();
            show(sequence, payload(record, sequence, Some((self.identity, at))));
        }
    }
}

/// The payload of a record, verified at its place unless it never was in a file.
fn payload(record: &[u8], sequence: u64, place: Option<(u64, Location)>) -> Result<&[u8], JournalError> {
    let damaged = |why| {
        let (segment, offset) = place.map_or((0, 0), |(_, at)| (at.segment, at.offset));
        Err(JournalError::Damaged { segment, offset, why })
    };
    if let Some((identity, at)) = place {
        match format::check_placed(record, identity, at) {
            Checked::Valid(length) if length == at.length => {}
            Checked::Valid(_) => return damaged("a record of another length stands here"),
            Checked::Implausible => return damaged("no record stands here"),
            Checked::Mismatch(_) => return damaged("the checksum does not fit"),
        }
    }
    match format::decode(record) {
        Some(Record::Put { sequence: found, payload, .. }) if found == sequence => Ok(payload),
        _ => damaged("another record stands here"),
    }
}
