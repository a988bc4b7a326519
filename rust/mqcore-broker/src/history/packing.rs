//! Compressed blocks of history for the disk. Names, headers and bodies of one call resemble each
//! other.
//!
//! ```text
//! packed:  version 2 u8, size of the block in bytes varint, the block in LZ4's block format
//! ```
//!
//! A block that would not become smaller is stored as it is. The version byte, 1 or 2, tells them
//! apart.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use crate::history::format::push;
use crate::history::reader::{malformed, varint};
use crate::model::record::RecordError;

const VERSION: u8 = 2;
/// Shorter blocks repeat too little.
const SHORTEST: usize = 256;
/// One byte of LZ4 stands for at most this many bytes. A block that claims more is malformed and gets
/// no memory.
const RATIO_MAX: u64 = 255;

/// Packs blocks. Reuses its memory from block to block.
pub struct Packer {
    table: CompressTable,
    packed: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Self {
        Self { table: CompressTable::large(), packed: Vec::new() }
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Packer {
    /// Returns the bytes to store for a block.
    pub fn pack<'a>(&'a mut self, block: &'a [u8]) -> &'a [u8] {
        if block.len() < SHORTEST {
            return block;
        }
        self.packed.clear();
        self.packed.push(VERSION);
        push(&mut self.packed, block.len() as u64);
        let head = self.packed.len();
        self.packed.resize(head + get_maximum_output_size(block.len()), 0);
        match compress_into_with_table(block, &mut self.packed[head..], &mut self.table) {
            Ok(bytes) if head + bytes < block.len() => &self.packed[..head + bytes],
            _ => block,
        }
    }
}

/// Returns the block that was stored as these bytes. A packed block is unpacked into `memory`.
///
/// # Errors
/// [`RecordError::Malformed`] if no [`Packer`] wrote these bytes. The contents of unpacked blocks are
/// not checked.
pub fn unpack<'a>(stored: &'a [u8], memory: &'a mut Vec<u8>) -> Result<&'a [u8], RecordError> {
    let Some((&VERSION, rest)) = stored.split_first() else { return Ok(stored) };
    let (bytes, packed) = varint(rest)?;
    if bytes > packed.len() as u64 * RATIO_MAX {
        return Err(malformed("a packed block claims an impossible size"));
    }
    // Decompression overwrites what an earlier block left there, so it needs no clearing.
    if memory.len() < bytes as usize {
        memory.resize(bytes as usize, 0);
    }
    let block = &mut memory[..bytes as usize];
    match decompress_into(packed, block) {
        Ok(found) if found as u64 == bytes => Ok(block),
        _ => Err(malformed("a packed block has another size than it claims")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use mqcore_testkit::Random;

    use super::*;

    fn there_and_back(packer: &mut Packer, block: &[u8]) {
        let mut memory = Vec::new();
        let stored = packer.pack(block).to_vec();
        assert!(stored.len() <= block.len());
        assert_eq!(unpack(&stored, &mut memory), Ok(block));
    }

    proptest! {
        #[test]
        fn every_block_comes_back_as_it_was(words in prop::collection::vec(any::<[u8; 3]>(), 1..9), count in 0_usize..3000) {
            // Few different words, so that packing gains something; the first byte is the version of
            // every block.
            let block: Vec<u8> = [1].into_iter().chain(words.iter().cycle().take(count).flatten().copied()).collect();
            there_and_back(&mut Packer::default(), &block);
        }

        #[test]
        fn foreign_bytes_are_an_error_or_a_block_and_never_a_panic(bytes: Vec<u8>) {
            let packed: Vec<u8> = [VERSION].into_iter().chain(bytes).collect();
            let mut memory = Vec::new();
            let _ = unpack(&packed, &mut memory);
        }
    }

    #[test]
    fn a_packer_forgets_what_it_packed_before() {
        let mut packer = Packer::default();
        let long: Vec<u8> = std::iter::repeat_n(b"\x01orders/7", 30_000).flatten().copied().collect();
        for block in [&long[..], &long[..400], &long[..100], &long[..70_000]] {
            there_and_back(&mut packer, block);
        }
        assert!(packer.pack(&long).len() < long.len() / 20);
    }

    #[test]
    fn what_does_not_become_smaller_stays_as_it_is() {
        let mut random = Random::new(7);
        let noise: Vec<u8> =
            std::iter::once(1).chain(std::iter::repeat_with(|| random.number() as u8)).take(5000).collect();
        assert_eq!(Packer::default().pack(&noise), noise);
    }

    #[test]
    fn a_changed_or_cut_block_is_never_a_panic_and_never_asks_for_more_than_it_could_hold() {
        let block = [1; 1000];
        let stored = Packer::default().pack(&block).to_vec();
        let mut memory = Vec::new();
        for cut in 1..stored.len() {
            assert!(unpack(&stored[..cut], &mut memory).is_err(), "cut at {cut}");
            for change in [1, 0x80, 0xff] {
                let mut changed = stored.clone();
                changed[cut] ^= change;
                let _ = unpack(&changed, &mut memory);
                assert!(memory.capacity() <= stored.len() * 255);
            }
        }
        let vast = [VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0];
        assert!(unpack(&vast, &mut memory).is_err());
    }
}
