//! The journal: records go into a buffer, to the files with one write, and become durable with one sync.
//!
//! The order of steps is the whole of its safety, and `docs/storage.md` argues it. In short: a segment is sealed and
//! synced before the next one gets its first record, so that what a crash leaves is always a beginning of what was
//! written; a record that is still needed is copied and synced before its segment goes; and a sync that failed is
//! never tried again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{JournalError, says_full};
use crate::format::{self, Checked, HEADER_BYTES, Header, Kind, Location, MARK_BYTES, Record};
use crate::maintenance::Move;
use crate::notes::{Inventory, SealedNotes};
use crate::options::{Options, SMALLEST_SEGMENT};
use crate::reading::Show;
use crate::recovery::{self, Found, Recovered};
use crate::state::{Segment, State};
use crate::stats::{Health, SegmentStats, Stats};
use crate::storage::{Storage, read_most, write_whole};
use crate::writer::{self, Class, Writer};

/// How many sealed segments are kept open for reading; descriptors are not a journal's to hoard.
const OPEN_FILES: usize = 32;
/// How much is read ahead while all live records are visited, in bytes.
const READ_AHEAD: usize = 256 << 10;
/// A settlement record is ended beyond this, in bytes: it must fit the reserve of a small segment.
const SETTLE_BYTES: usize = 1024;

/// One shard's log. See the [module's](self) introduction.
#[derive(Debug)]
pub struct Journal<S: Storage> {
    pub(crate) storage: S,
    pub(crate) options: Options,
    /// What all checksums are bound to.
    pub(crate) identity: u64,
    pub(crate) state: State,
    pub(crate) condition: Condition,
    /// Segments with something to write, oldest first. Never empty once it is open; the last is the one that records
    /// go to.
    pub(crate) tail: VecDeque<Writer<S::File>>,
    pub(crate) spare: Option<Spare<S::File>>,
    pub(crate) next_segment: u32,
    pub(crate) moving: Option<Move>,
    /// A snapshot needs the files as they are: nothing is removed.
    pub(crate) pinned: bool,
    pub(crate) quarantined: u64,
    /// Notes below this number are kept elsewhere and keep no segment any more.
    pub(crate) released_notes: u64,
    /// Somebody reads notes, and releases them.
    pub(crate) notes_are_read: bool,
    files: RefCell<Vec<(u32, Arc<S::File>)>>,
}

/// What opening has to put in order before anything is written.
#[derive(Debug)]
pub(crate) struct Endings {
    pub(crate) tails: Vec<recovery::Tail>,
    pub(crate) closings: Vec<recovery::Closing>,
    pub(crate) leftovers: Vec<recovery::Leftover>,
}

/// A segment that is made but not begun.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub(crate) number: u32,
    file: F,
    capacity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    Healthy,
    Full,
    Failed(JournalError),
}

/// A live record, as [`Journal::each_live`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live<'a> {
    /// Its number.
    pub sequence: u64,
    /// The queue it was put for.
    pub queue: u32,
    /// What was put.
    pub payload: &'a [u8],
    /// Its latest touch.
    pub touch: Option<&'a [u8]>,
}

/// A note, as [`Journal::each_note`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'a> {
    /// Numbers ascend in the order of noting. A crash during housekeeping may leave a note twice, with one number.
    pub number: u64,
    /// When it was noted, in the caller's milliseconds.
    pub time_ms: u64,
    /// What was noted.
    pub payload: &'a [u8],
}

impl<S: Storage> Journal<S> {
    /// Opens the journal in `storage`, or creates it. `progress` is told how many bytes of how many are scanned.
    ///
    /// Damage does not stop it: what is lost is in the report, and the rest is served.
    ///
    /// # Errors
    /// [`JournalError::Version`] and [`JournalError::Shard`] before anything was changed; [`JournalError::Full`] if
    /// not even the smallest new segment can be made; [`JournalError::Io`] if the directory cannot be listed or
    /// what was found cannot be made durable.
    pub fn open(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered), JournalError> {
        Self::open_watching(storage, options, progress, &mut |_, _| {})
    }

    /// As [`Self::open`], and shows number and payload of each put that it comes by, in no certain order: of those that
    /// turn out to be settled too, and of one that was moved perhaps twice. So whoever wants to know something of each
    /// live record need not read them all again: [`Self::live`] says which they are.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_watching(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
        seen: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(Self, Recovered), JournalError> {
        let (mut journal, mut recovered, endings) = Self::unopened(storage, options, progress, seen)?;
        journal.put_leftovers_away(&endings.leftovers)?;
        journal.begin_anew(&endings.tails, &endings.closings)?;
        recovered.next_sequence = journal.state.next_sequence;
        Ok((journal, recovered))
    }

