//! What of a journal's files makes a whole copy of it, while it goes on being written.
//!
//! Records are appended and never changed, so the beginnings of all segments up to one moment are what a crash at that
//! moment could have left: a journal that opens in order. Only removals would spoil it, so they wait.

use crate::error::JournalError;
use crate::format;
use crate::journal::{Condition, Journal};
use crate::storage::Storage;
use crate::writer::Writer;

/// A journal at one moment, as files. Valid as long as it is [pinned](Journal::pin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its segments, oldest first.
    pub segments: Vec<SnapshotSegment>,
    /// Live records in it.
    pub live: u64,
}

/// One segment file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// The file's name.
    pub name: String,
    /// How much of it counts, in bytes from its start. That part does not change any more.
    pub bytes: u64,
    /// How long a copy must be: what is behind `bytes` is zeros there.
    pub length: u64,
}

impl<S: Storage> Journal<S> {
    /// Writes and syncs everything that was taken, and says which parts of which files hold it. On a full disk, what found
    /// no space yet is not in it, and neither was it confirmed.
    ///
    /// Housekeeping must not remove what it names: call [`Self::pin`] in the same breath.
    ///
    /// # Errors
    /// The journal's failure, which this call may be; and [`JournalError::Io`], which fails nothing, if there is a segment
    /// that could not be read when the journal was opened: a copy would lack it.
    pub fn snapshot(&mut self) -> Result<Snapshot, JournalError> {
        self.check_failed()?;
        if let Some(number) = self.state.segments.iter().find(|(_, segment)| segment.unreadable) {
            let refused = std::io::Error::other("the disk refused to read it when the journal was opened");
            return Err(JournalError::io("reading", &format::segment_name(*number.0), &refused));
        }
        match self.write() {
            Ok(()) | Err(JournalError::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        self.sync()?;
        // Whatever damages the copy's end can be told from a torn one then.
        if self.condition == Condition::Healthy && self.tail.len() == 1 {
            self.mark_end()?;
        }
        let begun = self.tail.front().map_or(0, |writer| writer.number);
        let segments = self.state.segments.range(..=begun).map(|(&number, segment)| {
            let written = self.tail.front().filter(|writer| writer.number == number).map(Writer::written);
            SnapshotSegment {
                name: format::segment_name(number),
                bytes: written.map_or(segment.file_bytes, u64::from),
                length: segment.file_bytes,
            }
        });
        Ok(Snapshot { segments: segments.collect(), live: self.state.puts.len() as u64 })
    }

    /// Whether housekeeping leaves all files where they are. Unpinned at first, and after every opening.
    pub fn pin(&mut self, pinned: bool) {
        self.pinned = pinned;
    }
}
