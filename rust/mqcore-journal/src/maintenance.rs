//! Housekeeping: removes segments that are no longer needed, and empties segments with few needed records.
//!
//! Nothing is removed before everything needed in it is durable elsewhere, and each removal is durable before the next one
//! relies on it: a segment's settlements may only go once the puts that they settle are gone.

use crate::error::JournalError;
use crate::format::{self, HEADER_BYTES, Location, PREFIX_BYTES, Record, RecordKind};
use crate::journal::listing::RETRY_MS;
use crate::journal::{Condition, Journal};
use crate::relocation::Relocation;
use crate::scan::scan;
use crate::state::Segment;
use crate::storage::Storage;
use crate::writer::{SpaceClass, reach};

/// Maximum number of segments removed per call. Each removal takes two syncs.
const REMOVALS_PER_CALL_MAX: u64 = 8;
/// Number of successive attempts to read a segment after which it counts as unreadable. An error may pass.
const READ_ATTEMPTS_MAX: u8 = 3;

/// Result of one call of [`Journal::maintain`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Number of removed segments.
    pub removed: u64,
    /// Bytes released by removals.
    pub freed_bytes: u64,
    /// Bytes copied to the current segment.
    pub moved_bytes: u64,
    /// Damaged segments that were quarantined after everything readable in them was copied.
    pub quarantined: Vec<u32>,
    /// Segments in which damage was found now, and that no opening has reported. They are left in place, so that the next
    /// opening does. Raise an alarm.
    pub damaged: Vec<u32>,
    /// Numbers of live records that turned out to be unreadable. They are lost; raise an alarm.
    pub lost: Vec<u64>,
    /// Keys of definitions that turned out to be unreadable. They are lost; raise an alarm.
    pub lost_definitions: Vec<Vec<u8>>,
    /// Files that could not be read, removed, renamed or replaced. Nothing is lost; it is tried again ten seconds later.
    pub deferred: Vec<JournalError>,
    /// More work is possible immediately: call again soon.
    pub more: bool,
}

impl<S: Storage> Journal<S> {
    /// Performs one step of housekeeping: retries after a full disk, creates the next segment in advance, removes dead segments,
    /// and copies about `budget_bytes` of needed records.
    ///
    /// Writes and syncs buffered records when it removes a segment. Notes expire relative to `now_ms`. While the journal is
    /// pinned, no segment is removed.
    ///
    /// # Errors
    /// - [`JournalError::Full`]: space is still missing. Everything that can be removed without space was removed.
    /// - Any other error: the journal has failed.
    pub fn maintain(&mut self, now_ms: u64, budget_bytes: usize) -> Result<Maintenance, JournalError> {
        self.run_housekeeping(now_ms, budget_bytes, Self::find_sparse)
    }

    /// Performs a step of housekeeping in which `find` chooses the segment to empty.
    pub(crate) fn run_housekeeping(
        &mut self,
        now_ms: u64,
        budget_bytes: usize,
        find: impl Fn(&Self) -> Option<u32>,
    ) -> Result<Maintenance, JournalError> {
        self.check_failed()?;
        let mut done = Maintenance::default();
        self.expire_notes(now_ms);
        if self.pinned {
            self.retry_after_full_disk()?;
            return Ok(done);
        }
        self.house_ms = now_ms;
        while done.removed + done.quarantined.len() as u64 <= REMOVALS_PER_CALL_MAX {
            let Some(number) = self.find_dead() else { break };
            match self.remove_segment(number, &mut done) {
                // The last segment may lack even the bytes for the record of a removal. Only a new segment helps then, so the
                // disk must be tried again, or the journal would stay full forever.
                Err(JournalError::Full { .. }) => break,
                removed => removed?,
            }
        }
        self.retry_after_full_disk()?;
        if self.moving.is_none() {
            self.moving = find(self).and_then(|number| self.start_relocation(number, &mut done));
        }
        if self.moving.is_some() {
            self.continue_relocation(budget_bytes, &mut done)?;
        }
        done.deferred.extend(self.refresh_catalog()?);
        done.more = self.moving.is_some() || self.find_dead().is_some();
        Ok(done)
    }

