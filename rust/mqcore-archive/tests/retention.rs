//! Retention removes the oldest files first, from the manifest and then from the disk, and nothing else across any crash.

use crate::reader;

use std::collections::BTreeSet;

use mqcore_archive::archive::{Archive, Retention, Size};
use mqcore_broker::history::Block;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};

use reader::{files, gaps};

const DAY_MS: u64 = 86_400_000;
const KEEP_ALL: Retention = Retention { age_ms: None, bytes: None };

/// An archive with a file for each of the days 0, 1 and 2, in which 3, 2 and 1 gaps of that day are.
fn three_days(disk: &MemoryStorage) -> Archive<MemoryStorage> {
    let options = Options { segment_bytes: 4096, identity: 77, ..Options::default() };
    let source = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(source.clone(), options, &mut |_, _| {}).expect("a healthy disk");
    for (day, steps) in [(0, 3), (0, 3), (0, 3), (1, 2), (1, 2), (2, 1)] {
        let block = Block::gap(Timestamp(day * DAY_MS + steps), steps);
        journal.note(0, &block.bytes).expect("a healthy disk");
    }
    journal.seal_notes(u64::MAX).expect("a healthy disk");
    let mut archive = Archive::open(disk.clone()).expect("a healthy disk");
    archive.round(0, &source, &journal.sealed_notes(), 5).expect("a healthy disk");
    assert_eq!(archive.size().files, 3);
    archive
}

/// The days that a reader finds. Every file that the manifest names is there and whole.
fn days(archive: &Archive<MemoryStorage>) -> Vec<u64> {
    let mut days: Vec<_> = files(archive).iter().map(|(entry, _)| entry.max_time_ms / DAY_MS).collect();
    days.sort_unstable();
    days
}

/// Data files on the disk, named by a manifest or not.
fn on_disk(disk: &MemoryStorage) -> BTreeSet<String> {
    disk.files().into_keys().filter(|name| name.ends_with(".parquet")).collect()
}

#[test]
fn a_file_goes_when_its_latest_row_is_older_than_the_limit_and_not_before() {
    let disk = MemoryStorage::new(2);
    let mut archive = three_days(&disk);
    let retention = Retention { age_ms: Some(DAY_MS), bytes: None };
    // The latest row of day 0 is exactly as old as it may be.
    assert_eq!(archive.retain(retention, DAY_MS + 3).expect("a healthy disk"), Size::default());
    assert_eq!(days(&archive), [0, 1, 2]);
    let before = archive.size();
    let gone = archive.retain(retention, DAY_MS + 4).expect("a healthy disk");
    assert_eq!((gone.files, gone.rows), (1, 3));
    assert_eq!(days(&archive), [1, 2]);
    assert_eq!(archive.size().bytes, before.bytes - gone.bytes);
    assert_eq!(on_disk(&disk).len(), 2);
    let gone = archive.retain(retention, 100 * DAY_MS).expect("a healthy disk");
    assert_eq!((gone.files, gone.rows), (2, 3));
    assert_eq!(on_disk(&disk).len(), 0);
    let removed = archive.manifest().removed;
    assert_eq!((removed.files, removed.rows, removed.bytes), (3, 6, before.bytes));
}

#[test]
fn the_oldest_files_go_until_the_rest_is_within_the_limit() {
    let disk = MemoryStorage::new(3);
    let mut archive = three_days(&disk);
    let bytes = |limit| Retention { age_ms: None, bytes: Some(limit) };
    let total = archive.size().bytes;
    assert_eq!(archive.retain(KEEP_ALL, u64::MAX).expect("a healthy disk"), Size::default());
    assert_eq!(archive.retain(bytes(total), u64::MAX).expect("a healthy disk"), Size::default());
    assert_eq!(archive.retain(bytes(total - 1), 5).expect("a healthy disk").files, 1);
    assert_eq!(days(&archive), [1, 2]);
    assert_eq!(archive.retain(bytes(0), 5).expect("a healthy disk").files, 2);
    assert_eq!((archive.size(), on_disk(&disk).len()), (Size::default(), 0));
}

#[test]
fn removed_history_is_not_archived_again() {
    let disk = MemoryStorage::new(4);
    let mut archive = three_days(&disk);
    let reach = archive.archived(0, 77);
    archive.retain(Retention { age_ms: None, bytes: Some(0) }, 5).expect("a healthy disk");
    drop(archive);
    disk.crash();
    let archive = Archive::open(disk).expect("a healthy disk");
    assert_eq!((archive.archived(0, 77), reach), (6, 6));
    assert!(gaps(&archive).is_empty());
}

#[test]
fn a_crash_at_each_single_call_of_retention_leaves_whole_files_and_no_others() {
    let (mut undone, mut done) = (0, 0);
    for seed in 0..mqcore_testkit::by_depth(5, 20) {
        for call in 0.. {
            let disk = MemoryStorage::new(seed);
            let mut archive = three_days(&disk);
            disk.inject(StorageCall::Change, call, Fault::Error, true);
            let outcome = archive.retain(Retention { age_ms: Some(DAY_MS), bytes: None }, 2 * DAY_MS + 4);
            let struck = disk.fault_count();
            drop(archive);
            disk.clear_faults();
            disk.crash();
            let archive = Archive::open(disk.clone()).expect("a healthy disk");
            match days(&archive).as_slice() {
                [0, 1, 2] => {
                    assert!(outcome.is_err(), "it said that it was done, and the files came back");
                    undone += 1;
                }
                [2] => done += 1,
                other => panic!("half of it was done: {other:?}"),
            }
            let named: BTreeSet<_> = archive.manifest().files.iter().map(|file| file.path.clone()).collect();
            assert_eq!(on_disk(&disk), named);
            if struck == 0 {
                break;
            }
        }
    }
    assert!(undone > 10 && done > 5, "both ends were seen: {undone}, {done}");
}
