//! Reading of the history: archive and journal combined into one sequence of events, while the broker runs or is stopped.
//!
//! Reading locks, consumes and changes nothing. Each row of a shard has an ascending *sequence*, composed of its note number
//! and its position within the note. A range of sequences always yields the same rows, wherever they are stored. A reader
//! that stores its last sequence can resume at any later time, unless retention has removed the rows that follow.
//!
//! | module | content |
//! |---|---|
//! | [`columns`] | views and their columns |
//! | [`request`] | selection of rows and columns |
//! | [`source`] | where the files of an archive are |
//! | `segments` | which segment file of a journal contains which notes |
//! | [`slices`] | division of large parts of an archive |
//! | `archived` | the matching rows of a file of the archive |
//! | [`rows`] | a range of the history as record batches |

mod archived;
pub mod columns;
pub mod request;
pub mod rows;
mod segments;
pub mod slices;
pub mod source;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::ArrowError;
use mqcore_broker::model::record::RecordError;
use mqcore_journal::error::JournalError;
use serde::{Deserialize, Serialize};

use columns::{note_of, sequence};
use request::HistoryRequest;
use rows::PieceReader;
use segments::{KnownFiles, Segments};
use slices::{QueueSlice, Slice, divide};
use source::ArchiveSource;

use crate::manifest::{self, Manifest, hex};

/// Why the history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be read.
    #[error("reading {path}: {source}")]
    Io {
        /// File path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The newest manifest of the archive is invalid.
    #[error("invalid manifest {path}: {why}")]
    Manifest {
        /// File path.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// A file of the archive is not a valid Parquet file, or has other columns.
    #[error("invalid file {path}: {why}")]
    Parquet {
        /// File path.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// A newer version wrote the journal.
    #[error(transparent)]
    Journal(JournalError),
    /// A newer version wrote the history.
    #[error(transparent)]
    Record(RecordError),
    /// Notes are neither in the journal nor in the archive.
    #[error("history of shard {shard} from sequence {from} to {until} is lost ({notes} notes): {why}")]
    Lost {
        /// Shard number.
        shard: u32,
        /// First sequence of the requested range.
        from: u64,
        /// End of the requested range.
        until: u64,
        /// Number of lost notes.
        notes: u64,
        /// Reason.
        why: String,
    },
    /// The archive on object storage cannot be read.
    #[error("reading the archive {url}: {why}")]
    Remote {
        /// URL of the archive.
        url: String,
        /// Reason.
        why: String,
    },
    /// The object store refuses the credentials, or there are none.
    #[error("reading the archive {url}: the object store denies access: {why}")]
    Denied {
        /// URL of the archive.
        url: String,
        /// Reason.
        why: String,
    },
    /// The object store does not answer.
    #[error("reading the archive {url}: the object store does not answer: {why}")]
    Unreachable {
        /// URL of the archive.
        url: String,
        /// Reason.
        why: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// Rows do not match their columns, which is a bug in mqcore.
    #[error(transparent)]
    Rows(ArrowError),
}

/// The available history of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ends {
    /// Shard number.
    pub shard: u32,
    /// Identity of its journal in hexadecimal; empty if there is none. Sequences are only meaningful together with it.
    pub journal: String,
    /// All rows from this sequence on are available, as far as known; some earlier ones may be.
    pub earliest: u64,
    /// Sequence after the last row.
    pub latest: u64,
}

/// A range of a shard's history that is read at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Shard number.
    pub shard: u32,
    /// Identity of the journal in hexadecimal.
    pub journal: String,
    /// First sequence.
    pub from: u64,
    /// Sequence after the last one.
    pub until: u64,
    /// Segments of the journal to search first.
    pub segments: Vec<u32>,
    /// Retention had removed rows of notes below this number when this piece was planned, so their absence is not a loss.
    pub kept_from: u64,
    /// Approximate size in bytes.
    pub bytes: u64,
    /// Queues; `None`: all. Other pieces have the same sequences of other queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<QueueSlice>,
}

/// How [`ShardHistory::pieces`] splits a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Approximate size of a piece in bytes.
    pub target_bytes: u64,
    /// Whether files of the archive that have rows of the same time may be divided by queue. The pieces are then not in the
    /// order of their sequences. Otherwise one piece has all of these files, however large they are.
    pub by_queue: bool,
}

impl Division {
    /// Pieces in the order of their sequences.
    pub fn in_order(target_bytes: u64) -> Self {
        Self { target_bytes, by_queue: false }
    }
}

/// Notes that are stored together.
struct Stretch {
    notes: Range<u64>,
    /// Size of their files.
    bytes: u64,
    /// The segment of the journal that has them; `None`: they are archived.
    segment: Option<u32>,
    /// Parts that can be read independently of each other, if it is to be divided.
    slices: Vec<Slice>,
}

/// The history of one shard.
#[derive(Debug)]
pub struct ShardHistory {
    number: u32,
    segments: Segments,
    archive: Arc<dyn ArchiveSource>,
}

