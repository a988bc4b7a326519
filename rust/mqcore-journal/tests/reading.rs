//! Records that were located stay readable, whatever the journal does until they are read.

use std::collections::BTreeMap;

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::reading::LocatedRecords;
use mqcore_journal::storage::{Fault, FileStorage, MemoryStorage, Storage, StorageCall};

fn options() -> Options {
    Options { segment_bytes: 4096, ..Options::default() }
}

fn payload(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(8)
}

/// Puts `0..count`, all durable but the last ten, which are not even written.
fn filled<S: Storage>(storage: S, count: u64) -> Journal<S> {
    let (mut journal, _) = Journal::open(storage, options(), &mut |_, _| {}).unwrap();
    for sequence in 0..count {
        if sequence == count - 10 {
            journal.write().unwrap();
            journal.sync().unwrap();
        }
        journal.put(sequence, 0, &[&payload(sequence)]).unwrap();
    }
    journal
}

fn read<S: Storage>(located: &LocatedRecords<S>) -> Vec<(u64, Result<Vec<u8>, JournalError>)> {
    let mut seen = Vec::new();
    located.read(&mut |sequence, payload| seen.push((sequence, payload.map(<[u8]>::to_vec))));
    seen
}

fn expected(sequences: &[u64]) -> Vec<(u64, Result<Vec<u8>, JournalError>)> {
    sequences.iter().map(|&sequence| (sequence, Ok(payload(sequence)))).collect()
}

/// Locates, lets housekeeping move and remove everything, and reads only then.
fn outlives_housekeeping<S: Storage + Clone>(storage: S) {
    let mut journal = filled(storage, 500);
    let wanted: Vec<u64> = (0..500).rev().step_by(7).chain(0..500).collect();
    let located = journal.locate(&wanted);
    let before = journal.stats().segments.len();
    // One in fifty survives, and is moved; then nothing does.
    for keep in [50, 1000] {
        let settled: Vec<u64> = (0..500).filter(|sequence| sequence % keep != 1).collect();
        journal.settle(&settled).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
        for _ in 0..100 {
            if !journal.maintain(0, 1 << 20).unwrap().more {
                break;
            }
        }
    }
    let after = journal.stats().segments.len();
    assert!(before > 5 && after < before / 2, "{before} segments before, {after} after");
    assert_eq!(read(&located), expected(&wanted));
    let gone = journal.locate(&[7]);
    assert_eq!(read(&gone), [(7, Err(JournalError::NotLive(7)))]);
}

#[test]
fn housekeeping_between_locating_and_reading_takes_nothing_away() {
    outlives_housekeeping(MemoryStorage::new(3));
    let path = std::env::temp_dir().join(format!("mqcore-reading-{}", std::process::id()));
    outlives_housekeeping(FileStorage::open(&path).unwrap());
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn writes_between_locating_and_reading_do_not_affect_the_read() {
    let mut journal = filled(MemoryStorage::new(4), 60);
    let wanted: Vec<u64> = (0..60).collect();
    let located = journal.locate(&wanted);
    journal.write().unwrap();
    for sequence in 60..400 {
        journal.put(sequence, 0, &[&payload(sequence)]).unwrap();
    }
    journal.write().unwrap();
    journal.sync().unwrap();
    assert_eq!(read(&located), expected(&wanted));
}

#[test]
fn a_damaged_record_affects_no_other_record() {
    let storage = MemoryStorage::new(5);
    let journal = filled(storage.clone(), 40);
    journal.close().unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = storage.files();
    // The journal is opened whole, and the disk changes a byte of number 11 behind its back.
    let needle = payload(11);
    let (name, at) = files
        .iter()
        .find_map(|(name, bytes)| Some((name.clone(), bytes.windows(64).position(|part| part == needle)?)))
        .unwrap();
    let storage = MemoryStorage::with_files(6, files.clone());
    let (journal, _) = Journal::open(storage.clone(), options(), &mut |_, _| {}).unwrap();
    files.get_mut(&name).unwrap()[at] ^= 1;
    let file = storage.open(&name).unwrap();
    storage.write_at(&file, at as u64, &files[&name][at..=at]).unwrap();
    let seen = read(&journal.locate(&(0..40).collect::<Vec<_>>()));
    let lost: Vec<u64> =
        seen.iter().filter(|(_, read)| read.is_err()).map(|(sequence, _)| *sequence).collect();
    assert_eq!(lost, [11]);
    assert!(matches!(seen[11].1, Err(JournalError::Damaged { .. })));
}

#[test]
fn a_disk_that_refuses_is_an_answer_for_each_record() {
    let storage = MemoryStorage::new(7);
    let journal = filled(storage.clone(), 30);
    let located = journal.locate(&(0..30).collect::<Vec<_>>());
    // The first request fails, and then that for one record alone.
    storage.inject(StorageCall::Read, 0, Fault::Error, false);
    storage.inject(StorageCall::Read, 3, Fault::Error, false);
    let seen = read(&located);
    assert_eq!(seen.len(), 30);
    let lost = seen.iter().filter(|(_, read)| matches!(read, Err(JournalError::Io { .. }))).count();
    assert_eq!(lost, 1, "only what was refused alone is lost");
}

#[test]
fn records_are_located_again_when_there_are_file_descriptors() {
    let storage = MemoryStorage::new(8);
    filled(storage.clone(), 200).close().unwrap();
    let (mut journal, _) = Journal::open(storage.clone(), options(), &mut |_, _| {}).unwrap();
    assert!(journal.stats().segments.len() > 3);
    let wanted: Vec<u64> = (0..200).collect();
    // One file can be opened before no descriptor is left.
    storage.inject(StorageCall::Open, 1, Fault::Descriptors, true);
    let mut located = journal.locate(&wanted);
    let postponed = located.take_postponed().expect("files of several segments are not open");
    assert!(located.take_postponed().is_none());
    let mut seen = read(&located);
    assert!(!seen.is_empty() && seen.len() < 200, "{}", seen.len());
    let missing = read(&postponed);
    assert_eq!(seen.len() + missing.len(), 200);
    assert!(missing.iter().all(|(_, read)| matches!(read, Err(JournalError::Full { .. }))));
    assert_eq!(read(&journal.locate_again(&postponed)).len(), missing.len());
    // Readers of settled records must not miss them.
    journal.settle(&[150]).unwrap();
    journal.write().unwrap();
    storage.clear_faults();
    let mut located = journal.locate_again(&postponed);
    assert!(located.take_postponed().is_none());
    seen.extend(read(&located));
    seen.sort_by_key(|(sequence, _)| *sequence);
    assert_eq!(seen, expected(&wanted));
}

#[test]
fn a_valid_record_of_another_length_is_not_the_expected_one() {
    let disks = [b"written last".as_slice(), b"older"].map(|payload| {
        let disk = MemoryStorage::new(1);
        let (mut journal, _) =
            Journal::open(disk.clone(), Options { identity: 77, ..options() }, &mut |_, _| {}).unwrap();
        journal.put(0, 1, &[payload]).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
        (disk, journal)
    });
    let [(disk, journal), (other, _)] = disks;
    assert_eq!(journal.read(0).unwrap(), b"written last");
    // The disk loses the last write of a block and returns what the journal had there before.
    for (name, bytes) in other.files() {
        disk.write_at(&disk.open(&name).unwrap(), 0, &bytes).unwrap();
    }
    assert!(matches!(journal.read(0), Err(JournalError::Damaged { .. })), "{:?}", journal.read(0));
}
