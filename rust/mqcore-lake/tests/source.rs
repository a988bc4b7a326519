//! A journal with notes to archive.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use mqcore_broker::history::Block;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;

/// A journal in memory, and what its notes say.
pub(crate) struct Source {
    pub(crate) disk: MemoryStorage,
    pub(crate) journal: Journal<MemoryStorage>,
    /// Content of each note.
    pub(crate) written: BTreeMap<u64, u64>,
}

impl Source {
    /// An empty journal.
    pub(crate) fn new(identity: u64) -> Self {
        Self::with(Options { identity, ..Options::default() })
    }

    /// An empty journal in the place of another one.
    pub(crate) fn replacing(identity: u64) -> Self {
        Self::with(Options { identity, replaces_another: true, now_ms: now_ms(), ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let disk = MemoryStorage::new(options.identity);
        let options = Options { segment_bytes: 4096, ..options };
        let (journal, _) = Journal::open(disk.clone(), options, &mut |_, _| {}).expect("a healthy disk");
        Self { disk, journal, written: BTreeMap::new() }
    }

    /// Adds a note with a content of its own, and makes it available to the archive.
    pub(crate) fn note(&mut self, time_ms: u64) {
        let tag = self.written.len() as u64 + 1;
        let block = Block::gap(Timestamp(time_ms), tag);
        let number = self.journal.note(time_ms, &block.bytes).expect("a healthy disk");
        self.written.insert(number, tag);
    }

    /// Ends the current segment, so that all notes can be archived.
    pub(crate) fn seal(&mut self) {
        self.journal.seal_notes(u64::MAX).expect("a healthy disk");
    }
}

/// The present, in milliseconds since the Unix epoch. Iceberg's library reads the clock too, so that tests cannot begin in
/// another year.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
    u64::try_from(now.as_millis()).expect("the clock is right")
}
