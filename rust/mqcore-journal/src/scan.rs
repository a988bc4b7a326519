//! Finds the records of a segment and the damage between them. Pure functions over bytes.

use crate::format::{self, Checked, Record, Successor};

/// Limit on checksum computation while searching for a record behind damage, as a multiple of the segment's length. Without
/// it, a payload crafted by a peer could cost hours.
const SEARCH_EFFORT: u64 = 64;
const ZEROS: [u8; 4096] = [0; 4096];

/// A part of a segment without a readable record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// The place of a record in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Span {
    pub(crate) fn end(self) -> u32 {
        self.offset + self.length
    }
}

/// Content of a segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentScan {
    /// Offset of the first record, whether it is readable or not.
    pub(crate) start: u32,
    /// Verified and decodable records, in order.
    pub(crate) records: Vec<Span>,
    /// Gaps before, between and after the records, in order.
    pub(crate) gaps: Vec<Gap>,
    /// How far the segment was durable according to its own marks. No crash explains damage before this offset.
    pub(crate) synced_to: u32,
    /// Whether the last record states that nothing follows in this segment.
    pub(crate) closed: bool,
    /// The segment that follows, according to the last record.
    pub(crate) successor: Successor,
}

impl SegmentScan {
    /// End of the last record.
    pub(crate) fn end(&self) -> u32 {
        self.records.last().map_or(self.start, |last| last.end())
    }

    /// Takes into account that everything before `synced_to` was durable: what is unreadable there is damage.
    pub(crate) fn expect_durable(&mut self, synced_to: u32) {
        self.synced_to = self.synced_to.max(synced_to);
        let end = self.end();
        if self.closed || end >= synced_to {
            return;
        }
        match self.gaps.last_mut().filter(|gap| gap.start >= end) {
            Some(gap) => gap.end = gap.end.max(synced_to),
            None => self.gaps.push(Gap { start: end, end: synced_to }),
        }
    }
}

/// Scans a segment. `end` is the end of its last record, if another segment lists it: everything before it is expected to be
/// complete, and everything after it is ignored.
pub(crate) fn scan(bytes: &[u8], journal: u64, segment: u32, end: Option<u32>) -> SegmentScan {
    let start = format::records_start(bytes);
    let mut scan = SegmentScan { start, synced_to: start, ..SegmentScan::default() };
    let known = end.map_or(bytes.len(), |end| (end as usize).min(bytes.len()));
    let bytes = &bytes[..known];
    let mut search = RecordSearch { bytes, journal, segment, effort: SEARCH_EFFORT * bytes.len() as u64 };
    let mut offset = start;
    while (offset as usize) < bytes.len() {
        let found = search.readable(offset);
        let Some(length) = found else {
            let Some(next) = search.next(offset) else {
                let garbage = last_non_zero(bytes, offset);
                if garbage > offset && end.is_none() {
                    scan.gaps.push(Gap { start: offset, end: garbage });
                }
                break;
            };
            scan.gaps.push(Gap { start: offset, end: next });
            offset = next;
            continue;
        };
        scan.records.push(Span { offset, length });
        match format::decode(&bytes[offset as usize..(offset + length) as usize]) {
            Some(Record::Mark { synced_to, .. }) => scan.synced_to = scan.synced_to.max(synced_to),
            Some(Record::Seal { successor, .. }) => {
                (scan.closed, scan.successor) = (true, successor);
                offset += length;
                break;
            }
            _ => {}
        }
        offset += length;
    }
    if let Some(end) = end.filter(|&end| end > offset) {
        scan.gaps.push(Gap { start: offset, end });
    }
    scan
}

struct RecordSearch<'a> {
    bytes: &'a [u8],
    journal: u64,
    segment: u32,
    effort: u64,
}

impl RecordSearch<'_> {
    /// Length of the record at `offset`, if it is valid and decodable.
    fn readable(&mut self, offset: u32) -> Option<u32> {
        match format::check(self.bytes, self.journal, self.segment, offset) {
            Checked::Valid(length) => {
                let record = &self.bytes[offset as usize..(offset + length) as usize];
                format::decode(record).map(|_| length)
            }
            Checked::Implausible => None,
            Checked::Mismatch(length) => {
                self.effort = self.effort.saturating_sub(u64::from(length));
                None
            }
        }
    }

    /// Returns the offset of the next readable record behind the damage at `damaged`. Searches byte by byte, because a damaged
    /// length may point beyond readable records.
    fn next(&mut self, damaged: u32) -> Option<u32> {
        let mut offset = damaged + 1;
        while (offset as usize) < self.bytes.len() && self.effort > 0 {
            let written = first_non_zero(self.bytes, offset)?;
            // A length may begin with up to three zero bytes.
            offset = offset.max(written.saturating_sub(3));
            if self.readable(offset).is_some() {
                return Some(offset);
            }
            offset += 1;
        }
        None
    }
}

fn first_non_zero(bytes: &[u8], from: u32) -> Option<u32> {
    let mut offset = from as usize;
    while offset < bytes.len() {
        let piece = &bytes[offset..(offset + ZEROS.len()).min(bytes.len())];
        if piece != &ZEROS[..piece.len()] {
            return piece.iter().position(|&byte| byte != 0).map(|at| (offset + at) as u32);
        }
        offset += piece.len();
    }
    None
}

/// End of the last non-zero byte; `from` if there is none.
fn last_non_zero(bytes: &[u8], from: u32) -> u32 {
    let mut end = bytes.len();
    while end > from as usize {
        let start = end.saturating_sub(ZEROS.len()).max(from as usize);
        let piece = &bytes[start..end];
        if piece != &ZEROS[..piece.len()] {
            let last = piece.iter().rposition(|&byte| byte != 0).unwrap_or(0);
            return (start + last + 1) as u32;
        }
        end = start;
    }
    from
}
