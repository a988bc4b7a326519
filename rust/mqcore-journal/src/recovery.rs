//! Recovery: finds everything that was synced, and reports everything else.
//!
//! Recovery distinguishes two kinds of segments. The end of a *closed* segment is known, from its seal or from the beginning
//! of a later segment, so anything unreadable before that end is damage. The end of an *open* segment, the last one written,
//! may be torn by a crash. Its marks record how far it was synced. Anything unreadable before that point is damage. After
//! that point, everything from the first unreadable byte on is cut, so that no record survives without its predecessors.

mod candidates;
mod loss;
mod numbers;
mod report;
mod scanned;

use std::collections::BTreeMap;

use candidates::{SegmentFile, examine, identity_of};
use loss::LossCounter;
use numbers::{unused_note, unused_sequence};
pub use report::{
    CatalogDamage, Damage, DamageCause, DamagedPart, MissingSegment, RecordLoss, Recovered, RecoveryReport,
    TornTail,
};
use scanned::{ScannedSegment, content, shortened};

use crate::catalog::{self, CATALOG, Catalog, CatalogReading};
use crate::error::{JournalError, Shortage};
use crate::format::{self, END_UNKNOWN, HEADER_BYTES, HeaderReading, Location, Record, Successor};
use crate::options::Options;
use crate::scan::{self, Gap, SegmentScan, Span};
use crate::state::{JournalState, Segment};
use crate::storage::{Storage, read_most};

/// Size of the shortest put in bytes, which limits how many numbers lost bytes can have used. No note is shorter.
const PUT_BYTES_MIN: u64 = 18;

/// The result of recovery, from which opening continues.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) identity: u64,
    pub(crate) state: JournalState,
    pub(crate) definitions: BTreeMap<Box<[u8]>, Vec<u8>>,
    pub(crate) report: RecoveryReport,
    pub(crate) next_segment: u32,
    pub(crate) tails: Vec<UnconfirmedTail>,
    pub(crate) closings: Vec<SegmentEnd>,
    pub(crate) leftovers: Vec<UnusedFile>,
    pub(crate) quarantined: u64,
    /// Whether the directory has a catalog of this journal.
    pub(crate) has_catalog: bool,
}

/// The records after the last mark of an open segment.
#[derive(Debug)]
pub(crate) struct UnconfirmedTail {
    pub(crate) segment: u32,
    /// Offset of `bytes` in the segment.
    pub(crate) start: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Span>,
}

/// The end of an open segment, as opening will record it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentEnd {
    pub(crate) segment: u32,
    /// End of the records that the marks confirm.
    pub(crate) end: u32,
    pub(crate) records: u32,
    /// End of the last valid record.
    pub(crate) tail_end: u32,
    pub(crate) tail_records: u32,
    /// Whether the segment itself records its end.
    pub(crate) closed: bool,
}

/// A segment file that was created and never used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnusedFile {
    pub(crate) segment: u32,
    pub(crate) empty: bool,
}

/// The latest list of all segments.
#[derive(Debug, Default)]
struct SegmentRoster {
    /// Segment that contains the list; 0: none does.
    source_segment: u32,
    listed: BTreeMap<u32, (u32, u32)>,
    dropped: Vec<u32>,
    /// Whether a later segment, which may record more removals, cannot be read.
    is_stale: bool,
}

