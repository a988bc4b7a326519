//! Sizes and limits of a journal.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The smallest segment that is made; also what is tried last when the disk is nearly full.
pub(crate) const SMALLEST_SEGMENT: u32 = 4096;

/// How a journal is laid out. The sizes may differ from one opening to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The shard that the journal belongs to. Files of another shard are refused. Default 0.
    pub shard: u32,
    /// The size of a segment file in bytes, at least 4096. A record that is larger gets a larger segment.
    /// Default 16 MiB.
    pub segment_bytes: u32,
    /// The largest record that is taken, in bytes, at most 1 GiB. Default 64 MiB.
    pub max_record_bytes: u32,
    /// How long notes are kept, in milliseconds. `None`: until `retain_notes_bytes` is exceeded. Default `None`.
    pub retain_notes_ms: Option<u64>,
    /// How many bytes of notes are kept; the oldest segments lose theirs first. `None`: no limit. Default 1 GiB.
    pub retain_notes_bytes: Option<u64>,
    /// The time of opening in Unix milliseconds, written into the headers of new segments for people to read.
    /// Default 0.
    pub now_ms: u64,
    /// What tells this journal's bytes from another's on the same disk. Only used when the journal is created;
    /// keep the random default outside of tests.
    pub identity: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shard: 0,
            segment_bytes: 16 << 20,
            max_record_bytes: 64 << 20,
            retain_notes_ms: None,
            retain_notes_bytes: Some(1 << 30),
            now_ms: 0,
            identity: RandomState::new().build_hasher().finish(),
        }
    }
}

impl Options {
    /// Sizes brought into the bounds that are documented with them.
    pub(crate) fn bounded(mut self) -> Self {
        self.segment_bytes = self.segment_bytes.clamp(SMALLEST_SEGMENT, 1 << 30);
        self.max_record_bytes = self.max_record_bytes.clamp(1, 1 << 30);
        self
    }
}