    /// Reads what is there and changes nothing: a journal without a segment to write, from which only the functions
    /// that read may be called.
    pub(crate) fn unopened(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
        seen: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(Self, Recovered, Endings), JournalError> {
        let options = options.bounded();
        let Found {
            identity,
            state,
            definitions,
            mut report,
            next_segment,
            tails,
            closings,
            leftovers,
            quarantined,
        } = recovery::recover(&storage, &options, progress, seen)?;
        report.live = state.puts.len() as u64;
        let recovered = Recovered {
            definitions: definitions.into_iter().map(|(key, value)| (key.into_vec(), value)).collect(),
            next_sequence: state.next_sequence,
            report,
        };
        let journal = Self {
            storage,
            options,
            identity,
            state,
            condition: Condition::Healthy,
            tail: VecDeque::new(),
            spare: None,
            next_segment,
            moving: None,
            pinned: false,
            quarantined,
            released_notes: 0,
            notes_are_read: false,
            files: RefCell::default(),
        };
        Ok((journal, recovered, Endings { tails, closings, leftovers }))
    }

    /// Buffers a record that is live until it is settled. Its number must be larger than any before.
    ///
    /// The payload is given in parts, so that the caller need not join them.
    ///
    /// # Errors
    /// [`JournalError::Full`]: refuse the message; nothing was taken. [`JournalError::Order`],
    /// [`JournalError::TooLarge`], and the journal's failure.
    pub fn put(&mut self, sequence: u64, queue: u32, payload: &[&[u8]]) -> Result<(), JournalError> {
        let next = self.state.next_sequence;
        if sequence < next || sequence == u64::MAX {
            return Err(JournalError::Order { sequence, next });
        }
        let (head, length) = format::put_head(queue, sequence);
        self.emit(Class::Put, Kind::Put, &head[..length], payload)?;
        Ok(())
    }

    /// Buffers that records are done with. Numbers that are not live are left out. Very many numbers may become
    /// several records, of which a crash may keep the first ones only.
    ///
    /// # Errors
    /// [`JournalError::Full`] when even the reserve for settlements is used up: some may have been taken, and all
    /// can be tried again. And the journal's failure.
    pub fn settle(&mut self, sequences: &[u64]) -> Result<(), JournalError> {
        self.check_failed()?;
        let mut live: Vec<u64> =
            sequences.iter().copied().filter(|&sequence| self.state.puts.contains(sequence)).collect();
        live.sort_unstable();
        live.dedup();
        let mut body = Vec::new();
        let mut floor = 0;
        for run in live.chunk_by(|a, b| a + 1 == *b) {
            let (first, last) = (run[0], run[run.len() - 1]);
            format::push_varint(&mut body, first - floor);
            format::push_varint(&mut body, last - first);
            floor = last + 1;
            if body.len() > SETTLE_BYTES {
                self.emit(Class::Keep, Kind::Settle, &body, &[])?;
                (body, floor) = (Vec::new(), 0);
            }
        }
        if !body.is_empty() {
            self.emit(Class::Keep, Kind::Settle, &body, &[])?;
        }
        Ok(())
    }

    /// Buffers the small changing part of a live record; the latest wins. A record that is not live is left alone.
    ///
    /// # Errors
    /// As for [`Self::settle`], and [`JournalError::TooLarge`].
    pub fn touch(&mut self, sequence: u64, payload: &[u8]) -> Result<(), JournalError> {
        self.check_failed()?;
        if self.state.puts.contains(sequence) {
            self.emit(Class::Keep, Kind::Touch, &sequence.to_le_bytes(), &[payload])?;
        }
        Ok(())
    }

    /// Buffers a definition; the latest of a key wins.
    ///
    /// # Errors
    /// As for [`Self::touch`].
    pub fn define(&mut self, key: &[u8], value: &[u8]) -> Result<(), JournalError> {
        let mut head = Vec::with_capacity(key.len() + 5);
        format::push_varint(&mut head, key.len() as u64);
        head.extend_from_slice(key);
        self.emit(Class::Keep, Kind::Define, &head, &[value])?;
        Ok(())
    }

    /// Buffers that a definition no longer holds. A key that is not defined is left alone.
    ///
    /// # Errors
    /// As for [`Self::settle`].
    pub fn undefine(&mut self, key: &[u8]) -> Result<(), JournalError> {
        self.check_failed()?;
        if self.state.definitions.contains_key(key) {
            self.emit(Class::Keep, Kind::Undefine, key, &[])?;
        }
        Ok(())
    }

    /// Buffers a piece of history: never live, kept as long as the options say. Answers its number.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn note(&mut self, time_ms: u64, payload: &[u8]) -> Result<u64, JournalError> {
        let number = self.state.next_note;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..].copy_from_slice(&time_ms.to_le_bytes());
        self.emit(Class::Put, Kind::Note, &head, &[payload])?;
        Ok(number)
    }

    /// Hands all that is buffered to the files, with one write for each segment concerned, which is one nearly always.
    /// A segment that is full is sealed and synced here before the next one is written.
    ///
    /// # Errors
    /// [`JournalError::Full`]: nothing of the rest was taken back; it stays buffered and readable, and the next
    /// `write` tries again. Settle the puts whose publishers were refused meanwhile. Any other error is the
    /// journal's failure.
    pub fn write(&mut self) -> Result<(), JournalError> {
        self.check_failed()?;
        loop {
            let last = self.tail.len() == 1;
            let Some(writer) = self.tail.front_mut() else { return Ok(()) };
            if let Err(error) = writer.flush(&self.storage) {
                let (number, pending) = (writer.number, writer.pending() as u64);
                return Err(self.give_up("writing", number, &error, pending));
            }
            if last {
                return Ok(());
            }
            self.finish_first()?;
        }
    }

    /// Makes durable what was written. Returns at once if that is so already.
    ///
    /// # Errors
    /// The journal's failure, which this call may be: what the disk did not confirm is then unknown until the
    /// journal is opened anew, and no later sync will claim otherwise.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.check_failed()?;
        let Some(writer) = self.tail.front_mut().filter(|writer| writer.written() > writer.synced) else {
            return Ok(());
        };
        match self.storage.sync_data(&writer.file) {
            Ok(()) => {
                writer.confirm();
                Ok(())
            }
            Err(error) => {
                let name = format::segment_name(writer.number);
                Err(self.fail(JournalError::io("syncing", &name, &error)))
            }
        }
    }

    /// Writes, syncs, and leaves the word that all was durable, so that the next opening can tell damage in the last
    /// batch from a torn end.
    ///
    /// # Errors
    /// As for [`Self::write`] and [`Self::sync`].
    pub fn close(mut self) -> Result<(), JournalError> {
        self.close_in_place()
    }

    pub(crate) fn close_in_place(&mut self) -> Result<(), JournalError> {
        self.write()?;
        self.sync()?;
        self.mark_end()
    }

    /// Leaves the word that all before was durable, and makes that durable too.
    pub(crate) fn mark_end(&mut self) -> Result<(), JournalError> {
        if self.tail.back().is_some_and(Writer::wants_mark) {
            self.push_mark();
        }
        self.write()?;
        self.sync()
    }

    /// The payload of a live record, from the buffer or verified from the disk.
    ///
    /// # Errors
    /// [`JournalError::NotLive`], [`JournalError::Damaged`], or [`JournalError::Io`], which here fails nothing else.
    pub fn read(&self, sequence: u64) -> Result<Vec<u8>, JournalError> {
        let at = self.state.puts.get(sequence).ok_or(JournalError::NotLive(sequence))?;
        let mut record = Vec::new();
        self.read_record(at, &mut record)?;
        match format::decode(&record) {
            Some(Record::Put { sequence: found, payload, .. }) if found == sequence => {
                let header = record.len() - payload.len();
                record.drain(..header);
                Ok(record)
            }
            _ => Err(JournalError::Damaged {
                segment: at.segment,
                offset: at.offset,
                why: "another record stands here",
            }),
        }
    }

    /// Shows every live record with a number from `first` on, in ascending order, read ahead from the disk. Where one
    /// cannot be read, its number and the error are shown instead.
    pub fn each_live(&self, first: u64, show: &mut dyn FnMut(u64, Result<Live<'_>, JournalError>)) {
        let (mut puts, mut touches) = (ReadAhead::default(), ReadAhead::default());
        for (sequence, at) in self.state.puts.iter_from(first) {
            let touch = match self.state.touches.get(sequence) {
                None => Ok(None),
                Some(touched) => touches.record(self, touched).map(|record| match format::decode(record) {
                    Some(Record::Touch { payload, .. }) => Some(payload),
                    _ => None,
                }),
            };
            let live = puts.record(self, at).and_then(|record| match format::decode(record) {
                Some(Record::Put { sequence: found, queue, payload, .. }) if found == sequence => {
                    Ok(Live { sequence, queue, payload, touch: touch? })
                }
                _ => Err(JournalError::Damaged {
                    segment: at.segment,
                    offset: at.offset,
                    why: "another record stands here",
                }),
            });
            show(sequence, live);
        }
    }

    /// The numbers of all live records, ascending.
    pub fn live(&self) -> impl Iterator<Item = u64> {
        self.state.puts.iter_from(0).map(|(sequence, _)| sequence)
    }

    /// Shows the latest touch of each live record that has one, in ascending order of numbers.
    pub fn each_touch(&self, show: &mut Show<'_>) {
        let mut touches = ReadAhead::default();
        for (sequence, at) in self.state.touches.iter_from(0) {
            let touch = touches.record(self, at).and_then(|record| match format::decode(record) {
                Some(Record::Touch { sequence: found, payload }) if found == sequence => Ok(payload),
                _ => Err(JournalError::Damaged {
                    segment: at.segment,
                    offset: at.offset,
                    why: "another record stands here",
                }),
            });
            show(sequence, touch);
        }
    }

    /// Shows the notes of one sealed or written segment, in its order; [`Stats`] lists the segments.
    ///
    /// # Errors
    /// [`JournalError::Io`] if the segment cannot be read.
    pub fn each_note(&self, segment: u32, show: &mut dyn FnMut(Note<'_>)) -> Result<(), JournalError> {
        let Some(end) = self.state.segments.get(&segment).map(|segment| segment.end) else { return Ok(()) };
        let end = self.tail.iter().find(|writer| writer.number == segment).map_or(end, Writer::written);
        let bytes = self.read_segment(segment, end)?;
        for span in crate::scan::scan(&bytes, self.identity, segment, Some(end)).records {
            let record = &bytes[span.offset as usize..span.end() as usize];
            if let Some(Record::Note { number, time_ms, payload }) = format::decode(record) {
                show(Note { number, time_ms, payload });
            }
        }
        Ok(())
    }

    /// Which sealed segments hold notes that are kept, for [`notes::read`](crate::notes::read).
    pub fn sealed_notes(&self) -> Inventory {
        let open = self.tail.front().map_or(u32::MAX, |writer| writer.number);
        let mut inventory = Inventory { journal: self.identity, ..Inventory::default() };
        for (&segment, state) in &self.state.segments {
            let Some((first, last)) = state.note_numbers.filter(|_| !state.notes_expired) else { continue };
            if segment < open {
                let (end, bytes) = (state.end, state.note_bytes);
                inventory.sealed.push(SealedNotes { segment, end, first, last, bytes });
            } else {
                inventory.open_from = inventory.open_from.min(first);
            }
        }
        inventory.next = self.state.next_note;
        inventory
    }

    /// Ends the segment that is being written if it holds notes that are older than `time_ms`, so that they can be read
    /// by others. Writes and syncs what is pending.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn seal_notes(&mut self, time_ms: u64) -> Result<(), JournalError> {
        self.check_failed()?;
        let old = |segment: &Segment| segment.notes > 0 && segment.oldest_note_ms < time_ms;
        let last = self.tail.back().and_then(|writer| self.state.segments.get(&writer.number));
        if self.condition != Condition::Healthy || !last.is_some_and(old) {
            return Ok(());
        }
        self.roll(0)?;
        self.write()
    }

    /// How long notes keep their segments from now on; see [`Options::retain_notes_ms`] and
    /// [`Options::retain_notes_bytes`].
    pub fn retain_notes(&mut self, age_ms: Option<u64>, bytes: Option<u64>) {
        (self.options.retain_notes_ms, self.options.retain_notes_bytes) = (age_ms, bytes);
    }

    /// Notes below this number are kept elsewhere: housekeeping may remove them, and until then leaves the others where
    /// they can be read. To be said again after each opening, also if there is nothing to release yet.
    pub fn release_notes(&mut self, below: u64) {
        self.notes_are_read = true;
        self.released_notes = self.released_notes.max(below);
    }

    /// The smallest number that [`Self::put`] takes.
    pub fn next_sequence(&self) -> u64 {
        self.state.next_sequence
    }

    /// Whether the journal takes records.
    pub fn health(&self) -> Health {
        match self.condition {
            Condition::Healthy => Health::Healthy,
            Condition::Full => Health::Full,
            Condition::Failed(_) => Health::Failed,
        }
    }

    /// Counts everything; costs a walk over the segments.
    pub fn stats(&self) -> Stats {
        let segments: Vec<SegmentStats> = self
            .state
            .segments
            .iter()
            .map(|(&number, segment)| SegmentStats {
                number,
                file_bytes: segment.file_bytes,
                records: u64::from(segment.records),
                live: u64::from(segment.live),
                live_bytes: segment.live_bytes,
                damaged: segment.damaged,
            })
            .collect();
        Stats {
            health: self.health(),
            live: self.state.puts.len() as u64,
            live_bytes: segments.iter().map(|segment| segment.live_bytes).sum(),
            definitions: self.state.definitions.len() as u64,
            notes: self.state.segments.values().map(|segment| u64::from(segment.notes)).sum(),
            file_bytes: segments.iter().map(|segment| segment.file_bytes).sum::<u64>()
                + self.spare.as_ref().map_or(0, |spare| u64::from(spare.capacity)),
            pending_bytes: self.tail.iter().map(|writer| writer.pending() as u64).sum(),
            index_bytes: (self.state.puts.bytes() + self.state.touches.bytes()) as u64,
            quarantined: self.quarantined + segments.iter().filter(|segment| segment.damaged).count() as u64,
            segments,
        }
    }

    /// What tells this journal from all others.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// The storage, for those who look at the files from outside.
    pub fn storage(&self) -> &S {
        &self.storage
    }
}

