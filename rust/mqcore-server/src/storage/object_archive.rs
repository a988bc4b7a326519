//! The archive on object storage, as the archive thread uses it: opened when needed, and again after each failure.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqcore_archive::archive::{ArchiveError, Retention, RunSummary, Size};
use mqcore_archive::manifest::{ArchivedRange, hex};
use mqcore_archive::reading::source::newest_manifest;
use mqcore_journal::notes::NoteInventory;
use mqcore_lake::error::LakeError;
use mqcore_lake::lake::{Lake, LakeOptions, ShardInput};
use mqcore_lake::location::LakeLocation;
use tokio::runtime::Handle;

use crate::config::history::{ArchiveConfig, ObjectArchiveConfig};
use crate::hub::Hub;
use crate::storage::archive_location;
use crate::storage::archiver::{Offer, open};
use crate::storage::data_dir::DataDir;

/// Interval between checks for files and snapshots that are too old.
const RETENTION: Duration = Duration::from_secs(60);

/// The result of maintenance.
#[derive(Debug, Default)]
pub(crate) struct Maintained {
    /// Files that exceeded a retention limit.
    pub(crate) size: Size,
    /// There is more to do immediately.
    pub(crate) more: bool,
}

/// The tables of the archive, and how to open them.
#[derive(Debug)]
pub(crate) struct ObjectArchive {
    location: LakeLocation,
    config: ObjectArchiveConfig,
    directory: Arc<DataDir>,
    options: LakeOptions,
    /// How far the archive in the data directory extends, by shard. It has ended. `None`: not read yet.
    earlier: Option<BTreeMap<u32, ArchivedRange>>,
    runtime: Handle,
    /// `None`: not opened yet, or closed after a failure.
    lake: Option<Lake>,
    /// Number of the last opening.
    epoch: Option<u64>,
    /// Shards with more history than one round takes.
    more: BTreeSet<usize>,
    retained: Option<Instant>,
}

