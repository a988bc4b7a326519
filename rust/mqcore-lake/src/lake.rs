//! Both tables of an archive, as the only writer.
//!
//! ```text
//! 1. data files are uploaded under new names                 a crash leaves objects that no snapshot names
//! 2. one commit per table names them, and how far it extends from here on they belong to the table
//! 3. the journal may remove notes that both tables have      after a crash, each table skips what it has
//! ```
//!
//! A commit whose response is lost may happen at any later time. Each opening therefore begins with a commit of its own,
//! which makes all earlier ones impossible, and raises the *epoch*. A writer that finds a higher epoch than its own stops:
//! another process has taken over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::Arc;

use iceberg::spec::DataFile;
use mqcore_archive::archive::{ArchiveError, Retention, RunSummary, Size};
use mqcore_archive::manifest::{ArchivedRange, Removed, hex};
use mqcore_archive::partition::Partition;
use mqcore_archive::round::{QueueNames, RoundNotes};
use mqcore_archive::tables::{Rows, Table};
use mqcore_journal::notes::NoteInventory;
use mqcore_journal::storage::Storage;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::change::Change;
use crate::error::LakeError;
use crate::files::{FileWriter, LiveFile};
use crate::location::LakeLocation;
use crate::schema::TablePartition;
use crate::store::Store;
use crate::table::IcebergTable;

/// The tables of an archive, in the order of their commits.
pub(crate) const TABLES: [Table; 2] = [Table::Messages, Table::Steps];
/// Property: identity of the broker that owns the table.
const OWNER: &str = "mqcore.owner";
/// Property: identity of the process that opened the table last.
const WRITER: &str = "mqcore.writer";
/// Property: number of openings so far.
const EPOCH: &str = "mqcore.epoch";
/// Property: how far the table extends, by shard, in JSON.
const SHARDS: &str = "mqcore.shards";
/// Property: total removed by retention, in JSON.
const REMOVED: &str = "mqcore.removed";

/// Settings of an archive on object storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LakeOptions {
    /// Identity of this process: any text that no other process has.
    pub writer: String,
    /// Identities of the journals of this broker's shards. A table of other journals belongs to another broker.
    pub journals: Vec<u64>,
    /// Whether the broker has not used these tables before. They are then created if there are none, and may contain no history
    /// of its journals. Otherwise they must exist. Default false.
    pub is_new: bool,
    /// Number of partitions of each day. Only new tables use it. Default 2.
    pub buckets: u32,
    /// Size in bytes of the files that compaction makes. Default 128 MiB.
    pub target_bytes: u64,
    /// Time in milliseconds after which small files are merged even if there are few. Default 15 minutes.
    pub compact_after_ms: u64,
    /// Age in milliseconds at which snapshots expire. Default 1 day.
    pub snapshot_age_ms: u64,
}

impl Default for LakeOptions {
    fn default() -> Self {
        Self {
            writer: Uuid::new_v4().to_string(),
            journals: Vec::new(),
            is_new: false,
            buckets: 2,
            target_bytes: 128 << 20,
            compact_after_ms: 15 * 60_000,
            snapshot_age_ms: 86_400_000,
        }
    }
}

impl LakeOptions {
    /// The identity under which a broker creates tables: that of its first journal.
    fn identity(&self) -> String {
        self.journals.first().map(|&journal| hex(journal)).unwrap_or_default()
    }

    /// Returns history of this broker's journals that it cannot have archived: the shard, and the end of its notes.
    fn unknown(&self, archived: &Shards) -> Option<(u32, u64)> {
        let journals: Vec<_> = self.journals.iter().map(|&journal| hex(journal)).collect();
        let own = |(_, reach): &(&u32, &ArchivedRange)| reach.notes > 0 && journals.contains(&reach.journal);
        let found = archived.iter().find(own).filter(|_| self.is_new);
        found.map(|(&shard, reach)| (shard, reach.notes))
    }

    /// Whether one of this broker's journals created the table or is in it. A journal that the operator gave up as lost has
    /// got another identity since.
    fn owns(&self, owner: &str, archived: &Shards) -> bool {
        self.journals
            .iter()
            .map(|&journal| hex(journal))
            .any(|journal| journal == owner || archived.values().any(|reach| reach.journal == journal))
    }
}

/// History of one shard that can be archived.
#[derive(Debug)]
pub struct ShardInput<'a, J> {
    /// Shard number.
    pub shard: u32,
    /// Its journal.
    pub journal: &'a J,
    /// Sealed notes of the journal.
    pub inventory: &'a NoteInventory,
    /// Notes below this number are in another archive.
    pub start: u64,
}

