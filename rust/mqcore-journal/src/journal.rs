//! The journal of one shard: a log of segment files.
//!
//! Records are buffered, written with one call per batch, and made durable with one sync. Safety rests on the order of these
//! steps, which `docs/storage-format.md` explains. In short:
//!
//! * A segment is sealed and synced before the next one receives its first record, so a crash always leaves a prefix of
//!   what was written.
//! * A record that is still needed is copied and synced before its segment is removed.
//! * A failed sync is never retried.

mod append;
pub(crate) mod listing;
mod opening;
mod read;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::error::{JournalError, Shortage};
use crate::format::{self, RecordKind};
use crate::options::Options;
use crate::recovery::{Recovered, RecoveryReport};
use crate::relocation::Relocation;
use crate::state::{JournalState, Segment};
use crate::stats::{Health, SegmentStats, Stats};
use crate::storage::Storage;
use crate::writer::{SpaceClass, Writer};

/// Size in bytes at which a settlement record is closed and another begun. It must fit the reserve of a small segment.
const SETTLE_RECORD_BYTES: usize = 1024;

/// One shard's log. See the [module documentation](self).
///
/// ```
/// use mqcore_journal::journal::Journal;
/// use mqcore_journal::options::Options;
/// use mqcore_journal::storage::MemoryStorage;
///
/// let storage = MemoryStorage::new(1);
/// let (mut journal, _) = Journal::open(storage.clone(), Options::default(), &mut |_, _| {})?;
/// journal.put(1, 7, &[b"hello, ", b"world"])?;
/// journal.put(2, 7, &[b"settled"])?;
/// journal.settle(&[2])?;
/// journal.write()?;
/// journal.sync()?; // from here on, the records survive a crash
/// drop(journal);
///
/// let (journal, recovered) = Journal::open(storage, Options::default(), &mut |_, _| {})?;
/// assert_eq!(recovered.report.live, 1);
/// assert_eq!(journal.read(1)?, b"hello, world");
/// # Ok::<(), mqcore_journal::error::JournalError>(())
/// ```
#[derive(Debug)]
pub struct Journal<S: Storage> {
    pub(crate) storage: S,
    pub(crate) options: Options,
    /// Random number of this journal, part of all checksums.
    pub(crate) identity: u64,
    pub(crate) state: JournalState,
    pub(crate) condition: Condition,
    /// Segments with unsynced or future writes, oldest first. Never empty once the journal is open; records go to the last.
    pub(crate) tail: VecDeque<Writer<S::File>>,
    pub(crate) spare: Option<Spare<S::File>>,
    pub(crate) next_segment: u32,
    /// Segments that the catalog on disk lists.
    pub(crate) cataloged: BTreeSet<u32>,
    /// Length of the catalog on disk; 0: there is none that can be used.
    pub(crate) catalog_bytes: u64,
    /// Time before which the catalog is not written again, after a failure, in milliseconds.
    pub(crate) catalog_retry_ms: u64,
    pub(crate) moving: Option<Relocation>,
    /// While a snapshot is being copied, no segment is removed.
    pub(crate) pinned: bool,
    pub(crate) quarantined: u64,
    /// Time of the last housekeeping in milliseconds, as the caller gave it.
    pub(crate) house_ms: u64,
    /// Notes below this number are archived elsewhere and no longer keep a segment.
    pub(crate) released_notes_below: u64,
    /// Whether an archiver reads and releases notes.
    pub(crate) has_note_reader: bool,
    files: RefCell<Vec<(u32, Arc<S::File>)>>,
}

/// A segment file created in advance.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub(crate) number: u32,
    file: F,
    capacity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    Healthy,
    /// Space or file descriptors are missing, which may pass.
    Full(Shortage),
    Failed(JournalError),
}

impl<S: Storage> Journal<S> {
    /// Opens the journal in `storage`, or creates it. Calls `progress` with the scanned and the total number of bytes.
    ///
    /// Damage does not prevent opening: the report lists what is lost, and the rest is served.
    ///
    /// # Errors
    /// - [`JournalError::Version`], [`JournalError::Shard`]: the files are not usable here. Nothing was changed.
    /// - [`JournalError::Full`]: not even the smallest new segment can be created.
    /// - [`JournalError::Io`]: the directory cannot be listed, or recovered records cannot be made durable.
    pub fn open(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Recovered), JournalError> {
        Self::open_with_observers(storage, options, progress, &mut |_, _| {}, &mut |_| Ok(()))
    }

