//! The check of one segment file, for programs that verify files while another process or thread uses the journal.

use crate::format::{Header, HeaderReading};
use crate::scan::scan;

/// Damage in a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentDamage {
    /// No copy of the header is readable.
    Header,
    /// Bytes that were durable are not a record.
    Records {
        /// Offset of the first of them.
        offset: u32,
        /// Their number.
        bytes: u32,
    },
}

/// Verifies the checksums of a segment file. `None`: it is intact, or a newer version wrote it.
///
/// A file that grows while it is read can look damaged: read it again before you believe it. The end of a segment that is
/// not sealed may be torn, which is not damage. A file of zeros was reserved and not used yet.
#[must_use]
pub fn check_segment(bytes: &[u8]) -> Option<SegmentDamage> {
    let header = match Header::read(bytes) {
        HeaderReading::Good { header, .. } => header,
        HeaderReading::Newer(_) => return None,
        HeaderReading::Bad => {
            return bytes.iter().any(|&byte| byte != 0).then_some(SegmentDamage::Header);
        }
    };
    let scan = scan(bytes, header.journal, header.segment, None);
    let durable = if scan.closed { scan.end() } else { scan.synced_to };
    let damaged = scan.gaps.iter().find(|gap| gap.start < durable)?;
    Some(SegmentDamage::Records { offset: damaged.start, bytes: damaged.end - damaged.start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::options::Options;
    use crate::storage::{MemoryStorage, Storage, read_most};

    /// The bytes of a segment with ten records, of which the file was synced twice.
    fn segment() -> Vec<u8> {
        let storage = MemoryStorage::new(1);
        let (mut journal, _) = Journal::open(storage.clone(), Options::default(), &mut |_, _| {}).unwrap();
        for sequence in 0..10 {
            journal.put(sequence, 1, &[b"a message"]).unwrap();
            if sequence % 5 == 4 {
                journal.write().unwrap();
                journal.sync().unwrap();
            }
        }
        journal.put(10, 1, &[b"another"]).unwrap();
        journal.write().unwrap();
        let name = storage.list().unwrap().into_iter().find(|name| name.ends_with(".segment")).unwrap();
        let file = storage.open(&name).unwrap();
        let mut bytes = vec![0; storage.length(&file).unwrap() as usize];
        read_most(&storage, &file, 0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_intact_segment_has_no_damage() {
        assert_eq!(check_segment(&segment()), None);
        assert_eq!(check_segment(&vec![0; 1 << 16]), None, "reserved and not used");
    }

    #[test]
    fn each_damaged_byte_of_a_durable_record_is_found() {
        let intact = segment();
        let first = intact.windows(9).position(|part| part == b"a message").unwrap();
        for place in first..first + 9 {
            let mut bytes = intact.clone();
            bytes[place] ^= 0x10;
            let found = check_segment(&bytes);
            assert!(matches!(found, Some(SegmentDamage::Records { .. })), "byte {place}: {found:?}");
        }
    }

    #[test]
    fn a_file_without_a_header_is_damaged() {
        let mut bytes = segment();
        bytes[..8192].fill(7);
        assert_eq!(check_segment(&bytes), Some(SegmentDamage::Header));
    }
}
