//! The binary format of a segment: encodes and decodes its header and records. Documented in `docs/storage-format.md`.

use std::ops::RangeInclusive;

use crate::options::SEGMENT_BYTES_MIN;
pub(crate) use crate::varint::{push as push_varint, take as take_varint};

/// Format version that is written, and the newest that is read.
pub(crate) const VERSION: u16 = 2;
const MAGIC: [u8; 8] = *b"MQJOURNL";
const COPY_BYTES: usize = 64;
const COPY_HASHED_BYTES: usize = COPY_BYTES - 4;
/// Largest unit that a disk loses as a whole, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Offset of the first record. Each of the two equal copies of the header has its own block, so that one bad block neither
/// makes the segment unidentifiable nor costs a record.
pub(crate) const HEADER_BYTES: u32 = 2 * BLOCK_BYTES;
const _: () = assert!(SEGMENT_BYTES_MIN == HEADER_BYTES + BLOCK_BYTES);
/// Offset of the first record in version 1, whose copies of the header stand side by side.
const HEADER_BYTES_V1: u32 = 2 * COPY_BYTES as u32;
/// Size of the `length` and `crc32` before every record.
pub(crate) const PREFIX_BYTES: usize = 8;
/// Maximum size of a seal. This space is never used for anything else.
pub(crate) const SEAL_BYTES: u32 = PREFIX_BYTES as u32 + 1 + 5 + 10 + 5;
/// Maximum size of a mark.
pub(crate) const MARK_BYTES: u32 = PREFIX_BYTES as u32 + 1 + 5 + 5 + 10;

/// The place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u32,
    /// Offset from the start of the file. Never 0, because the header is there.
    pub(crate) offset: u32,
    /// Length of the whole record, including its prefix.
    pub(crate) length: u32,
}

impl Location {
    pub(crate) fn end(self) -> u32 {
        self.offset + self.length
    }
}

/// The header of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u16,
    pub(crate) shard: u32,
    pub(crate) journal: u64,
    pub(crate) segment: u32,
    /// File length at creation. A shorter file that is not sealed has lost its end.
    pub(crate) capacity: u32,
    pub(crate) created_ms: u64,
}

/// The result of reading a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderReading {
    /// Readable; this many of the two copies are damaged.
    Good { header: Header, damaged_copies: usize },
    /// Written by a newer version.
    Newer(u16),
    /// Neither copy is readable.
    Bad,
}

impl Header {
    /// Encodes both copies, up to the end of the second one.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut copy = [0; COPY_BYTES];
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..10].copy_from_slice(&self.version.to_le_bytes());
        copy[12..16].copy_from_slice(&self.shard.to_le_bytes());
        copy[16..24].copy_from_slice(&self.journal.to_le_bytes());
        copy[24..28].copy_from_slice(&self.segment.to_le_bytes());
        copy[28..32].copy_from_slice(&self.capacity.to_le_bytes());
        copy[32..40].copy_from_slice(&self.created_ms.to_le_bytes());
        let sum = crc32fast::hash(&copy[..COPY_HASHED_BYTES]);
        copy[COPY_HASHED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        let mut both = copy.to_vec();
        both.resize(BLOCK_BYTES as usize, 0);
        both.extend_from_slice(&copy);
        both
    }

    pub(crate) fn read(bytes: &[u8]) -> HeaderReading {
        let at = |offset: usize| bytes.get(offset..offset + COPY_BYTES).and_then(Self::read_copy);
        let near = || at(COPY_BYTES).filter(|header| header.version < 2);
        let far = || at(BLOCK_BYTES as usize).filter(|header| header.version >= 2);
        let first = at(0);
        let second = match first {
            Some(header) if header.version < 2 => near(),
            Some(_) => far(),
            None => near().or_else(far),
        };
        let damaged_copies = usize::from(first.is_none()) + usize::from(second.is_none());
        match first.or(second) {
            None => HeaderReading::Bad,
            Some(header) if header.version > VERSION => HeaderReading::Newer(header.version),
            Some(header) => HeaderReading::Good { header, damaged_copies },
        }
    }

    /// Offset of the first record.
    pub(crate) fn records_start(&self) -> u32 {
        if self.version < 2 { HEADER_BYTES_V1 } else { HEADER_BYTES }
    }

    fn read_copy(copy: &[u8]) -> Option<Self> {
        let sum = u32::from_le_bytes(copy[COPY_HASHED_BYTES..COPY_BYTES].try_into().ok()?);
        if copy[..8] != MAGIC || crc32fast::hash(&copy[..COPY_HASHED_BYTES]) != sum {
            return None;
        }
        let version = u16::from_le_bytes(copy[8..10].try_into().ok()?);
        Some(Self {
            version,
            shard: u32::from_le_bytes(copy[12..16].try_into().ok()?),
            journal: u64::from_le_bytes(copy[16..24].try_into().ok()?),
            segment: u32::from_le_bytes(copy[24..28].try_into().ok()?),
            capacity: u32::from_le_bytes(copy[28..32].try_into().ok()?),
            created_ms: u64::from_le_bytes(copy[32..40].try_into().ok()?),
        })
    }
}

