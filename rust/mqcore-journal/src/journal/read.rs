//! Reading of records and files.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::Journal;
use crate::error::{JournalError, Shortage};
use crate::format::{self, Checked, Location, Record, RecordKind};
use crate::notes::{NoteInventory, SealedNotes};
use crate::record::{Live, Note, Show};
use crate::state::JournalState;
use crate::storage::{Storage, read_most};
use crate::writer::Writer;

/// Maximum number of sealed segments whose files stay open for reading.
const OPEN_FILES_MAX: usize = 32;
/// Bytes read ahead while iterating over all live records.
const READ_AHEAD_BYTES: usize = 256 << 10;
/// Bytes read ahead after the first record.
const READ_AHEAD_BYTES_MIN: usize = 16 << 10;

impl<S: Storage> Journal<S> {
    /// Returns the payload of a live record, from the buffer or verified from disk.
    ///
    /// # Errors
    /// - [`JournalError::NotLive`]: no live record has this number.
    /// - [`JournalError::Damaged`]: the bytes on disk are not the record.
    /// - [`JournalError::Io`]: the disk cannot be read; the journal continues to work.
    /// - [`JournalError::Full`]: no file descriptor is left; try again later.
    pub fn read(&self, sequence: u64) -> Result<Vec<u8>, JournalError> {
        let at = self.state.puts.get(sequence).ok_or(JournalError::NotLive(sequence))?;
        let mut record = Vec::new();
        self.read_record(at, &mut record)?;
        match format::decode(&record) {
            Some(Record::Put { sequence: found, payload, .. }) if found == sequence => {
                let header = record.len() - payload.len();
                record.drain(..header);
                Ok(record)
            }
            _ => Err(JournalError::Damaged {
                segment: at.segment,
                offset: at.offset,
                why: "expected another record here",
            }),
        }
    }

    /// Calls `show` with the payloads of live records, verified from the buffer or from disk, until it returns false. Adjacent
    /// records take few reads.
    ///
    /// # Errors
    /// The same as [`Self::read`].
    pub fn read_each(
        &self,
        sequences: impl Iterator<Item = u64>,
        show: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), JournalError> {
        let mut puts = ReadAhead::default();
        for sequence in sequences {
            let at = self.state.puts.get(sequence).ok_or(JournalError::NotLive(sequence))?;
            match format::decode(puts.record(self, at)?) {
                Some(Record::Put { sequence: found, payload, .. }) if found == sequence => {
                    if !show(sequence, payload) {
                        return Ok(());
                    }
                }
                _ => {
                    return Err(JournalError::Damaged {
                        segment: at.segment,
                        offset: at.offset,
                        why: "expected another record here",
                    });
                }
            }
        }
        Ok(())
    }