/// Reads all segments without changing anything.
pub(crate) fn recover<S: Storage>(
    storage: &S,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
    seen: &mut dyn FnMut(u64, &[u8]),
) -> Result<Recovery, JournalError> {
    let names = storage.list().map_err(|error| JournalError::io("listing", "the directory", &error))?;
    let parsed: Vec<(u32, bool)> = names.iter().filter_map(|name| format::parse_name(name)).collect();
    let mut candidates = BTreeMap::new();
    for &(number, _) in parsed.iter().filter(|(_, aside)| !aside) {
        candidates.insert(number, examine(storage, number, options)?);
    }
    let reading = catalog::read(storage).map_err(|error| JournalError::io("reading", CATALOG, &error))?;
    let quarantined = parsed.iter().filter(|(_, aside)| *aside).count() as u64;
    let identity = identity_of(&candidates, &reading, options)?;
    let (found, damaged_copies) = match reading {
        CatalogReading::Newer(found) => {
            return Err(JournalError::Version { file: CATALOG.to_owned(), found, known: 1 });
        }
        CatalogReading::Good { catalog, damaged_copies } => (Some(catalog), damaged_copies),
        CatalogReading::Bad | CatalogReading::Unreadable(_) => (None, 2),
        CatalogReading::Missing => (None, 0),
    };
    let is_foreign = |catalog: &Catalog| catalog.journal != identity || catalog.shard != options.shard;
    let foreign = found.as_ref().is_some_and(is_foreign);
    let catalog = found.filter(|catalog| !is_foreign(catalog));
    // A journal of version 1 has no catalog. Since version 2, it is written before the first segment.
    let expected = candidates.values().any(|candidate| {
        matches!(candidate.reading, Ok(HeaderReading::Good { header, .. }) if header.version >= 2)
    });
    let catalog_damage = match &catalog {
        Some(_) => (damaged_copies > 0).then_some(CatalogDamage::Copy),
        // A crash while a journal is created may leave an unreadable one, but no segment.
        None => (expected || foreign || (damaged_copies > 0 && !candidates.is_empty()))
            .then_some(CatalogDamage::Lost),
    };
    let has_catalog = catalog.is_some();
    let mut reader = RecoveryPass {
        storage,
        identity,
        total: candidates.values().map(|candidate| candidate.length).sum(),
        done: 0,
        progress,
        seen,
        state: JournalState::default(),
        definitions: BTreeMap::new(),
        report: RecoveryReport { quarantined, catalog: catalog_damage, ..RecoveryReport::default() },
        catalog: catalog.unwrap_or_default(),
        unseen_bytes: 0,
        has_unbounded: false,
        tails: Vec::new(),
        closings: Vec::new(),
        leftovers: Vec::new(),
    };
    (reader.progress)(0, reader.total);
    let roster = reader.read_roster(&candidates)?;
    reader.find_missing(&roster, &candidates, &parsed);
    let mut successor = Successor::Missing;
    for (&number, candidate) in &candidates {
        successor = reader.segment(number, candidate, &candidates, &roster, successor)?;
    }
    let behind_last = candidates.keys().next_back().map_or(1, |last| last + 1);
    reader.expect_no_more(successor, behind_last);
    reader.finish(options.now_ms);
    // An interrupted creation has left a catalog without segments.
    let is_new = candidates.is_empty() && reader.catalog.segments.is_empty();
    if is_new && options.replaces_another {
        // An archive may have the notes of the journal before. Their numbers tell its rows from those of this one.
        reader.state.next_note = unused_note(reader.catalog.next_note, options.now_ms);
    }
    // The number of a missing file is not used again, since someone may put the file back.
    let missing = reader.report.missing.iter().map(|missing| missing.segment);
    let known = parsed.iter().map(|&(number, _)| number).chain(missing);
    let next_segment = known.max().map_or(1, |last| last + 1);
    let RecoveryPass { state, definitions, report, tails, closings, leftovers, .. } = reader;
    Ok(Recovery {
        identity,
        state,
        definitions,
        report,
        next_segment,
        tails,
        closings,
        leftovers,
        quarantined,
        has_catalog,
    })
}

