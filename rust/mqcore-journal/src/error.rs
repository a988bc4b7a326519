//! What can go wrong with a journal, and what to do then.

use std::io;

/// Why the journal could not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The storage refused. Unless it happened while reading, the journal is failed from now on and answers
    /// every later write and sync with this same error: open it anew once the disk is in order.
    #[error("{doing} {file}: {message}")]
    Io {
        /// What was being done: `"writing"`, `"syncing"`, ...
        doing: &'static str,
        /// The file, or `"the directory"`.
        file: String,
        /// The kind of the storage's error.
        kind: io::ErrorKind,
        /// The storage's own words.
        message: String,
    },
    /// No space is left. Nothing is lost and nothing was half taken: free space, call `maintain`, try again.
    #[error("no space is left for {needed} more bytes in the journal: free some, then it goes on by itself")]
    Full {
        /// What was asked for, in bytes.
        needed: u64,
    },
    /// A record does not match its checksum, or is not where the index says.
    #[error("segment {segment} is damaged at byte {offset}: {why}")]
    Damaged {
        /// The segment's number.
        segment: u32,
        /// Where in its file.
        offset: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// No live record has this number.
    #[error("record {0} is not live: it was settled, lost, or never put")]
    NotLive(u64),
    /// A record is larger than the journal takes.
    #[error("a record of {size} bytes is larger than the limit of {max} (max_record_bytes)")]
    TooLarge {
        /// What was asked for, in bytes.
        size: u64,
        /// What is allowed, in bytes.
        max: u64,
    },
    /// Numbers must ascend and are never used again.
    #[error("record number {sequence} was used before: the next free one is {next}")]
    Order {
        /// The number that was asked for.
        sequence: u64,
        /// The smallest that is allowed.
        next: u64,
    },
    /// The files were written by a newer version. Nothing was changed.
    #[error("{file} has format version {found}, this version reads up to {known}: use a newer mqcore")]
    Version {
        /// The file that says so.
        file: String,
        /// Its version.
        found: u16,
        /// The newest version known here.
        known: u16,
    },
    /// The files belong to another shard. Nothing was changed.
    #[error("{file} belongs to shard {found}, not to shard {expected}: check the data directory")]
    Shard {
        /// The file that says so.
        file: String,
        /// The shard it belongs to.
        found: u32,
        /// The shard that was opened.
        expected: u32,
    },
}

impl JournalError {
    /// Whether it says that bytes are not what was written.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::NotLive(_))
    }

    pub(crate) fn io(doing: &'static str, file: &str, error: &io::Error) -> Self {
        Self::Io { doing, file: file.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}

/// Whether an error of the storage says that no space is left: the only kind that time can heal.
pub(crate) fn says_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
