//! The segment files that recovery finds, and the journal that they belong to.

use std::collections::BTreeMap;

use crate::catalog::{CATALOG, CatalogReading};
use crate::error::{JournalError, Shortage};
use crate::format::{self, HEADER_BYTES, Header, HeaderReading, VERSION};
use crate::identity::IdentityVotes;
use crate::options::Options;
use crate::storage::{Storage, read_most};

/// A segment file before its records are read.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) length: u64,
    pub(super) reading: Result<HeaderReading, String>,
}

/// Reads the header of a segment file.
///
/// # Errors
/// [`JournalError::Version`], [`JournalError::Shard`], and shortages, which say nothing about the file.
pub(super) fn examine<S: Storage>(
    storage: &S,
    number: u32,
    options: &Options,
) -> Result<SegmentFile, JournalError> {
    let name = format::segment_name(number);
    let mut length = 0;
    let mut read = || {
        let file = storage.open(&name)?;
        length = storage.length(&file)?;
        let mut bytes = vec![0; HEADER_BYTES as usize];
        let count = read_most(storage, &file, 0, &mut bytes)?;
        Ok::<_, std::io::Error>(Header::read(&bytes[..count]))
    };
    match read() {
        // Says nothing about the file.
        Err(error) if Shortage::of(&error).is_some() => Err(JournalError::io("reading", &name, &error)),
        Err(error) => Ok(SegmentFile { length, reading: Err(error.to_string()) }),
        Ok(HeaderReading::Newer(found)) => Err(JournalError::Version { file: name, found, known: VERSION }),
        Ok(HeaderReading::Good { header, .. }) if header.shard != options.shard => {
            Err(JournalError::Shard { file: name, found: header.shard, expected: options.shard })
        }
        Ok(reading) => Ok(SegmentFile { length, reading: Ok(reading) }),
    }
}

/// The identity of the journal. Without segments, it is a new one: the numbers of its segments begin again, and so must not be
/// combined with the old identity.
///
/// # Errors
/// [`JournalError::Unidentified`]: beginning another journal would make the files foreign as soon as they can be read.
pub(super) fn identity_of(
    candidates: &BTreeMap<u32, SegmentFile>,
    catalog: &CatalogReading,
    options: &Options,
) -> Result<u64, JournalError> {
    let mut votes = IdentityVotes::default();
    let mut unreadable = None;
    for (&number, candidate) in candidates {
        match &candidate.reading {
            Ok(HeaderReading::Good { header, .. }) => votes.add_header(header),
            Ok(_) => {}
            Err(message) => unreadable = unreadable.or(Some((format::segment_name(number), message))),
        }
    }
    match catalog {
        CatalogReading::Good { catalog, .. } => votes.set_catalog(catalog),
        CatalogReading::Unreadable(message) => {
            unreadable = unreadable.or(Some((CATALOG.to_owned(), message)));
        }
        CatalogReading::Bad | CatalogReading::Missing | CatalogReading::Newer(_) => {}
    }
    if let Some(identity) = votes.winner(options.expected_identity) {
        return Ok(identity);
    }
    if candidates.is_empty() {
        return Ok(options.identity);
    }
    match (options.expected_identity, unreadable) {
        (Some(expected), _) => Ok(expected),
        (None, Some((file, message))) => Err(JournalError::Unidentified { file, message: message.clone() }),
        (None, None) => Ok(options.identity),
    }
}
