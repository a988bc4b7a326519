//! Lost sectors, small files and names: no single one of them costs a record, and what is lost is reported.

use crate::world;

use std::collections::BTreeMap;

use mqcore_journal::identity::{JournalIdentity, identify};
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::{CatalogDamage, DamageCause, RecordLoss, RecoveryReport};
use mqcore_journal::storage::MemoryStorage;

use world::small;

type Files = BTreeMap<String, Vec<u8>>;

const FIRST: &str = "0000000001.segment";

/// The files of a journal after a kill: `messages` in batches of this size, all confirmed.
fn killed(messages: u64, batch: u64) -> Files {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..=messages {
        journal.put(sequence, 5, &[&[7; 50]]).unwrap();
        if sequence % batch == 0 || sequence == messages {
            journal.write().unwrap();
            journal.sync().unwrap();
        }
    }
    disk.files()
}

fn names(files: &Files) -> Vec<String> {
    files.keys().filter(|name| name.ends_with(".segment")).cloned().collect()
}

/// Opens twice, because opening must keep what it found. Returns the live numbers and the first report.
fn open(files: &Files, what: &str) -> (Vec<u64>, RecoveryReport) {
    let disk = MemoryStorage::with_files(2, files.clone());
    let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    let live: Vec<u64> = journal.live().collect();
    drop(journal);
    disk.crash();
    let (journal, _) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
    assert_eq!(journal.live().collect::<Vec<_>>(), live, "{what}");
    (live, recovered.report)
}

fn all(messages: u64) -> Vec<u64> {
    (1..=messages).collect()
}

#[test]
fn damaged_sector_of_the_header_loses_nothing_and_is_reported() {
    let whole = killed(20, 20);
    assert_eq!(names(&whole), [FIRST]);
    for (from, to, byte) in [(0, 512, 0), (0, 4096, 0), (4096, 8192, 0), (0, 512, 0xa5), (0, 4096, 0x5a)] {
        let mut files = whole.clone();
        files.get_mut(FIRST).unwrap()[from..to].fill(byte);
        let what = format!("bytes {from} to {to} are {byte}");
        let (live, report) = open(&files, &what);
        assert_eq!(live, all(20), "{what}: {report}");
        assert!(report.is_alarming(), "{what}");
        assert_eq!(report.damaged[0].lost, RecordLoss::Exactly(0), "{what}: {report}");
    }
}

/// The caller's copy of the identity is enough, and wins against files of other journals.
#[test]
fn expected_identity_replaces_all_headers_and_the_catalog() {
    let known = Options { expected_identity: Some(small().identity), identity: 5, ..small() };
    let other = MemoryStorage::new(4);
    Journal::open(other.clone(), Options { identity: 78, ..small() }, &mut |_, _| {}).unwrap();
    for (has_foreign, has_catalog) in [(false, false), (true, true)] {
        let mut files = killed(200, 10);
        for name in names(&files) {
            files.get_mut(&name).unwrap()[..8192].fill(0);
        }
        if !has_catalog {
            files.remove("catalog");
        }
        if has_foreign {
            for segment in 20..25 {
                files.insert(format!("{segment:010}.segment"), other.files()[FIRST].clone());
            }
        }
        let disk = MemoryStorage::with_files(2, files);
        let told = identify(&disk, known.expected_identity).unwrap();
        let expected = if has_catalog { JournalIdentity::Known(77) } else { JournalIdentity::Unreadable };
        assert_eq!(told, expected);
        for round in 0..2 {
            let (journal, recovered) = Journal::open(disk.clone(), known.clone(), &mut |_, _| {}).unwrap();
            assert_eq!(journal.identity(), 77);
            assert_eq!(journal.live().collect::<Vec<_>>(), all(200), "{round}: {}", recovered.report);
            assert!(round > 0 || recovered.report.is_alarming());
        }
    }
}

#[test]
fn segments_without_a_file_are_absent_even_if_an_empty_or_damaged_catalog_is_left() {
    let mut files = killed(20, 20);
    assert_eq!(
        identify(&MemoryStorage::with_files(1, files.clone()), None).unwrap(),
        JournalIdentity::Known(77)
    );
    files.remove(FIRST);
    assert_eq!(
        identify(&MemoryStorage::with_files(1, files.clone()), None).unwrap(),
        JournalIdentity::Known(77)
    );
    files.get_mut("catalog").unwrap().fill(0);
    assert_eq!(identify(&MemoryStorage::with_files(1, files), None).unwrap(), JournalIdentity::Absent);
}

