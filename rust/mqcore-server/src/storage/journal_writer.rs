//! The thread that writes a shard's records down and says when they are durable.
//!
//! It takes everything that is pending, writes it with one write, makes it durable with one sync if anybody waits
//! for that, and tells the shard. What arrives during one sync is the next batch: batches form by themselves, the
//! larger the busier the shard is, and no timer delays anybody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mqcore_broker::history::Block;
use mqcore_broker::history::packing::Packer;
use mqcore_broker::model::definition::{
    NUMBERS_KEY, channel_key, encode_channel, encode_intake, encode_numbers, encode_queue, encode_router,
    encode_topic_binding, intake_key, queue_key, router_key, topic_binding_key,
};
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::options::Durability;
use mqcore_broker::model::record::{Record, encode_put};
use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::notes::NoteInventory;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::FileStorage;

use crate::config::HistoryConfig;
use crate::hub::Hub;
use crate::runtime::bell::{Bell, Ringer, bell};
use crate::shard::inbox::Urgent;
use crate::storage::archiver::Archiver;
use crate::storage::backup::Pin;
use crate::storage::body_reader::{BodyReader, Wanted};
use crate::storage::data_dir::DataDir;

/// Turns of the shard taken in one batch.
const TURNS_MAX: usize = 256;
/// How long the thread sleeps when nothing comes; then it makes settlements durable that nobody waited for.
const IDLE: Duration = Duration::from_millis(200);
/// What publishers are told while the disk is full.
const NO_SPACE: &str = "no space is left on the disk of the data directory";
/// How often housekeeping has its turn while there is work.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Octets that housekeeping may move at a time: a few milliseconds of the disk.
const HOUSEKEEPING_BYTES: usize = 4 * 1024 * 1024;

/// Octets of history that may wait for the thread; what comes when there are more is missed, and that is noted. Nobody
/// waits for history, so nothing else bounds it.
const HISTORY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The records of one turn of a shard.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What is to be read back; of records that stand before those of this turn.
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) records: Vec<(Sequence, Record)>,
    /// What happened to messages. Written before the records, so that what is durable has its history.
    pub(crate) history: Vec<Block>,
    /// Steps left out of it, because too much waits already.
    pub(crate) missed: u64,
    /// Somebody waits until these are written.
    pub(crate) written: bool,
    /// Somebody waits until these are durable.
    pub(crate) sync: bool,
}

/// What becomes of history in a journal.
#[derive(Debug, Clone)]
pub(crate) struct HistoryTerms {
    age_ms: Option<u64>,
    bytes: u64,
    archiver: Option<Archiver>,
}

impl HistoryTerms {
    /// For each of so many shards. Without a history, what an earlier run left is kept as long as by default.
    pub(crate) fn new(config: Option<&HistoryConfig>, shards: usize, archiver: Option<Archiver>) -> Self {
        let usual = HistoryConfig::default();
        let config = config.unwrap_or(&usual);
        let age_ms = config.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Self { age_ms, bytes: config.max_bytes / shards.max(1) as u64, archiver }
    }
}

/// The shard's end of it. Dropping it makes the thread write what is left, close the journal and end.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    turns: Sender<Turn>,
    /// What the thread says.
    bell: Bell<Urgent>,
    /// Octets of history on their way to the thread.
    pending: Arc<AtomicUsize>,
}

