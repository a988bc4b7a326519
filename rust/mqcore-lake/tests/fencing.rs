//! Only one writer commits: a second broker is refused, a replaced process stops, and delayed commits come to nothing.

use std::fs;
use std::sync::Arc;

use mqcore_archive::reading::source::ArchiveSource as _;
use mqcore_journal::storage::Storage as _;
use mqcore_lake::error::LakeError;
use mqcore_lake::lake::{Lake, LakeOptions, ShardInput};
use mqcore_lake::location::LakeLocation;
use mqcore_lake::reading::LakeArchive;
use mqcore_lake::store::Store;
use tempfile::TempDir;

use crate::reader::{manifest, notes, place};
use crate::source::{Source, now_ms};
use crate::unreliable::{Failure, Unreliable};

const DAY_MS: u64 = 86_400_000;

fn options(journal: u64) -> LakeOptions {
    LakeOptions { journals: vec![journal], ..LakeOptions::default() }
}

/// Options of a broker that has not used the tables yet.
fn new(journal: u64) -> LakeOptions {
    LakeOptions { is_new: true, ..options(journal) }
}

async fn archive(lake: &mut Lake, source: &Source) -> Result<u64, LakeError> {
    let inventory = source.journal.sealed_notes();
    let input = ShardInput { shard: 0, journal: &source.disk, inventory: &inventory, start: 0 };
    Ok(lake.round(&[input], now_ms(), &|| false).await?[0].archived)
}

async fn read(store: &Store) -> std::collections::BTreeMap<u64, u64> {
    let store = store.clone();
    tokio::task::spawn_blocking(move || notes(&store, 0)).await.expect("no panic")
}

#[tokio::test]
async fn notes_are_in_the_table_once_after_any_number_of_rounds_and_openings() {
    let store = place(Unreliable::new());
    let mut source = Source::new(77);
    for round in 0..5 {
        let options = LakeOptions { is_new: round == 0, ..options(77) };
        let mut lake = Lake::open(store.clone(), options, None, now_ms()).await.expect("a healthy store");
        assert_eq!(lake.epoch(), round + 1);
        for _ in 0..2 {
            source.note(DAY_MS + round);
            source.note(2 * DAY_MS);
            source.seal();
            let archived = archive(&mut lake, &source).await.expect("a healthy store");
            assert_eq!(archived, source.written.keys().max().expect("there are some") + 1);
        }
    }
    assert_eq!(read(&store).await, source.written);
}

#[tokio::test]
async fn a_removed_segment_of_one_shard_delays_no_other() {
    let store = place(Unreliable::new());
    let journals = LakeOptions { journals: vec![77, 78], ..new(77) };
    let mut lake = Lake::open(store.clone(), journals, None, now_ms()).await.expect("a healthy store");
    let [mut shortened, mut other] = [77, 78].map(Source::new);
    for source in [&mut shortened, &mut other] {
        source.note(DAY_MS);
        source.seal();
    }
    let [old, inventory] = [&shortened, &other].map(|source| source.journal.sealed_notes());
    for name in shortened.disk.list().expect("a healthy disk") {
        shortened.disk.remove(&name).expect("a healthy disk");
    }
    let inputs = [
        ShardInput { shard: 0, journal: &shortened.disk, inventory: &old, start: 0 },
        ShardInput { shard: 1, journal: &other.disk, inventory: &inventory, start: 0 },
    ];
    let rounds = lake.round(&inputs, now_ms(), &|| false).await.expect("a healthy store");
    assert_eq!(
        (rounds[0].rows, rounds[0].archived, rounds[0].missing),
        (0, 0, 0),
        "it waits for the next inventory"
    );
    assert_eq!(rounds[1].archived, inventory.next);
    let found = tokio::task::spawn_blocking(move || notes(&store, 1)).await.expect("no panic");
    assert_eq!(found, other.written);
}

#[tokio::test]
async fn another_broker_is_refused_and_changes_nothing() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut source = Source::new(77);
    source.note(1);
    source.seal();
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    archive(&mut lake, &source).await.expect("a healthy store");
    let before = objects.names().await;
    let refused = Lake::open(store.clone(), new(78), None, now_ms()).await.expect_err("another broker");
    assert!(matches!(refused, LakeError::Owner { .. }), "{refused}");
    assert!(refused.to_string().contains("use another prefix"), "{refused}");
    assert_eq!(objects.names().await, before);
    source.note(2);
    source.seal();
    archive(&mut lake, &source).await.expect("the owner continues");
    assert_eq!(read(&store).await, source.written);
}