impl ShardHistory {
    /// Creates the history of a shard from its journal's directory, which need not exist, and the archive.
    pub fn new(number: u32, journal: &Path, archive: Arc<dyn ArchiveSource>) -> Self {
        Self { number, segments: Segments::new(journal.to_path_buf()), archive }
    }

    /// Creates the archived part of the history of a shard, without its journal.
    pub fn archived(number: u32, archive: Arc<dyn ArchiveSource>) -> Self {
        // No directory has an empty name, so this journal has no segments.
        Self::new(number, Path::new(""), archive)
    }

    /// Returns the available range.
    ///
    /// # Errors
    /// [`ReadError`] if the journal or the manifest cannot be read.
    pub fn ends(&self) -> Result<Ends, ReadError> {
        // The journal is read first: notes that leave it afterwards are in the manifest that is read next.
        let known = self.segments.refresh()?;
        let manifest = self.manifest()?;
        let journal = known.journal.map(hex).or_else(|| self.archived_journal(manifest.as_ref()));
        let (reach, kept_from) = self.reach(manifest.as_ref(), journal.as_deref());
        let begins = match &manifest {
            Some(manifest) if reach > 0 => manifest.shards.get(&self.number).map_or(0, |reach| reach.begins),
            _ => 0,
        };
        let first =
            if reach > 0 { kept_from.max(begins) } else { known.first_note().unwrap_or(known.next_note) };
        Ok(Ends {
            shard: self.number,
            journal: journal.unwrap_or_default(),
            earliest: sequence(first, 0),
            latest: sequence(known.next_note.max(reach), 0),
        })
    }

