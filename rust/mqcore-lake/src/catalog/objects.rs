//! The catalog in the object store itself: which metadata file of a table is the current one.
//!
//! The files have the names `v1.metadata.json`, `v2.metadata.json`, ..., as Iceberg's Hadoop catalog writes them, so that
//! Spark and others find the table by its path. A commit creates the file with the next number. Only one writer can create
//! it, because the store refuses a second one.

use bytes::Bytes;
use iceberg::spec::TableMetadata;

use super::versioned::Versioned;
use crate::error::LakeError;
use crate::store::Store;

/// The catalog entry of one table.
#[derive(Debug, Clone)]
pub(crate) struct ObjectCatalog {
    store: Store,
    /// Directory of the table, with a slash at the end.
    directory: String,
    table: &'static str,
}

impl ObjectCatalog {
    pub(crate) fn new(store: Store, table: &'static str) -> Self {
        Self { store, directory: format!("{table}/"), table }
    }

    /// Returns the name of a metadata file.
    fn metadata_name(&self, version: u64) -> String {
        format!("{}metadata/v{version}.metadata.json", self.directory)
    }

    fn location(&self, version: u64) -> String {
        self.store.location(&self.metadata_name(version))
    }

    fn hint_name(&self) -> String {
        format!("{}metadata/version-hint.text", self.directory)
    }

    /// Returns the current metadata; `None`: the table does not exist.
    ///
    /// # Errors
    /// [`LakeError::Store`], and [`LakeError::Table`] if the metadata is invalid.
    pub(crate) async fn load(&self) -> Result<Option<Versioned>, LakeError> {
        let mut found = None;
        let mut version = self.hint().await?.unwrap_or(0);
        if version > 0 {
            found = self.store.get(&self.metadata_name(version)).await?;
        }
        if found.is_none() {
            // The hint is missing or outdated by more than the metadata log: only a listing shows the newest file.
            version = self.listed().await?.unwrap_or(0);
        }
        // The hint is written after the metadata, and may be lost.
        while let Some(next) = self.store.get(&self.metadata_name(version + 1)).await? {
            version += 1;
            found = Some(next);
        }
        if found.is_none() && version > 0 {
            found = self.store.get(&self.metadata_name(version)).await?;
        }
        let Some(bytes) = found else { return Ok(None) };
        Versioned::decoded(version, self.location(version), &bytes).map(Some)
    }

    /// Whether no later metadata than this exists.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub(crate) async fn is_current(&self, version: u64) -> Result<bool, LakeError> {
        if self.store.exists(&self.metadata_name(version + 1)).await? {
            return Ok(false);
        }
        // Old metadata is deleted, oldest first: without its own file, a version is outdated however few follow it.
        self.store.exists(&self.metadata_name(version)).await
    }

    async fn hint(&self) -> Result<Option<u64>, LakeError> {
        let bytes = self.store.get(&self.hint_name()).await?;
        Ok(bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok()))
    }

    async fn listed(&self) -> Result<Option<u64>, LakeError> {
        let found = self.store.list(&format!("{}metadata/", self.directory)).await?;
        Ok(found.iter().filter_map(|object| self.version_of(&object.name)).max())
    }

    /// Returns the number of a metadata file; `None`: it is another object.
    pub(crate) fn version_of(&self, name: &str) -> Option<u64> {
        let name = name.strip_prefix(&self.directory)?.strip_prefix("metadata/v")?;
        name.strip_suffix(".metadata.json")?.parse().ok()
    }

    /// Makes `next` the current metadata, unless there is another successor of `current`.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if there is, and [`LakeError::Gone`] if the store has no metadata at all. [`LakeError::Store`]:
    /// it is unknown whether the commit has happened, or will happen later. Only a later commit rules that out.
    pub(crate) async fn commit(
        &self,
        current: Option<&Versioned>,
        next: TableMetadata,
    ) -> Result<Versioned, LakeError> {
        if let Some(current) = current {
            self.require(current.version).await?;
        }
        let version = current.map_or(1, |current| current.version + 1);
        let name = self.metadata_name(version);
        let next = Versioned { version, location: self.location(version), metadata: next };
        let json = next.encoded()?;
        if !self.store.create(&name, json.clone()).await? {
            // The answer to an earlier attempt of the same request may have been lost. Each commit has an id of its own.
            if self.store.get(&name).await?.is_none_or(|found| found != json) {
                return Err(LakeError::Conflict { table: self.table });
            }
        }
        // Readers look for later files than the hint names, so nothing depends on it.
        if let Err(error) = self.store.put(&self.hint_name(), Bytes::from(version.to_string())).await {
            tracing::debug!(%error, "cannot write the version hint of an Iceberg table");
        }
        Ok(next)
    }

    /// Checks that the store still has the metadata that a commit replaces. Where a file system is not mounted, or a bucket was
    /// emptied, a commit would succeed, and the table would consist of nothing else.
    async fn require(&self, version: u64) -> Result<(), LakeError> {
        let name = self.metadata_name(version);
        if self.store.exists(&name).await? {
            return Ok(());
        }
        // Other writers delete metadata that is much older than theirs.
        match self.listed().await? {
            Some(_) => Err(LakeError::Conflict { table: self.table }),
            None => Err(LakeError::Gone { url: self.store.url().to_owned(), missing: name }),
        }
    }
}
