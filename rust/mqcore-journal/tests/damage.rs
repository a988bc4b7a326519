//! Every byte of a small journal flipped, every prefix cut, files lost and swapped: never a panic, never an invented
//! record, and the report names what is lost.

use crate::world;

use std::collections::BTreeMap;

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::{DamageCause, RecordLoss, RecoveryReport};
use mqcore_journal::storage::{MemoryStorage, Storage};

use world::{World, definitions, small};

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

const FIRST: &str = "0000000001.segment";

/// The files of a journal, what it holds, and every payload that was ever put.
pub(crate) struct Sample {
    pub(crate) files: Files,
    pub(crate) world: World,
    put: BTreeMap<u64, Vec<u8>>,
}

fn payload(sequence: u64) -> Vec<u8> {
    format!("<message {sequence:04} {}>", "x".repeat(sequence as usize % 50 + 60)).into_bytes()
}

/// Three segments with every kind of record; the last one ends with a batch of its own.
pub(crate) fn sample(close: bool) -> Sample {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    let mut put = BTreeMap::new();
    for sequence in 1..=66 {
        journal.put(sequence, 5, &[&payload(sequence)]).unwrap();
        put.insert(sequence, payload(sequence));
        if sequence % 3 == 0 {
            journal.settle(&[sequence - 2]).unwrap();
            journal.touch(sequence, format!("touch {sequence}").as_bytes()).unwrap();
        }
        if sequence % 10 == 0 {
            journal.define(b"queue", format!("definition {sequence}").as_bytes()).unwrap();
            journal.note(sequence, b"noted").unwrap();
        }
        if sequence % 4 == 0 {
            journal.write().unwrap();
            journal.sync().unwrap();
        }
    }
    let definitions = BTreeMap::from([(b"queue".to_vec(), b"definition 60".to_vec())]);
    let world = World::of(&journal, &definitions);
    if close {
        journal.close().unwrap();
    } else {
        journal.write().unwrap();
        journal.sync().unwrap();
    }
    let files = disk.files();
    assert_eq!(segments(&files).count(), 3);
    Sample { files, world, put }
}

/// The segment files.
pub(crate) fn segments(files: &Files) -> impl Iterator<Item = (&String, &Vec<u8>)> {
    files.iter().filter(|(name, _)| name.ends_with(".segment"))
}

/// Whether a byte is between the copies of a header or behind them, where nothing is ever written.
pub(crate) fn is_padding(at: usize) -> bool {
    (64..4096).contains(&at) || (4160..8192).contains(&at)
}

pub(crate) type Opened = (Journal<MemoryStorage>, World, RecoveryReport);

pub(crate) fn open(files: Files) -> Result<Opened, JournalError> {
    open_on(MemoryStorage::with_files(2, files))
}

fn open_on(disk: MemoryStorage) -> Result<Opened, JournalError> {
    let (journal, recovered) = Journal::open(disk, small(), &mut |_, _| {})?;
    let world = World::of(&journal, &definitions(&recovered));
    Ok((journal, world, recovered.report))
}

fn number(name: &str) -> u32 {
    name.split('.').next().unwrap().parse().unwrap()
}

/// The position of a payload.
fn place(files: &Files, payload: &[u8]) -> (u32, u64) {
    files
        .iter()
        .find_map(|(name, bytes)| {
            let at = bytes.windows(payload.len()).position(|window| window == payload)?;
            Some((number(name), at as u64))
        })
        .expect("every payload stands somewhere")
}

/// Whether the report says that this byte of a segment is lost or was cut.
fn explains(report: &RecoveryReport, segment: u32, byte: u64) -> bool {
    let inside =
        |offset: u32, bytes: u32| (u64::from(offset)..u64::from(offset) + u64::from(bytes)).contains(&byte);
    report.damaged.iter().filter(|damage| damage.segment == segment).any(|damage| {
        matches!(damage.cause, DamageCause::Shortened { length, .. } if byte >= length)
            || damage.parts.iter().any(|part| inside(part.offset, part.bytes))
    }) || report.torn.iter().any(|torn| torn.segment == segment && byte >= u64::from(torn.offset))
        || report.missing.iter().any(|missing| missing.segment == segment)
}

