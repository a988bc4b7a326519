//! Random work on a journal and its archive, on real files, with a concurrent reader. The reader sees every written note
//! once, whatever was archived, moved, released or recreated between planning and reading.
//!
//! Seeds: see the crate `mqcore-testkit`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use mqcore_archive::archive::{Archive, ArchiveError, Retention};
use mqcore_archive::reading::columns::{note_of, sequence};
use mqcore_archive::reading::request::HistoryRequest;
use mqcore_archive::reading::source::DirectoryArchive;
use mqcore_archive::reading::{Division, Piece, ReadError, ShardHistory};
use mqcore_archive::tree::TreeStorage;
use mqcore_broker::history::Block;
use mqcore_broker::model::time::Timestamp;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::FileStorage;
use tempfile::TempDir;

use mqcore_testkit::Random;

const DAY_MS: u64 = 86_400_000;

struct Run {
    chance: Random,
    /// Goes with the test.
    root: TempDir,
    journal: Option<Journal<FileStorage>>,
    reader: Arc<ShardHistory>,
    /// Content of each written note.
    written: BTreeMap<u64, u64>,
    /// Buffered notes.
    pending: Vec<(u64, u64)>,
}

fn options() -> Options {
    Options { segment_bytes: 4096, identity: 77, retain_notes_bytes: None, ..Options::default() }
}

fn open(root: &Path) -> Journal<FileStorage> {
    open_as(root, options())
}

fn open_as(root: &Path, options: Options) -> Journal<FileStorage> {
    let storage = FileStorage::open(root.join("shard-0")).expect("nobody has it");
    Journal::open(storage, options, &mut |_, _| {}).expect("a sound disk").0
}

fn archive(root: &Path) -> Archive<TreeStorage> {
    Archive::open(TreeStorage::open(root.join("archive")).expect("a sound disk")).expect("a sound disk")
}

fn history(root: &Path) -> ShardHistory {
    let archive = Arc::new(DirectoryArchive::new(&root.join("archive")));
    ShardHistory::new(0, &root.join("shard-0"), archive)
}

