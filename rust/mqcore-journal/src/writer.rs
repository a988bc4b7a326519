//! One segment that is being written: what is buffered, what is written, what is durable.

use std::io;
use std::sync::Arc;

use crate::format::{self, HEADER_BYTES, Kind, Location, SEAL_BYTES};
use crate::storage::Storage;

/// A buffer that grew beyond this for one large batch is given back afterwards, in bytes.
const KEPT_BUFFER: usize = 4 << 20;

/// Who may use the end of a segment. When the disk is full the next segment cannot be made: then publishing stops
/// first, settling goes on into a reserve, and the last bytes are for giving space back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// What adds live bytes or history.
    Put,
    /// What consumers and housekeeping need.
    Keep,
    /// What lets files go.
    Drop,
}

/// The last bytes of a segment of this capacity, for `Class::Drop`.
fn last_reserve(capacity: u32) -> u32 {
    (capacity / 128).max(128)
}

/// How far records of a class may reach into a segment of this capacity.
pub(crate) fn reach(capacity: u32, class: Class) -> u32 {
    match class {
        Class::Put => capacity - last_reserve(capacity) - capacity / 16,
        Class::Keep => capacity - last_reserve(capacity),
        Class::Drop => capacity - SEAL_BYTES,
    }
}

/// The smallest capacity whose `Class::Put` part is at least `needed` bytes.
pub(crate) fn capacity_for(needed: u64) -> u64 {
    needed + needed / 8 + 256
}

#[derive(Debug)]
pub(crate) struct Writer<F> {
    pub(crate) number: u32,
    pub(crate) file: Arc<F>,
    pub(crate) capacity: u32,
    /// Where the buffer begins in the file.
    start: u32,
    buffer: Vec<u8>,
    /// How much of the buffer is written. It is kept whole until all of it is, because reads are served from it.
    done: usize,
    /// All before is durable.
    pub(crate) synced: u32,
    /// What the last mark said of `synced`.
    pub(crate) marked: u32,
}

impl<F> Writer<F> {
    pub(crate) fn new(number: u32, file: Arc<F>, capacity: u32) -> Self {
        Self {
            number,
            file,
            capacity,
            start: HEADER_BYTES,
            buffer: Vec::new(),
            done: 0,
            synced: HEADER_BYTES,
            marked: HEADER_BYTES,
        }
    }

    /// Where the next record will stand.
    pub(crate) fn position(&self) -> u32 {
        self.start + self.buffer.len() as u32
    }

    pub(crate) fn written(&self) -> u32 {
        self.start + self.done as u32
    }

    /// Takes note that all that is written is durable. A write that stopped within a record does not count: marks
    /// speak of whole records only.
    pub(crate) fn confirm(&mut self) {
        self.synced = self.start.max(self.synced);
    }

    pub(crate) fn pending(&self) -> usize {
        self.buffer.len() - self.done
    }

    /// Whether the next batch has something new to say about what is durable.
    pub(crate) fn wants_mark(&self) -> bool {
        self.buffer.is_empty() && self.synced > self.marked
    }

    /// Appends a record of this length and answers where it will stand.
    pub(crate) fn push(
        &mut self,
        journal: u64,
        length: u32,
        kind: Kind,
        head: &[u8],
        parts: &[&[u8]],
    ) -> Location {
        let at = Location { segment: self.number, offset: self.position(), length };
        format::push_record(&mut self.buffer, journal, at, kind, head, parts);
        at
    }

    /// A record's bytes, if they are still in the buffer.
    pub(crate) fn buffered(&self, at: Location) -> Option<&[u8]> {
        let from = at.offset.checked_sub(self.start)? as usize;
        self.buffer.get(from..from + at.length as usize)
    }

    /// Writes what is buffered. After an error it can be called again: the same bytes go to the same place.
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
        if self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = Vec::new();
        }
        Ok(())
    }
}
