//! The identity of a journal, read without opening it: from the headers of its segments, or from its catalog.

use std::io;

use crate::catalog::{self, CatalogReading};
use crate::error::Shortage;
use crate::format::{self, HEADER_BYTES, Header, HeaderReading};
use crate::storage::{Storage, read_most};

/// The journal of a directory, as its files identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalIdentity {
    /// There is no file of a journal.
    Absent,
    /// There are files, but none of them can be read, or a later version wrote them. Opening explains why.
    Unreadable,
    /// The identity, as in [`Options::identity`](crate::options::Options::identity).
    Known(u64),
}

/// Reads the identity of the journal in `storage`. Changes nothing.
///
/// # Errors
/// The directory cannot be listed, or the system is short of file descriptors.
pub fn identify<S: Storage>(storage: &S) -> io::Result<JournalIdentity> {
    let mut counts: Vec<(u64, usize)> = Vec::new();
    let mut is_absent = true;
    for name in storage.list()? {
        let Some((number, _)) = format::parse_name(&name) else { continue };
        is_absent = false;
        let mut bytes = vec![0; HEADER_BYTES as usize];
        let read = storage.open(&name).and_then(|file| read_most(storage, &file, 0, &mut bytes));
        match read.map(|count| Header::read(&bytes[..count])) {
            Ok(HeaderReading::Good { header, .. }) if header.segment == number => {
                match counts.iter_mut().find(|(journal, _)| *journal == header.journal) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((header.journal, 1)),
                }
            }
            Err(error) if Shortage::of(&error).is_some() => return Err(error),
            _ => {}
        }
    }
    if let Some((journal, _)) = counts.into_iter().max_by_key(|&(_, count)| count) {
        return Ok(JournalIdentity::Known(journal));
    }
    Ok(match catalog::read(storage)? {
        CatalogReading::Good { catalog, .. } => JournalIdentity::Known(catalog.journal),
        CatalogReading::Missing if is_absent => JournalIdentity::Absent,
        CatalogReading::Missing | CatalogReading::Bad | CatalogReading::Newer(_) => {
            JournalIdentity::Unreadable
        }
    })
}
