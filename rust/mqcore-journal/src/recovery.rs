//! What opening finds: everything that was synced, and an honest word about everything else.
//!
//! Two kinds of segments are told apart. One is *closed*: a later segment's beginning, or its own seal, says where it
//! ends, so whatever is unreadable before that end is damage. The other is *open*: the last one that was written, in
//! which a crash may have torn what was not synced. There, the marks say how far it was synced; what is unreadable
//! before is damage, and from the first unreadable byte behind it everything is cut: never a later record without the
//! earlier ones.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::JournalError;
use crate::format::{self, HEADER_BYTES, Header, HeaderReading, Location, Record, VERSION};
use crate::options::Options;
use crate::scan::{self, Gap, Scan, Span};
use crate::state::{Segment, State};
use crate::storage::{Storage, read_most};

/// The shortest put, in bytes: at most so many numbers were used up by bytes that are lost.
const SHORTEST_PUT: u64 = 18;

/// What a journal held when it was opened. The live records are visited by `Journal::each_live`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Keys and values that hold, by key.
    pub definitions: Vec<(Vec<u8>, Vec<u8>)>,
    /// The smallest number that was never used.
    pub next_sequence: u64,
    /// What was found.
    pub report: Report,
}

/// What opening found, in numbers; `to_string` says it in words, one finding a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Segments that were read.
    pub segments: u64,
    /// Records of every kind that were read.
    pub records: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Live records.
    pub live: u64,
    /// What a crash left unfinished and was cut. No loss: nothing there was ever confirmed.
    pub torn: Vec<TornTail>,
    /// Damage. Alarming: what was confirmed may be lost.
    pub damaged: Vec<Damage>,
    /// Segments whose files are gone. Alarming.
    pub missing: Vec<Missing>,
    /// Files that are none of the journal's business, although their names say so. They were not used.
    pub strays: Vec<String>,
    /// Files that were set aside because of damage, by this opening or earlier.
    pub quarantined: u64,
}

/// The unfinished end of the last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub segment: u32,
    /// Where it was cut.
    pub offset: u32,
    /// How much was cut, in bytes.
    pub bytes: u32,
    /// Readable records among these.
    pub records: u32,
}

/// Damage in one segment. Its readable records are served; housekeeping copies them elsewhere, and then sets the
/// file aside under the suffix `.quarantined`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u32,
    /// What happened to it.
    pub cause: Cause,
    /// The parts that cannot be read.
    pub parts: Vec<DamagedPart>,
    /// How many records of every kind are lost.
    pub lost: Loss,
}

/// What happened to a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Bytes do not match their checksums.
    Checksum,
    /// The header is unreadable in one copy (nothing is lost by that) or in both.
    Header,
    /// The file is shorter than it was made, in bytes.
    Shortened {
        /// Its length.
        length: u64,
        /// What it was made with.
        capacity: u64,
    },
    /// The file holds another segment, or one of another journal.
    Misplaced,
    /// The storage refuses to read it. It is left alone; the next opening tries again.
    Unreadable(String),
}

/// An unreadable part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedPart {
    /// Where it begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
    /// Every put that is lost here has a number from the first up to, but not including, the second; equal: no put is
    /// lost. `None`: unknown.
    pub sequences: Option<(u64, u64)>,
}

/// How much is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// So many records.
    Exactly(u64),
    /// So many records or more.
    AtLeast(u64),
}

/// A segment whose file is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The segment.
    pub segment: u32,
    /// How many records of every kind it held, live or not; `None`: unknown.
    pub records: Option<u64>,
}

impl Report {
    /// Whether confirmed records may be lost: raise an alarm.
    pub fn is_alarming(&self) -> bool {
        !self.damaged.is_empty() || !self.missing.is_empty() || !self.strays.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segments, records, bytes, live, .. } = self;
        write!(formatter, "{segments} segments, {records} records, {bytes} bytes read; {live} records live")?;
        for torn in &self.torn {
            write!(formatter, "\n{torn}")?;
        }
        for damage in &self.damaged {
            write!(formatter, "\n{damage}")?;
        }
        for missing in &self.missing {
            write!(formatter, "\n{missing}")?;
        }
        for stray in &self.strays {
            write!(formatter, "\n{stray} does not belong to this journal any more and was not used")?;
        }
        match self.quarantined {
            0 => Ok(()),
            count => write!(formatter, "\n{count} damaged segments stand aside (*.quarantined)"),
        }
    }
}

