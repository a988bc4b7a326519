//! The identity of a journal: from the headers of its segments, from its catalog, or as the caller saved it.

use std::collections::BTreeMap;
use std::io;

use crate::catalog::{self, Catalog, CatalogReading};
use crate::error::Shortage;
use crate::format::{self, HEADER_BYTES, Header, HeaderReading};
use crate::storage::{Storage, read_most};

/// The journal of a directory, as its files identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalIdentity {
    /// There is no segment, and no catalog that lists one.
    Absent,
    /// There are files, but none of them can be read, or a later version wrote them. Opening explains why.
    Unreadable,
    /// The identity, as in [`Options::identity`](crate::options::Options::identity).
    Known(u64),
}

/// The identities that the files of a journal contain.
#[derive(Debug, Default)]
pub(crate) struct IdentityVotes {
    /// Number of segment headers with each identity.
    headers: BTreeMap<u64, usize>,
    catalog: Option<u64>,
}

impl IdentityVotes {
    /// Counts the header of a segment.
    pub(crate) fn add_header(&mut self, header: &Header) {
        *self.headers.entry(header.journal).or_default() += 1;
    }

    /// Counts the catalog.
    pub(crate) fn set_catalog(&mut self, catalog: &Catalog) {
        self.catalog = Some(catalog.journal);
    }

    /// The expected identity if any file has it. Otherwise that of most headers, so that one foreign file does not make all
    /// others look foreign, or that of the catalog. `None`: no file tells.
    pub(crate) fn winner(&self, expected: Option<u64>) -> Option<u64> {
        let confirmed =
            |identity: &u64| self.headers.contains_key(identity) || self.catalog == Some(*identity);
        expected.filter(confirmed).or_else(|| {
            let most = self.headers.iter().max_by_key(|&(_, count)| count);
            most.map(|(&identity, _)| identity).or(self.catalog)
        })
    }
}

/// Reads the identity of the journal in `storage`. Changes nothing. `expected` is as in
/// [`Options::expected_identity`](crate::options::Options::expected_identity).
///
/// # Errors
/// The directory cannot be listed, or the system is short of file descriptors.
pub fn identify<S: Storage>(storage: &S, expected: Option<u64>) -> io::Result<JournalIdentity> {
    let mut votes = IdentityVotes::default();
    let mut has_segments = false;
    for name in storage.list()? {
        if !matches!(format::parse_name(&name), Some((_, false))) {
            continue;
        }
        has_segments = true;
        let mut bytes = vec![0; HEADER_BYTES as usize];
        let read = storage.open(&name).and_then(|file| read_most(storage, &file, 0, &mut bytes));
        match read.map(|count| Header::read(&bytes[..count])) {
            Ok(HeaderReading::Good { header, .. }) => votes.add_header(&header),
            Err(error) if Shortage::of(&error).is_some() => return Err(error),
            _ => {}
        }
    }
    let is_absent = match catalog::read(storage)? {
        CatalogReading::Good { catalog, .. } => {
            votes.set_catalog(&catalog);
            catalog.segments.is_empty()
        }
        CatalogReading::Missing | CatalogReading::Bad | CatalogReading::Unreadable(_) => true,
        CatalogReading::Newer(_) => false,
    };
    if is_absent && !has_segments {
        return Ok(JournalIdentity::Absent);
    }
    Ok(votes.winner(expected).map_or(JournalIdentity::Unreadable, JournalIdentity::Known))
}
