//! The journal thread of a shard on a disk in memory: full disks, lacking file descriptors, backups, and an idle shard.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

use mqcore_broker::model::decision::Step;
use mqcore_broker::model::effect::Question;
use mqcore_broker::model::id::{ChannelName, HandlerId, MessageNumber, QuestionId, QueueAddress};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::options::{QueueChanges, Status};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::options::Options;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};
use mqcore_limiter::time::Nanos;
use mqcore_replication::storage::{DataFiles, DataStorage};
use mqcore_session::any::SharedState;
use mqcore_session::protocol::ServerParts;
use mqcore_wire::codec::Limits;

use super::*;
use crate::attention::state::AttentionState;
use crate::authority::config::AuthorityConfig;
use crate::authority::state::Authority;
use crate::config::{ClockConfig, Config};
use crate::hub::SessionTerms;
use crate::limits;
use crate::net::guard::Guard;
use crate::net::input_budget::InputBudgets;
use crate::net::registry::Registry;
use crate::net::tls::Tls;
use crate::runtime::clock::Clock;
use crate::runtime::shutdown::Shutdown;
use crate::runtime::spares::{SpareBytes, SpareCommands};
use crate::runtime::waker::{WakeReceiver, wake_channel};
use crate::shard::inbox::{self, ShardInbox};
use crate::stats::counters::Counters;
use crate::stats::failures::Failures;
use crate::stats::totals::TotalsHistory;
use crate::storage::backup::{BackupDesk, BackupKind};
use crate::storage::body_reader::ReadRequest;
use crate::storage::data_dir::DataDir;

fn hub() -> (Arc<Hub>, ShardInbox) {
    hub_of(None)
}

/// A hub whose broker has this data directory.
fn hub_of(directory: Option<&Arc<DataDir>>) -> (Arc<Hub>, ShardInbox) {
    let limiter = limits::store(&Config::default());
    let schedules = crate::schedules::port::SchedulePort::new();
    let shared = SharedState::new(&ServerParts {
        limiter: Arc::clone(&limiter),
        started: Nanos(0),
        extension_names: Arc::default(),
        job_policy: None,
        schedules: Arc::new(schedules.clone()),
        jobs: Arc::new(schedules.clone()),
        patterns_max: 1,
    });
    let (handle, inbox) = inbox::channel();
    let patience = Duration::from_secs(1);
    let hub = Hub {
        clock: Clock::new(ClockConfig::System),
        counters: Counters::default(),
        failures: Failures::default(),
        attention: AttentionState::default(),
        totals: TotalsHistory::default(),
        tls: Tls::new(1, patience),
        input: InputBudgets::new(1 << 20, 1 << 20),
        registry: Registry::new(1, 1, 1),
        authority: Authority::open(&AuthorityConfig::default(), (None, &DataFiles::Local), None).unwrap(),
        nodes: None,
        cluster: None,
        shards: [handle].into(),
        placement: Placement::unkeyed(1),
        shutdown: Shutdown::new(),
        session: SessionTerms {
            limits: Limits::default(),
            login_bytes_max: 1 << 16,
            answer_bytes_max: 1 << 23,
            handshake_timeout: patience,
            ping_interval: patience,
            pong_timeout: patience,
        },
        spare_commands: SpareCommands::new(),
        spare_bytes: SpareBytes::new(),
        runtime: tokio::runtime::Handle::current(),
        backups: BackupDesk::new(1, Vec::new(), directory),
        activity: AtomicU64::new(0),
        guard: Guard::default(),
        limiter,
        unsaved: Arc::default(),
        shared,
        job_queues: QueueChanges::default(),
        extensions: None,
        spans: None,
        schedules,
        scheduling: mqcore_state::schedules::publisher::client(),
    };
    (Arc::new(hub), inbox)
}

/// A thread that writes this journal.
fn writer<S>(journal: Journal<S>, hub: &Arc<Hub>) -> (JournalThread<S>, WakeReceiver<Urgent>)
where
    S: Storage + Clone + Send + 'static,
    S::File: Send + Sync,
{
    let (sender, events) = wake_channel().unwrap();
    let reader = BodyReader::start(0, hub).unwrap();
    let history = HistoryTerms::new(None, 1, None);
    (JournalThread::new(0, journal, false, reader, Arc::clone(hub), sender, history), events)
}

/// The journal of the first shard in a data directory.
fn shard_journal(scratch: &tempfile::TempDir) -> Journal<DataStorage> {
    let directory = DataDir::open(scratch.path(), 1, DataFiles::Local).unwrap();
    directory.open_shard(0, 0, &mut |_, _| {}).unwrap().journal
}

/// A journal of small segments.
fn journal(disk: &MemoryStorage) -> Journal<MemoryStorage> {
    let options = Options { segment_bytes: 12_800, identity: 77, ..Options::default() };
    Journal::open(disk.clone(), options, &mut |_, _| {}).unwrap().0
}