impl fmt::Display for TornTail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes, records } = self;
        write!(
            formatter,
            "segment {segment}: a crash left its end unfinished; {bytes} bytes from {offset} on do not count, with \
             {records} whole records among them, none of which was ever confirmed"
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "segment {}: ", self.segment)?;
        match &self.cause {
            Cause::Checksum => write!(formatter, "bytes do not match their checksums")?,
            Cause::Header => write!(formatter, "its header is damaged")?,
            Cause::Shortened { length, capacity } => {
                write!(formatter, "its file has {length} bytes and was made with {capacity}")?;
            }
            Cause::Misplaced => write!(formatter, "its file holds another segment")?,
            Cause::Unreadable(why) => write!(formatter, "it cannot be read ({why})")?,
        }
        match self.lost {
            Loss::Exactly(0) => write!(formatter, "; no record is lost")?,
            Loss::Exactly(count) => write!(formatter, "; {count} records are lost")?,
            Loss::AtLeast(0) => write!(formatter, "; what is lost is unknown")?,
            Loss::AtLeast(count) => write!(formatter, "; {count} records or more are lost")?,
        }
        for part in &self.parts {
            write!(formatter, "; {} bytes at {}", part.bytes, part.offset)?;
            match part.sequences {
                Some((from, to)) if from == to => write!(formatter, " (no message)")?,
                Some((from, to)) => write!(formatter, " (messages among numbers {from} to {})", to - 1)?,
                None => write!(formatter, " (which messages is unknown)")?,
            }
        }
        if self.lost != Loss::Exactly(0) {
            write!(formatter, "; a message whose settlement is lost comes again")?;
        }
        Ok(())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.records {
            Some(records) => {
                write!(formatter, "segment {}: its file is gone, with {records} records", self.segment)
            }
            None => write!(formatter, "segment {}: its file is gone", self.segment),
        }
    }
}

/// All that opening goes on with.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) identity: u64,
    pub(crate) state: State,
    pub(crate) definitions: BTreeMap<Box<[u8]>, Vec<u8>>,
    pub(crate) report: Report,
    pub(crate) next_segment: u32,
    pub(crate) tails: Vec<Tail>,
    pub(crate) closings: Vec<Closing>,
    pub(crate) leftovers: Vec<Leftover>,
    pub(crate) quarantined: u64,
}

/// What stands behind the last mark of an open segment.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: u32,
    /// Where `bytes` begin.
    pub(crate) start: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Span>,
}

/// How an open segment ends from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Closing {
    pub(crate) segment: u32,
    /// Behind what the marks vouch for.
    pub(crate) end: u32,
    pub(crate) records: u32,
    /// Behind the last record that counts.
    pub(crate) tail_end: u32,
    pub(crate) tail_records: u32,
    /// Whether it says itself that it ends.
    pub(crate) closed: bool,
}

/// A file that was made for a segment and never became one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leftover {
    pub(crate) segment: u32,
    pub(crate) empty: bool,
}

/// A segment file before its records are read.
#[derive(Debug)]
struct Candidate {
    length: u64,
    reading: Result<HeaderReading, String>,
}

/// What the newest beginning says of the segments before it.
#[derive(Debug, Default)]
struct Roster {
    /// The segment that says it; 0: none does.
    speaker: u32,
    listed: BTreeMap<u32, (u32, u32)>,
    dropped: Vec<u32>,
}

