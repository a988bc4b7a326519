//! What is counted.

/// Whether a journal takes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Healthy,
    /// No space is left: puts and notes are refused, settling goes on as long as the reserve lasts. `maintain`
    /// finds out when space is back.
    Full,
    /// A write or sync failed for good. Reads go on; everything else answers the first error. Open it anew.
    Failed,
}

/// A journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Whether it takes records.
    pub health: Health,
    /// Live records.
    pub live: u64,
    /// What they take on the disk, in bytes.
    pub live_bytes: u64,
    /// Definitions that hold.
    pub definitions: u64,
    /// Notes that are kept, with those that wait for their segment to go.
    pub notes: u64,
    /// What all segment files take, in bytes.
    pub file_bytes: u64,
    /// Bytes that wait for `write`.
    pub pending_bytes: u64,
    /// What finding live records costs in memory, in bytes.
    pub index_bytes: u64,
    /// Segments that were set aside because of damage, now or earlier.
    pub quarantined: u64,
    /// Each segment, oldest first; the last is being written.
    pub segments: Vec<SegmentStats>,
}

/// One segment at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentStats {
    /// Its number, as in its file name.
    pub number: u32,
    /// Its file in bytes.
    pub file_bytes: u64,
    /// Records of every kind.
    pub records: u64,
    /// Live records in it.
    pub live: u64,
    /// What these take, in bytes.
    pub live_bytes: u64,
    /// Whether damage was found in it.
    pub damaged: bool,
}
