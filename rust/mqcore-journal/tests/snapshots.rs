//! A snapshot copied at any later moment opens in the state of the journal at the snapshot.

use crate::world;

use std::collections::BTreeMap;

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::snapshot::Snapshot;
use mqcore_journal::storage::MemoryStorage;
use mqcore_testkit::Random;
use world::{World, definitions, small};

fn work(journal: &mut Journal<MemoryStorage>, chance: &mut Random, steps: u64) {
    for _ in 0..steps {
        let sequence = journal.next_sequence();
        let outcome = match chance.below(10) {
            0..=3 => journal.put(sequence, 1, &[&chance.bytes(400)]),
            4..=5 => {
                let settled: Vec<u64> = (0..chance.below(6)).map(|_| chance.below(sequence + 1)).collect();
                journal.settle(&settled)
            }
            6 => journal.touch(chance.below(sequence + 1), &chance.bytes(20)),
            7 => journal.define(&[chance.below(5) as u8], &chance.bytes(30)),
            8 => journal.write().and_then(|()| journal.sync()),
            _ => journal.maintain(1, chance.below(4000) as usize).map(drop),
        };
        assert!(matches!(outcome, Ok(()) | Err(JournalError::Full { .. })), "{outcome:?}");
    }
}

/// The files that a copy has: the beginnings that count, and zeros behind them.
fn copied(disk: &MemoryStorage, snapshot: &Snapshot) -> MemoryStorage {
    let files = disk.files();
    let copy = snapshot.segments.iter().map(|segment| {
        let mut bytes = files[&segment.name].clone();
        bytes.truncate(segment.bytes as usize);
        assert_eq!(bytes.len() as u64, segment.bytes, "{} is all there", segment.name);
        bytes.resize(segment.length as usize, 0);
        (segment.name.clone(), bytes)
    });
    MemoryStorage::with_files(1, copy.collect::<BTreeMap<_, _>>())
}

#[test]
fn a_snapshot_of_a_journal_that_has_not_changed_is_the_same() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 0..3 {
        journal.put(sequence, 1, &[b"a message"]).unwrap();
        let first = journal.snapshot().unwrap();
        let written = disk.files();
        for _ in 0..3 {
            assert_eq!(journal.snapshot().unwrap(), first);
        }
        assert_eq!(disk.files(), written);
    }
}

#[test]
fn a_snapshot_copied_later_opens_as_the_journal_was() {
    let mut full = 0;
    let seeds = mqcore_testkit::seeds(100, 1_000);
    for seed in seeds.clone() {
        let mut chance = Random::new(seed);
        let disk = MemoryStorage::new(seed);
        let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        let steps = chance.below(400);
        work(&mut journal, &mut chance, steps);
        if chance.below(3) == 0 {
            drop(journal);
            if chance.below(2) == 0 {
                disk.crash();
            }
            journal = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap().0;
            work(&mut journal, &mut chance, 20);
        }
        let on_full_disk = chance.below(4) == 0;
        if on_full_disk {
            // Nothing waits for space: what does is not part of a snapshot.
            journal.write().unwrap();
            disk.set_capacity(Some(disk.files().values().map(|bytes| bytes.len() as u64).sum()));
            let sequence = journal.next_sequence();
            full += u64::from((0..40).any(|extra| journal.put(sequence + extra, 1, &[&[7; 300]]).is_err()));
        }
        let snapshot = journal.snapshot().unwrap();
        journal.pin(true);
        let seen = World::of(&journal, &BTreeMap::new());
        let early = copied(&disk, &snapshot);
        disk.set_capacity(None);
        work(&mut journal, &mut chance, 300);
        let late = copied(&disk, &snapshot);
        assert_eq!(early.files(), late.files(), "seed {seed}: what was named has changed");

        let (copy, recovered) = Journal::open(late, small(), &mut |_, _| {}).unwrap();
        assert!(!recovered.report.is_alarming(), "seed {seed}: {}", recovered.report);
        assert!(recovered.report.torn.is_empty() || on_full_disk, "seed {seed}: {}", recovered.report);
        assert_eq!(recovered.report.live, snapshot.live, "seed {seed}");
        let world = World::of(&copy, &definitions(&recovered));
        assert_eq!(world.live, seen.live, "seed {seed}");

        journal.pin(false);
        let before = disk.files().len();
        while journal.maintain(1, 100_000).unwrap().more {}
        assert!(disk.files().len() <= before + 1, "housekeeping goes on");
    }
    assert!(full >= seeds.count() as u64 / 50, "some were made on a full disk: {full}");
}
