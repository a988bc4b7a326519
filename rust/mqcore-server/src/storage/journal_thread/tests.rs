use mqcore_replication::storage::DataFiles;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

use mqcore_broker::model::options::QueueChanges;
use mqcore_broker::model::placement::Placement;
use mqcore_limiter::time::Nanos;
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
use crate::storage::backup::BackupDesk;
use crate::storage::data_dir::DataDir;

fn hub() -> (Arc<Hub>, ShardInbox) {
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
        backups: BackupDesk::new(1, Vec::new(), None),
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

/// A thread with the journal of this data directory.
fn writer(scratch: &tempfile::TempDir, hub: &Arc<Hub>) -> (JournalThread, WakeReceiver<Urgent>) {
    let directory = DataDir::open(scratch.path(), 1, DataFiles::Local).unwrap();
    let journal = directory.open_shard(0, 0, &mut |_, _| {}).unwrap().journal;
    let (sender, events) = wake_channel().unwrap();
    let reader = BodyReader::start(0, hub).unwrap();
    let history = HistoryTerms::new(None, 1, None);
    (JournalThread::new(0, journal, reader, Arc::clone(hub), sender, history), events)
}

#[tokio::test]
async fn space_that_is_back_is_found_while_consumers_keep_the_journal_busy() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (hub, _inbox) = hub();
    let (mut writer, mut events) = writer(&scratch, &hub);
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
    let (mut writer, _events) = writer(&scratch, &hub);
    writer.refuse(WriterState::Full, "the disk was full for long");
    writer.waiting = (0..300_000).map(|settled| Record::Settle(Sequence(settled))).collect();
    let start = Instant::now();
    writer.retry();
    assert_eq!((writer.state, writer.waiting.len()), (WriterState::Healthy, 0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
