//! The thread that copies history from the journals to the archive: Parquet files in the data directory, or Iceberg tables
//! on object storage.
//!
//! The journal writers announce sealed segments. This thread reads them at a low priority, and reports how far it got.
//! No other thread waits for it, except that a stop waits until it has given up its round. It retries what fails, and
//! raises an alarm until it succeeds; no failure here stops the broker.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use mqcore_archive::archive::{Archive, ArchiveError, Retention, RunSummary};
use mqcore_archive::tree::TreeStorage;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::notes::NoteInventory;
use mqcore_lake::error::LakeError;

use crate::config::history::ArchiveConfig;
use crate::hub::Hub;
use crate::runtime::priority;
use crate::stats::counters::ArchiveCounters;
use crate::storage::data_dir::DataDir;
use crate::storage::object_archive::ObjectArchive;

/// Time before a retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between checks for files that are too old.
const RETENTION: Duration = Duration::from_secs(60);

/// A handle to the thread, which ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Archiver {
    offers: Sender<(usize, NoteInventory)>,
    /// Notes below this number are archived durably, by shard.
    archived: Arc<[AtomicU64]>,
    interval_ms: u64,
}

impl Archiver {
    /// Starts the thread.
    pub(crate) fn start(
        config: ArchiveConfig,
        hub: &Arc<Hub>,
        directory: Arc<DataDir>,
        objects: Option<ObjectArchive>,
    ) -> io::Result<Self> {
        let alive = hub.shutdown.enter();
        let (offers, receiver) = channel();
        let archived: Arc<[AtomicU64]> = (0..hub.shards.len()).map(|_| AtomicU64::new(0)).collect();
        let interval_ms = u64::try_from(config.interval.as_millis()).unwrap_or(u64::MAX);
        hub.counters.archive.interval_ms.store(interval_ms.max(1), Ordering::Relaxed);
        let worker = ArchiveThread {
            config,
            hub: Arc::clone(hub),
            directory,
            archived: Arc::clone(&archived),
            archive: None,
            objects,
            offered: BTreeMap::new(),
            retained: None,
            failed: None,
        };
        std::thread::Builder::new().name("mqcore-archive".to_owned()).spawn(move || {
            priority::lower();
            worker.run(&receiver);
            drop(alive);
        })?;
        Ok(Self { offers, archived, interval_ms })
    }

    /// Announces what can be read of a shard's journal.
    pub(crate) fn offer(&self, shard: usize, inventory: NoteInventory) {
        // The thread ends only when this is dropped.
        let _ = self.offers.send((shard, inventory));
    }

    /// All notes of this shard below this number are archived.
    pub(crate) fn archived(&self, shard: usize) -> u64 {
        self.archived[shard].load(Ordering::Acquire)
    }

    /// Maximum age of history before it is offered.
    pub(crate) fn interval_ms(&self) -> u64 {
        self.interval_ms
    }
}