/// Offset of the first record of a segment, from its bytes. Without a readable header, it is the earliest offset at which a
/// record can stand: version 2 has nothing but zeros between the copies of its header.
pub(crate) fn records_start(bytes: &[u8]) -> u32 {
    if let HeaderReading::Good { header, .. } = Header::read(bytes) {
        return header.records_start();
    }
    let zeros = |from: u32, to: u32| {
        let part = &bytes[bytes.len().min(from as usize)..bytes.len().min(to as usize)];
        part.iter().all(|&byte| byte == 0)
    };
    let padded = zeros(HEADER_BYTES_V1, BLOCK_BYTES) && zeros(BLOCK_BYTES + COPY_BYTES as u32, HEADER_BYTES);
    if padded { HEADER_BYTES } else { HEADER_BYTES_V1 }
}

/// The kind of a record. The numbers are stored on disk: never change or reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Put = 1,
    Settle = 2,
    Touch = 3,
    Define = 4,
    Undefine = 5,
    Note = 6,
    Mark = 7,
    Seal = 8,
    Begin = 9,
    Drop = 10,
    /// A relocated put. Distinct from `Put`, whose numbers ascend within a segment.
    Moved = 11,
    /// Like a seal, but no other segment follows yet.
    Stop = 12,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Put,
            2 => Self::Settle,
            3 => Self::Touch,
            4 => Self::Define,
            5 => Self::Undefine,
            6 => Self::Note,
            7 => Self::Mark,
            8 => Self::Seal,
            9 => Self::Begin,
            10 => Self::Drop,
            11 => Self::Moved,
            12 => Self::Stop,
            _ => return None,
        })
    }
}

/// A decoded record that borrows from the segment's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Put {
        moved: bool,
        queue: u32,
        sequence: u64,
        payload: &'a [u8],
    },
    Settle(Ranges<'a>),
    Touch {
        sequence: u64,
        payload: &'a [u8],
    },
    Define {
        key: &'a [u8],
        value: &'a [u8],
    },
    Undefine {
        key: &'a [u8],
    },
    Note {
        number: u64,
        time_ms: u64,
        payload: &'a [u8],
    },
    /// Everything before `synced_to` in this segment was durable when this was written, after `records` other records.
    Mark {
        synced_to: u32,
        records: u32,
        next_sequence: u64,
    },
    /// The last record of a segment, after `records` others.
    Seal {
        records: u32,
        next_sequence: u64,
        successor: Successor,
    },
    /// The segment is in use. Lists all other segments.
    Begin {
        next_sequence: u64,
        next_note: u64,
        inventory: SegmentList<'a>,
    },
    /// A segment file is about to be removed.
    Drop {
        segment: u32,
    },
}

/// The segment after a sealed one. It was durable before the seal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Successor {
    /// None was begun yet.
    #[default]
    Missing,
    /// Some segment with a higher number. Seals that opening writes, and those of earlier versions, do not name it.
    Unnamed,
    Segment(u32),
}

impl Successor {
    /// Whether the later segment `number` is the successor, or comes after it, because the successor may have been removed.
    /// `None`: the seal does not tell, because there may be unused files between.
    pub(crate) fn is(self, number: u32) -> Option<bool> {
        match self {
            Self::Missing => Some(false),
            Self::Unnamed => None,
            Self::Segment(successor) => Some(number >= successor),
        }
    }

    /// The successor if it comes behind the segment `number`.
    pub(crate) fn behind(self, number: u32) -> Self {
        match self {
            Self::Segment(successor) if successor > number => self,
            Self::Segment(_) | Self::Unnamed | Self::Missing => Self::Missing,
        }
    }
}

/// Ranges of settled numbers. Decoding checks that they ascend without overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranges<'a>(&'a [u8]);

/// In place of an end in such a list: unknown, because the disk could not read the segment when it was the last one.
pub(crate) const END_UNKNOWN: u32 = u32::MAX;

