//! The catalog: a small file that identifies a journal and lists its segments, for the case that headers or files are lost.
//!
//! It has two equal copies that share no block, and is replaced as a whole, so a crash leaves the old one or the new one. It
//! may be older than the segments. Everything in it is a lower bound: what it lists was durable when it was written.

use std::collections::BTreeMap;
use std::io;

use crate::error::Shortage;
use crate::format::{BLOCK_BYTES, push_varint, take_u64, take_varint};
use crate::storage::{Storage, read_most, write_whole};

/// Name of the catalog, the file that lists a journal's segments.
pub const CATALOG: &str = "catalog";
/// Name of the file while it is written.
const UNFINISHED: &str = "catalog.new";
const MAGIC: [u8; 8] = *b"MQCATLOG";
const VERSION: u16 = 1;
/// Magic, version, zeros, length of the content and checksum.
const PREFIX_BYTES: usize = 8 + 2 + 2 + 4 + 4;

/// The content of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Catalog {
    pub(crate) shard: u32,
    pub(crate) journal: u64,
    pub(crate) next_sequence: u64,
    pub(crate) next_note: u64,
    /// Segments in use, by number.
    pub(crate) segments: BTreeMap<u32, CatalogEntry>,
}

/// One segment in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CatalogEntry {
    /// File length in bytes.
    pub(crate) capacity: u32,
    /// Everything before this offset was durable.
    pub(crate) synced_to: u32,
    /// Number of records before `synced_to`; 0: unknown.
    pub(crate) records: u32,
}

/// The result of reading the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CatalogReading {
    /// Readable; this many of the two copies are damaged.
    Good { catalog: Catalog, damaged_copies: usize },
    /// Written by a newer version.
    Newer(u16),
    /// Neither copy is valid.
    Bad,
    /// The storage cannot read the file. Contains its error.
    Unreadable(String),
    /// There is no file, as in a journal of version 1.
    Missing,
}

impl Catalog {
    fn encode(&self) -> Vec<u8> {
        let mut content = Vec::new();
        push_varint(&mut content, u64::from(self.shard));
        content.extend_from_slice(&self.journal.to_le_bytes());
        push_varint(&mut content, self.next_sequence);
        push_varint(&mut content, self.next_note);
        for (&number, entry) in &self.segments {
            for value in [number, entry.capacity, entry.synced_to, entry.records] {
                push_varint(&mut content, u64::from(value));
            }
        }
        let mut copy = Vec::from(MAGIC);
        copy.extend_from_slice(&VERSION.to_le_bytes());
        copy.extend_from_slice(&[0; 2]);
        copy.extend_from_slice(&(content.len() as u32).to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&copy);
        hasher.update(&content);
        copy.extend_from_slice(&hasher.finalize().to_le_bytes());
        copy.extend_from_slice(&content);
        copy.resize(copy.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        copy.repeat(2)
    }

    fn parse(bytes: &[u8]) -> CatalogReading {
        let second = bytes.get(bytes.len() / 2..).unwrap_or_default();
        let copies: Vec<(u16, Self)> = [bytes, second].into_iter().filter_map(Self::parse_copy).collect();
        let damaged_copies = 2 - copies.len();
        match copies.into_iter().next() {
            None => CatalogReading::Bad,
            Some((version, _)) if version > VERSION => CatalogReading::Newer(version),
            Some((_, catalog)) => CatalogReading::Good { catalog, damaged_copies },
        }
    }

    fn parse_copy(copy: &[u8]) -> Option<(u16, Self)> {
        let (prefix, rest) = copy.split_first_chunk::<PREFIX_BYTES>()?;
        let length = u32::from_le_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]);
        let sum = u32::from_le_bytes([prefix[16], prefix[17], prefix[18], prefix[19]]);
        let mut content = rest.get(..length as usize)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&prefix[..16]);
        hasher.update(content);
        if prefix[..8] != MAGIC || hasher.finalize() != sum {
            return None;
        }
        let version = u16::from_le_bytes([prefix[8], prefix[9]]);
        let mut catalog = Self::default();
        if version > VERSION {
            return Some((version, catalog));
        }
        let number = |rest: &mut &[u8]| u32::try_from(take_varint(rest)?).ok();
        catalog.shard = number(&mut content)?;
        catalog.journal = take_u64(&mut content)?;
        catalog.next_sequence = take_varint(&mut content)?;
        catalog.next_note = take_varint(&mut content)?;
        while !content.is_empty() {
            let segment = number(&mut content)?;
            let entry = CatalogEntry {
                capacity: number(&mut content)?,
                synced_to: number(&mut content)?,
                records: number(&mut content)?,
            };
            catalog.segments.insert(segment, entry);
        }
        Some((version, catalog))
    }
}