/// What writing is made of.
impl<S: Storage> Journal<S> {
    pub(crate) fn check_failed(&self) -> Result<(), JournalError> {
        match &self.condition {
            Condition::Failed(error) => Err(error.clone()),
            Condition::Healthy | Condition::Full => Ok(()),
        }
    }

    /// From here on nothing is believed any more but what was synced before.
    pub(crate) fn fail(&mut self, error: JournalError) -> JournalError {
        self.condition = Condition::Failed(error.clone());
        error
    }

    /// Tells a full disk, which time may heal, from everything else.
    fn give_up(
        &mut self,
        doing: &'static str,
        number: u32,
        error: &std::io::Error,
        needed: u64,
    ) -> JournalError {
        if says_full(error) {
            self.condition = Condition::Full;
            JournalError::Full { needed }
        } else {
            self.fail(JournalError::io(doing, &format::segment_name(number), error))
        }
    }

    /// Buffers one record, in the next segment if this one has no space, and takes it into the state.
    pub(crate) fn emit(
        &mut self,
        class: Class,
        kind: Kind,
        head: &[u8],
        parts: &[&[u8]],
    ) -> Result<Location, JournalError> {
        self.check_failed()?;
        let max = self.options.max_record_bytes;
        let length = format::record_length(head, parts).filter(|&length| length <= max).ok_or_else(|| {
            let size = parts.iter().map(|part| part.len() as u64).sum::<u64>() + head.len() as u64;
            JournalError::TooLarge { size, max: u64::from(max) }
        })?;
        let full = self.condition == Condition::Full;
        if full && (class == Class::Put || !self.fits(class, length)) {
            return Err(JournalError::Full { needed: u64::from(length) });
        }
        if !full && !self.fits(Class::Put, length) {
            match self.roll(length) {
                Ok(()) => {}
                Err(JournalError::Full { .. }) if class != Class::Put && self.fits(class, length) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.append(length, kind, head, parts))
    }

    pub(crate) fn fits(&self, class: Class, length: u32) -> bool {
        self.tail.back().is_some_and(|writer| {
            let end = u64::from(writer.position()) + u64::from(MARK_BYTES) + u64::from(length);
            end <= u64::from(writer::reach(writer.capacity, class))
        })
    }

    /// Appends to the last segment, which must have the space.
    fn append(&mut self, length: u32, kind: Kind, head: &[u8], parts: &[&[u8]]) -> Location {
        if self.tail.back().is_some_and(Writer::wants_mark) {
            self.push_mark();
        }
        self.push(length, kind, head, parts)
    }

    fn push(&mut self, length: u32, kind: Kind, head: &[u8], parts: &[&[u8]]) -> Location {
        let Some(writer) = self.tail.back_mut() else {
            unreachable!("an open journal has a segment to write")
        };
        let at = writer.push(self.identity, length, kind, head, parts);
        if let Some(record) = writer.buffered(at).and_then(format::decode) {
            self.state.apply(&record, at);
        }
        at
    }

    /// Says how far this segment is durable: behind that, and only there, may a crash have torn it.
    fn push_mark(&mut self) {
        let Some(writer) = self.tail.back_mut() else { return };
        writer.marked = writer.synced;
        let (number, synced) = (writer.number, writer.synced);
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(synced));
        self.push_counted(Kind::Mark, number, body);
    }