impl JournalWriter {
    /// Starts the thread.
    pub(crate) fn start(
        shard: usize,
        mut journal: Journal<FileStorage>,
        hub: &Arc<Hub>,
        directory: Arc<DataDir>,
        history: HistoryTerms,
    ) -> std::io::Result<Self> {
        journal.retain_notes(history.age_ms, Some(history.bytes));
        let alive = hub.shutdown.enter();
        let reader = BodyReader::start(shard, hub)?;
        let (turns, receiver) = channel();
        let (ringer, bell) = bell()?;
        let writer = Writer {
            shard,
            journal,
            reader,
            hub: Arc::clone(hub),
            ringer,
            waiting: Vec::new(),
            settled: Vec::new(),
            last: Sequence(0),
            state: State::Healthy,
            housekept: Instant::now(),
            pin: Weak::new(),
            pending: Arc::default(),
            missed: 0,
            missing: false,
            history,
            packer: Packer::default(),
            offered: None,
        };
        let pending = Arc::clone(&writer.pending);
        std::thread::Builder::new().name(format!("mqcore-journal-{shard}")).spawn(move || {
            writer.run(&receiver);
            // The directory is free for the next broker before this one counts as stopped.
            drop(directory);
            drop(alive);
        })?;
        Ok(Self { turns, bell, pending })
    }

    /// Ready when the thread said something.
    pub(crate) fn poll_rung(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.bell.poll_rung(context)
    }

    /// What the thread said, in its order.
    pub(crate) fn words(&mut self) -> impl Iterator<Item = Urgent> {
        self.bell.words()
    }

