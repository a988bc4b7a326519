//! The journal beside a plain loop of write and fdatasync: the same bytes, the same batches, the same disk, by turns.
//!
//! Prints records a second with one sync a batch, and the ratio. `MQCORE_BENCH_DIR` names the disk (default: the
//! target directory's); `MQCORE_BENCH_SECONDS` how long each turn takes (default 0.5).
#![expect(clippy::print_stdout, reason = "a report for people")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mqcore_bench::plain_loop::{self, Target};
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::FileStorage;

const PAYLOAD: usize = mqcore_bench::BODY_BYTES;
const ROUNDS: usize = 7;

fn main() {
    let directory = std::env::var_os("MQCORE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let directory = directory.join(format!("journal-bench-{}", std::process::id()));
    let seconds =
        std::env::var("MQCORE_BENCH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0.5);
    let turn = Duration::from_secs_f64(seconds);
    println!(
        "{PAYLOAD}-byte records, one sync a batch, median of {ROUNDS} turns, in {}",
        directory.display()
    );
    println!(
        "{:>6} {:>12} {:>12} {:>6} {:>16} {:>6}",
        "batch", "plain/s", "put/s", "ratio", "put+settle/s", "ratio"
    );
    for batch in [1, 64, 512, 4096] {
        let (mut plain, mut puts, mut both) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(
                plain_loop::rate(&directory.join("plain"), Target::Growing, batch, turn)
                    .expect("writing and syncing"),
            );
            puts.push(journal_loop(&directory.join("puts"), batch, turn, false));
            both.push(journal_loop(&directory.join("both"), batch, turn, true));
        }
        let (plain, puts, both) = (median(plain), median(puts), median(both));
        let (put_ratio, both_ratio) = (puts / plain * 100.0, both / plain * 100.0);
        println!("{batch:>6} {plain:>12.0} {puts:>12.0} {put_ratio:>5.0}% {both:>16.0} {both_ratio:>5.0}%");
    }
    recovery(&directory.join("recovery"));
    std::fs::remove_dir_all(&directory).expect("the bench's own directory");
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn fresh(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("a directory for the bench");
}

/// Puts, and with `settle` also settles what was put a batch ago as a running broker does; keeps house.
fn journal_loop(directory: &Path, batch: usize, turn: Duration, settle: bool) -> f64 {
    fresh(directory);
    let storage = FileStorage::open(directory).expect("a directory");
    let (mut journal, _) = Journal::open(storage, Options::default(), &mut |_, _| {}).expect("a journal");
    let payload = [b'x'; PAYLOAD];
    let (start, mut records, mut sequence) = (Instant::now(), 0, 0_u64);
    let mut previous: Vec<u64> = Vec::new();
    while start.elapsed() < turn {
        let current: Vec<u64> = (sequence..sequence + batch as u64).collect();
        for &sequence in &current {
            journal.put(sequence, 7, &[&payload]).expect("putting");
        }
        if settle {
            journal.settle(&previous).expect("settling");
        }
        journal.write().expect("writing");
        journal.sync().expect("syncing");
        if records / 65_536 != (records + batch) / 65_536 {
            journal.maintain(0, 1 << 20).expect("housekeeping");
        }
        records += batch;
        sequence += batch as u64;
        previous = current;
    }
    records as f64 / start.elapsed().as_secs_f64()
}

/// How long a million live records take to come back.
fn recovery(directory: &Path) {
    const RECORDS: u64 = 1_000_000;
    fresh(directory);
    let open = || {
        let storage = FileStorage::open(directory).expect("a directory");
        Journal::open(storage, Options::default(), &mut |_, _| {}).expect("a journal").0
    };
    let mut journal = open();
    for sequence in 0..RECORDS {
        journal.put(sequence, 7, &[&[b'x'; PAYLOAD]]).expect("putting");
        if sequence % 4096 == 0 {
            journal.write().expect("writing");
        }
    }
    journal.close().expect("closing");
    let start = Instant::now();
    let journal = open();
    let opened = start.elapsed();
    let mut bytes = 0;
    journal.each_live(0, &mut |_, live| bytes += live.expect("a live record").payload.len());
    assert_eq!(bytes as u64, RECORDS * PAYLOAD as u64);
    let stats = journal.stats();
    println!(
        "{RECORDS} live records: opened in {:.2} s, all read in {:.2} s more; {:.1} bytes of memory a record",
        opened.as_secs_f64(),
        (start.elapsed() - opened).as_secs_f64(),
        stats.index_bytes as f64 / RECORDS as f64,
    );
}
