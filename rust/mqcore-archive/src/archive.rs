//! Archives notes in files, each exactly once.
//!
//! One round archives the notes of some sealed segments and ends with one manifest:
//!
//! ```text
//! 1. each file is written under `_tmp/`, synced and renamed                 a crash leaves files that no manifest names
//! 2. the directories are synced
//! 3. the manifest that names them is written, synced, renamed, synced       from here on the round is complete
//! 4. the journal may remove the notes                                       after a crash, they are skipped by number
//! ```
//!
//! The next opening first removes what a crash or an error has left. After an error, the state in memory is invalid: open the
//! archive again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;

use mqcore_broker::history::LifecycleStep;
use mqcore_broker::model::record::RecordError;
use mqcore_journal::notes::NoteInventory;
use mqcore_journal::storage::Storage;

use crate::export::{ExportError, Exporter, Format};
use crate::manifest::{self, FileEntry, Manifest, hex};
use crate::partition::Partition;
use crate::round::{QueueNames, RoundNotes};
use crate::tables::{StepPlace, Table};

/// Number of manifests preserved, including the newest, so that a reader can still open one it has just chosen.
const MANIFESTS_KEPT: u64 = 8;
/// Directory of files that are not complete yet.
const TEMPORARY: &str = "_tmp/";

/// Retention limits of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Age in milliseconds at which a file is removed, measured from its latest row. `None`: never. Default `None`.
    pub age_ms: Option<u64>,
    /// Maximum size of all files in bytes; the oldest are removed first. `None`: no limit. Default `None`.
    pub bytes: Option<u64>,
}

/// An error of the archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// A file operation failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// Operation.
        doing: &'static str,
        /// File path.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The newest manifest cannot be read. Nothing is changed, because it is unknown which files belong to the archive.
    #[error("cannot use the manifest {path}: {why}; move the archive elsewhere, or use a newer mqcore")]
    Manifest {
        /// File path.
        path: String,
        /// Reason.
        why: String,
    },
    /// A newer version wrote the history in the journal.
    #[error(transparent)]
    Record(RecordError),
    /// Rows cannot be encoded.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The journal of a shard is another one than before, and its notes have the numbers of archived ones.
    #[error(
        "the archive has history of another journal of shard {shard}, up to note {archived}, and this one has other notes with \
         these numbers; move the directory of the archive elsewhere"
    )]
    OtherJournal {
        /// Shard number.
        shard: u32,
        /// Number below which all notes are in the archive.
        archived: u64,
    },
    /// The caller asked to stop. Nothing was published; the next opening removes what was written.
    #[error("interrupted because the broker stops")]
    Interrupted,
}

/// The archive in the state of its newest manifest.
#[derive(Debug)]
pub struct Archive<S: Storage> {
    storage: S,
    manifest: Manifest,
}

/// The result of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunSummary {
    /// Notes below this number are durably archived, so the journal may remove them.
    pub archived: u64,
    /// Number of files written.
    pub files: u64,
    /// Number of rows written to both tables.
    pub rows: u64,
    /// Size of the files in bytes.
    pub bytes: u64,
    /// Number of notes that were missing or unreadable.
    pub missing: u64,
    /// More notes can be archived immediately.
    pub more: bool,
}