    /// Hands records over. Never blocks.
    pub(crate) fn write(&self, mut turn: Turn) {
        if !turn.history.is_empty() {
            let octets = turn.history.iter().map(|block| block.bytes.len()).sum();
            if self.pending.load(Ordering::Relaxed) < HISTORY_BYTES_MAX {
                self.pending.fetch_add(octets, Ordering::Relaxed);
            } else {
                turn.missed += turn.history.drain(..).map(|block| block.steps).sum::<u64>();
            }
        }
        // The thread ends only when this is dropped.
        let _ = self.turns.send(turn);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Healthy,
    /// No space: settlements wait, messages are refused, and it is tried again and again.
    Full,
    /// The disk broke its word. Nothing is written until somebody opens the journal anew.
    Failed,
}

struct Writer {
    shard: usize,
    journal: Journal<FileStorage>,
    reader: BodyReader,
    hub: Arc<Hub>,
    /// How the shard hears of it.
    ringer: Ringer<Urgent>,
    /// Records that found no space and must not be lost: all but messages, whose publishers were refused.
    waiting: Vec<Record>,
    /// Messages that left since the last commit.
    settled: Vec<u64>,
    /// The latest record taken.
    last: Sequence,
    state: State,
    housekept: Instant,
    /// Alive while a backup needs the files as they are.
    pin: Weak<Pin>,
    pending: Arc<AtomicUsize>,
    /// Steps that the history misses, and does not say so yet.
    missed: u64,
    /// That was logged; said once, not a million times.
    missing: bool,
    history: HistoryTerms,
    packer: Packer,
    /// What the archiver was told last.
    offered: Option<NoteInventory>,
}

impl Writer {
    fn run(mut self, turns: &Receiver<Turn>) {
        loop {
            match turns.recv_timeout(IDLE) {
                Ok(first) => {
                    let (mut written, mut sync) = (first.written, first.sync);
                    self.take(first);
                    for turn in turns.try_iter().take(TURNS_MAX) {
                        written |= turn.written;
                        sync |= turn.sync;
                        self.take(turn);
                    }
                    self.commit(written, sync);
                    self.meet();
                    if self.housekept.elapsed() >= HOUSEKEEPING {
                        // Consumers that go on must not keep publishers out: nobody else would look for space then.
                        self.retry();
                        self.keep_house();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.retry();
                    self.commit(false, true);
                    self.meet();
                    self.keep_house();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.retry();
        if self.state != State::Failed
            && let Err(error) = self.journal.close()
        {
            tracing::error!(shard = self.shard, %error, "the journal could not be closed in order");
        }
    }

    fn take(&mut self, turn: Turn) {
        // Before the records: some may settle what is to be read.
        for wanted in turn.wanted {
            self.reader.read(&self.journal, wanted);
        }
        self.miss(turn.missed);
        for block in turn.history {
            self.note(&block);
        }
        for (sequence, record) in turn.records {
            self.last = sequence;
            if self.state == State::Failed {
                continue;
            }
            if !self.waiting.is_empty() && !matches!(record, Record::Put { .. }) {
                // Behind those that wait: a definition must not overtake an older one.
                self.waiting.push(record);
                continue;
            }
            match self.append(sequence, &record) {
                Ok(()) => {}
                Err(JournalError::Full { .. }) => {
                    self.refuse(State::Full, NO_SPACE);
                    if !matches!(record, Record::Put { .. }) {
                        self.waiting.push(record);
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Writes history down. Nobody waits for it: what cannot be written is missed, and the history says so as soon as it
    /// can.
    fn note(&mut self, block: &Block) {
        self.pending.fetch_sub(block.bytes.len(), Ordering::Relaxed);
        if self.state != State::Healthy {
            return self.miss(block.steps);
        }
        if self.missed > 0 {
            let gap = Block::gap(block.time, self.missed);
            if self.journal.note(gap.time.0, &gap.bytes).is_ok() {
                self.missed = 0;
            }
        }
        let octets = self.packer.pack(&block.bytes);
        match self.journal.note(block.time.0, octets) {
            Ok(_) => {
                let counters = &self.hub.counters.history;
                counters.steps.add(block.steps);
                counters.bytes.add(octets.len() as u64);
                if self.missing && self.missed == 0 {
                    self.missing = false;
                    counters.set_missing(self.shard, false);
                    tracing::warn!(shard = self.shard, "history is written down again");
                }
            }
            Err(error) => {
                self.miss(block.steps);
                match error {
                    JournalError::Full { .. } => self.refuse(State::Full, NO_SPACE),
                    // One message too large for a record; its delivery does not depend on that.
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
                "history misses steps: the disk is full, broken, or too slow"
            );
        }
    }

    fn append(&mut self, sequence: Sequence, record: &Record) -> Result<(), JournalError> {
        match record {
            Record::Put { queue, message, received, number } => {
                if self.state == State::Full {
                    return Err(JournalError::Full { needed: message.body().len() as u64 });
                }
                self.journal.put(sequence.0, 0, &[&encode_put(queue, message, *received, *number)])
            }
            Record::Settle(settled) => {
                // Gathered, so that those in a row become one range.
                self.settled.push(settled.0);
                Ok(())
            }
            Record::Touch(touched, progress) => self.journal.touch(touched.0, &progress.encode()),
            Record::DefineChannel(name, options) => {
                self.journal.define(&channel_key(name), &encode_channel(name, options))
            }
            Record::DefineQueue(queue, options) => {
                self.journal.define(&queue_key(queue), &encode_queue(queue, options))
            }
            Record::DefineIntake(node, progress) => {
                self.journal.define(&intake_key(node), &encode_intake(node, progress))
            }
            Record::RemoveIntake(node) => self.journal.undefine(&intake_key(node)),
            Record::Numbers(below) => self.journal.define(NUMBERS_KEY, &encode_numbers(*below)),
            Record::RemoveChannel(name) => self.journal.undefine(&channel_key(name)),
            Record::RemoveQueue(queue) => self.journal.undefine(&queue_key(queue)),
            Record::DefineRouter(router) => {
                self.journal.define(&router_key(&router.name), &encode_router(router))
            }
            Record::BindTopic(pattern, queue) => {
                self.journal.define(&topic_binding_key(pattern, queue), &encode_topic_binding(pattern, queue))
            }
            Record::UnbindTopic(pattern, queue) => self.journal.undefine(&topic_binding_key(pattern, queue)),
            Record::RemoveRouter(name) => self.journal.undefine(&router_key(name)),
        }
    }

    /// Writes what was taken, makes it durable if anybody waits for that, and says so: once, unless somebody waits for
    /// each. What is durable is written, and waking the shard for the lesser word costs it a turn while the disk works.
    fn commit(&mut self, written: bool, sync: bool) {
        if self.state == State::Failed {
            return;
        }
        match self.settle().and_then(|()| self.journal.write()) {
            Ok(()) if sync && !written => {}
            Ok(()) => self.tell(Durability::Os),
            Err(JournalError::Full { .. }) => {
                return self.refuse(State::Full, NO_SPACE);
            }
            Err(error) => return self.fail(&error),
        }
        if !sync {
            return;
        }
        let start = Instant::now();
        match self.journal.sync() {
            Ok(()) => {
                self.hub.counters.journal.synced(start.elapsed());
                self.tell(Durability::Fsync);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Behind all messages of the batch, some of which may be among them. What finds no space stays for the next time.
    fn settle(&mut self) -> Result<(), JournalError> {
        if !self.settled.is_empty() {
            self.journal.settle(&self.settled)?;
            self.settled.clear();
        }
        Ok(())
    }

    /// After a refusal nothing is told as committed until there is space again: the shard has given up those
    /// that wait, and what it asks for next comes after that.
    fn tell(&self, level: Durability) {
        if self.state == State::Healthy {
            self.send(Urgent::Committed(level, self.last));
        }
    }

    fn send(&self, urgent: Urgent) {
        self.hub.moved();
        self.ringer.say(urgent);
    }

    fn refuse(&mut self, state: State, why: &str) {
        if self.state == state {
            return;
        }
        self.state = state;
        tracing::error!(shard = self.shard, why, "the journal takes no messages");
        self.send(Urgent::StorageRefuses(why.into()));
    }

    fn fail(&mut self, error: &JournalError) {
        self.waiting.clear();
        self.refuse(State::Failed, &format!("the journal failed and has to be opened anew: {error}"));
    }

    /// Tries again to find space for what waits.
    fn retry(&mut self) {
        if self.state != State::Full {
            return;
        }
        // Segments that nobody needs may be what fills the disk.
        self.keep_house();
        while let Some(record) = self.waiting.first() {
            let record = record.clone();
            match self.append(Sequence(0), &record) {
                Ok(()) => {
                    self.waiting.remove(0);
                }
                Err(JournalError::Full { .. }) => return,
                Err(error) => return self.fail(&error),
            }
        }
        if self.journal.health() != Health::Healthy {
            return;
        }
        match self.settle().and_then(|()| self.journal.write()) {
            Ok(()) => {
                self.state = State::Healthy;
                tracing::warn!(shard = self.shard, "there is space again: the journal takes messages");
                self.send(Urgent::StorageAccepts);
            }
            Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
    }

    /// Tells the archiver what it may read, and the journal what is archived.
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

    /// Takes part in a backup, if one is asked for: says what there is, and stands still until all shards have.
    fn meet(&mut self) {
        let Some(meeting) = self.hub.backups.take(self.shard) else { return };
        let snapshot = self.journal.snapshot();
        if let Err(error) = &snapshot
            && self.journal.health() == Health::Failed
        {
            self.fail(error);
        }
        self.pin = meeting.pin();
        meeting.attend(self.shard, snapshot.map_err(|error| error.to_string()));
    }

    fn keep_house(&mut self) {
        self.housekept = Instant::now();
        if self.state == State::Failed {
            return;
        }
        self.hand_over();
        if self.state == State::Failed {
            return;
        }
        self.journal.pin(self.pin.strong_count() > 0);
        match self.journal.maintain(self.hub.clock.now().0, HOUSEKEEPING_BYTES) {
            Ok(_) | Err(JournalError::Full { .. }) => {}
            Err(error) => self.fail(&error),
        }
        self.hub.counters.journal.measure(self.shard, &self.journal.stats());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use mqcore_broker::model::options::QueueChanges;
    use mqcore_limiter::time::Nanos;
    use mqcore_session::any::SharedState;
    use mqcore_session::protocol::ServerParts;
    use mqcore_wire::codec::Limits;

    use super::*;
    use crate::authority::config::AuthorityConfig;
    use crate::authority::state::Authority;
    use crate::config::{ClockConfig, Config};
    use crate::hub::SessionTerms;
    use crate::limits;
    use crate::net::guard::Guard;
    use crate::net::registry::Registry;
    use crate::net::tls::Tls;
    use crate::runtime::clock::Clock;
    use crate::runtime::shutdown::Shutdown;
    use crate::runtime::spares::{SpareBytes, SpareCommands};
    use crate::shard::inbox::{self, ShardInbox};
    use crate::stats::counters::Counters;
    use crate::stats::failures::Failures;
    use crate::storage::backup::BackupDesk;

    fn hub() -> (Arc<Hub>, ShardInbox) {
        let limiter = limits::store(&Config::default());
        let schedules = crate::schedules::port::SchedulePort::new();
        let shared = SharedState::new(&ServerParts {
            limiter: Arc::clone(&limiter),
            started: Nanos(0),
            extension_names: Arc::default(),
            job_policy: None,
            schedules: Arc::new(schedules.clone()),
        });
        let (handle, inbox) = inbox::channel();
        let patience = Duration::from_secs(1);
        let hub = Hub {
            clock: Clock::new(ClockConfig::System),
            counters: Counters::default(),
            failures: Failures::default(),
            tls: Tls::new(1, patience),
            registry: Registry::new(1, 1, 1),
            authority: Authority::open(&AuthorityConfig::default(), None, None).unwrap(),
            nodes: None,
            shards: [handle].into(),
            shutdown: Shutdown::new(),
            session: SessionTerms {
                limits: Limits::default(),
                handshake_timeout: patience,
                ping_interval: patience,
                pong_timeout: patience,
            },
            spare_commands: SpareCommands::new(),
            spare_bytes: SpareBytes::new(),
            runtime: tokio::runtime::Handle::current(),
            backups: BackupDesk::new(1, Vec::new(), None),
            activity: AtomicU64::new(0),
            guard: Guard::default(),
            limiter,
            shared,
            job_queues: QueueChanges::default(),
            extensions: None,
            schedules,
            scheduling: crate::schedules::publisher::client(),
        };
        (Arc::new(hub), inbox)
    }

    #[tokio::test]
    async fn space_that_is_back_is_found_while_consumers_keep_the_journal_busy() {
        let scratch = tempfile::TempDir::new().unwrap();
        let directory = DataDir::open(scratch.path(), 1).unwrap();
        let journal = directory.open_shard(0, 0, &mut |_, _| {}).unwrap().journal;
        let (hub, _inbox) = hub();
        let (ringer, mut bell) = bell().unwrap();
        let mut writer = Writer {
            shard: 0,
            journal,
            reader: BodyReader::start(0, &hub).unwrap(),
            hub: Arc::clone(&hub),
            ringer,
            waiting: Vec::new(),
            settled: Vec::new(),
            last: Sequence(0),
            state: State::Healthy,
            housekept: Instant::now(),
            pin: Weak::new(),
            pending: Arc::default(),
            missed: 0,
            missing: false,
            history: HistoryTerms::new(None, 1, None),
            packer: Packer::default(),
            offered: None,
        };
        writer.refuse(State::Full, "the disk was full a moment ago");
        let (turns, receiver) = channel();
        let thread = std::thread::spawn(move || writer.run(&receiver));
        assert!(matches!(bell.words().next(), Some(Urgent::StorageRefuses(_))));
        let limit = Instant::now() + Duration::from_secs(5);
        let accepted = loop {
            // Never idle: that would be the other way to find it.
            turns
                .send(Turn { records: vec![(Sequence(2), Record::Settle(Sequence(1)))], ..Turn::default() })
                .unwrap();
            match bell.words().next() {
                Some(word) => break matches!(word, Urgent::StorageAccepts),
                None if Instant::now() > limit => break false,
                None => tokio::time::sleep(IDLE / 20).await,
            }
        };
        drop(turns);
        thread.join().unwrap();
        assert!(accepted, "publishers stay refused for as long as consumers work");
    }
}
