//! Housekeeping: segments that nothing needs any more go, the last survivors of mostly dead ones are moved.
//!
//! Nothing goes before everything that is still needed of it is durable elsewhere, and each removal is durable before
//! the next one relies on it: a segment's settlements may go only when what they hold down is gone for good.

use crate::error::JournalError;
use crate::format::{self, Kind, Location, PREFIX_BYTES, Record};
use crate::journal::{Condition, Journal};
use crate::scan::{Span, scan};
use crate::state::Segment;
use crate::storage::Storage;
use crate::writer::{Class, reach};

/// Segments that one call removes at most: each costs two syncs.
const REMOVALS: u64 = 8;

/// What one call of `Journal::maintain` did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Segments that were removed.
    pub removed: u64,
    /// What that gave back, in bytes.
    pub freed_bytes: u64,
    /// What was copied to the head, in bytes.
    pub moved_bytes: u64,
    /// Segments that were set aside because of damage, now that all that is readable in them is elsewhere.
    pub quarantined: Vec<u32>,
    /// Live records that turned out to be unreadable and are live no more. Alarming: they are lost.
    pub lost: Vec<u64>,
    /// The same of definitions: their keys.
    pub lost_definitions: Vec<Vec<u8>>,
    /// There is more to do at once: call again soon.
    pub more: bool,
}

/// A segment whose survivors are being copied. Calls of `maintain` go on where the last one stopped.
#[derive(Debug)]
pub(crate) struct Move {
    segment: u32,
    bytes: Vec<u8>,
    records: Vec<Span>,
    next: usize,
}

impl<S: Storage> Journal<S> {
    /// One step of housekeeping: looks whether space is back if there was none, makes the next segment in advance,
    /// removes dead segments, and copies at most about `budget_bytes` of survivors. Writes and syncs what is pending
    /// when a segment goes. `now_ms` is compared with the times of notes. While the journal is pinned, no segment goes.
    ///
    /// # Errors
    /// [`JournalError::Full`] if space is still missing: what could be removed without space was. And the journal's
    /// failure.
    pub fn maintain(&mut self, now_ms: u64, budget_bytes: usize) -> Result<Maintenance, JournalError> {
        self.keep_house(now_ms, budget_bytes, Self::find_sparse)
    }

    /// The same with another idea of which segment is worth emptying.
    pub(crate) fn keep_house(
        &mut self,
        now_ms: u64,
        budget_bytes: usize,
        find: impl Fn(&Self) -> Option<u32>,
    ) -> Result<Maintenance, JournalError> {
        self.check_failed()?;
        let mut done = Maintenance::default();
        self.expire_notes(now_ms);
        if self.pinned {
            self.look_for_space()?;
            return Ok(done);
        }
        while done.removed + done.quarantined.len() as u64 <= REMOVALS {
            let Some(number) = self.find_dead() else { break };
            self.let_go(number, &mut done)?;
        }
        self.look_for_space()?;
        if self.moving.is_none() {
            self.moving = find(self).and_then(|number| self.start_move(number));
        }
        if self.moving.is_some() {
            self.go_on_moving(budget_bytes, &mut done)?;
        }
        done.more = self.moving.is_some() || self.find_dead().is_some();
        Ok(done)
    }

