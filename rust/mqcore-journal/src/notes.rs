//! Notes of sealed segments, read by another thread while the journal is in use, for example by an archiver.
//!
//! A sealed segment never changes. Housekeeping may remove it before it is read; its notes were then released, have
//! expired, or were moved to another segment.

use std::io;

use crate::format::{self, Record};
use crate::record::Note;
use crate::scan::scan;
use crate::storage::{Storage, read_most};

/// The notes that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteInventory {
    /// Identity of the journal. Note numbers are only meaningful together with it.
    pub journal: u64,
    /// Sealed and durable segments with notes, oldest first.
    pub sealed: Vec<SealedNotes>,
    /// Notes from this number on may be in segments that are not sealed yet.
    pub open_from: u64,
    /// Number of the next note.
    pub next: u64,
}

impl Default for NoteInventory {
    fn default() -> Self {
        Self { journal: 0, sealed: Vec::new(), open_from: u64::MAX, next: 0 }
    }
}

impl NoteInventory {
    /// Returns a number below which the journal has no notes.
    pub fn first(&self) -> u64 {
        let sealed = self.sealed.iter().map(|sealed| sealed.first);
        sealed.fold(self.open_from.min(self.next), u64::min)
    }
}

/// The notes of one sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedNotes {
    /// Segment number.
    pub segment: u32,
    /// Offset of the end of the last record, in bytes.
    pub end: u32,
    /// Smallest note number.
    pub first: u64,
    /// Largest note number.
    pub last: u64,
    /// Total size of the notes in bytes.
    pub bytes: u64,
}

/// Reads the bytes of a sealed segment, for [`each`].
///
/// # Errors
/// Errors of the storage. [`io::ErrorKind::NotFound`] means that housekeeping removed the segment.
pub fn read<S: Storage>(storage: &S, sealed: &SealedNotes) -> io::Result<Vec<u8>> {
    let file = storage.open(&format::segment_name(sealed.segment))?;
    let mut bytes = vec![0; sealed.end as usize];
    let count = read_most(storage, &file, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Calls `show` with each valid note of a sealed segment, in order. Returns the number of unreadable bytes.
pub fn each<'a>(journal: u64, sealed: &SealedNotes, bytes: &'a [u8], show: &mut dyn FnMut(Note<'a>)) -> u64 {
    let found = scan(bytes, journal, sealed.segment, Some(sealed.end));
    for span in &found.records {
        let record = &bytes[span.offset as usize..span.end() as usize];
        if let Some(Record::Note { number, time_ms, payload }) = format::decode(record) {
            show(Note { number, time_ms, payload });
        }
    }
    found.gaps.iter().map(|gap| u64::from(gap.end - gap.start)).sum()
}
