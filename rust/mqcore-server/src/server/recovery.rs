//! Reads what an earlier server saved: the shards' journals, links to other brokers, limits, schedules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_limiter::limiter::Limiter;
use mqcore_limiter::time::Nanos;
use mqcore_replication::storage::DataStorage;
use mqcore_state::limits::{LimitJournal, RestoredLimits};

use crate::config::Config;
use crate::limits;
use crate::nodes::startup::OpenedNodes;
use crate::runtime::clock::Clock;
use crate::schedules::port::SchedulePort;
use crate::server::error::StartError;
use crate::storage::data_dir::{DataDir, DataDirError, Opened, RECORD_BYTES_MAX, SideJournal, shard_name};
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::recovery::settle_transfers;
use mqcore_state::schedules::keeper::Keeper;

/// The recovered contents of a data directory.
pub(super) struct Recovery {
    pub(super) directory: Arc<DataDir>,
    pub(super) shards: Vec<Opened>,
    pub(super) nodes: Option<OpenedNodes>,
}

/// The identity of a node: read from the data directory, or generated.
pub(super) fn open_nodes(
    config: &Config,
    recovered: Option<&mut Recovery>,
    now_ms: u64,
) -> Result<Option<OpenedNodes>, StartError> {
    match (recovered, &config.node) {
        (Some(recovered), _) => Ok(recovered.nodes.take()),
        (None, Some(node)) => Ok(Some(OpenedNodes::open(node, None, now_ms)?)),
        (None, None) => Ok(None),
    }
}

/// Reads the data directory, if there is one, on a thread that may block.
pub(super) async fn recover(config: &Config, now_ms: u64) -> Result<Option<Recovery>, StartError> {
    let Some(path) = config.data_dir.clone() else { return Ok(None) };
    let wanted = config.shard_count();
    let node = config.node.clone();
    let files = config.files.clone();
    let read = tokio::task::spawn_blocking(move || {
        let directory = DataDir::open(&path, wanted, files)?;
        if directory.shards() != wanted {
            let shards = directory.shards();
            tracing::info!(
                shards,
                wanted,
                "the number of shards of a data directory cannot change; using the existing number"
            );
        }
        let mut shards = (0..directory.shards())
            .map(|shard| read_shard(&directory, shard, now_ms))
            .collect::<Result<Vec<_>, _>>()?;
        settle_transfers(&mut shards.iter_mut().map(|opened| &mut opened.had).collect::<Vec<_>>());
        let identities = shards.iter().enumerate();
        let identities = identities.map(|(shard, opened)| (shard_name(shard), opened.journal.identity()));
        directory.register(&identities.collect::<Vec<_>>())?;
        let nodes = node.map(|node| OpenedNodes::open(&node, Some(&directory), now_ms)).transpose()?;
        Ok(Recovery { directory: Arc::new(directory), shards, nodes })
    });
    match read.await {
        Ok(recovery) => recovery.map(Some).map_err(StartError::Data),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The journal of limits, the result of opening it, and the lock on its directory.
pub(super) type KeptLimits = (LimitJournal<DataStorage>, RestoredLimits, Arc<DataDir>);

/// Restores limits into the store. `None`: no listener saves any.
pub(super) async fn recover_limits(
    config: &Config,
    recovered: Option<&Recovery>,
    limiter: &Arc<Limiter>,
    clock: &Clock,
) -> Result<Option<KeptLimits>, StartError> {
    let Some(recovered) = recovered.filter(|_| config.persists_limits()) else { return Ok(None) };
    let (directory, limiter) = (Arc::clone(&recovered.directory), Arc::clone(limiter));
    let now = Nanos(clock.nanos());
    let read = tokio::task::spawn_blocking(move || {
        let name = SideJournal::Limits.as_str();
        let mut found = |report: &RecoveryReport| directory.found(name, report);
        let (path, expected) = (directory.side(SideJournal::Limits), directory.identity_of(name));
        let (journal, restored) =
            limits::journal::open((&path, directory.files()), expected, &limiter, now, &mut found)?;
        directory.register(&[(name.to_owned(), journal.identity())])?;
        Ok((journal, restored, directory))
    });
    let kept: KeptLimits = match read.await {
        Ok(kept) => kept.map_err(StartError::Data)?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let RestoredLimits { entries, expired, unreadable } = kept.1;
    tracing::info!(entries, expired, unreadable, "restored rate limits");
    Ok(Some(kept))
}

/// Restores schedules. A data directory gets a journal for schedules as soon as any client could create one.
pub(super) async fn recover_schedules(
    config: &Config,
    recovered: Option<&Recovery>,
    port: &SchedulePort,
    placement: Placement,
    now_ms: u64,
) -> Result<Keeper<DataStorage>, StartError> {
    let asked_for = config.listeners.iter().any(|listener| listener.protocol().has_schedules());
    let directory = recovered.map(|recovered| Arc::clone(&recovered.directory));
    let Some(directory) =
        directory.filter(|directory| asked_for || directory.side(SideJournal::Schedules).exists())
    else {
        let mut keeper = Keeper::in_memory(placement, now_ms);
        keeper.share_queues(port.queues());
        return Ok(keeper);
    };
    let queues = Arc::clone(port.queues());
    let port = port.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (name, path) = (SideJournal::Schedules.as_str(), directory.side(SideJournal::Schedules));
        let storage = directory.files().open(&path).map_err(|source| DataDirError::Io { path, source })?;
        let options = Options {
            shard: SideJournal::Schedules.shard(),
            now_ms,
            max_record_bytes: RECORD_BYTES_MAX as u32,
            expected_identity: directory.identity_of(name),
            ..Options::default()
        };
        let mut found = |report: &RecoveryReport| directory.found(name, report);
        let opened = Keeper::open(storage, options, placement, port.crons(), &mut found)
            .map_err(|source| DataDirError::Schedules { source })?;
        if let Some(identity) = opened.0.identity() {
            directory.register(&[(name.to_owned(), identity)])?;
        }
        Ok::<_, DataDirError>(opened)
    });
    let (mut keeper, unreadable) = match read.await {
        Ok(opened) => opened?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    keeper.share_queues(&queues);
    let (schedules, outstanding) = (keeper.len(), keeper.outstanding());
    tracing::info!(schedules, outstanding, unreadable, "restored schedules");
    Ok(keeper)
}

fn read_shard(directory: &DataDir, shard: usize, now_ms: u64) -> Result<Opened, DataDirError> {
    let mut reported = Instant::now();
    let mut progress = |done: u64, all: u64| {
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            tracing::info!(shard, done, all, "reading the journal");
        }
    };
    let opened = directory.open_shard(shard, now_ms, &mut progress)?;
    let (messages, unreadable) = (opened.had.messages.len(), opened.unreadable);
    let report = &opened.report;
    if !report.is_alarming() && unreadable == 0 {
        tracing::info!(shard, messages, "recovered a journal");
    } else {
        tracing::error!(shard, messages, unreadable, %report, "recovered a damaged journal; damaged records were skipped");
    }
    Ok(opened)
}
