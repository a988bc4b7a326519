//! Real files: rolling, housekeeping, opening again, a full file system, and who holds the directory.

use crate::world;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::stats::Health;
use mqcore_journal::storage::FileStorage;
use mqcore_journal::storage::lock::lock_descriptors;

use world::{World, definitions};

/// A directory of its own, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mqcore-journal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options { segment_bytes: 64 << 10, ..Options::default() }
}

fn open(directory: &Path) -> (Journal<FileStorage>, World) {
    let storage = FileStorage::open(directory).unwrap();
    let mut last = (0, 0);
    let (journal, recovered) =
        Journal::open(storage, options(), &mut |done, total| last = (done, total)).unwrap();
    assert_eq!(last.0, last.1, "progress ends with everything done");
    assert!(!recovered.report.is_alarming(), "{}", recovered.report);
    let world = World::of(&journal, &definitions(&recovered));
    (journal, world)
}

fn segment_files(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".segment")).count()
}

#[test]
fn a_journal_of_files_rolls_is_kept_small_and_opens_again() {
    let scratch = Scratch::new("roll");
    let (mut journal, world) = open(&scratch.0);
    assert_eq!(world, World::default());
    let mut expected = World::default();
    for sequence in 0..4000_u64 {
        let payload = sequence.to_le_bytes().repeat(40);
        journal.put(sequence, 3, &[&payload]).unwrap();
        // One of a hundred is never settled: it must not keep its segment.
        if sequence % 100 == 0 {
            expected.live.insert(sequence, (3, payload, None));
        } else {
            journal.settle(&[sequence]).unwrap();
        }
        if sequence % 64 == 0 {
            journal.write().unwrap();
            journal.sync().unwrap();
            journal.maintain(sequence, 64 << 10).unwrap();
        }
    }
    journal.define(b"queue", b"paused").unwrap();
    expected.definitions.insert(b"queue".to_vec(), b"paused".to_vec());
    while journal.maintain(0, 1 << 20).unwrap().more {}
    journal.write().unwrap();
    journal.sync().unwrap();
    assert!(segment_files(&scratch.0) <= 5, "{:?}", journal.stats().segments);
    for (sequence, (_, payload, _)) in &expected.live {
        assert_eq!(journal.read(*sequence).as_ref(), Ok(payload));
    }
    assert_eq!(journal.read(1), Err(JournalError::NotLive(1)));
    drop(journal);
    for _ in 0..3 {
        let (journal, world) = open(&scratch.0);
        assert_eq!(world, expected);
        assert!(journal.next_sequence() >= 4000);
        journal.close().unwrap();
    }
}

#[test]
fn a_directory_is_held_by_one_journal_at_a_time() {
    let scratch = Scratch::new("lock");
    let held = FileStorage::open(&scratch.0).unwrap();
    assert!(FileStorage::open(&scratch.0).is_err());
    drop(held);
    FileStorage::open(&scratch.0).unwrap();
}

/// A forked child closes these descriptors, or it would hold the lock as long as it runs.
#[cfg(target_os = "linux")]
#[test]
fn the_descriptors_of_a_lock_are_known_until_it_is_released() {
    let locked = |directory: &Path| {
        let file = |descriptor| std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok();
        let files: Vec<_> = lock_descriptors().into_iter().filter_map(file).collect();
        files.into_iter().filter(|file| file.starts_with(directory)).collect::<Vec<_>>()
    };
    let scratch = Scratch::new("descriptors");
    let directory = scratch.0.canonicalize().unwrap();
    let held = FileStorage::open(&directory).unwrap();
    // While another test changes the list, it counts as empty.
    let limit = Instant::now() + Duration::from_secs(10);
    let mut files = locked(&directory);
    while files.is_empty() && Instant::now() < limit {
        std::thread::yield_now();
        files = locked(&directory);
    }
    assert!(files.contains(&directory), "{files:?}");
    assert!(files.iter().any(|file| file.parent() == Some(&directory)), "{files:?}");
    drop(held);
    let _next_to_use_the_numbers = [File::open(&directory), File::open(&directory)];
    assert_eq!(locked(&directory), Vec::<PathBuf>::new());
}

