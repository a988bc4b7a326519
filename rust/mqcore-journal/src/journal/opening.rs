//! Opening: reads the files, and begins a segment to write to.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use super::{Condition, Journal, Spare};
use crate::catalog::CATALOG;
use crate::error::JournalError;
use crate::format::{self, Location, Record, RecordKind, segment_name};
use crate::options::{Options, SEGMENT_BYTES_MIN};
use crate::recovery::{self, CatalogDamage, Recovered, Recovery, RecoveryReport};
use crate::storage::{Storage, write_whole};

/// Repairs that opening must make before it writes anything.
#[derive(Debug)]
pub(crate) struct UnfinishedSegments {
    pub(crate) tails: Vec<recovery::UnconfirmedTail>,
    pub(crate) closings: Vec<recovery::SegmentEnd>,
    pub(crate) leftovers: Vec<recovery::UnusedFile>,
    /// Whether the directory has a catalog of this journal.
    pub(crate) has_catalog: bool,
}

impl<S: Storage> Journal<S> {
    /// Tells the storage which files are damaged, before anything is repaired.
    pub(super) fn report_findings(&self, report: &RecoveryReport) -> Result<(), JournalError> {
        let damaged = report.damaged.iter().map(|damage| (segment_name(damage.segment), damage.to_string()));
        let missing = report.missing.iter().map(|gone| (segment_name(gone.segment), gone.to_string()));
        let strays = report.strays.iter().map(|name| (name.clone(), "not a file of this journal".to_owned()));
        // One readable copy of the catalog is enough.
        let catalog = report.catalog.iter().filter(|damage| **damage == CatalogDamage::Lost);
        let catalog = catalog.map(|_| (CATALOG.to_owned(), "missing or unreadable".to_owned()));
        for (name, what) in damaged.chain(missing).chain(strays).chain(catalog) {
            let reported = self.storage.report_damage(&name, &what);
            reported.map_err(|error| JournalError::io("repairing", &name, &error))?;
        }
        Ok(())
    }

