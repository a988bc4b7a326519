//! How often an entry was read and written, by whole minutes.

/// Numbers of one entry. What happens counts from the end of its minute on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UseCounts {
    total_reads: u64,
    total_writes: u64,
    minute: u32,
    reads: u32,
    writes: u32,
    last_reads: u32,
    last_writes: u32,
}

/// How often something was read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uses {
    /// Reads in the last whole minute.
    pub reads_per_minute: u64,
    /// Writes in the last whole minute.
    pub writes_per_minute: u64,
    /// Reads up to the end of it.
    pub reads: u64,
    /// Writes up to the end of it.
    pub writes: u64,
}

impl UseCounts {
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

    pub(crate) fn read(&mut self, minute: u32) -> Uses {
        self.turn(minute);
        Uses {
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
    fn a_minute_counts_when_it_is_over_and_only_the_last_one_per_minute() {
        let mut counts = UseCounts::new(3);
        counts.count(3, 5, 2);
        assert_eq!(counts.read(3), Uses::default());
        let after = Uses { reads_per_minute: 5, writes_per_minute: 2, reads: 5, writes: 2 };
        assert_eq!(counts.read(4), after);
        assert_eq!(counts.read(6), Uses { reads: 5, writes: 2, ..Uses::default() });
    }
}
