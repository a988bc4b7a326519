//! The bytes of a segment: its header and its records, to bytes and back. `docs/storage.md` draws them.

use std::ops::RangeInclusive;

/// The newest layout that is written and read.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"MQJOURNL";
const COPY: usize = 64;
const COPY_SUMMED: usize = COPY - 4;
/// Two equal copies, so that one bad sector does not cost the segment its name.
pub(crate) const HEADER_BYTES: u32 = 2 * COPY as u32;
/// `length` and `crc32` in front of every record.
pub(crate) const PREFIX_BYTES: usize = 8;
/// What a seal takes at most: its space is never given to anything else.
pub(crate) const SEAL_BYTES: u32 = PREFIX_BYTES as u32 + 1 + 5 + 10;
/// What a mark takes at most.
pub(crate) const MARK_BYTES: u32 = PREFIX_BYTES as u32 + 1 + 5 + 5 + 10;

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u32,
    /// From the start of the file. Never 0: the header is there.
    pub(crate) offset: u32,
    /// Of the whole record, prefix included.
    pub(crate) length: u32,
}

impl Location {
    pub(crate) fn end(self) -> u32 {
        self.offset + self.length
    }
}

/// What a segment file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) shard: u32,
    pub(crate) journal: u64,
    pub(crate) segment: u32,
    /// The length that the file was made with: a shorter one that was not sealed has lost its end.
    pub(crate) capacity: u32,
    pub(crate) created_ms: u64,
}

/// What the first bytes of a file turn out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderReading {
    /// Readable; `damaged_copies` of the two are not.
    Good { header: Header, damaged_copies: usize },
    /// Written by a newer version.
    Newer(u16),
    /// Neither copy is readable.
    Bad,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut copy = [0; COPY];
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..10].copy_from_slice(&VERSION.to_le_bytes());
        copy[12..16].copy_from_slice(&self.shard.to_le_bytes());
        copy[16..24].copy_from_slice(&self.journal.to_le_bytes());
        copy[24..28].copy_from_slice(&self.segment.to_le_bytes());
        copy[28..32].copy_from_slice(&self.capacity.to_le_bytes());
        copy[32..40].copy_from_slice(&self.created_ms.to_le_bytes());
        let sum = crc32fast::hash(&copy[..COPY_SUMMED]);
        copy[COPY_SUMMED..].copy_from_slice(&sum.to_le_bytes());
        let mut both = [0; HEADER_BYTES as usize];
        both[..COPY].copy_from_slice(&copy);
        both[COPY..].copy_from_slice(&copy);
        both
    }

    pub(crate) fn read(bytes: &[u8]) -> HeaderReading {
        let copies: Vec<(u16, Self)> = bytes.chunks_exact(COPY).take(2).filter_map(Self::read_copy).collect();
        match copies.first() {
            None => HeaderReading::Bad,
            Some(&(version, _)) if version > VERSION => HeaderReading::Newer(version),
            Some(&(_, header)) => HeaderReading::Good { header, damaged_copies: 2 - copies.len() },
        }
    }

    fn read_copy(copy: &[u8]) -> Option<(u16, Self)> {
        let sum = u32::from_le_bytes(copy[COPY_SUMMED..COPY].try_into().ok()?);
        if copy[..8] != MAGIC || crc32fast::hash(&copy[..COPY_SUMMED]) != sum {
            return None;
        }
        let version = u16::from_le_bytes(copy[8..10].try_into().ok()?);
        let header = Self {
            shard: u32::from_le_bytes(copy[12..16].try_into().ok()?),
            journal: u64::from_le_bytes(copy[16..24].try_into().ok()?),
            segment: u32::from_le_bytes(copy[24..28].try_into().ok()?),
            capacity: u32::from_le_bytes(copy[28..32].try_into().ok()?),
            created_ms: u64::from_le_bytes(copy[32..40].try_into().ok()?),
        };
        Some((version, header))
    }
}

/// What a record is for. The numbers are on the disk: never change one, never use one again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
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
    /// A put that was copied. Apart from `Put`, whose numbers ascend within a segment.
    Moved = 11,
    /// Like a seal, but of a segment that no other follows yet.
    Stop = 12,
}

impl Kind {
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

/// One record, decoded. Borrows from the segment's bytes.
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
    /// All of this segment before `synced_to` was durable when this was written, after `records` others.
    Mark {
        synced_to: u32,
        records: u32,
        next_sequence: u64,
    },
    /// The last record of a segment, after `records` others. If `followed`, the next segment was durable before.
    Seal {
        records: u32,
        next_sequence: u64,
        followed: bool,
    },
    /// The segment is in use, and these are all the others.
    Begin {
        next_sequence: u64,
        next_note: u64,
        inventory: Inventory<'a>,
    },
    /// A segment's file is about to go.
    Drop {
        segment: u32,
    },
}

/// Ranges of settled numbers, checked when decoded: ascending and without overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranges<'a>(&'a [u8]);

/// One segment in a `Begin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) segment: u32,
    pub(crate) end: u32,
    pub(crate) records: u32,
}

/// All other segments when a segment began, checked when decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inventory<'a>(&'a [u8]);

impl<'a> Ranges<'a> {
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, mut floor) = (bytes, 0);
        while !rest.is_empty() {
            (_, floor) = Self::step(&mut rest, floor)?;
        }
        Some(Self(bytes))
    }

    /// The next range, and the smallest number that may follow it.
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

impl<'a> Inventory<'a> {
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            Self::step(&mut rest)?;
        }
        Some(Self(bytes))
    }

    fn step(rest: &mut &[u8]) -> Option<Listed> {
        let segment = u32::try_from(take_varint(rest)?).ok()?;
        let end = u32::try_from(take_varint(rest)?).ok()?;
        let records = u32::try_from(take_varint(rest)?).ok()?;
        Some(Listed { segment, end, records })
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Listed> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || Self::step(&mut rest))
    }
}