/// One segment in the list of a `Begin` record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentExtent {
    pub(crate) segment: u32,
    pub(crate) end: u32,
    pub(crate) records: u32,
}

/// All other segments when a segment began. Checked when decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentList<'a>(&'a [u8]);

impl<'a> Ranges<'a> {
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, mut floor) = (bytes, 0);
        while !rest.is_empty() {
            (_, floor) = Self::step(&mut rest, floor)?;
        }
        Some(Self(bytes))
    }

    /// Reads the next range, and returns it with the smallest number that may follow.
    fn step(rest: &mut &[u8], floor: u64) -> Option<(RangeInclusive<u64>, u64)> {
        let first = floor.checked_add(take_varint(rest)?)?;
        let last = first.checked_add(take_varint(rest)?)?;
        Some((first..=last, last.checked_add(1)?))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = RangeInclusive<u64>> + 'a {
        let (mut rest, mut floor) = (self.0, 0);
        std::iter::from_fn(move || {
            let (range, next) = Self::step(&mut rest, floor)?;
            floor = next;
            Some(range)
        })
    }
}

/// Appends ranges that ascend and do not touch.
pub(crate) fn push_ranges(body: &mut Vec<u8>, ranges: &[RangeInclusive<u64>]) {
    let mut floor = 0;
    for range in ranges {
        push_varint(body, range.start() - floor);
        push_varint(body, range.end() - range.start());
        floor = range.end() + 1;
    }
}

impl<'a> SegmentList<'a> {
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            Self::step(&mut rest)?;
        }
        Some(Self(bytes))
    }

    fn step(rest: &mut &[u8]) -> Option<SegmentExtent> {
        let segment = u32::try_from(take_varint(rest)?).ok()?;
        let end = u32::try_from(take_varint(rest)?).ok()?;
        let records = u32::try_from(take_varint(rest)?).ok()?;
        Some(SegmentExtent { segment, end, records })
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = SegmentExtent> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || Self::step(&mut rest))
    }
}

/// Appends one entry to a list of segments.
pub(crate) fn push_listed(body: &mut Vec<u8>, listed: SegmentExtent) {
    push_varint(body, u64::from(listed.segment));
    push_varint(body, u64::from(listed.end));
    push_varint(body, u64::from(listed.records));
}

/// Encodes the bytes before a put's payload and returns them with their length. Does not allocate, because it runs once per message.
pub(crate) fn encode_put_head(queue: u32, sequence: u64) -> ([u8; 13], usize) {
    let (mut head, mut length, mut rest) = ([0; 13], 0, queue);
    while rest >= 0x80 {
        head[length] = (rest & 0x7f) as u8 | 0x80;
        (length, rest) = (length + 1, rest >> 7);
    }
    head[length] = rest as u8;
    length += 1;
    head[length..length + 8].copy_from_slice(&sequence.to_le_bytes());
    (head, length + 8)
}

pub(crate) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (number, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_le_bytes(*number))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(take_varint(rest)?).ok()
}

/// Checksum that binds a record to its journal, segment and offset, so that a misplaced, duplicated or stale block is not
/// taken for this record.
fn checksum(journal: u64, at: Location, length: u32, content: &[u8]) -> u32 {
    let mut place = [0; 20];
    place[..8].copy_from_slice(&journal.to_le_bytes());
    place[8..12].copy_from_slice(&at.segment.to_le_bytes());
    place[12..16].copy_from_slice(&at.offset.to_le_bytes());
    place[16..].copy_from_slice(&length.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place);
    hasher.update(content);
    hasher.finalize()
}

/// Length of a record including its prefix; `None` if no segment can hold it.
pub(crate) fn record_length(head: &[u8], parts: &[&[u8]]) -> Option<u32> {
    let content = parts.iter().try_fold(1 + head.len(), |sum, part| sum.checked_add(part.len()))?;
    u32::try_from(content.checked_add(PREFIX_BYTES)?).ok()
}

