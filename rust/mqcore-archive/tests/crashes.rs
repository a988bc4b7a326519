//! Random work on a journal and its archive, random crashes, random faults: whatever was durable is in the journal or in the
//! archive, and in the archive once.
//!
//! Seeds: see the crate `mqcore-testkit`.

use crate::reader;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqcore_archive::archive::{Archive, ArchiveError};
use mqcore_broker::history::Block;
use mqcore_broker::history::reader::each_step;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::{Fault, MemoryStorage, StorageCall};

use mqcore_testkit::Random;
use reader::gaps;

/// A journal and its archive on one disk that can crash.
struct Run {
    chance: Random,
    disk: MemoryStorage,
    journal: Option<Journal<MemoryStorage>>,
    archive: Option<Archive<MemoryStorage>>,
    /// Notes that were durable for certain: what each says.
    base: BTreeMap<u64, u64>,
    /// Notes that were taken since, in order, and how many of them were written.
    since: Vec<(u64, u64)>,
    written: usize,
    /// Content of the next note; unique.
    tag: u64,
    faults: bool,
    rounds: u64,
}

fn options() -> Options {
    Options { segment_bytes: 4096, identity: 77, retain_notes_bytes: None, ..Options::default() }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut chance = Random::new(seed);
        let disk = MemoryStorage::new(chance.number());
        let faults = chance.below(2) == 0;
        let mut run = Self {
            chance,
            disk,
            journal: None,
            archive: None,
            base: BTreeMap::new(),
            since: Vec::new(),
            written: 0,
            tag: 0,
            faults,
            rounds: 0,
        };
        run.reopen();
        run
    }

    fn journal(&mut self) -> &mut Journal<MemoryStorage> {
        self.journal.as_mut().expect("a journal is open between the steps")
    }

    fn clear_faults(&self) {
        self.disk.clear_faults();
        self.disk.set_capacity(None);
    }

    /// Notes that the journal shows: what each says.
    fn noted(&mut self) -> BTreeMap<u64, u64> {
        let journal = self.journal();
        let mut found = BTreeMap::new();
        for segment in journal.stats().segments {
            journal
                .each_note(segment.number, &mut |note| {
                    each_step(note.payload, &mut |step| {
                        found.insert(note.number, step.missing);
                    })
                    .expect("it was written by the broker's own encoder");
                })
                .expect("a sound disk");
        }
        found
    }

    /// Opens both, and checks that nothing durable is lost and nothing is there twice.
    fn reopen(&mut self) {
        drop((self.journal.take(), self.archive.take()));
        if self.faults && self.chance.below(4) == 0 {
            self.disk.inject(StorageCall::Change, self.chance.below(12), Fault::Error, false);
            // Opening may be struck at any of its steps.
            let _ = Journal::open(self.disk.clone(), options(), &mut |_, _| {});
            let _ = Archive::open(self.disk.clone());
            self.clear_faults();
            self.disk.crash();
        }
        self.clear_faults();
        let opened = Journal::open(self.disk.clone(), options(), &mut |_, _| {});
        let (mut journal, recovered) = opened.expect("a healthy disk");
        assert!(!recovered.report.is_alarming(), "a crash is no damage: {}", recovered.report);
        let archive = Archive::open(self.disk.clone()).expect("a healthy disk");
        let archived = archive.archived(0, journal.identity());
        journal.release_notes(archived);
        self.journal = Some(journal);
        let noted = self.noted();
        let found = gaps(&archive);
        assert_eq!(archive.manifest().shards.get(&0).map_or(0, |reach| reach.missing), 0);
        assert!(found.keys().all(|number| *number < archived));
        let mut all = noted.clone();
        all.retain(|number, _| *number >= archived);
        all.extend(&found);
        // The durable notes, and a prefix of the later ones.
        let mut expected = std::mem::take(&mut self.base);
        let mut since = std::mem::take(&mut self.since).into_iter();
        while expected != all {
            let (number, tag) =
                since.next().unwrap_or_else(|| panic!("expected {expected:?}, found {all:?}"));
            expected.insert(number, tag);
        }
        for (number, tag) in noted {
            assert_eq!(all.get(&number), Some(&tag), "the journal and the archive agree on note {number}");
        }
        (self.base, self.written) = (all, 0);
        self.archive = Some(archive);
    }

    fn crash(&mut self) {
        drop((self.journal.take(), self.archive.take()));
        self.disk.crash();
        self.reopen();
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..=34 => {
                self.tag += 1;
                // Of one of three days, now and then, so that a round writes several files.
                let time = Timestamp(self.chance.below(3) * 86_400_000);
                let block = Block::gap(time, self.tag);
                if let Ok(number) = self.journal().note(time.0, &block.bytes) {
                    self.since.push((number, self.tag));
                }
            }
            35..=49 => {
                let sequence = self.journal().next_sequence();
                let payload = vec![7; self.chance.below(900) as usize];
                let _ = self.journal().put(sequence, 0, &[&payload]);
            }
            50..=59 => {
                let next = self.journal().next_sequence();
                let settled: Vec<_> = (0..next).filter(|_| self.chance.below(2) == 0).collect();
                let _ = self.journal().settle(&settled);
            }
            60..=67 => {
                if self.journal().write().is_ok() {
                    self.written = self.since.len();
                }
            }
            68..=75 => {
                if self.journal().sync().is_ok() {
                    self.base.extend(self.since.drain(..self.written));
                    self.written = 0;
                }
            }
            76..=80 => {
                let budget = self.chance.below(3000) as usize;
                let _ = self.journal().maintain(1, budget);
            }
            81..=83 => {
                let sealed = self.journal().seal_notes(u64::MAX);
                // Without anything to seal nothing is written either.
                if sealed.is_ok() && self.journal().stats().pending_bytes == 0 {
                    self.written = self.since.len();
                }
            }
            84..=93 => self.round(),
            94 => self.crash(),
            95 => self.reopen(),
            96..=97 if self.faults => self.trouble(),
            _ => self.clear_faults(),
        }
        if self.journal().health() == Health::Failed {
            if self.chance.below(2) == 0 { self.reopen() } else { self.crash() }
        }
    }

    fn trouble(&mut self) {
        if self.chance.below(3) == 0 {
            let used: u64 = self.disk.files().values().map(|bytes| bytes.len() as u64).sum();
            self.disk.set_capacity(Some(used + self.chance.below(5000)));
            return;
        }
        let call = [StorageCall::Change, StorageCall::Write, StorageCall::Sync, StorageCall::Create]
            [self.chance.below(4) as usize];
        let fault = [Fault::Error, Fault::Full, Fault::Short][self.chance.below(3) as usize];
        self.disk.inject(
            call,
            self.chance.below(12),
            fault,
            self.chance.below(2) == 0 && fault != Fault::Short,
        );
    }

    fn round(&mut self) {
        let inventory = self.journal().sealed_notes();
        let Some(archive) = &mut self.archive else {
            self.archive = Archive::open(self.disk.clone()).ok();
            return;
        };
        match archive.round(0, &self.disk, &inventory, 5) {
            Ok(round) => {
                self.rounds += u64::from(round.rows > 0);
                let archived = round.archived;
                // Or the process dies before the journal hears of it.
                if self.chance.below(4) > 0 {
                    self.journal().release_notes(archived);
                }
            }
            Err(ArchiveError::Io { .. }) => self.archive = None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Everything that is left goes into the archive, and is there once.
    fn finish(&mut self) {
        self.crash();
        self.journal().seal_notes(u64::MAX).expect("a healthy disk");
        for _ in 0..100 {
            let inventory = self.journal().sealed_notes();
            let archive = self.archive.as_mut().expect("it was just opened");
            let round = archive.round(0, &self.disk, &inventory, 5).expect("a healthy disk");
            let archived = round.archived;
            self.journal().release_notes(archived);
            if !round.more && round.rows == 0 {
                break;
            }
        }
        let found = gaps(self.archive.as_ref().expect("it is open"));
        assert_eq!(found, self.base, "what was durable is archived, all of it, once");
        // Nothing of it holds a segment any more.
        self.journal().maintain(1, 1 << 20).expect("a healthy disk");
        assert_eq!(self.journal().sealed_notes().sealed, []);
    }
}

fn run(seed: u64) -> u64 {
    let mut run = Run::new(seed);
    for _ in 0..60 + run.chance.below(120) {
        run.step();
    }
    run.finish();
    run.rounds
}

#[test]
fn whatever_was_durable_is_archived_exactly_once_over_every_crash() {
    let seeds = mqcore_testkit::seeds(40, 400);
    let outcomes: Vec<(u64, Option<u64>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let mut rounds = 0;
                    let failed = seeds.skip(worker).step_by(2).find(|&seed| {
                        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
                        rounds += outcome.as_ref().copied().unwrap_or(0);
                        outcome.is_err()
                    });
                    (rounds, failed)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("workers catch panics")).collect()
    });
    let failed = outcomes.iter().filter_map(|(_, failed)| *failed).min();
    assert_eq!(failed, None, "replay it with MQCORE_SEED and MQCORE_SEEDS=1");
    let rounds: u64 = outcomes.iter().map(|(rounds, _)| rounds).sum();
    assert!(rounds > seeds.count() as u64 / 2, "rounds were among it: {rounds}");
}

