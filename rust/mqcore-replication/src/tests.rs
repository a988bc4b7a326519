//! A storage over a group against a storage in memory, with random changes, and what members have after crashes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::{MemoryStorage, Storage};
use tempfile::TempDir as Scratch;

use crate::applier::Applier;
use crate::identity::MemberIdentity;
use crate::input::Input;
use crate::replicator::Replicator;
use crate::status::LatestStatus;
use crate::storage::ReplicatedStorage;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A leader whose group commits everything, now and then late.
struct Leader {
    scratch: Scratch,
    replicator: Arc<Replicator>,
    entries: Arc<Mutex<Vec<Bytes>>>,
    inputs: Option<Sender<Input>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn prepared(root: &Path) -> Applier {
    fs::create_dir_all(MemberIdentity::directory(root)).unwrap();
    Applier::open(root).unwrap()
}

fn commit(
    inputs: &Receiver<Input>,
    replicator: &Replicator,
    mut applier: Applier,
    entries: &Mutex<Vec<Bytes>>,
    mut random: fastrand::Rng,
) {
    while let Ok(Input::Proposals) = inputs.recv() {
        for batch in replicator.take() {
            let mut entries = entries.lock().unwrap();
            entries.push(batch.entry.clone());
            applier.apply(entries.len() as u64, batch.entry.clone()).unwrap();
            if random.u8(..) < 30 {
                // The files have the changes, and the storage does not know it yet.
                std::thread::sleep(Duration::from_micros(300));
            }
            replicator.note_applied(batch.last, batch.entry.len());
        }
    }
}

impl Leader {
    fn new(seed: u64) -> Self {
        let scratch = Scratch::new().unwrap();
        let (inputs, received) = channel();
        let replicator = Replicator::new(scratch.path(), inputs.clone(), LatestStatus::default());
        let entries = Arc::new(Mutex::new(Vec::new()));
        let applier = prepared(scratch.path());
        let (theirs, kept) = (Arc::clone(&replicator), Arc::clone(&entries));
        let random = fastrand::Rng::with_seed(seed);
        let thread = std::thread::spawn(move || commit(&received, &theirs, applier, &kept, random));
        Self { scratch, replicator, entries, inputs: Some(inputs), thread: Some(thread) }
    }

    fn storage(&self) -> ReplicatedStorage {
        ReplicatedStorage::open(&self.replicator, &self.scratch.path().join("shard-0")).unwrap()
    }

