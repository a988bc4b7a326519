//! When a member's log may forget entries.
//!
//! An entry is needed until its changes are durable in the files of this member, and should stay while another member that
//! was away for a moment may need it: otherwise that gets a copy of all files.

use std::collections::VecDeque;

use mqcore_consensus::log::LogSnapshot;

/// Bytes of entries between two points at which the files are synced.
const POINT_BYTES: u64 = 32 << 20;
/// Bytes of entries that stay for other members.
const KEPT_BYTES: u64 = 256 << 20;

/// Points up to which the log may be forgotten.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// Bytes of all entries since the start of the member.
    bytes: u64,
    /// Bytes at the last point.
    last: u64,
    points: VecDeque<Point>,
    /// The number of the sync that runs.
    syncing: Option<u64>,
    /// Another member needs a newer snapshot than the log begins with, and gets a copy of all files.
    is_requested: bool,
}

#[derive(Debug)]
struct Point {
    snapshot: LogSnapshot,
    bytes: u64,
    is_synced: bool,
}

impl Compaction {
    /// An entry was carried out. True: the files should be synced now, with [`Self::begin`].
    pub(super) fn note(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.bytes - self.last >= POINT_BYTES && self.syncing.is_none()
    }

    /// The log becomes as short as possible with the next sync that ends. True: none runs, so that one should begin now.
    pub(super) fn request(&mut self) -> bool {
        self.is_requested = true;
        self.syncing.is_none()
    }

    /// A sync of everything up to this point begins. Its number is that of no other.
    pub(super) fn begin(&mut self, snapshot: LogSnapshot, sync: u64) {
        self.syncing = Some(sync);
        self.last = self.bytes;
        self.points.push_back(Point { snapshot, bytes: self.bytes, is_synced: false });
    }

    /// The sync with this number has ended. False: it is one of files that were replaced since then.
    pub(super) fn synced(&mut self, sync: u64) -> bool {
        if self.syncing != Some(sync) {
            return false;
        }
        self.syncing = None;
        self.points.iter_mut().for_each(|point| point.is_synced = true);
        true
    }

    /// The last point up to which all members have carried out everything, if there is a new one.
    pub(super) fn take_up_to(&mut self, index: u64) -> Option<LogSnapshot> {
        let mut taken = None;
        while self.points.front().is_some_and(|point| point.is_synced && point.snapshot.index <= index) {
            taken = self.points.pop_front().map(|point| point.snapshot);
        }
        taken
    }

    /// The point up to which the log is not needed any more, if there is a new one.
    pub(super) fn take(&mut self) -> Option<LogSnapshot> {
        let mut taken = None;
        while self.points.front().is_some_and(|point| {
            point.is_synced && (self.is_requested || self.bytes - point.bytes >= KEPT_BYTES)
        }) {
            taken = self.points.pop_front().map(|point| point.snapshot);
        }
        self.is_requested &= taken.is_none();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64) -> LogSnapshot {
        LogSnapshot { index, ..LogSnapshot::default() }
    }

    #[test]
    fn entries_stay_until_they_are_synced_and_old() {
        let mut compaction = Compaction::default();
        assert!(!compaction.note(POINT_BYTES as usize - 1));
        assert!(compaction.note(1));
        compaction.begin(at(5), 1);
        assert!(!compaction.note(KEPT_BYTES as usize), "one sync at a time");
        assert_eq!(compaction.take(), None, "not synced");
        assert!(compaction.synced(1));
        assert_eq!(compaction.take(), Some(at(5)));
        assert!(compaction.note(1));
        compaction.begin(at(9), 2);
        assert!(compaction.synced(2));
        assert_eq!(compaction.take(), None, "others may need it");
        assert!(compaction.request());
        assert_eq!(compaction.take(), Some(at(9)));
    }

    #[test]
    fn a_request_waits_for_the_sync_that_runs() {
        let mut compaction = Compaction::default();
        compaction.begin(at(5), 1);
        assert!(!compaction.request(), "one sync at a time");
        assert_eq!(compaction.take(), None, "a power failure could take back what the log has");
        assert!(compaction.synced(1));
        assert_eq!(compaction.take(), Some(at(5)));
        compaction.begin(at(9), 2);
        assert!(compaction.synced(2));
        assert_eq!(compaction.take(), None, "a request is answered once");
    }

    #[test]
    fn a_sync_of_replaced_files_does_not_count() {
        let mut compaction = Compaction::default();
        compaction.begin(at(5), 2);
        assert!(!compaction.synced(1));
        compaction.request();
        assert_eq!(compaction.take(), None);
    }

    #[test]
    fn entries_stay_until_all_members_have_them() {
        let mut compaction = Compaction::default();
        for index in [5, 9, 12] {
            assert!(compaction.note(POINT_BYTES as usize));
            compaction.begin(at(index), index);
            assert!(compaction.synced(index));
        }
        assert_eq!(compaction.take_up_to(4), None);
        assert_eq!(compaction.take_up_to(11), Some(at(9)));
        assert_eq!(compaction.take_up_to(11), None);
    }
}