#[tokio::test]
async fn a_replaced_process_stops_for_good() {
    let store = place(Unreliable::new());
    let mut source = Source::new(77);
    let mut old = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    source.note(1);
    source.seal();
    archive(&mut old, &source).await.expect("a healthy store");
    let mut new = Lake::open(store.clone(), options(77), None, now_ms()).await.expect("a healthy store");
    source.note(2);
    source.seal();
    let conflict = archive(&mut old, &source).await.expect_err("the new process has taken over");
    assert!(matches!(conflict, LakeError::Conflict { .. }), "{conflict}");
    let fenced = Lake::open(store.clone(), options(77), Some(old.epoch()), now_ms()).await;
    assert!(matches!(fenced, Err(LakeError::Fenced { epoch: 2, this: 1, .. })), "{fenced:?}");
    archive(&mut new, &source).await.expect("the new process continues");
    assert_eq!(read(&store).await, source.written);
}

#[tokio::test]
async fn a_delayed_commit_has_no_effect_after_the_next_opening() {
    // Each change of a round in turn arrives only after the archive was opened again.
    for after in 0.. {
        let objects = Unreliable::new();
        let store = place(objects.clone());
        let mut source = Source::new(77);
        let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
        source.note(1);
        source.seal();
        objects.fail(after, Failure::Delayed);
        let archived = archive(&mut lake, &source).await;
        objects.heal();
        let epoch = lake.epoch();
        drop(lake);
        let mut lake = Lake::open(store.clone(), options(77), Some(epoch), now_ms()).await.expect("healed");
        objects.deliver().await;
        let complete = archive(&mut lake, &source).await.expect("a healthy store");
        assert_eq!(complete, source.written.keys().max().expect("one") + 1);
        let mut lake = Lake::open(store.clone(), options(77), None, now_ms()).await.expect("a healthy store");
        source.note(2);
        source.seal();
        archive(&mut lake, &source).await.expect("a healthy store");
        assert_eq!(read(&store).await, source.written, "with a failure after {after} changes");
        if archived.is_ok() {
            assert!(after > 5, "a round makes several changes");
            return;
        }
    }
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused() {
    let mut objects = Unreliable::new();
    objects.ignores_conditions = true;
    let refused = Lake::open(place(objects), new(77), None, now_ms()).await.expect_err("it is unsafe");
    assert!(matches!(refused, LakeError::Unconditional { .. }), "{refused}");
    assert!(refused.to_string().contains("If-None-Match"), "{refused}");
}

#[tokio::test]
async fn small_files_are_merged_and_expired_snapshots_leave_nothing_behind() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut source = Source::new(77);
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    for _ in 0..9 {
        source.note(DAY_MS);
        source.note(3 * DAY_MS);
        source.seal();
        archive(&mut lake, &source).await.expect("a healthy store");
    }
    assert_eq!(lake.size().files, 18);
    let mut merges = Vec::new();
    while let Some(merge) = lake.compact(now_ms(), &|| false).await.expect("a healthy store") {
        merges.push((merge.before, merge.after));
    }
    assert_eq!(merges, [(9, 1), (9, 1)]);
    assert_eq!(lake.size().files, 2);
    assert_eq!(read(&store).await, source.written);
    // Earlier snapshots still need the small files.
    let data = |names: &[String]| names.iter().filter(|name| name.ends_with(".parquet")).count();
    assert_eq!(data(&objects.names().await), 20);
    assert!(lake.expire(now_ms() + 3 * DAY_MS).await.expect("a healthy store") > 0);
    assert_eq!(data(&objects.names().await), 2);
    assert_eq!(read(&store).await, source.written);
    let described = tokio::task::spawn_blocking(move || manifest(&store)).await.expect("no panic");
    assert_eq!(described.files.len(), 2);
}