    /// Calls `show` with every live record whose number is at least `first`, in ascending order, with read-ahead.
    ///
    /// If a record cannot be read, `show` receives its number and the error.
    pub fn each_live(&self, first: u64, show: &mut dyn FnMut(u64, Result<Live<'_>, JournalError>)) {
        let (mut puts, mut touches) = (ReadAhead::default(), ReadAhead::default());
        for (sequence, at) in self.state.puts.iter_from(first) {
            let touch = match self.state.touches.get(sequence) {
                None => Ok(None),
                Some(touched) => touches.record(self, touched).map(|record| match format::decode(record) {
                    Some(Record::Touch { payload, .. }) => Some(payload),
                    _ => None,
                }),
            };
            let live = puts.record(self, at).and_then(|record| match format::decode(record) {
                Some(Record::Put { sequence: found, queue, payload, .. }) if found == sequence => {
                    Ok(Live { sequence, queue, payload, touch: touch? })
                }
                _ => Err(JournalError::Damaged {
                    segment: at.segment,
                    offset: at.offset,
                    why: "expected another record here",
                }),
            });
            show(sequence, live);
        }
    }

    /// Iterates over the numbers of all live records, in ascending order.
    pub fn live(&self) -> impl Iterator<Item = u64> {
        self.state.puts.iter_from(0).map(|(sequence, _)| sequence)
    }

    /// Calls `show` with the latest touch of each live record that has one, in ascending order of numbers.
    pub fn each_touch(&self, show: &mut Show<'_>) {
        let mut touches = ReadAhead::default();
        for (sequence, at) in self.state.touches.iter_from(0) {
            let touch = touches.record(self, at).and_then(|record| match format::decode(record) {
                Some(Record::Touch { sequence: found, payload }) if found == sequence => Ok(payload),
                _ => Err(JournalError::Damaged {
                    segment: at.segment,
                    offset: at.offset,
                    why: "expected another record here",
                }),
            });
            show(sequence, touch);
        }
    }

    /// Calls `show` with the notes of one sealed or written segment, in order. [`Stats`] lists the segments.
    ///
    /// # Errors
    /// [`JournalError::Io`] if the segment cannot be read.
    pub fn each_note(&self, segment: u32, show: &mut dyn FnMut(Note<'_>)) -> Result<(), JournalError> {
        let Some(end) = self.state.segments.get(&segment).map(|segment| segment.end) else { return Ok(()) };
        let end = self.tail.iter().find(|writer| writer.number == segment).map_or(end, Writer::written);
        let bytes = self.read_segment(segment, end)?;
        for span in crate::scan::scan(&bytes, self.identity, segment, Some(end)).records {
            let record = &bytes[span.offset as usize..span.end() as usize];
            if let Some(Record::Note { number, time_ms, payload }) = format::decode(record) {
                show(Note { number, time_ms, payload });
            }
        }
        Ok(())
    }

    /// Lists the sealed segments with retained notes, for [`notes::read`](crate::notes::read).
    pub fn sealed_notes(&self) -> NoteInventory {
        let open = self.tail.front().map_or(u32::MAX, |writer| writer.number);
        let mut inventory = NoteInventory { journal: self.identity, ..NoteInventory::default() };
        for (&segment, state) in &self.state.segments {
            let Some((first, last)) = state.note_number_range.filter(|_| !state.notes_expired) else {
                continue;
            };
            if segment < open {
                let (end, bytes) = (state.end, state.note_bytes);
                inventory.sealed.push(SealedNotes { segment, end, first, last, bytes });
            } else {
                inventory.open_from = inventory.open_from.min(first);
            }
        }
        inventory.next = self.state.next_note;
        inventory
    }
}

impl<S: Storage> Journal<S> {
    /// Returns the kind with which the record at `at` must be copied before its segment is removed, or `None` if it is not
    /// needed. The caller decides about settlements.
    pub(crate) fn still_needed(&self, record: &Record<'_>, at: Location) -> Option<RecordKind> {
        let JournalState { puts, touches, definitions, .. } = &self.state;
        match *record {
            Record::Put { sequence, .. } => (puts.get(sequence) == Some(at)).then_some(RecordKind::Moved),
            Record::Touch { sequence, .. } => {
                (touches.get(sequence) == Some(at)).then_some(RecordKind::Touch)
            }
            Record::Define { key, .. } => (definitions.get(key) == Some(&at)).then_some(RecordKind::Define),
            Record::Undefine { key } => (!definitions.contains_key(key)).then_some(RecordKind::Undefine),
            Record::Note { .. } => Some(RecordKind::Note),
            _ => None,
        }
    }

    /// Returns the ranges settled in segment `number` that still hide a put in an older segment.
    pub(crate) fn ranges_needed(
        &self,
        number: u32,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
    ) -> Vec<RangeInclusive<u64>> {
        ranges.filter(|range| self.state.hides_settled(number, range)).collect()
    }

    /// Reads a segment from its start to `end`, or less if the file is shorter.
    pub(crate) fn read_segment(&self, number: u32, end: u32) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; end as usize];
        let count = self.read_file(number, 0, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Replaces the content of `record` by the verified record at `at`.
    pub(super) fn read_record(&self, at: Location, record: &mut Vec<u8>) -> Result<(), JournalError> {
        record.clear();
        if let Some(buffered) = self.buffered(at) {
            record.extend_from_slice(buffered);
            return Ok(());
        }
        record.resize(at.length as usize, 0);
        let count = self.read_file(at.segment, u64::from(at.offset), record)?;
        record.truncate(count);
        self.verify(at, record)
    }

    /// Checks that `bytes` begin with the record expected at `at`.
    pub(super) fn verify(&self, at: Location, bytes: &[u8]) -> Result<(), JournalError> {
        let why = match format::check_placed(bytes, self.identity, at) {
            Checked::Valid(length) if length == at.length => return Ok(()),
            Checked::Valid(_) => "expected a record of another length here",
            Checked::Implausible => "expected a record here",
            Checked::Mismatch(_) => "checksum mismatch",
        };
        // The reader gets the error in any case.
        let _ = self.storage.report_damage(&format::segment_name(at.segment), why);
        Err(JournalError::Damaged { segment: at.segment, offset: at.offset, why })
    }

    fn read_file(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, JournalError> {
        let file = self.shared_file(number)?;
        read_most(&self.storage, &file, offset, buffer).map_err(|error| {
            let name = format::segment_name(number);
            // The reader gets the error in any case.
            let _ = self.storage.report_damage(&name, &error.to_string());
            JournalError::io("reading", &name, &error)
        })
    }

    /// Returns a segment's file, which stays open as long as the handle is held.
    pub(crate) fn shared_file(&self, number: u32) -> Result<Arc<S::File>, JournalError> {
        if let Some(writer) = self.tail.iter().find(|writer| writer.number == number) {
            return Ok(Arc::clone(&writer.file));
        }
        if let Some((_, file)) = self.files.borrow().iter().find(|(cached, _)| *cached == number) {
            return Ok(Arc::clone(file));
        }
        let name = format::segment_name(number);
        let mut opened = self.storage.open(&name);
        if opened.as_ref().is_err_and(|error| Shortage::of(error) == Some(Shortage::Descriptors)) {
            // The files kept open for reading are the only descriptors that the journal can give back.
            self.files.borrow_mut().clear();
            opened = self.storage.open(&name);
        }
        let file = opened.map_err(|error| match Shortage::of(&error) {
            Some(shortage) => JournalError::Full { needed: 0, shortage },
            None => JournalError::io("reading", &name, &error),
        })?;
        let file = Arc::new(file);
        self.keep_open(number, Arc::clone(&file));
        Ok(file)
    }

    /// Returns a record's bytes if they are not completely written yet.
    pub(crate) fn buffered(&self, at: Location) -> Option<&[u8]> {
        self.tail.iter().find(|writer| writer.number == at.segment)?.buffered(at)
    }

    pub(super) fn keep_open(&self, number: u32, file: Arc<S::File>) {
        let mut files = self.files.borrow_mut();
        if files.len() >= OPEN_FILES_MAX {
            files.remove(0);
        }
        files.push((number, file));
    }

    pub(crate) fn forget_file(&self, number: u32) {
        self.files.borrow_mut().retain(|(cached, _)| *cached != number);
    }
}

/// A window into one segment, so that adjacent records take one read. It grows with each read: most readers of a few records
/// need no more.
#[derive(Debug, Default)]
struct ReadAhead {
    segment: u32,
    start: u32,
    bytes: Vec<u8>,
    /// Bytes of the next window.
    ahead: usize,
}

impl ReadAhead {
    /// Returns the verified record at `at`.
    fn record<'a, S: Storage>(
        &'a mut self,
        journal: &'a Journal<S>,
        at: Location,
    ) -> Result<&'a [u8], JournalError> {
        if let Some(buffered) = journal.buffered(at) {
            return Ok(buffered);
        }
        let length = at.length as usize;
        let inside = |window: &Self| {
            let from = at.offset.checked_sub(window.start).filter(|_| window.segment == at.segment)? as usize;
            (from + length <= window.bytes.len()).then_some(from)
        };
        if inside(self).is_none() {
            (self.segment, self.start) = (at.segment, at.offset);
            self.bytes.resize(length.max(self.ahead), 0);
            self.ahead = (4 * self.ahead).clamp(READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES);
            let count = journal.read_file(at.segment, u64::from(at.offset), &mut self.bytes);
            self.bytes.truncate(*count.as_ref().unwrap_or(&0));
            count?;
        }
        let from = inside(self).unwrap_or(0);
        let record = self.bytes.get(from..from + length).unwrap_or_default();
        journal.verify(at, record)?;
        Ok(record)
    }
}