    fn push_seal(&mut self) {
        let Some(number) = self.tail.back().map(|writer| writer.number) else { return };
        self.push_counted(Kind::Seal, number, Vec::new());
    }

    fn push_counted(&mut self, kind: Kind, number: u32, mut body: Vec<u8>) {
        push_count(&mut body, self.state.segments.get(&number), self.state.next_sequence);
        let length = (format::PREFIX_BYTES + 1 + body.len()) as u32;
        self.push(length, kind, &body, &[]);
    }

    /// Ends the last segment and begins another in which a record of `length` bytes has space.
    fn roll(&mut self, length: u32) -> Result<(), JournalError> {
        let spare = self.take_spare(self.room_for(u64::from(length)))?;
        self.push_seal();
        self.begin(spare);
        self.push_begin();
        Ok(())
    }

    /// The capacity of a segment that takes `length` bytes of records besides its own.
    fn room_for(&self, length: u64) -> u64 {
        let begin = 64 + 20 * (self.state.segments.len() as u64 + 1);
        writer::capacity_for(u64::from(HEADER_BYTES + MARK_BYTES) + begin + length)
    }

    fn begin(&mut self, spare: Spare<S::File>) {
        let segment =
            Segment { file_bytes: u64::from(spare.capacity), end: HEADER_BYTES, ..Segment::default() };
        self.state.segments.insert(spare.number, segment);
        self.tail.push_back(Writer::new(spare.number, Arc::new(spare.file), spare.capacity));
    }