    /// Like [`Self::open`], and also calls `seen` with the number and payload of each put that the scan reads, and then `found`
    /// with the report, before it changes any file.
    ///
    /// The order is arbitrary. Settled puts are included, and a relocated put may appear twice. A caller that needs a fact about
    /// each live record thus avoids a second read; [`Self::live`] lists the live numbers. Opening repairs what the report
    /// describes, so the next opening may not report it again: `found` can save it.
    ///
    /// # Errors
    /// The same as [`Self::open`], and the error of `found`, after which no file was changed.
    pub fn open_with_observers(
        storage: S,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
        seen: &mut dyn FnMut(u64, &[u8]),
        found: &mut dyn FnMut(&RecoveryReport) -> Result<(), JournalError>,
    ) -> Result<(Self, Recovered), JournalError> {
        let (mut journal, mut recovered, endings) = Self::read_only_state(storage, options, progress, seen)?;
        journal.report_findings(&recovered.report)?;
        found(&recovered.report)?;
        // Before the first segment of version 2, so that a journal without a catalog has lost it.
        if endings.has_catalog {
            // An earlier opening may have ended between writing the catalog and making its name durable.
            journal.sync_directory()?;
        } else {
            journal.create_catalog()?;
        }
        journal.remove_unused_files(&endings.leftovers);
        journal.begin_first_segment(&endings.tails, &endings.closings)?;
        match journal.write_catalog() {
            Err(error) if matches!(journal.condition, Condition::Failed(_)) => return Err(error),
            // The old one is still valid; housekeeping tries again.
            Ok(()) | Err(_) => {}
        }
        recovered.next_sequence = journal.state.next_sequence;
        Ok((journal, recovered))
    }

    /// Buffers a record that stays live until it is settled. `sequence` must be larger than all previous numbers.
    ///
    /// The payload consists of several parts so that the caller need not join them.
    ///
    /// # Errors
    /// - [`JournalError::Full`]: no space is left; nothing was buffered, so reject the message.
    /// - [`JournalError::Order`]: `sequence` was already used.
    /// - [`JournalError::TooLarge`]: the record exceeds [`Options::max_record_bytes`].
    /// - Any other error: the journal has failed.
    pub fn put(&mut self, sequence: u64, queue: u32, payload: &[&[u8]]) -> Result<(), JournalError> {
        let next = self.state.next_sequence;
        if sequence < next || sequence == u64::MAX {
            return Err(JournalError::Order { sequence, next });
        }
        let (head, length) = format::encode_put_head(queue, sequence);
        self.emit(SpaceClass::Publish, RecordKind::Put, &head[..length], payload)?;
        Ok(())
    }

