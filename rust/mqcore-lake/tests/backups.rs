//! Continuous backups of a directory that grows, with requests that fail in all ways and writers that die: every restore
//! point has the content of its moment, and none is missing that is needed.
//!
//! Seeds: see the crate `mqcore-testkit`.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqcore_lake::backup::point::{PointFile, RestorePoint};
use mqcore_lake::backup::points;
use mqcore_lake::backup::receive::{FileSink, receive};
use mqcore_lake::backup::writer::{BackupMoment, BackupWriter, FileContent, FileSource, MomentFile};
use mqcore_lake::error::LakeError;
use mqcore_lake::store::Store;
use mqcore_lake::transfer::TransferError;
use mqcore_testkit::Random;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use tokio::runtime::{Builder, Runtime};

use crate::reader::place;
use crate::source::now_ms;
use crate::unreliable::{Failure, Unreliable};

/// The valid bytes of each file.
type Content = BTreeMap<String, Vec<u8>>;

/// A data directory of one journal, as a broker changes it.
struct Directory {
    journal: u64,
    /// The valid bytes of each segment.
    segments: BTreeMap<u64, Vec<u8>>,
    catalog: Vec<u8>,
}

impl Directory {
    fn new() -> Self {
        Self { journal: 7, segments: BTreeMap::from([(1, vec![1])]), catalog: vec![1] }
    }

    fn change(&mut self, chance: &mut Random) {
        let newest = *self.segments.last_key_value().expect("a segment").0;
        match chance.below(10) {
            0 if self.segments.len() > 1 => {
                self.segments.pop_first();
                self.catalog = chance.bytes(200);
            }
            1 | 2 => {
                self.segments.insert(newest + 1, chance.bytes(300));
                self.catalog = chance.bytes(200);
            }
            3 => {}
            4 => self.append(newest, vec![chance.below(256) as u8; 5 << 20]),
            _ => self.append(newest, chance.bytes(3_000)),
        }
    }

    fn append(&mut self, segment: u64, bytes: Vec<u8>) {
        self.segments.get_mut(&segment).expect("it exists").extend(bytes);
    }

    fn return_to(&mut self, content: &Content) {
        self.segments.clear();
        for (name, bytes) in content {
            match name.trim_start_matches("shard-0/").trim_end_matches(".segment").parse() {
                Ok(number) => drop(self.segments.insert(number, bytes.clone())),
                Err(_) => self.catalog.clone_from(bytes),
            }
        }
    }

    fn content(&self) -> Content {
        let segments = self
            .segments
            .iter()
            .map(|(number, bytes)| (format!("shard-0/{number:010}.segment"), bytes.clone()));
        segments.chain([("shard-0/catalog".to_owned(), self.catalog.clone())]).collect()
    }

    fn moment(&self, created_ms: u64) -> BackupMoment {
        let mut files = Vec::new();
        for (name, bytes) in self.content() {
            let is_append_only = name.ends_with(".segment");
            let bytes = bytes.len() as u64;
            files.push(MomentFile {
                name,
                journal: self.journal,
                bytes,
                length: bytes + 100,
                is_append_only,
            });
        }
        let (version, format) = ("1.2.3".to_owned(), format!("format of {created_ms}"));
        BackupMoment { created_ms, version, shards: 1, messages: Some(3), format, files }
    }
}

impl FileSource for Directory {
    /// Each file has further bytes that are not valid.
    fn open(&self, name: &str) -> io::Result<Box<dyn FileContent>> {
        let valid = self.content().remove(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Box::new(Cursor::new([&valid[..], b"written later"].concat())))
    }
}

/// Collects what files receive.
#[derive(Default)]
struct Collected {
    content: Content,
    open: Option<String>,
}

impl FileSink for Collected {
    fn begin(&mut self, file: &PointFile) -> io::Result<()> {
        assert_eq!(file.length, file.bytes + 100);
        assert_eq!(self.open.replace(file.name.clone()), None);
        assert_eq!(self.content.insert(file.name.clone(), Vec::new()), None);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let open = self.open.as_ref().expect("a file has begun");
        self.content.get_mut(open).expect("it has begun").extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self, file: &PointFile) -> io::Result<()> {
        assert_eq!(self.open.take().as_ref(), Some(&file.name));
        assert_eq!(self.content[&file.name].len() as u64, file.bytes);
        Ok(())
    }
}

async fn restored(store: &Store, point: &RestorePoint) -> Result<Content, TransferError> {
    let mut collected = Collected::default();
    receive(store, point, &mut collected, &mut |_, _| true).await?;
    Ok(collected.content)
}

