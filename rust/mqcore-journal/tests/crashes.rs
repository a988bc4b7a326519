//! Random work, random crashes, random faults: what was synced is there, and of the rest a beginning.
//!
//! Seeds: see the crate `mqcore-testkit`.

use crate::world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::{Fault, MemoryStorage, Storage, StorageCall};

use mqcore_testkit::Random;
use world::{Asked, World, definitions, small};

/// A journal on a disk that can crash, and what it must hold.
struct Run {
    chance: Random,
    disk: MemoryStorage,
    options: Options,
    journal: Option<Journal<MemoryStorage>>,
    /// State that is durable for certain.
    base: World,
    /// Operations accepted since then, in order.
    since: Vec<Asked>,
    /// How many of these were written.
    written: usize,
    faults: bool,
    notes: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut chance = Random::new(seed);
        let disk = MemoryStorage::new(chance.number());
        let (faults, notes) = (chance.below(2) == 0, chance.below(2) == 0);
        let mut run = Self {
            chance,
            disk,
            options: small(),
            journal: None,
            base: World::default(),
            since: Vec::new(),
            written: 0,
            faults,
            notes,
        };
        run.reopen();
        run
    }

    fn world(&self) -> World {
        let mut world = self.base.clone();
        self.since.iter().for_each(|asked| world.take(asked));
        world
    }

    fn journal(&mut self) -> &mut Journal<MemoryStorage> {
        self.journal.as_mut().expect("a journal is open between the steps")
    }

    /// Opens, and checks that what is there is what was durable with a beginning of what came after.
    fn reopen(&mut self) {
        drop(self.journal.take());
        let (journal, recovered) = loop {
            self.trouble_while_opening();
            match Journal::open(self.disk.clone(), self.options.clone(), &mut |_, _| {}) {
                Ok(opened) => break opened,
                Err(error) => {
                    let full = matches!(error, JournalError::Full { .. });
                    assert!(self.faults && (full || self.disk.fault_count() > 0), "opening failed: {error}");
                    self.disk.clear_faults();
                    self.disk.set_capacity(None);
                    if self.chance.below(2) == 0 {
                        self.disk.crash();
                    }
                }
            }
        };
        let report = &recovered.report;
        assert!(!report.is_alarming(), "a crash is no damage: {report}");
        let found = World::of(&journal, &definitions(&recovered));
        let mut expected = std::mem::take(&mut self.base);
        let mut since = std::mem::take(&mut self.since).into_iter();
        while expected != found {
            let Some(asked) = since.next() else {
                let lost: Vec<_> = expected.live.keys().filter(|s| !found.live.contains_key(s)).collect();
                let risen: Vec<_> = found.live.keys().filter(|s| !expected.live.contains_key(s)).collect();
                panic!(
                    "no beginning of what was asked: against all of it lost {lost:?}, risen {risen:?}; {report}"
                );
            };
            expected.take(&asked);
        }
        let after = found.live.keys().next_back().map_or(0, |last| last + 1);
        assert!(recovered.next_sequence >= after);
        (self.base, self.written) = (found, 0);
        self.journal = Some(journal);
    }

    /// Opening itself can be struck at any of its steps, and be followed by another crash.
    fn trouble_while_opening(&mut self) {
        if self.faults && self.chance.below(3) == 0 {
            let fault = [Fault::Error, Fault::Full, Fault::Short][self.chance.below(3) as usize];
            let call = [StorageCall::Change, StorageCall::Sync][self.chance.below(2) as usize];
            self.disk.inject(call, self.chance.below(12), fault, false);
        }
    }

    fn crash(&mut self) {
        drop(self.journal.take());
        self.disk.crash();
        self.reopen();
    }

    /// Compaction as a program does it, step after step, left at any of them.
    fn compact(&mut self) {
        let until = self.journal().newest_segment();
        let steps = self.chance.below(40);
        for _ in 0..steps {
            let budget = self.chance.below(4000) as usize;
            let before = self.journal().compactable_bytes(until);
            match self.journal().compact(1, budget, until) {
                Ok(done) => {
                    assert!(done.lost.is_empty() && done.quarantined.is_empty());
                    // On a full disk, a segment whose copy would use up the reserve stays until there is space.
                    let postponed = self.journal().health() != Health::Healthy;
                    let finished = postponed || self.journal().compactable_bytes(until) == 0;
                    assert!(done.more || finished, "{before} were left");
                    if !done.more {
                        return self.look();
                    }
                }
                Err(error) => {
                    // A file that cannot be removed or replaced ends compaction; the journal stays usable.
                    let usable = matches!(&error, JournalError::Io { doing, file, .. } if *doing == "removing" || file == "catalog");
                    assert!(usable || self.journal().health() != Health::Healthy, "{error}");
                    return;
                }
            }
        }
    }

    /// Compacted, closed in order and cut to what it holds; then perhaps a crash.
    fn close_compacted(&mut self) {
        self.compact();
        let journal = self.journal.take().expect("a journal is open between the steps");
        if journal.close_compacted().is_ok() {
            for asked in self.since.drain(..) {
                self.base.take(&asked);
            }
            self.written = 0;
        }
        if self.chance.below(2) == 0 {
            self.disk.crash();
        }
        self.disk.clear_faults();
        self.reopen();
    }

    /// A process that ends without a crash of the machine; the machine may crash soon after.
    fn restart(&mut self) {
        self.disk.clear_faults();
        self.reopen();
        if self.chance.below(2) == 0 {
            self.crash();
        }
    }

    fn took(&mut self, outcome: Result<(), JournalError>, asked: Asked) {
        match outcome {
            Ok(()) => self.since.push(asked),
            Err(JournalError::Full { .. }) => {}
            Err(_) => assert_eq!(self.journal().health(), Health::Failed),
        }
    }

    fn some_live(&mut self) -> Vec<u64> {
        let world = self.world();
        let skip = self.chance.below(world.live.len() as u64 + 1) as usize;
        let few = self.chance.below(12) as usize;
        let stride = 1 + self.chance.below(3) as usize;
        world
            .live
            .keys()
            .skip(if self.chance.below(2) == 0 { 0 } else { skip })
            .step_by(stride)
            .take(few)
            .copied()
            .collect()
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..=29 => {
                let sequence = self.journal().next_sequence() + self.chance.below(3);
                let queue = self.chance.below(300) as u32;
                let most = if self.chance.below(40) == 0 { 6000 } else { 300 };
                let payload = self.chance.bytes(most);
                let (left, right) = payload.split_at(payload.len() / 2);
                let outcome = self.journal().put(sequence, queue, &[left, right]);
                self.took(outcome, Asked::Put(sequence, queue, payload));
            }
            30..=49 => {
                let sequences = self.some_live();
                let outcome = self.journal().settle(&sequences);
                self.took(outcome, Asked::Settle(sequences));
            }
            50..=55 => {
                for sequence in self.some_live() {
                    let touch = self.chance.bytes(20);
                    let outcome = if self.chance.below(2) == 0 {
                        self.journal().touch(sequence, &touch)
                    } else {
                        self.journal().touch_outside_reserve(sequence, &touch)
                    };
                    self.took(outcome, Asked::Touch(sequence, touch));
                }
            }
            56..=60 => {
                let key = vec![self.chance.below(6) as u8];
                let value = self.chance.bytes(60);
                let outcome = self.journal().define(&key, &value);
                self.took(outcome, Asked::Define(key, value));
            }
            61..=62 => {
                let key = vec![self.chance.below(6) as u8];
                let outcome = self.journal().undefine(&key);
                self.took(outcome, Asked::Undefine(key));
            }
            63..=66 if self.notes => {
                let payload = self.chance.bytes(80);
                match self.journal().note(1, &payload) {
                    Ok(number) => self.since.push(Asked::Note(number)),
                    Err(_) => assert_ne!(self.journal().health(), Health::Healthy),
                }
            }
            67..=76 => self.write(),
            77..=86 => self.sync(),
            87..=90 => {
                let budget = self.chance.below(3000) as usize;
                match self.journal().maintain(1, budget) {
                    Ok(done) => assert!(done.lost.is_empty() && done.quarantined.is_empty()),
                    Err(_) => assert_ne!(self.journal().health(), Health::Healthy),
                }
            }
            91 => self.compact(),
            92 => self.close_compacted(),
            93 => self.crash(),
            94 => self.restart(),
            95..=96 if self.faults => self.trouble(),
            97 => {
                self.disk.clear_faults();
                self.disk.set_capacity(None);
            }
            _ => self.look(),
        }
        if self.journal().health() == Health::Failed {
            self.after_failure();
        }
    }

    fn write(&mut self) {
        match self.journal().write() {
            Ok(()) => self.written = self.since.len(),
            Err(_) => assert_ne!(self.journal().health(), Health::Healthy),
        }
    }

    fn sync(&mut self) {
        if self.journal().sync().is_ok() {
            for asked in self.since.drain(..self.written) {
                self.base.take(&asked);
            }
            self.written = 0;
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
        let after = self.chance.below(12);
        let lasting = self.chance.below(2) == 0 && fault != Fault::Short;
        self.disk.inject(call, after, fault, lasting);
    }

    /// Everything that is live can be read at any time, written or not.
    fn look(&mut self) {
        let world = self.world();
        let journal = self.journal();
        let shown = World::of(journal, &world.definitions);
        assert_eq!(shown.live, world.live);
        if let Some((&sequence, (_, payload, _))) = world.live.iter().next() {
            assert_eq!(journal.read(sequence).as_ref(), Ok(payload));
        }
    }

    /// A failed journal says the same for ever, and still reads.
    fn after_failure(&mut self) {
        self.disk.clear_faults();
        self.look();
        let journal = self.journal();
        let error = journal.sync().expect_err("no sync succeeds after a failure");
        assert_eq!(journal.write(), Err(error.clone()));
        assert_eq!(journal.put(u64::MAX - 1, 0, &[]), Err(error.clone()));
        assert_eq!(journal.maintain(1, 1), Err(error));
        if self.chance.below(2) == 0 { self.restart() } else { self.crash() }
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..60 + run.chance.below(120) {
        run.step();
    }
    run.crash();
    // Opening makes its result durable, so the next opening finds the same.
    run.crash();
}

/// Numbers of sectors that crashes of 200 disks keep of a file of 8 sectors, which are one page.
fn kept_sectors(prepare: impl Fn(&MemoryStorage)) -> BTreeSet<Option<usize>> {
    let left = (0..200).map(|seed| {
        let disk = MemoryStorage::new(seed);
        prepare(&disk);
        disk.crash();
        let files = disk.files();
        files.get("file").map(|bytes| bytes.chunks(512).filter(|sector| **sector == [1; 512]).count())
    });
    left.collect()
}

const PAGE: [u8; 4096] = [1; 4096];

#[test]
fn simulated_crashes_really_lose_and_tear_what_was_not_synced() {
    let everything = BTreeSet::from([Some(8)]);
    let synced = kept_sectors(|disk| {
        let file = disk.create("file", 4096).unwrap();
        disk.write_at(&file, 0, &PAGE).unwrap();
        disk.sync_data(&file).unwrap();
        disk.sync_directory().unwrap();
    });
    assert_eq!(synced, everything);

    let unsynced = kept_sectors(|disk| {
        let file = disk.create("file", 4096).unwrap();
        disk.sync_data(&file).unwrap();
        disk.sync_directory().unwrap();
        disk.write_at(&file, 0, &PAGE).unwrap();
    });
    assert!(unsynced.is_superset(&[Some(0), Some(3), Some(4), Some(5), Some(8)].into()), "{unsynced:?}");

    let longer = kept_sectors(|disk| {
        let file = disk.create("file", 0).unwrap();
        disk.sync_data(&file).unwrap();
        disk.sync_directory().unwrap();
        disk.write_at(&file, 0, &PAGE).unwrap();
    });
    assert!(longer.is_superset(&[Some(0), Some(8)].into()), "{longer:?}");

    let unnamed = kept_sectors(|disk| {
        let file = disk.create("file", 4096).unwrap();
        disk.write_at(&file, 0, &PAGE).unwrap();
        disk.sync_data(&file).unwrap();
    });
    assert_eq!(unnamed, [None, Some(8)].into(), "the name may be lost, the synced content may not");
}

#[test]
fn failed_sync_really_loses_pages_that_reads_still_show() {
    let failed = kept_sectors(|disk| {
        let file = disk.create("file", 4096).unwrap();
        disk.sync_data(&file).unwrap();
        disk.sync_directory().unwrap();
        disk.write_at(&file, 0, &PAGE).unwrap();
        disk.inject(StorageCall::Sync, 0, Fault::Error, false);
        disk.sync_data(&file).unwrap_err();
        assert_eq!(disk.files()["file"], PAGE);
        // Nothing is left for the next sync to write.
        disk.sync_data(&file).unwrap();
    });
    assert!(failed.is_superset(&[Some(3), Some(4), Some(5)].into()), "{failed:?}");
}

#[test]
fn synced_records_survive_every_crash_with_a_prefix_of_the_rest() {
    let seeds = mqcore_testkit::seeds(1_000, 10_000);
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    seeds
                        .skip(worker)
                        .step_by(2)
                        .find(|&seed| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err())
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("workers catch panics")).min()
    });
    assert_eq!(failed, None, "replay it with MQCORE_SEED and MQCORE_SEEDS=1");
}

#[test]
fn failed_first_openings_before_a_crash_do_not_count_as_damage() {
    let open = |disk: &MemoryStorage| Journal::open(disk.clone(), small(), &mut |_, _| {});
    for seed in 0..40 {
        for (first, second) in (0..6).flat_map(|first| (0..8).map(move |second| (first, second))) {
            let disk = MemoryStorage::new(seed);
            // The names that the first opening could not sync are visible to the second one.
            for after in [first, second] {
                disk.inject(StorageCall::Sync, after, Fault::Error, false);
                drop(open(&disk));
                disk.clear_faults();
            }
            disk.crash();
            let (_, recovered) = open(&disk).expect("the disk works again");
            let report = &recovered.report;
            assert!(!report.is_alarming(), "seed {seed}, syncs {first} and {second}: {report}");
        }
    }
}