/// Reads all segments. Changes nothing.
pub(crate) fn recover<S: Storage>(
    storage: &S,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
    seen: &mut dyn FnMut(u64, &[u8]),
) -> Result<Found, JournalError> {
    let names = storage.list().map_err(|error| JournalError::io("listing", "the directory", &error))?;
    let parsed: Vec<(u32, bool)> = names.iter().filter_map(|name| format::parse_name(name)).collect();
    let mut candidates = BTreeMap::new();
    for &(number, _) in parsed.iter().filter(|(_, aside)| !aside) {
        candidates.insert(number, examine(storage, number, options)?);
    }
    let quarantined = parsed.iter().filter(|(_, aside)| *aside).count() as u64;
    let identity = prevailing_identity(&candidates).unwrap_or(options.identity);
    let mut reader = Reader {
        storage,
        identity,
        total: candidates.values().map(|candidate| candidate.length).sum(),
        done: 0,
        progress,
        seen,
        state: State::default(),
        definitions: BTreeMap::new(),
        report: Report { quarantined, ..Report::default() },
        tails: Vec::new(),
        closings: Vec::new(),
        leftovers: Vec::new(),
    };
    (reader.progress)(0, reader.total);
    let roster = reader.newest_roster(&candidates);
    reader.find_missing(&roster, &candidates, &parsed);
    let mut previous_followed = false;
    for (&number, candidate) in &candidates {
        previous_followed = reader.segment(number, candidate, &roster, previous_followed);
    }
    if previous_followed {
        let segment = candidates.keys().next_back().map_or(1, |last| last + 1);
        reader.report.missing.push(Missing { segment, records: None });
    }
    reader.finish();
    let next_segment = parsed.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
    let Reader { state, definitions, report, tails, closings, leftovers, .. } = reader;
    Ok(Found { identity, state, definitions, report, next_segment, tails, closings, leftovers, quarantined })
}

fn examine<S: Storage>(storage: &S, number: u32, options: &Options) -> Result<Candidate, JournalError> {
    let name = format::segment_name(number);
    let read = || {
        let file = storage.open(&name)?;
        let length = storage.length(&file)?;
        let mut bytes = [0; HEADER_BYTES as usize];
        let count = read_most(storage, &file, 0, &mut bytes)?;
        Ok::<_, std::io::Error>((length, Header::read(&bytes[..count])))
    };
    match read() {
        Err(error) => Ok(Candidate { length: 0, reading: Err(error.to_string()) }),
        Ok((_, HeaderReading::Newer(found))) => {
            Err(JournalError::Version { file: name, found, known: VERSION })
        }
        Ok((_, HeaderReading::Good { header, .. })) if header.shard != options.shard => {
            Err(JournalError::Shard { file: name, found: header.shard, expected: options.shard })
        }
        Ok((length, reading)) => Ok(Candidate { length, reading: Ok(reading) }),
    }
}

/// The identity that most headers have: one file from elsewhere must not turn the others into strangers.
fn prevailing_identity(candidates: &BTreeMap<u32, Candidate>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for candidate in candidates.values() {
        if let Ok(HeaderReading::Good { header, .. }) = candidate.reading {
            *counts.entry(header.journal).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(identity, _)| identity)
}

struct Reader<'a, S> {
    storage: &'a S,
    identity: u64,
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    seen: &'a mut dyn FnMut(u64, &[u8]),
    state: State,
    definitions: BTreeMap<Box<[u8]>, Vec<u8>>,
    report: Report,
    tails: Vec<Tail>,
    closings: Vec<Closing>,
    leftovers: Vec<Leftover>,
}

