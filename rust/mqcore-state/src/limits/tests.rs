//! Tests of the journal of limits on real files and on a disk that loses what is not synced.

use std::hash::RandomState;
use std::path::Path;
use std::sync::Arc;

use mqcore_journal::storage::{FileStorage, MemoryStorage};
use mqcore_limiter::limiter::{Adjust, EntryProperties, LimiterConfig};
use mqcore_limiter::rule::{Algorithm, ConsumeMode, Rule};
use mqcore_limiter::time::Ttl;
use tempfile::TempDir;

use super::*;

const KEPT: EntryProperties = EntryProperties { bits: 16, kept: true };
const START: Nanos = Nanos(1_800_000_000_000_000_000);

fn store() -> Arc<Limiter> {
    Arc::new(Limiter::new(LimiterConfig::default(), RandomState::new()))
}

fn open(path: &Path, limiter: &Limiter, now: Nanos) -> (LimitJournal<FileStorage>, RestoredLimits) {
    let storage = FileStorage::open(path).unwrap();
    LimitJournal::open(storage, Options::default(), limiter, now, &mut |_| Ok(())).unwrap()
}

fn open_on(
    disk: &MemoryStorage,
    limiter: &Limiter,
    now: Nanos,
) -> (LimitJournal<MemoryStorage>, RestoredLimits) {
    let options = Options { identity: 7, ..Options::default() };
    LimitJournal::open(disk.clone(), options, limiter, now, &mut |_| Ok(())).unwrap()
}

fn seconds(amount: u64) -> Ttl {
    Ttl { unit: 4, amount }
}

fn after(seconds: u64) -> Nanos {
    START.after(seconds * 1_000_000_000)
}

fn quotas(limiter: &Arc<Limiter>, now: Nanos) -> Vec<(Vec<u8>, u64)> {
    let mut listing = limiter.list();
    std::iter::from_fn(|| listing.next(now, false)).map(|one| (one.key.to_vec(), one.quota)).collect()
}

#[test]
fn limits_that_can_be_read_again_are_restored_beside_those_of_the_meantime() {
    let scratch = TempDir::new().unwrap();
    let insert = |key: &[u8], now: Nanos| {
        let limiter = store();
        let (mut journal, restored) = open(scratch.path(), &limiter, now);
        assert_eq!(restored, RestoredLimits::default());
        assert!(limiter.insert(key, 5, KEPT, seconds(600), now));
        journal.save(&limiter, now, false).unwrap();
    };
    insert(b"before", START);
    // A file that cannot be opened to read and write.
    let (segment, aside) = (scratch.path().join("0000000001.segment"), scratch.path().join("aside"));
    std::fs::rename(&segment, &aside).unwrap();
    std::fs::create_dir(&segment).unwrap();
    insert(b"meanwhile", after(1));
    std::fs::remove_dir(&segment).unwrap();
    std::fs::rename(&aside, &segment).unwrap();
    let limiter = store();
    let opened = open(scratch.path(), &limiter, after(2));
    assert_eq!(opened.1, RestoredLimits { entries: 2, expired: 0, unreadable: 0 });
    assert_eq!(quotas(&limiter, after(2)), [(b"before".to_vec(), 5), (b"meanwhile".to_vec(), 5)]);
}