/// Appends one segment of an inventory.
pub(crate) fn push_listed(body: &mut Vec<u8>, listed: Listed) {
    push_varint(body, u64::from(listed.segment));
    push_varint(body, u64::from(listed.end));
    push_varint(body, u64::from(listed.records));
}

/// Appends seven bits a byte, the lowest first; the highest bit says that more follow.
pub(crate) fn push_varint(body: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        body.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    body.push(value as u8);
}

/// What stands before a put's payload, and how long it is; without an allocation, since there is one a message.
pub(crate) fn put_head(queue: u32, sequence: u64) -> ([u8; 13], usize) {
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

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (number, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_le_bytes(*number))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(take_varint(rest)?).ok()
}

/// What binds a record to its journal, segment and offset, so that a block that is misplaced, doubled or left over
/// from another time does not pass for this one.
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

/// The length of a record, prefix included; `None` if it does not fit any segment.
pub(crate) fn record_length(head: &[u8], parts: &[&[u8]]) -> Option<u32> {
    let content = parts.iter().try_fold(1 + head.len(), |sum, part| sum.checked_add(part.len()))?;
    u32::try_from(content.checked_add(PREFIX_BYTES)?).ok()
}

/// Appends a record that will stand at `at`, whose length must be [`record_length`].
pub(crate) fn push_record(
    buffer: &mut Vec<u8>,
    journal: u64,
    at: Location,
    kind: Kind,
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
    // Summed in one piece: short pieces cost several times as much a byte.
    let sum = checksum(journal, at, length, &buffer[start + PREFIX_BYTES..]);
    buffer[start + 4..start + PREFIX_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// What stands at a place of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    /// A record whose checksum fits, of this length with its prefix.
    Valid(u32),
    /// No record: the length is impossible. Nothing was summed.
    Implausible,
    /// A possible length, but the sum of so many bytes does not fit.
    Mismatch(u32),
}

/// Looks for a record at `offset` of a segment's bytes.
pub(crate) fn check(bytes: &[u8], journal: u64, segment: u32, offset: u32) -> Checked {
    let tail = bytes.get(offset as usize..).unwrap_or_default();
    check_placed(tail, journal, Location { segment, offset, length: 0 })
}

/// Looks for a record at the start of bytes that stand at `at`, whatever the length there says.
pub(crate) fn check_placed(bytes: &[u8], journal: u64, at: Location) -> Checked {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Checked::Implausible;
    };
    let length = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]);
    let sum = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
    let Some(content) = rest.get(..length as usize).filter(|content| !content.is_empty()) else {
        return Checked::Implausible;
    };
    if Kind::from_byte(content[0]).is_none() {
        return Checked::Implausible;
    }
    if checksum(journal, at, length, content) == sum {
        Checked::Valid(length + PREFIX_BYTES as u32)
    } else {
        Checked::Mismatch(length + PREFIX_BYTES as u32)
    }
}

/// Decodes a record whose checksum was verified; `None` if its content makes no sense all the same.
pub(crate) fn decode(record: &[u8]) -> Option<Record<'_>> {
    let (&kind, mut rest) = record.get(PREFIX_BYTES..)?.split_first()?;
    let kind = Kind::from_byte(kind)?;
    let decoded = match kind {
        Kind::Put | Kind::Moved => {
            let queue = take_u32(&mut rest)?;
            let sequence = take_u64(&mut rest)?;
            Record::Put { moved: kind == Kind::Moved, queue, sequence, payload: rest }
        }
        Kind::Settle => Record::Settle(Ranges::checked(rest)?),
        Kind::Touch => {
            let sequence = take_u64(&mut rest)?;
            Record::Touch { sequence, payload: rest }
        }
        Kind::Define => {
            let length = usize::try_from(take_varint(&mut rest)?).ok()?;
            let (key, value) = rest.split_at_checked(length)?;
            Record::Define { key, value }
        }
        Kind::Undefine => Record::Undefine { key: rest },
        Kind::Note => {
            let number = take_u64(&mut rest)?;
            let time_ms = take_u64(&mut rest)?;
            Record::Note { number, time_ms, payload: rest }
        }
        Kind::Mark => Record::Mark {
            synced_to: take_u32(&mut rest)?,
            records: take_u32(&mut rest)?,
            next_sequence: take_varint(&mut rest)?,
        },
        Kind::Seal | Kind::Stop => Record::Seal {
            records: take_u32(&mut rest)?,
            next_sequence: take_varint(&mut rest)?,
            followed: kind == Kind::Seal,
        },
        Kind::Begin => Record::Begin {
            next_sequence: take_varint(&mut rest)?,
            next_note: take_varint(&mut rest)?,
            inventory: Inventory::checked(rest)?,
        },
        Kind::Drop => Record::Drop { segment: take_u32(&mut rest)? },
    };
    Some(decoded)
}

/// The name of a segment's file.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:010}.segment")
}

/// The name of a segment that was set aside because of damage.
pub(crate) fn quarantined_name(number: u32) -> String {
    format!("{number:010}.quarantined")
}

/// The number in a file name, and whether it was set aside; `None`: no file of the journal.
pub(crate) fn parse_name(name: &str) -> Option<(u32, bool)> {
    let (digits, suffix) = name.split_once('.')?;
    // The last number is left out, so that there is always a next one.
    let number = (digits.len() == 10).then(|| digits.parse().ok())?.filter(|&number| number < u32::MAX)?;
    match suffix {
        "segment" => Some((number, false)),
        "quarantined" => Some((number, true)),
        _ => None,
    }
}