fn message(body: &[u8]) -> Record {
    let queue = QueueAddress { channel: ChannelName::new("queue").unwrap(), id: 0 };
    Record::Put {
        queue: Arc::new(queue),
        message: Message::from_parts(b"", b"", body, Properties::default(), None),
        received: Timestamp(0),
        number: MessageNumber(0),
    }
}

fn touch(message: u64) -> Record {
    Record::Touch(Sequence(message), DeliveryProgress { attempts: 1, ..DeliveryProgress::default() })
}

/// Lets the thread write records, whose sequences follow `last`, as one batch.
fn write<S: Storage + Clone>(writer: &mut JournalThread<S>, last: &mut u64, records: Vec<Record>) {
    let number = |record| {
        *last += 1;
        (Sequence(*last), record)
    };
    let records = records.into_iter().map(number).collect();
    writer.take(JournalBatch { records, ..JournalBatch::default() });
    writer.commit(true, true);
}

/// Saves messages until `segments` segments exist, and returns the number of the last one.
fn fill(writer: &mut JournalThread<MemoryStorage>, segments: usize) -> u64 {
    let mut last = 0;
    while writer.journal.stats().segments.len() < segments {
        write(writer, &mut last, vec![message(&[1; 60])]);
    }
    last
}

/// Saves messages until the disk is full, and returns the number of the last record.
fn fill_disk(writer: &mut JournalThread<MemoryStorage>, disk: &MemoryStorage) -> u64 {
    let mut last = fill(writer, 4);
    // Sealed segments are a little shorter than a new one: the removal of one makes room for another.
    let used: u64 = disk.files().values().map(|bytes| bytes.len() as u64).sum();
    disk.set_capacity(Some(used + 2000));
    while writer.state == WriterState::Healthy {
        write(writer, &mut last, vec![message(&[1; 60])]);
    }
    last
}

#[tokio::test]
async fn space_that_is_back_is_found_while_consumers_keep_the_journal_busy() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (hub, _inbox) = hub();
    let (mut writer, mut events) = writer(shard_journal(&scratch), &hub);
    writer.refuse(WriterState::Full, "the disk was full a moment ago");
    let (batches, receiver) = channel();
    let thread = std::thread::spawn(move || writer.run(&receiver));
    assert!(matches!(events.drain().next(), Some(Urgent::StorageRefuses(_))));
    let limit = Instant::now() + Duration::from_secs(5);
    let accepted = loop {
        // The thread is never idle here: an idle thread finds the space in another way.
        batches
            .send(JournalBatch {
                records: vec![(Sequence(2), Record::Settle(Sequence(1)))],
                ..JournalBatch::default()
            })
            .unwrap();
        match events.drain().next() {
            Some(word) => break matches!(word, Urgent::StorageAccepts),
            None if Instant::now() > limit => break false,
            None => tokio::time::sleep(IDLE / 20).await,
        }
    };
    drop(batches);
    thread.join().unwrap();
    assert!(accepted, "publishers stay refused for as long as consumers work");
}

