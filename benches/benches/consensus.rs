//! Three replicas of a log in one thread, beside one journal: entries of 1 KiB that are committed a second.
//!
//! Each replica has its journal on the same disk, and messages between them are encoded. All three disks are synced one after
//! the other, so that the figures are a lower bound of what three machines reach. `window` entries are proposed before the
//! first is committed; each round of the loop makes one sync for each replica that has written. `MQCORE_BENCH_DIR` names the disk
//! (default: the target directory's); `MQCORE_BENCH_SECONDS` how long each turn takes (default 0.5).
#![expect(clippy::print_stdout, reason = "a report for people")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqcore_consensus::journal_log::JournalLog;
use mqcore_consensus::log::{EntryKind, LogEntry, LogSnapshot, ReplicatedLog};
use mqcore_consensus::membership::{GroupMembers, ReplicaId};
use mqcore_consensus::message::ReplicaMessage;
use mqcore_consensus::replica::{Replica, ReplicaOptions, ReplicaRole};
use mqcore_journal::options::Options;
use mqcore_journal::storage::FileStorage;

const BODY_BYTES: usize = 1024;
const ROUNDS: usize = 5;
/// Entries after which a log is replaced by an empty snapshot.
const COMPACTION: u64 = 20_000;

type DiskReplica = Replica<JournalLog<FileStorage>>;

fn main() {
    let directory = std::env::var_os("MQCORE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let directory = directory.join(format!("consensus-bench-{}", std::process::id()));
    let seconds =
        std::env::var("MQCORE_BENCH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0.5);
    let turn = Duration::from_secs_f64(seconds);
    println!("entries of {BODY_BYTES} bytes, median of {ROUNDS} turns, in {}", directory.display());
    println!("{:>7} {:>14} {:>14} {:>6}", "window", "one journal/s", "three/s", "ratio");
    for window in [1, 64, 512] {
        let (mut single, mut group) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            single.push(one_journal(&fresh(&directory, "single"), window, turn));
            group.push(three_replicas(&directory, window, turn));
        }
        let (single, group) = (median(single), median(group));
        println!("{window:>7} {single:>14.0} {group:>14.0} {:>5.0}%", group / single * 100.0);
    }
    std::fs::remove_dir_all(&directory).expect("the bench's own directory");
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn fresh(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory for the bench");
    path
}

fn open(path: &Path) -> JournalLog<FileStorage> {
    JournalLog::open(FileStorage::open(path).expect("an empty directory"), Options::default())
        .expect("an empty directory")
}

fn members() -> GroupMembers {
    GroupMembers::of((1..=3).map(ReplicaId::first))
}

/// The same records without a group: one log, one sync for each window.
fn one_journal(path: &Path, window: u64, turn: Duration) -> f64 {
    let mut log = open(path);
    log.begin_group(&members()).expect("space on the disk");
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let start = Instant::now();
    let mut index = 1;
    while start.elapsed() < turn {
        let entries = (1..=window)
            .map(|next| LogEntry { index: index + next, term: 1, kind: EntryKind::Batch, data: body.clone() })
            .collect();
        log.append(entries, None).and_then(|()| log.sync()).expect("a working disk");
        index += window;
        compact(&mut log, index, 1);
    }
    (index - 1) as f64 / start.elapsed().as_secs_f64()
}

fn compact(log: &mut JournalLog<FileStorage>, index: u64, term: u64) {
    if index - log.base().0 > COMPACTION {
        let snapshot = LogSnapshot { index, term, membership: members(), data: Bytes::new() };
        log.compact(&snapshot).expect("a working disk");
        log.maintain(0, 0).expect("a working disk");
    }
}

fn three_replicas(directory: &Path, window: u64, turn: Duration) -> f64 {
    let mut replicas: Vec<DiskReplica> = Vec::new();
    for id in members().voters {
        let mut log = open(&fresh(directory, &id.to_string()));
        log.begin_group(&members()).expect("space on the disk");
        let options = ReplicaOptions { seed: id.to_number(), ..ReplicaOptions::default() };
        replicas.push(Replica::start(id, log, options).expect("an intact log"));
    }
    while replicas[0].role() != ReplicaRole::Leader {
        replicas[0].tick();
        run(&mut replicas);
    }
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let start = Instant::now();
    let (mut proposed, mut committed) = (0, 0);
    while start.elapsed() < turn {
        while proposed - committed < window {
            replicas[0].propose(body.clone()).expect("a leader takes entries");
            proposed += 1;
        }
        committed += run(&mut replicas);
        for replica in &mut replicas {
            let (index, term) = (replica.committed(), replica.term());
            compact(replica.log_mut(), index, term);
        }
    }
    committed as f64 / start.elapsed().as_secs_f64()
}

/// Lets the replicas work until they have nothing more to say. Returns the number of entries that the first one has applied.
fn run(replicas: &mut [DiskReplica]) -> u64 {
    let mut applied = 0;
    loop {
        let mut messages = Vec::new();
        for (place, replica) in replicas.iter_mut().enumerate() {
            let (mut number, mut needs_sync) = (0, false);
            while let Some(work) = replica.poll().expect("a working disk") {
                messages.extend(work.messages);
                (number, needs_sync) = (work.number, needs_sync || work.needs_sync);
                if let Some(last) = work.committed.last() {
                    replica.applied(last.index);
                }
                let batches = work.committed.iter().filter(|entry| !entry.data.is_empty()).count() as u64;
                applied += if place == 0 { batches } else { 0 };
            }
            if needs_sync {
                replica.log_mut().sync().expect("a working disk");
            }
            messages.extend(replica.persisted(number));
        }
        if messages.is_empty() {
            return applied;
        }
        for message in messages {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            let message = ReplicaMessage::decode(&encoded.into()).expect("what was encoded");
            let to = message.to().map_or(0, |id| id.node() as usize - 1);
            replicas[to].receive(message).expect("intact logs");
        }
    }
}