impl<S: Storage> Reader<'_, S> {
    fn load(&self, number: u32) -> Result<Vec<u8>, String> {
        let read = || {
            let file = self.storage.open(&format::segment_name(number))?;
            let length = self.storage.length(&file)?;
            let length =
                u32::try_from(length).map_err(|_| std::io::Error::other("longer than any segment"))?;
            let mut bytes = vec![0; length as usize];
            let count = read_most(self.storage, &file, 0, &mut bytes)?;
            bytes.truncate(count);
            Ok::<_, std::io::Error>(bytes)
        };
        read().map_err(|error| error.to_string())
    }

    /// The newest word on which segments there are: the last begun segment's.
    fn newest_roster(&self, candidates: &BTreeMap<u32, Candidate>) -> Roster {
        let mut roster = Roster::default();
        for &number in candidates.keys().rev() {
            let Ok(bytes) = self.load(number) else { continue };
            let records = scan::scan(&bytes, self.identity, number, None).records;
            for span in records {
                match format::decode(&bytes[span.offset as usize..span.end() as usize]) {
                    Some(Record::Begin { inventory, .. }) => {
                        roster.speaker = number;
                        roster.listed = inventory
                            .iter()
                            .map(|listed| (listed.segment, (listed.end, listed.records)))
                            .collect();
                    }
                    Some(Record::Drop { segment }) => roster.dropped.push(segment),
                    _ => {}
                }
            }
            if roster.speaker != 0 {
                break;
            }
        }
        roster
    }

    fn find_missing(
        &mut self,
        roster: &Roster,
        candidates: &BTreeMap<u32, Candidate>,
        parsed: &[(u32, bool)],
    ) {
        for (&segment, &(_, records)) in &roster.listed {
            let there = candidates.contains_key(&segment) || parsed.contains(&(segment, true));
            if !there && !roster.dropped.contains(&segment) {
                self.report.missing.push(Missing { segment, records: Some(u64::from(records)) });
            }
        }
    }

    /// Reads one segment; answers whether it says that another follows.
    fn segment(
        &mut self,
        number: u32,
        candidate: &Candidate,
        roster: &Roster,
        previous_followed: bool,
    ) -> bool {
        let listed = roster.listed.get(&number).copied();
        let bytes = match candidate.reading.as_ref().map_err(String::clone).and_then(|_| self.load(number)) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.unreadable(number, listed, why);
                return false;
            }
        };
        self.done += bytes.len() as u64;
        (self.progress)(self.done.min(self.total), self.total);
        if number < roster.speaker && listed.is_none() {
            self.stray(number, &bytes);
            return false;
        }
        let scan = scan::scan(&bytes, self.identity, number, listed.map(|(end, _)| end));
        let mut subject = Subject { number, bytes, scan, listed, cause: None };
        match candidate.reading {
            Ok(HeaderReading::Good { header, damaged_copies }) => {
                if header.segment != number || header.journal != self.identity {
                    subject.cause = Some(Cause::Misplaced);
                } else if listed.is_none() && !previous_followed && !subject.is_in_use() {
                    // Without another segment to ask, a short file may also be what is left of a used one.
                    let empty = number > 1 || shortened(&subject, header.capacity).is_none();
                    self.report.quarantined += u64::from(!empty);
                    self.leftovers.push(Leftover { segment: number, empty });
                    return false;
                } else if damaged_copies > 0 {
                    subject.cause = Some(Cause::Header);
                } else {
                    subject.cause = shortened(&subject, header.capacity);
                }
            }
            _ if listed.is_none() && subject.scan.records.is_empty() => {
                if previous_followed {
                    let end = subject.bytes.len() as u32;
                    self.report.damaged.push(Damage {
                        segment: number,
                        cause: Cause::Header,
                        parts: vec![DamagedPart { offset: 0, bytes: end, sequences: None }],
                        lost: Loss::AtLeast(0),
                    });
                }
                self.leave(number, &subject.bytes);
                return false;
            }
            _ => subject.cause = Some(Cause::Header),
        }
        let open = listed.is_none();
        self.take(&subject, open);
        subject.scan.followed && open
    }

    fn unreadable(&mut self, number: u32, listed: Option<(u32, u32)>, why: String) {
        let segment = Segment {
            damaged: true,
            unreadable: true,
            end: listed.map_or(HEADER_BYTES, |(end, _)| end),
            records: listed.map_or(0, |(_, records)| records),
            ..Segment::default()
        };
        self.state.segments.insert(number, segment);
        let lost = Loss::AtLeast(listed.map_or(0, |(_, records)| u64::from(records)));
        self.report.damaged.push(Damage {
            segment: number,
            cause: Cause::Unreadable(why),
            parts: Vec::new(),
            lost,
        });
    }

    /// A file that the newest beginning does not know: a spare that a crash brought back, or one put here by hand.
    fn stray(&mut self, number: u32, bytes: &[u8]) {
        if scan::scan(bytes, self.identity, number, None).records.is_empty() {
            self.leave(number, bytes);
        } else {
            self.report.strays.push(format::segment_name(number));
        }
    }

    /// Has a file put away: removed only if there is nothing in it but what its making wrote.
    fn leave(&mut self, number: u32, bytes: &[u8]) {
        let readable = matches!(Header::read(bytes), HeaderReading::Good { .. });
        let content = if readable { &bytes[HEADER_BYTES as usize..] } else { bytes };
        let empty = content.iter().all(|&byte| byte == 0);
        self.report.quarantined += u64::from(!empty);
        self.leftovers.push(Leftover { segment: number, empty });
    }

    /// Takes the records of a segment, and says what is wrong with it.
    fn take(&mut self, subject: &Subject, open: bool) {
        let Subject { number, bytes, scan, listed, .. } = subject;
        let synced = if open { scan.synced_to } else { u32::MAX };
        // Behind what was synced, the first unreadable byte ends everything: no record without its predecessors.
        let cut = scan.gaps.iter().find(|gap| gap.end > synced).copied();
        let limit = cut.map_or(u32::MAX, |gap| gap.start);
        let damaged: Vec<Gap> = scan.gaps.iter().filter(|gap| gap.start < synced).copied().collect();
        self.state.segments.insert(
            *number,
            Segment { file_bytes: bytes.len() as u64, end: HEADER_BYTES, ..Segment::default() },
        );
        let mut count = Count::new(&damaged, self.state.next_sequence);
        let mut at_synced = None;
        let mut kept = Vec::new();
        for &span in scan.records.iter().take_while(|span| span.offset < limit) {
            if open && span.offset >= synced {
                at_synced.get_or_insert(count.records);
                kept.push(span);
            }
            let record = &bytes[span.offset as usize..span.end() as usize];
            let Some(decoded) = format::decode(record) else { continue };
            count.see(span.offset, &decoded);
            self.apply(&decoded, Location { segment: *number, offset: span.offset, length: span.length });
        }
        let known = listed.map(|(_, records)| records);
        let (parts, lost) = count.finish(known);
        let records = known.unwrap_or(0).max(count.records);
        let tail_end = kept.last().map_or(scan.end().min(limit), |last: &Span| last.end());
        let segment = self.state.segments.entry(*number).or_default();
        segment.records = records;
        segment.end = listed.map_or(tail_end, |(end, _)| end);
        self.report.segments += 1;
        self.report.bytes += bytes.len() as u64;
        self.report.records += scan.records.iter().take_while(|span| span.offset < limit).count() as u64;
        if let Some(gap) = cut.filter(|gap| gap.start >= synced) {
            self.torn(*number, gap, scan);
        }
        self.judge(subject, parts, lost);
        if open {
            self.close(subject, synced, at_synced.unwrap_or(records), records, tail_end, kept);
        }
    }

    fn apply(&mut self, record: &Record<'_>, at: Location) {
        match *record {
            Record::Define { key, value } => {
                self.definitions.insert(key.into(), value.to_vec());
            }
            Record::Undefine { key } => {
                self.definitions.remove(key);
            }
            Record::Put { sequence, payload, .. } => (self.seen)(sequence, payload),
            _ => {}
        }
        self.state.apply(record, at);
    }

    fn torn(&mut self, segment: u32, gap: Gap, scan: &Scan) {
        let end = scan.gaps.last().map_or(0, |last| last.end).max(scan.end());
        let records = scan.records.iter().filter(|span| span.offset >= gap.start).count() as u32;
        let bytes = end - gap.start;
        self.state.next_sequence = self.state.next_sequence.saturating_add(u64::from(bytes) / SHORTEST_PUT);
        self.report.torn.push(TornTail { segment, offset: gap.start, bytes, records });
    }

    fn judge(&mut self, subject: &Subject, parts: Vec<DamagedPart>, lost: Loss) {
        let unknown_end = matches!(subject.cause, Some(Cause::Shortened { .. } | Cause::Misplaced));
        let Some(cause) = subject
            .cause
            .clone()
            .or_else(|| (!parts.is_empty() || lost != Loss::Exactly(0)).then_some(Cause::Checksum))
        else {
            return;
        };
        let lost = match lost {
            Loss::Exactly(count) if unknown_end && subject.listed.is_none() => Loss::AtLeast(count),
            other => other,
        };
        let bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
        self.state.next_sequence = self.state.next_sequence.saturating_add(bytes / SHORTEST_PUT);
        if let Some(segment) = self.state.segments.get_mut(&subject.number) {
            segment.damaged = true;
        }
        self.report.damaged.push(Damage { segment: subject.number, cause, parts, lost });
    }

    fn close(
        &mut self,
        subject: &Subject,
        synced: u32,
        synced_records: u32,
        records: u32,
        tail_end: u32,
        kept: Vec<Span>,
    ) {
        let end = synced.min(subject.bytes.len() as u32).max(HEADER_BYTES);
        if let Some(first) = kept.first() {
            let bytes = subject.bytes[first.offset as usize..tail_end as usize].to_vec();
            self.tails.push(Tail { segment: subject.number, start: first.offset, bytes, records: kept });
        }
        self.closings.push(Closing {
            segment: subject.number,
            end,
            records: synced_records,
            tail_end: tail_end.max(HEADER_BYTES),
            tail_records: records,
            closed: subject.scan.closed,
        });
    }

    fn finish(&mut self) {
        self.state.sweep_touches();
        (self.progress)(self.total, self.total);
    }
}