#[tokio::test]
async fn snapshots_that_a_tag_names_stay_with_their_files() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut source = Source::new(77);
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    for _ in 0..9 {
        source.note(DAY_MS);
        source.seal();
        archive(&mut lake, &source).await.expect("a healthy store");
    }
    drop(lake);
    // Another program tags a snapshot while the broker is stopped.
    let versions = async || {
        let names = objects.names().await;
        let version = |name: &String| -> Option<u64> {
            name.rsplit_once("/v")?.1.strip_suffix(".metadata.json")?.parse().ok()
        };
        let newest = names.iter().filter(|name| name.contains("/steps/")).max_by_key(|name| version(name));
        let newest = newest.expect("a table").clone();
        (version(&newest).expect("a number"), newest)
    };
    let (version, newest) = versions().await;
    let metadata = async |name: &str| -> serde_json::Value {
        let bytes = store.read(store.name(&store.location(name)).expect("below the URL")).await;
        serde_json::from_slice(&bytes.expect("a healthy store")).expect("JSON")
    };
    let name =
        |path: &str| path.split_once("steps/").map(|(_, rest)| format!("steps/{rest}")).expect("a table");
    let mut changed = metadata(&name(&newest)).await;
    let tagged = changed["snapshots"][3]["snapshot-id"].clone();
    changed["refs"]["audit"] = serde_json::json!({"snapshot-id": tagged, "type": "tag"});
    let next = name(&newest).replace(&format!("/v{version}."), &format!("/v{}.", version + 1));
    assert!(store.create(&next, changed.to_string().into()).await.expect("a healthy store"));

    let mut lake = Lake::open(store.clone(), options(77), None, now_ms()).await.expect("a healthy store");
    while lake.compact(now_ms(), &|| false).await.expect("a healthy store").is_some() {}
    for _ in 0..2 {
        lake.expire(now_ms() + 3 * DAY_MS).await.expect("a healthy store");
    }
    let (_, newest) = versions().await;
    let after = metadata(&name(&newest)).await;
    assert_eq!(after["refs"]["audit"]["snapshot-id"], tagged);
    let left = after["snapshots"].as_array().expect("a list");
    assert_eq!(left.len(), 2, "the current one and the tagged one");
    let data = objects.names().await.iter().filter(|name| name.ends_with(".parquet")).count();
    assert!(data > 1, "the merged file and those that the tagged snapshot has: {data}");
    assert_eq!(read(&store).await, source.written);
}

#[tokio::test]
async fn a_reader_notices_that_its_version_is_long_gone() {
    let store = place(Unreliable::new());
    let mut source = Source::new(77);
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    let reader = Arc::new(LakeArchive::new(store.clone()).expect("a thread"));
    let files = async || {
        let reader = Arc::clone(&reader);
        let read = move || reader.manifest().expect("it can be read").expect("there are tables").files.len();
        tokio::task::spawn_blocking(read).await.expect("no panic")
    };
    assert_eq!(files().await, 0);
    // More commits than metadata files are preserved.
    for round in 1..60 {
        source.note(round * DAY_MS);
        source.seal();
        archive(&mut lake, &source).await.expect("a healthy store");
    }
    assert_eq!(files().await, 59);
}

#[tokio::test]
async fn a_journal_from_an_older_backup_is_refused_instead_of_losing_its_new_history() {
    let store = place(Unreliable::new());
    let mut source = Source::new(77);
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    for _ in 0..5 {
        source.note(DAY_MS);
    }
    source.seal();
    archive(&mut lake, &source).await.expect("a healthy store");
    // The same journal as it was after its second note, and another third one.
    let mut restored = Source::new(77);
    for _ in 0..3 {
        restored.note(2 * DAY_MS);
    }
    restored.seal();
    let refused = archive(&mut lake, &restored).await.expect_err("its notes have numbers of others");
    assert!(matches!(refused, LakeError::Ahead { shard: 0, archived: 5, .. }), "{refused}");
    assert!(refused.to_string().contains("set archive_url to another prefix"), "{refused}");
    // Later, the restored journal is as long as the other one was. Its data directory has not seen these tables.
    for _ in 0..9 {
        restored.note(2 * DAY_MS);
    }
    restored.seal();
    let refused = Lake::open(store.clone(), new(77), None, now_ms())
        .await
        .expect_err("there is history of its journal");
    assert!(matches!(refused, LakeError::Ahead { shard: 0, archived: 5, .. }), "{refused}");
    assert_eq!(read(&store).await, source.written);
}

