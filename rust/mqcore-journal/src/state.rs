//! The state that results from the records: which are live, where they are, and which segments are still needed.
//!
//! Writing and recovery use the same functions, so the state in memory always equals the result of scanning the files.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::format::{END_UNKNOWN, Location, Record, SegmentExtent};
use crate::index::RecordIndex;

/// Content of one segment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    /// File length in bytes.
    pub(crate) file_bytes: u64,
    /// End of the last record.
    pub(crate) end: u32,
    /// Number of records of all kinds, including lost ones.
    pub(crate) records: u32,
    /// Number of puts, live or not, and their smallest and largest numbers.
    pub(crate) puts: u32,
    pub(crate) numbers: Option<(u64, u64)>,
    pub(crate) live: u32,
    pub(crate) live_bytes: u64,
    /// Number of latest touches of live puts in any segment.
    pub(crate) live_touches: u32,
    pub(crate) defines: u32,
    pub(crate) undefines: u32,
    /// Number of definitions in force.
    pub(crate) live_defines: u32,
    /// Bytes of live touches and definitions.
    pub(crate) other_live_bytes: u64,
    /// Smallest and largest number settled here.
    pub(crate) settled: Option<(u64, u64)>,
    pub(crate) settle_bytes: u64,
    pub(crate) undefine_bytes: u64,
    pub(crate) notes: u32,
    pub(crate) note_bytes: u64,
    pub(crate) newest_note_ms: u64,
    pub(crate) oldest_note_ms: u64,
    /// Smallest and largest note number.
    pub(crate) note_number_range: Option<(u64, u64)>,
    /// The notes are past their retention and no longer keep the segment.
    pub(crate) notes_expired: bool,
    /// Quarantine the segment when it is emptied, instead of removing it.
    pub(crate) damaged: bool,
    /// The disk cannot read the segment. It is left in place until the next opening.
    pub(crate) unreadable: bool,
    /// Damage was found after opening. The segment is left in place, so that the next opening reports it.
    pub(crate) unreported: bool,
    /// No other segment recorded where this unreadable one ends.
    pub(crate) end_unknown: bool,
    /// The file could not be read or removed; housekeeping leaves it alone until this time, in milliseconds. 0: no attempt
    /// failed.
    pub(crate) retry_ms: u64,
    /// Number of successive attempts of housekeeping to read the file that failed.
    pub(crate) failed_reads: u8,
}

impl Segment {
    /// Whether the file is left in place until the next opening.
    pub(crate) fn must_stay(&self) -> bool {
        self.unreadable || self.unreported
    }

    /// Bytes that must be preserved somewhere, apart from settlements and removals of definitions.
    pub(crate) fn needed_bytes(&self) -> u64 {
        self.live_bytes + self.other_live_bytes + if self.notes_expired { 0 } else { self.note_bytes }
    }
}

/// The state of a journal.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    pub(crate) segments: BTreeMap<u32, Segment>,
    pub(crate) puts: RecordIndex,
    /// Latest touch of each touched record.
    pub(crate) touches: RecordIndex,
    pub(crate) definitions: BTreeMap<Box<[u8]>, Location>,
    pub(crate) next_sequence: u64,
    pub(crate) next_note: u64,
    /// Number of segments that [`Self::is_pinned`] has looked at.
    #[cfg(test)]
    pub(crate) visits: std::cell::Cell<u64>,
}

impl JournalState {
    /// Applies the record at `at`.
    pub(crate) fn apply(&mut self, record: &Record<'_>, at: Location) {
        match *record {
            Record::Put { sequence, .. } => self.put(sequence, at),
            Record::Settle(ranges) => {
                for range in ranges.iter() {
                    self.settle(range, at);
                }
                self.segment(at).settle_bytes += u64::from(at.length);
            }
            Record::Touch { sequence, .. } => self.touch(sequence, at),
            Record::Define { key, .. } => self.define(key, at),
            Record::Undefine { key } => self.undefine(key, at),
            Record::Note { number, time_ms, .. } => self.note(number, time_ms, at),
            Record::Mark { next_sequence, .. } | Record::Seal { next_sequence, .. } => {
                self.next_sequence = self.next_sequence.max(next_sequence);
            }
            Record::Begin { next_sequence, next_note, .. } => {
                self.next_sequence = self.next_sequence.max(next_sequence);
                self.next_note = self.next_note.max(next_note);
            }
            Record::Drop { .. } => {}
        }
        let segment = self.segment(at);
        segment.records += 1;
        segment.end = segment.end.max(at.end());
    }

    fn segment(&mut self, at: Location) -> &mut Segment {
        self.segments.entry(at.segment).or_default()
    }

    fn put(&mut self, sequence: u64, at: Location) {
        if let Some(old) = self.puts.insert(sequence, at) {
            retire(&mut self.segments, old);
        }
        self.next_sequence = self.next_sequence.max(sequence.saturating_add(1));
        let segment = self.segment(at);
        segment.puts += 1;
        segment.live += 1;
        segment.live_bytes += u64::from(at.length);
        segment.numbers = Some(widen(segment.numbers, sequence, sequence));
    }

    fn settle(&mut self, range: RangeInclusive<u64>, at: Location) {
        let Self { segments, puts, touches, .. } = self;
        puts.remove_range(range.clone(), |_, old| retire(segments, old));
        touches.remove_range(range.clone(), |_, old| retire_touch(segments, old));
        self.next_sequence = self.next_sequence.max(range.end().saturating_add(1));
        let segment = self.segment(at);
        segment.settled = Some(widen(segment.settled, *range.start(), *range.end()));
    }