/// Reads the catalog of a directory.
///
/// # Errors
/// Only shortages, which say nothing about the file.
pub(crate) fn read<S: Storage>(storage: &S) -> io::Result<CatalogReading> {
    let whole = || {
        let file = storage.open(CATALOG)?;
        let mut bytes = vec![0; usize::try_from(storage.length(&file)?).map_err(io::Error::other)?];
        let count = read_most(storage, &file, 0, &mut bytes)?;
        bytes.truncate(count);
        Ok::<_, io::Error>(bytes)
    };
    match whole() {
        Ok(bytes) => Ok(Catalog::parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CatalogReading::Missing),
        Err(error) if Shortage::of(&error).is_some() => Err(error),
        Err(error) => Ok(CatalogReading::Unreadable(error.to_string())),
    }
}

/// Replaces the catalog. After an error, the old one stays valid. The caller syncs the directory.
///
/// # Errors
/// The operation that failed, and the error of the storage.
pub(crate) fn replace<S: Storage>(storage: &S, catalog: &Catalog) -> Result<u64, (&'static str, io::Error)> {
    let bytes = catalog.encode();
    let put = || {
        let file = storage.create(UNFINISHED, bytes.len() as u64).map_err(|error| ("creating", error))?;
        write_whole(storage, &file, 0, &bytes).map_err(|error| ("writing", error))?;
        storage.sync_data(&file).map_err(|error| ("syncing", error))?;
        storage.rename(UNFINISHED, CATALOG).map_err(|error| ("renaming", error))
    };
    // A crash may have left the file. Its removal must be durable first: otherwise another crash could keep the old file and
    // rename that one.
    if storage.remove(UNFINISHED).is_ok() {
        storage.sync_directory().map_err(|error| ("syncing", error))?;
    }
    put().inspect_err(|_| drop(storage.remove(UNFINISHED)))?;
    Ok(bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn sample() -> Catalog {
        let entry = CatalogEntry { capacity: 16 << 20, synced_to: 9_000, records: 12 };
        let segments = (1..600).map(|number| (number, entry)).collect();
        Catalog { shard: 3, journal: 77, next_sequence: 5, next_note: 6, segments }
    }

    #[test]
    fn any_lost_block_of_the_catalog_leaves_its_content() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 4 * BLOCK_BYTES as usize);
        assert_eq!(Catalog::parse(&bytes), CatalogReading::Good { catalog: sample(), damaged_copies: 0 });
        for block in 0..bytes.len() / BLOCK_BYTES as usize {
            let mut lost = bytes.clone();
            lost[block * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize].fill(0);
            let Catalog { segments, .. } = match Catalog::parse(&lost) {
                CatalogReading::Good { catalog, .. } => catalog,
                other => panic!("block {block}: {other:?}"),
            };
            assert_eq!(segments, sample().segments);
        }
        assert_eq!(Catalog::parse(&[]), CatalogReading::Bad);
        assert_eq!(Catalog::parse(&vec![0; 8192]), CatalogReading::Bad);
    }

    #[test]
    fn leftover_of_a_crash_never_becomes_the_catalog() {
        for seed in 0..200 {
            let files = [(CATALOG.to_owned(), sample().encode()), (UNFINISHED.to_owned(), vec![0; 100])];
            let disk = MemoryStorage::with_files(seed, files.into());
            replace(&disk, &sample()).unwrap();
            disk.crash();
            let reading = read(&disk).unwrap();
            assert!(
                matches!(reading, CatalogReading::Good { damaged_copies: 0, .. }),
                "seed {seed}: {reading:?}"
            );
        }
    }
}