#[tokio::test]
async fn tables_that_are_gone_are_not_begun_again() {
    for catalog in ["", "sqlite"] {
        let root = TempDir::new().expect("a place for temporary files");
        let (mounted, elsewhere) = (root.path().join("lake"), root.path().join("elsewhere"));
        fs::create_dir(&mounted).expect("a place for temporary files");
        let database = ("catalog".to_owned(), format!("sqlite://{}/catalog.db", root.path().display()));
        let settings = [database].into_iter().filter(|_| !catalog.is_empty()).collect();
        let location = LakeLocation::open(&format!("file://{}", mounted.display()), &settings);
        let location = location.expect("a valid URL");
        let mut source = Source::new(77);
        let mut lake = Lake::open(location.clone(), new(77), None, now_ms()).await.expect("a healthy store");
        source.note(1);
        source.seal();
        assert_eq!(archive(&mut lake, &source).await.expect("a healthy store"), 1);
        // Without its file system, the directory is there and empty.
        fs::rename(&mounted, &elsewhere).expect("a healthy disk");
        fs::create_dir(&mounted).expect("a healthy disk");
        source.note(2);
        source.seal();
        let refused = archive(&mut lake, &source).await.expect_err("the tables are gone");
        assert!(matches!(refused, LakeError::Gone { .. }), "{refused}");
        assert!(refused.to_string().contains("set archive_url to another prefix"), "{refused}");
        assert_eq!(lake.archived(0, 77).expect("its own property"), 1, "the journal keeps the second note");
        let refused = Lake::open(location.clone(), options(77), None, now_ms()).await;
        assert!(matches!(refused, Err(LakeError::Gone { .. })), "{refused:?}");
        // It is mounted again.
        fs::remove_dir_all(&mounted).expect("a healthy disk");
        fs::rename(&elsewhere, &mounted).expect("a healthy disk");
        let mut lake = Lake::open(location, options(77), None, now_ms()).await.expect("a healthy store");
        assert_eq!(archive(&mut lake, &source).await.expect("a healthy store"), 2);
    }
}

#[tokio::test]
async fn files_that_a_merge_does_not_make_fewer_are_left_alone() {
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let mut source = Source::new(77);
    let mut lake = Lake::open(store.clone(), new(77), None, now_ms()).await.expect("a healthy store");
    for _ in 0..2 {
        for _ in 0..6000 {
            source.note(DAY_MS);
        }
        source.seal();
        archive(&mut lake, &source).await.expect("a healthy store");
    }
    drop(lake);
    let readable = store.clone();
    let described = tokio::task::spawn_blocking(move || manifest(&readable)).await.expect("no panic");
    let largest = described.files.iter().map(|file| file.bytes).max().expect("there are files");
    // Both files are small, and their rows take more than this before they are compressed.
    let options = LakeOptions { target_bytes: 2 * largest + 2, compact_after_ms: 0, ..options(77) };
    let mut lake = Lake::open(store.clone(), options, None, now_ms()).await.expect("a healthy store");
    let before = objects.served();
    assert_eq!(lake.compact(now_ms(), &|| false).await.expect("a healthy store"), None);
    assert_eq!(objects.served().puts, before.puts, "nothing is uploaded or committed");
    let tried = objects.served();
    assert_eq!(lake.compact(now_ms(), &|| false).await.expect("a healthy store"), None);
    assert_eq!(objects.served().got_bytes, tried.got_bytes, "it is not tried again");
    assert!(tried.got_bytes > before.got_bytes + largest, "it was tried");
    assert_eq!((lake.size().files, read(&store).await), (2, source.written));
}

#[tokio::test]
async fn a_journal_continues_after_the_one_that_it_replaces_unless_it_has_the_same_numbers() {
    let store = place(Unreliable::new());
    // The other shard keeps its journal, so that the tables are still those of this broker.
    let journals = |journal| LakeOptions { journals: vec![70, journal], ..options(70) };
    let first = LakeOptions { is_new: true, ..journals(77) };
    let [mut lost, mut foreign, mut next] = [Source::new(77), Source::new(78), Source::replacing(79)];
    for source in [&mut lost, &mut foreign, &mut next] {
        for _ in 0..5 {
            source.note(DAY_MS);
        }
        source.seal();
    }
    let mut lake = Lake::open(store.clone(), first, None, now_ms()).await.expect("a healthy store");
    archive(&mut lake, &lost).await.expect("a healthy store");
    let mut lake = Lake::open(store.clone(), journals(78), None, now_ms()).await.expect("a healthy store");
    let refused = archive(&mut lake, &foreign).await.expect_err("its notes have numbers of others");
    assert!(matches!(refused, LakeError::OtherJournal { shard: 0, archived: 5, .. }), "{refused}");
    assert!(refused.to_string().contains("set archive_url to another prefix"), "{refused}");
    assert_eq!(read(&store).await, lost.written);
    let mut lake = Lake::open(store.clone(), journals(79), None, now_ms()).await.expect("a healthy store");
    let inventory = next.journal.sealed_notes();
    let input = ShardInput { shard: 0, journal: &next.disk, inventory: &inventory, start: 0 };
    let rounds = lake.round(&[input], now_ms(), &|| false).await.expect("a healthy store");
    assert_eq!((rounds[0].archived, rounds[0].missing), (inventory.next, 0));
    let both = lost.written.into_iter().chain(next.written).collect();
    assert_eq!(read(&store).await, both);
}
