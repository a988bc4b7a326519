//! The log of a replica in a journal: what survives a restart, what is removed, and what damage does.

use bytes::Bytes;
use mqcore_consensus::journal_log::{JournalLog, OpenError};
use mqcore_consensus::log::{Ballot, EntryKind, LogEntry, LogSnapshot, ReplicatedLog};
use mqcore_consensus::membership::{GroupMembers, ReplicaId};
use mqcore_journal::error::JournalError;
use mqcore_journal::options::Options;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};
use mqcore_testkit::{Random, seeds};

fn options() -> Options {
    Options { segment_bytes: 12_800, identity: 77, ..Options::default() }
}

fn open(storage: &MemoryStorage) -> JournalLog<MemoryStorage> {
    JournalLog::open(storage.clone(), options()).unwrap()
}

fn members() -> GroupMembers {
    GroupMembers::of((1..=3).map(ReplicaId::first))
}

fn new_group(seed: u64) -> (MemoryStorage, JournalLog<MemoryStorage>) {
    let storage = MemoryStorage::new(seed);
    let mut log = open(&storage);
    log.begin_group(&members()).unwrap();
    (storage, log)
}

fn entry(index: u64, term: u64) -> LogEntry {
    let data = Bytes::from(format!("{index} of {term}"));
    LogEntry { index, term, kind: EntryKind::Batch, data }
}

fn ballot(term: u64, committed: u64) -> Ballot {
    Ballot { term, voted_for: Some(ReplicaId::first(2)), committed }
}

fn all(log: &JournalLog<MemoryStorage>) -> Vec<LogEntry> {
    log.entries(log.base().0 + 1..log.last_index() + 1, u64::MAX).unwrap()
}

#[test]
fn adjacent_entries_take_few_reads() {
    let (storage, mut log) = new_group(1);
    let written: Vec<LogEntry> = (2..1002).map(|index| entry(index, 1)).collect();
    log.append(written.clone(), None).unwrap();
    storage.inject(StorageCall::Read, 20, Fault::Error, true);
    assert_eq!(all(&log), written);
}

#[test]
fn synced_entries_and_ballot_survive_a_power_failure() {
    let (storage, mut log) = new_group(1);
    log.append(vec![entry(2, 1), entry(3, 1)], Some(ballot(1, 2))).unwrap();
    log.append(Vec::new(), Some(ballot(2, 3))).unwrap();
    let change = LogEntry { kind: EntryKind::Membership, data: Bytes::new(), ..entry(4, 2) };
    log.append(vec![change.clone()], None).unwrap();
    log.sync().unwrap();
    log.append(vec![entry(5, 2)], None).unwrap();
    drop(log);
    storage.crash();
    let log = open(&storage);
    assert_eq!(all(&log)[..3], [entry(2, 1), entry(3, 1), change]);
    assert_eq!((log.ballot(), log.base()), (ballot(2, 3), (1, 1, members())));
    assert_eq!((log.term(3), log.term(4), log.term(9)), (Some(1), Some(2), None));
}

#[test]
fn entries_of_a_new_leader_replace_the_old_ones() {
    let (storage, mut log) = new_group(1);
    log.append((2..10).map(|index| entry(index, 1)).collect(), Some(ballot(1, 4))).unwrap();
    log.append(vec![entry(5, 2), entry(6, 2)], None).unwrap();
    let expected = [entry(2, 1), entry(3, 1), entry(4, 1), entry(5, 2), entry(6, 2)];
    assert_eq!(all(&log), expected);
    log.sync().unwrap();
    drop(log);
    let log = open(&storage);
    assert_eq!(all(&log), expected);
    assert_eq!(log.ballot(), ballot(1, 4), "its entry was kept");
}

#[test]
fn ballot_survives_the_entries_that_were_written_with_it() {
    let (storage, mut log) = new_group(1);
    log.append(vec![entry(2, 3), entry(3, 3)], Some(ballot(3, 2))).unwrap();
    log.append(vec![entry(2, 4)], None).unwrap();
    log.sync().unwrap();
    drop(log);
    assert_eq!(open(&storage).ballot(), ballot(3, 2));

    let mut log = open(&storage);
    log.append(vec![entry(3, 5)], Some(ballot(5, 3))).unwrap();
    let snapshot =
        LogSnapshot { index: 3, term: 5, membership: members(), data: Bytes::from_static(b"state") };
    log.compact(&snapshot).unwrap();
    log.sync().unwrap();
    drop(log);
    let log = open(&storage);
    assert_eq!((log.ballot(), all(&log)), (ballot(5, 3), Vec::new()));
    assert_eq!(log.snapshot().unwrap(), snapshot);
}

#[test]
fn installed_snapshot_replaces_all_entries() {
    let (storage, mut log) = new_group(1);
    log.append((2..20).map(|index| entry(index, 1)).collect(), Some(ballot(1, 4))).unwrap();
    let snapshot =
        LogSnapshot { index: 10, term: 2, membership: members(), data: Bytes::from_static(b"state") };
    log.install(&snapshot).unwrap();
    log.append(vec![entry(11, 2)], None).unwrap();
    log.sync().unwrap();
    drop(log);
    let log = open(&storage);
    assert_eq!(all(&log), [entry(11, 2)], "and no entry behind it is left");
    assert_eq!((log.last_index(), log.ballot().committed), (11, 10));
}

