//! Notes of sealed segments, read beside the journal that has them open: by a thread that carries them elsewhere.
//!
//! A sealed segment never changes. It may be removed by housekeeping while somebody is about to read it: then its notes were
//! released, have expired, or stand in another segment by then.

use std::io;

use crate::format::{self, Record};
use crate::journal::Note;
use crate::scan::scan;
use crate::storage::{Storage, read_most};

/// Which notes can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The journal's identity: note numbers mean nothing beside it.
    pub journal: u64,
    /// Segments that are sealed and durable, oldest first.
    pub sealed: Vec<SealedNotes>,
    /// Notes from this number on may stand in segments that are not sealed yet.
    pub open_from: u64,
    /// The number of the next note.
    pub next: u64,
}

impl Default for Inventory {
    fn default() -> Self {
        Self { journal: 0, sealed: Vec::new(), open_from: u64::MAX, next: 0 }
    }
}

/// One sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedNotes {
    /// Its number.
    pub segment: u32,
    /// Behind its last record, in bytes.
    pub end: u32,
    /// The smallest number of its notes.
    pub first: u64,
    /// The largest.
    pub last: u64,
    /// What the notes take, in bytes.
    pub bytes: u64,
}

/// Reads a sealed segment: its bytes, to be shown to [`each`].
///
/// # Errors
/// What the storage says; [`io::ErrorKind::NotFound`] if it was removed meanwhile.
pub fn read<S: Storage>(storage: &S, sealed: &SealedNotes) -> io::Result<Vec<u8>> {
    let file = storage.open(&format::segment_name(sealed.segment))?;
    let mut bytes = vec![0; sealed.end as usize];
    let count = read_most(storage, &file, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Shows the notes of a sealed segment with checksums that fit, in its order; answers how many bytes are unreadable.
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
