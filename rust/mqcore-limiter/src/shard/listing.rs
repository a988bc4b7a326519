//! Cursors of listings in a shard.

use std::collections::VecDeque;

use super::{Cursor, Shard};
use crate::arena::NONE;
use crate::entry::EntryKind;
use crate::listed::ListedEntry;
use crate::time::Nanos;
use crate::uses::Usage;

impl Shard {
    pub(crate) fn open_cursor(&mut self, until: u64) -> usize {
        let cursor = Some(Cursor { at: self.first, until });
        if let Some(free) = self.cursors.iter().position(Option::is_none) {
            self.cursors[free] = cursor;
            return free;
        }
        self.cursors.push(cursor);
        self.cursors.len() - 1
    }

    pub(crate) fn close_cursor(&mut self, cursor: usize) {
        self.cursors[cursor] = None;
        while self.cursors.last().is_some_and(Option::is_none) {
            self.cursors.pop();
        }
    }

    /// Copies up to `max` unexpired entries at a cursor into `into`. Returns false at the end.
    pub(crate) fn copy(
        &mut self,
        cursor: usize,
        max: usize,
        now: Nanos,
        count: bool,
        into: &mut VecDeque<ListedEntry>,
    ) -> bool {
        let Some(Cursor { mut at, until }) = self.cursors[cursor] else { return false };
        for _ in 0..max {
            if at == NONE || self.entries.get(at).sequence > until {
                at = NONE;
                break;
            }
            let next = self.entries.get(at).order.next;
            if self.entries.get(at).deadline > now {
                if count {
                    self.count(at, now, 1, 0);
                }
                into.push_back(self.listed(at, now));
            }
            at = next;
        }
        self.cursors[cursor] = Some(Cursor { at, until });
        at != NONE
    }

    fn listed(&mut self, place: u32, now: Nanos) -> ListedEntry {
        let uses = self.uses.as_mut().map_or(Usage::default(), |uses| uses.get_mut(place).read(now.minute()));
        let entry = self.entries.get(place);
        ListedEntry {
            sequence: entry.sequence,
            key: self.key_of(entry).into(),
            buffer_bytes: (entry.kind == EntryKind::Buffer).then(|| self.buffer_bytes(entry)),
            unit: entry.unit,
            deadline: entry.deadline,
            quota: self.quota(entry, now),
            uses,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;
    use std::sync::Arc;

    use crate::limiter::{Limiter, LimiterConfig, SHARDS};

    #[test]
    fn listing_that_is_dropped_leaves_no_cursor() {
        let limiter = Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()));
        let cursors = || (0..SHARDS).map(|shard| limiter.lock(shard).cursors.len()).sum::<usize>();
        let [first, second] = [limiter.list(), limiter.list()];
        assert_eq!(cursors(), 2 * SHARDS);
        drop(first);
        let third = limiter.list();
        assert_eq!(cursors(), 2 * SHARDS, "the third uses the places of the first");
        drop((second, third));
        assert_eq!(cursors(), 0);
    }
}