    /// Buffers the settlement of records, which ends their life. Numbers that are not live are ignored.
    ///
    /// A long list may take several records, of which a crash may leave only the first ones.
    ///
    /// # Errors
    /// - [`JournalError::Full`]: even the reserve for settlements is used up. Some may have been buffered; repeat the call.
    /// - Any other error: the journal has failed.
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
            if body.len() > SETTLE_RECORD_BYTES {
                self.emit(SpaceClass::Essential, RecordKind::Settle, &body, &[])?;
                (body, floor) = (Vec::new(), 0);
            }
        }
        if !body.is_empty() {
            self.emit(SpaceClass::Essential, RecordKind::Settle, &body, &[])?;
        }
        Ok(())
    }

    /// Buffers a touch: the small, changing part of a live record. The latest one applies. Ignored if the record is not live.
    ///
    /// # Errors
    /// The same as [`Self::settle`], and [`JournalError::TooLarge`].
    pub fn touch(&mut self, sequence: u64, payload: &[u8]) -> Result<(), JournalError> {
        self.touch_within(SpaceClass::Essential, sequence, payload)
    }

    /// Like [`Self::touch`], but takes nothing of the reserve for settlements. A caller that touches each record before it
    /// settles it would use up the reserve before housekeeping can remove a segment.
    ///
    /// # Errors
    /// The same as [`Self::put`], except [`JournalError::Order`].
    pub fn touch_outside_reserve(&mut self, sequence: u64, payload: &[u8]) -> Result<(), JournalError> {
        self.touch_within(SpaceClass::Publish, sequence, payload)
    }

    fn touch_within(&mut self, class: SpaceClass, sequence: u64, payload: &[u8]) -> Result<(), JournalError> {
        self.check_failed()?;
        if self.state.puts.contains(sequence) {
            self.emit(class, RecordKind::Touch, &sequence.to_le_bytes(), &[payload])?;
        }
        Ok(())
    }

    /// Buffers a definition. The latest value of a key applies.
    ///
    /// # Errors
    /// The same as [`Self::touch`].
    pub fn define(&mut self, key: &[u8], value: &[u8]) -> Result<(), JournalError> {
        let mut head = Vec::with_capacity(key.len() + 5);
        format::push_varint(&mut head, key.len() as u64);
        head.extend_from_slice(key);
        self.emit(SpaceClass::Essential, RecordKind::Define, &head, &[value])?;
        Ok(())
    }

    /// Buffers the removal of a definition. Ignored if the key is not defined.
    ///
    /// # Errors
    /// The same as [`Self::settle`].
    pub fn undefine(&mut self, key: &[u8]) -> Result<(), JournalError> {
        self.check_failed()?;
        if self.state.definitions.contains_key(key) {
            self.emit(SpaceClass::Essential, RecordKind::Undefine, key, &[])?;
        }
        Ok(())
    }

    /// Buffers a note, an entry of the history, and returns its number.
    ///
    /// Notes are never live. The options determine how long they are retained.
    ///
    /// # Errors
    /// The same as [`Self::put`].
    pub fn note(&mut self, time_ms: u64, payload: &[u8]) -> Result<u64, JournalError> {
        let number = self.state.next_note;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..].copy_from_slice(&time_ms.to_le_bytes());
        self.emit(SpaceClass::Publish, RecordKind::Note, &head, &[payload])?;
        Ok(number)
    }

    /// Writes all buffered records, with one call per affected segment, which is nearly always one segment.
    ///
    /// A segment that is full is sealed and synced before the next one is written.
    ///
    /// # Errors
    /// - [`JournalError::Full`]: the remaining records stay buffered and readable, and the next `write` retries. Settle the puts
    ///   of producers that were rejected in the meantime.
    /// - Any other error: the journal has failed.
    pub fn write(&mut self) -> Result<(), JournalError> {
        self.check_failed()?;
        loop {
            let last = self.tail.len() == 1;
            let Some(writer) = self.tail.front_mut() else { return Ok(()) };
            if let Err(error) = writer.flush(&self.storage) {
                let (number, pending) = (writer.number, writer.pending() as u64);
                return Err(self.fail_or_mark_full("writing", number, &error, pending));
            }
            if last {
                return Ok(());
            }
            self.sync_first()?;
        }
    }

    /// Makes all written records durable. Returns immediately if they already are.
    ///
    /// # Errors
    /// An error means that the journal has failed. The state of unconfirmed records is unknown until the journal is opened
    /// again, and no later sync can succeed.
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

    /// Whether there are records that [`Self::write`] or [`Self::sync`] has not made durable yet.
    pub fn has_unsynced(&self) -> bool {
        let is_unsynced = |writer: &Writer<S::File>| writer.pending() > 0 || writer.written() > writer.synced;
        self.tail.len() > 1 || self.tail.front().is_some_and(is_unsynced)
    }

    /// Writes and syncs all records, and marks the end as durable. The next opening can then distinguish damage in the last
    /// batch from a torn write.
    ///
    /// # Errors
    /// The same as [`Self::write`] and [`Self::sync`].
    pub fn close(mut self) -> Result<(), JournalError> {
        self.close_in_place()
    }

    pub(crate) fn close_in_place(&mut self) -> Result<(), JournalError> {
        self.write()?;
        self.sync()?;
        self.mark_end()?;
        if self.pinned {
            return Ok(());
        }
        // With the ends of all segments, the next opening misses whatever the disk loses of them.
        match self.write_catalog() {
            Err(error) if matches!(self.condition, Condition::Failed(_)) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Marks everything written so far as durable, and syncs the mark itself. Writes nothing if the journal has not changed
    /// since: otherwise each snapshot of an idle journal would differ from the one before.
    pub(crate) fn mark_end(&mut self) -> Result<(), JournalError> {
        if self.tail.back().is_some_and(|writer| writer.needs_mark() && !writer.ends_with_mark()) {
            self.push_mark();
        }
        self.write()?;
        self.sync()
    }

    /// Seals the current segment if it holds notes older than `time_ms`, so that an archiver can read them. Writes and syncs
    /// buffered records.
    ///
    /// # Errors
    /// The same as [`Self::write`]. [`JournalError::Full`] also if there is no space for another segment; then nothing has
    /// changed, and records go to the current one.
    pub fn seal_notes(&mut self, time_ms: u64) -> Result<(), JournalError> {
        self.check_failed()?;
        let old = |segment: &Segment| segment.notes > 0 && segment.oldest_note_ms < time_ms;
        let last = self.tail.back().and_then(|writer| self.state.segments.get(&writer.number));
        if self.condition != Condition::Healthy || !last.is_some_and(old) {
            return Ok(());
        }
        if let Err(error) = self.roll(0) {
            if self.shortage().is_some() {
                // No record needs another segment yet.
                self.condition = Condition::Healthy;
            }
            return Err(error);
        }
        self.write()
    }

    /// Changes how long notes are retained. See [`Options::retain_notes_ms`] and [`Options::retain_notes_bytes`].
    pub fn retain_notes(&mut self, age_ms: Option<u64>, bytes: Option<u64>) {
        (self.options.retain_notes_ms, self.options.retain_notes_bytes) = (age_ms, bytes);
    }

    /// Declares that notes below this number are archived elsewhere.
    ///
    /// Housekeeping may then remove them, and leaves the other notes where the archiver can read them. Call this after each
    /// opening, even if there is nothing to release yet.
    pub fn release_notes(&mut self, below: u64) {
        self.has_note_reader = true;
        self.released_notes_below = self.released_notes_below.max(below);
    }

    /// Smallest number that [`Self::put`] accepts.
    pub fn next_sequence(&self) -> u64 {
        self.state.next_sequence
    }

    /// Whether the journal accepts records.
    pub fn health(&self) -> Health {
        match self.condition {
            Condition::Healthy => Health::Healthy,
            Condition::Full(_) => Health::Full,
            Condition::Failed(_) => Health::Failed,
        }
    }

    /// Computes the current statistics. Iterates over all segments.
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

    /// Random number that identifies this journal.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// The storage, for callers that inspect the files.
    pub fn storage(&self) -> &S {
        &self.storage
    }
}
