//! A range of a shard's history as record batches, from the archive as far as possible and from the journal otherwise.
//!
//! At any time, the broker may archive notes, and housekeeping may move them. The reader therefore tracks note numbers. It
//! searches for notes missing at the end again, first in all segments, then in the newest manifest. Only notes that are in
//! neither are lost.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use mqcore_broker::history::LifecycleStep;
use mqcore_broker::history::packing::unpack;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::record::RecordError;
use mqcore_journal::record::Note;

use super::archived::{Delivered, FileError, OpenFile, Selection};
use super::columns::{View, note_of, sequence};
use super::request::{HistoryRequest, QueueMemory};
use super::segments::{Records, failed};
use super::{Piece, ReadError, ShardHistory};
use crate::manifest::{FileEntry, Manifest};
use crate::tables::{Rows, StepPlace};

/// Maximum number of rows in a batch.
const BATCH_ROWS: usize = 16 * 1024;
/// Size in bytes at which a batch is completed. Larger batches are slower, because fresh memory is slow.
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Number of searches for missing notes. Between two searches, notes can only move further once.
const ATTEMPTS: u32 = 8;

/// An iterator over the record batches of one piece.
pub struct PieceReader {
    shard: Arc<ShardHistory>,
    request: Arc<HistoryRequest>,
    /// Range of sequences.
    range: Range<u64>,
    selection: Selection,
    journal: String,
    kept_from: u64,
    fail_on_loss: bool,
    steps: VecDeque<ReadStep>,
    open: OpenSource,
    /// Rows of the open segment that do not fill a batch yet.
    rows: Rows,
    queue: QueueMemory,
    /// Reusable buffer for unpacked blocks.
    unpacked: Vec<u8>,
    /// Numbers of the notes already read.
    done: NumberSet,
    /// Numbers of the notes to read from the archive.
    archived: Range<u64>,
    /// All notes that were searched in files of the archive.
    searched: Vec<Range<u64>>,
    /// Paths of these files.
    planned: HashSet<String>,
    attempts: u32,
    /// Number of searches for the rows of objects that were deleted.
    replans: u32,
    ready: VecDeque<RecordBatch>,
    ended: bool,
    lost: u64,
}

enum ReadStep {
    Segment(u32),
    /// A file, and the notes to read from it.
    File(Box<FileEntry>, Vec<Range<u64>>),
}

/// The source that is being read.
enum OpenSource {
    Nothing,
    Segment(Records),
    File(Box<OpenFile>),
}

impl std::fmt::Debug for PieceReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reading").field("range", &self.range).finish_non_exhaustive()
    }
}

impl PieceReader {
    pub(super) fn new(
        shard: Arc<ShardHistory>,
        request: Arc<HistoryRequest>,
        piece: &Piece,
        fail_on_loss: bool,
    ) -> Result<Self, ReadError> {
        let shape = &request.shape;
        let rows = Rows::of(shape.view().table(), &|name| shape.needs(name));
        let selection = Selection {
            shard: shard.number,
            range: piece.from..piece.until,
            queues: piece.queues.clone(),
            delivered: Delivered::default(),
        };
        let mut reading = Self {
            shard,
            request,
            range: piece.from..piece.until,
            selection,
            journal: piece.journal.clone(),
            kept_from: piece.kept_from,
            fail_on_loss,
            steps: VecDeque::new(),
            open: OpenSource::Nothing,
            rows,
            queue: QueueMemory::default(),
            unpacked: Vec::new(),
            done: NumberSet::default(),
            archived: 0..0,
            searched: Vec::new(),
            planned: HashSet::new(),
            attempts: 0,
            replans: 0,
            ready: VecDeque::new(),
            ended: piece.from >= piece.until,
            lost: 0,
        };
        if !reading.ended {
            reading.begin(&piece.segments)?;
        }
        Ok(reading)
    }

