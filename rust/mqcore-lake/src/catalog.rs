//! Catalogs: which metadata of a table is the current one. A commit replaces it, unless another one came first.

mod objects;
mod rest;
pub(crate) mod settings;
mod sql;
mod versioned;

use iceberg::TableUpdate;
use iceberg::spec::TableMetadata;

use self::objects::ObjectCatalog;
use self::rest::RestCatalog;
use self::settings::CatalogSettings;
use self::sql::SqlCatalog;
pub(crate) use self::versioned::Versioned;
use crate::error::LakeError;
use crate::store::Store;

/// The next state of a table, as metadata and as the difference to its current metadata.
#[derive(Debug)]
pub(crate) struct NextState {
    pub(crate) metadata: TableMetadata,
    /// May be empty if [`Catalog::takes_updates`] is false.
    pub(crate) updates: Vec<TableUpdate>,
}

/// The catalog entry of one table.
#[derive(Debug, Clone)]
pub(crate) enum Catalog {
    Objects(ObjectCatalog),
    Rest(RestCatalog),
    Sql(SqlCatalog),
}

impl Catalog {
    pub(crate) fn new(settings: &CatalogSettings, store: &Store, table: &'static str) -> Self {
        match settings {
            CatalogSettings::Objects => Self::Objects(ObjectCatalog::new(store.clone(), table)),
            CatalogSettings::Rest(client) => Self::Rest(RestCatalog::new(client.clone(), table)),
            CatalogSettings::Sql(database) => {
                Self::Sql(SqlCatalog::new(database.clone(), store.clone(), table))
            }
        }
    }

    /// Returns the current metadata; `None`: the table does not exist.
    ///
    /// # Errors
    /// [`LakeError::Store`], [`LakeError::Catalog`], and [`LakeError::Table`] if the metadata is invalid.
    pub(crate) async fn load(&self) -> Result<Option<Versioned>, LakeError> {
        match self {
            Self::Objects(catalog) => catalog.load().await,
            Self::Rest(catalog) => catalog.load().await,
            Self::Sql(catalog) => catalog.load().await,
        }
    }

    /// Whether no later metadata than this exists.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) async fn is_current(&self, known: &Versioned) -> Result<bool, LakeError> {
        match self {
            Self::Objects(catalog) => catalog.is_current(known.version).await,
            Self::Rest(catalog) => catalog.is_current(&known.location).await,
            Self::Sql(catalog) => catalog.is_current(&known.location).await,
        }
    }

    /// Replaces the metadata `current`; `None` creates the table.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if another commit came first, and [`LakeError::Gone`]. [`LakeError::Store`] and [`LakeError::Catalog`]: it is unknown
    /// whether the commit has happened, or will happen later. Only a later commit rules that out.
    pub(crate) async fn commit(
        &self,
        current: Option<&Versioned>,
        next: NextState,
    ) -> Result<Versioned, LakeError> {
        match self {
            Self::Objects(catalog) => catalog.commit(current, next.metadata).await,
            Self::Rest(catalog) => catalog.commit(current, next.updates).await,
            Self::Sql(catalog) => catalog.commit(current, next.metadata).await,
        }
    }

    /// Whether a commit consists of updates, which the catalog applies unless the table has got another snapshot. Each
    /// commit must then add a snapshot, because a delayed commit could otherwise take effect after it.
    pub(crate) fn takes_updates(&self) -> bool {
        matches!(self, Self::Rest(_))
    }

    /// Returns the number in the name of a metadata file that this process deletes when it is outdated; `None`: it is another
    /// object, or the catalog deletes it.
    pub(crate) fn version_of(&self, name: &str) -> Option<u64> {
        match self {
            Self::Objects(catalog) => catalog.version_of(name),
            Self::Sql(catalog) => catalog.version_of(name),
            Self::Rest(_) => None,
        }
    }
}
