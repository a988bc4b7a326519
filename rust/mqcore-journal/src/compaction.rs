//! Compaction: housekeeping that leaves as little behind as it can, for a journal that nobody uses meanwhile.
//!
//! The same steps as in [`maintenance`](crate::maintenance), with the same order of copying, syncing and removing, so a
//! crash at any moment leaves what it would leave there.

use crate::error::JournalError;
use crate::format::{self, HEADER_BYTES, Kind};
use crate::journal::Journal;
use crate::maintenance::Maintenance;
use crate::state::Segment;
use crate::storage::Storage;

/// One part in so many of a segment may be dead without its being rewritten.
const TOLERATED: u64 = 64;

impl<S: Storage> Journal<S> {
    /// The segment that is written now. Compaction goes up to it: what it writes itself stands there or behind.
    pub fn newest_segment(&self) -> u32 {
        self.tail.back().map_or(0, |writer| writer.number)
    }

    /// One step of compaction of the segments before `until`, which is [`Self::newest_segment`] at its beginning: removes
    /// dead segments and copies at most about `budget_bytes` of what still counts in those that hold more dead bytes
    /// than a 64th. Call again as long as there is `more`.
    ///
    /// # Errors
    /// As for `maintain`. After [`JournalError::Full`] it can go on once there is space: copies come before removals.
    pub fn compact(
        &mut self,
        now_ms: u64,
        budget_bytes: usize,
        until: u32,
    ) -> Result<Maintenance, JournalError> {
        let mut done = self.keep_house(now_ms, budget_bytes, |journal| journal.find_wasteful(until))?;
        done.more |= self.find_wasteful(until).is_some();
        Ok(done)
    }

    /// Bytes of the segments before `until` that compaction has yet to rewrite or remove.
    pub fn compactable_bytes(&self, until: u32) -> u64 {
        let sealed = self.state.segments.range(..self.first_open().min(until));
        let left = sealed.filter(|&(&number, segment)| {
            segment.damaged || self.is_wasteful(segment, self.needed_of(number, segment))
        });
        left.map(|(_, segment)| segment.file_bytes).sum()
    }

    /// Closes, and gives back the space that is reserved for records to come: the last segment is cut to what it holds,
    /// and the one that was made in advance goes. The next opening begins another one in any case.
    ///
    /// # Errors
    /// As for [`Journal::close`]. What cannot be given back stays, which is no error.
    pub fn close_small(mut self) -> Result<(), JournalError> {
        self.close_in_place()?;
        if let Some(spare) = self.spare.take() {
            let _ = self.storage.remove(&format::segment_name(spare.number));
        }
        if let Some((number, end)) = self.tail.back().map(|writer| (writer.number, writer.position())) {
            let records = self.state.segments.get(&number).map_or(0, |segment| segment.records);
            let _ = self.seal_in_place(number, end, records, Kind::Stop);
        }
        let _ = self.storage.sync_directory();
        Ok(())
    }

    fn find_wasteful(&self, until: u32) -> Option<u32> {
        self.find_worth(until, |segment, needed| self.is_wasteful(segment, needed))
    }

    /// Whether rewriting a segment gives back more than its share, beyond what every segment needs for itself.
    fn is_wasteful(&self, segment: &Segment, needed: u64) -> bool {
        let own = u64::from(HEADER_BYTES) + 20 * self.state.segments.len() as u64 + 256;
        u64::from(segment.end) > needed + own + u64::from(segment.end) / TOLERATED
    }
}
