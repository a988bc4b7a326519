//! Inspects the data directory of a stopped broker without changing it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use mqcore_broker::model::definition::{Definition, decode_definition};
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::record::DeliveryProgress;
use mqcore_journal::error::JournalError;
use mqcore_journal::inspection::Inspection;
use mqcore_journal::options::Options;
use mqcore_journal::record::Live;
use mqcore_journal::storage::ReadOnlyStorage;
use mqcore_journal::storage::lock::{DirectoryLock, LOCK_FILE};

pub use crate::storage::data_dir::SideJournal;
pub use mqcore_journal::inspection::{InspectedSegment, SegmentState};
pub use mqcore_journal::record::Note;
pub use mqcore_journal::recovery::RecoveryReport;

use crate::storage::data_dir::{DataDirError, SavedMessage, restored, shard_name};
use crate::storage::loss::{Loss, LossCause};
use crate::storage::manifest::{Manifest, ManifestReading};
use crate::storage::parts;
use mqcore_state::schedules::draft::Crons;
use mqcore_state::schedules::store::{self, RecordKind};

/// A data directory locked against brokers until this is dropped.
#[derive(Debug)]
pub struct StoppedDataDir {
    path: PathBuf,
    reading: ManifestReading,
    /// Shared, so that several processes can inspect it.
    _lock: DirectoryLock,
}

/// A finding of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartFinding {
    /// This copy of the manifest is missing or damaged. The other one is intact.
    Manifest(&'static str),
    /// The journal of a shard that the data directory does not have.
    Extra(String),
    /// A loss that no operator has accepted.
    Loss(Loss),
}

/// A shard's journal as the next start would find it.
#[derive(Debug)]
pub struct InspectedShard {
    shard: usize,
    /// `None`: its directory does not exist.
    journal: Option<Inspection<ReadOnlyStorage>>,
}

/// A side journal as the next start would find it.
#[derive(Debug)]
pub struct InspectedSide {
    which: SideJournal,
    journal: Inspection<ReadOnlyStorage>,
}

/// The contents of a side journal. Entries that a crash duplicated count twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SideContents {
    /// Saved limits; some may have expired by now.
    pub limits: u64,
    /// Messages that not all upstream brokers have confirmed.
    pub forwards: u64,
    /// Schedules.
    pub schedules: u64,
    /// Runs of schedules that no queue has confirmed; the next start sends them again.
    pub runs: u64,
    /// Results of jobs.
    pub results: u64,
    /// Flows of jobs that have not ended.
    pub flows: u64,
}

/// The position of a saved message, without its content: small, because a queue may have millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessagePosition {
    /// False for high priority, so that those messages sort first.
    normal: bool,
    rank: i64,
    sequence: u64,
    attempts: u16,
    put_backs: u16,
}

/// Selects saved messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// `channel/id` of their queues, compared case-insensitively; `*` matches anything.
    pub queues: Box<str>,
    /// Received at this time or later, in Unix milliseconds.
    pub since_ms: u64,
    /// Received before this time, in Unix milliseconds.
    pub until_ms: u64,
}

/// The selected messages of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePositions {
    /// The queue.
    pub queue: QueueAddress,
    /// Their positions, in delivery order.
    pub places: Vec<MessagePosition>,
    /// Total bytes of their bodies.
    pub body_bytes: u64,
}

impl MessagePosition {
    /// The message's number in its shard's journal.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Its delivery progress.
    pub fn progress(&self) -> DeliveryProgress {
        DeliveryProgress {
            attempts: self.attempts,
            requeues: self.put_backs,
            rank: self.rank,
            ..DeliveryProgress::default()
        }
    }

    /// Its order in the queue, after priority and before its number.
    pub fn rank(&self) -> i64 {
        self.rank
    }
}

