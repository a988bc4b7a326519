//! A shard's batch for the thread that writes its journal.

use mqcore_broker::history::Block;
use mqcore_broker::model::id::Sequence;
use mqcore_broker::model::record::Record;

use crate::config::history::HistoryConfig;
use crate::storage::archiver::Archiver;
use crate::storage::body_reader::ReadRequest;

/// Work that a shard passes to its journal thread together.
#[derive(Debug, Default)]
pub(crate) struct JournalBatch {
    /// Bodies to be read back, of records that precede those of this batch.
    pub(crate) reads: Vec<ReadRequest>,
    pub(crate) records: Vec<(Sequence, Record)>,
    /// Lifecycle events. Written before the records, so that the history of every durable record is durable.
    pub(crate) history: Vec<Block>,
    /// Events left out of `history`, because too many bytes wait already.
    pub(crate) dropped: u64,
    /// A confirmation waits until these are written.
    pub(crate) written: bool,
    /// A confirmation waits until these are durable.
    pub(crate) sync: bool,
}

/// The retention of history in a journal, and its archiver.
#[derive(Debug, Clone)]
pub(crate) struct HistoryTerms {
    pub(super) age_ms: Option<u64>,
    pub(super) bytes: u64,
    pub(super) archiver: Option<Archiver>,
}

impl HistoryTerms {
    /// The terms of `shards` journals. With history off, events of an earlier run are stored for the default time.
    pub(crate) fn new(config: Option<&HistoryConfig>, shards: usize, archiver: Option<Archiver>) -> Self {
        let usual = HistoryConfig::default();
        let config = config.unwrap_or(&usual);
        let age_ms = config.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Self { age_ms, bytes: config.max_bytes / shards.max(1) as u64, archiver }
    }
}
