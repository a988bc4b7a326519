//! The segment that is being written: what is buffered, written and durable.

use std::io;
use std::sync::Arc;

use crate::format::{self, HEADER_BYTES, Location, RecordKind, SEAL_BYTES};
use crate::storage::Storage;

/// A buffer that grew beyond this size for one large batch is released afterwards, in bytes.
const RETAINED_BUFFER_BYTES: usize = 4 << 20;

/// The classes of records, which determine how far into a segment they may be written. On a full disk, the next segment
/// cannot be created: publishing stops first, settlements continue into a reserve, and the last bytes are for releasing
/// space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceClass {
    /// Records that add live bytes or history.
    Publish,
    /// Records that consumers and housekeeping need.
    Essential,
    /// Records that allow the removal of files.
    Reclaim,
}

/// Bytes at the end of a segment that are reserved for `SpaceClass::Reclaim`.
fn last_reserve(capacity: u32) -> u32 {
    (capacity / 128).max(128)
}

/// How far records of a class may extend into a segment of this capacity.
pub(crate) fn reach(capacity: u32, class: SpaceClass) -> u32 {
    match class {
        SpaceClass::Publish => capacity - last_reserve(capacity) - capacity / 16,
        SpaceClass::Essential => capacity - last_reserve(capacity),
        SpaceClass::Reclaim => capacity - SEAL_BYTES,
    }
}

/// Smallest capacity whose `SpaceClass::Publish` part has at least `needed` bytes.
pub(crate) fn capacity_for(needed: u64) -> u64 {
    needed + needed / 8 + 256
}

#[derive(Debug)]
pub(crate) struct Writer<F> {
    pub(crate) number: u32,
    pub(crate) file: Arc<F>,
    pub(crate) capacity: u32,
    /// Offset of the first record.
    pub(crate) first: u32,
    /// Offset of the buffer in the file.
    start: u32,
    buffer: Vec<u8>,
    /// Number of buffered bytes that are written. The buffer is retained until all of it is written, because it serves reads.
    done: usize,
    /// Everything before this offset is durable.
    pub(crate) synced: u32,
    /// Value of `synced` in the last mark.
    pub(crate) marked: u32,
    /// Offset of the end of the last mark.
    pub(crate) mark_end: u32,
}

impl<F> Writer<F> {
    pub(crate) fn new(number: u32, file: Arc<F>, capacity: u32) -> Self {
        Self {
            number,
            file,
            capacity,
            first: HEADER_BYTES,
            start: HEADER_BYTES,
            buffer: Vec::new(),
            done: 0,
            synced: HEADER_BYTES,
            marked: HEADER_BYTES,
            mark_end: HEADER_BYTES,
        }
    }

    /// Offset of the next record.
    pub(crate) fn position(&self) -> u32 {
        self.start + self.buffer.len() as u32
    }

    pub(crate) fn written(&self) -> u32 {
        self.start + self.done as u32
    }

    /// Records that everything written is durable. A write that stopped within a record does not count, because marks refer to
    /// complete records only.
    pub(crate) fn confirm(&mut self) {
        self.synced = self.start.max(self.synced);
    }

    pub(crate) fn pending(&self) -> usize {
        self.buffer.len() - self.done
    }

    /// Whether the next batch should begin with a mark, because more is durable than the last mark records.
    pub(crate) fn needs_mark(&self) -> bool {
        self.buffer.is_empty() && self.synced > self.marked
    }

    /// Whether all records are durable, and the last one is a mark that covers all others.
    pub(crate) fn ends_with_mark(&self) -> bool {
        self.buffer.is_empty() && self.synced == self.mark_end
    }

    /// Appends a record of this length and returns its place.
    pub(crate) fn push(
        &mut self,
        journal: u64,
        length: u32,
        kind: RecordKind,
        head: &[u8],
        parts: &[&[u8]],
    ) -> Location {
        let at = Location { segment: self.number, offset: self.position(), length };
        format::push_record(&mut self.buffer, journal, at, kind, head, parts);
        at
    }

    /// Returns a record's bytes if they are still buffered.
    pub(crate) fn buffered(&self, at: Location) -> Option<&[u8]> {
        let from = at.offset.checked_sub(self.start)? as usize;
        self.buffer.get(from..from + at.length as usize)
    }

    /// Writes the buffer. After an error it can be called again: the same bytes go to the same place.
    pub(crate) fn flush<S: Storage<File = F>>(&mut self, storage: &S) -> io::Result<()> {
        while self.done < self.buffer.len() {
            let written =
                storage.write_at(&self.file, u64::from(self.written()), &self.buffer[self.done..])?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.done += written.min(self.buffer.len() - self.done);
        }
        self.start += self.buffer.len() as u32;
        self.done = 0;
        self.buffer.clear();
        if self.buffer.capacity() > RETAINED_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_for_a_large_record_has_room_for_it_and_little_more() {
        for needed in (1..5000).chain((1..500).map(|step| step * 100_003)) {
            let capacity = u32::try_from(capacity_for(needed)).expect("it fits a segment");
            let publish = u64::from(reach(capacity, SpaceClass::Publish));
            assert!((needed..=needed + needed / 16 + 512).contains(&publish), "{needed}: {publish}");
        }
    }

    #[test]
    fn space_that_is_reserved_for_settlements_and_for_reclaiming_grows_with_the_segment() {
        for capacity in [16_384, 1 << 20, 64 << 20, 1 << 30] {
            let [publish, essential, reclaim] =
                [SpaceClass::Publish, SpaceClass::Essential, SpaceClass::Reclaim]
                    .map(|class| reach(capacity, class));
            assert_eq!(essential - publish, capacity / 16);
            assert_eq!(capacity - essential, capacity / 128);
            assert_eq!(capacity - reclaim, SEAL_BYTES);
        }
    }
}
