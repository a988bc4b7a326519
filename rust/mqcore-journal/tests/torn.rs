//! A batch of each kind of record, torn at each byte as a power failure leaves it: the journal opens without an alarm, and
//! has everything from before the batch and a prefix of the batch.

use std::collections::BTreeMap;

use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;
use mqcore_testkit::by_depth;

use crate::damage::{Files, open};
use crate::world::{Asked, World, small};

fn carry_out(journal: &mut Journal<MemoryStorage>, asked: &Asked) {
    match asked {
        Asked::Put(sequence, queue, payload) => journal.put(*sequence, *queue, &[payload]).unwrap(),
        Asked::Settle(sequences) => journal.settle(sequences).unwrap(),
        Asked::Touch(sequence, touch) => journal.touch(*sequence, touch).unwrap(),
        Asked::Define(key, value) => journal.define(key, value).unwrap(),
        Asked::Undefine(key) => journal.undefine(key).unwrap(),
        Asked::Note(number) => assert_eq!(journal.note(7, b"noted").unwrap(), *number),
    }
}

/// The bytes of a message, all different from zero.
fn payload(sequence: u64) -> Vec<u8> {
    (0..sequence as usize * 13 % 300).map(|at| 1 + (at % 250) as u8).collect()
}

fn commit(journal: &mut Journal<MemoryStorage>) {
    journal.write().unwrap();
    journal.sync().unwrap();
}

fn every_tear(what: &str, batch: &[Asked]) {
    let disk = MemoryStorage::new(1);
    let options = Options { segment_bytes: 96 * 1024, ..small() };
    let (mut journal, _) = Journal::open(disk.clone(), options, &mut |_, _| {}).unwrap();
    let mut world = World::default();
    let begin = (1..=20)
        .map(|sequence| Asked::Put(sequence, 5, payload(sequence)))
        .chain((0..6).map(|number| Asked::Define(vec![b'a' + number], b"before".to_vec())))
        .chain([Asked::Touch(3, b"touched".to_vec())]);
    for asked in begin {
        carry_out(&mut journal, &asked);
        world.take(&asked);
    }
    commit(&mut journal);
    let before = disk.files();
    let mut worlds = vec![world.clone()];
    for asked in batch {
        carry_out(&mut journal, asked);
        world.take(asked);
        worlds.push(world.clone());
    }
    commit(&mut journal);
    let after = disk.files();
    let changed: Vec<_> = after.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
    let [name] = changed.as_slice() else { panic!("{what}: one file changes, not {changed:?}") };
    let (old, new) = (&before[*name], &after[*name]);
    assert_eq!(old.len(), new.len(), "{what}: segments have their length from the start");
    let start = (0..new.len()).find(|&at| old[at] != new[at]).unwrap();
    let end = 1 + (0..new.len()).rfind(|&at| old[at] != new[at]).unwrap();
    let mut least = 0;
    for cut in (start..end).step_by(by_depth(7, 1)).chain([end]) {
        let torn = [&new[..cut], &old[cut..]].concat();
        let mut files: Files = BTreeMap::clone(&after);
        files.insert((*name).clone(), torn);
        let what = format!("{what}, torn at byte {cut} of {start}..{end}");
        let (_, found, report) = open(files).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!report.is_alarming(), "{what}: {report}");
        let prefix = worlds.iter().rposition(|world| *world == found);
        let prefix = prefix.unwrap_or_else(|| panic!("{what}: neither before the batch nor a prefix of it"));
        assert!(prefix >= least, "{what}: less than with fewer bytes");
        least = prefix;
    }
    assert_eq!(least, batch.len(), "{what}: the whole batch is there when all its bytes are");
}

#[test]
fn puts() {
    let batch: Vec<_> = (21..50).map(|sequence| Asked::Put(sequence, 5, payload(sequence))).collect();
    every_tear("puts", &batch);
}

#[test]
fn settlements() {
    let batch: Vec<_> = (1..10).map(|number| Asked::Settle(vec![2 * number - 1, 2 * number])).collect();
    every_tear("settlements", &batch);
}

#[test]
fn touches() {
    let batch: Vec<_> = (1..20).map(|sequence| Asked::Touch(sequence, payload(sequence))).collect();
    every_tear("touches", &batch);
}

#[test]
fn definitions() {
    let batch: Vec<_> = (0..20_u8)
        .map(|number| Asked::Define(vec![b'a' + number], payload(20 + u64::from(number))))
        .collect();
    every_tear("definitions", &batch);
}

#[test]
fn removed_definitions() {
    let batch: Vec<_> = (0..6).map(|number| Asked::Undefine(vec![b'a' + number])).collect();
    every_tear("removed definitions", &batch);
}

#[test]
fn notes() {
    let batch: Vec<_> = (0..20).map(Asked::Note).collect();
    every_tear("notes", &batch);
}

#[test]
fn all_kinds() {
    let batch: Vec<_> = (21..33_u64)
        .flat_map(|number| {
            [
                Asked::Put(number, 5, payload(number)),
                Asked::Settle(vec![number - 20]),
                Asked::Touch(number, payload(number)),
                Asked::Define(b"key".to_vec(), payload(number)),
                Asked::Note(number - 21),
                Asked::Undefine(b"key".to_vec()),
            ]
        })
        .collect();
    every_tear("all kinds", &batch);
}
