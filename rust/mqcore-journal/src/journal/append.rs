//! Writing of records and segments.

use std::sync::Arc;

use super::{Condition, Journal, Spare};
use crate::error::{JournalError, Shortage};
use crate::format::{self, HEADER_BYTES, Header, Location, MARK_BYTES, RecordKind, VERSION};
use crate::state::Segment;
use crate::storage::{Storage, write_whole};
use crate::writer::{self, SpaceClass, Writer};

impl<S: Storage> Journal<S> {
    pub(crate) fn check_failed(&self) -> Result<(), JournalError> {
        match &self.condition {
            Condition::Failed(error) => Err(error.clone()),
            Condition::Healthy | Condition::Full(_) => Ok(()),
        }
    }

    /// The resource that the last attempt to write or to create a file lacked; `None`: it lacked none.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        match self.condition {
            Condition::Full(shortage) => Some(shortage),
            Condition::Healthy | Condition::Failed(_) => None,
        }
    }

    /// Marks the journal as failed. From now on, only records synced before are known to be durable.
    pub(crate) fn fail(&mut self, error: JournalError) -> JournalError {
        self.condition = Condition::Failed(error.clone());
        error
    }

    /// Distinguishes a shortage, which may pass, from all other errors, which are permanent.
    pub(super) fn fail_or_mark_full(
        &mut self,
        doing: &'static str,
        number: u32,
        error: &std::io::Error,
        needed: u64,
    ) -> JournalError {
        if let Some(shortage) = Shortage::of(error) {
            self.condition = Condition::Full(shortage);
            JournalError::Full { needed, shortage }
        } else {
            self.fail(JournalError::io(doing, &format::segment_name(number), error))
        }
    }

    /// Buffers one record, in the next segment if the current one lacks space, and applies it to the state.
    pub(crate) fn emit(
        &mut self,
        class: SpaceClass,
        kind: RecordKind,
        head: &[u8],
        parts: &[&[u8]],
    ) -> Result<Location, JournalError> {
        self.check_failed()?;
        let max = self.options.max_record_bytes;
        let length = format::record_length(head, parts).filter(|&length| length <= max).ok_or_else(|| {
            let size = parts.iter().map(|part| part.len() as u64).sum::<u64>() + head.len() as u64;
            JournalError::TooLarge { size, max: u64::from(max) }
        })?;
        let shortage = self.shortage();
        if let Some(shortage) = shortage
            && (class == SpaceClass::Publish || !self.fits(class, length))
        {
            return Err(JournalError::Full { needed: u64::from(length), shortage });
        }
        if shortage.is_none() && !self.fits(SpaceClass::Publish, length) {
            match self.roll(length) {
                Ok(()) => {}
                Err(JournalError::Full { .. })
                    if class != SpaceClass::Publish && self.fits(class, length) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.append(length, kind, head, parts))
    }

    pub(crate) fn fits(&self, class: SpaceClass, length: u32) -> bool {
        self.tail.back().is_some_and(|writer| {
            let end = u64::from(writer.position()) + u64::from(MARK_BYTES) + u64::from(length);
            end <= u64::from(writer::reach(writer.capacity, class))
        })
    }

    /// Appends to the last segment, which must have space.
    pub(super) fn append(&mut self, length: u32, kind: RecordKind, head: &[u8], parts: &[&[u8]]) -> Location {
        if self.tail.back().is_some_and(Writer::needs_mark) {
            self.push_mark();
        }
        self.push(length, kind, head, parts)
    }

    fn push(&mut self, length: u32, kind: RecordKind, head: &[u8], parts: &[&[u8]]) -> Location {
        let Some(writer) = self.tail.back_mut() else {
            unreachable!("an open journal always has a segment to write to")
        };
        let at = writer.push(self.identity, length, kind, head, parts);
        if let Some(record) = writer.buffered(at).and_then(format::decode) {
            self.state.apply(&record, at);
        }
        at
    }

    /// Records how far this segment is durable. A crash can only have torn what follows.
    pub(super) fn push_mark(&mut self) {
        let Some(writer) = self.tail.back_mut() else { return };
        writer.marked = writer.synced;
        let (number, synced) = (writer.number, writer.synced);
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(synced));
        push_count(&mut body, self.state.segments.get(&number), self.state.next_sequence);
        self.push_bookkeeping(RecordKind::Mark, &body);
        if let Some(writer) = self.tail.back_mut() {
            writer.mark_end = writer.position();
        }
    }

    /// Ends the last segment. The seal names the next one: a failed creation may have left an unused file between them.
    fn push_seal(&mut self, successor: u32) {
        let Some(number) = self.tail.back().map(|writer| writer.number) else { return };
        let mut body = Vec::new();
        push_count(&mut body, self.state.segments.get(&number), self.state.next_sequence);
        format::push_varint(&mut body, u64::from(successor));
        self.push_bookkeeping(RecordKind::Seal, &body);
    }

    fn push_bookkeeping(&mut self, kind: RecordKind, body: &[u8]) {
        let length = (format::PREFIX_BYTES + 1 + body.len()) as u32;
        self.push(length, kind, body, &[]);
    }

    /// Seals the last segment and begins another with space for a record of `length` bytes.
    pub(super) fn roll(&mut self, length: u32) -> Result<(), JournalError> {
        let spare = self.take_spare(self.room_for(u64::from(length)))?;
        self.push_seal(spare.number);
        self.begin(spare);
        self.push_begin();
        Ok(())
    }

    /// Capacity of a segment that holds its own bookkeeping and `length` bytes of records.
    pub(super) fn room_for(&self, length: u64) -> u64 {
        let begin = 64 + 20 * (self.state.segments.len() as u64 + 1);
        writer::capacity_for(u64::from(HEADER_BYTES + MARK_BYTES) + begin + length)
    }

    pub(super) fn begin(&mut self, spare: Spare<S::File>) {
        let segment =
            Segment { file_bytes: u64::from(spare.capacity), end: HEADER_BYTES, ..Segment::default() };
        self.state.segments.insert(spare.number, segment);
        self.tail.push_back(Writer::new(spare.number, Arc::new(spare.file), spare.capacity));
    }

    pub(super) fn push_begin(&mut self) {
        let Some(number) = self.tail.back().map(|writer| writer.number) else { return };
        let mut body = Vec::new();
        format::push_varint(&mut body, self.state.next_sequence);
        format::push_varint(&mut body, self.state.next_note);
        for listed in self.state.inventory(number) {
            format::push_listed(&mut body, listed);
        }
        self.push_bookkeeping(RecordKind::Begin, &body);
    }

    fn take_spare(&mut self, needed: u64) -> Result<Spare<S::File>, JournalError> {
        if let Some(spare) = self.spare.take() {
            if u64::from(spare.capacity) >= needed {
                return Ok(spare);
            }
            // Too small for this record. Segment numbers must be used in order, so it cannot be kept for later. If the
            // removal fails, the next opening removes the file.
            let _ = self.storage.remove(&format::segment_name(spare.number));
        }
        self.create_segment(needed.max(u64::from(self.options.segment_bytes)))
    }

    /// Creates the next segment's file in advance, unless it exists.
    pub(crate) fn prepare_spare(&mut self) -> Result<(), JournalError> {
        if self.spare.is_none() {
            let needed = self.room_for(0).max(u64::from(self.options.segment_bytes));
            self.spare = Some(self.create_segment(needed)?);
        }
        Ok(())
    }

    /// Creates a segment file with its header and makes both durable, so that a later reference to the segment is never
    /// dangling.
    pub(super) fn create_segment(&mut self, capacity: u64) -> Result<Spare<S::File>, JournalError> {
        let number = self.next_segment;
        let name = format::segment_name(number);
        let Ok(capacity) = u32::try_from(capacity) else {
            return Err(JournalError::TooLarge { size: capacity, max: u64::from(u32::MAX) });
        };
        self.next_segment = number.saturating_add(1);
        let header = Header {
            version: VERSION,
            shard: self.options.shard,
            journal: self.identity,
            segment: number,
            capacity,
            created_ms: self.options.now_ms,
        };
        let made = self.storage.create(&name, u64::from(capacity)).and_then(|file| {
            write_whole(&self.storage, &file, 0, &header.encode())?;
            Ok(file)
        });
        let file = match made {
            Ok(file) => file,
            Err(error) => {
                // The number is not reused, whether or not the removal succeeds.
                let _ = self.storage.remove(&name);
                return Err(self.fail_or_mark_full("creating", number, &error, u64::from(capacity)));
            }
        };
        if let Err(error) = self.storage.sync_data(&file) {
            return Err(self.fail(JournalError::io("syncing", &name, &error)));
        }
        self.sync_directory()?;
        Ok(Spare { number, file, capacity })
    }

    pub(crate) fn sync_directory(&mut self) -> Result<(), JournalError> {
        self.storage
            .sync_directory()
            .map_err(|error| self.fail(JournalError::io("syncing", "the directory", &error)))
    }

    /// Syncs the first segment of the tail, which is sealed and written, and moves on to the next.
    pub(super) fn sync_first(&mut self) -> Result<(), JournalError> {
        let Some(writer) = self.tail.pop_front() else { return Ok(()) };
        if let Err(error) = self.storage.sync_data(&writer.file) {
            let name = format::segment_name(writer.number);
            self.tail.push_front(writer);
            return Err(self.fail(JournalError::io("syncing", &name, &error)));
        }
        // Only a file with a durable seal may be truncated. A failure costs nothing but space.
        let end = u64::from(writer.written());
        if self.storage.set_length(&writer.file, end).is_ok()
            && let Some(segment) = self.state.segments.get_mut(&writer.number)
        {
            segment.file_bytes = end;
        }
        self.keep_open(writer.number, writer.file);
        Ok(())
    }
}

fn push_count(body: &mut Vec<u8>, segment: Option<&Segment>, next_sequence: u64) {
    format::push_varint(body, segment.map_or(0, |segment| u64::from(segment.records)));
    format::push_varint(body, next_sequence);
}