/// One segment under examination.
struct Subject {
    number: u32,
    bytes: Vec<u8>,
    scan: Scan,
    /// Its end and its records, if a later segment knows them.
    listed: Option<(u32, u32)>,
    cause: Option<Cause>,
}

impl Subject {
    /// Whether anything but copies of another segment's tail stands here. Opening writes these first, and before they are
    /// durable nothing else: without the rest they are an opening that was not finished, and that other segment counts.
    fn is_in_use(&self) -> bool {
        self.scan.records.iter().any(|span| {
            matches!(
                format::decode(&self.bytes[span.offset as usize..span.end() as usize]),
                Some(
                    Record::Put { moved: false, .. }
                        | Record::Mark { .. }
                        | Record::Seal { .. }
                        | Record::Begin { .. }
                        | Record::Drop { .. }
                )
            )
        })
    }
}

/// Whether an open segment's file lost its end. One that ends itself, or that another knows the end of, may be short.
fn shortened(subject: &Subject, capacity: u32) -> Option<Cause> {
    let length = subject.bytes.len() as u64;
    let open = subject.listed.is_none() && !subject.scan.closed;
    (open && length < u64::from(capacity))
        .then_some(Cause::Shortened { length, capacity: u64::from(capacity) })
}

/// Counts what is lost: marks and seals say how many records stand before them.
struct Count<'a> {
    gaps: &'a [Gap],
    parts: Vec<DamagedPart>,
    records: u32,
    lost: u64,
    /// No record has counted what the last gap took.
    uncounted: bool,
    floor: u64,
}

