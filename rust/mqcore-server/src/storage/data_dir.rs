//! The data directory: one journal for each shard, and the lock.
//!
//! ```text
//! DIR/lock        locked by the running broker, because two would damage the data
//! DIR/format      the manifest: the number of shards, which cannot change because a channel's shard depends on it, and the
//!                 identities of all journals
//! DIR/format.copy the same
//! DIR/admin       the URL of the admin side of the broker that holds the lock, if it has one
//! DIR/shard-K/    the journal of shard K
//! DIR/nodes/      the journal of messages for upstream brokers
//! DIR/limits/     the journal of persistent counters and buffers
//! DIR/schedules/  the journal of schedules and their runs
//! ```

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::definition::{Definition, decode_definition};
use mqcore_broker::model::id::{QueueAddress, Sequence};
use mqcore_broker::model::intake::Ticket;
use mqcore_broker::model::placement::Placement;
use mqcore_broker::model::record::{
    DeliveryProgress, PutMessage, PutTerms, RecordError, decode_address, decode_put, decode_put_head,
};
use mqcore_broker::model::recovery::{RecoveredMessage, RecoveredState};
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::RecoveryReport;
use mqcore_journal::storage::FileStorage;
use mqcore_journal::storage::lock::{DirectoryLock, LOCK_FILE};
use mqcore_journal::storage::private::{create_private_directory, private_options};

pub use mqcore_journal::error::JournalError;
pub use mqcore_journal::storage::lock::lock_descriptors;

use crate::storage::loss::Loss;
use crate::storage::manifest::{COPIES, Manifest, ManifestError};
use crate::storage::parts;

/// The directory of the archive.
pub const ARCHIVE: &str = "archive";

/// The directory of the journal of messages for upstream brokers.
pub(crate) const NODES: &str = "nodes";

/// The shard number in its segments.
pub(crate) const NODES_SHARD: u32 = u32::MAX;

/// A journal other than those of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SideJournal {
    /// Persistent limits.
    Limits,
    /// Schedules and their runs.
    Schedules,
}

impl SideJournal {
    /// All side journals, ordered by name.
    pub const ALL: [Self; 2] = [Self::Limits, Self::Schedules];

    /// Its name and the name of its directory.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Schedules => "schedules",
        }
    }

    /// The shard number in its segments. No real shard has it, nor has the journal of nodes.
    pub(crate) const fn shard(self) -> u32 {
        match self {
            Self::Limits => u32::MAX - 1,
            Self::Schedules => u32::MAX - 2,
        }
    }

    /// The error for a journal that cannot be opened.
    pub(crate) const fn failed(self, source: JournalError) -> DataDirError {
        match self {
            Self::Limits => DataDirError::Limits { source },
            Self::Schedules => DataDirError::Schedules { source },
        }
    }
}

/// The largest record in bytes. Frames have a lower limit (see [`FRAME_BYTES_MAX`]), so a peer's message always fits.
/// A message that does not fit would count as a failure of the disk.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Maximum size of frames if messages are saved: a record adds the queue's address and a few bytes.
pub const FRAME_BYTES_MAX: u64 = RECORD_BYTES_MAX - 4096;

/// Why a data directory cannot be used. It is unchanged, unless the message states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// The directory or a file of it cannot be created, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory does not exist.
    #[error("{path} is not a data directory: {missing} is missing")]
    Missing {
        /// The path.
        path: PathBuf,
        /// The directory itself, or a file of it.
        missing: PathBuf,
    },
    /// A running broker uses it; only the directory of a stopped broker can be inspected.
    #[error("{path} is in use by a running broker; stop that broker first")]
    Running {
        /// The directory.
        path: PathBuf,
    },
    /// Another broker or an inspection has locked it.
    #[error(
        "cannot open data directory {path}: another broker has locked it; stop that broker or choose another --data-dir"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Not a data directory.
    #[error(
        "{path} is not a data directory of this version: expected \"mqcore data\", a version and a valid checksum, found {found:?}; \
         restore this file or its copy format.copy from a backup"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// A later version wrote the directory.
    #[error(
        "{path} has format version {found}, but this version of mqcore reads up to 3; use a newer mqcore"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The manifest is missing, or is older than checksums and does not fit the directories of shards.
    #[error("{path}: {why}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction, and the next step.
        why: String,
    },
    /// A shard's journal cannot be opened.
    #[error("the journal of shard {shard}: {source}")]
    Journal {
        /// The shard.
        shard: usize,
        /// The cause.
        source: JournalError,
    },
    /// The journal of messages for upstream brokers cannot be opened.
    #[error("the journal of messages for upstream brokers: {source}")]
    Nodes {
        /// The cause.
        source: JournalError,
    },
    /// The journal of limits cannot be opened.
    #[error("the journal of limits: {source}")]
    Limits {
        /// The cause.
        source: JournalError,
    },
    /// The journal of schedules cannot be opened.
    #[error("the journal of schedules: {source}")]
    Schedules {
        /// The cause.
        source: JournalError,
    },
    /// A record is intact but has an unknown version.
    #[error("the journal of shard {shard}: {source}")]
    Record {
        /// The shard.
        shard: usize,
        /// The cause.
        source: RecordError,
    },
}

