//! Index from hashes to places: extendible hashing, with tables that split when they are full.
//!
//! Growing a single table with millions of entries would copy all of it while other threads wait. Here a full table is split
//! in two, and only the directory of tables doubles. It has one number per thousand entries.

use hashbrown::HashTable;

/// Number of entries at which a table is split: the capacity of 1024 hashbrown buckets.
const TABLE_MAX: usize = 896;

/// The bits of the hash that select a table are above those that select a bucket and below those that select a shard.
const DIRECTORY_SHIFT: u32 = 20;
const DEPTH_MAX: u8 = 26;

/// Maps hashes to places.
#[derive(Debug)]
pub(crate) struct HashIndex {
    /// Table numbers, by the low `depth` bits of [`table_bits`].
    directory: Vec<u32>,
    tables: Vec<IndexTable>,
    depth: u8,
}

#[derive(Debug, Default)]
struct IndexTable {
    places: HashTable<u32>,
    /// Number of bits that all hashes of the table share.
    depth: u8,
}

#[inline]
const fn table_bits(hash: u64) -> usize {
    (hash >> DIRECTORY_SHIFT) as usize
}

impl HashIndex {
    pub(crate) fn new() -> Self {
        Self { directory: vec![0], tables: vec![IndexTable::default()], depth: 0 }
    }

    #[inline]
    fn table(&self, hash: u64) -> usize {
        self.directory[table_bits(hash) & (self.directory.len() - 1)] as usize
    }

    /// Returns the place with this hash for which `is` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.tables[self.table(hash)].places.find(hash, |place| is(*place)).copied()
    }

    /// Adds a new place. `hash_of` returns the hash of an existing place.
    pub(crate) fn insert(&mut self, hash: u64, place: u32, hash_of: impl Fn(u32) -> u64) {
        loop {
            let number = self.table(hash);
            let table = &self.tables[number];
            if table.places.len() < TABLE_MAX || table.depth == DEPTH_MAX {
                break;
            }
            self.split(number, &hash_of);
        }
        let number = self.table(hash);
        self.tables[number].places.insert_unique(hash, place, |place| hash_of(*place));
    }

    /// Removes an existing place.
    pub(crate) fn remove(&mut self, hash: u64, place: u32) {
        let number = self.table(hash);
        if let Ok(found) = self.tables[number].places.find_entry(hash, |known| *known == place) {
            found.remove();
        }
    }

    fn split(&mut self, number: usize, hash_of: &impl Fn(u32) -> u64) {
        let IndexTable { places, depth } = std::mem::take(&mut self.tables[number]);
        if depth == self.depth {
            self.directory.extend_from_within(..);
            self.depth += 1;
        }
        let bit = 1 << depth;
        let sibling = self.tables.len() as u32;
        let half = places.len() / 2;
        let mut halves = [HashTable::with_capacity(half), HashTable::with_capacity(half)];
        for place in places {
            let hash = hash_of(place);
            let side = usize::from(table_bits(hash) & bit != 0);
            halves[side].insert_unique(hash, place, |place| hash_of(*place));
        }
        let [low, high] = halves;
        self.tables[number] = IndexTable { places: low, depth: depth + 1 };
        self.tables.push(IndexTable { places: high, depth: depth + 1 });
        for (bits, entry) in self.directory.iter_mut().enumerate() {
            if *entry as usize == number && bits & bit != 0 {
                *entry = sibling;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn inserted_places_are_found_after_tables_split() {
        let hasher = RandomState::new();
        let hash_of = |place: u32| hasher.hash_one(place);
        let mut index = HashIndex::new();
        for place in 0..20_000 {
            index.insert(hash_of(place), place, hash_of);
        }
        assert!(index.tables.len() > 16);
        for place in (0..20_000).step_by(2) {
            index.remove(hash_of(place), place);
        }
        for place in 0..20_000 {
            let found = index.find(hash_of(place), |known| known == place);
            assert_eq!(found, (place % 2 == 1).then_some(place));
        }
    }

    #[test]
    fn tables_split_before_they_exceed_their_capacity() {
        let hasher = RandomState::new();
        let hash_of = |place: u32| hasher.hash_one(place);
        let mut index = HashIndex::new();
        for place in 0..30_000 {
            index.insert(hash_of(place), place, hash_of);
        }
        assert!(index.tables.iter().all(|table| table.places.len() <= TABLE_MAX));
    }
}