/// Checks the journal that is recovered from a sample's damaged files.
pub(crate) fn check(sample: &Sample, damaged: &Files, world: &World, report: &RecoveryReport, what: &str) {
    for (sequence, (queue, found, touch)) in &world.live {
        assert_eq!(Some(found), sample.put.get(sequence), "{what}: an invented record {sequence}");
        assert_eq!(*queue, 5, "{what}");
        let touched = touch.as_ref().is_none_or(|touch| touch == format!("touch {sequence}").as_bytes());
        assert!(touched, "{what}: an invented touch of {sequence}");
        if !sample.world.live.contains_key(sequence) {
            assert!(report.is_alarming() || !report.torn.is_empty(), "{what}: {sequence} rose in silence");
        }
    }
    for (sequence, (_, payload, touch)) in &sample.world.live {
        let Some(found) = world.live.get(sequence) else {
            let (segment, byte) = place(&sample.files, payload);
            assert!(explains(report, segment, byte), "{what}: {sequence} was lost in silence: {report}");
            continue;
        };
        if found.2 != *touch {
            assert!(report.is_alarming() || !report.torn.is_empty(), "{what}: a touch was lost in silence");
        }
    }
    if *world != sample.world {
        assert!(report.is_alarming() || !report.torn.is_empty(), "{what}: silence about {damaged:?}");
    }
}

#[test]
fn a_whole_journal_opens_without_a_finding() {
    for close in [false, true] {
        let sample = sample(close);
        let (_, world, report) = open(sample.files).unwrap();
        assert_eq!(world, sample.world);
        assert!(!report.is_alarming() && report.torn.is_empty(), "{report}");
    }
}

/// After `close` the marks vouch for everything, so a flipped byte is damage wherever it is.
#[test]
fn a_flipped_byte_anywhere_costs_one_record_and_is_named() {
    let sample = sample(true);
    for (name, bytes) in segments(&sample.files) {
        let segment = number(name);
        let used = bytes.len() - bytes.iter().rev().take_while(|&&byte| byte == 0).count();
        for at in (0..bytes.len()).filter(|&at| !is_padding(at) || at % 97 == 0) {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
            let what = format!("byte {at} of {name}");
            let (journal, world, report) = open(files.clone()).unwrap();
            check(&sample, &files, &world, &report, &what);
            let lost = sample.world.live.keys().filter(|sequence| !world.live.contains_key(sequence)).count();
            assert!(lost <= 1, "{what}: {lost} records");
            if at < used && world != sample.world {
                let damage = &report.damaged[0];
                assert_eq!(
                    (damage.segment, damage.lost),
                    (segment, RecordLoss::Exactly(1)),
                    "{what}: {report}"
                );
                let part = damage.parts[0];
                assert!((part.offset..part.offset + part.bytes).contains(&(at as u32)), "{what}: {report}");
                let (from, to) = part.sequences.expect("marks bound what is lost");
                assert!(to - from <= 1, "{what}: {report}");
                for gone in sample.world.live.keys().filter(|sequence| !world.live.contains_key(sequence)) {
                    assert!((from..to).contains(gone), "{what}: {report}");
                }
            }
            if at < used && !is_padding(at) {
                assert!(report.is_alarming() || report.torn.len() == 1, "{what}: not noticed");
            }
            if at % 61 == 0 {
                heals(journal, &world, &report, &what);
            }
        }
    }
}