#[test]
fn both_header_copies_lost_leave_every_record_readable() {
    let whole = killed(200, 10);
    assert!(names(&whole).len() > 2);
    for victims in [names(&whole), names(&whole).split_off(names(&whole).len() - 1)] {
        let mut files = whole.clone();
        for name in &victims {
            files.get_mut(name).unwrap()[..8192].fill(0);
        }
        let (live, report) = open(&files, "both copies");
        assert_eq!(live, all(200), "{report}");
        assert_eq!(report.damaged.len(), victims.len(), "{report}");
    }
}

#[test]
fn truncated_or_zeroed_only_segment_is_reported() {
    let whole = killed(20, 20);
    let length = whole[FIRST].len();
    for (kept, zeros) in [(0, 0), (64, 0), (128, 0), (4160, 0), (8192, 0), (0, length)] {
        let mut files = whole.clone();
        let bytes = files.get_mut(FIRST).unwrap();
        bytes.truncate(kept);
        bytes.resize(kept + zeros, 0);
        let what = format!("{kept} bytes and {zeros} zeros are left");
        let (live, report) = open(&files, &what);
        assert!(live.is_empty(), "{what}");
        assert!(report.is_alarming(), "{what}: {report}");
        let damage = &report.damaged[0];
        assert!(matches!(damage.lost, RecordLoss::AtLeast(_)), "{what}: {report}");
        if zeros == 0 {
            let (length, capacity) = (kept as u64, length as u64);
            assert_eq!(damage.cause, DamageCause::Shortened { length, capacity }, "{what}");
        }
    }
}

#[test]
fn lost_first_sector_of_every_segment_loses_nothing() {
    let mut files = killed(200, 10);
    for name in names(&files) {
        files.get_mut(&name).unwrap()[..512].fill(0);
    }
    let (live, report) = open(&files, "all first sectors");
    assert_eq!(live, all(200));
    assert!(report.is_alarming());
    // Even without the catalog, the second copies identify the journal.
    files.remove("catalog");
    assert_eq!(open(&files, "no catalog either").0, all(200));
}

#[test]
fn records_after_a_damaged_head_are_kept_and_the_loss_is_counted() {
    let mut files = killed(45, 45);
    assert_eq!(names(&files), [FIRST], "one batch, which no later mark confirms");
    files.get_mut(FIRST).unwrap()[8192..8704].fill(0);
    let (live, report) = open(&files, "the first sector of records");
    assert!(live.len() > 35 && live.ends_with(&[44, 45]), "{live:?}");
    assert!(report.torn.is_empty(), "{report}");
    assert!(matches!(report.damaged[0].lost, RecordLoss::AtLeast(1..)), "{report}");
    let (from, to) = report.damaged[0].parts[0].sequences.expect("the next record bounds it");
    assert!(from <= 1 && to == live[0], "{report}");
}

#[test]
fn torn_first_batch_does_not_count_as_damage() {
    let mut files = killed(45, 45);
    let bytes = files.get_mut(FIRST).unwrap();
    let last = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    bytes[last / 512 * 512..].fill(0);
    let (live, report) = open(&files, "the last sector is torn");
    assert!(live.len() > 30 && live == all(live.len() as u64), "{live:?}");
    assert!(!report.is_alarming(), "{report}");
}

#[test]
fn lost_catalog_costs_no_record_and_is_written_again() {
    let whole = killed(200, 10);
    let blocks = whole["catalog"].len() / 512;
    for block in 0..=blocks {
        let mut files = whole.clone();
        let expected = if block == blocks {
            files.remove("catalog");
            CatalogDamage::Lost
        } else {
            files.get_mut("catalog").unwrap()[block * 512..][..512].fill(0xff);
            CatalogDamage::Copy
        };
        let (live, report) = open(&files, "the catalog");
        assert_eq!(live, all(200), "{report}");
        // A block behind the content is not part of it.
        assert!(report.catalog.is_none_or(|found| found == expected), "{report}");
        assert!(report.catalog.is_some() || (block > 0 && block != blocks), "block {block}: {report}");
        let disk = MemoryStorage::with_files(3, files);
        Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap().0.close().unwrap();
        let (_, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
        assert!(!recovered.report.is_alarming(), "{}", recovered.report);
    }
}

#[test]
fn missing_only_segment_is_reported() {
    let mut files = killed(20, 20);
    files.remove(FIRST);
    let (live, report) = open(&files, "no segment");
    assert!(live.is_empty());
    assert_eq!(report.missing.iter().map(|missing| missing.segment).collect::<Vec<_>>(), [1], "{report}");
}