    /// Number of lost notes so far. Always 0 with `fail_on_loss`.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn notes(&self) -> Range<u64> {
        note_of(self.range.start)..note_of(self.range.end - 1) + 1
    }

    fn reach(&self, manifest: Option<&Manifest>) -> (u64, u64) {
        self.shard.reach(manifest, Some(&self.journal))
    }

    fn begin(&mut self, segments: &[u32]) -> Result<(), ReadError> {
        let notes = self.notes();
        let manifest = self.shard.manifest()?;
        let reach = self.reach(manifest.as_ref()).0;
        self.archived = notes.start..notes.end.min(reach.max(notes.start));
        if let Some(manifest) = &manifest
            && !self.archived.is_empty()
        {
            self.plan_files(manifest, vec![self.archived.clone()])?;
        }
        if notes.end > reach {
            self.steps.extend(segments.iter().map(|&segment| ReadStep::Segment(segment)));
        }
        Ok(())
    }

    /// Schedules the files of the archive that contain these notes.
    fn plan_files(&mut self, manifest: &Manifest, notes: Vec<Range<u64>>) -> Result<(), ReadError> {
        let (_, kept_from) = self.reach(Some(manifest));
        let first = notes.first().map_or(0, |range| range.start);
        if kept_from > self.kept_from && first < kept_from {
            self.lose(
                kept_from.min(notes.last().map_or(0, |range| range.end)) - first,
                "retention has removed them",
            )?;
        }
        for file in &manifest.files {
            let overlaps =
                notes.iter().any(|range| file.min_note < range.end && range.start <= file.max_note);
            if overlaps && self.selection.may_want(&self.request, file) {
                self.planned.insert(file.path.clone());
                self.steps.push_back(ReadStep::File(Box::new(file.clone()), notes.clone()));
            }
        }
        self.searched.extend(notes);
        Ok(())
    }

    fn lose(&mut self, notes: u64, why: &str) -> Result<(), ReadError> {
        if self.fail_on_loss {
            let (shard, from, until) = (self.shard.number, self.range.start, self.range.end);
            return Err(ReadError::Lost { shard, from, until, notes, why: why.to_owned() });
        }
        self.lost += notes;
        Ok(())
    }

    fn advance(&mut self) -> Result<(), ReadError> {
        match mem::replace(&mut self.open, OpenSource::Nothing) {
            OpenSource::Segment(mut records) => {
                let more = self.take(|show| records.advance_notes(show))?;
                if more {
                    self.open = OpenSource::Segment(records);
                    return Ok(());
                }
                self.flush()
            }
            OpenSource::File(mut file) => match file.advance(&mut self.selection, &self.request) {
                Ok(Some(rows)) => {
                    self.ready.extend(rows);
                    self.open = OpenSource::File(file);
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(FileError::Removed) => self.lose_file(&file.entry),
                Err(FileError::Read(error)) => Err(error),
            },
            OpenSource::Nothing => match self.steps.pop_front() {
                Some(ReadStep::Segment(segment)) => {
                    let records = self.shard.segments.open(segment, &self.journal)?;
                    self.open = records.map_or(OpenSource::Nothing, OpenSource::Segment);
                    Ok(())
                }
                Some(ReadStep::File(file, notes)) => self.open_file(file, notes),
                None => self.look_again(),
            },
        }
    }

    /// Searches for missing notes of the journal in all segments, then in the archive.
    fn look_again(&mut self) -> Result<(), ReadError> {
        let notes = self.notes();
        let missing = self.done.missing(self.archived.end.max(notes.start)..notes.end);
        if missing.is_empty() {
            self.ended = true;
            return Ok(());
        }
        self.attempts += 1;
        if self.attempts > ATTEMPTS {
            return self.give_up(&missing);
        }
        let known = self.shard.segments.refresh()?;
        let holders = known.holders(&missing);
        let before = self.done.count;
        for segment in holders {
            let shard = Arc::clone(&self.shard);
            let journal = self.journal.clone();
            self.take(|show| shard.segments.each_note(segment, &journal, &known, show))?;
        }
        self.flush()?;
        if self.done.count > before {
            return Ok(());
        }
        let manifest = self.shard.manifest()?;
        let reach = self.reach(manifest.as_ref()).0;
        let archived: Vec<_> = missing.iter().map(|range| range.start..range.end.min(reach)).collect();
        let archived: Vec<_> = archived.into_iter().filter(|range| !range.is_empty()).collect();
        match manifest {
            Some(manifest) if !archived.is_empty() => {
                for range in &archived {
                    self.done.add(range.clone());
                }
                self.plan_files(&manifest, archived)
            }
            _ => self.give_up(&missing),
        }
    }

    fn give_up(&mut self, missing: &[Range<u64>]) -> Result<(), ReadError> {
        self.ended = true;
        let notes = missing.iter().map(|range| range.end - range.start).sum();
        self.lose(notes, "neither the journal nor the archive has them")
    }

    /// Processes the notes of a source.
    fn take<T>(
        &mut self,
        source: impl FnOnce(&mut dyn FnMut(Note<'_>)) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let notes = self.archived.end.max(note_of(self.range.start))..self.notes().end;
        let mut taker = Taker {
            rows: &mut self.rows,
            request: &self.request,
            range: self.range.clone(),
            notes,
            done: &mut self.done,
            shard: self.shard.number,
            queue: &mut self.queue,
            ready: &mut self.ready,
            unpacked: &mut self.unpacked,
            failed: None,
        };
        let outcome = source(&mut |note| taker.note(&note))?;
        taker.failed.map_or(Ok(outcome), Err)
    }

    fn flush(&mut self) -> Result<(), ReadError> {
        self.ready.extend(batch(&mut self.rows, &self.request)?);
        Ok(())
    }

    fn open_file(&mut self, file: Box<FileEntry>, notes: Vec<Range<u64>>) -> Result<(), ReadError> {
        let path = self.shard.archive.location(&file);
        let Some(handle) = self.shard.archive.open(&file)? else { return self.lose_file(&file) };
        let entry = file.clone();
        let sizes = (BATCH_ROWS, BATCH_BYTES);
        match OpenFile::open(handle, file, path, notes, &self.selection, &self.request, sizes) {
            Ok(opened) => self.open = OpenSource::File(Box::new(opened)),
            Err(FileError::Removed) => return self.lose_file(&entry),
            Err(FileError::Read(error)) => return Err(error),
        }
        Ok(())
    }

    /// Handles a missing file of the archive: a newer manifest does not list it any more, or it was deleted manually.
    fn lose_file(&mut self, file: &FileEntry) -> Result<(), ReadError> {
        let manifest = self.shard.manifest()?.unwrap_or_else(Manifest::empty);
        if manifest.files.iter().any(|other| other.path == file.path) {
            let path = self.shard.archive.location(file);
            return Err(failed(&path, std::io::ErrorKind::NotFound.into()));
        }
        // Only objects are merged. A file that the request does not want was not planned either.
        let replaced = file.is_object()
            && manifest.files.iter().any(|other| {
                self.selection.may_want(&self.request, other)
                    && other.min_note <= file.max_note
                    && other.max_note >= file.min_note
                    && !self.planned.contains(&other.path)
            });
        if !replaced {
            let notes = file.max_note.saturating_sub(file.min_note).saturating_add(1);
            return self.lose(notes, "retention has removed them");
        }
        self.replans += 1;
        if self.replans > ATTEMPTS {
            let why = "the archive was rewritten during the query; run the query again";
            let (shard, from, until) = (self.shard.number, self.range.start, self.range.end);
            return Err(ReadError::Lost { shard, from, until, notes: 0, why: why.to_owned() });
        }
        // Merged files have the rows of several files. Some of these were delivered, and others are still planned.
        self.selection.delivered.exclude();
        self.steps.retain(|step| matches!(step, ReadStep::Segment(_)));
        let notes = mem::take(&mut self.searched);
        self.plan_files(&manifest, notes)
    }
}

impl Iterator for PieceReader {
    type Item = Result<RecordBatch, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.advance() {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }
}

/// The same iterator with Arrow errors.
#[derive(Debug)]
pub struct Batches(pub PieceReader);

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|batch| batch.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.0.request.shape.schema()
    }
}