impl<'a> Count<'a> {
    fn new(gaps: &'a [Gap], floor: u64) -> Self {
        Self { gaps, parts: Vec::new(), records: 0, lost: 0, uncounted: false, floor }
    }

    /// Takes note of the next readable record.
    fn see(&mut self, offset: u32, record: &Record<'_>) {
        while let Some((gap, rest)) = self.gaps.split_first().filter(|(gap, _)| gap.start < offset) {
            self.gaps = rest;
            self.part(*gap);
        }
        let floor = match *record {
            Record::Put { moved: false, sequence, .. } => {
                self.bound(sequence);
                Some(sequence.saturating_add(1))
            }
            Record::Mark { records, next_sequence, .. } | Record::Seal { records, next_sequence, .. } => {
                self.bound(next_sequence);
                self.expect(records);
                Some(next_sequence)
            }
            Record::Begin { next_sequence, .. } => Some(next_sequence),
            _ => None,
        };
        self.floor = self.floor.max(floor.unwrap_or(0));
        self.records += 1;
    }

    fn part(&mut self, gap: Gap) {
        self.uncounted = true;
        self.parts.push(DamagedPart { offset: gap.start, bytes: gap.end - gap.start, sequences: None });
    }

    /// The parts whose upper bound is unknown so far end before this number.
    fn bound(&mut self, next: u64) {
        for part in self.parts.iter_mut().rev().take_while(|part| part.sequences.is_none()) {
            part.sequences = Some((self.floor.min(next), next));
        }
    }

    fn expect(&mut self, records: u32) {
        self.uncounted = false;
        self.lost += u64::from(records.saturating_sub(self.records));
        self.records = self.records.max(records);
    }

    fn finish(&mut self, known: Option<u32>) -> (Vec<DamagedPart>, Loss) {
        for gap in std::mem::take(&mut self.gaps) {
            self.part(*gap);
        }
        if let Some(records) = known {
            self.expect(records);
        }
        let lost = if self.uncounted { Loss::AtLeast(self.lost + 1) } else { Loss::Exactly(self.lost) };
        (std::mem::take(&mut self.parts), lost)
    }
}