/// Stores the state of a directory as that of a moment. Returns the number of the restore point.
async fn add(
    writer: &mut BackupWriter,
    directory: &Directory,
    created_ms: u64,
) -> Result<u64, TransferError> {
    let moment = directory.moment(created_ms);
    writer.add(&moment, directory, &mut |_, _| true).await.map(|stored| stored.number)
}

struct Run {
    chance: Random,
    runtime: Runtime,
    objects: Unreliable,
    store: Store,
    directory: Directory,
    writer: BackupWriter,
    now_ms: u64,
    /// The content that each attempt tried to store, by the time of its moment.
    attempts: BTreeMap<u64, Content>,
    /// Moments that a writer reported as stored, with the restore point that has them.
    stored: BTreeMap<u64, u64>,
    /// Restore points for moments from here on must exist.
    kept_from_ms: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let objects = Unreliable::new();
        let store = place(objects.clone());
        Self {
            chance: Random::new(seed),
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            writer: BackupWriter::new(store.clone()).object_bytes(1),
            objects,
            store,
            directory: Directory::new(),
            now_ms: 1_000,
            attempts: BTreeMap::new(),
            stored: BTreeMap::new(),
            kept_from_ms: 0,
        }
    }

    fn step(&mut self) {
        self.directory.change(&mut self.chance);
        self.now_ms += 1 + self.chance.below(1_000);
        if self.chance.one_in(3) {
            let kinds = [Failure::Refused, Failure::Unanswered, Failure::Delayed];
            self.objects.fail(self.chance.below(9), kinds[self.chance.index(kinds.len())]);
        }
        if self.chance.one_in(12) {
            self.writer = BackupWriter::new(self.store.clone()).object_bytes(1 + self.chance.index(3_000));
        }
        if self.chance.one_in(20)
            && let Some(&moment_ms) = self.stored.keys().nth(self.chance.index(self.stored.len().max(1)))
        {
            // The machine is lost, and the broker continues from an earlier moment.
            self.directory.return_to(&self.attempts[&moment_ms]);
            self.writer = BackupWriter::new(self.store.clone()).object_bytes(1);
        }
        if self.chance.one_in(10) {
            let since_ms = self.now_ms.saturating_sub(self.chance.below(8_000));
            // A failed call may have removed as much.
            self.kept_from_ms = self.kept_from_ms.max(since_ms);
            let _ = self.runtime.block_on(self.writer.expire(since_ms, 0));
        } else {
            self.attempts.insert(self.now_ms, self.directory.content());
            match self.runtime.block_on(add(&mut self.writer, &self.directory, self.now_ms)) {
                Ok(number) => drop(self.stored.insert(self.now_ms, number)),
                Err(TransferError::Store(LakeError::Store { .. } | LakeError::RestorePointExists { .. })) => {
                }
                Err(other) => panic!("{other}"),
            }
        }
        self.objects.heal();
        if self.chance.one_in(2) {
            self.runtime.block_on(self.objects.deliver());
        }
    }

    fn check(&self) {
        self.runtime.block_on(async {
            let numbers = points::numbers(&self.store).await.expect("a healthy store");
            let mut times = BTreeMap::new();
            for &number in &numbers {
                let point = points::read(&self.store, number).await.expect("a healthy store");
                let content = restored(&self.store, &point).await.expect("all of its data");
                assert_eq!(content, self.attempts[&point.created_ms], "restore point {number}");
                assert_eq!(point.number, number);
                times.insert(number, point.created_ms);
            }
            assert!(times.values().is_sorted(), "{times:?}");
            for (&moment_ms, number) in self.stored.range(self.kept_from_ms..) {
                let point = points::find(&self.store, &numbers, moment_ms).await.expect("a healthy store");
                let point = point.expect("it was stored");
                let content = restored(&self.store, &point).await.expect("all of its data");
                assert_eq!(
                    content, self.attempts[&moment_ms],
                    "the moment {moment_ms} of restore point {number}"
                );
            }
        });
    }
}

#[test]
fn every_restore_point_has_the_content_of_its_moment_whatever_fails() {
    for seed in mqcore_testkit::seeds(10, 2_000) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run::new(seed);
            for _ in 0..30 {
                run.step();
            }
            run.check();
        }));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[tokio::test]
