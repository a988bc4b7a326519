//! Notes of segment files, read next to the process that writes them, including the segment that still grows.
//!
//! All functions are pure functions over bytes, so they cannot change a journal or block its writer. A record counts only
//! if its checksum matches, so a partial write is invisible. Note numbers have no gaps, which reveals notes that
//! housekeeping moved or removed in the meantime.

use crate::error::JournalError;
use crate::format::{self, Checked, HEADER_BYTES, Header, HeaderReading, Location, PREFIX_BYTES, Record};
use crate::notes::{SealedNotes, each};
use crate::record::Note;

/// Number of bytes of a file that [`identity`] needs.
pub const HEAD_BYTES: usize = HEADER_BYTES as usize;

/// The journal and segment that a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// Identity of the journal. Note numbers are only meaningful together with it.
    pub journal: u64,
    /// Shard of the journal.
    pub shard: u32,
    /// Segment number.
    pub segment: u32,
    /// Offset of the first record in bytes.
    pub records_start: u32,
}

/// Reads the header of a segment file. `None`: it is not a segment, or not readable.
///
/// # Errors
/// [`JournalError::Version`] if a newer version wrote the file. `name` is only used in the error.
pub fn identity(name: &str, head: &[u8]) -> Result<Option<SegmentIdentity>, JournalError> {
    match Header::read(head) {
        HeaderReading::Good { header, .. } => Ok(Some(SegmentIdentity {
            journal: header.journal,
            shard: header.shard,
            segment: header.segment,
            records_start: header.records_start(),
        })),
        HeaderReading::Newer(version) => {
            Err(JournalError::Version { file: name.to_owned(), found: version, known: format::VERSION })
        }
        HeaderReading::Bad => Ok(None),
    }
}

/// Parses the name of a segment file. `None`: the name belongs to no segment, or to a quarantined one.
pub fn segment_number(name: &str) -> Option<u32> {
    format::parse_name(name).filter(|(_, aside)| !aside).map(|(number, _)| number)
}

/// Returns the file name of a segment.
pub fn segment_name(number: u32) -> String {
    format::segment_name(number)
}

/// A record that [`RecordWalk`] read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowedRecord<'a> {
    /// A note.
    Note(Note<'a>),
    /// The segment was begun. Lists all other segments and where each ends. Notes from `next_note` on were written later.
    Began {
        /// Number of the next note at that time.
        next_note: u64,
        /// Other segments and the ends of their valid parts, in bytes.
        others: Vec<(u32, u32)>,
    },
    /// The segment is closed; nothing follows in it.
    Closed,
    /// A record of another kind.
    Other,
}

/// Iterates over the records of a segment, up to the first unreadable one.
#[derive(Debug)]
pub struct RecordWalk<'a> {
    identity: SegmentIdentity,
    bytes: &'a [u8],
    base: u32,
    offset: u32,
    closed: bool,
}

impl<'a> RecordWalk<'a> {
    /// Creates an iterator over `bytes`, which start at the offset `base` of the file. `base` must be the beginning of a
    /// record, or the place where the next record will begin. The first record of a segment is at
    /// [`SegmentIdentity::records_start`].
    pub fn new(identity: SegmentIdentity, base: u32, bytes: &'a [u8]) -> Self {
        Self { identity, bytes, base, offset: base, closed: false }
    }

    /// End of the last readable record, as an offset in the file in bytes.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Announced size in bytes of the record at [`Self::offset`]; 0: no record begins there yet.
    pub fn announced_bytes(&self) -> usize {
        let rest = self.rest();
        let prefix = rest.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length));
        if prefix == 0 { 0 } else { PREFIX_BYTES.saturating_add(prefix as usize) }
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get((self.offset - self.base) as usize..).unwrap_or_default()
    }
}

impl<'a> Iterator for RecordWalk<'a> {
    type Item = FollowedRecord<'a>;

    fn next(&mut self) -> Option<FollowedRecord<'a>> {
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
            Record::Note { number, time_ms, payload } => {
                FollowedRecord::Note(Note { number, time_ms, payload })
            }
            Record::Begin { next_note, inventory, .. } => FollowedRecord::Began {
                next_note,
                others: inventory.iter().map(|listed| (listed.segment, listed.end)).collect(),
            },
            Record::Seal { .. } => {
                self.closed = true;
                FollowedRecord::Closed
            }
            _ => FollowedRecord::Other,
        })
    }
}

/// Calls `show` with the notes of a segment whose `end` another segment lists. Skips damaged parts.
pub fn each_until<'a>(identity: SegmentIdentity, end: u32, bytes: &'a [u8], show: &mut dyn FnMut(Note<'a>)) {
    let sealed = SealedNotes { segment: identity.segment, end, first: 0, last: 0, bytes: 0 };
    each(identity.journal, &sealed, bytes, show);
}
