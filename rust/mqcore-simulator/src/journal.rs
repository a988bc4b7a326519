//! The thread that writes a shard's journal, and the one that reads bodies back.
//!
//! Follows `storage/journal_thread.rs` and `storage/body_reader.rs` of the server. A write and its sync are two events of the
//! agenda, so that a crash can happen between them.

use std::collections::{BTreeMap, VecDeque};

use mqcore_broker::model::effect::Load;
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::options::Durability;
use mqcore_broker::model::record::{DeliveryProgress, Record, decode_put};
use mqcore_journal::error::{JournalError, Shortage};
use mqcore_journal::journal::Journal;
use mqcore_journal::reading::LocatedRecords;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::MemoryStorage;

use crate::inbox::{JournalBatch, Urgent};
use crate::time::Micros;

/// Batches of the shard that are written with one write.
const BATCHES_MAX: usize = 256;
/// Idle time after which the thread makes settlements durable that no confirmation waits for.
pub(crate) const IDLE: Micros = 200_000;
/// Time between two rounds of housekeeping while there is work.
const HOUSEKEEPING: Micros = 100_000;
/// Maximum bytes that one step of housekeeping moves.
const HOUSEKEEPING_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterState {
    Healthy,
    Full,
    Failed,
}

/// Bodies that were located, for the thread that reads them.
#[derive(Debug)]
pub(crate) struct BodyRead {
    load: Load,
    located: LocatedRecords<MemoryStorage>,
}

/// The next step of the thread after it took its batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterTake {
    /// It syncs, which takes time.
    Sync,
    /// It waits for the next batch.
    Wait,
}

/// The thread and its journal.
pub(crate) struct JournalTask {
    journal: Journal<MemoryStorage>,
    pub(crate) pending: VecDeque<JournalBatch>,
    /// Events for the shard.
    pub(crate) events: Vec<Urgent>,
    pub(crate) reads: Vec<BodyRead>,
    waiting: VecDeque<Record>,
    touches: BTreeMap<Sequence, DeliveryProgress>,
    settled: Vec<u64>,
    /// Segments in which housekeeping found damage.
    pub(crate) damaged: Vec<u32>,
    last: Sequence,
    durable: Sequence,
    state: WriterState,
    housekept: Micros,
    /// An event of the agenda makes it take batches, or it is syncing.
    pub(crate) busy: bool,
    /// Number of rounds, to recognize that it was idle.
    pub(crate) rounds: u64,
    /// Something may still have to be synced or cleaned up.
    pub(crate) restless: bool,
}

impl JournalTask {
    pub(crate) fn new(journal: Journal<MemoryStorage>) -> Self {
        Self {
            journal,
            pending: VecDeque::new(),
            events: Vec::new(),
            reads: Vec::new(),
            waiting: VecDeque::new(),
            touches: BTreeMap::new(),
            settled: Vec::new(),
            damaged: Vec::new(),
            last: Sequence(0),
            durable: Sequence(0),
            state: WriterState::Healthy,
            housekept: 0,
            busy: false,
            rounds: 0,
            restless: true,
        }
    }

    /// Takes all pending batches and writes them.
    pub(crate) fn take(&mut self, now: Micros, now_ms: u64) -> AfterTake {
        self.rounds += 1;
        self.restless = true;
        let (mut written, mut sync) = (false, false);
        for _ in 0..BATCHES_MAX {
            let Some(batch) = self.pending.pop_front() else { break };
            written |= batch.written;
            sync |= batch.sync;
            self.take_batch(batch);
        }
        match self.write(written, sync) {
            AfterTake::Sync => AfterTake::Sync,
            AfterTake::Wait => {
                self.keep_house_if_due(now, now_ms);
                AfterTake::Wait
            }
        }
    }

    /// The sync after [`AfterTake::Sync`] ends.
    pub(crate) fn sync(&mut self, now: Micros, now_ms: u64) {
        self.rounds += 1;
        match self.journal.sync() {
            Ok(()) => self.report_committed(Durability::Fsync),
            Err(error) => self.fail(&error),
        }
        self.keep_house_if_due(now, now_ms);
    }

    /// Nothing was pending for [`IDLE`].
    pub(crate) fn idle(&mut self, now: Micros, now_ms: u64) {
        self.rounds += 1;
        self.retry(now_ms);
        let is_behind = self.durable < self.last || self.journal.has_unsynced();
        if is_behind && self.write(false, true) == AfterTake::Sync {
            match self.journal.sync() {
                Ok(()) => self.report_committed(Durability::Fsync),
                Err(error) => self.fail(&error),
            }
        }
        self.housekept = now;
        self.restless = self.keep_house(now_ms) || self.state == WriterState::Full;
    }

    /// The broker stops in order: what is pending is written and the journal is closed.
    pub(crate) fn close(mut self, now_ms: u64) {
        for batch in std::mem::take(&mut self.pending) {
            self.take_batch(batch);
        }
        self.write(false, true);
        self.retry(now_ms);
        if self.state != WriterState::Failed {
            // If closing fails, the next start reads the journal in full.
            let _ = self.journal.close();
        }
    }

