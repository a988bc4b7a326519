//! Keeps the catalog up to date.

use std::collections::BTreeMap;

use super::{Condition, Journal};
use crate::catalog::{self, CATALOG, Catalog, CatalogEntry};
use crate::error::{JournalError, Shortage};
use crate::storage::Storage;

/// Time in milliseconds after which a failed change of a file that is not urgent is tried again.
pub(crate) const RETRY_MS: u64 = 10_000;

impl<S: Storage> Journal<S> {
    /// Segments that the catalog should list: those with durable records.
    fn catalog_segments(&self) -> impl Iterator<Item = u32> {
        let begun = move |number: u32| {
            let writer = self.tail.iter().find(|writer| writer.number == number);
            writer.is_none_or(|writer| writer.synced > writer.first)
        };
        self.state.segments.keys().copied().filter(move |&number| begun(number))
    }

    /// Replaces the catalog by one that lists the current segments. The old one stays valid if this fails.
    ///
    /// # Errors
    /// [`JournalError::Full`] and [`JournalError::Io`]. If the directory cannot be synced, the journal has failed.
    pub(crate) fn write_catalog(&mut self) -> Result<(), JournalError> {
        let entry = |number: u32| {
            let segment = self.state.segments.get(&number).cloned().unwrap_or_default();
            let capacity = u32::try_from(segment.file_bytes).unwrap_or(u32::MAX);
            let (synced_to, records) = match self.tail.iter().find(|writer| writer.number == number) {
                Some(writer) if writer.position() == writer.synced => (writer.synced, segment.records),
                Some(writer) => (writer.synced, 0),
                // Entries of the catalog are lower bounds.
                None if segment.end_unknown => (0, 0),
                None => (segment.end, segment.records),
            };
            (number, CatalogEntry { capacity, synced_to, records })
        };
        let segments = self.catalog_segments().map(entry).collect();
        self.replace_catalog(segments)
    }

    /// Writes a catalog that identifies the journal and lists no segment.
    ///
    /// # Errors
    /// The same as [`Self::write_catalog`].
    pub(crate) fn create_catalog(&mut self) -> Result<(), JournalError> {
        self.replace_catalog(BTreeMap::new())
    }

    fn replace_catalog(&mut self, segments: BTreeMap<u32, CatalogEntry>) -> Result<(), JournalError> {
        let catalog = Catalog {
            shard: self.options.shard,
            journal: self.identity,
            next_sequence: self.state.next_sequence,
            next_note: self.state.next_note,
            segments,
        };
        let bytes =
            catalog::replace(&self.storage, &catalog).map_err(|(doing, error)| {
                match Shortage::of(&error) {
                    Some(shortage) => JournalError::Full { needed: 0, shortage },
                    None => JournalError::io(doing, CATALOG, &error),
                }
            })?;
        self.sync_directory()?;
        self.cataloged = catalog.segments.into_keys().collect();
        self.catalog_bytes = bytes;
        Ok(())
    }

    /// Writes the catalog if it lists other segments than there are, unless the journal is pinned. Returns an error that is not
    /// fatal; the next attempt follows after [`RETRY_MS`].
    ///
    /// # Errors
    /// The journal has failed.
    pub(crate) fn refresh_catalog(&mut self) -> Result<Option<JournalError>, JournalError> {
        let current = self.catalog_bytes > 0 && self.catalog_segments().eq(self.cataloged.iter().copied());
        if self.pinned || current || self.catalog_retry_ms > self.house_ms {
            return Ok(None);
        }
        match self.write_catalog() {
            Ok(()) => Ok(None),
            Err(error) if matches!(self.condition, Condition::Failed(_)) => Err(error),
            Err(error) => {
                self.catalog_retry_ms = self.house_ms.saturating_add(RETRY_MS);
                // Writing records reports a shortage too.
                Ok(Some(error).filter(|error| !matches!(error, JournalError::Full { .. })))
            }
        }
    }
}
