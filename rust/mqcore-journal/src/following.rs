//! Notes of segment files, read beside the process that writes them, also of the segment that grows.
//!
//! Pure functions of bytes, so that nothing here can change a journal or keep its writer waiting. A record counts only when its
//! checksum fits, so half of a write is not there yet. What housekeeping moves or removes meanwhile is told by the numbers of
//! notes: they have no holes.

use crate::error::JournalError;
use crate::format::{self, Checked, HEADER_BYTES, Header, HeaderReading, Location, PREFIX_BYTES, Record};
use crate::journal::Note;
use crate::notes::{SealedNotes, each};

/// How many bytes of a file [`identity`] needs.
pub const HEAD_BYTES: usize = HEADER_BYTES as usize;

/// Whose segment a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The journal's identity: note numbers mean nothing beside it.
    pub journal: u64,
    /// The shard that it was made for.
    pub shard: u32,
    /// The segment's number.
    pub segment: u32,
}

/// Reads the beginning of a segment file. `None`: it is none, or not readable.
///
/// # Errors
/// [`JournalError::Version`]: a later version wrote it. `name` is only said.
pub fn identity(name: &str, head: &[u8]) -> Result<Option<Identity>, JournalError> {
    match Header::read(head) {
        HeaderReading::Good { header, .. } => {
            Ok(Some(Identity { journal: header.journal, shard: header.shard, segment: header.segment }))
        }
        HeaderReading::Newer(version) => {
            Err(JournalError::Version { file: name.to_owned(), found: version, known: format::VERSION })
        }
        HeaderReading::Bad => Ok(None),
    }
}

/// The number of the segment in a file of this name; `None`: no segment that is in use.
pub fn segment_number(name: &str) -> Option<u32> {
    format::parse_name(name).filter(|(_, aside)| !aside).map(|(number, _)| number)
}

/// The name of a segment's file.
pub fn segment_name(number: u32) -> String {
    format::segment_name(number)
}

/// A record that [`Walk`] passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A note.
    Note(Note<'a>),
    /// The segment is in use, and these are all the others with where each ends; no note had `next_note` by then.
    Began {
        /// The number that the next note got.
        next_note: u64,
        /// Segments and the ends of what counts in them, in bytes.
        others: Vec<(u32, u32)>,
    },
    /// Nothing follows in this segment.
    Closed,
    /// Something else.
    Other,
}

/// Goes from record to record as far as they are readable.
#[derive(Debug)]
pub struct Walk<'a> {
    identity: Identity,
    bytes: &'a [u8],
    base: u32,
    offset: u32,
    closed: bool,
}

impl<'a> Walk<'a> {
    /// Begins at `base`, where a record begins or may begin one day; `bytes` stand there. The first of a segment is at
    /// [`HEAD_BYTES`].
    pub fn new(identity: Identity, base: u32, bytes: &'a [u8]) -> Self {
        Self { identity, bytes, base, offset: base, closed: false }
    }

    /// Behind the last record that was readable, in bytes from the start of the file.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// How many bytes from [`Self::offset`] on the next record claims; 0: none begins there, as far as can be seen.
    pub fn claimed(&self) -> usize {
        let rest = self.rest();
        let prefix = rest.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length));
        if prefix == 0 { 0 } else { PREFIX_BYTES.saturating_add(prefix as usize) }
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get((self.offset - self.base) as usize..).unwrap_or_default()
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        if self.closed {
            return None;
        }
        let rest = self.rest();
        let at = Location { segment: self.identity.segment, offset: self.offset, length: 0 };
        let Checked::Valid(length) = format::check_placed(rest, self.identity.journal, at) else {
            return None;
        };
        let record = format::decode(&rest[..length as usize])?;
        self.offset += length;
        Some(match record {
            Record::Note { number, time_ms, payload } => Seen::Note(Note { number, time_ms, payload }),
            Record::Begin { next_note, inventory, .. } => Seen::Began {
                next_note,
                others: inventory.iter().map(|listed| (listed.segment, listed.end)).collect(),
            },
            Record::Seal { .. } => {
                self.closed = true;
                Seen::Closed
            }
            _ => Seen::Other,
        })
    }
}

/// Shows the notes of a segment of which another one knows where it `end`s, damaged parts passed over.
pub fn each_until<'a>(identity: Identity, end: u32, bytes: &'a [u8], show: &mut dyn FnMut(Note<'a>)) {
    let sealed = SealedNotes { segment: identity.segment, end, first: 0, last: 0, bytes: 0 };
    each(identity.journal, &sealed, bytes, show);
}