    /// The entries of its log.
    fn entries(&self) -> Vec<Bytes> {
        self.entries.lock().unwrap().clone()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // The end of the test: the replicator keeps the other sender, so the thread hears it as another input.
        let _ = self.inputs.take().map(|inputs| inputs.send(Input::Resign));
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn content<S: Storage>(storage: &S, file: &S::File) -> Vec<u8> {
    let mut content = vec![0; storage.length(file).unwrap() as usize];
    let mut filled = 0;
    while filled < content.len() {
        match storage.read_at(file, filled as u64, &mut content[filled..]).unwrap() {
            0 => panic!("a file ends before its length"),
            read => filled += read,
        }
    }
    content
}

fn contents<S: Storage>(storage: &S) -> BTreeMap<String, Vec<u8>> {
    let names = storage.list().unwrap().into_iter();
    names.map(|name| (name.clone(), content(storage, &storage.open(&name).unwrap()))).collect()
}

fn on_disk(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(found) = fs::read_dir(root.join("shard-0")) else { return BTreeMap::new() };
    let files = found.map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_name() != "lock");
    files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Makes the same random change in both storages. `large`: files that are renamed keep their bytes on the disk.
fn change(
    random: &mut fastrand::Rng,
    (ours, model): (&ReplicatedStorage, &MemoryStorage),
    large: u64,
    open: &mut Vec<(Arc<crate::storage::ReplicatedFile>, mqcore_journal::storage::MemoryFile)>,
) {
    let name = NAMES[random.usize(..NAMES.len())];
    let other = NAMES[random.usize(..NAMES.len())];
    match random.u8(..10) {
        0 | 1 => {
            let length = random.u64(..100) + if random.u8(..4) == 0 { large } else { 0 };
            let created = (ours.create(name, length), model.create(name, length));
            assert_eq!(created.0.is_ok(), created.1.is_ok(), "create {name}");
            if let (Ok(first), Ok(second)) = created {
                open.push((first, second));
            }
        }
        2..=5 => {
            if let (Ok(first), Ok(second)) = (ours.open(name), model.open(name)) {
                let bytes = vec![random.u8(1..); random.usize(1..60)];
                let offset = random.u64(..120);
                assert_eq!(ours.write_at(&first, offset, &bytes).unwrap(), bytes.len());
                assert_eq!(model.write_at(&second, offset, &bytes).unwrap(), bytes.len());
                open.push((first, second));
            }
        }
        6 => {
            if let (Ok(first), Ok(second)) = (ours.open(name), model.open(name)) {
                let length = random.u64(..150);
                ours.set_length(&first, length).unwrap();
                model.set_length(&second, length).unwrap();
            }
        }
        7 if name != other => {
            assert_eq!(
                ours.rename(name, other).is_ok(),
                model.rename(name, other).is_ok(),
                "{name} to {other}"
            );
        }
        8 => assert_eq!(ours.remove(name).is_ok(), model.remove(name).is_ok(), "remove {name}"),
        _ => ours.sync_directory().unwrap(),
    }
    while open.len() > 6 {
        open.remove(random.usize(..open.len()));
    }
}

#[test]
fn a_storage_over_a_group_is_like_any_other() {
    for seed in 0..60 {
        let leader = Leader::new(seed);
        let (ours, model) = (leader.storage(), MemoryStorage::new(seed));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        for step in 0..120 {
            change(&mut random, (&ours, &model), 8192, &mut open);
            assert_eq!(contents(&ours), contents(&model), "seed {seed}, step {step}");
            for (first, second) in &open {
                assert_eq!(
                    content(&ours, first),
                    content(&model, second),
                    "seed {seed}, step {step}: an open file"
                );
            }
        }
        ours.sync_directory().unwrap();
        assert_eq!(on_disk(leader.scratch.path()), contents(&model), "seed {seed}");
    }
}

#[test]
fn a_file_that_is_complete_keeps_nothing_in_memory() {
    let leader = Leader::new(7);
    let storage = leader.storage();
    let file = storage.create("a", 8 << 20).unwrap();
    let piece = vec![1; 1 << 20];
    for number in 0..4 {
        assert_eq!(storage.write_at(&file, number << 20, &piece).unwrap(), piece.len());
    }
    storage.sync_data(&file).unwrap();
    assert_eq!(file.changes(), 0);
    storage.write_at(&file, 4 << 20, &piece).unwrap();
    storage.sync_directory().unwrap();
    storage.set_length(&file, 5 << 20).unwrap();
    storage.sync_directory().unwrap();
    assert_eq!(file.changes(), 1, "its length");
}

#[test]
fn members_have_the_same_files_however_often_they_repeat_entries() {
    for seed in 100..140 {
        let leader = Leader::new(seed);
        let (ours, model) = (leader.storage(), MemoryStorage::new(seed));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        for _ in 0..150 {
            change(&mut random, (&ours, &model), 8192, &mut open);
        }
        ours.sync_directory().unwrap();
        let entries = leader.entries();
        let follower = Scratch::new().unwrap();
        let mut applier = prepared(follower.path());
        let (mut at, mut crashes) = (0, 0);
        while at < entries.len() {
            applier.apply(at as u64 + 1, entries[at].clone()).unwrap();
            at += 1;
            if crashes < 8 && random.u8(..) < 30 {
                // It begins again with all that its log has.
                (applier, at, crashes) = (Applier::open(follower.path()).unwrap(), 0, crashes + 1);
            }
        }
        assert_eq!(on_disk(follower.path()), contents(&model), "seed {seed}");
        applier.checkpoint().unwrap();
    }
}

#[test]
fn a_journal_continues_on_another_member() {
    let leader = Leader::new(1);
    let options = || Options { segment_bytes: 64 << 10, ..Options::default() };
    let open = |storage, put: &mut dyn FnMut(u64, &[u8])| {
        let observed = Journal::open_with_observers(storage, options(), &mut |_, _| {}, put, &mut |report| {
            assert!(!report.is_alarming(), "{report}");
            Ok(())
        });
        observed.unwrap().0
    };
    let mut journal = open(leader.storage(), &mut |_, _| {});
    for number in 0..400_u64 {
        journal.put(number, 1, &[&number.to_le_bytes().repeat(100)]).unwrap();
        if number % 7 == 0 {
            journal.write().and_then(|()| journal.sync()).unwrap();
        }
        if number % 3 == 0 && number > 100 {
            journal.settle(&[number - 90]).unwrap();
        }
        if number % 50 == 0 {
            journal.maintain(0, 1 << 20).unwrap();
        }
    }
    journal.write().and_then(|()| journal.sync()).unwrap();
    let live: Vec<u64> = journal.live().collect();
    // Another member has carried out the same entries, and leads now.
    let other = Leader::new(2);
    let mut applier = prepared(other.scratch.path());
    for (place, entry) in leader.entries().into_iter().enumerate() {
        applier.apply(place as u64 + 1, entry).unwrap();
    }
    assert_eq!(on_disk(other.scratch.path()), on_disk(leader.scratch.path()));
    let mut seen = BTreeMap::new();
    let journal = open(other.storage(), &mut |sequence, payload| {
        seen.insert(sequence, payload.to_vec());
    });
    assert_eq!(journal.live().collect::<Vec<u64>>(), live);
    for sequence in live {
        assert_eq!(journal.read(sequence).unwrap().len(), 800);
        assert!(seen.contains_key(&sequence));
    }
}