impl ObjectArchive {
    /// Creates it without any request. `journals`: identities of the shards' journals. Must run in a Tokio runtime.
    ///
    /// # Errors
    /// [`LakeError::Url`] if the URL or an option is invalid.
    pub(crate) fn new(
        config: &ObjectArchiveConfig,
        directory: &Arc<DataDir>,
        journals: Vec<u64>,
    ) -> Result<Self, LakeError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let options = LakeOptions {
            journals,
            is_new: !archive_location::is_known(directory, config),
            buckets: config.buckets,
            target_bytes: config.file_bytes,
            compact_after_ms: ms(config.compact_after),
            snapshot_age_ms: ms(config.snapshot_max_age),
            ..LakeOptions::default()
        };
        Ok(Self {
            location: LakeLocation::open(&config.url, &config.options)?,
            config: config.clone(),
            directory: Arc::clone(directory),
            options,
            earlier: None,
            runtime: Handle::current(),
            lake: None,
            epoch: None,
            more: BTreeSet::new(),
            retained: None,
        })
    }

    /// Archives some megabytes of each offered shard.
    pub(crate) fn archive(
        &mut self,
        offered: &BTreeMap<usize, Offer>,
        hub: &Arc<Hub>,
    ) -> Result<Vec<(usize, RunSummary)>, LakeError> {
        let mut journals = Vec::new();
        for (shard, offer) in offered {
            let start = self.end_of_earlier(*shard as u32, &offer.inventory)?;
            journals.push((*shard, open(&self.directory.shard_path(*shard))?, &offer.inventory, start));
        }
        let stop = || hub.shutdown.has_ended();
        let now_ms = hub.clock.now().0;
        let rounds = self.run(hub, async |lake| {
            let inputs: Vec<_> = journals
                .iter()
                .map(|(shard, journal, inventory, start)| ShardInput {
                    shard: *shard as u32,
                    journal,
                    inventory,
                    start: *start,
                })
                .collect();
            lake.round(&inputs, now_ms, &stop).await
        })?;
        let mut archived = Vec::new();
        for ((shard, ..), round) in journals.iter().zip(rounds) {
            match round.more {
                true => self.more.insert(*shard),
                false => self.more.remove(shard),
            };
            archived.push((*shard, round));
        }
        Ok(archived)
    }

    /// Returns the number below which the archive in the data directory has all notes of a journal.
    ///
    /// # Errors
    /// [`ArchiveError::OtherJournal`], because readers see both archives as one.
    fn end_of_earlier(&mut self, shard: u32, inventory: &NoteInventory) -> Result<u64, LakeError> {
        if self.earlier.is_none() {
            let manifest = newest_manifest(&self.directory.archive())?;
            self.earlier = Some(manifest.map(|manifest| manifest.shards).unwrap_or_default());
        }
        let Some(reach) = self.earlier.as_ref().and_then(|shards| shards.get(&shard)) else { return Ok(0) };
        match reach.next_of(inventory) {
            Some(next) if reach.journal == hex(inventory.journal) => Ok(next),
            Some(_) => Ok(0),
            None => Err(ArchiveError::OtherJournal { shard, archived: reach.notes }.into()),
        }
    }

    /// Whether the last round of a shard left history that could be archived.
    pub(crate) fn has_more(&self, shard: usize) -> bool {
        self.more.contains(&shard)
    }

    /// Merges some small files, and removes what is too old.
    pub(crate) fn maintain(
        &mut self,
        config: &ArchiveConfig,
        hub: &Arc<Hub>,
    ) -> Result<Maintained, LakeError> {
        let now_ms = hub.clock.now().0;
        let stop = || hub.shutdown.has_ended();
        let due = self.retained.is_none_or(|retained| retained.elapsed() >= RETENTION);
        let age_ms = config.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let retention = Retention { age_ms, bytes: config.max_bytes };
        let maintained = self.run(hub, async |lake| {
            let compacted = lake.compact(now_ms, &stop).await?;
            if let Some(compacted) = compacted {
                tracing::debug!(?compacted, "merged files of the archive");
            }
            let mut maintained = Maintained { more: compacted.is_some(), ..Maintained::default() };
            if due {
                maintained.size = lake.retain(retention, now_ms).await?;
                lake.expire(now_ms).await?;
            }
            Ok(maintained)
        })?;
        if due {
            self.retained = Some(Instant::now());
        }
        Ok(maintained)
    }

    /// Size of the tables when they were last open.
    pub(crate) fn size(&self) -> Size {
        self.lake.as_ref().map(Lake::size).unwrap_or_default()
    }

    /// Opens the tables if necessary and works on them. A stop of the broker interrupts it between two requests.
    fn run<T>(
        &mut self,
        hub: &Arc<Hub>,
        work: impl AsyncFnOnce(&mut Lake) -> Result<T, LakeError>,
    ) -> Result<T, LakeError> {
        let now_ms = hub.clock.now().0;
        let runtime = self.runtime.clone();
        runtime.block_on(until_stop(hub, async {
            let mut lake = match self.lake.take() {
                Some(lake) => lake,
                None => Lake::open(self.location.clone(), self.options.clone(), self.epoch, now_ms).await?,
            };
            self.epoch = Some(lake.epoch());
            if self.options.is_new {
                // Before anything is archived: from then on, the directory and the tables belong together.
                archive_location::remember(&self.directory, &self.config)?;
                self.options.is_new = false;
            }
            let done = work(&mut lake).await?;
            // After an error its state is unknown, and it is opened again.
            self.lake = Some(lake);
            Ok(done)
        }))
    }
}

async fn until_stop<T>(hub: &Hub, work: impl Future<Output = Result<T, LakeError>>) -> Result<T, LakeError> {
    tokio::select! {
        done = work => done,
        () = hub.shutdown.ended() => Err(ArchiveError::Interrupted.into()),
    }
}