/// The tables in the state of their newest commits.
#[derive(Debug)]
pub struct Lake {
    pub(crate) tables: [IcebergTable; 2],
    pub(crate) options: LakeOptions,
    location: LakeLocation,
    epoch: u64,
    /// Time of the last round that added files, by table, shard and partition. Missing after an opening.
    pub(crate) appended: HashMap<(usize, u32, TablePartition), u64>,
    /// Small files that a merge does not make fewer, by path. Missing after an opening.
    pub(crate) complete: HashSet<String>,
}

/// How far a table extends, by shard.
pub(crate) type Shards = BTreeMap<u32, ArchivedRange>;
/// Rows of one table, queue and day.
type Collected = HashMap<(usize, Partition), Rows>;

impl Lake {
    /// Opens the tables, or creates them, and takes them over from every earlier writer of the same owner. `location` is a
    /// [`LakeLocation`], or a [`Store`] that is its own catalog.
    ///
    /// `epoch` is that of this process's last opening, if there was one.
    ///
    /// # Errors
    /// [`LakeError::Fenced`] if another process has opened the tables after this one, [`LakeError::Owner`],
    /// [`LakeError::Gone`], [`LakeError::Unconditional`], [`LakeError::Conflict`] if others do the same at this moment, and
    /// others.
    pub async fn open(
        location: impl Into<LakeLocation>,
        options: LakeOptions,
        epoch: Option<u64>,
        now_ms: u64,
    ) -> Result<Self, LakeError> {
        let location = location.into();
        let store = location.store();
        if epoch.is_none() && location.needs_conditional_writes() {
            store.probe("").await?;
        }
        let [messages, steps] = TABLES;
        let tables = [
            open_or_create(&location, messages, &options).await?,
            open_or_create(&location, steps, &options).await?,
        ];
        let (mut newest, mut replaced) = (0, None);
        for table in &tables {
            let owner = table.property(OWNER).unwrap_or_default();
            let archived = shards(table)?;
            if !options.owns(owner, &archived) {
                let (url, owner) = (store.url().to_owned(), owner.to_owned());
                return Err(LakeError::Owner { url, owner, this: options.identity() });
            }
            if let Some((shard, archived)) = options.unknown(&archived) {
                return Err(LakeError::Ahead { url: store.url().to_owned(), shard, archived });
            }
            let opened = table.property(EPOCH).and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
            // An interrupted opening of this process may have raised the epoch of one table.
            if table.property(WRITER) != Some(&options.writer) {
                replaced = replaced.max(Some(opened));
            }
            newest = newest.max(opened);
        }
        if let Some((this, epoch)) = epoch.zip(replaced).filter(|(this, replaced)| this < replaced) {
            return Err(LakeError::Fenced { url: store.url().to_owned(), epoch, this });
        }
        let epoch = newest + 1;
        let mut lake =
            Self { tables, options, location, epoch, appended: HashMap::new(), complete: HashSet::new() };
        for table in &mut lake.tables {
            table.set_epoch(epoch);
            let writer = lake.options.writer.clone();
            let properties = vec![(EPOCH.to_owned(), epoch.to_string()), (WRITER.to_owned(), writer)];
            table.commit(Change { properties, ..Change::default() }, now_ms).await?;
            table.evolve().await?;
            let removed = table.remove_orphans().await?;
            if removed > 0 {
                tracing::info!(
                    table = table.table().as_str(),
                    removed,
                    "removed files of interrupted commits"
                );
            }
        }
        Ok(lake)
    }

    /// Number of this opening.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The object store.
    pub fn store(&self) -> &Store {
        self.location.store()
    }

    /// Returns the number below which all notes of this journal are in both tables.
    ///
    /// # Errors
    /// [`LakeError::Table`] if another program has changed the tables' properties.
    pub fn archived(&self, shard: u32, journal: u64) -> Result<u64, LakeError> {
        let [messages, steps] = self.shards()?;
        Ok(reach(&messages, shard, journal).min(reach(&steps, shard, journal)))
    }

    fn shards(&self) -> Result<[Shards; 2], LakeError> {
        Ok([shards(&self.tables[0])?, shards(&self.tables[1])?])
    }

    /// Returns the size of both tables.
    pub fn size(&self) -> Size {
        let mut size = Size::default();
        for file in self.tables.iter().flat_map(IcebergTable::files) {
            size.files += 1;
            size.rows += file.data.record_count();
            size.bytes += file.data.file_size_in_bytes();
        }
        size
    }