/// Housekeeping empties a damaged segment and sets it aside; after that there is nothing to report but the file.
fn heals(mut journal: Journal<MemoryStorage>, world: &World, report: &RecoveryReport, what: &str) {
    let mut aside = Vec::new();
    for _ in 0..100 {
        let done = journal.maintain(0, 500).unwrap();
        assert!(done.lost.is_empty(), "{what}: lost what was just shown");
        aside.extend(done.quarantined);
        if !done.more {
            break;
        }
    }
    let damaged: Vec<u32> = report.damaged.iter().map(|damage| damage.segment).collect();
    assert_eq!(aside, damaged, "{what}");
    let disk = journal.storage().clone();
    for segment in &damaged {
        assert!(disk.files().contains_key(&format!("{segment:010}.quarantined")), "{what}");
    }
    drop(journal);
    disk.crash();
    let (_, again, report) = open_on(disk).unwrap();
    assert_eq!(&again, world, "{what}");
    assert!(!report.is_alarming(), "{what}: {report}");
    assert_eq!(report.quarantined, damaged.len() as u64, "{what}");
}

/// Housekeeping finds it when it copies what is left in the segment.
#[test]
fn damage_that_the_disk_makes_while_the_journal_is_open_is_reported_at_once_and_at_the_next_opening() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..=66 {
        journal.put(sequence, 5, &[&payload(sequence)]).unwrap();
        journal.write().unwrap();
    }
    journal.settle(&(1..=60).filter(|sequence| sequence % 8 != 0).collect::<Vec<_>>()).unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    let (segment, at) = place(&disk.files(), &payload(8));
    assert_eq!(segment, 1);
    let file = disk.open(FIRST).unwrap();
    disk.write_at(&file, at + 5, b"#").unwrap();
    disk.sync_data(&file).unwrap();
    let (mut damaged, mut lost) = (Vec::new(), Vec::new());
    loop {
        let done = journal.maintain(0, 500).unwrap();
        damaged.extend(done.damaged);
        lost.extend(done.lost);
        assert!(done.quarantined.is_empty(), "the next opening could not report it");
        if !done.more {
            break;
        }
    }
    assert_eq!((damaged, lost), (vec![1], vec![8]));
    let live: Vec<u64> = journal.live().collect();
    assert!(live.contains(&16) && !live.contains(&8));
    drop(journal);
    disk.crash();
    let (journal, world, report) = open_on(disk.clone()).unwrap();
    assert_eq!(journal.live().collect::<Vec<_>>(), live);
    let [damage] = report.damaged.as_slice() else { panic!("{report}") };
    assert_eq!((damage.segment, damage.lost), (1, RecordLoss::Exactly(1)), "{report}");
    heals(journal, &world, &report, "reported");
}

#[test]
fn a_flipped_byte_in_a_batch_without_a_mark_cuts_no_more_than_that_batch() {
    let sample = sample(false);
    let (name, bytes) = segments(&sample.files).last().unwrap();
    for at in (0..bytes.len()).filter(|&at| !is_padding(at)) {
        let mut files = sample.files.clone();
        files.get_mut(name).unwrap()[at] ^= 0x10;
        let what = format!("byte {at} of {name}");
        let (_, world, report) = open(files.clone()).unwrap();
        check(&sample, &files, &world, &report, &what);
        let lost = sample.world.live.keys().filter(|sequence| !world.live.contains_key(sequence)).count();
        assert!(lost <= 4, "{what}: {report}");
    }
}

#[test]
fn a_cut_file_is_noticed_wherever_it_is_cut() {
    for sample in [sample(true), sample(false)] {
        for (name, bytes) in segments(&sample.files) {
            for length in (0..bytes.len()).filter(|&length| !is_padding(length) || length % 97 == 0) {
                let mut files = sample.files.clone();
                files.get_mut(name).unwrap().truncate(length);
                let what = format!("{name} cut to {length}");
                let (_, world, report) = open(files.clone()).unwrap();
                assert!(report.is_alarming(), "{what}: not noticed");
                // A file without a header is explained as a whole.
                if length >= 64 {
                    check(&sample, &files, &world, &report, &what);
                }
            }
        }
    }
}