/// A data directory that this process has locked until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    shards: usize,
    /// As it is on the disk.
    manifest: Mutex<Manifest>,
    _lock: DirectoryLock,
}

/// A shard's open journal and the recovered state.
pub(crate) struct Opened {
    pub(crate) journal: Journal<FileStorage>,
    pub(crate) had: RecoveredState,
    pub(crate) report: RecoveryReport,
    /// Live records that could not be read back.
    pub(crate) unreadable: u64,
}

impl DataDir {
    /// Opens the directory, or creates it for `shards` shards. An existing directory keeps its own number of shards.
    pub(crate) fn open(path: &Path, shards: usize) -> Result<Self, DataDirError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| DataDirError::Io { path, source }
        };
        create_private_directory(path).map_err(io(path))?;
        let lock = DirectoryLock::exclusive(path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DataDirError::Locked { path: path.to_path_buf() },
            _ => DataDirError::Io { path: path.join(LOCK_FILE), source },
        })?;
        let manifest = parts::open(path, shards)?;
        Ok(Self {
            path: path.to_path_buf(),
            shards: manifest.shards,
            manifest: Mutex::new(manifest),
            _lock: lock,
        })
    }

    /// Opens an existing directory that no process uses, to change it while the broker is stopped. One copy of the
    /// manifest is enough.
    pub(crate) fn open_stopped(path: &Path) -> Result<Self, DataDirError> {
        if !path.is_dir() {
            return Err(DataDirError::Missing { path: path.to_path_buf(), missing: path.to_path_buf() });
        }
        // Opening would create it.
        if let Err(error @ ManifestError::Missing) = Manifest::read(path) {
            return Err(error.at(path));
        }
        Self::open(path, 1).map_err(|error| match error {
            DataDirError::Locked { path } => DataDirError::Running { path },
            other => other,
        })
    }

    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the manifest. Returns when the change is durable, and changes nothing if it cannot be written.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Manifest)) -> Result<(), DataDirError> {
        let mut current = self.manifest();
        let mut next = current.clone();
        change(&mut next);
        if next != *current {
            next.generation += 1;
            next.write(&self.path).map_err(|error| error.at(&self.path))?;
            *current = next;
        }
        Ok(())
    }

    /// Saves the losses that opening a journal found, before it repairs the files: the next opening may not find them.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn found(&self, journal: &str, report: &RecoveryReport) -> Result<(), JournalError> {
        let change =
            |manifest: &mut Manifest| manifest.found(journal, Loss::of_report(journal, report).collect());
        self.change(change).map_err(|error| JournalError::Io {
            doing: "writing",
            file: COPIES[0].to_owned(),
            kind: io::ErrorKind::Other,
            message: error.to_string(),
        })
    }

    /// Saves which journals exist, with their identities. Until then, a missing journal counts as not created yet.
    pub(crate) fn register(&self, journals: &[(String, u64)]) -> Result<(), DataDirError> {
        self.change(|manifest| manifest.journals.extend(journals.iter().cloned()))
    }

    /// Losses that the operator has not accepted.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.manifest().losses.iter().filter(|loss| !loss.is_accepted).cloned().collect()
    }

    /// The manifest for a backup of these journals.
    pub(crate) fn manifest_of(&self, journals: &[String]) -> String {
        self.manifest().part(journals).encode()
    }

    /// The directory of a side journal.
    pub(crate) fn side(&self, journal: SideJournal) -> PathBuf {
        self.path.join(journal.as_str())
    }

    /// The directory of the journal of messages for upstream brokers.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.path.join(NODES)
    }

    /// The directory of the archive.
    pub(crate) fn archive(&self) -> PathBuf {
        self.path.join(ARCHIVE)
    }

    /// The number of shards of the directory.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// The shard of each name.
    pub(crate) fn placement(&self) -> Placement {
        self.manifest().placement()
    }

    /// Writes the URL of the admin side, for programs that know only the directory.
    pub(crate) fn write_admin_url(&self, url: Option<&str>) -> io::Result<()> {
        let path = self.path.join("admin");
        match url {
            Some(url) => {
                let mut file = private_options().create(true).truncate(true).write(true).open(path)?;
                file.write_all(format!("{url}\n").as_bytes())
            }
            None => match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                outcome => outcome,
            },
        }
    }

    /// The directory of a shard's journal.
    pub(crate) fn shard_path(&self, shard: usize) -> PathBuf {
        self.path.join(shard_name(shard))
    }

    /// Opens a shard's journal and reads all of it. `progress` receives the bytes done and the total.
    pub(crate) fn open_shard(
        &self,
        shard: usize,
        now_ms: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Opened, DataDirError> {
        let failed = |source| DataDirError::Journal { shard, source };
        let path = self.shard_path(shard);
        let storage = FileStorage::open(&path).map_err(|source| DataDirError::Io { path, source })?;
        let options = journal_options(shard, now_ms);
        let mut seen = Seen::default();
        let name = shard_name(shard);
        let (journal, recovered) = Journal::open_with_observers(
            storage,
            options,
            progress,
            &mut |sequence, payload| seen.see(sequence, payload),
            &mut |report| self.found(&name, report),
        )
        .map_err(failed)?;
        let unknown = |source| DataDirError::Record { shard, source };
        let definitions: Vec<Definition> = recovered
            .definitions
            .iter()
            .map(|(key, value)| decode_definition(key, value))
            .collect::<Result<_, _>>()
            .map_err(unknown)?;
        let unreadable = seen.keep(journal.live()).map_err(unknown)?;
        for sequence in &unreadable {
            tracing::error!(shard, sequence, "cannot read a saved message; it is dropped");
        }
        let mut progress = Vec::new();
        let mut refused = None;
        journal.each_touch(&mut |sequence, touch| match touch.map(DeliveryProgress::decode) {
            Ok(Ok(touched)) => progress.push((Sequence(sequence), touched)),
            Ok(Err(error)) => refused = Some(error),
            Err(error) => {
                tracing::error!(shard, sequence, %error, "cannot read the delivery progress of a saved message; it is delivered as if new");
            }
        });
        if let Some(error) = refused {
            return Err(unknown(error));
        }
        let sequence = Sequence(recovered.next_sequence.saturating_sub(1));
        let Seen { queues, messages, tickets, unique_keys, terms, remembered, .. } = seen;
        let kept =
            |sequence: &Sequence| messages.binary_search_by_key(sequence, |message| message.sequence).is_ok();
        let tickets =
            tickets.into_iter().filter(|(sequence, _)| kept(sequence)).map(|(_, ticket)| ticket).collect();
        let unique_keys = unique_keys.into_iter().filter(|(sequence, _)| kept(sequence)).collect();
        let terms = terms.into_iter().filter(|(sequence, _)| kept(sequence)).collect();
        let remembered = remembered.into_iter().filter(|(sequence, ..)| kept(sequence)).collect();
        let had = RecoveredState {
            definitions,
            queues,
            messages,
            progress,
            tickets,
            unique_keys,
            terms,
            remembered,
            sequence,
        };
        Ok(Opened { journal, had, report: recovered.report, unreadable: unreadable.len() as u64 })
    }
}

