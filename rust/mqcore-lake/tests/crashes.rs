//! Random rounds, merges, retention and expiry, with requests that fail in all ways and processes that die at any of them:
//! every note is in the table or in the journal, and in the table once.
//!
//! Seeds: see the crate `mqcore-testkit`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqcore_archive::archive::Retention;
use mqcore_lake::error::LakeError;
use mqcore_lake::lake::{Lake, LakeOptions, ShardInput};
use mqcore_lake::store::Store;
use mqcore_testkit::Random;
use tokio::runtime::{Builder, Runtime};

use crate::reader::{notes, place};
use crate::source::{Source, now_ms};
use crate::unreliable::{Failure, Unreliable};

const DAY_MS: u64 = 86_400_000;
const JOURNAL: u64 = 77;

struct Run {
    chance: Random,
    runtime: Runtime,
    objects: Unreliable,
    store: Store,
    source: Source,
    lake: Option<Lake>,
    process: u64,
    /// Whether the broker has opened the tables before.
    has_tables: bool,
    /// Epoch of the last opening of this process.
    epoch: Option<u64>,
    now_ms: u64,
    /// Notes below this number are archived for certain.
    archived: u64,
    /// Retention was allowed to remove rows that are older than this.
    kept_from_ms: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let objects = Unreliable::new();
        Self {
            chance: Random::new(seed),
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            store: place(objects.clone()),
            objects,
            source: Source::new(JOURNAL),
            lake: None,
            process: 0,
            has_tables: false,
            epoch: None,
            now_ms: now_ms(),
            archived: 0,
            kept_from_ms: 0,
        }
    }

    fn options(&self) -> LakeOptions {
        let writer = self.process.to_string();
        let is_new = !self.has_tables;
        let journals = vec![JOURNAL];
        LakeOptions { writer, journals, is_new, snapshot_age_ms: DAY_MS, ..LakeOptions::default() }
    }

    /// Another process of the same broker begins.
    fn restart(&mut self) {
        self.process += 1;
        (self.lake, self.epoch) = (None, None);
    }

    /// Works on the open archive. After an error it is closed, as the broker does.
    fn with<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Lake, &Source, u64) -> Result<T, LakeError>,
    ) -> Option<T> {
        let (store, options, epoch, now_ms) = (self.store.clone(), self.options(), self.epoch, self.now_ms);
        let known = self.lake.take();
        let source = &self.source;
        let done = self.runtime.block_on(async {
            let mut lake = match known {
                Some(lake) => lake,
                None => Lake::open(store, options, epoch, now_ms).await?,
            };
            let done = work(&mut lake, source, now_ms).await;
            Ok::<_, LakeError>((lake.epoch(), done.map(|done| (lake, done))))
        });
        self.has_tables |= done.is_ok();
        match done {
            Ok((epoch, Ok((lake, done)))) => {
                self.epoch = Some(epoch);
                self.lake = Some(lake);
                Some(done)
            }
            Ok((epoch, Err(error))) => {
                self.epoch = Some(epoch);
                self.expect_outage(&error);
                None
            }
            Err(error) => {
                self.expect_outage(&error);
                None
            }
        }
    }

    fn expect_outage(&self, error: &LakeError) {
        assert!(matches!(error, LakeError::Store { .. } | LakeError::Conflict { .. }), "{error}");
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..=29 => {
                let time = self.now_ms - self.chance.below(3) * DAY_MS;
                self.source.note(time);
            }
            30..=59 => {
                self.source.seal();
                let archived = self.with(async |lake, source, now_ms| {
                    let inventory = source.journal.sealed_notes();
                    let input =
                        ShardInput { shard: 0, journal: &source.disk, inventory: &inventory, start: 0 };
                    Ok(lake.round(&[input], now_ms, &|| false).await?[0].archived)
                });
                self.archived = self.archived.max(archived.unwrap_or(0));
            }
            60..=69 => {
                self.with(async |lake, _, now_ms| lake.compact(now_ms, &|| false).await);
            }
            70..=74 => {
                self.with(async |lake, _, now_ms| lake.expire(now_ms).await);
            }
            75..=76 => {
                let age_ms = 5 * DAY_MS;
                self.kept_from_ms = self.kept_from_ms.max(self.now_ms - age_ms);
                let retention = Retention { age_ms: Some(age_ms), bytes: None };
                self.with(async |lake, _, now_ms| lake.retain(retention, now_ms).await);
            }
            77..=84 => {
                let failures = [Failure::Refused, Failure::Unanswered, Failure::Delayed];
                let failure = failures[self.chance.below(3) as usize];
                self.objects.fail(self.chance.below(14), failure);
            }
            85..=92 => self.objects.heal(),
            93..=94 => {
                self.runtime.block_on(self.objects.deliver());
            }
            95..=96 => {
                self.restart();
            }
            _ => self.now_ms += self.chance.below(DAY_MS),
        }
    }

    fn check(&mut self) {
        self.objects.heal();
        self.restart();
        let opened = self.with(async |lake, _, _| lake.archived(0, JOURNAL));
        let archived = opened.expect("the store works");
        self.runtime.block_on(self.objects.deliver());
        assert!(archived >= self.archived, "what was archived stays archived");
        let found = notes(&self.store, 0);
        let mut expected: BTreeMap<u64, u64> = self.source.written.clone();
        expected.retain(|number, _| *number < archived);
        let removed = expected.keys().filter(|number| !found.contains_key(number)).count();
        assert!(removed == 0 || self.kept_from_ms > 0, "{removed} notes are lost");
        expected.retain(|number, _| found.contains_key(number));
        assert_eq!(found, expected);
    }
}

#[test]
fn every_note_is_archived_once_whatever_fails() {
    for seed in mqcore_testkit::seeds(12, 1000) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run::new(seed);
            for _ in 0..4 {
                for _ in 0..60 {
                    run.step();
                }
                run.check();
            }
        }));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