    /// While the disk is full, sees whether that is over; otherwise has the next segment ready before it is needed.
    fn look_for_space(&mut self) -> Result<(), JournalError> {
        let full = self.condition == Condition::Full;
        if full {
            self.write()?;
        }
        let half_full =
            self.tail.back().is_some_and(|writer| writer.position() > reach(writer.capacity, Class::Put) / 2);
        if full || half_full {
            match self.prepare_spare() {
                Ok(()) => self.condition = Condition::Healthy,
                // It is not needed yet, and whoever needs it will be told.
                Err(JournalError::Full { .. }) if !full => self.condition = Condition::Healthy,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn expire_notes(&mut self, now_ms: u64) {
        let released = self.released_notes;
        for segment in self.state.segments.values_mut() {
            segment.notes_expired |= segment.note_numbers.is_some_and(|(_, last)| last < released);
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

    /// The first segment that is still written; everything before is sealed and durable.
    pub(crate) fn first_open(&self) -> u32 {
        self.tail.front().map_or(0, |writer| writer.number)
    }

    /// The oldest segment of which nothing is needed.
    pub(crate) fn find_dead(&self) -> Option<u32> {
        let moving = self.moving.as_ref().map(|moving| moving.segment);
        self.state.segments.range(..self.first_open()).find_map(|(&number, segment)| {
            let dead = segment.needed_bytes() == 0 && !segment.unreadable && Some(number) != moving;
            (dead && !self.state.is_pinned(number)).then_some(number)
        })
    }

    /// The oldest segment that is worth emptying: damaged, or with survivors below a quarter of a segment. One whose notes
    /// somebody is to read stays where it is until they are released: else, where little happens, each would be moved on
    /// before it is read, and no reader would ever catch up.
    fn find_sparse(&self) -> Option<u32> {
        let quarter = u64::from(self.options.segment_bytes) / 4;
        let awaited =
            |segment: &Segment| self.notes_are_read && segment.note_bytes > 0 && !segment.notes_expired;
        self.find_worth(u32::MAX, |segment, needed| needed < quarter && !awaited(segment))
    }

    /// The oldest sealed segment before `until` that is damaged, or of which `worth` says so, given what of it must go
    /// on existing, in bytes.
    pub(crate) fn find_worth(&self, until: u32, worth: impl Fn(&Segment, u64) -> bool) -> Option<u32> {
        let reserve = self.tail.back().map_or(0, |writer| {
            u64::from(reach(writer.capacity, Class::Keep).saturating_sub(writer.position()))
        });
        self.state.segments.range(..self.first_open().min(until)).find_map(|(&number, segment)| {
            let needed = self.needed_of(number, segment);
            // Without space for another segment the reserve must not be eaten up.
            let affordable = self.condition == Condition::Healthy || needed < reserve / 2;
            let worth = segment.damaged || worth(segment, needed);
            (worth && affordable && !segment.unreadable).then_some(number)
        })
    }

    /// What of a segment must go on existing somewhere, in bytes.
    pub(crate) fn needed_of(&self, number: u32, segment: &Segment) -> u64 {
        let held_down =
            if self.state.is_pinned(number) { segment.settle_bytes + segment.undefine_bytes } else { 0 };
        segment.needed_bytes() + held_down
    }

    fn start_move(&mut self, number: u32) -> Option<Move> {
        let end = self.state.segments.get(&number)?.end;
        let Ok(bytes) = self.read_segment(number, end) else {
            self.state.segments.entry(number).and_modify(|segment| {
                segment.damaged = true;
                segment.unreadable = true;
            });
            return None;
        };
        let found = scan(&bytes, self.identity, number, Some(end));
        if !found.gaps.is_empty() {
            self.state.segments.entry(number).and_modify(|segment| segment.damaged = true);
        }
        Some(Move { segment: number, bytes, records: found.records, next: 0 })
    }

    fn go_on_moving(&mut self, budget: usize, done: &mut Maintenance) -> Result<(), JournalError> {
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
        self.give_up_unreadable(moving.segment, done);
        if !self.state.segments.get(&moving.segment).is_some_and(|segment| segment.unreadable) {
            self.let_go(moving.segment, done)?;
        }
        Ok(())
    }

    /// Copies what is still needed of a record to the head; answers how many bytes that took.
    fn copy(&mut self, record: &[u8], at: Location) -> Result<u32, JournalError> {
        let Some(decoded) = format::decode(record) else { return Ok(0) };
        if let Record::Settle(ranges) = decoded {
            let needed = self.ranges_needed(at.segment, ranges.iter());
            if needed.is_empty() {
                return Ok(0);
            }
            let mut body = Vec::new();
            format::push_ranges(&mut body, &needed);
            return Ok(self.emit(Class::Keep, Kind::Settle, &body, &[])?.length);
        }
        let needless = match decoded {
            Record::Note { number, .. } => {
                let expired = |segment: &crate::state::Segment| segment.notes_expired;
                number < self.released_notes || self.state.segments.get(&at.segment).is_none_or(expired)
            }
            Record::Undefine { .. } => !self.state.is_pinned(at.segment),
            _ => false,
        };
        match self.still_needed(&decoded, at) {
            Some(kind) if !needless => {
                Ok(self.emit(Class::Keep, kind, &record[PREFIX_BYTES + 1..], &[])?.length)
            }
            _ => Ok(0),
        }
    }

    /// Live records that are left in an emptied segment stand where it is damaged.
    fn give_up_unreadable(&mut self, number: u32, done: &mut Maintenance) {
        let Some(segment) = self.state.segments.get(&number) else { return };
        if segment.live == 0 && segment.live_touches == 0 && segment.live_defines == 0 {
            return;
        }
        let (lost, keys) = self.state.lose_segment(number);
        done.lost.extend(lost);
        done.lost_definitions.extend(keys);
    }

    /// Lets a segment's file go, or sets it aside if it is damaged. All that was copied out of it is made durable
    /// before, together with the word that its absence is meant; that it is gone is made durable before anything else
    /// relies on it.
    fn let_go(&mut self, number: u32, done: &mut Maintenance) -> Result<(), JournalError> {
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(number));
        self.emit(Class::Drop, Kind::Drop, &body, &[])?;
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
            return Err(self.fail(JournalError::io("removing", &name, &error)));
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
