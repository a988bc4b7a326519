//! The thread that writes a shard's records and reports when they are durable.
//!
//! It takes everything that is pending, writes it with one write, makes it durable with one sync if a confirmation waits for
//! that, and notifies the shard. Records that arrive during a sync form the next batch: batches grow with the load, and no timer
//! delays a confirmation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mqcore_broker::history::Block;
use mqcore_broker::history::packing::Packer;
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::journal_entry::JournalEntry;
use mqcore_broker::model::options::Durability;
use mqcore_broker::model::record::{DeliveryProgress, Record};
use mqcore_journal::error::{JournalError, Shortage};
use mqcore_journal::journal::Journal;
use mqcore_journal::notes::NoteInventory;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::Storage;

use crate::hub::Hub;
use crate::runtime::waker::WakeSender;
use crate::shard::inbox::Urgent;
use crate::storage::backup::Pin;
use crate::storage::body_reader::{BodyReader, LocatedRead};
use crate::storage::data_dir::shard_name;
use crate::storage::journal_batch::{HistoryTerms, JournalBatch};

/// Batches of the shard that are written with one write.
const BATCHES_MAX: usize = 256;
/// Idle time after which the thread makes settlements durable that no confirmation waits for.
const IDLE: Duration = Duration::from_millis(200);
/// Time between two rounds of housekeeping while there is work.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Maximum bytes that one step of housekeeping moves: a few milliseconds of disk time.
const HOUSEKEEPING_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterState {
    Healthy,
    /// No disk space or no file descriptor: messages are rejected, nothing is confirmed, and the thread keeps retrying.
    Full,
    /// A write or sync failed. Nothing is written until the journal is opened again at the next start.
    Failed,
}

pub(super) struct JournalThread<S: Storage> {
    shard: usize,
    journal: Journal<S>,
    /// Whether the files of the journal are on all members of a group.
    is_replicated: bool,
    reader: BodyReader<S>,
    /// Reads that wait for a file descriptor.
    postponed: Vec<LocatedRead<S>>,
    hub: Arc<Hub>,
    /// Events for the shard.
    sender: WakeSender<Urgent>,
    /// Records that found no disk space and must not be lost, in order: all but messages, whose publishers were rejected, and
    /// touches.
    waiting: VecDeque<Record>,
    /// The latest touch of each unsettled message that found no disk space. No other record depends on it.
    touches: BTreeMap<Sequence, DeliveryProgress>,
    /// Messages dequeued since the last commit.
    settled: Vec<u64>,
    /// The latest record taken.
    last: Sequence,
    /// The latest record reported as durable.
    durable: Sequence,
    state: WriterState,
    housekept: Instant,
    /// Alive while a backup needs the files as they are.
    pin: Weak<Pin>,
    pending: Arc<AtomicUsize>,
    /// Dropped events that the history does not mention yet.
    missed: u64,
    /// Whether the current gap was logged, so that it is logged only once.
    missing: bool,
    history: HistoryTerms,
    packer: Packer,
    /// The inventory that the archiver received last.
    offered: Option<NoteInventory>,
}

impl<S: Storage + Clone> JournalThread<S> {
    pub(super) fn new(
        shard: usize,
        journal: Journal<S>,
        is_replicated: bool,
        reader: BodyReader<S>,
        hub: Arc<Hub>,
        sender: WakeSender<Urgent>,
        history: HistoryTerms,
    ) -> Self {
        Self {
            shard,
            journal,
            is_replicated,
            reader,
            postponed: Vec::new(),
            hub,
            sender,
            waiting: VecDeque::new(),
            touches: BTreeMap::new(),
            settled: Vec::new(),
            last: Sequence(0),
            durable: Sequence(0),
            state: WriterState::Healthy,
            housekept: Instant::now(),
            pin: Weak::new(),
            pending: Arc::default(),
            missed: 0,
            missing: false,
            history,
            packer: Packer::default(),
            offered: None,
        }
    }

