//! Everything that is stored, in the order of creation, a piece at a time.
//!
//! A listing has a cursor in each part of the store; an entry that is taken away pushes the cursors that stand on it
//! forward. So it costs a fixed amount of memory, nobody waits for more than a few entries to be copied, and what was there
//! all the time is seen exactly once. What is created after it began is left out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::limiter::{Limiter, SHARDS};
use crate::time::Nanos;
use crate::uses::Uses;

/// Entries that are copied at once from one part of the store.
const BATCH: usize = 16;

/// One entry, as it was when the listing came by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub(crate) sequence: u64,
    /// Its key.
    pub key: Box<[u8]>,
    /// Bytes that it holds: `None` for a counter.
    pub buffer_bytes: Option<u64>,
    /// The unit of its time to live.
    pub unit: u8,
    /// When it expires.
    pub deadline: Nanos,
    /// What QUERY would tell as its quota.
    pub quota: u64,
    /// How often it was used; zeros without metrics.
    pub uses: Uses,
}

/// A walk through a store that has not come to its end.
#[derive(Debug)]
pub struct Listing {
    limiter: Arc<Limiter>,
    /// By part: where its cursor is kept, and what was copied and not given out.
    parts: Vec<Part>,
    /// The next entry of each part that has one: the oldest of all comes first.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    begun: bool,
    /// The last entry that was created before it began.
    until: u64,
}

#[derive(Debug)]
struct Part {
    cursor: usize,
    copied: VecDeque<Listed>,
}

impl Listing {
    /// `until` was read before this is called. Sequences are given out under the lock of the part that they belong to, so
    /// whoever has a smaller one is in its list by the time that lock is taken here.
    pub(crate) fn new(limiter: Arc<Limiter>, until: u64) -> Self {
        let parts = (0..SHARDS)
            .map(|shard| Part { cursor: limiter.lock(shard).open_cursor(until), copied: VecDeque::new() })
            .collect();
        Self { limiter, parts, heads: BinaryHeap::with_capacity(SHARDS), begun: false, until }
    }

    /// Another walk from the beginning, that leaves out what this one does.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::new(Arc::clone(&self.limiter), self.until)
    }

    /// The next entry that has not expired. Looking at it counts as a read if `count` says so.
    pub fn next(&mut self, now: Nanos, count: bool) -> Option<Listed> {
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
        let Part { cursor, copied } = &mut self.parts[shard];
        // A stretch of expired entries brings nothing, and is no end.
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