impl StoppedDataDir {
    /// Opens an existing data directory that no broker uses.
    ///
    /// # Errors
    /// [`DataDirError::Missing`], [`DataDirError::Running`], [`DataDirError::Format`], and [`DataDirError::Io`].
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        let lock = DirectoryLock::shared(path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DataDirError::Running { path: path.to_path_buf() },
            _ => DataDirError::Io { path: path.join(LOCK_FILE), source },
        })?;
        let reading = Manifest::read(path).map_err(|error| error.at(path))?;
        Ok(Self { path: path.to_path_buf(), reading, _lock: lock })
    }

    /// The number of shards of the directory.
    pub fn shards(&self) -> usize {
        self.reading.manifest.shards
    }

    /// Whether the manifest lists the journals. If not, an older version wrote it, and each shard should have a journal.
    pub fn lists_journals(&self) -> bool {
        !self.reading.is_old
    }

    /// The findings of the manifest: damaged copies, missing and foreign journals, and losses that earlier starts found.
    ///
    /// # Errors
    /// [`DataDirError::Running`] and [`DataDirError::Io`].
    pub fn findings(&self) -> Result<Vec<PartFinding>, DataDirError> {
        let ManifestReading { manifest, damaged, .. } = &self.reading;
        let mut findings: Vec<PartFinding> = damaged.iter().map(|name| PartFinding::Manifest(name)).collect();
        findings.extend(parts::extra(&self.path, manifest.shards)?.into_iter().map(PartFinding::Extra));
        // Whether the disk reads a file now, only reading tells; `new_losses` reports it if not.
        let is_known = |loss: &&Loss| !loss.is_accepted && loss.cause != LossCause::Unreadable;
        let known = manifest.losses.iter().filter(is_known);
        findings.extend(known.cloned().map(PartFinding::Loss));
        for loss in parts::examine(&self.path, manifest)? {
            if !manifest.losses.iter().any(|known| known.covers(&loss)) {
                findings.push(PartFinding::Loss(loss));
            }
        }
        Ok(findings)
    }

    /// The losses that a report describes and that [`Self::findings`] does not contain.
    pub fn new_losses(&self, journal: &str, report: &RecoveryReport) -> Vec<Loss> {
        let is_open = |known: &Loss| known.cause == LossCause::Unreadable && !known.is_accepted;
        let covers = |known: &Loss, loss: &Loss| !is_open(known) && known.covers(loss);
        let is_new = |loss: &Loss| !self.reading.manifest.losses.iter().any(|known| covers(known, loss));
        Loss::of_report(journal, report).filter(is_new).collect()
    }

    /// The manifest for a backup of these journals.
    pub(crate) fn manifest_of(&self, journals: &[String]) -> String {
        self.reading.manifest.part(journals).encode()
    }

    /// Reads a shard's journal and verifies checksums. `progress` receives the bytes done and the total.
    ///
    /// # Errors
    /// [`DataDirError::Running`], [`DataDirError::Io`], and [`DataDirError::Journal`] for a journal of a later
    /// version.
    pub fn inspect(
        &self,
        shard: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<InspectedShard, DataDirError> {
        let name = shard_name(shard);
        let storage = self.storage(&name)?;
        let options = self.options(&name, shard as u32);
        let journal = storage.map(|storage| Inspection::new(storage, options, progress)).transpose();
        let journal = journal.map_err(|source| DataDirError::Journal { shard, source })?;
        Ok(InspectedShard { shard, journal })
    }

    /// Reads a side journal like [`StoppedDataDir::inspect`]. `None`: it does not exist.
    ///
    /// # Errors
    /// [`DataDirError::Running`], [`DataDirError::Io`], and [`DataDirError::Limits`], [`DataDirError::Nodes`] or
    /// [`DataDirError::Schedules`] for a journal of a later version.
    pub fn inspect_side(
        &self,
        which: SideJournal,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<InspectedSide>, DataDirError> {
        let Some(storage) = self.storage(which.as_str())? else { return Ok(None) };
        let options = self.options(which.as_str(), which.shard());
        let journal = Inspection::new(storage, options, progress).map_err(|source| which.failed(source))?;
        Ok(Some(InspectedSide { which, journal }))
    }

    fn options(&self, journal: &str, shard: u32) -> Options {
        let expected_identity = self.reading.manifest.journals.get(journal).copied();
        Options { shard, expected_identity, ..Options::default() }
    }

    /// The files of one journal; `None`: its directory does not exist.
    fn storage(&self, journal: &str) -> Result<Option<ReadOnlyStorage>, DataDirError> {
        let path = self.path.join(journal);
        if !path.is_dir() {
            return Ok(None);
        }
        let storage = ReadOnlyStorage::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DataDirError::Running { path: self.path.clone() },
            _ => DataDirError::Io { path, source },
        })?;
        Ok(Some(storage))
    }
}

impl InspectedSide {
    /// Which side journal this is.
    pub fn which(&self) -> SideJournal {
        self.which
    }