#[test]
fn compaction_and_housekeeping_bound_the_files() {
    let (storage, mut log) = new_group(1);
    for index in 2..3_000 {
        log.append(vec![entry(index, 1)], Some(ballot(1, index - 1))).unwrap();
        log.sync().unwrap();
        if index % 50 == 0 {
            let snapshot = LogSnapshot { index, term: 1, membership: members(), data: Bytes::new() };
            log.compact(&snapshot).unwrap();
            while log.maintain(0, 1 << 20).unwrap().more {}
        }
    }
    let bytes: usize = storage.files().values().map(Vec::len).sum();
    assert!(bytes < 100_000, "{bytes} bytes for 50 entries");
    drop(log);
    assert_eq!(open(&storage).last_index(), 2_999);
}

#[test]
fn entries_are_limited_by_bytes_and_at_least_one() {
    let (_, mut log) = new_group(1);
    log.append((2..10).map(|index| entry(index, 1)).collect(), None).unwrap();
    assert_eq!(log.entries(2..10, 0).unwrap(), [entry(2, 1)]);
    assert_eq!(log.entries(2..10, 12).unwrap(), [entry(2, 1), entry(3, 1)]);
    assert_eq!(log.entries(3..5, u64::MAX).unwrap(), [entry(3, 1), entry(4, 1)]);
}

/// A crash at any call leaves a prefix of the appended entries, and a ballot that is not newer than them.
#[test]
fn crash_leaves_a_prefix_of_the_calls() {
    for seed in seeds(2_000, 20_000) {
        let mut random = Random::new(seed);
        let (storage, mut log) = new_group(seed);
        let mut states = vec![(all(&log), log.ballot())];
        let mut synced = 0;
        for round in 0..random.below(30) {
            let first = log.last_index() + 1 - random.below(3).min(log.last_index() - 1);
            let entries = (first..first + random.below(3)).map(|index| entry(index, round + 2)).collect();
            let change =
                random.one_in(2).then(|| ballot(round + 2, random.below(first).max(log.ballot().committed)));
            log.append(entries, change).unwrap();
            states.push((all(&log), log.ballot()));
            if random.one_in(3) {
                log.sync().unwrap();
                synced = states.len() - 1;
            }
        }
        drop(log);
        storage.crash();
        let log = open(&storage);
        let left = all(&log);
        // A call with several entries may be torn after some of them.
        let possible = states[synced..].windows(2).any(|pair| {
            let torn = &pair[1].0;
            left == pair[0].0 || (left.len() <= torn.len() && left == torn[..left.len()])
        });
        let last = states.last().unwrap();
        assert!(possible || left == last.0, "seed {seed}: {left:?}");
        let not_older = states[synced].1.term <= log.ballot().term && log.ballot().term <= last.1.term;
        assert!(not_older && log.ballot().committed <= log.last_index(), "seed {seed}: {:?}", log.ballot());
        assert_eq!(
            log.journal().live().count(),
            left.len(),
            "seed {seed}: records that nothing settles remain"
        );
    }
}

#[test]
fn damaged_log_is_refused_and_says_what_to_do() {
    let (storage, mut log) = new_group(1);
    log.append((2..50).map(|index| entry(index, 1)).collect(), Some(ballot(1, 4))).unwrap();
    log.sync().unwrap();
    // The mark behind them states that they were durable.
    log.append(vec![entry(50, 1)], None).unwrap();
    log.sync().unwrap();
    drop(log);
    let mut files = storage.files();
    let segment = files.get_mut("0000000001.segment").unwrap();
    segment[8192 + 600] ^= 1;
    let damaged = MemoryStorage::with_files(1, files.clone());
    JournalLog::open(damaged.clone(), options()).map(drop).unwrap_err();
    assert_eq!(damaged.files(), files, "a repaired log would be accepted the next time");
    let refused = JournalLog::open(damaged, options()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged(_)), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("next generation") && text.contains("segment 1"), "{text}");
}

#[test]
fn full_disk_is_an_error_and_keeps_what_was_there() {
    let (storage, mut log) = new_group(1);
    log.append(vec![entry(2, 1)], None).unwrap();
    log.sync().unwrap();
    storage.set_capacity(Some(0));
    let refused = (3..5_000).find_map(|index| log.append(vec![entry(index, 1)], None).err());
    assert!(matches!(refused, Some(JournalError::Full { .. })), "{refused:?}");
    storage.set_capacity(None);
    drop(log);
    let log = open(&storage);
    assert_eq!(all(&log)[0], entry(2, 1));

    storage.inject(StorageCall::Sync, 0, Fault::Error, true);
    let mut log = log;
    log.append(vec![entry(log.last_index() + 1, 2)], None).unwrap();
    assert!(matches!(log.sync(), Err(JournalError::Io { .. })), "nothing was confirmed");
}