    /// Checks whether a full disk has space again; otherwise creates the next segment before it is needed.
    fn retry_after_full_disk(&mut self) -> Result<(), JournalError> {
        let full = self.shortage().is_some();
        if full {
            self.write()?;
        }
        let half_full = self
            .tail
            .back()
            .is_some_and(|writer| writer.position() > reach(writer.capacity, SpaceClass::Publish) / 2);
        if full || half_full {
            match self.prepare_spare() {
                Ok(()) => self.condition = Condition::Healthy,
                // The next segment is not needed yet. The write that needs it reports the error.
                Err(JournalError::Full { .. }) if !full => self.condition = Condition::Healthy,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn expire_notes(&mut self, now_ms: u64) {
        let released = self.released_notes_below;
        for segment in self.state.segments.values_mut() {
            segment.notes_expired |= segment.note_number_range.is_some_and(|(_, last)| last < released);
        }
        if let Some(age) = self.options.retain_notes_ms {
            for segment in self.state.segments.values_mut() {
                segment.notes_expired |= segment.newest_note_ms.saturating_add(age) < now_ms;
            }
        }
        let Some(limit) = self.options.retain_notes_bytes else { return };
        let kept = |segment: &Segment| if segment.notes_expired { 0 } else { segment.note_bytes };
        let mut sum: u64 = self.state.segments.values().map(kept).sum();
        for segment in self.state.segments.values_mut() {
            if sum <= limit {
                break;
            }
            sum -= kept(segment);
            segment.notes_expired = true;
        }
    }

    /// Number of the first segment that is still written. All earlier ones are sealed and durable.
    pub(crate) fn first_open(&self) -> u32 {
        self.tail.front().map_or(0, |writer| writer.number)
    }

    /// Returns the oldest segment of which nothing is needed.
    pub(crate) fn find_dead(&self) -> Option<u32> {
        let moving = self.moving.as_ref().map(|moving| moving.segment);
        self.state.segments.range(..self.first_open()).find_map(|(&number, segment)| {
            let dead = segment.needed_bytes() == 0
                && !segment.must_stay()
                && segment.retry_ms <= self.house_ms
                && Some(number) != moving;
            (dead && !self.state.is_pinned(number)).then_some(number)
        })
    }

    /// Returns the oldest segment that is damaged or holds less than a quarter segment of needed records.
    ///
    /// If an archiver reads notes, a segment with unreleased notes stays in place. Otherwise a nearly idle journal would move
    /// the notes on before the archiver reads them, and it would never catch up.
    fn find_sparse(&self) -> Option<u32> {
        let quarter = u64::from(self.options.segment_bytes - HEADER_BYTES) / 4;
        let awaited =
            |segment: &Segment| self.has_note_reader && segment.note_bytes > 0 && !segment.notes_expired;
        self.find_candidate(u32::MAX, |segment, needed| needed < quarter && !awaited(segment))
    }

    /// Returns the oldest sealed segment before `until` that is damaged or that `worth` selects. `worth` receives the segment
    /// and its needed bytes, and a segment that it rejects it also rejects with more needed bytes.
    pub(crate) fn find_candidate(&self, until: u32, worth: impl Fn(&Segment, u64) -> bool) -> Option<u32> {
        let reserve = self.tail.back().map_or(0, |writer| {
            u64::from(reach(writer.capacity, SpaceClass::Essential).saturating_sub(writer.position()))
        });
        // On a full disk, copying must not use up the reserve.
        let affordable = |needed| self.condition == Condition::Healthy || needed < reserve / 2;
        let qualifies =
            |segment: &Segment, needed| (segment.damaged || worth(segment, needed)) && affordable(needed);
        self.state.segments.range(..self.first_open().min(until)).find_map(|(&number, segment)| {
            let is_due = segment.retry_ms <= self.house_ms && !segment.must_stay();
            // The bytes of live records are known at once, and those of settlements take a walk over all older segments.
            let selected = is_due
                && qualifies(segment, segment.needed_bytes())
                && qualifies(segment, self.retained_bytes(number, segment));
            selected.then_some(number)
        })
    }

    /// Bytes of a segment that must be preserved somewhere.
    pub(crate) fn retained_bytes(&self, number: u32, segment: &Segment) -> u64 {
        let held_down =
            if self.state.is_pinned(number) { segment.settle_bytes + segment.undefine_bytes } else { 0 };
        segment.needed_bytes() + held_down
    }

    fn start_relocation(&mut self, number: u32, done: &mut Maintenance) -> Option<Relocation> {
        let end = self.state.segments.get(&number)?.end;
        let bytes = match self.read_segment(number, end) {
            Ok(bytes) => bytes,
            // Says nothing about the segment; the next call tries again.
            Err(JournalError::Full { .. }) => return None,
            Err(error) => {
                self.postpone_relocation(number, error, done);
                return None;
            }
        };
        self.state.segments.entry(number).and_modify(|segment| segment.failed_reads = 0);
        let found = scan(&bytes, self.identity, number, Some(end));
        if !found.gaps.is_empty() {
            self.storage.report_damage(&format::segment_name(number), "checksum mismatch").ok()?;
            if let Some(segment) = self.state.segments.get_mut(&number) {
                // Quarantining the file would hide what is lost from the next opening.
                segment.unreported |= !segment.damaged;
                segment.damaged = true;
                if segment.unreported {
                    done.damaged.push(number);
                }
            }
        }
        Some(Relocation { segment: number, bytes, records: found.records, next: 0 })
    }

    /// Leaves a segment alone that could not be read, for some time at first. After several attempts it stays until the next
    /// opening, which reports what is lost.
    fn postpone_relocation(&mut self, number: u32, error: JournalError, done: &mut Maintenance) {
        let retry_ms = self.house_ms.saturating_add(RETRY_MS);
        let Some(segment) = self.state.segments.get_mut(&number) else { return };
        segment.retry_ms = retry_ms;
        segment.failed_reads += 1;
        if segment.failed_reads < READ_ATTEMPTS_MAX {
            return done.deferred.push(error);
        }
        segment.failed_reads = 0;
        if self.storage.report_damage(&format::segment_name(number), &error.to_string()).is_ok() {
            (segment.damaged, segment.unreadable) = (true, true);
            done.damaged.push(number);
        }
    }

    fn continue_relocation(&mut self, budget: usize, done: &mut Maintenance) -> Result<(), JournalError> {
        let Some(mut moving) = self.moving.take() else { return Ok(()) };
        let before = done.moved_bytes;
        while let Some(&span) = moving.records.get(moving.next) {
            if done.moved_bytes - before >= budget as u64 {
                self.moving = Some(moving);
                return Ok(());
            }
            let record = &moving.bytes[span.offset as usize..span.end() as usize];
            let at = Location { segment: moving.segment, offset: span.offset, length: span.length };
            match self.copy(record, at) {
                Ok(copied) => done.moved_bytes += u64::from(copied),
                Err(error) => {
                    self.moving = Some(moving);
                    return Err(error);
                }
            }
            moving.next += 1;
        }
        self.drop_unreadable_records(moving.segment, done);
        if !self.state.segments.get(&moving.segment).is_some_and(Segment::must_stay) {
            self.remove_segment(moving.segment, done)?;
        }
        Ok(())
    }

    /// Copies a record to the current segment if it is needed. Returns the copied bytes.
    fn copy(&mut self, record: &[u8], at: Location) -> Result<u32, JournalError> {
        let Some(decoded) = format::decode(record) else { return Ok(0) };
        if let Record::Settle(ranges) = decoded {
            let needed = self.ranges_needed(at.segment, ranges.iter());
            if needed.is_empty() {
                return Ok(0);
            }
            let mut body = Vec::new();
            format::push_ranges(&mut body, &needed);
            return Ok(self.emit(SpaceClass::Essential, RecordKind::Settle, &body, &[])?.length);
        }
        let needless = match decoded {
            Record::Note { number, .. } => {
                let expired = |segment: &crate::state::Segment| segment.notes_expired;
                number < self.released_notes_below || self.state.segments.get(&at.segment).is_none_or(expired)
            }
            Record::Undefine { .. } => !self.state.is_pinned(at.segment),
            _ => false,
        };
        match self.still_needed(&decoded, at) {
            Some(kind) if !needless => {
                Ok(self.emit(SpaceClass::Essential, kind, &record[PREFIX_BYTES + 1..], &[])?.length)
            }
            _ => Ok(0),
        }
    }

    /// Gives up live records that remain in an emptied segment: they are in a damaged part.
    fn drop_unreadable_records(&mut self, number: u32, done: &mut Maintenance) {
        let Some(segment) = self.state.segments.get(&number) else { return };
        if segment.live == 0 && segment.live_touches == 0 && segment.live_defines == 0 {
            return;
        }
        let (lost, keys) = self.state.lose_segment(number);
        done.lost.extend(lost);
        done.lost_definitions.extend(keys);
    }

    /// Removes a segment's file, or quarantines it if it is damaged.
    ///
    /// First, everything copied out of it and the record of its removal are made durable. Afterwards the removal itself is made
    /// durable before anything relies on it. If the file cannot be removed, the segment stays as it is: what it holds is still
    /// hidden by later segments, and the removal is tried again later.
    fn remove_segment(&mut self, number: u32, done: &mut Maintenance) -> Result<(), JournalError> {
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(number));
        self.emit(SpaceClass::Reclaim, RecordKind::Drop, &body, &[])?;
        self.write()?;
        self.sync()?;
        let Some(segment) = self.state.segments.get(&number) else { return Ok(()) };
        let (damaged, freed) = (segment.damaged, segment.file_bytes);
        let name = format::segment_name(number);
        let gone = if damaged {
            self.storage.rename(&name, &format::quarantined_name(number))
        } else {
            self.storage.remove(&name)
        };
        if let Err(error) = gone {
            done.deferred.push(JournalError::io("removing", &name, &error));
            let retry_ms = self.house_ms.saturating_add(RETRY_MS);
            self.state.segments.entry(number).and_modify(|segment| segment.retry_ms = retry_ms);
            return Ok(());
        }
        self.sync_directory()?;
        self.forget_file(number);
        self.state.segments.remove(&number);
        if damaged {
            self.quarantined += 1;
            done.quarantined.push(number);
        } else {
            done.removed += 1;
            done.freed_bytes += freed;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::storage::MemoryStorage;

    /// A backlog that was never delivered: nothing can be removed, and looking for that must not slow the journal down.
    #[test]
    fn housekeeping_takes_few_steps_for_each_segment() {
        let disk = MemoryStorage::new(1);
        let options = Options { segment_bytes: 12_800, identity: 77, ..Options::default() };
        let (mut journal, _) = Journal::open(disk, options, &mut |_, _| {}).unwrap();
        let count = 5_000;
        let writer = journal.tail.front_mut().unwrap();
        let open = journal.state.segments.remove(&writer.number).unwrap();
        writer.number = count;
        journal.state.segments.insert(count, open);
        let full = Segment { puts: 90, live: 90, live_bytes: 12_000, end: 12_500, ..Segment::default() };
        for number in 0..count {
            // Some records of each segment are settled in the next one.
            let settled = Some((u64::from(number) * 90, u64::from(number) * 90 + 10));
            let segment = Segment { settled: settled.filter(|_| number % 2 == 0), ..full.clone() };
            journal.state.segments.insert(number, segment);
        }
        assert_eq!((journal.find_sparse(), journal.find_dead()), (None, None));
        let visits = journal.state.visits.get();
        assert!(visits <= u64::from(count), "{visits}");
    }
}