    /// Applied whether or not the put was seen, because housekeeping may have copied the put behind its touch.
    fn touch(&mut self, sequence: u64, at: Location) {
        if let Some(old) = self.touches.insert(sequence, at) {
            retire_touch(&mut self.segments, old);
        }
        let segment = self.segment(at);
        segment.live_touches += 1;
        segment.other_live_bytes += u64::from(at.length);
    }

    fn define(&mut self, key: &[u8], at: Location) {
        if let Some(old) = self.definitions.insert(key.into(), at) {
            self.retire_definition(old);
        }
        let segment = self.segment(at);
        segment.defines += 1;
        segment.live_defines += 1;
        segment.other_live_bytes += u64::from(at.length);
    }

    fn undefine(&mut self, key: &[u8], at: Location) {
        if let Some(old) = self.definitions.remove(key) {
            self.retire_definition(old);
        }
        let segment = self.segment(at);
        segment.undefines += 1;
        segment.undefine_bytes += u64::from(at.length);
    }

    fn retire_definition(&mut self, old: Location) {
        let segment = self.segment(old);
        segment.live_defines -= 1;
        segment.other_live_bytes -= u64::from(old.length);
    }

    fn note(&mut self, number: u64, time_ms: u64, at: Location) {
        self.next_note = self.next_note.max(number.saturating_add(1));
        let segment = self.segment(at);
        segment.oldest_note_ms =
            if segment.notes == 0 { time_ms } else { segment.oldest_note_ms.min(time_ms) };
        segment.notes += 1;
        segment.note_number_range = Some(widen(segment.note_number_range, number, number));
        segment.note_bytes += u64::from(at.length);
        segment.newest_note_ms = segment.newest_note_ms.max(time_ms);
        segment.notes_expired = false;
    }

    /// Gives up all live records of a segment. Returns the numbers of puts and the keys of definitions.
    pub(crate) fn lose_segment(&mut self, number: u32) -> (Vec<u64>, Vec<Vec<u8>>) {
        let inside = |index: &RecordIndex| -> Vec<u64> {
            index.iter_from(0).filter(|(_, at)| at.segment == number).map(|(sequence, _)| sequence).collect()
        };
        let (puts, touches) = (inside(&self.puts), inside(&self.touches));
        for &sequence in &puts {
            if let Some(old) = self.puts.remove(sequence) {
                retire(&mut self.segments, old);
            }
        }
        for &sequence in puts.iter().chain(&touches) {
            if let Some(old) = self.touches.remove(sequence) {
                retire_touch(&mut self.segments, old);
            }
        }
        let keys: Vec<Box<[u8]>> = self
            .definitions
            .iter()
            .filter(|(_, at)| at.segment == number)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            if let Some(old) = self.definitions.remove(key) {
                self.retire_definition(old);
            }
        }
        (puts, keys.into_iter().map(<[u8]>::into_vec).collect())
    }

    /// Removes the touches of records that turned out not to be live.
    pub(crate) fn sweep_touches(&mut self) {
        let orphans: Vec<u64> = self
            .touches
            .iter_from(0)
            .map(|(sequence, _)| sequence)
            .filter(|&sequence| !self.puts.contains(sequence))
            .collect();
        for sequence in orphans {
            if let Some(old) = self.touches.remove(sequence) {
                retire_touch(&mut self.segments, old);
            }
        }
    }

    /// Whether settlements or removals in a segment still hide records in an older one. Without them, those records would become
    /// live again at the next opening.
    ///
    /// The answer is conservative. Only older segments can contain a put settled here, because a put is never copied after its
    /// settlement.
    pub(crate) fn is_pinned(&self, number: u32) -> bool {
        let Some(segment) = self.segments.get(&number) else { return false };
        if segment.settled.is_none() && segment.undefines == 0 {
            return false;
        }
        self.segments.range(..number).any(|(_, older)| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
            older.has_settled_puts(segment.settled)
                || (segment.undefines > 0 && (older.defines > 0 || older.unreadable))
        })
    }

    /// Whether a segment older than `number` contains a put in this range that is not live.
    pub(crate) fn hides_settled(&self, number: u32, range: &RangeInclusive<u64>) -> bool {
        let settled = Some((*range.start(), *range.end()));
        self.segments.range(..number).any(|(_, older)| older.has_settled_puts(settled))
    }

    /// All segments except one, for the list at the beginning of that one.
    pub(crate) fn inventory(&self, except: u32) -> impl Iterator<Item = SegmentExtent> {
        self.segments.iter().filter(move |&(&number, _)| number != except).map(|(&number, segment)| {
            let end = if segment.end_unknown { END_UNKNOWN } else { segment.end };
            SegmentExtent { segment: number, end, records: segment.records }
        })
    }
}

impl Segment {
    fn has_settled_puts(&self, settled: Option<(u64, u64)>) -> bool {
        // A segment that cannot be read now may be readable at the next opening.
        if self.unreadable {
            return settled.is_some();
        }
        match (self.numbers, settled) {
            (Some((low, high)), Some((first, last))) => self.puts > self.live && first <= high && low <= last,
            _ => false,
        }
    }
}

fn retire(segments: &mut BTreeMap<u32, Segment>, old: Location) {
    if let Some(segment) = segments.get_mut(&old.segment) {
        segment.live -= 1;
        segment.live_bytes -= u64::from(old.length);
    }
}

fn retire_touch(segments: &mut BTreeMap<u32, Segment>, old: Location) {
    if let Some(segment) = segments.get_mut(&old.segment) {
        segment.live_touches -= 1;
        segment.other_live_bytes -= u64::from(old.length);
    }
}

fn widen(range: Option<(u64, u64)>, first: u64, last: u64) -> (u64, u64) {
    range.map_or((first, last), |(low, high)| (low.min(first), high.max(last)))
}