async fn only_new_bytes_are_uploaded() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut chance = Random::new(1);
    let mut directory = Directory::new();
    directory.segments.insert(2, (0..3 << 20).map(|_| chance.below(256) as u8).collect());
    let mut writer = BackupWriter::new(store.clone());
    add(&mut writer, &directory, 1).await.expect("a healthy store");
    let before = objects.served().put_bytes;
    assert!(before > 3 << 20);
    directory.append(2, vec![5; 1_000]);
    assert_eq!(add(&mut writer, &directory, 2).await.expect("a healthy store"), 2);
    let mut restarted = BackupWriter::new(store);
    directory.append(2, vec![6; 1_000]);
    assert_eq!(add(&mut restarted, &directory, 3).await.expect("a healthy store"), 3);
    let uploaded = objects.served().put_bytes - before;
    assert!(uploaded < 10_000, "{uploaded}");
}

#[tokio::test]
async fn a_moment_without_a_change_adds_no_restore_point() {
    let store = place(Unreliable::new());
    let directory = Directory::new();
    let mut writer = BackupWriter::new(store.clone());
    let mut moment = directory.moment(1);
    assert_eq!(add(&mut writer, &directory, 1).await.expect("a healthy store"), 1);
    moment.created_ms = 2;
    let stored = writer.add(&moment, &directory, &mut |_, _| true).await.expect("a healthy store");
    assert_eq!((stored.number, stored.uploaded), (1, 0));
    assert_eq!(points::numbers(&store).await.expect("a healthy store"), [1]);
}

#[tokio::test]
async fn an_interrupted_upload_continues_where_it_ended() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut chance = Random::new(2);
    let mut directory = Directory::new();
    directory.segments.insert(2, (0..40 << 20).map(|_| chance.below(256) as u8).collect());
    let mut writer = BackupWriter::new(store.clone());
    let moment = directory.moment(1);
    let stopped =
        writer.add(&moment, &directory, &mut |done, _| done < 30 << 20).await.expect_err("it was stopped");
    assert!(matches!(stopped, TransferError::Stopped), "{stopped}");
    let before = objects.served().put_bytes;
    assert!(before >= 16 << 20);
    add(&mut writer, &directory, 1).await.expect("a healthy store");
    assert!(objects.served().put_bytes - before < 26 << 20);
    let point = points::newest(&store).await.expect("a healthy store").expect("it was stored");
    assert_eq!(restored(&store, &point).await.expect("all of its data"), directory.content());
}

#[tokio::test]
async fn pieces_of_a_restore_point_that_was_never_made_are_not_used_by_a_later_one() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut directory = Directory::new();
    let mut writer = BackupWriter::new(store.clone()).object_bytes(1);
    add(&mut writer, &directory, 1).await.expect("a healthy store");
    // The second restore point arrives late: after an attempt to make another one with its number.
    directory.append(1, vec![2; 10_000]);
    objects.fail(1, Failure::Delayed);
    add(&mut writer, &directory, 2).await.expect_err("it is delayed");
    objects.heal();
    directory.append(1, vec![3; 100]);
    objects.fail(1, Failure::Refused);
    add(&mut writer, &directory, 3).await.expect_err("it is refused");
    objects.heal();
    assert_eq!(objects.deliver().await, 1);
    directory.append(1, vec![4; 10]);
    assert_eq!(add(&mut writer, &directory, 4).await.expect("a healthy store"), 3);
    writer.expire(2, 0).await.expect("a healthy store");
    assert_eq!(points::numbers(&store).await.expect("a healthy store"), [2, 3]);
    let point = points::read(&store, 3).await.expect("a healthy store");
    assert_eq!(restored(&store, &point).await.expect("all of its data"), directory.content());
}

#[tokio::test]
async fn a_replaced_writer_stops_for_good() {
    let store = place(Unreliable::new());
    let mut directory = Directory::new();
    let (mut old, mut new) = (BackupWriter::new(store.clone()), BackupWriter::new(store.clone()));
    add(&mut old, &directory, 1).await.expect("a healthy store");
    directory.append(1, vec![2; 10]);
    add(&mut new, &directory, 2).await.expect("a healthy store");
    directory.append(1, vec![3; 10]);
    for _ in 0..2 {
        let refused = add(&mut old, &directory, 3).await.expect_err("it was replaced");
        assert!(matches!(refused, TransferError::Store(LakeError::TakenOver { .. })), "{refused}");
        assert!(
            refused.to_string().contains("another broker has taken over the backup s3://bucket/"),
            "{refused}"
        );
    }
    assert_eq!(add(&mut new, &directory, 4).await.expect("a healthy store"), 3);
}