/// The layout of a shard's journal.
pub(crate) fn journal_options(shard: usize, now_ms: u64) -> Options {
    Options { shard: shard as u32, now_ms, max_record_bytes: RECORD_BYTES_MAX as u32, ..Options::default() }
}

/// Data about each message while a journal is read: small, because there may be many millions.
#[derive(Default)]
struct Seen {
    queues: Vec<QueueAddress>,
    /// Indices into `queues` by the queue's name.
    places: HashMap<Box<str>, u32>,
    /// The queue of the previous message: most messages have the same queue as the previous one.
    last: (Box<str>, u32),
    messages: Vec<RecoveredMessage>,
    tickets: Vec<(Sequence, Ticket)>,
    unique_keys: Vec<(Sequence, Box<[u8]>)>,
    terms: Vec<(Sequence, PutTerms)>,
    remembered: Vec<(Sequence, Box<[u8]>, Timestamp)>,
    refused: Vec<(u64, RecordError)>,
}

impl Seen {
    fn see(&mut self, sequence: u64, payload: &[u8]) {
        match decode_put_head(payload).and_then(|head| Ok((self.place(head.queue)?, head))) {
            Ok((queue, head)) => {
                self.tickets.extend(head.ticket.map(|ticket| (Sequence(sequence), ticket)));
                self.unique_keys.extend(head.unique_key.map(|key| (Sequence(sequence), key.into())));
                self.terms.extend(head.terms.map(|terms| (Sequence(sequence), terms)));
                let remembered =
                    head.remembered.map(|(id, arrived)| (Sequence(sequence), id.into(), arrived));
                self.remembered.extend(remembered);
                self.messages.push(RecoveredMessage {
                    sequence: Sequence(sequence),
                    queue,
                    bytes: u32::try_from(head.memory_bytes).unwrap_or(u32::MAX),
                    number: head.number,
                    high_priority: head.high_priority,
                });
            }
            Err(error) => self.refused.push((sequence, error)),
        }
    }

