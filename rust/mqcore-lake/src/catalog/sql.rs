//! A catalog in a SQLite or PostgreSQL database, with the tables of Iceberg's JDBC catalog and of PyIceberg's SQL catalog.
//!
//! A commit writes a metadata file, and then replaces its name in the database if that still has the previous one.

use std::sync::Arc;
use std::time::Duration;

use iceberg::spec::TableMetadata;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Connection as _, Executor as _, Row as _};
use uuid::Uuid;

use super::versioned::Versioned;
use crate::error::LakeError;
use crate::store::Store;

/// Time limit of connecting to the database and of one statement.
const STATEMENT: Duration = Duration::from_secs(30);
/// The tables, as Iceberg's JDBC catalog defines them. Its specification is their only documentation.
const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS iceberg_tables (catalog_name VARCHAR(255) NOT NULL, \
     table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), \
     previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5), \
     PRIMARY KEY (catalog_name, table_namespace, table_name))",
    "CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, \
     namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000), \
     PRIMARY KEY (catalog_name, namespace, property_key))",
];
const NAMESPACE: &str =
    "INSERT INTO iceberg_namespace_properties VALUES ($1, $2, 'exists', 'true') ON CONFLICT DO NOTHING";
const INSERT: &str = "INSERT INTO iceberg_tables (metadata_location, catalog_name, table_namespace, table_name) \
     VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
const SELECT: &str = "SELECT metadata_location FROM iceberg_tables \
     WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3";
const UPDATE: &str = "UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $5 \
     WHERE catalog_name = $2 AND table_namespace = $3 AND table_name = $4 AND metadata_location = $5";

/// Where the database is, and the names in it.
pub(crate) struct SqlSettings {
    /// `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`.
    pub(crate) url: String,
    /// The URL without credentials, for errors.
    pub(crate) shown: String,
    pub(crate) catalog: String,
    pub(crate) namespace: String,
}

impl std::fmt::Debug for SqlSettings {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SqlSettings").field("url", &self.shown).finish_non_exhaustive()
    }
}

/// The catalog entry of one table.
#[derive(Debug, Clone)]
pub(crate) struct SqlCatalog {
    settings: Arc<SqlSettings>,
    store: Store,
    table: &'static str,
}

impl SqlCatalog {
    pub(crate) fn new(settings: Arc<SqlSettings>, store: Store, table: &'static str) -> Self {
        Self { settings, store, table }
    }

    /// Returns the current metadata; `None`: the table does not exist.
    ///
    /// # Errors
    /// [`LakeError::Catalog`], [`LakeError::Store`], [`LakeError::Gone`] if the store has lost the metadata, and
    /// [`LakeError::Table`] if the metadata is invalid.
    pub(crate) async fn load(&self) -> Result<Option<Versioned>, LakeError> {
        let Some(location) = self.location().await? else { return Ok(None) };
        let name = self.store.name(&location).ok_or_else(|| LakeError::Table {
            location: location.clone(),
            why: format!("it is outside of {}", self.store.url()),
        })?;
        let bytes = self.store.get(name).await?.ok_or_else(|| self.gone(name))?;
        // Files of other programs have no number; the next one begins again.
        let version = self.version_of(name).unwrap_or(0);
        Versioned::decoded(version, location, &bytes).map(Some)
    }

    /// Whether the table still has this metadata.
    ///
    /// # Errors
    /// [`LakeError::Catalog`].
    pub(crate) async fn is_current(&self, location: &str) -> Result<bool, LakeError> {
        Ok(self.location().await?.is_some_and(|found| found == location))
    }

    async fn location(&self) -> Result<Option<String>, LakeError> {
        let SqlSettings { catalog, namespace, .. } = &*self.settings;
        let query = sqlx::query(SELECT).bind(catalog).bind(namespace).bind(self.table);
        let found = self
            .with("reading a table", async |database| match query.fetch_optional(database).await {
                Err(error) if has_no_tables(&error) => Ok(None),
                found => found,
            })
            .await?;
        Ok(found.and_then(|row: AnyRow| row.try_get(0).ok()))
    }

    /// Makes `next` the current metadata, unless `current` is not any more. `None` creates the table.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if another commit came first, and [`LakeError::Gone`] if the store has lost the metadata.
    /// [`LakeError::Catalog`] and [`LakeError::Store`]: it may be unknown whether the commit has happened.
    pub(crate) async fn commit(
        &self,
        current: Option<&Versioned>,
        next: TableMetadata,
    ) -> Result<Versioned, LakeError> {
        if let Some(current) = current {
            self.require(&current.location).await?;
        }
        let version = current.map_or(0, |current| current.version + 1);
        let name = format!("{}/metadata/{version:05}-{}.metadata.json", self.table, Uuid::new_v4());
        let next = Versioned { version, location: self.store.location(&name), metadata: next };
        self.store.put(&name, next.encoded()?).await?;
        let SqlSettings { catalog, namespace, .. } = &*self.settings;
        let replaced = self
            .with("committing to a table", async |database| {
                let Some(current) = current else {
                    for table in TABLES {
                        database.execute(table).await?;
                    }
                    sqlx::query(NAMESPACE).bind(catalog).bind(namespace).execute(&mut *database).await?;
                    let insert = sqlx::query(INSERT).bind(&next.location).bind(catalog);
                    return insert.bind(namespace).bind(self.table).execute(database).await;
                };
                let update = sqlx::query(UPDATE).bind(&next.location).bind(catalog).bind(namespace);
                update.bind(self.table).bind(&current.location).execute(database).await
            })
            .await?;
        match replaced.rows_affected() {
            0 => Err(LakeError::Conflict { table: self.table }),
            _ => Ok(next),
        }
    }

    /// Checks that the store still has the metadata that a commit replaces. Where a file system is not mounted, or a bucket was
    /// emptied, the table would consist of this commit only.
    async fn require(&self, location: &str) -> Result<(), LakeError> {
        let Some(name) = self.store.name(location) else { return Ok(()) };
        if self.store.exists(name).await? {
            return Ok(());
        }
        // Other writers may have deleted it after their own commits.
        match self.is_current(location).await? {
            true => Err(self.gone(name)),
            false => Err(LakeError::Conflict { table: self.table }),
        }
    }

    fn gone(&self, name: &str) -> LakeError {
        LakeError::Gone { url: self.store.url().to_owned(), missing: name.to_owned() }
    }

    /// Connects to the database for one operation. Commits are rare, and a connection that waits for hours may be dead.
    async fn with<T>(
        &self,
        doing: &'static str,
        work: impl AsyncFnOnce(&mut AnyConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, LakeError> {
        sqlx::any::install_default_drivers();
        let failed = |why: String| LakeError::Catalog { doing, url: self.settings.shown.clone(), why };
        let done = tokio::time::timeout(STATEMENT, async {
            let mut database = AnyConnection::connect(&self.settings.url).await?;
            let done = work(&mut database).await?;
            database.close().await?;
            Ok(done)
        });
        match done.await {
            Ok(done) => done.map_err(|error: sqlx::Error| failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", STATEMENT.as_secs()))),
        }
    }

    /// Returns the number of a metadata file; `None`: it is another object.
    pub(crate) fn version_of(&self, name: &str) -> Option<u64> {
        let name =
            name.strip_prefix(self.table)?.strip_prefix("/metadata/")?.strip_suffix(".metadata.json")?;
        name.split_once('-')?.0.parse().ok()
    }
}

/// Whether the database has no catalog yet.
fn has_no_tables(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    error.code().is_some_and(|code| code == "42P01") || error.message().starts_with("no such table")
}
