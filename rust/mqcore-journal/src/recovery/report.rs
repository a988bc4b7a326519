//! The recovery report: torn ends, damage and losses.

use std::fmt;

/// The content of a journal when it was opened. `Journal::each_live` iterates over the live records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Definitions, sorted by key.
    pub definitions: Vec<(Vec<u8>, Vec<u8>)>,
    /// Smallest number that was never used.
    pub next_sequence: u64,
    /// The findings of recovery.
    pub report: RecoveryReport,
}

/// The findings of recovery in numbers. `to_string` describes one finding per line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of segments read.
    pub segments: u64,
    /// Number of records read, of all kinds.
    pub records: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of live records.
    pub live: u64,
    /// Torn ends that were cut. Not a loss: nothing in them was ever confirmed.
    pub torn: Vec<TornTail>,
    /// Damage. Confirmed records may be lost; raise an alarm.
    pub damaged: Vec<Damage>,
    /// Segments whose files are missing. Raise an alarm.
    pub missing: Vec<MissingSegment>,
    /// Files named like segments that do not belong to this journal and were not used.
    pub strays: Vec<String>,
    /// Damage to the catalog, which identifies the journal and lists its segments. No record is in it.
    pub catalog: Option<CatalogDamage>,
    /// Number of files quarantined because of damage, now or earlier.
    pub quarantined: u64,
}

/// Damage to the catalog. Opening writes it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatalogDamage {
    /// One of its two copies is unreadable.
    Copy,
    /// The file is missing or unreadable, or belongs to another journal.
    Lost,
}

/// The torn end of the last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Segment number.
    pub segment: u32,
    /// Offset of the cut, in bytes.
    pub offset: u32,
    /// Number of bytes cut.
    pub bytes: u32,
    /// Readable records among them.
    pub records: u32,
}

/// Damage in one segment. Its readable records are served. Housekeeping copies them elsewhere and then renames the file
/// with the suffix `.quarantined`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Segment number.
    pub segment: u32,
    /// Type of damage.
    pub cause: DamageCause,
    /// Unreadable parts.
    pub parts: Vec<DamagedPart>,
    /// Number of lost records of all kinds.
    pub lost: RecordLoss,
}

/// Type of damage to a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageCause {
    /// Checksums do not match.
    Checksum,
    /// One copy of the header is unreadable, which loses nothing, or both are.
    Header,
    /// The file is shorter than when it was created.
    Shortened {
        /// Current length in bytes.
        length: u64,
        /// Length at creation in bytes.
        capacity: u64,
    },
    /// The file contains another segment, or a segment of another journal.
    Misplaced,
    /// The storage cannot read the file. It is left in place, and the next opening tries again.
    Unreadable(String),
}

/// An unreadable part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedPart {
    /// Offset in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
    /// Numbers of the lost puts: from the first, up to but not including the second. If both are equal, no put is lost.
    /// `None`: unknown.
    pub sequences: Option<(u64, u64)>,
}

/// Number of lost records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLoss {
    /// Exactly this many records.
    Exactly(u64),
    /// This many records or more.
    AtLeast(u64),
}

impl RecordLoss {
    /// Adds that at least this many records are lost.
    pub(super) fn at_least(self, count: u64) -> Self {
        match self {
            known if count == 0 => known,
            Self::Exactly(known) | Self::AtLeast(known) => Self::AtLeast(known.max(count)),
        }
    }
}

/// A segment whose file is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingSegment {
    /// Segment number.
    pub segment: u32,
    /// Number of records of all kinds that it held, live or not; `None`: unknown.
    pub records: Option<u64>,
}

impl RecoveryReport {
    /// Whether confirmed records may be lost.
    pub fn is_alarming(&self) -> bool {
        !self.damaged.is_empty()
            || !self.missing.is_empty()
            || !self.strays.is_empty()
            || self.catalog.is_some()
    }

    /// Whether the storage could not read a segment. A later opening may read it, and then find records with smaller numbers
    /// than those that were written meanwhile.
    pub fn has_unreadable(&self) -> bool {
        self.damaged.iter().any(|damage| matches!(damage.cause, DamageCause::Unreadable(_)))
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segments, records, bytes, live, .. } = self;
        write!(
            formatter,
            "read {segments} segments with {records} records and {bytes} bytes; {live} records are live"
        )?;
        for torn in &self.torn {
            write!(formatter, "\n{torn}")?;
        }
        for damage in &self.damaged {
            write!(formatter, "\n{damage}")?;
        }
        for missing in &self.missing {
            write!(formatter, "\n{missing}")?;
        }
        for stray in &self.strays {
            write!(formatter, "\n{stray} does not belong to this journal and was not used")?;
        }
        if let Some(catalog) = self.catalog {
            write!(formatter, "\n{catalog}")?;
        }
        match self.quarantined {
            0 => Ok(()),
            count => write!(formatter, "\n{count} damaged segments are quarantined (*.quarantined)"),
        }
    }
}

impl fmt::Display for CatalogDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy => {
                write!(formatter, "the catalog is damaged in one of its two copies; no record is lost")
            }
            Self::Lost => write!(
                formatter,
                "the catalog of segments is missing or unreadable; no record is lost by that, but a missing last segment would \
                 not be noticed"
            ),
        }
    }
}

impl fmt::Display for TornTail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes, records } = self;
        write!(
            formatter,
            "segment {segment}: torn by a crash; {bytes} bytes from offset {offset} on were cut, including {records} complete \
             records, none of which was ever confirmed"
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "segment {}: ", self.segment)?;
        match &self.cause {
            DamageCause::Checksum => write!(formatter, "checksum mismatch")?,
            DamageCause::Header => write!(formatter, "the header is damaged")?,
            DamageCause::Shortened { length, capacity } => {
                write!(formatter, "the file has {length} bytes but was created with {capacity}")?;
            }
            DamageCause::Misplaced => write!(formatter, "the file contains another segment")?,
            DamageCause::Unreadable(why) => write!(formatter, "the file cannot be read ({why})")?,
        }
        match self.lost {
            RecordLoss::Exactly(0) => write!(formatter, "; no record is lost")?,
            RecordLoss::Exactly(count) => write!(formatter, "; {count} records are lost")?,
            RecordLoss::AtLeast(0) => write!(formatter, "; an unknown number of records is lost")?,
            RecordLoss::AtLeast(count) => write!(formatter, "; at least {count} records are lost")?,
        }
        for part in &self.parts {
            write!(formatter, "; {} bytes at offset {}", part.bytes, part.offset)?;
            match part.sequences {
                Some((from, to)) if from == to => write!(formatter, " (no message)")?,
                Some((from, to)) => write!(formatter, " (messages with numbers from {from} to {})", to - 1)?,
                None => write!(formatter, " (messages unknown)")?,
            }
        }
        if self.lost != RecordLoss::Exactly(0) {
            write!(formatter, "; messages whose settlement is lost are redelivered")?;
        }
        if matches!(self.cause, DamageCause::Unreadable(_)) {
            write!(formatter, "; the file is left in place, and the next start tries to read it again")?;
        }
        Ok(())
    }
}

impl fmt::Display for MissingSegment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.records {
            Some(records) => {
                write!(formatter, "segment {}: the file with {records} records is missing", self.segment)
            }
            None => write!(formatter, "segment {}: the file is missing", self.segment),
        }
    }
}