    fn push_begin(&mut self) {
        let Some(number) = self.tail.back().map(|writer| writer.number) else { return };
        let mut body = Vec::new();
        format::push_varint(&mut body, self.state.next_sequence);
        format::push_varint(&mut body, self.state.next_note);
        for listed in self.state.inventory(number) {
            format::push_listed(&mut body, listed);
        }
        let length = (format::PREFIX_BYTES + 1 + body.len()) as u32;
        self.push(length, Kind::Begin, &body, &[]);
    }

    fn take_spare(&mut self, needed: u64) -> Result<Spare<S::File>, JournalError> {
        if let Some(spare) = self.spare.take() {
            if u64::from(spare.capacity) >= needed {
                return Ok(spare);
            }
            // Too small for this one record. Its number is before the next one's, so it cannot wait its turn.
            let name = format::segment_name(spare.number);
            if let Err(error) = self.storage.remove(&name) {
                return Err(self.fail(JournalError::io("removing", &name, &error)));
            }
        }
        self.create_segment(needed.max(u64::from(self.options.segment_bytes)))
    }

    /// Makes the next segment's file, if there is none waiting.
    pub(crate) fn prepare_spare(&mut self) -> Result<(), JournalError> {
        if self.spare.is_none() {
            let needed = self.room_for(0).max(u64::from(self.options.segment_bytes));
            self.spare = Some(self.create_segment(needed)?);
        }
        Ok(())
    }

