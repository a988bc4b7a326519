//! Finds the records of a segment, and what is damaged between them. Pure functions of bytes.

use crate::format::{self, Checked, HEADER_BYTES, Record};

/// How many bytes may be summed in vain, in lengths of the segment, while a record is looked for behind damage.
/// Without a limit a peer's payload, made for it, could cost hours.
const SEARCH_EFFORT: u64 = 64;
const ZEROS: [u8; 4096] = [0; 4096];

/// A part of a segment that holds no readable record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Where a record stands in its segment.
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

/// What a segment holds.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// In order; all verified and decodable.
    pub(crate) records: Vec<Span>,
    /// In order; before, between and behind the records.
    pub(crate) gaps: Vec<Gap>,
    /// The segment's own word on how far it was durable: no crash explains damage before.
    pub(crate) synced_to: u32,
    /// Whether the last record says that nothing follows in this segment.
    pub(crate) closed: bool,
    /// Whether it also says that another segment follows.
    pub(crate) followed: bool,
}

impl Scan {
    /// Behind the last record.
    pub(crate) fn end(&self) -> u32 {
        self.records.last().map_or(HEADER_BYTES, |last| last.end())
    }
}

/// Scans a segment. `end`, if another segment knows it, is where its last record ends: everything before is then
/// expected to be whole, and everything behind is left out.
pub(crate) fn scan(bytes: &[u8], journal: u64, segment: u32, end: Option<u32>) -> Scan {
    let mut scan = Scan { synced_to: HEADER_BYTES, ..Scan::default() };
    let known = end.map_or(bytes.len(), |end| (end as usize).min(bytes.len()));
    let bytes = &bytes[..known];
    let mut search = Search { bytes, journal, segment, effort: SEARCH_EFFORT * bytes.len() as u64 };
    let mut offset = HEADER_BYTES;
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
            Some(Record::Seal { followed, .. }) => {
                (scan.closed, scan.followed) = (true, followed);
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

struct Search<'a> {
    bytes: &'a [u8],
    journal: u64,
    segment: u32,
    effort: u64,
}

impl Search<'_> {
    /// The length of the record at `offset`, if one is there and makes sense.
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

    /// The next readable record behind damage at `damaged`. Byte by byte: where a damaged length points, a record may
    /// stand and readable ones before it.
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

/// Behind the last byte that is not zero; `from` if there is none.
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