#[test]
fn a_lost_file_is_missed() {
    let sample = sample(true);
    for (name, _) in segments(&sample.files) {
        let mut files = sample.files.clone();
        files.remove(name);
        let (_, world, report) = open(files.clone()).unwrap();
        assert_eq!(report.missing.len(), 1, "{name}: {report}");
        assert_eq!(report.missing[0].segment, number(name));
        check(&sample, &files, &world, &report, name);
    }
}

#[test]
fn swapped_doubled_and_zeroed_parts_are_found() {
    let sample = sample(true);
    let names: Vec<&String> = segments(&sample.files).map(|(name, _)| name).collect();
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let mut files = sample.files.clone();
        files.insert(names[one].clone(), sample.files[names[other]].clone());
        files.insert(names[other].clone(), sample.files[names[one]].clone());
        let (_, world, report) = open(files).unwrap();
        assert_eq!(report.damaged.len(), 2, "{report}");
        assert!(report.damaged.iter().all(|damage| damage.cause == DamageCause::Misplaced), "{report}");
        assert!(world.live.len() < sample.world.live.len());
    }
    for name in names {
        for page in 0..sample.files[name].len() / 512 {
            for source in [0, 16, 18] {
                let mut files = sample.files.clone();
                let bytes = files.get_mut(name).unwrap();
                let copy = if source == 0 { vec![0; 512] } else { bytes[source * 512..][..512].to_vec() };
                if bytes[page * 512..][..512] == copy {
                    continue;
                }
                bytes[page * 512..][..512].copy_from_slice(&copy);
                let what = format!("page {page} of {name}, from {source}");
                let (_, world, report) = open(files.clone()).unwrap();
                check(&sample, &files, &world, &report, &what);
            }
        }
    }
}

#[test]
fn a_file_of_another_journal_is_not_used() {
    let sample = sample(true);
    let disk = MemoryStorage::new(3);
    let other = Options { identity: 78, ..small() };
    let (mut journal, _) = Journal::open(disk.clone(), other, &mut |_, _| {}).unwrap();
    journal.put(1000, 1, &[b"from elsewhere"]).unwrap();
    journal.close().unwrap();
    let mut files = sample.files.clone();
    files.insert("0000000002.segment".to_owned(), disk.files().into_values().next().unwrap());
    let (_, world, report) = open(files).unwrap();
    assert!(!world.live.contains_key(&1000));
    assert_eq!(report.damaged[0].cause, DamageCause::Misplaced);
}

#[test]
fn a_newer_version_and_another_shard_are_refused_untouched() {
    let sample = sample(true);
    let mut files = sample.files.clone();
    for at in [0, 4096] {
        let copy = &mut files.get_mut("0000000003.segment").unwrap()[at..at + 64];
        copy[8] = 3;
        let sum = crc32fast::hash(&copy[..60]);
        copy[60..].copy_from_slice(&sum.to_le_bytes());
    }
    let disk = MemoryStorage::with_files(1, files.clone());
    let refused = Journal::open(disk.clone(), small(), &mut |_, _| {}).map(drop);
    assert!(matches!(refused, Err(JournalError::Version { found: 3, known: 2, .. })), "{refused:?}");
    assert_eq!(disk.files(), files);

    let disk = MemoryStorage::with_files(1, sample.files.clone());
    let refused = Journal::open(disk.clone(), Options { shard: 9, ..small() }, &mut |_, _| {}).map(drop);
    assert!(matches!(refused, Err(JournalError::Shard { found: 0, expected: 9, .. })), "{refused:?}");
    assert_eq!(disk.files(), sample.files);
}

#[test]
fn a_report_describes_lost_records() {
    let sample = sample(true);
    let (_, at) = place(&sample.files, &payload(8));
    let mut files = sample.files.clone();
    files.get_mut("0000000001.segment").unwrap()[at as usize + 5] ^= 1;
    let (_, _, report) = open(files).unwrap();
    let words = report.to_string();
    assert!(words.contains("segment 1: checksum mismatch; 1 records are lost"), "{words}");
    assert!(words.contains("(messages with numbers from 8 to 8)"), "{words}");
}
