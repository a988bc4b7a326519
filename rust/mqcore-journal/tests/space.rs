//! Space on disk: room for large records, the reserve for settlements, and nothing for records that no longer matter.

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::MemoryStorage;

use crate::world::small;

fn opened() -> (MemoryStorage, Journal<MemoryStorage>) {
    let disk = MemoryStorage::new(1);
    let (journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    (disk, journal)
}

fn commit(journal: &mut Journal<MemoryStorage>) {
    journal.write().unwrap();
    journal.sync().unwrap();
}

#[test]
fn a_large_record_gets_a_segment_that_has_room_for_it() {
    let (_, mut journal) = opened();
    // Housekeeping creates the next segment in advance, which is too small for the record.
    journal.put(0, 1, &[b"small"]).unwrap();
    commit(&mut journal);
    journal.maintain(0, 1 << 20).unwrap();
    journal.put(1, 1, &[&[7; 50_000]]).unwrap();
    let segment = *journal.stats().segments.last().unwrap();
    assert!((50_000..70_000).contains(&segment.file_bytes), "{segment:?}");
}

#[test]
fn settlements_use_the_reserve_from_the_moment_that_the_disk_is_full() {
    let (disk, mut journal) = opened();
    for sequence in 0..2000 {
        journal.put(sequence, 1, &[b"a message"]).unwrap();
    }
    commit(&mut journal);
    disk.set_capacity(Some(disk.files().values().map(|bytes| bytes.len() as u64).sum()));
    // One settlement among them is the first to find that there is no space for another segment.
    let mut settled = 0;
    while journal.health() == Health::Healthy {
        journal.settle(&[settled]).unwrap();
        settled += 1;
    }
    assert!(settled < 2000);
    journal.settle(&[settled]).unwrap();
    assert!(matches!(journal.put(2000, 1, &[b"a message"]), Err(JournalError::Full { .. })));
    assert_eq!(journal.live().next(), Some(settled + 1));
}

#[test]
fn touches_on_a_full_disk_leave_the_reserve_to_settlements() {
    let (disk, mut journal) = opened();
    let mut next = 0;
    while journal.stats().segments.len() < 4 {
        journal.put(next, 1, &[&[1; 100]]).unwrap();
        next += 1;
    }
    commit(&mut journal);
    // Sealed segments are a little shorter than a new one.
    let used: u64 = disk.files().values().map(|bytes| bytes.len() as u64).sum();
    disk.set_capacity(Some(used + 2000));
    while journal.put(next, 1, &[&[1; 100]]).is_ok() {
        next += 1;
    }
    commit(&mut journal);
    let mut settled = 0;
    while journal.health() == Health::Full {
        let batch: Vec<u64> = (settled..next.min(settled + 10)).collect();
        assert!(!batch.is_empty(), "all are settled, and the journal is still full");
        for &sequence in &batch {
            let touched = journal.touch_outside_reserve(sequence, &[2; 13]);
            assert!(matches!(touched, Err(JournalError::Full { .. })), "{touched:?}");
        }
        journal.settle(&batch).unwrap();
        settled += batch.len() as u64;
        commit(&mut journal);
        match journal.maintain(0, 1 << 20) {
            Ok(_) | Err(JournalError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(settled < next, "{settled} of {next}");
    journal.touch_outside_reserve(settled, &[2; 13]).unwrap();
}

#[test]
fn journal_without_room_for_another_segment_still_accepts_what_fits_the_current_one() {
    let (disk, mut journal) = opened();
    journal.put(0, 1, &[b"small"]).unwrap();
    journal.note(1, b"noted").unwrap();
    commit(&mut journal);
    disk.set_capacity(Some(disk.files().values().map(|bytes| bytes.len() as u64).sum()));
    assert!(matches!(journal.seal_notes(2), Err(JournalError::Full { .. })));
    assert_eq!(journal.health(), Health::Healthy);
    journal.put(1, 1, &[b"small"]).unwrap();
    commit(&mut journal);
    assert!(journal.sealed_notes().sealed.is_empty());
    disk.set_capacity(None);
    journal.seal_notes(2).unwrap();
    assert_eq!(journal.sealed_notes().sealed.len(), 1);
}

#[test]
fn settling_or_touching_a_settled_record_writes_nothing() {
    let (_, mut journal) = opened();
    for sequence in 0..10 {
        journal.put(sequence, 1, &[b"a message"]).unwrap();
    }
    journal.settle(&[3, 4]).unwrap();
    let before = journal.stats();
    journal.settle(&[3, 4, 10, 4000]).unwrap();
    journal.touch(4, b"too late").unwrap();
    journal.touch(4000, b"never put").unwrap();
    assert_eq!(journal.stats(), before);
    journal.settle(&[3, 5]).unwrap();
    assert_eq!(journal.stats().live, 7);
}

#[test]
fn housekeeping_forgets_removed_definitions() {
    let (_, mut journal) = opened();
    for number in 0..4000_u32 {
        let key = number.to_le_bytes();
        journal.define(&key, b"a value that takes some bytes").unwrap();
        journal.undefine(&key).unwrap();
        if number % 100 == 0 {
            // A live record in each segment, so that housekeeping has to look for what else to preserve.
            journal.put(number.into(), 1, &[b"a message"]).unwrap();
            commit(&mut journal);
        }
    }
    commit(&mut journal);
    for _ in 0..100 {
        journal.maintain(0, 1 << 20).unwrap();
        commit(&mut journal);
    }
    let stats = journal.stats();
    assert_eq!(stats.live, 40);
    let records: u64 = stats.segments.iter().map(|segment| segment.records).sum();
    assert!(records < 1000, "of 8040: {stats:?}");
}

#[test]
fn a_journal_without_a_byte_for_removals_recovers_when_the_disk_has_space() {
    let (disk, mut journal) = opened();
    let mut next = 0;
    while journal.stats().segments.len() < 300 {
        journal.put(next, 1, &[b"a message"]).unwrap();
        next += 1;
    }
    journal.settle(&(0..next).collect::<Vec<_>>()).unwrap();
    commit(&mut journal);
    // No removal gives space back, so the records of removals use up what the last segment keeps for them.
    disk.set_capacity(Some(0));
    while journal.put(next, 1, &[b"a message"]).is_ok() {
        next += 1;
    }
    let mut before = usize::MAX;
    while journal.stats().segments.len() < before {
        before = journal.stats().segments.len();
        assert!(matches!(journal.maintain(0, 1 << 20), Err(JournalError::Full { .. })));
    }
    assert!(before > 20, "{before} segments: all were removed");
    disk.set_capacity(None);
    journal.maintain(0, 1 << 20).unwrap();
    assert_eq!(journal.health(), Health::Healthy);
    journal.put(next, 1, &[b"a message"]).unwrap();
    commit(&mut journal);
    while journal.maintain(0, 1 << 20).unwrap().more {}
    assert!(journal.stats().segments.len() < 10);
}