    /// Makes a segment's file with its header and makes both durable, so that whoever says later that it exists does
    /// not lie.
    fn create_segment(&mut self, capacity: u64) -> Result<Spare<S::File>, JournalError> {
        let number = self.next_segment;
        let name = format::segment_name(number);
        let Ok(capacity) = u32::try_from(capacity) else {
            return Err(JournalError::TooLarge { size: capacity, max: u64::from(u32::MAX) });
        };
        self.next_segment = number.saturating_add(1);
        let header = Header {
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
                // Whether or not this works, the number is not used again.
                let _ = self.storage.remove(&name);
                return Err(self.give_up("creating", number, &error, u64::from(capacity)));
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

    /// Makes the first segment durable, which is sealed and written, and lets the next one have its turn.
    fn finish_first(&mut self) -> Result<(), JournalError> {
        let Some(writer) = self.tail.pop_front() else { return Ok(()) };
        if let Err(error) = self.storage.sync_data(&writer.file) {
            let name = format::segment_name(writer.number);
            self.tail.push_front(writer);
            return Err(self.fail(JournalError::io("syncing", &name, &error)));
        }
        // Only after the seal is durable may the file be shorter than it was made. That it fails costs space only.
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

/// What opening does after the files were read.
impl<S: Storage> Journal<S> {
    /// Removes what a crash left of files that were never begun; sets aside what looks like something else.
    fn put_leftovers_away(&mut self, leftovers: &[recovery::Leftover]) -> Result<(), JournalError> {
        for leftover in leftovers {
            let name = format::segment_name(leftover.segment);
            let done = if leftover.empty {
                self.storage.remove(&name)
            } else {
                self.quarantined += 1;
                self.storage.rename(&name, &format::quarantined_name(leftover.segment))
            };
            done.map_err(|error| JournalError::io("putting away", &name, &error))?;
        }
        Ok(())
    }

    /// Begins a new segment: an old one, whose end a crash may have torn, is never written behind. What stood behind
    /// its last mark is copied, so that it is durable even if the disk once lied about it; only then does the new
    /// segment begin, and with that say where the old ones end.
    fn begin_anew(
        &mut self,
        tails: &[recovery::Tail],
        closings: &[recovery::Closing],
    ) -> Result<(), JournalError> {
        let copied: u64 = tails.iter().map(|tail| tail.bytes.len() as u64).sum();
        let spare = self.first_segment(copied, closings)?;
        self.begin(spare);
        for tail in tails {
            self.copy_tail(tail);
        }
        if copied > 0 {
            self.write()?;
            self.sync()?;
        }
        for closing in closings {
            if let Some(segment) = self.state.segments.get_mut(&closing.segment) {
                (segment.end, segment.records) = (closing.end, closing.records);
            }
        }
        // Two records say that the segment is in use: whoever damages one of them leaves the other.
        self.push_mark();
        self.push_begin();
        self.write()?;
        self.sync()?;
        for closing in closings {
            // Only tidies up: the new segment has said where these end.
            let _ = self.seal_in_place(closing.segment, closing.end, closing.records, Kind::Seal);
        }
        Ok(())
    }

    /// Makes the segment to begin with. On a full disk the space that was reserved behind the last record of the old
    /// ones is given back first, and a small segment will do.
    fn first_segment(
        &mut self,
        copied: u64,
        closings: &[recovery::Closing],
    ) -> Result<Spare<S::File>, JournalError> {
        let needed = self.room_for(copied).max(u64::from(SMALLEST_SEGMENT));
        let mut capacity = needed.max(u64::from(self.options.segment_bytes));
        let first = self.create_segment(capacity);
        if !matches!(first, Err(JournalError::Full { .. })) {
            return first;
        }
        for closing in closings.iter().filter(|closing| !closing.closed) {
            let _ = self.seal_in_place(closing.segment, closing.tail_end, closing.tail_records, Kind::Stop);
        }
        loop {
            match self.create_segment(capacity) {
                Ok(spare) => {
                    self.condition = Condition::Healthy;
                    return Ok(spare);
                }
                Err(JournalError::Full { .. }) if capacity > needed => capacity = (capacity / 4).max(needed),
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies what still counts of a tail.
    fn copy_tail(&mut self, tail: &recovery::Tail) {
        for span in &tail.records {
            let at = Location { segment: tail.segment, offset: span.offset, length: span.length };
            let from = (span.offset - tail.start) as usize;
            let record = &tail.bytes[from..from + span.length as usize];
            let Some(decoded) = format::decode(record) else { continue };
            let kind = match decoded {
                Record::Settle(_) => Kind::Settle,
                other => match self.still_needed(&other, at) {
                    Some(kind) => kind,
                    None => continue,
                },
            };
            let body = &record[format::PREFIX_BYTES + 1..];
            self.append(span.length, kind, body, &[]);
        }
    }

    /// Writes the last record of an old segment into it and cuts the file behind.
    pub(crate) fn seal_in_place(
        &mut self,
        number: u32,
        end: u32,
        records: u32,
        kind: Kind,
    ) -> std::io::Result<()> {
        let file = self.storage.open(&format::segment_name(number))?;
        let length = self.storage.length(&file)?;
        let mut body = Vec::new();
        format::push_varint(&mut body, u64::from(records));
        format::push_varint(&mut body, self.state.next_sequence);
        let at =
            Location { segment: number, offset: end, length: (format::PREFIX_BYTES + 1 + body.len()) as u32 };
        if u64::from(at.end()) > length {
            return Ok(());
        }
        let mut record = Vec::new();
        format::push_record(&mut record, self.identity, at, kind, &body, &[]);
        write_whole(&self.storage, &file, u64::from(end), &record)?;
        self.storage.sync_data(&file)?;
        self.storage.set_length(&file, u64::from(at.end()))?;
        if let Some(segment) = self.state.segments.get_mut(&number) {
            segment.file_bytes = u64::from(at.end());
        }
        Ok(())
    }
}

/// What reading is made of.
impl<S: Storage> Journal<S> {
    /// The kind under which a record at `at` must be copied before its place goes; `None`: it does not count any more.
    /// Settlements are the caller's to judge.
    pub(crate) fn still_needed(&self, record: &Record<'_>, at: Location) -> Option<Kind> {
        let State { puts, touches, definitions, .. } = &self.state;
        match *record {
            Record::Put { sequence, .. } => (puts.get(sequence) == Some(at)).then_some(Kind::Moved),
            Record::Touch { sequence, .. } => (touches.get(sequence) == Some(at)).then_some(Kind::Touch),
            Record::Define { key, .. } => (definitions.get(key) == Some(&at)).then_some(Kind::Define),
            Record::Undefine { key } => (!definitions.contains_key(key)).then_some(Kind::Undefine),
            Record::Note { .. } => Some(Kind::Note),
            _ => None,
        }
    }

    /// A range that is settled in segment `number` and holds a put down in an older one.
    pub(crate) fn ranges_needed(
        &self,
        number: u32,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
    ) -> Vec<RangeInclusive<u64>> {
        ranges.filter(|range| self.state.holds_down(number, range)).collect()
    }

    /// Reads a segment from its start to `end`; shorter if the file is.
    pub(crate) fn read_segment(&self, number: u32, end: u32) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; end as usize];
        let count = self.read_file(number, 0, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Replaces `record` by the verified record at `at`.
    fn read_record(&self, at: Location, record: &mut Vec<u8>) -> Result<(), JournalError> {
        record.clear();
        if let Some(buffered) = self.buffered(at) {
            record.extend_from_slice(buffered);
            return Ok(());
        }
        record.resize(at.length as usize, 0);
        let count = self.read_file(at.segment, u64::from(at.offset), record)?;
        record.truncate(count);
        self.verify(at, record)
    }

    /// Checks that `bytes` begin with the record that should stand at `at`.
    fn verify(&self, at: Location, bytes: &[u8]) -> Result<(), JournalError> {
        let why = match format::check_placed(bytes, self.identity, at) {
            Checked::Valid(length) if length == at.length => return Ok(()),
            Checked::Valid(_) => "a record of another length stands here",
            Checked::Implausible => "no record stands here",
            Checked::Mismatch(_) => "the checksum does not fit",
        };
        Err(JournalError::Damaged { segment: at.segment, offset: at.offset, why })
    }

    fn read_file(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, JournalError> {
        let failed = |error| JournalError::io("reading", &format::segment_name(number), &error);
        let file = self.shared_file(number)?;
        read_most(&self.storage, &file, offset, buffer).map_err(failed)
    }

    /// A segment's file, open for as long as anybody has it.
    pub(crate) fn shared_file(&self, number: u32) -> Result<Arc<S::File>, JournalError> {
        if let Some(writer) = self.tail.iter().find(|writer| writer.number == number) {
            return Ok(Arc::clone(&writer.file));
        }
        if let Some((_, file)) = self.files.borrow().iter().find(|(cached, _)| *cached == number) {
            return Ok(Arc::clone(file));
        }
        let name = format::segment_name(number);
        let file = self.storage.open(&name).map_err(|error| JournalError::io("reading", &name, &error))?;
        let file = Arc::new(file);
        self.keep_open(number, Arc::clone(&file));
        Ok(file)
    }

    /// A record's bytes, if they are not all in a file yet.
    pub(crate) fn buffered(&self, at: Location) -> Option<&[u8]> {
        self.tail.iter().find(|writer| writer.number == at.segment)?.buffered(at)
    }

    fn keep_open(&self, number: u32, file: Arc<S::File>) {
        let mut files = self.files.borrow_mut();
        if files.len() >= OPEN_FILES {
            files.remove(0);
        }
        files.push((number, file));
    }

    pub(crate) fn forget_file(&self, number: u32) {
        self.files.borrow_mut().retain(|(cached, _)| *cached != number);
    }
}

/// A window of one segment, so that neighbours cost one read.
#[derive(Debug, Default)]
struct ReadAhead {
    segment: u32,
    start: u32,
    bytes: Vec<u8>,
    single: Vec<u8>,
}

impl ReadAhead {
    /// The verified record at `at`.
    fn record<S: Storage>(&mut self, journal: &Journal<S>, at: Location) -> Result<&[u8], JournalError> {
        if journal.tail.iter().any(|writer| writer.number == at.segment) {
            journal.read_record(at, &mut self.single)?;
            return Ok(&self.single);
        }
        let length = at.length as usize;
        let inside = |window: &Self| {
            let from = at.offset.checked_sub(window.start).filter(|_| window.segment == at.segment)? as usize;
            (from + length <= window.bytes.len()).then_some(from)
        };
        if inside(self).is_none() {
            (self.segment, self.start) = (at.segment, at.offset);
            self.bytes.resize(length.max(READ_AHEAD), 0);
            let count = journal.read_file(at.segment, u64::from(at.offset), &mut self.bytes);
            self.bytes.truncate(*count.as_ref().unwrap_or(&0));
            count?;
        }
        let from = inside(self).unwrap_or(0);
        let record = self.bytes.get(from..from + length).unwrap_or_default();
        journal.verify(at, record)?;
        Ok(record)
    }
}