    fn place(&mut self, queue: &str) -> Result<u32, RecordError> {
        if *self.last.0 != *queue {
            let place = match self.places.get(queue) {
                Some(place) => *place,
                None => {
                    self.queues.push(decode_address(queue)?);
                    let place = self.queues.len() as u32 - 1;
                    self.places.insert(queue.into(), place);
                    place
                }
            };
            self.last = (queue.into(), place);
        }
        Ok(self.last.1)
    }

    /// Removes all messages that are not in `live`, which is ascending. Returns those of `live` that were not seen.
    fn keep(&mut self, live: impl Iterator<Item = u64>) -> Result<Vec<u64>, RecordError> {
        self.messages.sort_unstable_by_key(|message| message.sequence);
        self.messages.dedup_by_key(|message| message.sequence);
        let mut refused = std::mem::take(&mut self.refused);
        let mut live = live.peekable();
        let mut unseen = Vec::new();
        self.messages.retain(|message| {
            while let Some(earlier) = live.next_if(|live| *live < message.sequence.0) {
                unseen.push(earlier);
            }
            live.next_if(|live| *live == message.sequence.0).is_some()
        });
        unseen.extend(live);
        self.messages.shrink_to_fit();
        match refused.iter().position(|(sequence, _)| unseen.contains(sequence)) {
            Some(found) => Err(refused.swap_remove(found).1),
            None => Ok(unseen),
        }
    }
}

/// A saved message with its body.
#[derive(Debug, Clone)]
pub struct SavedMessage {
    /// The message and its queue.
    pub put: PutMessage,
    /// Its sequence in the journal.
    pub sequence: Sequence,
    /// Its delivery progress; the rank defaults to the sequence.
    pub progress: DeliveryProgress,
}

pub(crate) fn restored(
    sequence: u64,
    payload: &[u8],
    touch: Option<&[u8]>,
) -> Result<SavedMessage, RecordError> {
    let progress = match touch {
        Some(touch) => DeliveryProgress::decode(touch)?,
        None => DeliveryProgress { rank: sequence as i64, ..DeliveryProgress::default() },
    };
    Ok(SavedMessage { put: decode_put(payload)?, sequence: Sequence(sequence), progress })
}

/// The directory of a shard's journal, relative to the data directory.
pub(crate) fn shard_name(shard: usize) -> String {
    format!("shard-{shard}")
}

impl ManifestError {
    /// The error for a data directory.
    pub(crate) fn at(self, directory: &Path) -> DataDirError {
        let path = directory.join(COPIES[0]);
        match self {
            Self::Missing => DataDirError::Missing { path: directory.to_path_buf(), missing: path },
            Self::Newer(found) => DataDirError::Version { path, found },
            Self::Damaged(found) => DataDirError::Format { path, found },
            Self::Io(name, source) => DataDirError::Io { path: directory.join(name), source },
        }
    }
}