#[test]
fn what_was_saved_comes_back_in_its_order_with_what_is_left_of_its_time() {
    let scratch = TempDir::new().unwrap();
    let limiter = store();
    let (mut journal, nothing) = open(scratch.path(), &limiter, START);
    assert_eq!(nothing, RestoredLimits::default());
    for number in 0..300_u64 {
        let key = number.to_be_bytes();
        assert!(limiter.insert(&key, number, KEPT, seconds(60 + number), START));
    }
    limiter.set(b"buffer", b"value", true, seconds(100), START);
    let rule = Rule { algorithm: Algorithm::Gcra, limit: 10, cost: 4, period: seconds(1000) };
    limiter.consume(b"bucket", &rule, ConsumeMode::Take, KEPT, START).unwrap();
    journal.save(&limiter, after(1), false).unwrap();
    for number in (0..300_u64).rev() {
        limiter.adjust_quota(&number.to_be_bytes(), Adjust::Increase, 1000, after(1));
    }
    limiter.purge(&7_u64.to_be_bytes(), after(1));
    limiter.insert(&7_u64.to_be_bytes(), 77, KEPT, seconds(600), after(1));
    journal.save(&limiter, after(2), false).unwrap();
    // The process is gone; nothing was closed.
    drop(journal);

    let again = store();
    let (journal, restored) = open(scratch.path(), &again, after(30));
    assert_eq!(restored, RestoredLimits { entries: 302, expired: 0, unreadable: 0 });
    assert_eq!(quotas(&again, after(30)), quotas(&limiter, after(30)));
    assert!(again.query(&0_u64.to_be_bytes(), after(59)).is_some());
    assert!(again.query(&0_u64.to_be_bytes(), after(60)).is_none());
    let value = again.get(b"buffer", after(31), |found| found.map(|found| found.value.to_vec()));
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    let peeked = again.consume(b"bucket", &rule, ConsumeMode::Peek, 64, after(100)).unwrap();
    assert_eq!(peeked.remaining, 7);
    drop(journal);

    // An entry that expires while no broker runs is not restored, and leaves the journal.
    let (journal, restored) = open(scratch.path(), &store(), after(160));
    assert_eq!(restored.entries + restored.expired, 302);
    assert!(restored.expired > 100);
    journal.journal.close().unwrap();
    let (journal, again) = open(scratch.path(), &store(), after(160));
    assert_eq!((again.expired, again.entries), (0, restored.entries));
    assert_eq!(journal.places.len() as u64, restored.entries);
}

#[test]
fn a_journal_that_is_closed_during_a_backup_keeps_the_files_of_the_backup() {
    let scratch = TempDir::new().unwrap();
    let limiter = store();
    let (mut journal, _) = open(scratch.path(), &limiter, START);
    journal.snapshot().unwrap();
    let catalog = || std::fs::read(scratch.path().join("catalog")).unwrap();
    let before = catalog();
    limiter.insert(b"key", 1, KEPT, seconds(10), START);
    assert_eq!(journal.save(&limiter, START, true), Ok(1));
    journal.close(true).unwrap();
    assert_eq!(catalog(), before);
    assert_eq!(open(scratch.path(), &store(), START).1.entries, 1);
}

#[test]
fn expired_removed_and_non_persistent_entries_leave_the_journal() {
    let scratch = TempDir::new().unwrap();
    let limiter = store();
    let (mut journal, _) = open(scratch.path(), &limiter, START);
    for number in 0..100_u64 {
        limiter.insert(&number.to_be_bytes(), 1, KEPT, seconds(10), START);
        limiter.insert(&number.to_le_bytes()[..7], 1, 16, seconds(1000), START);
    }
    assert_eq!(journal.save(&limiter, START, false), Ok(100));
    assert_eq!(journal.journal.live().count(), 100);
    limiter.purge(&0_u64.to_be_bytes(), after(1));
    assert_eq!(journal.save(&limiter, after(1), false), Ok(0));
    assert_eq!(journal.journal.live().count(), 99);
    (0..SHARDS).for_each(|shard| while limiter.sweep(shard, after(11), 100) {});
    assert!(journal.is_behind(&limiter));
    assert_eq!(journal.save(&limiter, after(11), false), Ok(0));
    assert_eq!((journal.journal.live().count(), journal.places.len()), (0, 0));
    assert!(!journal.is_behind(&limiter));
}

#[test]
fn many_changes_of_one_counter_are_written_once() {
    let scratch = TempDir::new().unwrap();
    let limiter = store();
    let (mut journal, _) = open(scratch.path(), &limiter, START);
    limiter.insert(b"counter", 0, KEPT, seconds(1000), START);
    for round in 0..200 {
        for _ in 0..100 {
            limiter.adjust_quota(b"counter", Adjust::Increase, 1, START);
        }
        assert_eq!(journal.save(&limiter, after(round), false), Ok(1));
    }
    assert_eq!(journal.journal.live().count(), 1);
    drop(journal);
    let again = store();
    open(scratch.path(), &again, after(300));
    assert_eq!(again.query(b"counter", after(300)).unwrap().quota, 20_000);
}

