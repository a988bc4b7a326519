//! Compaction: housekeeping that releases as much space as possible, for a journal that is not in use.
//!
//! It takes the same steps as [`maintenance`](crate::maintenance), with the same order of copying, syncing and removing, so
//! a crash leaves the same states.

use crate::error::JournalError;
use crate::format::{self, HEADER_BYTES, RecordKind};
use crate::journal::Journal;
use crate::maintenance::Maintenance;
use crate::state::Segment;
use crate::storage::Storage;

/// A segment is rewritten if more than one part in this many is dead.
const DEAD_SHARE_DIVISOR: u64 = 64;

impl<S: Storage> Journal<S> {
    /// Number of the segment that is written now. Compaction stops before it, because its own output goes there.
    pub fn newest_segment(&self) -> u32 {
        self.tail.back().map_or(0, |writer| writer.number)
    }

    /// Performs one step of compaction of the segments before `until`, which is [`Self::newest_segment`] when compaction begins.
    ///
    /// Removes dead segments, and copies about `budget_bytes` of needed records from segments of which more than a 64th is dead.
    /// Call it again while `more` is set.
    ///
    /// # Errors
    /// The same as [`Journal::maintain`], and [`JournalError::Io`] if a file cannot be read or removed. After
    /// [`JournalError::Full`] it can continue once there is space, because copies come before removals.
    pub fn compact(
        &mut self,
        now_ms: u64,
        budget_bytes: usize,
        until: u32,
    ) -> Result<Maintenance, JournalError> {
        // Compaction does not wait after failures.
        self.state.segments.values_mut().for_each(|segment| segment.retry_ms = 0);
        let mut done = self.run_housekeeping(now_ms, budget_bytes, |journal| journal.find_wasteful(until))?;
        done.more |= self.find_wasteful(until).is_some();
        match done.deferred.pop() {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }

    /// Bytes of the segments before `until` that compaction has yet to rewrite or remove.
    pub fn compactable_bytes(&self, until: u32) -> u64 {
        let sealed = self.state.segments.range(..self.first_open().min(until));
        let left = sealed.filter(|&(&number, segment)| {
            segment.damaged || self.is_wasteful(segment, self.retained_bytes(number, segment))
        });
        left.map(|(_, segment)| segment.file_bytes).sum()
    }

    /// Closes the journal and releases reserved space: truncates the last segment and removes the one created in advance. The
    /// next opening begins a new segment anyway.
    ///
    /// # Errors
    /// The same as [`Journal::close`]. A failure to release space is not an error.
    pub fn close_compacted(mut self) -> Result<(), JournalError> {
        self.close_in_place()?;
        if let Some(spare) = self.spare.take() {
            let _ = self.storage.remove(&format::segment_name(spare.number));
        }
        if let Some((number, end)) = self.tail.back().map(|writer| (writer.number, writer.position())) {
            let records = self.state.segments.get(&number).map_or(0, |segment| segment.records);
            let _ = self.seal_in_place(number, end, records, RecordKind::Stop);
        }
        let _ = self.storage.sync_directory();
        Ok(())
    }

    fn find_wasteful(&self, until: u32) -> Option<u32> {
        self.find_candidate(until, |segment, needed| self.is_wasteful(segment, needed))
    }

    /// Whether rewriting a segment releases more than a 64th of it, not counting what every segment needs for itself.
    fn is_wasteful(&self, segment: &Segment, needed: u64) -> bool {
        let own = u64::from(HEADER_BYTES) + 20 * self.state.segments.len() as u64 + 256;
        u64::from(segment.end) > needed + own + u64::from(segment.end) / DEAD_SHARE_DIVISOR
    }
}
