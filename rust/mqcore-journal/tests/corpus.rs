//! The fuzz target's corpus as a plain test, and the corpus with bytes changed at random.

use crate::recovery_check;
use crate::world;

use mqcore_journal::journal::Journal;
use mqcore_journal::storage::MemoryStorage;
use mqcore_testkit::{CorpusInput, Random, corpus, write_corpus};
use world::small;

const TARGET: &str = "journal_recovery";

/// A journal's files in the form of the corpus.
fn packed(seed: u64) -> Vec<u8> {
    let (disk, mut chance) = (MemoryStorage::new(seed), Random::new(seed));
    let (mut journal, _) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
    for sequence in 0..30 + chance.below(60) {
        journal.put(sequence, 1, &[&chance.bytes(90)]).unwrap();
        journal.settle(&[chance.below(sequence + 1)]).unwrap();
        journal.touch(sequence, &chance.bytes(5)).unwrap();
        journal.define(&[chance.below(3) as u8], &chance.bytes(9)).unwrap();
        if chance.below(3) == 0 {
            journal.undefine(&[0]).unwrap();
            journal.note(sequence, b"note").unwrap();
            journal.write().unwrap();
            journal.sync().unwrap();
        }
    }
    if chance.below(2) == 0 {
        journal.close().unwrap();
    }
    let mut packed = Vec::new();
    let files = disk.files();
    let segments = files.iter().filter(|(name, _)| name.ends_with(".segment")).take(4);
    let catalog = files.get("catalog").map(|bytes| (0x40, bytes));
    for (which, bytes) in (0..).zip(segments.map(|(_, bytes)| bytes)).chain(catalog) {
        packed.push(which);
        packed.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        packed.extend_from_slice(bytes);
    }
    packed
}

#[test]
fn every_input_of_the_corpus_opens_to_one_result() {
    let corpus = corpus(TARGET);
    assert!(corpus.len() >= 8, "the corpus is there");
    corpus.iter().for_each(|input| recovery_check::check(&input.bytes));
}

/// The corpus has journals that version 1 wrote; renewing it adds those of the current version.
#[test]
fn version_1_journals_open_whole() {
    let mut opened = 0;
    for input in corpus(TARGET).iter().filter(|input| input.name.starts_with("version-1-whole")) {
        let disk = MemoryStorage::with_files(1, recovery_check::files(&input.bytes));
        for _ in 0..2 {
            let (journal, recovered) = Journal::open(disk.clone(), small(), &mut |_, _| {}).unwrap();
            assert!(!recovered.report.is_alarming(), "{}: {}", input.name, recovered.report);
            assert!(recovered.report.live > 10, "{}: {}", input.name, recovered.report);
            journal.close().unwrap();
        }
        opened += 1;
    }
    assert_eq!(opened, 4);
}

#[test]
fn journals_with_random_changes_open_to_one_result() {
    let mut chance = Random::new(11);
    for seed in mqcore_testkit::seeds(400, 4_000) {
        let mut input = packed(seed);
        for _ in 0..chance.below(6) {
            let at = chance.below(input.len() as u64) as usize;
            input[at] = chance.number() as u8;
        }
        recovery_check::check(&input);
    }
}

/// Renews the corpus after a change of the format: `MQCORE_WRITE_CORPUS=1 cargo test -p mqcore-journal --test it corpus`.
#[test]
fn the_corpus_can_be_renewed() {
    let samples = [packed(1), packed(2), packed(3), packed(4)];
    samples.iter().for_each(|sample| recovery_check::check(sample));
    if std::env::var_os("MQCORE_WRITE_CORPUS").is_none() {
        return;
    }
    let mut inputs = corpus(TARGET);
    let mut put = |name: String, bytes: Vec<u8>| {
        inputs.retain(|input| input.name != name);
        inputs.push(CorpusInput { name, bytes });
    };
    for (at, sample) in samples.iter().enumerate() {
        put(format!("whole-{at}"), sample.clone());
        put(format!("cut-{at}"), sample[..sample.len() / (at + 2)].to_vec());
        let mut flipped = sample.clone();
        flipped[8400 + at] ^= 0xff;
        flipped[sample.len() / 2] ^= 1;
        put(format!("flipped-{at}"), flipped);
    }
    inputs.sort_by(|one, other| one.name.cmp(&other.name));
    write_corpus(TARGET, &inputs);
}