#[test]
fn entries_that_rarely_change_do_not_hold_the_segments_that_they_were_saved_in() {
    let scratch = TempDir::new().unwrap();
    let open_small = |limiter: &Limiter, now| {
        let storage = FileStorage::open(scratch.path()).unwrap();
        let options = Options { segment_bytes: 12 << 10, ..Options::default() };
        LimitJournal::open(storage, options, limiter, now, &mut |_| Ok(())).unwrap()
    };
    let limiter = store();
    let (mut journal, _) = open_small(&limiter, START);
    limiter.insert(b"busy", 0, KEPT, seconds(6000), START);
    for round in 0..20_u64 {
        limiter.insert(&round.to_be_bytes(), round, KEPT, seconds(6000), START);
        // More than a segment.
        for _ in 0..200 {
            limiter.adjust_quota(b"busy", Adjust::Increase, 1, START);
            journal.write(&limiter, after(round), false).unwrap();
        }
        journal.sync().unwrap();
    }
    let files = std::fs::read_dir(scratch.path()).unwrap();
    let segments = files
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".segment"))
        .count();
    assert!(segments < 10, "21 small entries take {segments} segments");
    drop(journal);
    let again = store();
    open_small(&again, after(61));
    assert_eq!(quotas(&again, after(61)).len(), 21);
    assert_eq!(again.query(b"busy", after(61)).unwrap().quota, 4_000);
}

#[test]
fn without_changes_only_every_sixteenth_round_saves() {
    let scratch = TempDir::new().unwrap();
    let limiter = store();
    let (mut journal, _) = open(scratch.path(), &limiter, START);
    let due: Vec<bool> = (0..2 * QUIET_ROUNDS).map(|_| journal.is_due(&limiter, false)).collect();
    assert_eq!(due.iter().filter(|due| **due).count(), 2, "{due:?}");
    limiter.insert(b"counter", 1, KEPT, seconds(60), START);
    assert!(journal.is_due(&limiter, false), "there is something to save");
    journal.save(&limiter, START, false).unwrap();
    assert!(!journal.is_due(&limiter, false) && journal.is_due(&limiter, true));
    journal.write(&limiter, after(1), false).unwrap();
    assert!(!journal.is_unsynced, "nothing has changed, so nothing needs a sync");
}

/// Nothing else syncs the journal: what a save only writes is lost when the power fails.
#[test]
fn every_save_of_a_change_survives_a_power_failure() {
    for seed in 0..20 {
        let disk = MemoryStorage::new(seed);
        let limiter = store();
        let (mut journal, _) = open_on(&disk, &limiter, START);
        for round in 1..=3 {
            let key = [round as u8];
            limiter.insert(&key, round, KEPT, seconds(600), after(round));
            journal.save(&limiter, after(round), false).unwrap();
        }
        limiter.purge(&[2], after(4));
        journal.save(&limiter, after(4), false).unwrap();
        drop(journal);
        disk.crash();
        let again = store();
        open_on(&disk, &again, after(5));
        assert_eq!(quotas(&again, after(5)), [(vec![1], 1), (vec![3], 3)], "seed {seed}");
    }
}

/// Saves a counter of 5 that expires after a minute, ten seconds after its start.
fn save_counter(directory: &Path) {
    let limiter = store();
    let (mut journal, _) = open(directory, &limiter, START);
    limiter.insert(b"counter", 5, KEPT, seconds(60), START);
    journal.save(&limiter, after(10), false).unwrap();
}

#[test]
fn a_clock_set_back_extends_no_limit() {
    let scratch = TempDir::new().unwrap();
    save_counter(scratch.path());
    let an_hour_ago = START.before(3_600_000_000_000);
    let again = store();
    open(scratch.path(), &again, an_hour_ago);
    let found = again.query(b"counter", an_hour_ago).unwrap();
    assert_eq!(found.deadline, an_hour_ago.after(50_000_000_000));
}

#[test]
fn a_clock_set_back_extends_no_limit_whose_save_a_power_failure_interrupts() {
    let mut kept = 0;
    for seed in 0..100 {
        let disk = MemoryStorage::new(seed);
        let open = |limiter: &Limiter, now| open_on(&disk, limiter, now);
        let limiter = store();
        let (mut journal, _) = open(&limiter, START);
        journal.save(&limiter, START, false).unwrap();
        limiter.insert(b"counter", 5, KEPT, seconds(60), after(10));
        journal.write(&limiter, after(10), false).unwrap();
        drop(journal);
        disk.crash();
        let again = store();
        open(&again, START);
        if let Some(found) = again.query(b"counter", START) {
            kept += 1;
            assert_eq!(found.deadline, after(60), "seed {seed}");
        }
    }
    assert!(kept > 10, "the power failure kept the entry {kept} times");
}