fn request() -> Arc<HistoryRequest> {
    Arc::new(
        HistoryRequest::parse(r#"{"view":"steps","columns":["sequence","missing"]}"#).expect("it is one"),
    )
}

fn longs(batch: &RecordBatch, name: &str) -> Vec<u64> {
    let column = batch.column_by_name(name).expect("it was asked for").as_primitive::<Int64Type>();
    column.values().iter().map(|value| value.cast_unsigned()).collect()
}

/// The notes of pieces, and what they say. Every row has a place of its own.
fn read(reader: &Arc<ShardHistory>, pieces: &[Piece]) -> Result<BTreeMap<u64, u64>, ReadError> {
    let mut found = BTreeMap::new();
    for piece in pieces {
        for batch in reader.read(&request(), piece, true)? {
            let batch = batch?;
            for (at, tag) in longs(&batch, "sequence").into_iter().zip(longs(&batch, "missing")) {
                assert!((piece.from..piece.until).contains(&at), "a row stands outside of its piece");
                assert_eq!(found.insert(note_of(at), tag), None, "note {} was read twice", note_of(at));
            }
        }
    }
    Ok(found)
}

impl Run {
    fn new(seed: u64) -> Self {
        let root = TempDir::new().expect("a place for temporary files");
        let journal = open(root.path());
        let reader = history(root.path());
        let (written, pending) = (BTreeMap::new(), Vec::new());
        Self {
            chance: Random::new(seed),
            root,
            journal: Some(journal),
            reader: Arc::new(reader),
            written,
            pending,
        }
    }

    fn journal(&mut self) -> &mut Journal<FileStorage> {
        self.journal.as_mut().expect("it is open between the steps")
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..=39 => {
                let tag = 1 + (self.written.len() + self.pending.len()) as u64;
                let time = Timestamp(self.chance.below(3) * DAY_MS);
                let block = Block::gap(time, tag);
                let number = self.journal().note(time.0, &block.bytes).expect("there is space");
                self.pending.push((number, tag));
            }
            40..=54 => {
                let next = self.journal().next_sequence();
                let payload = vec![7; self.chance.below(900) as usize];
                self.journal().put(next, 0, &[&payload]).expect("there is space");
            }
            55..=62 => {
                let next = self.journal().next_sequence();
                let settled: Vec<_> = (0..next).filter(|_| self.chance.below(2) == 0).collect();
                self.journal().settle(&settled).expect("there is space");
            }
            63..=76 => self.write(),
            77..=82 => {
                let budget = self.chance.below(3000) as usize;
                self.journal().maintain(1, budget).expect("a sound disk");
                self.write();
            }
            83..=86 => {
                self.journal().seal_notes(u64::MAX).expect("a sound disk");
                self.write();
            }
            87..=95 => self.round(),
            96..=97 => {
                // As a killed process leaves it: what was written is there, and nothing says where it ends.
                self.write();
                drop(self.journal.take());
                self.journal = Some(open(self.root.path()));
                self.write();
            }
            _ => {
                // A reader that knows nothing yet.
                let root = self.root.path();
                self.reader = Arc::new(history(root));
            }
        }
    }

    fn write(&mut self) {
        self.journal().sync().expect("a sound disk");
        self.journal().write().expect("a sound disk");
        self.journal().sync().expect("a sound disk");
        self.written.extend(self.pending.drain(..));
    }

    fn round(&mut self) {
        self.write();
        let inventory = self.journal().sealed_notes();
        let source = TreeStorage::open(self.root.path().join("shard-0")).expect("a sound disk");
        let round = archive(self.root.path()).round(0, &source, &inventory, 5).expect("a sound disk");
        if self.chance.below(4) > 0 {
            self.journal().release_notes(round.archived);
            self.journal().maintain(1, 1 << 20).expect("a sound disk");
            self.write();
        }
    }

    /// Plans, lets things happen, and reads what was planned.
    fn look(&mut self) {
        let ends = self.reader.ends().expect("a sound disk");
        let known = self.written.clone();
        let latest = note_of(ends.latest);
        assert!(known.keys().all(|note| *note < latest), "{known:?} but the end is {latest}");
        let from = self.chance.below(latest + 1);
        let until = from + self.chance.below(latest + 1 - from);
        let range: Range<u64> = match self.chance.below(3) {
            0 => 0..ends.latest,
            _ => sequence(from, 0)..sequence(until, 0),
        };
        let target = [0, 1000, 1 << 30][self.chance.below(3) as usize];
        let pieces =
            self.reader.pieces(&request(), range.clone(), Division::in_order(target)).expect("a sound disk");
        for _ in 0..self.chance.below(12) {
            self.step();
        }
        let mut expected = known;
        expected.retain(|note, _| range.contains(&sequence(*note, 0)));
        let mut found = read(&self.reader, &pieces).expect("nothing is lost");
        // Notes that were buffered at the time of the plan may be written by now.
        found.retain(|note, _| expected.contains_key(note) || !self.written.contains_key(note));
        assert_eq!(found, expected);
    }

    /// Goes through everything in steps of a few rows, as a stream does.
    fn follow(&mut self) {
        self.write();
        let ends = self.reader.ends().expect("a sound disk");
        let (mut at, mut found) = (0, BTreeMap::new());
        while at < ends.latest {
            let rows = 1 + self.chance.below(5);
            let (next, taken) =
                self.reader.advance(&request(), at..ends.latest, rows, true).expect("nothing is lost");
            let pieces =
                self.reader.pieces(&request(), at..next, Division::in_order(0)).expect("a sound disk");
            let some = read(&self.reader, &pieces).expect("nothing is lost");
            assert_eq!(some.len() as u64, taken, "as many as were counted");
            assert!(taken <= rows && (next > at || taken == 0));
            found.extend(some);
            at = next;
        }
        assert_eq!(found, self.written);
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..12 {
        for _ in 0..run.chance.below(20) {
            run.step();
        }
        run.look();
    }
    run.follow();
}

#[test]
fn every_note_is_read_once_whatever_happens_between_planning_and_reading() {
    mqcore_testkit::seeds(3, 15).for_each(run);
}

#[test]
fn removed_history_is_an_error_only_for_queries_that_need_it() {
    let mut run = Run::new(9000);
    for tag in 1..=9 {
        let block = Block::gap(Timestamp(tag * DAY_MS), tag);
        run.journal().note(tag * DAY_MS, &block.bytes).expect("there is space");
    }
    run.journal().seal_notes(u64::MAX).expect("a sound disk");
    run.chance = Random::new(1);
    run.round();
    let before =
        run.reader.pieces(&request(), 0..sequence(9, 0), Division::in_order(0)).expect("a sound disk");
    assert_eq!(read(&run.reader, &before).expect("all is there").len(), 9);
    // One file for each day: as many files as fit make a piece, and one at least.
    let sizes: Vec<_> = before.iter().map(|piece| piece.bytes).collect();
    assert_eq!(sizes.len(), 9);
    for (target, wanted) in [(sizes[0] + sizes[1] - 1, 9), (sizes.iter().sum(), 1), (u64::MAX, 1)] {
        let pieces = run
            .reader
            .pieces(&request(), 0..sequence(9, 0), Division::in_order(target))
            .expect("a sound disk");
        assert_eq!(pieces.len(), wanted, "{target} bytes, {sizes:?}");
        assert_eq!(read(&run.reader, &pieces).expect("all is there").len(), 9);
    }
    let retention = Retention { age_ms: Some(4 * DAY_MS), bytes: None };
    archive(run.root.path()).retain(retention, 8 * DAY_MS + 1).expect("a sound disk");
    let ends = run.reader.ends().expect("a sound disk");
    assert_eq!((note_of(ends.earliest), note_of(ends.latest)), (4, 9));
    // It was planned before. The files that are there still have other notes.
    match read(&run.reader, &before) {
        Err(ReadError::Lost { notes: 1, why, .. }) => assert_eq!(why, "retention has removed them"),
        other => panic!("{other:?}"),
    }
    let after = run.reader.pieces(&request(), 0..ends.latest, Division::in_order(0)).expect("a sound disk");
    let found = read(&run.reader, &after).expect("what is gone is no news");
    assert_eq!(found.values().copied().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    let lenient: Vec<_> = before
        .iter()
        .flat_map(|piece| run.reader.read(&request(), piece, false).expect("it goes on behind it"))
        .map(|batch| batch.expect("it goes on behind it").num_rows())
        .collect();
    assert_eq!(lenient.iter().sum::<usize>(), 5);
}

#[test]
fn conditions_on_rows_hold_in_files_whose_notes_are_all_in_the_range() {
    let mut run = Run::new(9001);
    for tag in 1..=9 {
        let time = DAY_MS + tag;
        run.journal().note(time, &Block::gap(Timestamp(time), tag).bytes).expect("there is space");
    }
    run.journal().seal_notes(u64::MAX).expect("a sound disk");
    run.chance = Random::new(1);
    run.round();
    let pieces =
        run.reader.pieces(&request(), 0..sequence(9, 0), Division::in_order(u64::MAX)).expect("a sound disk");
    let us = |tag: u64| (DAY_MS + tag) * 1000;
    let all: Vec<u64> = (1..=9).collect();
    for (condition, wanted) in [
        (String::new(), &all[..]),
        (format!(r#","since_us":{}"#, us(4)), &all[3..]),
        (format!(r#","until_us":{}"#, us(4)), &all[..3]),
        (format!(r#","since_us":{},"until_us":{}"#, us(4), us(6)), &all[3..5]),
        (r#","kinds":["gap"]"#.to_owned(), &all[..]),
        (r#","kinds":["saved"]"#.to_owned(), &[]),
        (r#","queues":["a/1"]"#.to_owned(), &[]),
        (r#","pattern":"a/1""#.to_owned(), &[]),
    ] {
        let json = format!(r#"{{"view":"steps","columns":["missing"]{condition}}}"#);
        let request = Arc::new(HistoryRequest::parse(&json).expect("it is one"));
        let found: Vec<u64> = pieces
            .iter()
            .flat_map(|piece| run.reader.read(&request, piece, true).expect("all is there"))
            .flat_map(|batch| longs(&batch.expect("all is there"), "missing"))
            .collect();
        assert_eq!(found, wanted, "{condition}");
    }
}

/// Writes notes with these contents, and seals their segment.
fn note_all(journal: &mut Journal<FileStorage>, tags: Range<u64>) {
    for tag in tags {
        journal.note(DAY_MS, &Block::gap(Timestamp(DAY_MS), tag).bytes).expect("there is space");
    }
    journal.seal_notes(u64::MAX).expect("a sound disk");
    journal.write().expect("a sound disk");
    journal.sync().expect("a sound disk");
}

#[test]
fn notes_of_a_replaced_journal_are_never_taken_for_those_of_the_next_one() {
    let root = TempDir::new().expect("a place for temporary files");
    let root = root.path();
    let reader = Arc::new(history(root));
    let everything = || {
        let latest = reader.ends().expect("a sound disk").latest;
        let pieces = reader.pieces(&request(), 0..latest, Division::in_order(0)).expect("a sound disk");
        let tags: Vec<u64> = read(&reader, &pieces).expect("nothing is lost").into_values().collect();
        (tags, pieces)
    };
    let source = || TreeStorage::open(root.join("shard-0")).expect("a sound disk");
    let replace = |options: Options, tags: Range<u64>| {
        std::fs::remove_dir_all(root.join("shard-0")).expect("it is there");
        let mut journal = open_as(root, options);
        note_all(&mut journal, tags);
        journal.sealed_notes()
    };
    let mut journal = open(root);
    note_all(&mut journal, 1..11);
    let inventory = journal.sealed_notes();
    let (tags, planned) = everything();
    assert_eq!(tags, (1..11).collect::<Vec<_>>());
    archive(root).round(0, &source(), &inventory, 5).expect("a sound disk");
    drop(journal);
    // The directory is lost, and another journal begins. Both are archived, and the rows of each have numbers of their own.
    let now_ms = 1_800_000_000_000;
    let next = Options { identity: 78, replaces_another: true, now_ms, ..options() };
    let inventory = replace(next, 101..106);
    let round = archive(root).round(0, &source(), &inventory, 5).expect("a sound disk");
    assert_eq!((round.rows, round.missing), (5, 0));
    assert_eq!(everything().0, (1..11).chain(101..106).collect::<Vec<_>>());
    // A piece of the old journal ends with an error, and not with rows of the new one.
    let outcome = read(&reader, &planned);
    assert!(matches!(outcome, Err(ReadError::Lost { notes: 10, .. })), "{outcome:?}");
    // Another journal with the same numbers is not archived.
    let inventory = replace(Options { identity: 79, ..options() }, 201..206);
    let refused = archive(root).round(0, &source(), &inventory, 5).expect_err("its numbers are taken");
    assert!(matches!(refused, ArchiveError::OtherJournal { shard: 0, .. }), "{refused}");
    assert_eq!(everything().0, (201..206).collect::<Vec<_>>());
}

#[test]
fn a_file_that_retention_removes_during_a_query_is_lost_although_other_queues_have_later_files() {
    let root = TempDir::new().expect("a place for temporary files");
    let mut journal = open(root.path());
    for (time, queue) in [(9, b"a/0"), (10, b"b/0"), (9, b"a/0")] {
        // Version, time, the name of a queue, and its message 5, which a restart restored.
        let block = [&[3, time, 0x02, 3][..], queue, &[0x06, 0, 1, 5, 0]].concat();
        journal.note(DAY_MS, &block).expect("there is space");
    }
    journal.seal_notes(u64::MAX).expect("a sound disk");
    journal.write().expect("a sound disk");
    journal.sync().expect("a sound disk");
    let source = TreeStorage::open(root.path().join("shard-0")).expect("a sound disk");
    archive(root.path()).round(0, &source, &journal.sealed_notes(), 5).expect("a sound disk");
    let reader = Arc::new(history(root.path()));
    let request = r#"{"view":"steps","columns":["sequence"],"queues":["a/0"]}"#;
    let request = Arc::new(HistoryRequest::parse(request).expect("it is one"));
    let pieces = reader.pieces(&request, 0..sequence(3, 0), Division::in_order(0)).expect("a sound disk");
    let [piece] = &pieces[..] else { panic!("one file has rows of the queue: {pieces:?}") };
    let mut lenient = reader.read(&request, piece, false).expect("all is there");
    let strict = reader.read(&request, piece, true).expect("all is there");
    let retention = Retention { age_ms: Some(DAY_MS), bytes: None };
    let gone = archive(root.path()).retain(retention, DAY_MS + 10).expect("a sound disk");
    assert_eq!((gone.files, gone.rows), (1, 2));
    let rows: usize = lenient.by_ref().map(|batch| batch.expect("it goes on").num_rows()).sum();
    assert_eq!((rows, lenient.lost()), (0, 3));
    match strict.last() {
        Some(Err(ReadError::Lost { notes: 3, why, .. })) => assert_eq!(why, "retention has removed them"),
        other => panic!("{other:?}"),
    }
}
