//! How long notes are kept, and how a reader follows the records of a segment.

use mqcore_journal::following::{self, FollowedRecord, RecordWalk};
use mqcore_journal::journal::Journal;

use mqcore_journal::options::Options;
use mqcore_journal::record::Note;
use mqcore_journal::recovery::TornTail;
use mqcore_journal::storage::{MemoryStorage, Storage};

use crate::world::small;

fn commit(journal: &mut Journal<MemoryStorage>) {
    journal.write().unwrap();
    journal.sync().unwrap();
}

/// Everything that a reader finds in a segment from its first record on, and where the records end.
fn walked(bytes: &[u8], segment: u32) -> (Vec<FollowedRecord<'_>>, u32) {
    let identity = following::identity("segment", bytes).unwrap().expect("the header is readable");
    assert_eq!(identity.segment, segment);
    let start = identity.records_start;
    let mut walk = RecordWalk::new(identity, start, &bytes[start as usize..]);
    (walk.by_ref().collect(), walk.offset())
}

/// The records that are shown in detail.
fn known(mut records: Vec<FollowedRecord<'_>>) -> Vec<FollowedRecord<'_>> {
    records.retain(|record| *record != FollowedRecord::Other);
    records
}

#[test]
fn changed_retention_applies_to_the_notes_that_exist() {
    let unlimited = Options { retain_notes_ms: None, retain_notes_bytes: None, ..small() };
    let (mut journal, _) = Journal::open(MemoryStorage::new(1), unlimited, &mut |_, _| {}).unwrap();
    for time_ms in 0..200 {
        journal.note(time_ms, &[7; 500]).unwrap();
        commit(&mut journal);
    }
    while journal.maintain(1_000_000, 1 << 20).unwrap().more {}
    assert_eq!(journal.stats().notes, 200, "without a limit all notes stay");
    journal.retain_notes(None, Some(30_000));
    while journal.maintain(1_000_000, 1 << 20).unwrap().more {}
    let kept = journal.stats().notes;
    assert!((20..=90).contains(&kept), "the size limit holds: {kept}");
    journal.retain_notes(Some(1000), None);
    while journal.maintain(1_000_000, 1 << 20).unwrap().more {}
    let kept = journal.stats().notes;
    assert!(kept < 25, "only the segment that is being written may keep old notes: {kept}");
}

#[test]
fn a_walk_shows_each_record_of_a_segment_and_ends_where_it_is_closed() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    let first = journal.stats().segments[0].number;
    let number = journal.note(11, b"one").unwrap();
    journal.note(12, b"two").unwrap();
    journal.put(0, 1, &[b"a put"]).unwrap();
    commit(&mut journal);
    let files = disk.files();
    let (open, end) = walked(&files[&following::segment_name(first)], first);
    let mut expected = vec![
        FollowedRecord::Began { next_note: number, others: Vec::new() },
        FollowedRecord::Note(Note { number, time_ms: 11, payload: b"one" }),
        FollowedRecord::Note(Note { number: number + 1, time_ms: 12, payload: b"two" }),
    ];
    assert_eq!(known(open), expected);

    journal.seal_notes(1000).unwrap();
    commit(&mut journal);
    let files = disk.files();
    let (closed, sealed_end) = walked(&files[&following::segment_name(first)], first);
    expected.push(FollowedRecord::Closed);
    assert_eq!(known(closed), expected);
    assert!(sealed_end > end);
    let second = journal.stats().segments.last().unwrap().number;
    let (next, _) = walked(&files[&following::segment_name(second)], second);
    let began = FollowedRecord::Began { next_note: number + 2, others: vec![(first, sealed_end)] };
    assert_eq!(known(next), [began]);
}

#[test]
fn the_report_counts_every_byte_of_a_torn_end() {
    for torn in [1, 2, 10, 300] {
        let disk = MemoryStorage::new(1);
        let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        let segment = journal.stats().segments[0].number;
        journal.note(1, b"noted").unwrap();
        commit(&mut journal);
        drop(journal);
        let name = following::segment_name(segment);
        let (_, end) = walked(&disk.files()[&name], segment);
        let file = disk.open(&name).unwrap();
        disk.write_at(&file, end.into(), &vec![0xAA; torn as usize]).unwrap();
        let (_, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
        let expected = TornTail { segment, offset: end, bytes: torn, records: 0 };
        assert_eq!(recovered.report.torn, [expected]);
    }
}
