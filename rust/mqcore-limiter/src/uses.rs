//! Usage counts of an entry, by full minutes.

/// Usage counters of one entry. An access is reported from the end of its minute on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsageCounter {
    total_reads: u64,
    total_writes: u64,
    minute: u32,
    reads: u32,
    writes: u32,
    last_reads: u32,
    last_writes: u32,
}

/// Usage of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Reads in the last full minute.
    pub reads_per_minute: u64,
    /// Writes in the last full minute.
    pub writes_per_minute: u64,
    /// Total reads up to the end of the last full minute.
    pub reads: u64,
    /// Total writes up to the end of the last full minute.
    pub writes: u64,
}

impl UsageCounter {
    pub(crate) fn new(minute: u32) -> Self {
        Self { minute, ..Self::default() }
    }

    #[inline]
    fn turn(&mut self, minute: u32) {
        if minute != self.minute {
            let next = minute == self.minute.wrapping_add(1);
            (self.last_reads, self.last_writes) = if next { (self.reads, self.writes) } else { (0, 0) };
            self.total_reads += u64::from(self.reads);
            self.total_writes += u64::from(self.writes);
            (self.reads, self.writes, self.minute) = (0, 0, minute);
        }
    }

    #[inline]
    pub(crate) fn count(&mut self, minute: u32, reads: u32, writes: u32) {
        self.turn(minute);
        self.reads = self.reads.saturating_add(reads);
        self.writes = self.writes.saturating_add(writes);
    }

    pub(crate) fn read(&mut self, minute: u32) -> Usage {
        self.turn(minute);
        Usage {
            reads_per_minute: u64::from(self.last_reads),
            writes_per_minute: u64::from(self.last_writes),
            reads: self.total_reads,
            writes: self.total_writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_reported_after_their_minute_and_per_minute_for_the_last_one_only() {
        let mut counts = UsageCounter::new(3);
        counts.count(3, 5, 2);
        assert_eq!(counts.read(3), Usage::default());
        let after = Usage { reads_per_minute: 5, writes_per_minute: 2, reads: 5, writes: 2 };
        assert_eq!(counts.read(4), after);
        assert_eq!(counts.read(6), Usage { reads: 5, writes: 2, ..Usage::default() });
    }
}
