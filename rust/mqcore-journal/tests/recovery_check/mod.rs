//! Checks opening with arbitrary bytes. Shared by the fuzz target and the test of its corpus.
//!
//! An input is a list of files: a byte that names the segment (1 to 4; with 0x80: one that was set aside), two bytes
//! of length, and so many bytes; with 0x40, the file is the catalog; what is missing at the end is cut.

use std::collections::BTreeMap;

use mqcore_journal::error::JournalError;
use mqcore_journal::journal::Journal;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;

type Shown = BTreeMap<u64, (u32, Vec<u8>, Option<Vec<u8>>)>;
type Opened = (Journal<MemoryStorage>, Shown, Vec<(Vec<u8>, Vec<u8>)>);

#[allow(unreachable_pub, reason = "the fuzz target includes this file too")]
pub fn files(mut input: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    while let Some((&[which, low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let suffix = if which & 0x80 == 0 { "segment" } else { "quarantined" };
        let name = match which & 0x40 {
            0 => format!("{:010}.{suffix}", which % 4 + 1),
            _ => "catalog".to_owned(),
        };
        files.insert(name, rest[..length].to_vec());
        input = &rest[length..];
    }
    files
}

fn open(disk: &MemoryStorage) -> Option<Opened> {
    let options = Options { segment_bytes: 12_800, identity: 77, ..Options::default() };
    match Journal::open(disk.clone(), options, &mut |_, _| {}) {
        Ok((journal, recovered)) => {
            assert!(!recovered.report.to_string().is_empty());
            let mut shown = Shown::new();
            journal.each_live(0, &mut |sequence, live| {
                let live = live.expect("what opening calls live can be read");
                shown.insert(sequence, (live.queue, live.payload.to_vec(), live.touch.map(<[u8]>::to_vec)));
            });
            assert_eq!(recovered.report.live, shown.len() as u64);
            Some((journal, shown, recovered.definitions))
        }
        Err(JournalError::Version { .. } | JournalError::Shard { .. }) => None,
        Err(error) => panic!("a sound disk was refused: {error}"),
    }
}

/// Opens, opens again after a crash, and again after housekeeping: always with the same result.
#[allow(unreachable_pub, reason = "the fuzz target includes this file too")]
pub fn check(input: &[u8]) {
    let disk = MemoryStorage::with_files(1, files(input));
    let Some((journal, shown, definitions)) = open(&disk) else { return };
    drop(journal);
    disk.crash();
    let Some((mut journal, again, same)) = open(&disk) else { panic!("refused after it was opened") };
    assert_eq!((&shown, &definitions), (&again, &same), "another result the second time");
    for _ in 0..1000 {
        let done = journal.maintain(0, 4096).expect("housekeeping on a sound disk");
        assert!(done.lost.is_empty() && done.lost_definitions.is_empty());
        if !done.more {
            break;
        }
    }
    journal.close().expect("closing on a sound disk");
    disk.crash();
    let Some((_, third, still)) = open(&disk) else { panic!("refused after housekeeping") };
    assert_eq!((shown, definitions), (third, still), "housekeeping changed the result");
}
