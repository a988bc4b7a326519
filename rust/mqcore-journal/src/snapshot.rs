//! Snapshots: which parts of a journal's files form a consistent copy while the journal is in use.
//!
//! Records are appended and never changed. The beginnings of all segments at one moment are therefore what a crash at that
//! moment could leave: a journal that opens normally. Only removals would interfere, so they wait.

pub use crate::catalog::CATALOG;
use crate::error::JournalError;
use crate::format;
use crate::journal::{Condition, Journal};
use crate::storage::Storage;
use crate::writer::Writer;

/// The files of a journal at one moment. Valid while the journal is [pinned](Journal::pin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Segments, oldest first, and the catalog.
    pub segments: Vec<SnapshotSegment>,
    /// Number of live records.
    pub live: u64,
}

/// One file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// File name.
    pub name: String,
    /// Number of valid bytes from the start of the file. They never change.
    pub bytes: u64,
    /// Length of the copy in bytes. Everything after the valid bytes is zero.
    pub length: u64,
}

impl<S: Storage> Journal<S> {
    /// Writes and syncs all buffered records and returns the parts of the files that contain them.
    ///
    /// On a full disk, records that could not be written are not included; they were not confirmed either. Housekeeping must not
    /// remove these files, so call [`Self::pin`] before anything else.
    ///
    /// # Errors
    /// - [`JournalError::Io`]: the disk could not read a segment, at the opening or later, so a copy would be incomplete. The
    ///   journal continues to work.
    /// - Any other error: the journal has failed.
    pub fn snapshot(&mut self) -> Result<Snapshot, JournalError> {
        self.check_failed()?;
        if let Some(number) = self.state.segments.iter().find(|(_, segment)| segment.unreadable) {
            let refused = std::io::Error::other("the disk could not read it");
            return Err(JournalError::io("reading", &format::segment_name(*number.0), &refused));
        }
        match self.write() {
            Ok(()) | Err(JournalError::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        self.sync()?;
        // With a mark, damage to the end of the copy can be distinguished from a torn write.
        if self.condition == Condition::Healthy && self.tail.len() == 1 {
            self.mark_end()?;
        }
        // It must list no segment that is not copied, so it is not replaced while the journal is pinned.
        self.refresh_catalog()?;
        let begun = self.tail.front().map_or(0, |writer| writer.number);
        let segments = self.state.segments.range(..=begun).map(|(&number, segment)| {
            let written = self.tail.front().filter(|writer| writer.number == number).map(Writer::written);
            SnapshotSegment {
                name: format::segment_name(number),
                bytes: written.map_or(segment.file_bytes, u64::from),
                length: segment.file_bytes,
            }
        });
        let mut segments: Vec<SnapshotSegment> = segments.collect();
        if self.catalog_bytes > 0 {
            let (bytes, length) = (self.catalog_bytes, self.catalog_bytes);
            segments.push(SnapshotSegment { name: CATALOG.to_owned(), bytes, length });
        }
        Ok(Snapshot { segments, live: self.state.puts.len() as u64 })
    }

    /// Sets whether housekeeping leaves all files in place. Off after every opening.
    pub fn pin(&mut self, pinned: bool) {
        self.pinned = pinned;
    }
}