#[tokio::test]
async fn files_with_another_past_are_uploaded_again() {
    let store = place(Unreliable::new());
    let mut directory = Directory::new();
    directory.append(1, vec![2; 1_000]);
    add(&mut BackupWriter::new(store.clone()), &directory, 1).await.expect("a healthy store");
    directory.append(1, vec![3; 50_000]);
    add(&mut BackupWriter::new(store.clone()), &directory, 2).await.expect("a healthy store");
    // Restored from the first restore point, and continued: the same names, the same journal, other records.
    directory.segments.insert(1, [vec![1], vec![2; 1_000], vec![4; 50_100]].concat());
    add(&mut BackupWriter::new(store.clone()), &directory, 3).await.expect("a healthy store");
    let mut other = Directory::new();
    other.journal = 8;
    other.append(1, vec![2; 1_000]);
    other.append(1, vec![4; 50_200]);
    add(&mut BackupWriter::new(store.clone()), &other, 4).await.expect("a healthy store");
    for (number, content) in [(3, directory.content()), (4, other.content())] {
        let point = points::read(&store, number).await.expect("a healthy store");
        assert_eq!(restored(&store, &point).await.expect("all of its data"), content);
    }
}

#[tokio::test]
async fn data_that_someone_else_removed_is_uploaded_again() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut directory = Directory::new();
    directory.append(1, vec![2; 10_000]);
    directory.segments.insert(2, vec![3; 10_000]);
    let mut writer = BackupWriter::new(store.clone()).object_bytes(1);
    add(&mut writer, &directory, 1).await.expect("a healthy store");
    assert_eq!(writer.find_missing().await.expect("a healthy store"), 0);
    let point = points::read(&store, 1).await.expect("a healthy store");
    let removed = &point.files.last().expect("a segment").pieces[0].object;
    objects.delete(&store.path(removed).expect("a name")).await.expect("it exists");
    directory.append(2, vec![4; 10]);
    add(&mut writer, &directory, 2).await.expect("a healthy store");
    let broken = points::read(&store, 2).await.expect("a healthy store");
    assert!(matches!(restored(&store, &broken).await, Err(TransferError::Missing(_))));
    assert_eq!(writer.find_missing().await.expect("a healthy store"), 1);
    assert_eq!(writer.find_missing().await.expect("a healthy store"), 0, "it is reported once");
    objects.fail(0, Failure::Refused);
    add(&mut writer, &directory, 3).await.expect_err("it is refused");
    objects.heal();
    // Although the files have not changed, and the writer has to read the last restore point.
    assert_eq!(add(&mut writer, &directory, 3).await.expect("a healthy store"), 3);
    let point = points::read(&store, 3).await.expect("a healthy store");
    assert_eq!(restored(&store, &point).await.expect("all of its data"), directory.content());
    assert_eq!(writer.find_missing().await.expect("a healthy store"), 0);
}

#[tokio::test]
async fn times_ascend_although_the_clock_was_set_back() {
    let store = place(Unreliable::new());
    let mut directory = Directory::new();
    let mut writer = BackupWriter::new(store.clone());
    for created_ms in [10, 5, 12] {
        directory.append(1, vec![2; 10]);
        add(&mut writer, &directory, created_ms).await.expect("a healthy store");
    }
    for (time_ms, number) in [(9, None), (10, Some(2)), (11, Some(2)), (12, Some(3))] {
        let found = points::find(&store, &[1, 2, 3], time_ms).await.expect("a healthy store");
        assert_eq!(found.map(|point| point.number), number, "{time_ms}");
    }
}

#[tokio::test]
async fn restore_points_that_expire_during_a_search_count_as_too_old() {
    let store = place(Unreliable::new());
    let mut directory = Directory::new();
    let mut writer = BackupWriter::new(store.clone());
    for created_ms in 1..=5 {
        directory.append(1, vec![2; 10]);
        add(&mut writer, &directory, created_ms).await.expect("a healthy store");
    }
    let numbers = points::numbers(&store).await.expect("a healthy store");
    writer.expire(4, 0).await.expect("a healthy store");
    for (time_ms, number) in [(3, None), (4, Some(4)), (9, Some(5))] {
        let found = points::find(&store, &numbers, time_ms).await.expect("a healthy store");
        assert_eq!(found.map(|point| point.number), number, "{time_ms}");
    }
    assert!(points::get(&store, 1).await.expect("a healthy store").is_none());
}