#[tokio::test]
async fn settlements_that_waited_for_space_are_written_in_time_proportional_to_their_number() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (hub, _inbox) = hub();
    let (mut writer, _events) = writer(shard_journal(&scratch), &hub);
    writer.refuse(WriterState::Full, "the disk was full for long");
    writer.waiting = (0..300_000).map(|settled| Record::Settle(Sequence(settled))).collect();
    let start = Instant::now();
    writer.retry();
    assert_eq!((writer.state, writer.waiting.len()), (WriterState::Healthy, 0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test]
async fn consumers_make_room_on_a_full_disk_although_each_delivery_is_recorded() {
    let disk = MemoryStorage::new(1);
    let (hub, _inbox) = hub();
    let (mut writer, mut events) = writer(journal(&disk), &hub);
    let mut last = fill_disk(&mut writer, &disk);
    let (saved, mut settled) = (last - 1, 0);
    while writer.state == WriterState::Full {
        for _ in 0..10 {
            settled += 1;
            assert!(settled < saved, "all messages are settled, and the disk is still full");
            write(&mut writer, &mut last, vec![touch(settled)]);
            write(&mut writer, &mut last, vec![Record::Settle(Sequence(settled))]);
        }
        // Delivered and not settled yet.
        write(&mut writer, &mut last, vec![touch(saved)]);
        assert_eq!((writer.waiting.len(), writer.touches.len()), (0, 1));
        writer.retry();
    }
    assert!(writer.touches.is_empty());
    let events: Vec<Urgent> = events.drain().collect();
    assert!(matches!(events.last(), Some(Urgent::StorageAccepts)), "{events:?}");
    write(&mut writer, &mut last, vec![message(b"there is room again")]);
    drop(writer);
    disk.crash();
    disk.set_capacity(None);
    let journal = journal(&disk);
    assert_eq!(journal.live().next(), Some(settled + 1));
    let mut touched = Vec::new();
    journal.each_touch(&mut |sequence, _| touched.push(sequence));
    assert_eq!(touched, [saved]);
}

#[tokio::test]
async fn settlements_on_a_full_disk_are_written_before_the_thread_ends() {
    let disk = MemoryStorage::new(1);
    let (hub, _inbox) = hub();
    let (mut writer, _events) = writer(journal(&disk), &hub);
    let last = fill_disk(&mut writer, &disk);
    let (batches, receiver) = channel();
    let records = vec![(Sequence(last + 1), Record::Settle(Sequence(1)))];
    batches.send(JournalBatch { records, ..JournalBatch::default() }).unwrap();
    drop(batches);
    writer.run(&receiver);
    disk.set_capacity(None);
    assert_eq!(journal(&disk).live().next(), Some(2));
}

#[tokio::test]
async fn messages_are_read_when_there_are_file_descriptors_again() {
    let disk = MemoryStorage::new(1);
    let (hub, mut inbox) = hub();
    let mut last = {
        let (mut writer, _events) = writer(journal(&disk), &hub);
        fill(&mut writer, 4)
    };
    let (mut writer, _events) = writer(journal(&disk), &hub);
    disk.inject(StorageCall::Open, 0, Fault::Descriptors, true);
    let question = Question {
        id: QuestionId(1),
        handler: HandlerId(0),
        step: Step::MessageDequeued,
        queue: Arc::new(QueueAddress { channel: ChannelName::new("queue").unwrap(), id: 0 }),
        status: Status::Push,
        message: None,
        attempt: 1,
        saved: true,
        consumer: None,
        acknowledgement: None,
        wants_answer: false,
    };
    let reads = vec![ReadRequest::Dequeued(Sequence(1), Box::new(question))];
    writer.take(JournalBatch { reads, ..JournalBatch::default() });
    write(&mut writer, &mut last, vec![Record::Settle(Sequence(1))]);
    writer.read_postponed();
    assert_eq!(writer.postponed.len(), 1);
    disk.clear_faults();
    writer.read_postponed();
    let read = tokio::time::timeout(Duration::from_secs(5), inbox.urgent.recv()).await;
    let Ok(Some(Urgent::Dequeued(question))) = read else { panic!("{read:?}") };
    assert_eq!(question.message.unwrap().body(), [1; 60]);
    assert!(writer.postponed.is_empty());
}

#[tokio::test]
async fn idle_thread_reports_its_last_record_once_and_counts_no_more_syncs() {
    let disk = MemoryStorage::new(1);
    let (hub, _inbox) = hub();
    let (writer, mut events) = writer(journal(&disk), &hub);
    let (batches, receiver) = channel();
    let thread = std::thread::spawn(move || writer.run(&receiver));
    let idle = || tokio::time::sleep(IDLE * 4);
    idle().await;
    assert_eq!((hub.counters.journal.syncs.get().count(), events.drain().count()), (0, 0));
    // Nothing waits for its settlement, which is made durable when the thread is idle.
    for record in [message(b"saved"), Record::Settle(Sequence(1))] {
        let records = vec![(Sequence(1), record)];
        batches.send(JournalBatch { records, written: true, ..JournalBatch::default() }).unwrap();
    }
    idle().await;
    let reported: Vec<Urgent> = events.drain().collect();
    assert!(
        matches!(reported.last(), Some(Urgent::Committed(Durability::Fsync, Sequence(1)))),
        "{reported:?}"
    );
    idle().await;
    assert_eq!((hub.counters.journal.syncs.get().count(), events.drain().count()), (1, 0));
    drop(batches);
    thread.join().unwrap();
}

#[tokio::test]
async fn stop_during_a_backup_leaves_the_files_of_the_backup_as_they_are() {
    let scratch = tempfile::TempDir::new().unwrap();
    let directory = Arc::new(DataDir::open(scratch.path(), 1, DataFiles::Local).unwrap());
    let disk = MemoryStorage::new(1);
    let (hub, _inbox) = hub_of(Some(&directory));
    let (mut writer, _events) = writer(journal(&disk), &hub);
    let mut last = 0;
    write(&mut writer, &mut last, vec![message(b"in the backup")]);
    let backups = Arc::clone(&hub);
    let requested = std::thread::spawn(move || backups.backups.pause_writers(BackupKind::Requested));
    while !requested.is_finished() {
        writer.wait_at_barrier();
        std::thread::yield_now();
    }
    let backup = requested.join().unwrap().unwrap();
    let before = disk.files();
    write(&mut writer, &mut last, vec![message(b"later")]);
    let (batches, receiver) = channel();
    drop(batches);
    writer.run(&receiver);
    assert_eq!(disk.files()["catalog"], before["catalog"]);
    drop(backup);
}