/// The size of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Number of files.
    pub files: u64,
    /// Number of rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl<S: Storage> Archive<S> {
    /// Opens the archive in `storage`, or creates it. Removes the files of incomplete rounds.
    ///
    /// # Errors
    /// [`ArchiveError::Manifest`] before anything is changed, and [`ArchiveError::Io`].
    pub fn open(storage: S) -> Result<Self, ArchiveError> {
        let names = storage.list().map_err(failed("listing", "the archive"))?;
        let newest = names.iter().filter_map(|name| manifest::number(name)).max();
        let manifest = match newest {
            Some(number) => read_manifest(&storage, number)?,
            None => Manifest::empty(),
        };
        let archive = Self { storage, manifest };
        // The manifest may so far exist only in the system's cache. From here on it must be durable.
        archive.sync_directories()?;
        archive.put_away(&names)?;
        Ok(archive)
    }

    /// Returns the newest manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the storage.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Returns the size of the archive.
    pub fn size(&self) -> Size {
        let files = &self.manifest.files;
        Size {
            files: files.len() as u64,
            rows: files.iter().map(|file| file.rows).sum(),
            bytes: files.iter().map(|file| file.bytes).sum(),
        }
    }

    /// Returns the number below which all notes of this journal are archived.
    pub fn archived(&self, shard: u32, journal: u64) -> u64 {
        let reach = self.manifest.shards.get(&shard);
        reach.filter(|reach| reach.journal == hex(journal)).map_or(0, |reach| reach.notes)
    }

    /// Archives notes of sealed segments, up to some megabytes, and publishes them.
    ///
    /// # Errors
    /// [`ArchiveError`]; open the archive again after an error. [`io::ErrorKind::NotFound`] for a segment means that
    /// housekeeping has removed it: ask the journal for a new inventory.
    pub fn round<J: Storage>(
        &mut self,
        shard: u32,
        journal: &J,
        inventory: &NoteInventory,
        now_ms: u64,
    ) -> Result<RunSummary, ArchiveError> {
        self.round_until(shard, journal, inventory, now_ms, &|| false)
    }

    /// Like [`Archive::round`], but gives up once `stop` returns true. It calls `stop` before each segment, note and file.
    ///
    /// # Errors
    /// As [`Archive::round`], and [`ArchiveError::Interrupted`].
    pub fn round_until<J: Storage>(
        &mut self,
        shard: u32,
        journal: &J,
        inventory: &NoteInventory,
        now_ms: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<RunSummary, ArchiveError> {
        let go_on = || if stop() { Err(ArchiveError::Interrupted) } else { Ok(()) };
        let mut reach = self.manifest.shards.get(&shard).cloned().unwrap_or_default();
        let from = reach.next_of(inventory);
        let from = from.ok_or(ArchiveError::OtherJournal { shard, archived: reach.notes })?;
        let archived = self.archived(shard, inventory.journal);
        let mut round = RunSummary { archived, ..RunSummary::default() };
        let Some(notes) = RoundNotes::read(shard, journal, inventory, from, &go_on)? else {
            return Ok(round);
        };
        let taken = take(shard, &notes, from, &go_on)?;
        round.missing = (taken.below - from).saturating_sub(taken.notes);
        round.archived = taken.below;
        round.more = taken.below < notes.below() || notes.more();
        let number = self.manifest.number + 1;
        let mut next = Manifest { number, written_ms: now_ms, ..self.manifest.clone() };
        for (index, (key, file)) in taken.files.into_iter().enumerate() {
            go_on()?;
            let entry = self.write_file(number, index, shard, key, file)?;
            round.files += 1;
            round.rows += entry.rows;
            round.bytes += entry.bytes;
            next.files.push(entry);
        }
        reach.extend(inventory.journal, from, taken.below, round.missing);
        next.shards.insert(shard, reach);
        go_on()?;
        self.publish(next)?;
        Ok(round)
    }

    /// Removes the oldest files that exceed a retention limit: first from the manifest, then from the disk. Returns the size
    /// of the removed files.
    ///
    /// # Errors
    /// [`ArchiveError`]; open the archive again after an error.
    pub fn retain(&mut self, retention: Retention, now_ms: u64) -> Result<Size, ArchiveError> {
        let mut order: Vec<usize> = (0..self.manifest.files.len()).collect();
        order.sort_by_key(|&index| self.manifest.files[index].max_time_ms);
        let mut bytes = self.size().bytes;
        let mut gone = Vec::new();
        for index in order {
            let file = &self.manifest.files[index];
            let too_old = retention.age_ms.is_some_and(|age| file.max_time_ms.saturating_add(age) < now_ms);
            let too_much = retention.bytes.is_some_and(|limit| bytes > limit);
            if !too_old && !too_much {
                break;
            }
            bytes -= file.bytes;
            gone.push(index);
        }
        if gone.is_empty() {
            return Ok(Size::default());
        }
        let mut next =
            Manifest { number: self.manifest.number + 1, written_ms: now_ms, ..self.manifest.clone() };
        gone.sort_unstable();
        let removed: Vec<FileEntry> = gone.into_iter().rev().map(|index| next.files.remove(index)).collect();
        let size = Size {
            files: removed.len() as u64,
            rows: removed.iter().map(|file| file.rows).sum(),
            bytes: removed.iter().map(|file| file.bytes).sum(),
        };
        for file in &removed {
            let reach = next.shards.entry(file.shard).or_default();
            // Files of earlier versions have unknown notes: any archived note may be affected.
            let behind = file.max_note.checked_add(1).unwrap_or(reach.notes);
            reach.kept_from = reach.kept_from.max(behind.min(reach.notes));
        }
        next.removed.files += size.files;
        next.removed.rows += size.rows;
        next.removed.bytes += size.bytes;
        self.publish(next)?;
        for file in removed {
            self.storage.remove(&file.path).map_err(failed("removing", &file.path))?;
        }
        Ok(size)
    }

    /// Writes a file and renames it. It belongs to the archive only once a manifest names it.
    fn write_file(
        &self,
        number: u64,
        index: usize,
        shard: u32,
        (table, partition): (Table, Partition),
        file: FileBuilder,
    ) -> Result<FileEntry, ArchiveError> {
        let (rows, bytes) = file.rows.finish()?;
        let name = format!("{number:010}-{index:05}.parquet");
        let path = format!("{}/{}/{name}", table.as_str(), partition.path());
        let temporary = format!("{TEMPORARY}{name}");
        self.write(&temporary, &bytes)?;
        self.storage.rename(&temporary, &path).map_err(failed("renaming", &path))?;
        let address = partition.address();
        Ok(FileEntry {
            table: table.as_str().to_owned(),
            path,
            shard,
            channel: address.map(|(channel, _)| channel.to_owned()),
            queue_id: address.map(|(_, id)| id),
            queues: None,
            date: partition.date(),
            bytes: bytes.len() as u64,
            rows,
            min_time_ms: file.times.0,
            max_time_ms: file.times.1,
            min_number: file.numbers.map_or(0, |(min, _)| min),
            max_number: file.numbers.map_or(0, |(_, max)| max),
            min_note: file.notes.0,
            max_note: file.notes.1,
        })
    }

    /// Writes a file and makes its content durable.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let file = self.storage.create(path, 0).map_err(failed("creating", path))?;
        let mut done = 0;
        while done < bytes.len() {
            let wrote = self.storage.write_at(&file, done as u64, &bytes[done..]);
            match wrote.map_err(failed("writing", path))? {
                0 => return Err(failed("writing", path)(io::ErrorKind::WriteZero.into())),
                count => done += count,
            }
        }
        self.storage.sync_data(&file).map_err(failed("syncing", path))
    }

    /// Writes the next manifest and makes it durable.
    fn publish(&mut self, next: Manifest) -> Result<(), ArchiveError> {
        self.sync_directories()?;
        let path = manifest::path(next.number);
        let temporary = format!("{TEMPORARY}{:010}.json", next.number);
        self.write(&temporary, &next.encode())?;
        self.storage.rename(&temporary, &path).map_err(failed("renaming", &path))?;
        self.sync_directories()?;
        self.manifest = next;
        if let Some(old) = self.manifest.number.checked_sub(MANIFESTS_KEPT) {
            // If this fails, the next opening removes it.
            let _ = self.storage.remove(&manifest::path(old));
        }
        Ok(())
    }

    fn sync_directories(&self) -> Result<(), ArchiveError> {
        self.storage.sync_directory().map_err(failed("syncing", "the directories of the archive"))
    }

    /// Removes files that no manifest names and outdated manifests. Leaves unrelated files alone.
    fn put_away(&self, names: &[String]) -> Result<(), ArchiveError> {
        let files = &self.manifest.files;
        let named: std::collections::HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let tables = [Table::Messages, Table::Steps].map(|table| format!("{}/", table.as_str()));
        for name in names {
            let orphan = tables.iter().any(|table| name.starts_with(table)) && !named.contains(name.as_str());
            let old =
                manifest::number(name).is_some_and(|number| number + MANIFESTS_KEPT <= self.manifest.number);
            if orphan || old || name.starts_with(TEMPORARY) {
                self.storage.remove(name).map_err(failed("removing", name))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn failed(doing: &'static str, path: &str) -> impl FnOnce(io::Error) -> ArchiveError {
    move |source| ArchiveError::Io { doing, path: path.to_owned(), source }
}

fn read_manifest<S: Storage>(storage: &S, number: u64) -> Result<Manifest, ArchiveError> {
    let path = manifest::path(number);
    let read = || {
        let file = storage.open(&path)?;
        let mut bytes = vec![0; usize::try_from(storage.length(&file)?).unwrap_or(usize::MAX)];
        let mut done = 0;
        while done < bytes.len() {
            match storage.read_at(&file, done as u64, &mut bytes[done..])? {
                0 => break,
                count => done += count,
            }
        }
        bytes.truncate(done);
        storage.sync_data(&file)?;
        Ok(bytes)
    };
    let bytes = read().map_err(failed("reading", &path))?;
    let found = Manifest::parse(&bytes).map_err(|why| ArchiveError::Manifest { path: path.clone(), why })?;
    if found.number != number {
        let why = format!("it contains the number {}", found.number);
        return Err(ArchiveError::Manifest { path, why });
    }
    Ok(found)
}

/// A file that a round is building.
struct FileBuilder {
    rows: Exporter<Vec<u8>>,
    times: (u64, u64),
    numbers: Option<(u64, u64)>,
    notes: (u64, u64),
}

impl FileBuilder {
    fn new(table: Table, time_ms: u64, note: u64) -> Result<Self, ExportError> {
        let rows = Exporter::new(Format::Parquet, table, Vec::new())?;
        Ok(Self { rows, times: (time_ms, time_ms), numbers: None, notes: (note, note) })
    }

    fn push(&mut self, table: Table, place: StepPlace, step: &LifecycleStep<'_>) -> Result<(), ExportError> {
        match table {
            Table::Messages => self.rows.rows.push_message(place, step)?,
            _ => self.rows.rows.push_step(place, step)?,
        }
        self.times = (self.times.0.min(step.time.0), self.times.1.max(step.time.0));
        self.notes = (self.notes.0.min(place.note), self.notes.1.max(place.note));
        if !step.kind.is_of_a_shard() {
            let (first, last) = (step.number.0, step.numbers.map_or(step.number.0, |numbers| numbers.last()));
            self.numbers =
                Some(self.numbers.map_or((first, last), |(min, max)| (min.min(first), max.max(last))));
        }
        self.rows.advance()
    }
}

/// The notes that a round archives.
struct CollectedNotes {
    files: BTreeMap<(Table, Partition), FileBuilder>,
    /// Number of distinct notes read.
    notes: u64,
    below: u64,
}

fn take(
    shard: u32,
    notes: &RoundNotes,
    from: u64,
    go_on: &dyn Fn() -> Result<(), ArchiveError>,
) -> Result<CollectedNotes, ArchiveError> {
    let mut files = Files::default();
    let taken = notes.each_step(shard, from, go_on, &mut |place, step| files.add(place, step))?;
    Ok(CollectedNotes { files: files.growing.into_iter().collect(), notes: taken.notes, below: taken.below })
}

/// The files of a round, and the name of each queue, shared by all its rows.
#[derive(Default)]
struct Files {
    growing: HashMap<(Table, Partition), FileBuilder>,
    queues: QueueNames,
}

impl Files {
    fn add(&mut self, place: StepPlace, step: &LifecycleStep<'_>) -> Result<(), ExportError> {
        let partition = Partition::of(self.queues.shared(step.queue), step.time.0);
        if step.content.is_some() {
            self.push(Table::Messages, partition.clone(), place, step)?;
        }
        self.push(Table::Steps, partition, place, step)
    }

    fn push(
        &mut self,
        table: Table,
        partition: Partition,
        place: StepPlace,
        step: &LifecycleStep<'_>,
    ) -> Result<(), ExportError> {
        let file = match self.growing.entry((table, partition)) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(free) => free.insert(FileBuilder::new(table, step.time.0, place.note)?),
        };
        file.push(table, place, step)
    }
}
