//! The record of a run: a hash of everything, and lines for people.

use std::fmt::{self, Write as _};

/// The record of a run. Two runs with the same hash were the same run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
    line: String,
}

impl Trace {
    /// An empty trace, which keeps its lines if `verbose`.
    #[must_use]
    pub fn new(verbose: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: verbose.then(Vec::new), line: String::new() }
    }

    /// Adds an event that happened at `micros`.
    pub(crate) fn note(&mut self, micros: u64, event: fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a string never fails.
        let _ = write!(self.line, "{:>10}.{:03} {event}", micros / 1000, micros % 1000);
        self.hash = fold(self.hash, self.line.as_bytes());
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// Adds bytes that were transmitted, to the hash only.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.hash = fold(self.hash, bytes);
    }

    /// The hash of everything that happened.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// One line for each event: milliseconds of virtual time, and what happened. Empty unless verbose.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}

/// FNV-1a.
fn fold(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