    /// Reads the files without changing them. The result has no segment to write to; only reading methods may be called.
    pub(crate) fn read_only_state(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
        seen: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(Self, Recovered, UnfinishedSegments), JournalError> {
        let options = options.bounded();
        let Recovery {
            identity,
            state,
            definitions,
            mut report,
            next_segment,
            tails,
            closings,
            leftovers,
            quarantined,
            has_catalog,
        } = recovery::recover(&storage, &options, progress, seen)?;
        report.live = state.puts.len() as u64;
        let recovered = Recovered {
            definitions: definitions.into_iter().map(|(key, value)| (key.into_vec(), value)).collect(),
            next_sequence: state.next_sequence,
            report,
        };
        let journal = Self {
            storage,
            options,
            identity,
            state,
            condition: Condition::Healthy,
            tail: VecDeque::new(),
            spare: None,
            next_segment,
            cataloged: BTreeSet::new(),
            catalog_bytes: 0,
            catalog_retry_ms: 0,
            moving: None,
            pinned: false,
            quarantined,
            house_ms: 0,
            released_notes_below: 0,
            has_note_reader: false,
            files: RefCell::default(),
        };
        Ok((journal, recovered, UnfinishedSegments { tails, closings, leftovers, has_catalog }))
    }

    /// Removes files that a crash left before they were used, and quarantines files with unexpected content.
    pub(super) fn remove_unused_files(&mut self, leftovers: &[recovery::UnusedFile]) {
        for leftover in leftovers {
            let name = format::segment_name(leftover.segment);
            // If this fails, the file stays unused under its name, and the next opening tries again.
            let _ = if leftover.empty {
                self.storage.remove(&name)
            } else {
                self.quarantined += 1;
                self.storage.rename(&name, &format::quarantined_name(leftover.segment))
            };
        }
    }

    /// Begins a new segment, because the end of the old one may be torn and must not be appended to.
    ///
    /// The records after its last mark are copied first, so that they are durable even if the disk lied about an earlier sync.
    /// Only then does the new segment begin, which also records where the old ones end.
    pub(super) fn begin_first_segment(
        &mut self,
        tails: &[recovery::UnconfirmedTail],
        closings: &[recovery::SegmentEnd],
    ) -> Result<(), JournalError> {
        let copied: u64 = tails.iter().map(|tail| tail.bytes.len() as u64).sum();
        let spare = self.first_segment(copied, closings)?;
        self.begin(spare);
        for tail in tails {
            self.copy_tail(tail);
        }
        if copied > 0 {
            self.write()?;
            self.sync()?;
        }
        for closing in closings {
            if let Some(segment) = self.state.segments.get_mut(&closing.segment) {
                (segment.end, segment.records) = (closing.end, closing.records);
            }
        }
        // Two records state that the segment is in use, so that damage to one of them is not enough to lose it.
        self.push_mark();
        self.push_begin();
        self.write()?;
        self.sync()?;
        for closing in closings {
            // A failure is harmless: the new segment has already recorded where the old ones end.
            let _ = self.seal_in_place(closing.segment, closing.end, closing.records, RecordKind::Seal);
        }
        Ok(())
    }

    /// Creates the first segment to write. On a full disk, it first releases the space reserved at the end of old segments, and
    /// accepts a smaller segment.
    fn first_segment(
        &mut self,
        copied: u64,
        closings: &[recovery::SegmentEnd],
    ) -> Result<Spare<S::File>, JournalError> {
        let needed = self.room_for(copied).max(u64::from(SEGMENT_BYTES_MIN));
        let mut capacity = needed.max(u64::from(self.options.segment_bytes));
        let first = self.create_segment(capacity);
        if !matches!(first, Err(JournalError::Full { .. })) {
            return first;
        }
        for closing in closings.iter().filter(|closing| !closing.closed) {
            let _ =
                self.seal_in_place(closing.segment, closing.tail_end, closing.tail_records, RecordKind::Stop);
        }
        loop {
            match self.create_segment(capacity) {
                Ok(spare) => {
                    self.condition = Condition::Healthy;
                    return Ok(spare);
                }
                Err(JournalError::Full { .. }) if capacity > needed => capacity = (capacity / 4).max(needed),
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies the records of a tail that are still needed.
    fn copy_tail(&mut self, tail: &recovery::UnconfirmedTail) {
        for span in &tail.records {
            let at = Location { segment: tail.segment, offset: span.offset, length: span.length };
            let from = (span.offset - tail.start) as usize;
            let record = &tail.bytes[from..from + span.length as usize];
            let Some(decoded) = format::decode(record) else { continue };
            let kind = match decoded {
                Record::Settle(_) => RecordKind::Settle,
                other => match self.still_needed(&other, at) {
                    Some(kind) => kind,
                    None => continue,
                },
            };
            let body = &record[format::PREFIX_BYTES + 1..];
            self.append(span.length, kind, body, &[]);
        }
    }

    /// Writes the final record into an old segment and truncates its file.
    pub(crate) fn seal_in_place(
        &mut self,
        number: u32,
        end: u32,
        records: u32,
        kind: RecordKind,
    ) -> std::io::Result<()> {
        let file = self.storage.open(&format::segment_name(number))?;
        let length = self.storage.length(&file)?;
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(records));
        format::push_varint(&mut body, self.state.next_sequence);
        let at =
            Location { segment: number, offset: end, length: (format::PREFIX_BYTES + 1 + body.len()) as u32 };
        if u64::from(at.end()) > length {
            return Ok(());
        }
        let mut record = Vec::new();
        format::push_record(&mut record, self.identity, at, kind, &body, &[]);
        write_whole(&self.storage, &file, u64::from(end), &record)?;
        self.storage.sync_data(&file)?;
        self.storage.set_length(&file, u64::from(at.end()))?;
        if let Some(segment) = self.state.segments.get_mut(&number) {
            segment.file_bytes = u64::from(at.end());
        }
        Ok(())
    }
}