    fn take_batch(&mut self, batch: JournalBatch) {
        // Before the records, because some records may settle messages to be read.
        for load in batch.reads {
            let sequences: Vec<u64> = load.sequences.iter().map(|sequence| sequence.0).collect();
            self.reads.push(BodyRead { located: self.journal.locate(&sequences), load });
        }
        for block in batch.history {
            if self.state == WriterState::Healthy
                && let Err(error) = self.journal.note(block.time.0, &block.bytes)
            {
                match error {
                    JournalError::Full { shortage, .. } => self.refuse(WriterState::Full, shortage.as_str()),
                    JournalError::TooLarge { .. } => {}
                    error => self.fail(&error),
                }
            }
        }
        for (sequence, record) in batch.records {
            self.last = sequence;
            if self.state == WriterState::Failed {
                continue;
            }
            if let Record::Touch(message, _) | Record::Settle(message) = &record {
                self.touches.remove(message);
            }
            let is_ordered = !record.is_put() && !matches!(record, Record::Touch(..));
            if is_ordered && !self.waiting.is_empty() {
                self.waiting.push_back(record);
                continue;
            }
            match self.append(sequence, &record) {
                Ok(()) => {}
                Err(JournalError::Full { shortage, .. }) => {
                    self.refuse(WriterState::Full, shortage.as_str());
                    if let Record::Touch(touched, progress) = record {
                        self.touches.insert(touched, progress);
                    } else if is_ordered {
                        self.waiting.push_back(record);
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    fn append(&mut self, sequence: Sequence, record: &Record) -> Result<(), JournalError> {
        match JournalEntry::from(record) {
            JournalEntry::Put(message) => {
                if self.state == WriterState::Full {
                    let needed = message.body_bytes() as u64;
                    return Err(JournalError::Full { needed, shortage: Shortage::Space });
                }
                self.journal.put(sequence.0, 0, &[&message.encode()])
            }
            JournalEntry::Settle(settled) => {
                self.settled.push(settled.0);
                Ok(())
            }
            JournalEntry::Touch(touched, progress) => {
                self.journal.touch_outside_reserve(touched.0, &progress)
            }
            JournalEntry::Define(key, value) => self.journal.define(&key, &value),
            JournalEntry::Undefine(key) => self.journal.undefine(&key),
        }
    }

    /// Writes the batch and reports that, unless a sync follows for which alone confirmations wait.
    fn write(&mut self, written: bool, sync: bool) -> AfterTake {
        if self.state != WriterState::Healthy {
            return AfterTake::Wait;
        }
        match self.settle().and_then(|()| self.journal.write()) {
            Ok(()) if sync && !written => {}
            Ok(()) => self.report_committed(Durability::Os),
            Err(JournalError::Full { shortage, .. }) => {
                self.refuse(WriterState::Full, shortage.as_str());
                return AfterTake::Wait;
            }
            Err(error) => {
                self.fail(&error);
                return AfterTake::Wait;
            }
        }
        if sync { AfterTake::Sync } else { AfterTake::Wait }
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        if !self.settled.is_empty() {
            self.journal.settle(&self.settled)?;
            self.settled.clear();
        }
        Ok(())
    }

    fn report_committed(&mut self, level: Durability) {
        if self.state == WriterState::Healthy {
            if level == Durability::Fsync {
                self.durable = self.last;
            }
            self.events.push(Urgent::Committed(level, self.last));
        }
    }

    fn refuse(&mut self, state: WriterState, why: &str) {
        if self.state != state {
            self.state = state;
            self.events.push(Urgent::StorageRefuses(why.into()));
        }
    }

    fn fail(&mut self, error: &JournalError) {
        self.waiting.clear();
        self.touches.clear();
        self.refuse(WriterState::Failed, &format!("the journal failed: {error}"));
    }

    fn retry(&mut self, now_ms: u64) {
        if self.state != WriterState::Full {
            return;
        }
        match self.write_waiting() {
            Ok(()) | Err(JournalError::Full { .. }) => {}
            Err(error) => return self.fail(&error),
        }
        self.keep_house(now_ms);
        if self.state == WriterState::Failed || self.journal.health() != Health::Healthy {
            return;
        }
        match self.write_waiting().and_then(|()| self.write_touches()) {
            Ok(()) => {
                self.state = WriterState::Healthy;
                self.events.push(Urgent::StorageAccepts);
            }
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
    }

    fn write_waiting(&mut self) -> Result<(), JournalError> {
        let mut appended = Ok(());
        while let Some(record) = self.waiting.pop_front() {
            appended = self.append(Sequence(0), &record);
            if appended.is_err() {
                self.waiting.push_front(record);
                break;
            }
        }
        let settled = self.settle();
        self.journal.write()?;
        self.journal.sync()?;
        appended.and(settled)
    }

    fn write_touches(&mut self) -> Result<(), JournalError> {
        while let Some((touched, progress)) = self.touches.pop_first() {
            if let Err(error) = self.append(Sequence(0), &Record::Touch(touched, progress)) {
                self.touches.insert(touched, progress);
                return Err(error);
            }
        }
        self.journal.write()
    }

    fn keep_house_if_due(&mut self, now: Micros, now_ms: u64) {
        if now.saturating_sub(self.housekept) >= HOUSEKEEPING {
            self.housekept = now;
            self.retry(now_ms);
            self.keep_house(now_ms);
        }
    }

    /// True if there is more to do.
    fn keep_house(&mut self, now_ms: u64) -> bool {
        if self.state == WriterState::Failed {
            return false;
        }
        match self.journal.maintain(now_ms, HOUSEKEEPING_BYTES) {
            Ok(done) => {
                self.damaged.extend(done.damaged);
                done.more || !done.deferred.is_empty()
            }
            Err(JournalError::Full { .. }) => true,
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }
}

impl BodyRead {
    /// The event for the shard, and the sequences of messages that cannot be read.
    pub(crate) fn finish(&self) -> (Urgent, Vec<u64>) {
        let (mut messages, mut unreadable) = (Vec::new(), Vec::new());
        self.located.read(&mut |sequence, payload| {
            let message = payload.ok().and_then(|payload| decode_put(payload).ok()).map(|put| put.message);
            if message.is_none() {
                unreadable.push(sequence);
            }
            messages.push((Sequence(sequence), message));
        });
        (Urgent::Loaded(self.load.loaded(messages)), unreadable)
    }
}
