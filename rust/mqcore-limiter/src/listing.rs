//! Iteration over all entries in order of creation, in small batches.
//!
//! A listing has a cursor in each shard. Removing an entry moves the cursors on it to the next one. A listing therefore uses
//! a fixed amount of memory and blocks other threads only while a few entries are copied. It returns every entry that exists
//! throughout the iteration exactly once, and no entry created after its beginning.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::limiter::{Limiter, SHARDS};
pub use crate::listed::ListedEntry;
use crate::time::Nanos;

/// Number of entries copied at once from one shard.
const BATCH: usize = 16;

/// An iteration over a store.
#[derive(Debug)]
pub struct Listing {
    limiter: Arc<Limiter>,
    /// Per shard: its cursor, and the entries copied and not returned yet.
    parts: Vec<ShardPosition>,
    /// Next entry of each shard that has one. The oldest of all is returned first.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    begun: bool,
    /// Last sequence that was assigned before the listing began.
    until: u64,
}

#[derive(Debug)]
struct ShardPosition {
    cursor: usize,
    copied: VecDeque<ListedEntry>,
}

impl Listing {
    /// `until` must be read before this call. Sequences are assigned under the lock of their shard, so an entry with a smaller
    /// sequence is in its shard's list by the time this call takes that lock.
    pub(crate) fn new(limiter: Arc<Limiter>, until: u64) -> Self {
        let parts = (0..SHARDS)
            .map(|shard| ShardPosition {
                cursor: limiter.lock(shard).open_cursor(until),
                copied: VecDeque::new(),
            })
            .collect();
        Self { limiter, parts, heads: BinaryHeap::with_capacity(SHARDS), begun: false, until }
    }

    /// Begins another iteration from the start, over the same entries.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::new(Arc::clone(&self.limiter), self.until)
    }

    /// Returns the next unexpired entry. `count` determines whether this counts as a read of the entry.
    pub fn next(&mut self, now: Nanos, count: bool) -> Option<ListedEntry> {
        if !self.begun {
            self.begun = true;
            (0..SHARDS).for_each(|shard| self.refill(shard, now, count));
        }
        let Reverse((_, shard)) = self.heads.pop()?;
        let listed = self.parts[shard].copied.pop_front();
        match self.parts[shard].copied.front() {
            Some(next) => self.heads.push(Reverse((next.sequence, shard))),
            None => self.refill(shard, now, count),
        }
        listed
    }

    fn refill(&mut self, shard: usize, now: Nanos, count: bool) {
        let ShardPosition { cursor, copied } = &mut self.parts[shard];
        // A batch may contain only expired entries, which is not the end.
        while copied.is_empty() {
            if !self.limiter.lock(shard).copy(*cursor, BATCH, now, count, copied) {
                break;
            }
        }
        if let Some(next) = copied.front() {
            self.heads.push(Reverse((next.sequence, shard)));
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        for (shard, part) in self.parts.iter().enumerate() {
            self.limiter.lock(shard).close_cursor(part.cursor);
        }
    }
}
