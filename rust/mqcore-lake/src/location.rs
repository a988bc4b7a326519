//! Where an archive is: its objects, and the catalog that knows the current metadata of its tables.

use std::collections::BTreeMap;

use crate::catalog::Catalog;
use crate::catalog::settings::{CatalogSettings, is_of_catalog};
use crate::error::LakeError;
use crate::store::Store;

/// The object store and the catalog of an archive.
#[derive(Debug, Clone)]
pub struct LakeLocation {
    store: Store,
    catalog: CatalogSettings,
}

impl LakeLocation {
    /// Opens the archive at a URL. Sends no request.
    ///
    /// `options` are those of [`Store::open`] and, with names that begin with `catalog`, those of the catalog:
    ///
    /// | option | value | default |
    /// |---|---|---|
    /// | `catalog` | URL of a REST catalog, `https://` or `http://`, or of a database, `sqlite:///` or `postgresql://` | the object store is the catalog |
    /// | `catalog_name` | name of a catalog in a database | `mqcore` |
    /// | `catalog_namespace` | namespace of the tables; dots separate its levels | last part of the archive's URL |
    /// | `catalog_warehouse` | warehouse that the server shall use | that of the server |
    /// | `catalog_token` | bearer token | none |
    /// | `catalog_credential` | `id:secret`, for which OAuth 2 issues tokens | none |
    /// | `catalog_scope` | scope of these tokens | `catalog` |
    /// | `catalog_oauth2_server_uri` | the server that issues them | the catalog |
    ///
    /// Options that are missing come from environment variables such as `ICEBERG_CATALOG_TOKEN`.
    ///
    /// # Errors
    /// [`LakeError::Url`] if the URL, an option or a variable is invalid.
    pub fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Self, LakeError> {
        Self::open_with(url, options, &BTreeMap::new())
    }

    /// The same, with the variables of another process for those that this process does not have.
    ///
    /// # Errors
    /// [`LakeError::Url`] if the URL, an option or a variable is invalid.
    pub fn open_with(
        url: &str,
        options: &BTreeMap<String, String>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, LakeError> {
        let (catalog, store) = options.clone().into_iter().partition(|(name, _)| is_of_catalog(name));
        let store = Store::open(url, &store, variables)?;
        Ok(Self { store, catalog: CatalogSettings::new(url, &catalog, variables)? })
    }

    /// The object store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether commits depend on conditional writes of the object store.
    pub(crate) fn needs_conditional_writes(&self) -> bool {
        matches!(self.catalog, CatalogSettings::Objects)
    }

    pub(crate) fn catalog(&self, table: &'static str) -> Catalog {
        Catalog::new(&self.catalog, &self.store, table)
    }
}

impl From<Store> for LakeLocation {
    /// An archive whose catalog is its object store.
    fn from(store: Store) -> Self {
        Self { store, catalog: CatalogSettings::Objects }
    }
}
