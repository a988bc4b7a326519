//! An error of the disk at every single call: no success after a failed sync, nothing confirmed is lost, reads continue.

use crate::world;

use std::collections::BTreeMap;

use mqcore_journal::error::{JournalError, Shortage};
use mqcore_journal::identity::{JournalIdentity, identify};
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::{DamageCause, RecordLoss, RecoveryReport};
use mqcore_journal::stats::Health;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};

use world::{World, definitions, small};

type Confirmed = BTreeMap<u64, Vec<u8>>;

/// Publishes and settles in batches until something fails; what was synced is confirmed.
struct Load {
    journal: Journal<MemoryStorage>,
    confirmed: Confirmed,
    settled: Vec<u64>,
    refused: u64,
}

impl Load {
    fn batch(&mut self, number: u64) -> Result<(), JournalError> {
        let mut batch = Vec::new();
        for sequence in number * 4..number * 4 + 4 {
            let payload = sequence.to_le_bytes().repeat(12);
            match self.journal.put(sequence, 1, &[&payload]) {
                Ok(()) => batch.push((sequence, payload)),
                Err(JournalError::Full { .. }) => self.refused += 1,
                Err(error) => return Err(error),
            }
        }
        let done: Vec<u64> = self.confirmed.keys().copied().take(3).collect();
        let settled = self.journal.settle(&done);
        if let Err(error) = &settled
            && !matches!(error, JournalError::Full { .. })
        {
            return Err(error.clone());
        }
        match self.journal.write() {
            // Stays buffered, so its fate is open: neither confirmed nor refused.
            Err(JournalError::Full { .. }) => return Ok(()),
            outcome => outcome?,
        }
        self.journal.sync()?;
        self.confirmed.extend(batch);
        if settled.is_ok() {
            self.confirmed.retain(|sequence, _| !done.contains(sequence));
            self.settled.extend(done);
        }
        match self.journal.maintain(0, 1000) {
            Ok(_) | Err(JournalError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn fault_at(call: StorageCall, after: u64, fault: Fault, lasting: bool) -> bool {
    let disk = MemoryStorage::new(after);
    let (journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    disk.inject(call, after, fault, lasting);
    let mut load = Load { journal, confirmed: Confirmed::new(), settled: Vec::new(), refused: 0 };
    let failure = (0..80).find_map(|number| load.batch(number).err());
    let struck = disk.fault_count() > 0;
    let what = format!("{fault:?} at {call:?} {after}, lasting {lasting}: {failure:?}");
    if let Some(error) = failure {
        assert!(struck, "{what}");
        assert_eq!(load.journal.health(), Health::Failed, "{what}");
        disk.clear_faults();
        for _ in 0..3 {
            assert_eq!(load.journal.sync(), Err(error.clone()), "{what}");
            assert_eq!(load.journal.write(), Err(error.clone()), "{what}");
        }
    }
    // A settlement that was asked for and not confirmed may have happened.
    let asked: Vec<u64> = load.confirmed.keys().copied().take(3).collect();
    for (sequence, payload) in &load.confirmed {
        let found = load.journal.read(*sequence);
        assert!(found.as_ref() == Ok(payload) || asked.contains(sequence), "{what}: {found:?}");
    }
    drop(load.journal);
    disk.crash();
    let (journal, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
    assert!(!recovered.report.is_alarming(), "{what}: {}", recovered.report);
    for (sequence, payload) in &load.confirmed {
        let found = journal.read(*sequence);
        let gone = found == Err(JournalError::NotLive(*sequence)) && asked.contains(sequence);
        assert!(found.as_ref() == Ok(payload) || gone, "{what}: {found:?}");
    }
    for sequence in load.settled {
        assert_eq!(journal.read(sequence), Err(JournalError::NotLive(sequence)), "{what}");
    }
    struck
}

#[test]
fn an_error_at_any_call_never_becomes_a_confirmation() {
    for call in [StorageCall::Change, StorageCall::Write, StorageCall::Sync, StorageCall::Create] {
        for fault in [Fault::Error, Fault::Full, Fault::Short] {
            for lasting in [false, true] {
                if fault == Fault::Short
                    && (lasting || call == StorageCall::Sync || call == StorageCall::Create)
                {
                    continue;
                }
                let struck = (0..300).filter(|&after| fault_at(call, after, fault, lasting)).count();
                assert!(struck >= 4, "{fault:?} at {call:?} struck {struck} times");
            }
        }
    }
}

#[test]
fn an_error_while_reading_fails_that_read_only() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    journal.put(1, 1, &[b"one"]).unwrap();
    journal.write().unwrap();
    disk.inject(StorageCall::Read, 0, Fault::Error, false);
    assert!(matches!(journal.read(1), Err(JournalError::Io { doing: "reading", .. })));
    assert_eq!(journal.read(1).as_deref(), Ok(b"one".as_slice()));
    journal.sync().unwrap();
    assert_eq!(journal.health(), Health::Healthy);
}

#[test]
fn an_unreadable_segment_alarms_and_is_left_alone() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..100 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    }
    journal.close().unwrap();
    disk.inject(StorageCall::Read, 0, Fault::Error, false);
    let (mut journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    assert!(recovered.report.is_alarming());
    assert!(recovered.report.live > 20);
    while journal.maintain(0, 1 << 20).unwrap().more {}
    journal.close().unwrap();
    // The error went away: everything is there again.
    let (_, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
    assert_eq!(recovered.report.live, 99);
}

/// A journal of three segments whose last one has settlements, touches and an end that no mark covers.
fn with_open_segment() -> MemoryStorage {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    journal.define(b"queue", b"first").unwrap();
    for sequence in 1..90 {
        journal.put(sequence, 1, &[&[sequence as u8; 100]]).unwrap();
        if sequence % 3 == 0 {
            journal.settle(&[sequence - 1]).unwrap();
            journal.touch(sequence, b"touched").unwrap();
        }
        journal.write().unwrap();
        journal.sync().unwrap();
    }
    journal.define(b"queue", b"last").unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    drop(journal);
    disk
}

/// Options of an opening that knows the identity of the journal. Another journal would be noticed at the next opening.
fn known(now_ms: u64) -> Options {
    Options { expected_identity: Some(small().identity), identity: 5, now_ms, ..small() }
}

fn open(disk: &MemoryStorage) -> (Journal<MemoryStorage>, World, RecoveryReport) {
    let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    let world = World::of(&journal, &definitions(&recovered));
    (journal, world, recovered.report)
}

/// The disk refuses a read at any place of an opening, once or until the next one: the records of the segment that it did not
/// read are there at the next opening, even if the segment was the last one, whose end no other segment lists.
#[test]
fn segments_that_one_opening_could_not_read_are_complete_at_the_next() {
    let files = with_open_segment().files();
    let before = open(&MemoryStorage::with_files(2, files.clone())).1;
    let mut struck = 0;
    for after in 0..40 {
        for (lasting, openings) in [(false, 1), (true, 1), (true, 3)] {
            let what = format!("read {after}, lasting {lasting}, {openings} openings");
            let disk = MemoryStorage::with_files(3, files.clone());
            let mut added = Vec::new();
            for _ in 0..openings {
                disk.inject(StorageCall::Read, after, Fault::Error, lasting);
                let opened = Journal::open(disk.clone(), known(0), &mut |_, _| {});
                let (mut journal, recovered) = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
                let is_struck = disk.fault_count() > 0;
                let is_alarming = recovered.report.is_alarming();
                struck += u64::from(is_alarming);
                assert!(is_struck || !is_alarming, "{what}: {}", recovered.report);
                let sequence = journal.next_sequence();
                journal.put(sequence, 1, &[b"put meanwhile"]).unwrap();
                added.push(sequence);
                journal.write().unwrap();
                journal.sync().unwrap();
                disk.clear_faults();
                while journal.maintain(0, 1 << 20).unwrap().more {}
            }
            let (mut journal, mut world, report) = open(&disk);
            assert!(!report.is_alarming(), "{what}: {report}");
            for sequence in added {
                assert_eq!(
                    world.live.remove(&sequence).map(|put| put.1),
                    Some(b"put meanwhile".to_vec()),
                    "{what}"
                );
            }
            assert_eq!(world, before, "{what}");
            while journal.maintain(0, 1 << 20).unwrap().more {}
            drop(journal);
            let (_, _, report) = open(&disk);
            assert!(!report.is_alarming(), "{what}: {report}");
        }
    }
    assert!(struck > 20, "{struck}");
}

/// Nothing tells which numbers the journal has used: neither a file nor the size of the files.
#[test]
fn an_opening_that_can_read_no_file_keeps_the_identity_and_uses_no_number_again() {
    for now_ms in [0, 1_800_000_000_000] {
        let disk = MemoryStorage::new(1);
        let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        let first = 40_000_000;
        for sequence in first..first + 50 {
            journal.put(sequence, 1, &[b"confirmed"]).unwrap();
            journal.note(1, b"noted").unwrap();
        }
        journal.write().unwrap();
        journal.sync().unwrap();
        drop(journal);
        let mut expected = open(&disk).1;
        let (mut number, mut note) = (first + 50, 50);
        for round in 0..3 {
            let what = format!("at {now_ms}, round {round}");
            disk.inject(StorageCall::Read, 0, Fault::Error, true);
            let (mut journal, recovered) =
                Journal::open(disk.clone(), known(now_ms + round), &mut |_, _| {}).unwrap();
            assert_eq!((journal.identity(), recovered.report.live), (77, 0), "{what}");
            assert!(recovered.report.damaged.iter().all(|damage| {
                matches!(damage.cause, DamageCause::Unreadable(_)) && damage.lost == RecordLoss::AtLeast(0)
            }));
            assert_eq!(recovered.report.damaged.len() as u64, round + 2, "{what}: {}", recovered.report);
            let sequence = journal.next_sequence();
            assert!(sequence >= number, "{what}: {sequence}");
            journal.put(sequence, 1, &[b"put meanwhile"]).unwrap();
            expected.live.insert(sequence, (1, b"put meanwhile".to_vec(), None));
            let noted = journal.note(2, b"noted meanwhile").unwrap();
            assert!(noted >= note, "{what}: {noted}");
            assert!(noted < 1 << 42, "{what}: a sequence in the history cannot hold the note {noted}");
            expected.notes.insert(noted);
            (number, note) = (sequence + 1, noted + 1);
            journal.close().unwrap();
            disk.clear_faults();
        }
        let (_, world, report) = open(&disk);
        assert!(!report.is_alarming(), "{now_ms}: {report}");
        assert_eq!(world, expected, "{now_ms}");
    }
}

#[test]
fn an_opening_that_can_read_no_file_of_an_unknown_journal_changes_nothing() {
    let files = with_open_segment().files();
    let before = open(&MemoryStorage::with_files(2, files.clone())).1;
    let disk = MemoryStorage::with_files(3, files.clone());
    for call in [StorageCall::Read, StorageCall::Open] {
        disk.inject(call, 0, Fault::Error, true);
        let refused = Journal::open(disk.clone(), small(), &mut |_, _| {}).map(drop);
        assert!(matches!(refused, Err(JournalError::Unidentified { .. })), "{refused:?}");
        assert_eq!(identify(&disk, None).unwrap(), JournalIdentity::Unreadable);
        disk.clear_faults();
        assert_eq!(disk.files(), files);
    }
    assert_eq!(identify(&disk, None).unwrap(), JournalIdentity::Known(77));
    let (_, world, report) = open(&disk);
    assert!(!report.is_alarming(), "{report}");
    assert_eq!(world, before);
}

#[test]
fn missing_file_descriptors_at_any_call_of_an_opening_do_not_count_as_damage() {
    let files = with_open_segment().files();
    let before = open(&MemoryStorage::with_files(2, files.clone())).1;
    let mut refused = 0;
    for after in 0..12 {
        let disk = MemoryStorage::with_files(3, files.clone());
        disk.inject(StorageCall::Open, after, Fault::Descriptors, false);
        match Journal::open(disk.clone(), small(), &mut |_, _| {}) {
            Ok((_, recovered)) => assert!(!recovered.report.is_alarming(), "{after}: {}", recovered.report),
            Err(_) => refused += 1,
        }
        disk.clear_faults();
        let (_, world, report) = open(&disk);
        assert!(!report.is_alarming(), "{after}: {report}");
        assert_eq!(world, before, "{after}");
    }
    assert!(refused >= 6, "{refused}");
}

/// Fills several segments, settles everything, and returns the journal with dead segments.
fn with_dead_segments(disk: &MemoryStorage) -> Journal<MemoryStorage> {
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..200 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    }
    journal.settle(&(1..190).collect::<Vec<u64>>()).unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    journal
}

/// A journal of several segments without the first one, whose removal the last one records, and which the second one lists.
fn without_first_segment() -> MemoryStorage {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..200 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
    }
    let first = journal.stats().segments[0].live;
    journal.settle(&(1..=first).collect::<Vec<u64>>()).unwrap();
    while journal.maintain(1_000, 1 << 20).unwrap().more {}
    assert!(journal.stats().segments.len() > 2);
    assert!(journal.stats().segments[0].number == 2);
    disk
}

/// If the disk does not read the segment that records a removal, an older one still lists what was removed.
#[test]
fn removed_segment_is_not_missing_if_the_latest_list_of_segments_cannot_be_read() {
    let files = without_first_segment().files();
    let before = open(&MemoryStorage::with_files(2, files.clone())).1;
    let mut struck = 0;
    for lasting in [false, true] {
        for after in 0..40 {
            let disk = MemoryStorage::with_files(2, files.clone());
            disk.inject(StorageCall::Read, after, Fault::Error, lasting);
            let (_, recovered) = Journal::open(disk.clone(), known(0), &mut |_, _| {}).unwrap();
            let what = format!("read {after}, lasting: {lasting}");
            assert_eq!(recovered.report.missing, [], "{what}");
            struck += disk.fault_count();
            disk.clear_faults();
            let (_, world, report) = open(&disk);
            assert!(!report.is_alarming(), "{what}: {report}");
            assert_eq!(world, before, "{what}");
        }
    }
    assert!(struck > 10, "{struck}");
}

#[test]
fn failed_removal_is_reported_and_retried_and_the_journal_stays_healthy() {
    let disk = MemoryStorage::new(1);
    let mut journal = with_dead_segments(&disk);
    let before = disk.files().len();
    disk.inject(StorageCall::Remove, 0, Fault::Error, true);
    let mut deferred = 0;
    loop {
        let done = journal.maintain(1_000, 1 << 20).unwrap();
        assert_eq!((done.removed, done.quarantined.len()), (0, 0));
        deferred += done.deferred.len();
        if !done.more {
            break;
        }
    }
    assert!(deferred > 1, "each dead segment is tried once");
    assert_eq!(journal.health(), Health::Healthy);
    journal.put(1_000, 1, &[b"confirmed meanwhile"]).unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    assert!(journal.maintain(2_000, 1 << 20).unwrap().deferred.is_empty(), "not before the time has passed");
    // A crash in this state loses nothing and raises no alarm.
    let copy = MemoryStorage::with_files(2, disk.files());
    let (reopened, recovered) = Journal::open(copy, small(), &mut |_, _| {}).unwrap();
    assert!(!recovered.report.is_alarming(), "{}", recovered.report);
    assert_eq!(reopened.live().collect::<Vec<_>>(), journal.live().collect::<Vec<_>>());
    disk.clear_faults();
    let mut removed = 0;
    loop {
        let done = journal.maintain(20_000, 1 << 20).unwrap();
        removed += done.removed;
        if !done.more {
            break;
        }
    }
    assert!(removed > 1 && disk.files().len() < before, "{removed} removed");
}

/// A journal of several segments, of which the first one has few live records.
fn with_sparse_segment(disk: &MemoryStorage) -> Journal<MemoryStorage> {
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..100 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    }
    journal.settle(&(3..29).collect::<Vec<u64>>()).unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    journal
}

#[test]
fn error_while_housekeeping_reads_a_segment_is_reported_and_the_read_is_repeated() {
    let disk = MemoryStorage::new(1);
    let mut journal = with_sparse_segment(&disk);
    let first = journal.stats().segments[0].number;
    disk.inject(StorageCall::Read, 0, Fault::Error, false);
    let done = journal.maintain(0, 1 << 20).unwrap();
    assert_eq!(disk.fault_count(), 1);
    assert!(matches!(&done.deferred[..], [JournalError::Io { doing: "reading", .. }]), "{done:?}");
    assert_eq!((done.damaged, journal.stats().quarantined), (vec![], 0));
    disk.clear_faults();
    journal.snapshot().unwrap();
    while journal.maintain(20_000, 1 << 20).unwrap().more {}
    assert!(journal.stats().segments[0].number > first, "it was emptied and removed");
    assert_eq!(journal.read(1).as_deref(), Ok([1; 100].as_slice()));
}

#[test]
fn segment_that_housekeeping_repeatedly_fails_to_read_is_reported_as_damaged_and_left_alone() {
    let disk = MemoryStorage::new(1);
    let mut journal = with_sparse_segment(&disk);
    let first = journal.stats().segments[0].number;
    disk.inject(StorageCall::Read, 0, Fault::Error, true);
    let (mut deferred, mut damaged) = (0, Vec::new());
    for round in 0..10 {
        let done = journal.maintain(round * 20_000, 1 << 20).unwrap();
        deferred += done.deferred.len();
        damaged.extend(done.damaged);
    }
    assert_eq!((deferred, damaged), (2, vec![first]));
    assert!(journal.snapshot().is_err(), "a copy would be incomplete");
    disk.clear_faults();
    while journal.maintain(1_000_000, 1 << 20).unwrap().more {}
    assert_eq!(journal.stats().segments[0].number, first);
    journal.close().unwrap();
    let (journal, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
    assert!(!recovered.report.is_alarming(), "{}", recovered.report);
    assert_eq!(journal.live().count(), 73);
}

#[test]
fn missing_file_descriptors_refuse_records_until_there_are_some() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    disk.inject(StorageCall::Create, 0, Fault::Descriptors, true);
    let mut sequence = 1;
    let refused = loop {
        match journal.put(sequence, 1, &[&[1; 100]]) {
            Ok(()) => sequence += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, JournalError::Full { shortage: Shortage::Descriptors, .. }), "{refused:?}");
    assert!(refused.to_string().contains("no file descriptor is left"), "{refused}");
    assert_eq!(journal.health(), Health::Full);
    journal.settle(&[1]).unwrap();
    journal.write().unwrap();
    journal.sync().unwrap();
    assert!(matches!(journal.maintain(0, 1), Err(JournalError::Full { .. })));
    disk.clear_faults();
    journal.maintain(0, 1).unwrap();
    assert_eq!(journal.health(), Health::Healthy);
    journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    journal.close().unwrap();
    let (journal, recovered) = Journal::open(disk, small(), &mut |_, _| {}).unwrap();
    assert!(!recovered.report.is_alarming(), "{}", recovered.report);
    assert_eq!(journal.live().count() as u64, sequence - 1);
}

#[test]
fn missing_file_descriptors_do_not_count_as_damage() {
    let disk = MemoryStorage::new(1);
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 1..200 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    }
    journal.close().unwrap();
    let before = disk.files();
    disk.inject(StorageCall::Open, 1, Fault::Descriptors, true);
    let refused = Journal::open(disk.clone(), small(), &mut |_, _| {}).map(drop);
    assert!(matches!(refused, Err(JournalError::Io { doing: "reading", .. })), "{refused:?}");
    assert_eq!(disk.files(), before);
    disk.clear_faults();
    let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    assert_eq!(recovered.report.live, 199);
    disk.inject(StorageCall::Open, 0, Fault::Descriptors, true);
    assert!(matches!(journal.read(1), Err(JournalError::Full { shortage: Shortage::Descriptors, .. })));
    disk.clear_faults();
    assert_eq!(journal.read(1).as_deref(), Ok([1; 100].as_slice()));
}

#[test]
fn file_of_a_failed_creation_does_not_count_as_damage_if_the_segment_after_it_is_torn_or_lost() {
    let (mut torn, mut lost) = (0, 0);
    for seed in 0..100 {
        let disk = MemoryStorage::new(seed);
        let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        disk.set_capacity(Some(0));
        disk.inject(StorageCall::Remove, 0, Fault::Error, true);
        let mut sequence = 1;
        while journal.put(sequence, 1, &[&[1; 100]]).is_ok() {
            sequence += 1;
        }
        journal.write().unwrap();
        journal.sync().unwrap();
        assert_eq!(disk.files().values().filter(|bytes| bytes.is_empty()).count(), 1, "the failed creation");
        disk.set_capacity(None);
        disk.clear_faults();
        journal.maintain(0, 1).unwrap();
        // A crash often loses all of a few records, and seldom all of many.
        let count = if seed % 2 == 0 { 50 } else { 3 };
        for later in sequence..sequence + count {
            journal.put(later, 1, &[&[1; 100]]).unwrap();
        }
        journal.write().unwrap();
        drop(journal);
        disk.crash();
        let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        assert!(journal.live().count() as u64 >= sequence - 1, "seed {seed}");
        assert!(disk.files().values().all(|bytes| !bytes.is_empty()), "seed {seed}: the empty file remains");
        assert!(!recovered.report.is_alarming(), "seed {seed}: {}", recovered.report);
        torn += usize::from(!recovered.report.torn.is_empty());
        lost += usize::from(journal.live().count() as u64 == sequence - 1);
    }
    assert!(torn > 0, "no crash tore the segment");
    assert!(lost > 0, "no crash lost all records of the segment");
}

#[test]
fn used_segment_that_lost_all_of_its_bytes_is_reported_although_the_next_one_was_created_in_advance() {
    for is_cataloged in [true, false] {
        let disk = MemoryStorage::new(1);
        let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
        let before_roll = loop {
            let files = disk.files();
            journal.put(journal.stats().live, 1, &[&[1; 100]]).unwrap();
            if journal.stats().segments.len() > 1 {
                break files;
            }
        };
        journal.write().unwrap();
        journal.sync().unwrap();
        journal.maintain(0, 1 << 20).unwrap();
        drop(journal);
        let mut files = disk.files();
        let segments: Vec<String> = files.keys().filter(|name| name.ends_with(".segment")).cloned().collect();
        assert_eq!(segments.len(), 3, "the last one was created in advance");
        files.get_mut(&segments[1]).unwrap().clear();
        if !is_cataloged {
            files.insert("catalog".to_owned(), before_roll["catalog"].clone());
        }
        let damaged = MemoryStorage::with_files(1, files);
        let (_, recovered) = Journal::open(damaged, small(), &mut |_, _| {}).unwrap();
        assert!(recovered.report.is_alarming(), "cataloged: {is_cataloged}, {}", recovered.report);
    }
}

/// An archive may have the notes of the journal that was there before.
#[test]
fn notes_of_a_journal_that_replaces_another_follow_from_the_time() {
    let open = |disk: &MemoryStorage, now_ms| {
        let options = Options { replaces_another: true, now_ms, ..small() };
        Journal::open(disk.clone(), options, &mut |_, _| {}).unwrap().0
    };
    for (now_ms, least) in [(0, 1 << 32), (1_800_000_000_000, 1 << 37)] {
        let disk = MemoryStorage::new(1);
        let mut journal = open(&disk, now_ms);
        let noted = journal.note(1, b"noted").unwrap();
        assert!((least..1 << 42).contains(&noted), "{noted}");
        journal.close().unwrap();
        // The next opening continues.
        assert_eq!(open(&disk, now_ms + 1000).note(1, b"noted").unwrap(), noted + 1);
    }
}