/// Converts the notes of a segment to rows.
struct Taker<'a> {
    rows: &'a mut Rows,
    request: &'a HistoryRequest,
    range: Range<u64>,
    notes: Range<u64>,
    done: &'a mut NumberSet,
    shard: u32,
    queue: &'a mut QueueMemory,
    ready: &'a mut VecDeque<RecordBatch>,
    unpacked: &'a mut Vec<u8>,
    failed: Option<ReadError>,
}

impl Taker<'_> {
    fn note(&mut self, note: &Note<'_>) {
        if self.failed.is_some() || !self.notes.contains(&note.number) || !self.done.insert(note.number) {
            return;
        }
        let mut position = 0;
        let mut unpacked = mem::take(self.unpacked);
        let mut show = |step: LifecycleStep<'_>| {
            let place = StepPlace { shard: self.shard, note: note.number, position };
            position += 1;
            if self.failed.is_none()
                && let Err(error) = self.step(place, &step)
            {
                self.failed = Some(error);
            }
        };
        let outcome = unpack(note.payload, &mut unpacked).and_then(|block| each_step(block, &mut show));
        *self.unpacked = unpacked;
        // The readable part of a malformed block is used, as in the archive.
        if let Err(error @ RecordError::Version { .. }) = outcome {
            self.failed.get_or_insert(ReadError::Record(error));
        }
    }

    fn step(&mut self, place: StepPlace, step: &LifecycleStep<'_>) -> Result<(), ReadError> {
        let messages = self.request.shape.view() == View::Messages;
        if messages && step.content.is_none() || !self.range.contains(&sequence(place.note, place.position)) {
            return Ok(());
        }
        let request = self.request;
        let us = i64::try_from(step.time.0.saturating_mul(1000)).unwrap_or(i64::MAX);
        let queue = (!step.kind.is_of_a_shard()).then_some(step.queue);
        if !request.wants_time(us)
            || !request.wants_kind(step.kind.as_str())
            || !self.queue.wants(queue, |queue| request.wants_queue(queue))
        {
            return Ok(());
        }
        let pushed =
            if messages { self.rows.push_message(place, step) } else { self.rows.push_step(place, step) };
        pushed.map_err(ReadError::Rows)?;
        if self.rows.len() >= BATCH_ROWS || self.rows.bytes() >= BATCH_BYTES {
            self.ready.extend(batch(self.rows, request)?);
        }
        Ok(())
    }
}