/// Appends the record for the place `at`, whose length must be [`record_length`].
pub(crate) fn push_record(
    buffer: &mut Vec<u8>,
    journal: u64,
    at: Location,
    kind: RecordKind,
    head: &[u8],
    parts: &[&[u8]],
) {
    let length = at.length - PREFIX_BYTES as u32;
    let start = buffer.len();
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&[0; 4]);
    buffer.push(kind as u8);
    buffer.extend_from_slice(head);
    for part in parts {
        buffer.extend_from_slice(part);
    }
    // One pass over contiguous bytes: hashing short pieces is several times slower per byte.
    let sum = checksum(journal, at, length, &buffer[start + PREFIX_BYTES..]);
    buffer[start + 4..start + PREFIX_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// The result of looking for a record at some place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    /// A record with a matching checksum, of this length including its prefix.
    Valid(u32),
    /// Not a record: the length is impossible. No checksum was computed.
    Implausible,
    /// The length is plausible, but the checksum over this many bytes does not match.
    Mismatch(u32),
}

/// Checks for a record at `offset` of a segment's bytes.
pub(crate) fn check(bytes: &[u8], journal: u64, segment: u32, offset: u32) -> Checked {
    let tail = bytes.get(offset as usize..).unwrap_or_default();
    check_placed(tail, journal, Location { segment, offset, length: 0 })
}

/// Checks for a record at the start of `bytes`, which are at the place `at`. Ignores the length in `at`.
pub(crate) fn check_placed(bytes: &[u8], journal: u64, at: Location) -> Checked {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Checked::Implausible;
    };
    let length = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]);
    let sum = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
    let Some(content) = rest.get(..length as usize).filter(|content| !content.is_empty()) else {
        return Checked::Implausible;
    };
    if RecordKind::from_byte(content[0]).is_none() {
        return Checked::Implausible;
    }
    if checksum(journal, at, length, content) == sum {
        Checked::Valid(length + PREFIX_BYTES as u32)
    } else {
        Checked::Mismatch(length + PREFIX_BYTES as u32)
    }
}

/// Decodes a record whose checksum was verified; `None` if its content is invalid nevertheless.
pub(crate) fn decode(record: &[u8]) -> Option<Record<'_>> {
    let (&kind, mut rest) = record.get(PREFIX_BYTES..)?.split_first()?;
    let kind = RecordKind::from_byte(kind)?;
    let decoded = match kind {
        RecordKind::Put | RecordKind::Moved => {
            let queue = take_u32(&mut rest)?;
            let sequence = take_u64(&mut rest)?;
            Record::Put { moved: kind == RecordKind::Moved, queue, sequence, payload: rest }
        }
        RecordKind::Settle => Record::Settle(Ranges::checked(rest)?),
        RecordKind::Touch => {
            let sequence = take_u64(&mut rest)?;
            Record::Touch { sequence, payload: rest }
        }
        RecordKind::Define => {
            let length = usize::try_from(take_varint(&mut rest)?).ok()?;
            let (key, value) = rest.split_at_checked(length)?;
            Record::Define { key, value }
        }
        RecordKind::Undefine => Record::Undefine { key: rest },
        RecordKind::Note => {
            let number = take_u64(&mut rest)?;
            let time_ms = take_u64(&mut rest)?;
            Record::Note { number, time_ms, payload: rest }
        }
        RecordKind::Mark => Record::Mark {
            synced_to: take_u32(&mut rest)?,
            records: take_u32(&mut rest)?,
            next_sequence: take_varint(&mut rest)?,
        },
        RecordKind::Seal | RecordKind::Stop => Record::Seal {
            records: take_u32(&mut rest)?,
            next_sequence: take_varint(&mut rest)?,
            successor: match kind {
                RecordKind::Stop => Successor::Missing,
                _ if rest.is_empty() => Successor::Unnamed,
                _ => Successor::Segment(take_u32(&mut rest)?),
            },
        },
        RecordKind::Begin => Record::Begin {
            next_sequence: take_varint(&mut rest)?,
            next_note: take_varint(&mut rest)?,
            inventory: SegmentList::checked(rest)?,
        },
        RecordKind::Drop => Record::Drop { segment: take_u32(&mut rest)? },
    };
    Some(decoded)
}

/// Returns the file name of a segment.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:010}.segment")
}

/// Returns the file name of a quarantined segment.
pub(crate) fn quarantined_name(number: u32) -> String {
    format!("{number:010}.quarantined")
}

/// Parses a file name: the segment number, and whether it is quarantined; `None`: not a file of the journal.
pub(crate) fn parse_name(name: &str) -> Option<(u32, bool)> {
    let (digits, suffix) = name.split_once('.')?;
    // The largest number is excluded, so that there is always a next one.
    let number = (digits.len() == 10).then(|| digits.parse().ok())?.filter(|&number| number < u32::MAX)?;
    match suffix {
        "segment" => Some((number, false)),
        "quarantined" => Some((number, true)),
        _ => None,
    }
}