    /// Splits a range into pieces. A range that begins with 0 begins with the earliest row.
    ///
    /// # Errors
    /// [`ReadError`] if the journal or the manifest cannot be read.
    pub fn pieces(
        &self,
        request: &HistoryRequest,
        range: Range<u64>,
        division: Division,
    ) -> Result<Vec<Piece>, ReadError> {
        let known = self.segments.refresh()?;
        let manifest = self.manifest()?;
        let journal = known.journal.map(hex).or_else(|| self.archived_journal(manifest.as_ref()));
        let (reach, kept_from) = self.reach(manifest.as_ref(), journal.as_deref());
        let journal = journal.unwrap_or_default();
        let mut stretches = Vec::new();
        if let Some(manifest) = manifest.as_ref().filter(|_| reach > 0) {
            stretches.extend(self.archived_stretches(manifest, request, &range, reach, division));
        }
        stretches.extend(known.stretches(request, &range, reach));
        let piece = |from, until, bytes, segment: Option<u32>, queues| Piece {
            shard: self.number,
            journal: journal.clone(),
            from,
            until,
            segments: segment.into_iter().collect(),
            kept_from,
            bytes,
            queues,
        };
        let mut pieces: Vec<Piece> = Vec::new();
        // End of the pieces so far.
        let mut reached = 0;
        for Stretch { notes, bytes, segment, slices } in stretches {
            let from = if pieces.is_empty() { range.start.max(sequence(notes.start, 0)) } else { reached };
            let until = range.end.min(sequence(notes.end, 0));
            match pieces.last_mut() {
                // Housekeeping copies notes to later segments, so this segment may contain notes of the previous one.
                Some(last) if until <= reached => last.segments.extend(segment),
                _ if slices.len() > 1 => {
                    for (part, queues, bytes) in slices {
                        let first = if part.start == notes.start { from } else { sequence(part.start, 0) };
                        let (first, end) = (first.max(from), until.min(sequence(part.end, 0)));
                        pieces.extend((first < end).then(|| piece(first, end, bytes, segment, queues)));
                    }
                }
                Some(last)
                    if last.queues.is_none()
                        && last.until == reached
                        && last.bytes + bytes <= division.target_bytes =>
                {
                    last.until = until;
                    last.bytes += bytes;
                    last.segments.extend(segment);
                }
                // Pieces are contiguous, so that a missing note is always in the range of some piece.
                _ if from < until => pieces.push(piece(from, until, bytes, segment, None)),
                _ => {}
            }
            if !pieces.is_empty() {
                reached = reached.max(until);
            }
        }
        if let (Some(first), true) = (pieces.first_mut(), range.start > 0) {
            first.from = first.from.min(range.start);
        }
        Ok(pieces)
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// [`ReadError`], immediately or from the iterator; [`ReadError::Lost`] only with `fail_on_loss`.
    pub fn read(
        self: &Arc<Self>,
        request: &Arc<HistoryRequest>,
        piece: &Piece,
        fail_on_loss: bool,
    ) -> Result<PieceReader, ReadError> {
        PieceReader::new(Arc::clone(self), Arc::clone(request), piece, fail_on_loss)
    }

    /// Returns the sequence after the first `rows` matching rows of a range, and their number. If there are fewer rows, the
    /// sequence is the end of the range.
    ///
    /// # Errors
    /// [`ReadError`] if the history cannot be read.
    pub fn advance(
        self: &Arc<Self>,
        request: &Arc<HistoryRequest>,
        range: Range<u64>,
        rows: u64,
        fail_on_loss: bool,
    ) -> Result<(u64, u64), ReadError> {
        let mut taken = 0;
        let mut reached = range.start;
        for piece in self.pieces(request, range.clone(), Division::in_order(0))? {
            let mut found: Vec<i64> = Vec::new();
            for batch in self.read(request, &piece, fail_on_loss)? {
                let batch = batch?;
                let column = batch.column_by_name("sequence").and_then(|c| c.as_primitive_opt::<Int64Type>());
                let column = column.ok_or_else(|| {
                    ReadError::Request("counting rows needs the column sequence".to_owned())
                })?;
                found.extend(column.values());
            }
            if taken + found.len() as u64 > rows {
                found.sort_unstable();
                let last = (rows - taken) as usize;
                let end = found.get(last).map_or(reached, |first_left| first_left.cast_unsigned());
                return Ok((end.max(reached), rows));
            }
            taken += found.len() as u64;
            reached = piece.until;
        }
        Ok((range.end, taken))
    }

    /// Returns the newest manifest; `None`: there is no archive.
    fn manifest(&self) -> Result<Option<Manifest>, ReadError> {
        self.archive.manifest()
    }

    /// Returns the numbers below which all notes are archived and below which retention removed rows; zeros for another journal.
    fn reach(&self, manifest: Option<&Manifest>, journal: Option<&str>) -> (u64, u64) {
        let reach = manifest.and_then(|manifest| manifest.shards.get(&self.number));
        let reach = reach.filter(|reach| journal.is_none_or(|journal| journal == reach.journal));
        reach.map_or((0, 0), |reach| (reach.notes, reach.kept_from))
    }

    fn archived_journal(&self, manifest: Option<&Manifest>) -> Option<String> {
        manifest?.shards.get(&self.number).map(|reach| reach.journal.clone())
    }

    /// Returns ranges of notes whose rows are in the same files.
    fn archived_stretches(
        &self,
        manifest: &Manifest,
        request: &HistoryRequest,
        range: &Range<u64>,
        reach: u64,
        division: Division,
    ) -> Vec<Stretch> {
        let wanted = |file: &&manifest::FileEntry| {
            file.shard == self.number
                && request.may_want(file)
                && sequence(file.min_note, 0) < range.end
                && file.max_note >= note_of(range.start)
        };
        let mut files: Vec<_> = manifest.files.iter().filter(wanted).collect();
        files.sort_unstable_by_key(|file| (file.min_note, file.max_note));
        let mut groups: Vec<(Range<u64>, u64, Vec<&manifest::FileEntry>)> = Vec::new();
        for file in files {
            let (first, end) = (file.min_note, file.max_note.saturating_add(1).min(reach));
            match groups.last_mut() {
                Some((notes, bytes, files)) if first < notes.end => {
                    notes.end = notes.end.max(end);
                    *bytes += file.bytes;
                    files.push(file);
                }
                _ => groups.push((first..end, file.bytes, vec![file])),
            }
        }
        let stretch = |(notes, bytes, files): (Range<u64>, u64, Vec<&manifest::FileEntry>)| {
            let is_large = division.by_queue && bytes > division.target_bytes;
            let slices = if is_large { divide(&files, &notes, division.target_bytes) } else { Vec::new() };
            Stretch { notes, bytes, segment: None, slices }
        };
        groups.into_iter().map(stretch).collect()
    }
}

impl KnownFiles {
    fn first_note(&self) -> Option<u64> {
        self.segments.values().filter_map(|segment| segment.notes).map(|(first, _)| first).min()
    }

    /// Returns the segments that may contain some of these notes.
    fn holders(&self, missing: &[Range<u64>]) -> Vec<u32> {
        let holds =
            |notes: (u64, u64)| missing.iter().any(|range| notes.0 < range.end && range.start <= notes.1);
        let held = self.segments.iter().filter(|(_, segment)| segment.notes.is_some_and(holds));
        held.map(|(number, _)| *number).collect()
    }

    /// Returns the notes of the journal from `reach` on, by segment.
    fn stretches(&self, request: &HistoryRequest, range: &Range<u64>, reach: u64) -> Vec<Stretch> {
        let mut found: Vec<_> = self
            .segments
            .iter()
            .filter_map(|(number, segment)| Some((*number, segment.notes?, segment)))
            .filter(|(_, notes, _)| {
                notes.1 >= reach.max(note_of(range.start)) && sequence(notes.0, 0) < range.end
            })
            .map(|(number, (first, last), segment)| {
                // Segments of other times must still be read, but count as free.
                let bytes =
                    if request.overlaps_ms(segment.times.0, segment.times.1) { segment.bytes } else { 0 };
                Stretch {
                    notes: first.max(reach)..last + 1,
                    bytes,
                    segment: Some(number),
                    slices: Vec::new(),
                }
            })
            .collect();
        found.sort_unstable_by_key(|stretch| (stretch.notes.start, stretch.segment));
        found
    }
}