#[test]
fn a_clock_set_back_restores_no_limit_that_had_expired_at_an_earlier_start() {
    for seed in 0..20 {
        let disk = MemoryStorage::new(seed);
        let open = |limiter: &Limiter, now| open_on(&disk, limiter, now);
        let limiter = store();
        let (mut journal, _) = open(&limiter, START);
        limiter.insert(b"counter", 5, KEPT, seconds(60), START);
        journal.save(&limiter, START, false).unwrap();
        drop(journal);
        let (journal, restored) = open(&store(), after(61));
        assert_eq!(restored, RestoredLimits { entries: 0, expired: 1, unreadable: 0 });
        // A crash before anything is saved.
        drop(journal);
        disk.crash();
        let (_, restored) = open(&store(), after(1));
        assert_eq!(restored.entries, 0, "seed {seed}");
    }
}

/// The save that moves the times of entries may reach the disk in part. Each entry is moved once nevertheless.
#[test]
fn a_clock_set_back_shortens_no_limit_whose_new_times_a_power_failure_interrupts() {
    let an_hour_ago = START.before(3_600_000_000_000);
    let later = an_hour_ago.after(2_000_000_000);
    let (mut moved, mut partly) = (0, 0);
    for seed in 0..60 {
        let disk = MemoryStorage::new(seed);
        let limiter = store();
        let (mut journal, _) = open_on(&disk, &limiter, START);
        for key in 0..40_u8 {
            limiter.insert(&[key; 200], 5, KEPT, seconds(60), START);
        }
        journal.save(&limiter, after(10), false).unwrap();
        drop(journal);
        let again = store();
        let (mut journal, restored) = open_on(&disk, &again, an_hour_ago);
        assert_eq!(restored.entries, 40);
        journal.write(&again, an_hour_ago.after(1_000_000_000), false).unwrap();
        drop(journal);
        disk.crash();
        let third = store();
        let (mut journal, restored) = open_on(&disk, &third, later);
        assert_eq!(restored, RestoredLimits { entries: 40, expired: 0, unreadable: 0 }, "seed {seed}");
        let deadlines: Vec<Nanos> =
            (0..40_u8).map(|key| third.query(&[key; 200], later).unwrap().deadline).collect();
        // Without the new time of the journal, the entries have what was left at the last save.
        let (known, unknown) = (an_hour_ago.after(50_000_000_000), later.after(50_000_000_000));
        assert!(
            deadlines.iter().all(|one| *one == known) || deadlines.iter().all(|one| *one == unknown),
            "seed {seed}"
        );
        moved += u32::from(deadlines[0] == known);
        partly += u32::from(!journal.written.set_back.is_empty() && deadlines[0] == known);
        // The next save ends it.
        journal.save(&third, later, false).unwrap();
        assert!(journal.written.set_back.is_empty());
        drop(journal);
        let fourth = store();
        let (_, restored) = open_on(&disk, &fourth, later);
        assert_eq!((restored.entries, quotas(&fourth, later).len()), (40, 40), "seed {seed}");
        assert_eq!(fourth.query(&[0; 200], later).unwrap().deadline, deadlines[0], "seed {seed}");
    }
    assert!(moved > 5 && partly > 5, "{moved} saves reached the disk, {partly} in part");
}

/// The next save states the time of the clock that was set back. From then on nothing else says that the times of entries
/// were moved.
#[test]
fn a_clock_set_back_extends_no_limit_that_is_restored_twice() {
    let scratch = TempDir::new().unwrap();
    save_counter(scratch.path());
    let an_hour_ago = START.before(3_600_000_000_000);
    let again = store();
    let (mut journal, _) = open(scratch.path(), &again, an_hour_ago);
    again.insert(b"other", 1, KEPT, seconds(60), an_hour_ago);
    journal.save(&again, an_hour_ago.after(1_000_000_000), false).unwrap();
    drop(journal);
    let third = store();
    let later = an_hour_ago.after(2_000_000_000);
    let (journal, restored) = open(scratch.path(), &third, later);
    assert_eq!(restored, RestoredLimits { entries: 2, expired: 0, unreadable: 0 });
    assert_eq!(third.query(b"counter", later).unwrap().deadline, an_hour_ago.after(50_000_000_000));
    assert_eq!(journal.places.len(), 2);
}
