//! Looking at a journal sees what opening it finds, and changes nothing, whatever happened to the files.

use crate::world;
use mqcore_journal::inspection::{Inspection, SegmentState};
use mqcore_journal::journal::Journal;
use mqcore_journal::storage::{MemoryStorage, Storage};
use mqcore_testkit::Random;
use world::small;

/// A journal of several segments, ended in the middle of its work.
fn used(seed: u64) -> MemoryStorage {
    let (disk, mut chance) = (MemoryStorage::new(seed), Random::new(seed));
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 0..60 {
        journal.put(sequence, 1, &[&chance.bytes(200)]).unwrap();
        journal.settle(&[chance.below(sequence + 1)]).unwrap();
        journal.touch(sequence, &chance.bytes(5)).unwrap();
        journal.define(&[chance.below(3) as u8], &chance.bytes(9)).unwrap();
        if chance.below(3) == 0 {
            journal.write().unwrap();
            journal.sync().unwrap();
        }
    }
    disk
}

fn damage(disk: &MemoryStorage, chance: &mut Random) {
    let names = disk.list().unwrap();
    let name = &names[chance.below(names.len() as u64) as usize];
    let file = disk.open(name).unwrap();
    let at = chance.below(disk.length(&file).unwrap());
    let mut byte = [0];
    disk.read_at(&file, at, &mut byte).unwrap();
    disk.write_at(&file, at, &[byte[0] ^ 0x55]).unwrap();
}

#[test]
fn inspection_agrees_with_opening_and_changes_nothing() {
    let mut damaged = 0;
    let seeds = mqcore_testkit::seeds(200, 2_000);
    for seed in seeds.clone() {
        let (disk, mut chance) = (used(seed), Random::new(seed + 1000));
        for _ in 0..chance.below(4) {
            damage(&disk, &mut chance);
        }
        let before = disk.files();
        let inspection = Inspection::new(disk.clone(), small(), &mut |_, _| {}).unwrap();
        let mut seen = Vec::new();
        inspection.each_live(0, &mut |sequence, live| {
            seen.push((sequence, live.map(|live| live.payload.to_vec())))
        });
        for (sequence, payload) in &seen {
            assert_eq!(&inspection.read(*sequence), payload, "seed {seed}");
        }
        assert_eq!(disk.files(), before, "seed {seed}");
        let states: Vec<_> = inspection.segments().iter().map(|segment| segment.state).collect();
        damaged += usize::from(states.contains(&SegmentState::Damaged));

        let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        assert_eq!(inspection.recovered(), &recovered, "seed {seed}");
        let mut opened = Vec::new();
        journal.each_live(0, &mut |sequence, live| {
            opened.push((sequence, live.map(|live| live.payload.to_vec())))
        });
        assert_eq!(seen, opened, "seed {seed}");
    }
    assert!(damaged >= seeds.count() / 10, "damage was among it: {damaged}");
}

#[test]
fn only_the_segment_that_was_written_last_is_open() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 0..60 {
        journal.put(sequence, 1, &[&[7; 1000]]).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
    }
    let written = journal.stats().segments.last().unwrap().number;
    drop(journal);
    let inspection = Inspection::new(disk, small(), &mut |_, _| {}).unwrap();
    let segments = inspection.segments();
    assert!(segments.iter().filter(|segment| segment.state == SegmentState::Sealed).count() >= 4);
    for segment in segments {
        let expected = match segment.stats.number {
            number if number < written => SegmentState::Sealed,
            number if number == written => SegmentState::Open,
            _ => SegmentState::Spare,
        };
        assert_eq!(segment.state, expected, "{segment:?}");
    }
}