    /// The findings of recovery; `None`: all segments are missing.
    pub fn report(&self) -> Option<&RecoveryReport> {
        report(&self.journal)
    }

    /// Its segment files, by number.
    pub fn segments(&self) -> Vec<InspectedSegment> {
        self.journal.segments()
    }

    /// Its contents.
    pub fn contents(&self) -> SideContents {
        let mut contents = SideContents::default();
        self.journal.each_live(0, &mut |_, live| {
            let Ok(live) = live else { return };
            match self.which {
                SideJournal::Limits => contents.limits += 1,
                SideJournal::Nodes => contents.forwards += 1,
                SideJournal::Schedules => match store::kind(live.payload) {
                    Some(RecordKind::Schedule) => contents.schedules += 1,
                    Some(RecordKind::Run) => contents.runs += 1,
                    Some(RecordKind::Result) => contents.results += 1,
                    Some(RecordKind::Flow) => contents.flows += 1,
                    Some(RecordKind::Ended | RecordKind::Step) | None => {}
                },
            }
        });
        contents
    }

    /// Reads everything as a start would, and describes each record that cannot be read.
    pub fn each_unreadable(&self, show: &mut dyn FnMut(String)) {
        let crons = Crons::default();
        let mut cron = |text: &str, zone: &str| crons.find(text, zone, jiff::tz::db());
        self.journal.each_live(0, &mut |number, live| {
            let live = live.map_err(|error| error.to_string());
            let (what, outcome) = match self.which {
                SideJournal::Limits => {
                    let read = |live: Live<'_>| mqcore_limiter::record::decode(live.payload).map(drop);
                    ("limit", live.and_then(|live| read(live).map_err(|error| error.to_string())))
                }
                SideJournal::Nodes => ("message for upstream brokers", live.map(drop)),
                SideJournal::Schedules => {
                    let mut read = |live: Live<'_>| store::check(live.payload, live.touch, &mut cron);
                    ("schedule, run or result", live.and_then(&mut read))
                }
            };
            if let Err(error) = outcome {
                show(format!("{what} {number}: {error}"));
            }
        });
    }
}

/// The findings of recovery; `None`: all segments are missing.
fn report(journal: &Inspection<ReadOnlyStorage>) -> Option<&RecoveryReport> {
    let report = &journal.recovered().report;
    (!journal.segments().is_empty() || *report != RecoveryReport::default()).then_some(report)
}

impl InspectedShard {
    /// The shard's number, from 0.
    pub fn number(&self) -> usize {
        self.shard
    }

    /// The number of notes in its history; notes that a crash duplicated count twice.
    pub fn note_count(&self) -> u64 {
        self.journal.as_ref().map_or(0, Inspection::note_count)
    }

    /// See [`Inspection::each_note`].
    pub fn each_note(&self, show: &mut dyn FnMut(Note<'_>)) {
        if let Some(journal) = &self.journal {
            journal.each_note(show);
        }
    }

    /// The findings of recovery; `None`: its directory or all of its segments are missing.
    pub fn report(&self) -> Option<&RecoveryReport> {
        report(self.journal.as_ref()?)
    }

    /// Its segment files, by number.
    pub fn segments(&self) -> Vec<InspectedSegment> {
        self.journal.as_ref().map(Inspection::segments).unwrap_or_default()
    }

    /// Channels and queues that it defines, readable or not.
    pub fn definition_count(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.recovered().definitions.len())
    }

    /// Whether it defines this queue, compared case-insensitively.
    pub fn defines(&self, queue: &QueueAddress) -> bool {
        let definitions = self.journal.iter().flat_map(|journal| &journal.recovered().definitions);
        definitions
            .filter_map(|(key, value)| decode_definition(key, value).ok())
            .any(|definition| matches!(definition, Definition::Queue(address, _) if is_same(&address, queue)))
    }

    /// Reads every definition and saved message as a start would, and describes each that cannot be read.
    pub fn each_unreadable(&self, show: &mut dyn FnMut(String)) {
        let Some(journal) = &self.journal else { return };
        for (key, value) in &journal.recovered().definitions {
            if let Err(error) = decode_definition(key, value) {
                show(format!("the definition {:?}: {error}", String::from_utf8_lossy(key)));
            }
        }
        journal.each_live(0, &mut |sequence, live| match live {
            Err(error) => show(format!("message {sequence}: {error}")),
            Ok(live) => {
                if let Err(error) = restored(sequence, live.payload, live.touch) {
                    show(format!("message {sequence}: {error}"));
                }
            }
        });
    }