    /// Bytes of history that wait for the thread.
    pub(super) fn pending_history(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.pending)
    }

    /// Runs until the shard drops its side.
    pub(super) fn run(mut self, batches: &Receiver<JournalBatch>) {
        loop {
            match batches.recv_timeout(IDLE) {
                Ok(first) => {
                    let (mut written, mut sync) = (first.written, first.sync);
                    self.take(first);
                    for batch in batches.try_iter().take(BATCHES_MAX) {
                        written |= batch.written;
                        sync |= batch.sync;
                        self.take(batch);
                    }
                    self.commit(written, sync);
                    self.wait_at_barrier();
                    if self.housekept.elapsed() >= HOUSEKEEPING {
                        // Housekeeping must also run while consumers are active; otherwise nothing would detect that
                        // the disk has space again.
                        self.retry();
                        self.read_postponed();
                        self.keep_house();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.retry();
                    self.read_postponed();
                    if self.durable < self.last || self.journal.has_unsynced() {
                        self.commit(false, true);
                    }
                    self.wait_at_barrier();
                    self.keep_house();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.retry();
        self.report_unwritten();
        self.pin_for_backups();
        if self.state != WriterState::Failed
            && let Err(error) = self.journal.close()
        {
            tracing::error!(shard = self.shard, %error, "cannot close the journal; the next start reads it in full");
        }
    }

    /// Tells what the next start will not know, because the disk is full until the end.
    fn report_unwritten(&self) {
        let (records, touches) = (self.waiting.len() + self.settled.len(), self.touches.len());
        if self.state == WriterState::Full && records + touches > 0 {
            tracing::error!(
                shard = self.shard,
                records,
                touches,
                "the disk is full to the end: the next start delivers some messages again that consumers have settled"
            );
        }
    }

    fn take(&mut self, batch: JournalBatch) {
        // Before the records, because some records may settle messages to be read.
        for request in batch.reads {
            if let Some(read) = self.reader.read(&self.journal, request) {
                if self.postponed.is_empty() {
                    tracing::warn!(
                        shard = self.shard,
                        "no file descriptor is left to read saved messages; trying again"
                    );
                }
                self.postponed.push(read);
            }
        }
        self.miss(batch.dropped);
        for block in batch.history {
            self.note(&block);
        }
        for (sequence, record) in batch.records {
            self.last = sequence;
            if self.state == WriterState::Failed {
                continue;
            }
            // This record replaces a touch of the same message.
            if let Record::Touch(message, _) | Record::Settle(message) = &record {
                self.touches.remove(message);
            }
            let is_ordered = !record.is_put() && !matches!(record, Record::Touch(..));
            if is_ordered && !self.waiting.is_empty() {
                // After those that wait: a definition must not overtake an older one.
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

    fn read_postponed(&mut self) {
        for read in std::mem::take(&mut self.postponed) {
            self.postponed.extend(self.reader.read_again(&self.journal, read));
        }
    }

    /// Writes history. No confirmation waits for it: events that cannot be written are dropped, and the history records how
    /// many as soon as it can.
    fn note(&mut self, block: &Block) {
        self.pending.fetch_sub(block.bytes.len(), Ordering::Relaxed);
        if self.state != WriterState::Healthy {
            return self.miss(block.steps);
        }
        if self.missed > 0 {
            let gap = Block::gap(block.time, self.missed);
            if self.journal.note(gap.time.0, &gap.bytes).is_ok() {
                self.missed = 0;
            }
        }
        let bytes = self.packer.pack(&block.bytes);
        match self.journal.note(block.time.0, bytes) {
            Ok(_) => {
                let counters = &self.hub.counters.history;
                counters.steps.add(block.steps);
                counters.bytes.add(bytes.len() as u64);
                if self.missing && self.missed == 0 {
                    self.missing = false;
                    counters.set_missing(self.shard, false);
                    tracing::warn!(shard = self.shard, "history is recorded again");
                }
            }
            Err(error) => {
                self.miss(block.steps);
                match error {
                    JournalError::Full { shortage, .. } => {
                        self.refuse(WriterState::Full, shortage.as_str());
                    }
                    // Only this message is too large for a record; its delivery does not depend on that.
                    JournalError::TooLarge { .. } => {}
                    error => self.fail(&error),
                }
            }
        }
    }

    fn miss(&mut self, steps: u64) {
        if steps == 0 {
            return;
        }
        self.missed += steps;
        self.hub.counters.history.missed.add(steps);
        if !self.missing {
            self.missing = true;
            self.hub.counters.history.set_missing(self.shard, true);
            tracing::error!(
                shard = self.shard,
                "dropping lifecycle events: the disk is full, broken or too slow"
            );
        }
    }

    fn append(&mut self, sequence: Sequence, record: &Record) -> Result<(), JournalError> {
        match JournalEntry::from(record) {
            JournalEntry::Put(message) => {
                if self.state == WriterState::Full {
                    let needed = message.body_bytes() as u64;
                    // The producers have the reason since the first rejection.
                    return Err(JournalError::Full { needed, shortage: Shortage::Space });
                }
                self.journal.put(sequence.0, 0, &[&message.encode()])
            }
            JournalEntry::Settle(settled) => {
                // Collected first, so that consecutive numbers become one range.
                self.settled.push(settled.0);
                Ok(())
            }
            // A crash may set back the progress of deliveries. Settlements need the reserve: they leave segments without
            // live records.
            JournalEntry::Touch(touched, progress) => {
                self.journal.touch_outside_reserve(touched.0, &progress)
            }
            JournalEntry::Define(key, value) => self.journal.define(&key, &value),
            JournalEntry::Undefine(key) => self.journal.undefine(&key),
        }
    }

    /// Writes the batch, syncs it if a confirmation waits for that, and notifies the shard: once, or twice if
    /// confirmations wait for each of the two levels. Synced records are also written, and a separate wake-up for the
    /// lower level would cost the shard a run while the disk works.
    ///
    /// On a full disk nothing is confirmed, and [`Self::retry`] writes several batches together: one record with many
    /// settlements takes less of the space reserved for them than many records.
    fn commit(&mut self, written: bool, sync: bool) {
        if self.state != WriterState::Healthy {
            return;
        }
        // In a cluster, a write is in the memory of this node until a majority has it: it does not survive another leader.
        let (written, sync) = if self.is_replicated { (false, written || sync) } else { (written, sync) };
        match self.settle().and_then(|()| self.journal.write()) {
            Ok(()) if sync && !written => {}
            Ok(()) => self.report_committed(Durability::Os),
            Err(JournalError::Full { shortage, .. }) => {
                return self.refuse(WriterState::Full, shortage.as_str());
            }
            Err(error) => return self.fail(&error),
        }
        if !sync {
            return;
        }
        match self.sync() {
            Ok(()) => self.report_committed(Durability::Fsync),
            Err(error) => self.fail(&error),
        }
    }

    /// Makes everything written durable. Counts the time only if the disk had something to do.
    fn sync(&mut self) -> Result<(), JournalError> {
        if self.journal.has_unsynced() {
            let start = Instant::now();
            self.journal.sync()?;
            self.hub.counters.journal.synced(start.elapsed());
        }
        Ok(())
    }

    /// Runs after all messages of the batch, some of which may be among them. Settlements without disk space stay for
    /// the next time.
    fn settle(&mut self) -> Result<(), JournalError> {
        if !self.settled.is_empty() {
            self.journal.settle(&self.settled)?;
            self.settled.clear();
        }
        Ok(())
    }

    /// Between a rejection and the return of disk space, nothing is reported as committed: the shard has given up the
    /// waiting records, and later ones follow the rejection.
    fn report_committed(&mut self, level: Durability) {
        if self.state == WriterState::Healthy {
            if level == Durability::Fsync {
                self.durable = self.last;
            }
            self.send(Urgent::Committed(level, self.last));
        }
    }

    fn send(&self, urgent: Urgent) {
        self.hub.moved();
        self.sender.send(urgent);
    }

    fn refuse(&mut self, state: WriterState, why: &str) {
        if self.state == state {
            return;
        }
        self.state = state;
        tracing::error!(shard = self.shard, why, "the journal rejects messages");
        self.send(Urgent::StorageRefuses(why.into()));
    }

    fn fail(&mut self, error: &JournalError) {
        self.waiting.clear();
        self.touches.clear();
        self.refuse(
            WriterState::Failed,
            &format!("the journal failed, check the disk and restart the broker: {error}"),
        );
    }

    /// Writes what waits for disk space, and accepts messages again if there is some.
    fn retry(&mut self) {
        if self.state != WriterState::Full {
            return;
        }
        match self.write_waiting() {
            Ok(()) | Err(JournalError::Full { .. }) => {}
            Err(error) => return self.fail(&error),
        }
        // Settlements leave segments without live records, which may fill the disk.
        self.keep_house();
        if self.state == WriterState::Failed || self.journal.health() != Health::Healthy {
            return;
        }
        match self.write_waiting().and_then(|()| self.write_touches()) {
            Ok(()) => {
                self.state = WriterState::Healthy;
                tracing::warn!(shard = self.shard, "the journal accepts messages again");
                self.send(Urgent::StorageAccepts);
            }
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
    }

    /// Writes and syncs all records that wait, or those for which there is space.
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
        self.sync()?;
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

    /// Offers the archiver what it may read, and releases archived history in the journal.
    fn hand_over(&mut self) {
        let Some(archiver) = &self.history.archiver else { return };
        let old = self.hub.clock.now().0.saturating_sub(archiver.interval_ms());
        self.journal.release_notes(archiver.archived(self.shard));
        match self.journal.seal_notes(old) {
            Ok(()) | Err(JournalError::Full { .. }) => {}
            Err(error) => return self.fail(&error),
        }
        let inventory = self.journal.sealed_notes();
        if self.offered.as_ref() != Some(&inventory) {
            archiver.offer(self.shard, inventory.clone());
            self.offered = Some(inventory);
        }
    }

    /// Takes part in a backup, if one is requested: reports its files, and pauses until all shards have.
    fn wait_at_barrier(&mut self) {
        let Some(barrier) = self.hub.backups.take(self.shard) else { return };
        // The files of another backup stay as they are, its catalog too.
        self.pin_for_backups();
        if self.state == WriterState::Full
            && let Err(error) = self.write_waiting()
            && !matches!(error, JournalError::Full { .. })
        {
            self.fail(&error);
        }
        let snapshot = self.journal.snapshot();
        if let Err(error) = &snapshot
            && self.journal.health() == Health::Failed
        {
            self.fail(error);
        }
        self.pin = barrier.pin();
        self.pin_for_backups();
        barrier.arrive(self.shard, snapshot.map_err(|error| error.to_string()));
    }

    /// Keeps the files in place, the catalog too, as long as a backup reads them.
    fn pin_for_backups(&mut self) {
        self.journal.pin(self.pin.strong_count() > 0);
    }

    fn keep_house(&mut self) {
        self.housekept = Instant::now();
        if self.state == WriterState::Failed {
            return;
        }
        self.hand_over();
        if self.state == WriterState::Failed {
            return;
        }
        self.pin_for_backups();
        match self.journal.maintain(self.hub.clock.now().0, HOUSEKEEPING_BYTES) {
            Ok(done) => {
                let counters = &self.hub.counters.journal;
                if let Some(loss) = counters.add_damage(&shard_name(self.shard), &done.damaged) {
                    self.send(Urgent::RecordsLost(loss.refusal().into()));
                }
                for error in done.deferred {
                    if !matches!(error, JournalError::Io { doing: "reading", .. }) {
                        counters.failed_removals.add(1);
                    }
                    tracing::warn!(shard = self.shard, %error, "cannot read, remove or replace a file of the journal; nothing is lost, trying again later");
                }
            }
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
        self.hub.counters.journal.measure(self.shard, &self.journal.stats());
    }
}

#[cfg(test)]
mod tests;