/// Why the archive cannot be written.
#[derive(Debug, thiserror::Error)]
enum ArchiverError {
    #[error(transparent)]
    Files(#[from] ArchiveError),
    #[error(transparent)]
    Objects(#[from] LakeError),
}

impl ArchiverError {
    /// Whether the broker stops.
    fn is_interruption(&self) -> bool {
        matches!(
            self,
            Self::Files(ArchiveError::Interrupted)
                | Self::Objects(LakeError::Archive(ArchiveError::Interrupted))
        )
    }
}

/// History of a shard that can be read.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) inventory: NoteInventory,
    /// When it was announced.
    at: Timestamp,
}

struct ArchiveThread {
    config: ArchiveConfig,
    hub: Arc<Hub>,
    directory: Arc<DataDir>,
    archived: Arc<[AtomicU64]>,
    /// `None`: not opened yet, or closed after a failure.
    archive: Option<Archive<TreeStorage>>,
    /// The archive on object storage, which replaces the one in the data directory.
    objects: Option<ObjectArchive>,
    offered: BTreeMap<usize, Offer>,
    retained: Option<Instant>,
    /// The time of the last failure, until an attempt succeeds.
    failed: Option<Instant>,
}

impl ArchiveThread {
    fn run(mut self, offers: &Receiver<(usize, NoteInventory)>) {
        loop {
            match offers.recv_timeout(RETRY_INTERVAL) {
                Ok((shard, inventory)) => self.take_offer(shard, inventory),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.take_offers(offers) {
                return;
            }
            if self.failed.is_some_and(|failed| failed.elapsed() < RETRY_INTERVAL) {
                continue;
            }
            let worked = match self.objects.take() {
                None => self.work(offers).map_err(ArchiverError::from),
                Some(mut objects) => {
                    let worked = self.work_remotely(&mut objects, offers).map_err(ArchiverError::from);
                    self.objects = Some(objects);
                    worked
                }
            };
            match worked {
                Ok(true) => self.succeeded(),
                Ok(false) => return,
                Err(error) if error.is_interruption() => return,
                Err(error) => self.gave_up(&error),
            }
        }
    }

    fn take_offer(&mut self, shard: usize, inventory: NoteInventory) {
        let now = self.hub.clock.now();
        self.hub.counters.archive.announced(shard, now);
        self.offered.insert(shard, Offer { inventory, at: now });
    }

    /// Takes further offers. False at the end.
    fn take_offers(&mut self, offers: &Receiver<(usize, NoteInventory)>) -> bool {
        loop {
            match offers.try_recv() {
                Ok((shard, inventory)) => self.take_offer(shard, inventory),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Archives everything offered, and removes files that are too old. False at the end.
    fn work(&mut self, offers: &Receiver<(usize, NoteInventory)>) -> Result<bool, ArchiveError> {
        while let Some((shard, offer)) = self.offered.pop_first() {
            match self.archive_offer(shard, &offer, offers) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    // For the next attempt, unless a later offer contains it.
                    self.offered.entry(shard).or_insert(offer);
                    return Err(error);
                }
            }
        }
        self.retain()?;
        Ok(true)
    }

    /// Archives an offer, or as much of it as a later one of the same shard does not repeat. False at the end.
    fn archive_offer(
        &mut self,
        shard: usize,
        offer: &Offer,
        offers: &Receiver<(usize, NoteInventory)>,
    ) -> Result<bool, ArchiveError> {
        let hub = Arc::clone(&self.hub);
        let counters = &hub.counters.archive;
        let journal = open(&self.directory.shard_path(shard))?;
        let inventory = &offer.inventory;
        let stop = || hub.shutdown.has_ended();
        loop {
            let archive = self.open()?;
            let now_ms = hub.clock.now().0;
            let round = match archive.round_until(shard as u32, &journal, inventory, now_ms, &stop) {
                Err(ArchiveError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    // Housekeeping has removed the segment. The inventory without it has arrived, or will.
                    self.archive = None;
                    return Ok(true);
                }
                round => round?,
            };
            self.account(shard, offer, round);
            self.measure(counters);
            if !self.take_offers(offers) {
                return Ok(false);
            }
            let next = self.offered.get(&shard).map(|offer| offer.at);
            if !round.more || next.is_some() {
                // The next offer contains the rest of this one.
                counters.caught_up(shard, if round.more { Some(offer.at) } else { next });
                return Ok(true);
            }
        }
    }

    /// Archives everything offered on object storage, and maintains the tables while nothing is offered. False at the end.
    fn work_remotely(
        &mut self,
        objects: &mut ObjectArchive,
        offers: &Receiver<(usize, NoteInventory)>,
    ) -> Result<bool, LakeError> {
        let hub = Arc::clone(&self.hub);
        loop {
            while !self.offered.is_empty() {
                let offered = mem::take(&mut self.offered);
                let archived = objects.archive(&offered, &hub);
                if archived.is_err() {
                    self.offered = offered;
                    return archived.map(|_| true);
                }
                for (shard, round) in archived? {
                    self.account(shard, &offered[&shard], round);
                }
                let size = objects.size();
                hub.counters.archive.files.store(size.files, Ordering::Relaxed);
                hub.counters.archive.file_bytes.store(size.bytes, Ordering::Relaxed);
                if !self.take_offers(offers) {
                    return Ok(false);
                }
                for (shard, offer) in offered {
                    let archived = self.archived[shard].load(Ordering::Acquire);
                    let more = archived < offer.inventory.open_from && objects.has_more(shard);
                    match self.offered.get(&shard).map(|next| next.at) {
                        None if more => {
                            self.offered.insert(shard, offer);
                        }
                        next => hub.counters.archive.caught_up(shard, next),
                    }
                }
            }
            let removed = objects.maintain(&self.config, &hub)?;
            hub.counters.archive.removed_files.add(removed.size.files);
            hub.counters.archive.removed_bytes.add(removed.size.bytes);
            if !self.take_offers(offers) {
                return Ok(false);
            }
            if !removed.more && self.offered.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Reports a round of one shard.
    fn account(&self, shard: usize, offer: &Offer, round: RunSummary) {
        let counters = &self.hub.counters.archive;
        self.archived[shard].store(round.archived, Ordering::Release);
        let waiting = offer.inventory.next.saturating_sub(round.archived);
        counters.waiting[shard].store(waiting, Ordering::Relaxed);
        if round.missing > 0 {
            let missing = round.missing;
            tracing::error!(shard, missing, "history was removed or unreadable before it was archived");
        }
        counters.missing.add(round.missing);
        counters.rounds.add(u64::from(round.files > 0));
        counters.rows.add(round.rows);
        counters.bytes.add(round.bytes);
    }

    fn open(&mut self) -> Result<&mut Archive<TreeStorage>, ArchiveError> {
        let archive = match self.archive.take() {
            Some(archive) => archive,
            None => Archive::open(open(&self.directory.archive())?)?,
        };
        Ok(self.archive.insert(archive))
    }

    fn retain(&mut self) -> Result<(), ArchiveError> {
        if self.retained.is_some_and(|retained| retained.elapsed() < RETENTION) {
            return Ok(());
        }
        let age_ms = self.config.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let retention = Retention { age_ms, bytes: self.config.max_bytes };
        let now_ms = self.hub.clock.now().0;
        let removed = self.open()?.retain(retention, now_ms)?;
        self.retained = Some(Instant::now());
        let counters = &self.hub.counters.archive;
        counters.removed_files.add(removed.files);
        counters.removed_bytes.add(removed.bytes);
        self.measure(counters);
        Ok(())
    }

    fn measure(&self, counters: &ArchiveCounters) {
        let Some(archive) = &self.archive else { return };
        let size = archive.size();
        counters.files.store(size.files, Ordering::Relaxed);
        counters.file_bytes.store(size.bytes, Ordering::Relaxed);
    }

    fn succeeded(&mut self) {
        if self.failed.take().is_some() {
            self.hub.counters.archive.state.recovered();
            tracing::warn!("archiving works again");
        }
    }

    fn gave_up(&mut self, error: &ArchiverError) {
        self.archive = None;
        self.hub.counters.archive.failures.add(1);
        self.hub.counters.archive.state.failed(error, self.hub.clock.now());
        if self.failed.replace(Instant::now()).is_none() {
            tracing::error!(%error, "cannot archive history; it stays in the journal, and the broker tries again");
        }
    }
}

pub(crate) fn open(path: &std::path::Path) -> Result<TreeStorage, ArchiveError> {
    TreeStorage::open(path).map_err(|source| ArchiveError::Io {
        doing: "opening",
        path: path.display().to_string(),
        source,
    })
}