    /// The saved messages of a queue in delivery order, and the number of unreadable records of all queues.
    pub fn places(&self, queue: &QueueAddress) -> (Vec<MessagePosition>, u64) {
        let (mut places, mut unreadable) = (Vec::new(), 0);
        let Some(journal) = &self.journal else { return (places, unreadable) };
        journal.each_live(0, &mut |sequence, live| {
            let live = live.ok().and_then(|live| restored(sequence, live.payload, live.touch).ok());
            match live {
                None => unreadable += 1,
                Some(SavedMessage { put, progress, .. }) if is_same(&put.queue, queue) => {
                    places.push(MessagePosition {
                        normal: !put.message.properties().high_priority,
                        rank: progress.rank,
                        sequence,
                        attempts: progress.attempts,
                        put_backs: progress.requeues,
                    })
                }
                Some(_) => {}
            }
        });
        places.sort_unstable();
        (places, unreadable)
    }

    /// The selected messages by queue, and the number of unreadable records of all queues.
    pub fn select(&self, wanted: &Selection) -> (Vec<QueuePositions>, u64) {
        let (mut queues, mut unreadable) = (BTreeMap::<QueueAddress, QueuePositions>::new(), 0);
        let Some(journal) = &self.journal else { return (Vec::new(), unreadable) };
        let pattern = wanted.queues.to_ascii_lowercase();
        let mut matches = BTreeMap::<QueueAddress, bool>::new();
        journal.each_live(0, &mut |sequence, live| {
            let live = live.ok().and_then(|live| restored(sequence, live.payload, live.touch).ok());
            let Some(SavedMessage { put, progress, .. }) = live else {
                unreadable += 1;
                return;
            };
            let named = *matches
                .entry(put.queue.clone())
                .or_insert_with(|| fits(&pattern, &put.queue.to_string().to_ascii_lowercase()));
            if !named || !(wanted.since_ms..wanted.until_ms).contains(&put.received.0) {
                return;
            }
            let found = queues.entry(put.queue.clone()).or_insert_with(|| QueuePositions {
                queue: put.queue.clone(),
                places: Vec::new(),
                body_bytes: 0,
            });
            found.body_bytes += put.message.body().len() as u64;
            found.places.push(MessagePosition {
                normal: !put.message.properties().high_priority,
                rank: progress.rank,
                sequence,
                attempts: progress.attempts,
                put_backs: progress.requeues,
            });
        });
        let mut queues: Vec<_> = queues.into_values().collect();
        queues.iter_mut().for_each(|queue| queue.places.sort_unstable());
        (queues, unreadable)
    }

    /// A message, and its number of deliveries.
    ///
    /// # Errors
    /// [`DataDirError::Journal`] and [`DataDirError::Record`] if it can no longer be read.
    pub fn message(&self, place: MessagePosition) -> Result<(SavedMessage, u16), DataDirError> {
        let shard = self.shard;
        let failed = |source| DataDirError::Journal { shard, source };
        let journal = self.journal.as_ref().ok_or(failed(JournalError::NotLive(place.sequence)))?;
        let payload = journal.read(place.sequence).map_err(failed)?;
        let message = restored(place.sequence, &payload, None)
            .map_err(|source| DataDirError::Record { shard, source })?;
        Ok((message, place.attempts))
    }
}

/// Whether the broker treats two addresses as the same queue.
fn is_same(one: &QueueAddress, other: &QueueAddress) -> bool {
    one.id == other.id && one.channel.as_str().eq_ignore_ascii_case(other.channel.as_str())
}

/// Whether a text matches a pattern, in which `*` matches any text, including none.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything_and_everything_else_for_itself() {
        for (pattern, text, expected) in [
            ("*", "orders/1", true),
            ("orders/1", "orders/1", true),
            ("orders/1", "orders/11", false),
            ("orders/*", "orders/11", true),
            ("*/1", "orders/11", false),
            ("*/11", "orders/11", true),
            ("o*r*/1*", "orders/11", true),
            ("*s*s*", "orders/1", false),
            ("ab*ba", "aba", false),
            ("", "orders/1", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