/// Returns the collected rows as a batch; `None`: there are none.
fn batch(rows: &mut Rows, request: &HistoryRequest) -> Result<Option<RecordBatch>, ReadError> {
    if rows.is_empty() {
        return Ok(None);
    }
    rows.take().and_then(|rows| request.shape.apply(&rows)).map(Some).map_err(ReadError::Rows)
}

/// A set of numbers, stored as disjoint ranges in ascending order.
#[derive(Debug, Default)]
struct NumberSet {
    ranges: Vec<Range<u64>>,
    count: u64,
}

impl NumberSet {
    /// Adds a number. Returns false if the set already contains it.
    fn insert(&mut self, number: u64) -> bool {
        if let Some(last) = self.ranges.last_mut()
            && last.end == number
        {
            last.end += 1;
            self.count += 1;
            return true;
        }
        let at = self.ranges.partition_point(|range| range.end <= number);
        if self.ranges.get(at).is_some_and(|range| range.contains(&number)) {
            return false;
        }
        self.add(number..number + 1);
        true
    }

    fn add(&mut self, mut new: Range<u64>) {
        let covered = self.missing(new.clone()).iter().map(|range| range.end - range.start).sum::<u64>();
        self.count += covered;
        let from = self.ranges.partition_point(|range| range.end < new.start);
        let until = self.ranges.partition_point(|range| range.start <= new.end);
        if from < until {
            new = new.start.min(self.ranges[from].start)..new.end.max(self.ranges[until - 1].end);
        }
        self.ranges.splice(from..until, [new]);
    }

    fn missing(&self, wanted: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut from = wanted.start;
        for range in &self.ranges[self.ranges.partition_point(|range| range.end <= wanted.start)..] {
            if range.start >= wanted.end {
                break;
            }
            if from < range.start {
                missing.push(from..range.start);
            }
            from = from.max(range.end);
        }
        if from < wanted.end {
            missing.push(from..wanted.end);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_track_contained_and_missing_numbers() {
        let mut numbers = NumberSet::default();
        for number in [5, 6, 9, 3, 7, 4] {
            assert!(numbers.insert(number), "{number}");
        }
        assert!(!numbers.insert(6) && !numbers.insert(9));
        assert_eq!((&numbers.ranges[..], numbers.count), (&[3..8, 9..10][..], 6));
        assert_eq!(numbers.missing(0..12), [0..3, 8..9, 10..12]);
        numbers.add(7..11);
        assert_eq!((numbers.ranges.len(), numbers.ranges.first(), numbers.count), (1, Some(&(3..11)), 8));
        assert!(numbers.missing(4..11).is_empty());
    }
}