#[test]
fn notes_go_when_they_are_too_old_or_too_many() {
    let scratch = Scratch::new("notes");
    let options = Options { retain_notes_ms: Some(1000), retain_notes_bytes: Some(300 << 10), ..options() };
    let storage = FileStorage::open(&scratch.0).unwrap();
    let (mut journal, _) = Journal::open(storage, options, &mut |_, _| {}).unwrap();
    let mut now = 0;
    let mut note = |journal: &mut Journal<FileStorage>, count: u64| {
        for _ in 0..count {
            now += 1;
            journal.note(now, &[7; 1000]).unwrap();
            journal.write().unwrap();
        }
        journal.sync().unwrap();
        while journal.maintain(now, 1 << 20).unwrap().more {}
        journal.stats().notes
    };
    assert_eq!(note(&mut journal, 100), 100);
    let kept = note(&mut journal, 700);
    assert!((200..=400).contains(&kept), "the size limit holds: {kept}");
    journal.maintain(5000, 1 << 20).unwrap();
    while journal.maintain(5000, 1 << 20).unwrap().more {}
    let kept = journal.stats().notes;
    assert!(kept < 70, "only the segment that is being written may keep old ones: {kept}");
}

/// A file system of this size, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(scratch: &Scratch) -> Option<Self> {
        let path = scratch.0.join("disk");
        std::fs::create_dir_all(&path).ok()?;
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1032k", "tmpfs"]).arg(&path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(path)),
            outcome => {
                #[expect(clippy::print_stderr, reason = "says why a test was skipped")]
                {
                    eprintln!("skipped: mounting a tmpfs is not permitted here ({outcome:?})");
                }
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_rejects_puts_but_not_settlements_until_it_has_space() {
    let scratch = Scratch::new("full");
    let Some(disk) = SmallDisk::mount(&scratch) else { return };
    let (mut journal, _) = open(&disk.0);
    let mut live = BTreeMap::new();
    let mut sequence = 0;
    for _ in 0..20 {
        // To the brim.
        loop {
            let payload = vec![sequence as u8; 900];
            match journal.put(sequence, 1, &[&payload]) {
                Ok(()) => drop(live.insert(sequence, (1, payload, None))),
                Err(JournalError::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            sequence += 1;
        }
        assert_eq!(journal.health(), Health::Full);
        journal.write().unwrap();
        journal.sync().unwrap();
        assert!(matches!(journal.maintain(0, 1 << 20), Err(JournalError::Full { .. })));
        // Consumers take a third, and are confirmed.
        let taken: Vec<u64> = live.keys().copied().take(300).collect();
        for sequence in &taken {
            assert_eq!(journal.read(*sequence).as_ref(), Ok(&live[sequence].1));
        }
        journal.settle(&taken).unwrap();
        journal.write().unwrap();
        journal.sync().unwrap();
        live.retain(|sequence, _| !taken.contains(sequence));
        // Their segments go, and publishers are welcome again.
        while journal.maintain(0, 1 << 20).unwrap().more {}
        assert_eq!(journal.health(), Health::Healthy);
    }
    drop(journal);
    let (_, world) = open(&disk.0);
    assert_eq!(world.live, live);
}

#[cfg(unix)]
#[test]
fn files_and_directories_belong_to_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("modes");
    let directory = scratch.0.join("data").join("shard-0");
    let (mut journal, _) = open(&directory);
    for sequence in 1..2_000 {
        journal.put(sequence, 1, &[&[1; 100]]).unwrap();
    }
    journal.close().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(directory.parent().unwrap()), mode(&directory)), (0o700, 0o700));
    let mut files = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        files += 1;
    }
    assert!(files > 3, "a lock and several segments");
}
