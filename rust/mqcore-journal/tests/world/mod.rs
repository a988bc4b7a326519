//! The expected contents of a journal, in a simple model.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::recovery::Recovered;
use mqcore_journal::storage::Storage;

/// One thing that was asked of a journal and that it took.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    Put(u64, u32, Vec<u8>),
    Settle(Vec<u64>),
    Touch(u64, Vec<u8>),
    Define(Vec<u8>, Vec<u8>),
    Undefine(Vec<u8>),
    Note(u64),
}

/// A put from outside: queue, payload and touch.
pub(crate) type LivePut = (u32, Vec<u8>, Option<Vec<u8>>);

/// Everything a journal holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) live: BTreeMap<u64, LivePut>,
    pub(crate) definitions: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) notes: BTreeSet<u64>,
}

impl World {
    pub(crate) fn take(&mut self, asked: &Asked) {
        match asked.clone() {
            Asked::Put(sequence, queue, payload) => {
                self.live.insert(sequence, (queue, payload, None));
            }
            Asked::Settle(sequences) => self.live.retain(|sequence, _| !sequences.contains(sequence)),
            Asked::Touch(sequence, touch) => {
                if let Some(live) = self.live.get_mut(&sequence) {
                    live.2 = Some(touch);
                }
            }
            Asked::Define(key, value) => {
                self.definitions.insert(key, value);
            }
            Asked::Undefine(key) => {
                self.definitions.remove(&key);
            }
            Asked::Note(number) => {
                self.notes.insert(number);
            }
        }
    }

    /// The contents of a journal.
    pub(crate) fn of<S: Storage>(journal: &Journal<S>, definitions: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let mut world = Self { definitions: definitions.clone(), ..Self::default() };
        let mut last = None;
        journal.each_live(0, &mut |sequence, live| {
            assert!(last < Some(sequence), "out of order: {sequence} after {last:?}");
            last = Some(sequence);
            let live = live.unwrap_or_else(|error| panic!("live record {sequence}: {error}"));
            let touch = live.touch.map(<[u8]>::to_vec);
            world.live.insert(sequence, (live.queue, live.payload.to_vec(), touch));
        });
        for segment in journal.stats().segments {
            journal
                .each_note(segment.number, &mut |note| {
                    world.notes.insert(note.number);
                })
                .unwrap();
        }
        world
    }
}

pub(crate) fn small() -> Options {
    Options { segment_bytes: 12_800, identity: 77, ..Options::default() }
}

pub(crate) fn definitions(recovered: &Recovered) -> BTreeMap<Vec<u8>, Vec<u8>> {
    recovered.definitions.iter().cloned().collect()
}