#[tokio::test]
async fn a_clock_that_was_ahead_removes_nothing_and_spoils_no_later_moment() {
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    let store = place(Unreliable::new());
    let mut directory = Directory::new();
    let mut writer = BackupWriter::new(store.clone());
    let now = now_ms();
    for ago in [9, 8, 6, 3] {
        directory.append(1, vec![2; 10]);
        add(&mut writer, &directory, now - ago * DAY_MS).await.expect("a healthy store");
    }
    // A broker starts with a wrong clock, which is corrected soon.
    let mut writer = BackupWriter::new(store.clone());
    directory.append(1, vec![2; 10]);
    add(&mut writer, &directory, now + 30 * DAY_MS).await.expect("a healthy store");
    writer.expire(now + 30 * DAY_MS, 7 * DAY_MS).await.expect("a healthy store");
    directory.append(1, vec![2; 10]);
    add(&mut writer, &directory, now + 1).await.expect("a healthy store");
    let numbers = points::numbers(&store).await.expect("a healthy store");
    assert_eq!(numbers, [2, 3, 4, 5, 6], "the second one has the state of seven days ago");
    let soon = now + 60 * 1000;
    for (time_ms, number) in [(now - 7 * DAY_MS, 2), (now - DAY_MS, 4), (soon, 6)] {
        let found = points::find(&store, &numbers, time_ms).await.expect("a healthy store");
        assert_eq!(found.expect("a restore point").number, number);
    }
    let newest = points::newest(&store).await.expect("a healthy store").expect("a restore point");
    assert!((now..soon).contains(&newest.created_ms), "{now} {}", newest.created_ms);
}

#[tokio::test]
async fn a_comparison_with_an_earlier_writer_can_be_stopped_and_is_not_repeated() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut directory = Directory::new();
    for segment in 2..10 {
        directory.segments.insert(segment, vec![segment as u8; 9 << 20]);
    }
    add(&mut BackupWriter::new(store.clone()), &directory, 1).await.expect("a healthy store");
    let mut writer = BackupWriter::new(store.clone());
    directory.append(9, vec![1; 10]);
    let moment = directory.moment(2);
    let mut comparisons = 0;
    let mut stop_at = 5;
    let mut pieces_compared = Vec::new();
    for _ in 0..3 {
        let outcome = writer
            .add(&moment, &directory, &mut |_, total| {
                comparisons += u64::from(total == 0);
                comparisons < stop_at
            })
            .await;
        pieces_compared.push(comparisons);
        stop_at = u64::MAX;
        comparisons = 0;
        // The next attempt fails when all is compared.
        match pieces_compared.len() {
            1 => {
                assert!(matches!(outcome, Err(TransferError::Stopped)));
                objects.fail(0, Failure::Refused);
            }
            2 => {
                outcome.expect_err("the store refuses");
                objects.heal();
            }
            _ => assert_eq!(outcome.expect("a healthy store").number, 2),
        }
    }
    assert_eq!(pieces_compared[0], 5, "stopped after five pieces");
    assert!(pieces_compared[1] >= 8, "all others: {pieces_compared:?}");
    assert_eq!(pieces_compared[2], 1, "only the catalog: {pieces_compared:?}");
    let point = points::newest(&store).await.expect("a healthy store").expect("it was stored");
    assert_eq!(restored(&store, &point).await.expect("all of its data"), directory.content());
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused() {
    let mut objects = Unreliable::new();
    objects.ignores_conditions = true;
    let mut writer = BackupWriter::new(place(objects.clone()));
    let refused = add(&mut writer, &Directory::new(), 1).await.expect_err("it is unsafe");
    assert!(matches!(refused, TransferError::Store(LakeError::Unconditional { .. })), "{refused}");
    assert!(objects.names().await.is_empty());
}

#[tokio::test]
async fn damage_and_newer_formats_are_named() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut writer = BackupWriter::new(store.clone());
    add(&mut writer, &Directory::new(), 1).await.expect("a healthy store");
    let point = points::read(&store, 1).await.expect("a healthy store");
    let data = &point.files[0].pieces[0].object;
    let path = store.path(data).expect("a name");
    let content = objects.get(&path).await.expect("it exists").bytes().await.expect("it exists");
    let mut changed = content.to_vec();
    *changed.last_mut().expect("it has bytes") ^= 1;
    objects.put(&path, changed.into()).await.expect("a healthy store");
    let refused = restored(&store, &point).await.expect_err("it is damaged");
    assert_eq!(refused.to_string(), format!("the object s3://bucket/warehouse/mq/{data} is damaged"));
    objects.delete(&path).await.expect("a healthy store");
    let refused = restored(&store, &point).await.expect_err("it is missing");
    assert!(matches!(refused, TransferError::Missing(_)), "{refused}");

    let newer = zstd::bulk::compress(br#"{"schema": "mqcore.restore-point/2", "version": "9.0.0"}"#, 1)
        .expect("memory");
    let path = Path::from("warehouse/mq/points/0000000002.json.zst");
    objects.put(&path, newer.into()).await.expect("a healthy store");
    let refused = points::newest(&store).await.expect_err("it is newer");
    assert!(refused.to_string().contains("mqcore 9.0.0 wrote it"), "{refused}");
}