    /// Archives some megabytes of notes of each shard, and returns one summary for each input. It leaves out a shard whose
    /// inventory names a segment that does not exist any more.
    ///
    /// # Errors
    /// [`LakeError`]; open the archive again after an error. [`ArchiveError::Interrupted`] once `stop` returns true.
    pub async fn round<J: Storage>(
        &mut self,
        inputs: &[ShardInput<'_, J>],
        now_ms: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<RunSummary>, LakeError> {
        let go_on = || if stop() { Err(ArchiveError::Interrupted) } else { Ok(()) };
        let mut summaries = Vec::new();
        let mut added: [Vec<DataFile>; 2] = Default::default();
        let archived = self.shards()?;
        let mut extents = archived.clone();
        for input in inputs {
            let (shard, journal) = (input.shard, input.inventory.journal);
            let reaches = [0, 1].map(|index| reach(&archived[index], shard, journal).max(input.start));
            let furthest = reaches[0].max(reaches[1]);
            if furthest > input.inventory.next {
                let url = self.store().url().to_owned();
                return Err(LakeError::Ahead { url, shard, archived: furthest });
            }
            let froms = [self.next_of(&archived[0], input)?, self.next_of(&archived[1], input)?];
            let from = froms[0].min(froms[1]);
            let mut summary = RunSummary { archived: reaches[0].min(reaches[1]), ..RunSummary::default() };
            let notes = match RoundNotes::read(shard, input.journal, input.inventory, from, &go_on) {
                // Housekeeping has removed a segment. The inventory without it has arrived, or will. Those of other
                // shards are offered only once, and are archived now.
                Err(ArchiveError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => None,
                notes => notes?,
            };
            if let Some(notes) = notes {
                let (mut rows, mut names) = (Collected::new(), QueueNames::default());
                let taken = notes.each_step(shard, from, &go_on, &mut |place, step| {
                    let partition = Partition::of(names.shared(step.queue), step.time.0);
                    let wanted = [step.content.is_some(), true];
                    for index in (0..2).filter(|&index| wanted[index] && froms[index] <= place.note) {
                        let rows = rows
                            .entry((index, partition.clone()))
                            .or_insert_with(|| Rows::new(TABLES[index]));
                        match index {
                            0 => rows.push_message(place, step)?,
                            _ => rows.push_step(place, step)?,
                        }
                    }
                    Ok(())
                })?;
                summary.missing = (taken.below - from).saturating_sub(taken.notes);
                summary.archived = taken.below;
                summary.more = taken.below < notes.below() || notes.more();
                for (index, file) in self.upload(shard, rows, now_ms, &go_on).await? {
                    summary.files += 1;
                    summary.rows += file.record_count();
                    summary.bytes += file.file_size_in_bytes();
                    added[index].push(file);
                }
                for (extent, from) in extents.iter_mut().zip(froms) {
                    let missing = if from < taken.below { summary.missing } else { 0 };
                    extent.entry(shard).or_default().extend(journal, from, taken.below, missing);
                }
            }
            summaries.push(summary);
        }
        go_on()?;
        for (index, table) in self.tables.iter_mut().enumerate() {
            let (added, next) = (std::mem::take(&mut added[index]), &extents[index]);
            if added.is_empty() && *next == archived[index] {
                continue;
            }
            let properties = vec![(SHARDS.to_owned(), json(next))];
            table.commit(Change { added, properties, ..Change::default() }, now_ms).await?;
        }
        Ok(summaries)
    }

    /// Returns the number of the first note of a journal that a table does not have.
    ///
    /// # Errors
    /// [`LakeError::OtherJournal`].
    fn next_of<J>(&self, archived: &Shards, input: &ShardInput<'_, J>) -> Result<u64, LakeError> {
        let reach = match archived.get(&input.shard) {
            Some(reach) => reach,
            // The journal continues here after the other archive.
            None if input.start > 0 => return Ok(input.start),
            None => &ArchivedRange::default(),
        };
        let next = reach.next_of(input.inventory).map(|next| next.max(input.start));
        next.ok_or_else(|| LakeError::OtherJournal {
            url: self.store().url().to_owned(),
            shard: input.shard,
            archived: reach.notes,
        })
    }

    /// Uploads the rows of one shard, one file for each table, day and bucket.
    async fn upload(
        &mut self,
        shard: u32,
        rows: Collected,
        now_ms: u64,
        go_on: &(dyn Fn() -> Result<(), ArchiveError> + Sync),
    ) -> Result<Vec<(usize, DataFile)>, LakeError> {
        let mut files: BTreeMap<(usize, TablePartition), BTreeMap<Arc<str>, Rows>> = BTreeMap::new();
        for ((index, partition), rows) in rows {
            let bucket = self.tables[index].bucket(&partition.queue)?;
            let file = files.entry((index, TablePartition { day: partition.day, bucket })).or_default();
            file.insert(partition.queue, rows);
        }
        let mut uploaded = Vec::new();
        for ((index, partition), queues) in files {
            go_on()?;
            let table = &self.tables[index];
            let mut writer = FileWriter::new(table.table(), table.parquet())?;
            for mut rows in queues.into_values() {
                writer.write(&rows.take()?)?;
            }
            uploaded.push((index, table.upload(&writer.finish()?, partition).await?));
            self.appended.insert((index, shard, partition), now_ms);
        }
        Ok(uploaded)
    }

    /// Removes the oldest files that exceed a retention limit from the tables. Their objects are deleted when the
    /// snapshots that contain them expire. Returns the size of the removed files.
    ///
    /// # Errors
    /// [`LakeError`]; open the archive again after an error.
    pub async fn retain(&mut self, retention: Retention, now_ms: u64) -> Result<Size, LakeError> {
        let mut order: Vec<(usize, &LiveFile)> = (0..2)
            .flat_map(|index| self.tables[index].files().iter().map(move |file| (index, file)))
            .collect();
        order.sort_by_key(|(_, file)| file.max_time_ms());
        let mut left = self.size().bytes;
        let mut gone: [Vec<LiveFile>; 2] = Default::default();
        for (index, file) in order {
            let too_old = retention.age_ms.is_some_and(|age| file.max_time_ms().saturating_add(age) < now_ms);
            if !too_old && retention.bytes.is_none_or(|limit| left <= limit) {
                break;
            }
            left -= file.data.file_size_in_bytes();
            gone[index].push(file.clone());
        }
        let mut total = Size::default();
        for (table, gone) in self.tables.iter_mut().zip(gone).filter(|(_, gone)| !gone.is_empty()) {
            let (mut shards, mut removed) = (shards(table)?, removed(table)?);
            let mut paths = HashSet::new();
            for file in gone {
                for (_, reach) in
                    shards.iter_mut().filter(|(shard, _)| file.shard().is_none_or(|own| own == **shard))
                {
                    reach.kept_from = reach.kept_from.max(file.notes().end.min(reach.notes));
                }
                total.files += 1;
                total.rows += file.data.record_count();
                total.bytes += file.data.file_size_in_bytes();
                removed.files += 1;
                removed.rows += file.data.record_count();
                removed.bytes += file.data.file_size_in_bytes();
                paths.insert(file.data.file_path().to_owned());
            }
            let properties = vec![(SHARDS.to_owned(), json(&shards)), (REMOVED.to_owned(), json(&removed))];
            table.commit(Change { removed: paths, properties, ..Change::default() }, now_ms).await?;
        }
        Ok(total)
    }

    /// Removes snapshots that are older than the limit, and the objects that only they use. Returns the number of snapshots.
    ///
    /// # Errors
    /// [`LakeError`]; open the archive again after an error.
    pub async fn expire(&mut self, now_ms: u64) -> Result<u64, LakeError> {
        let before_ms = now_ms.saturating_sub(self.options.snapshot_age_ms);
        let mut expired = 0;
        for table in &mut self.tables {
            expired += table.expire(before_ms, now_ms).await?;
        }
        Ok(expired)
    }
}

async fn open_or_create(
    location: &LakeLocation,
    table: Table,
    options: &LakeOptions,
) -> Result<IcebergTable, LakeError> {
    match IcebergTable::open(location, table).await? {
        Some(table) => Ok(table),
        None if !options.is_new => Err(LakeError::Gone {
            url: location.store().url().to_owned(),
            missing: format!("table {}", table.as_str()),
        }),
        None => {
            let properties = HashMap::from([(OWNER.to_owned(), options.identity())]);
            IcebergTable::create(location, table, options.buckets, properties).await
        }
    }
}

/// Returns how far a table extends.
///
/// # Errors
/// [`LakeError::Table`]: without this property, history would be archived a second time.
pub(crate) fn shards(table: &IcebergTable) -> Result<Shards, LakeError> {
    decoded(table, SHARDS)
}

fn removed(table: &IcebergTable) -> Result<Removed, LakeError> {
    decoded(table, REMOVED)
}

/// Returns the value of a property; the default if the table has never had it.
fn decoded<T: DeserializeOwned + Default>(table: &IcebergTable, property: &str) -> Result<T, LakeError> {
    let Some(text) = table.property(property) else { return Ok(T::default()) };
    serde_json::from_str(text).map_err(|error| LakeError::Table {
        location: table.location().to_owned(),
        why: format!("its property {property} is invalid: {error}"),
    })
}

/// Returns the number below which all notes of this journal are in a table.
fn reach(shards: &Shards, shard: u32, journal: u64) -> u64 {
    shards.get(&shard).filter(|reach| reach.journal == hex(journal)).map_or(0, |reach| reach.notes)
}

/// Text, numbers and maps of them always have a JSON form.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
