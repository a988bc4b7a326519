//! Statistics of a journal.

/// Whether a journal accepts records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The journal accepts records.
    Healthy,
    /// The disk is full. Puts and notes are rejected; settlements are accepted while the reserve lasts. `maintain` detects
    /// when space is available again.
    Full,
    /// A write or sync failed permanently. Reads still work; all other calls return the first error. Open the journal again.
    Failed,
}

/// Statistics of a journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Whether the journal accepts records.
    pub health: Health,
    /// Number of live records.
    pub live: u64,
    /// Bytes of live records on disk.
    pub live_bytes: u64,
    /// Number of definitions.
    pub definitions: u64,
    /// Number of notes on disk, including expired ones in segments that are not removed yet.
    pub notes: u64,
    /// Total size of all segment files in bytes.
    pub file_bytes: u64,
    /// Bytes that are buffered and not written yet.
    pub pending_bytes: u64,
    /// Memory used by the index of live records, in bytes.
    pub index_bytes: u64,
    /// Number of segments ever quarantined because of damage.
    pub quarantined: u64,
    /// All segments, oldest first; the last one is being written.
    pub segments: Vec<SegmentStats>,
}

/// Statistics of one segment at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentStats {
    /// Segment number, as in the file name.
    pub number: u32,
    /// File size in bytes.
    pub file_bytes: u64,
    /// Number of records of all kinds.
    pub records: u64,
    /// Number of live records.
    pub live: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Whether damage was found.
    pub damaged: bool,
}