struct RecoveryPass<'a, S> {
    storage: &'a S,
    identity: u64,
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    seen: &'a mut dyn FnMut(u64, &[u8]),
    state: JournalState,
    definitions: BTreeMap<Box<[u8]>, Vec<u8>>,
    report: RecoveryReport,
    /// Empty if there is none.
    catalog: Catalog,
    /// Bytes of unreadable segments whose end no other segment lists.
    unseen_bytes: u64,
    /// Whether the catalog does not list such a segment. Then nothing limits the numbers that its records may have.
    has_unbounded: bool,
    tails: Vec<UnconfirmedTail>,
    closings: Vec<SegmentEnd>,
    leftovers: Vec<UnusedFile>,
}

impl<S: Storage> RecoveryPass<'_, S> {
    /// Reads a whole segment. `Err` inside: the disk refuses to.
    ///
    /// # Errors
    /// Only shortages, which say nothing about the file.
    fn load(&self, number: u32) -> Result<Result<Vec<u8>, String>, JournalError> {
        let name = format::segment_name(number);
        let read = || {
            let file = self.storage.open(&name)?;
            let length = self.storage.length(&file)?;
            let length =
                u32::try_from(length).map_err(|_| std::io::Error::other("longer than any segment"))?;
            let mut bytes = vec![0; length as usize];
            let count = read_most(self.storage, &file, 0, &mut bytes)?;
            bytes.truncate(count);
            Ok::<_, std::io::Error>(bytes)
        };
        match read() {
            Err(error) if Shortage::of(&error).is_some() => Err(JournalError::io("reading", &name, &error)),
            outcome => Ok(outcome.map_err(|error| error.to_string())),
        }
    }

    /// Reads the latest list of segments, which the last begun segment contains.
    fn read_roster(&self, candidates: &BTreeMap<u32, SegmentFile>) -> Result<SegmentRoster, JournalError> {
        let mut roster = SegmentRoster::default();
        for &number in candidates.keys().rev() {
            let Ok(bytes) = self.load(number)? else {
                roster.is_stale = true;
                continue;
            };
            let records = scan::scan(&bytes, self.identity, number, None).records;
            for span in records {
                match format::decode(&bytes[span.offset as usize..span.end() as usize]) {
                    Some(Record::Begin { inventory, .. }) => {
                        roster.source_segment = number;
                        roster.listed = inventory
                            .iter()
                            .map(|listed| (listed.segment, (listed.end, listed.records)))
                            .collect();
                    }
                    Some(Record::Drop { segment }) => roster.dropped.push(segment),
                    _ => {}
                }
            }
            if roster.source_segment != 0 {
                break;
            }
        }
        Ok(roster)
    }

    fn find_missing(
        &mut self,
        roster: &SegmentRoster,
        candidates: &BTreeMap<u32, SegmentFile>,
        parsed: &[(u32, bool)],
    ) {
        let gone = |segment: u32| {
            let there = candidates.contains_key(&segment) || parsed.contains(&(segment, true));
            !there && !roster.dropped.contains(&segment)
        };
        // A catalog with a later segment lists everything that was not removed before it was written.
        let later =
            self.catalog.segments.keys().next_back().is_some_and(|&last| last > roster.source_segment);
        let removed =
            |segment: u32| roster.is_stale && later && !self.catalog.segments.contains_key(&segment);
        for (&segment, &(end, records)) in &roster.listed {
            if gone(segment) && !removed(segment) {
                let records = (end != END_UNKNOWN).then_some(u64::from(records));
                self.report.missing.push(MissingSegment { segment, records });
            }
        }
        // Older segments that the list does not contain were removed on purpose after the catalog was written.
        for &segment in self.catalog.segments.keys() {
            if gone(segment) && segment >= roster.source_segment && !roster.listed.contains_key(&segment) {
                self.report.missing.push(MissingSegment { segment, records: None });
            }
        }
    }

    /// Reads one segment. `successor` is what the seals before it say, and the result is what they and its own say of later
    /// ones.
    fn segment(
        &mut self,
        number: u32,
        candidate: &SegmentFile,
        candidates: &BTreeMap<u32, SegmentFile>,
        roster: &SegmentRoster,
        successor: Successor,
    ) -> Result<Successor, JournalError> {
        let is_successor = successor.is(number);
        let is_listed = roster.listed.contains_key(&number);
        // A list without the end leaves the segment open: the disk could not read it when it was the last one.
        let listed = roster.listed.get(&number).copied().filter(|&(end, _)| end != END_UNKNOWN);
        let bytes = match &candidate.reading {
            Ok(_) => self.load(number)?,
            Err(why) => Err(why.clone()),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(why) => {
                self.unreadable(number, candidate.length, listed, why);
                return Ok(successor.behind(number));
            }
        };
        self.done += bytes.len() as u64;
        (self.progress)(self.done.min(self.total), self.total);
        if number < roster.source_segment && !is_listed {
            self.unlisted(number, candidate, &bytes);
            return Ok(successor.behind(number));
        }
        let mut scan = scan::scan(&bytes, self.identity, number, listed.map(|(end, _)| end));
        let cataloged = self.catalog.segments.get(&number).copied().filter(|_| listed.is_none());
        if let Some(entry) = cataloged {
            scan.expect_durable(entry.synced_to);
        }
        let mut subject = ScannedSegment { number, bytes, scan, listed, cataloged, cause: None };
        match candidate.reading {
            Ok(HeaderReading::Good { header, damaged_copies }) => {
                if header.segment != number || header.journal != self.identity {
                    subject.cause = Some(DamageCause::Misplaced);
                } else if !is_listed
                    && cataloged.is_none()
                    && is_successor == Some(false)
                    && !subject.is_in_use()
                {
                    // In the first segment, a short file may also be the remainder of a used one; no other segment can tell.
                    let empty = number > 1 || shortened(&subject, header.capacity).is_none();
                    self.report.quarantined += u64::from(!empty);
                    self.leftovers.push(UnusedFile { segment: number, empty });
                    return Ok(successor.behind(number));
                } else {
                    subject.cause = shortened(&subject, header.capacity)
                        .or((damaged_copies > 0).then_some(DamageCause::Header));
                }
            }
            _ if !is_listed && cataloged.is_none() && subject.scan.records.is_empty() => {
                // A crash leaves such a file, but with nothing behind the header. So does a failed creation whose removal
                // failed too. If the seal does not name its successor, a later file with records is the one; a file that was
                // created in advance does not tell that.
                let is_blank = content(&subject.bytes).iter().all(|&byte| byte == 0);
                let mut later = candidates.range(number + 1..).map(|(later, _)| *later);
                if is_blank && is_successor.is_none() && self.have_records(&mut later)? {
                    self.leave(number, &subject.bytes);
                    return Ok(successor);
                }
                if is_successor != Some(false) || !is_blank {
                    let end = subject.bytes.len() as u32;
                    self.report.damaged.push(Damage {
                        segment: number,
                        cause: DamageCause::Header,
                        parts: vec![DamagedPart { offset: 0, bytes: end, sequences: None }],
                        lost: RecordLoss::AtLeast(0),
                    });
                }
                self.leave(number, &subject.bytes);
                return Ok(successor.behind(number));
            }
            _ => {
                let short = cataloged.and_then(|entry| shortened(&subject, entry.capacity));
                subject.cause = short.or(Some(DamageCause::Header));
            }
        }
        let open = listed.is_none();
        self.take(&subject, open);
        match subject.scan.successor {
            own @ (Successor::Unnamed | Successor::Segment(_)) if open => Ok(own),
            _ => Ok(successor.behind(number)),
        }
    }

    /// Reports the successor that the last seal states, of which there is no file.
    fn expect_no_more(&mut self, successor: Successor, behind_last: u32) {
        let segment = match successor {
            Successor::Missing => return,
            Successor::Unnamed => behind_last,
            Successor::Segment(segment) => segment,
        };
        if !self.report.missing.iter().any(|missing| missing.segment == segment) {
            self.report.missing.push(MissingSegment { segment, records: None });
        }
    }

    /// Whether one of these segments has a readable record.
    fn have_records(&self, numbers: &mut impl Iterator<Item = u32>) -> Result<bool, JournalError> {
        let has_records = |number| {
            let bytes = self.load(number)?;
            Ok(bytes.is_ok_and(|bytes| !scan::scan(&bytes, self.identity, number, None).records.is_empty()))
        };
        numbers.try_fold(false, |found, number| Ok(found || has_records(number)?))
    }

    fn unreadable(&mut self, number: u32, length: u64, listed: Option<(u32, u32)>, why: String) {
        if listed.is_none() {
            // Its records may be readable later, so their numbers must not be used again.
            let cataloged = self.catalog.segments.get(&number);
            self.unseen_bytes += cataloged.map_or(length, |entry| length.max(u64::from(entry.capacity)));
            self.has_unbounded |= cataloged.is_none();
        }
        let segment = Segment {
            damaged: true,
            unreadable: true,
            end_unknown: listed.is_none(),
            end: listed.map_or(HEADER_BYTES, |(end, _)| end),
            records: listed.map_or(0, |(_, records)| records),
            ..Segment::default()
        };
        self.state.segments.insert(number, segment);
        let lost = RecordLoss::AtLeast(listed.map_or(0, |(_, records)| u64::from(records)));
        self.report.damaged.push(Damage {
            segment: number,
            cause: DamageCause::Unreadable(why),
            parts: Vec::new(),
            lost,
        });
    }

    /// Handles a file that the latest list does not contain: a segment created in advance that a crash restored, a segment
    /// of this journal whose removal failed, or a file copied into the directory.
    fn unlisted(&mut self, number: u32, candidate: &SegmentFile, bytes: &[u8]) {
        if scan::scan(bytes, self.identity, number, None).records.is_empty() {
            self.leave(number, bytes);
        } else if self.is_own(number, candidate) {
            // Its removal was decided and recorded before the list was written, so nothing in it is needed.
            self.leftovers.push(UnusedFile { segment: number, empty: true });
        } else {
            self.report.strays.push(format::segment_name(number));
        }
    }

    /// Whether the header says that a file is this segment of this journal.
    fn is_own(&self, number: u32, candidate: &SegmentFile) -> bool {
        matches!(candidate.reading, Ok(HeaderReading::Good { header, .. })
            if header.segment == number && header.journal == self.identity)
    }

    /// Schedules a file for removal if it contains nothing but its initial content, or for quarantine otherwise.
    fn leave(&mut self, number: u32, bytes: &[u8]) {
        let empty = content(bytes).iter().all(|&byte| byte == 0);
        self.report.quarantined += u64::from(!empty);
        self.leftovers.push(UnusedFile { segment: number, empty });
    }

    /// Applies the records of a segment and reports its damage.
    fn take(&mut self, subject: &ScannedSegment, open: bool) {
        let ScannedSegment { number, bytes, scan, listed, .. } = subject;
        let synced = if open { scan.synced_to } else { u32::MAX };
        // After the synced part, the first unreadable byte ends everything: no record survives without its predecessors. A
        // gap that begins in the synced part is damage, which says nothing about the records behind it.
        let cut = scan.gaps.iter().find(|gap| gap.start >= synced).copied();
        let limit = cut.map_or(u32::MAX, |gap| gap.start);
        let damaged: Vec<Gap> = scan.gaps.iter().filter(|gap| gap.start < synced).copied().collect();
        self.state.segments.insert(
            *number,
            Segment { file_bytes: bytes.len() as u64, end: scan.start, ..Segment::default() },
        );
        let mut count = LossCounter::new(&damaged, self.state.next_sequence);
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
        let (parts, mut lost) = count.finish(known);
        if let Some(unseen) = subject.cataloged.map(|entry| entry.records.saturating_sub(count.records)) {
            lost = lost.at_least(u64::from(unseen));
        }
        let records = known.unwrap_or(0).max(count.records);
        let tail_end = kept.last().map_or(scan.end().min(limit), |last: &Span| last.end());
        let segment = self.state.segments.entry(*number).or_default();
        segment.records = records;
        segment.end = listed.map_or(tail_end, |(end, _)| end);
        self.report.segments += 1;
        self.report.bytes += bytes.len() as u64;
        self.report.records += scan.records.iter().take_while(|span| span.offset < limit).count() as u64;
        if let Some(gap) = cut {
            self.torn(*number, gap, scan);
        }
        self.report_damage(subject, parts, lost);
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

    fn torn(&mut self, segment: u32, gap: Gap, scan: &SegmentScan) {
        let end = scan.gaps.last().map_or(0, |last| last.end).max(scan.end());
        let records = scan.records.iter().filter(|span| span.offset >= gap.start).count() as u32;
        let bytes = end - gap.start;
        self.state.next_sequence = self.state.next_sequence.saturating_add(u64::from(bytes) / PUT_BYTES_MIN);
        self.report.torn.push(TornTail { segment, offset: gap.start, bytes, records });
    }

    fn report_damage(&mut self, subject: &ScannedSegment, parts: Vec<DamagedPart>, lost: RecordLoss) {
        let unknown_end =
            matches!(subject.cause, Some(DamageCause::Shortened { .. } | DamageCause::Misplaced));
        let Some(cause) = subject.cause.clone().or_else(|| {
            (!parts.is_empty() || lost != RecordLoss::Exactly(0)).then_some(DamageCause::Checksum)
        }) else {
            return;
        };
        let lost = match lost {
            RecordLoss::Exactly(count) if unknown_end && subject.listed.is_none() => {
                RecordLoss::AtLeast(count)
            }
            other => other,
        };
        let mut bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
        if unknown_end {
            // The numbers that the missing end may have used must not be used again.
            bytes += subject.cataloged.map_or(0, |entry| u64::from(entry.capacity));
        }
        self.state.next_sequence = self.state.next_sequence.saturating_add(bytes / PUT_BYTES_MIN);
        if let Some(segment) = self.state.segments.get_mut(&subject.number) {
            segment.damaged = true;
        }
        self.report.damaged.push(Damage { segment: subject.number, cause, parts, lost });
    }

    fn close(
        &mut self,
        subject: &ScannedSegment,
        synced: u32,
        synced_records: u32,
        records: u32,
        tail_end: u32,
        kept: Vec<Span>,
    ) {
        let start = subject.scan.start;
        let end = synced.min(subject.bytes.len() as u32).max(start);
        if let Some(first) = kept.first() {
            let bytes = subject.bytes[first.offset as usize..tail_end as usize].to_vec();
            self.tails.push(UnconfirmedTail {
                segment: subject.number,
                start: first.offset,
                bytes,
                records: kept,
            });
        }
        self.closings.push(SegmentEnd {
            segment: subject.number,
            end,
            records: synced_records,
            tail_end: tail_end.max(start),
            tail_records: records,
            closed: subject.scan.closed,
        });
    }

    fn finish(&mut self, now_ms: u64) {
        let unseen = self.unseen_bytes / PUT_BYTES_MIN;
        let next = self.state.next_sequence.max(self.catalog.next_sequence);
        self.state.next_sequence = next.saturating_add(unseen);
        // After a crash without damage, notes that were not durable leave no gap in the numbers. After a loss, numbers that the
        // lost notes may have used are not used again.
        if self.report.is_alarming() {
            let next = self.state.next_note.max(self.catalog.next_note);
            self.state.next_note = next.saturating_add(unseen);
        }
        if self.has_unbounded {
            self.state.next_sequence = unused_sequence(self.state.next_sequence, now_ms);
            self.state.next_note = unused_note(self.state.next_note, now_ms);
        }
        self.state.sweep_touches();
        (self.progress)(self.total, self.total);
    }
}