/// A journal with a sealed segment of notes of three days, on a disk of its own.
fn sealed(seed: u64) -> (Journal<MemoryStorage>, MemoryStorage) {
    let disk = MemoryStorage::new(seed);
    let (mut journal, _) = Journal::open(disk.clone(), options(), &mut |_, _| {}).expect("a healthy disk");
    for tag in 1..=9 {
        let block = Block::gap(Timestamp(tag % 3 * 86_400_000), tag);
        journal.note(0, &block.bytes).expect("a healthy disk");
    }
    journal.seal_notes(u64::MAX).expect("a healthy disk");
    (journal, disk)
}

#[test]
fn a_crash_at_each_single_call_of_a_round_leaves_it_done_or_undone() {
    let expected: BTreeMap<u64, u64> = (0..9).map(|note| (note, note + 1)).collect();
    let (mut undone, mut done) = (0, 0);
    let seeds = mqcore_testkit::by_depth(5, 20);
    for seed in 0..seeds {
        for call in 0.. {
            let (journal, files) = sealed(seed);
            let disk = MemoryStorage::new(seed);
            let mut archive = Archive::open(disk.clone()).expect("a healthy disk");
            disk.inject(StorageCall::Change, call, Fault::Error, true);
            let outcome = archive.round(0, &files, &journal.sealed_notes(), 5);
            let struck = disk.fault_count();
            drop(archive);
            disk.clear_faults();
            disk.crash();
            let mut archive = Archive::open(disk.clone()).expect("a healthy disk");
            let found = gaps(&archive);
            if archive.archived(0, journal.identity()) == 0 {
                assert!(found.is_empty() && outcome.is_err());
                let left: Vec<_> = disk.files().into_keys().collect();
                assert!(left.is_empty(), "orphans stay: {left:?}");
                undone += 1;
            } else {
                assert_eq!(found, expected);
                done += 1;
            }
            archive.round(0, &files, &journal.sealed_notes(), 5).expect("a healthy disk");
            assert_eq!(gaps(&archive), expected);
            if struck == 0 {
                break;
            }
        }
    }
    assert!(undone > 25 && done >= seeds, "both ends were seen: {undone}, {done}");
}

#[test]
fn a_round_that_is_interrupted_leaves_nothing_and_is_repeated_in_full() {
    let expected: BTreeMap<u64, u64> = (0..9).map(|note| (note, note + 1)).collect();
    for checks in 0.. {
        let (journal, files) = sealed(checks);
        let disk = MemoryStorage::new(checks);
        let mut archive = Archive::open(disk.clone()).expect("a healthy disk");
        let asked = Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) >= checks;
        let outcome = archive.round_until(0, &files, &journal.sealed_notes(), 5, &stop);
        if outcome.is_ok() {
            assert!(checks > 9 + 3, "asked for each note, each file and before the end: {checks}");
            assert_eq!(gaps(&archive), expected);
            break;
        }
        assert!(matches!(outcome, Err(ArchiveError::Interrupted)), "{outcome:?}");
        drop(archive);
        let mut archive = Archive::open(disk.clone()).expect("a healthy disk");
        let left: Vec<_> = disk.files().into_keys().collect();
        assert!(left.is_empty(), "orphans stay: {left:?}");
        archive.round(0, &files, &journal.sealed_notes(), 5).expect("a healthy disk");
        assert_eq!(gaps(&archive), expected);
    }
}
