//! Support for the tests of every crate: depth, seeds, random numbers, and the fuzz corpora.
//!
//! No crate but the simulator depends on this one except in `[dev-dependencies]`. Three environment variables steer tests:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `MQCORE_TEST_DEPTH` | `quick` (`make test`) or `full` (`make test-full`) | `quick` |
//! | `MQCORE_SEED` | first seed that each loop tries | random |
//! | `MQCORE_SEEDS` | number of seeds that each loop tries | set by each test for each depth |
//!
//! `MQCORE_SEED=n MQCORE_SEEDS=1` replays the seed that a failed test printed.

#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

mod random;

pub use random::Random;

/// How many cases a test tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Enough to notice a broken promise; all tests together take minutes.
    Quick,
    /// As many as a night allows.
    Full,
}

/// The depth of this run, from `MQCORE_TEST_DEPTH`.
///
/// # Panics
///
/// Panics if the variable is neither `quick` nor `full`.
pub fn depth() -> Depth {
    match std::env::var("MQCORE_TEST_DEPTH").as_deref() {
        Ok("full") => Depth::Full,
        Ok("quick") | Err(_) => Depth::Quick,
        Ok(other) => panic!("MQCORE_TEST_DEPTH is `{other}`; use `quick` or `full`"),
    }
}

/// `quick` or `full`, whichever [`depth`] selects.
pub fn by_depth<T>(quick: T, full: T) -> T {
    match depth() {
        Depth::Quick => quick,
        Depth::Full => full,
    }
}

/// The seeds that a loop tries: `quick` or `full` many, from `MQCORE_SEED` or a random first seed on.
///
/// Prints the range; the test harness shows it when the test fails.
///
/// # Panics
///
/// Panics if `MQCORE_SEED` or `MQCORE_SEEDS` is not a number.
pub fn seeds(quick: u64, full: u64) -> Range<u64> {
    let first = first_seed();
    let count = number("MQCORE_SEEDS").unwrap_or_else(|| by_depth(quick, full));
    let seeds = first..first.saturating_add(count);
    eprintln!("seeds {seeds:?}; replay one with MQCORE_SEED=<seed> MQCORE_SEEDS=1");
    seeds
}

/// The first seed of every loop in this process. Random seeds have 32 bits, so that they are quick to type.
fn first_seed() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    *FIRST.get_or_init(|| number("MQCORE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0_u8) >> 32))
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, which is not a number")))
}

/// One input of a fuzz corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusInput {
    /// The name of its file when the corpus is unpacked.
    pub name: String,
    /// The bytes that the fuzz target gets.
    pub bytes: Vec<u8>,
}

/// The corpus of a fuzz target, from `fuzz/corpus/<target>.hex`: one input a line, its name and its bytes in hex.
///
/// # Panics
///
/// Panics if the file is missing or malformed.
pub fn corpus(target: &str) -> Vec<CorpusInput> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{target}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap_or_else(|| panic!("{target}.hex: `{line}`"));
            CorpusInput { name: name.to_owned(), bytes: from_hex(hex) }
        })
        .collect()
}

/// Replaces the corpus of a fuzz target.
///
/// # Panics
///
/// Panics if the file cannot be written.
pub fn write_corpus(target: &str, inputs: &[CorpusInput]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{target}.hex"));
    let mut text = String::new();
    for CorpusInput { name, bytes } in inputs {
        text.push_str(name);
        text.push(' ');
        bytes.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text.push('\n');
    }
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn from_hex(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "hex digits come in pairs: `{hex}`");
    let pairs = (0..hex.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_becomes_bytes() {
        assert_eq!(from_hex(""), Vec::<u8>::new());
        assert_eq!(from_hex("00ff10"), [0, 255, 16]);
    }

    #[test]
    fn every_loop_of_a_process_begins_with_the_same_seed() {
        assert_eq!(seeds(5, 5).start, seeds(7, 7).start);
    }
}
