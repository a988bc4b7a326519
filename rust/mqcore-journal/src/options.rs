//! Sizes and limits of a journal.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Smallest segment size in bytes: the header and a block of records. Also the last one tried when the disk is nearly full.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 12_288;

/// Layout and limits of a journal. The sizes may change between openings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Shard that the journal belongs to. Files of another shard are rejected. Default 0.
    pub shard: u32,
    /// Size of a segment file in bytes, at least 12,288. A larger record gets a larger segment. Default 16 MiB.
    pub segment_bytes: u32,
    /// Maximum record size in bytes, at most 1 GiB. Default 64 MiB.
    pub max_record_bytes: u32,
    /// Retention of notes in milliseconds. `None`: until `retain_notes_bytes` is exceeded. Default `None`.
    pub retain_notes_ms: Option<u64>,
    /// Maximum total size of notes in bytes; the oldest segments expire first. `None`: no limit. Default 1 GiB.
    pub retain_notes_bytes: Option<u64>,
    /// Time of opening in milliseconds since the Unix epoch, written into the headers of new segments for information. If the
    /// disk can read neither the last segment nor the catalog, new records get numbers that follow from it. Default 0.
    pub now_ms: u64,
    /// Identity of a new journal, which distinguishes its bytes from those of other journals on the same disk. Ignored if the
    /// journal exists. Default: random; set it in tests only.
    pub identity: u64,
    /// Identity of the existing journal, as the caller saved it. If the disk cannot read any file, the journal keeps this
    /// identity, and a later opening that can read them finds all records. `None`: unknown. Default `None`.
    pub expected_identity: Option<u64>,
    /// Whether there may have been another journal in this place, whose notes an archive has. The notes of a new journal then get
    /// larger numbers, which follow from `now_ms`. Default false.
    pub replaces_another: bool,
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
            expected_identity: None,
            replaces_another: false,
        }
    }
}

impl Options {
    /// Clamps the sizes to their documented limits.
    pub(crate) fn bounded(mut self) -> Self {
        self.segment_bytes = self.segment_bytes.clamp(SEGMENT_BYTES_MIN, 1 << 30);
        self.max_record_bytes = self.max_record_bytes.clamp(1, 1 << 30);
        self
    }
}
