//! Errors of the archive on object storage.

use mqcore_archive::archive::ArchiveError;
use mqcore_archive::export::ExportError;
use mqcore_archive::reading::ReadError;

/// Why the archive on object storage cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LakeError {
    /// The URL, or a setting that belongs to it, is invalid.
    #[error("invalid URL {url:?}: {why}")]
    Url {
        /// The URL.
        url: String,
        /// Reason.
        why: String,
    },
    /// The store refused a request, or does not answer.
    #[error("{doing} {path}: {source}")]
    Store {
        /// Operation.
        doing: &'static str,
        /// Path of the object.
        path: String,
        /// Error of the store.
        source: object_store::Error,
    },
    /// The catalog refused a request, or does not answer.
    #[error("{doing} at the catalog {url}: {why}")]
    Catalog {
        /// Operation.
        doing: &'static str,
        /// URL of the request.
        url: String,
        /// Reason.
        why: String,
    },
    /// The store overwrites an object although the request forbids it. Two brokers could then destroy each other's commits.
    #[error(
        "the object store of {url} ignores conditional writes (If-None-Match), so commits would not be safe; \
         use a store that honors them, or a REST catalog"
    )]
    Unconditional {
        /// The archive's URL.
        url: String,
    },
    /// The tables belong to another broker.
    #[error(
        "the archive {url} belongs to the broker {owner}, and this is {this}; use another prefix for each broker"
    )]
    Owner {
        /// The archive's URL.
        url: String,
        /// Identity of the broker that created the tables.
        owner: String,
        /// Identity of this broker.
        this: String,
    },
    /// Another process with the same data directory has opened the archive since.
    #[error(
        "another process has taken over the archive {url} (epoch {epoch}; this process has {this}); \
         this process stops archiving"
    )]
    Fenced {
        /// The archive's URL.
        url: String,
        /// Epoch of the table.
        epoch: u64,
        /// Epoch of this process.
        this: u64,
    },
    /// The tables contain history that this data directory does not know, as after `mqcore restore` of an older backup. New
    /// events would have the numbers of that history.
    #[error(
        "the archive {url} has history of shard {shard} up to note {archived}, which this data directory does not know, as \
         after the restore of a backup; set archive_url to another prefix"
    )]
    Ahead {
        /// The archive's URL.
        url: String,
        /// Shard number.
        shard: u32,
        /// Number below which all notes are in a table.
        archived: u64,
    },
    /// The journal of a shard is another one than before, and its notes have the numbers of archived ones.
    #[error(
        "the archive {url} has history of another journal of shard {shard}, up to note {archived}, and this one has other notes \
         with these numbers; set archive_url to another prefix"
    )]
    OtherJournal {
        /// The archive's URL.
        url: String,
        /// Shard number.
        shard: u32,
        /// Number below which all notes are in a table.
        archived: u64,
    },
    /// The tables have archived history of this data directory, and the object store or the catalog does not have them now. New
    /// ones in their place would hide that, and the journal would give up history that only they have.
    #[error(
        "the tables of the archive {url} are gone: there is no {missing}; bring the object store or the catalog back, or set \
         archive_url to another prefix to begin a new archive"
    )]
    Gone {
        /// The archive's URL.
        url: String,
        /// The missing table or metadata file.
        missing: String,
    },
    /// A restore point of a continuous backup cannot be encoded or decoded.
    #[error("restore point {number}: {why}")]
    RestorePoint {
        /// Its number.
        number: u64,
        /// Reason.
        why: String,
    },
    /// A restore point of this number was made meanwhile. Try again.
    #[error("restore point {number} exists already; trying again")]
    RestorePointExists {
        /// Its number.
        number: u64,
    },
    /// Another process adds restore points at the same place.
    #[error(
        "another broker has taken over the backup {url}, for example one that was restored from it; \
         this broker makes no more restore points until it is restarted. Use another prefix for each broker"
    )]
    TakenOver {
        /// The backup's URL.
        url: String,
    },
    /// Someone else has committed to the table. Open the archive again.
    #[error("another commit to the table {table} came first")]
    Conflict {
        /// Name of the table.
        table: &'static str,
    },
    /// The table exists, but mqcore cannot write it.
    #[error("cannot use the Iceberg table {location}: {why}")]
    Table {
        /// Location of the table.
        location: String,
        /// Reason.
        why: String,
    },
    /// Metadata of a table cannot be encoded or decoded.
    #[error("metadata of the Iceberg table: {0}")]
    Iceberg(#[from] iceberg::Error),
    /// A Parquet file cannot be written or read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The archive in the data directory, after which this one continues, cannot be read.
    #[error(transparent)]
    Earlier(#[from] ReadError),
    /// The journal cannot be read, or the caller asked to stop.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl LakeError {
    /// Returns the error of a restore point that cannot be encoded.
    pub(crate) fn restore_point(number: u64, error: impl std::fmt::Display) -> Self {
        Self::RestorePoint { number, why: error.to_string() }
    }

    /// Returns a function that adds the operation and the path to an error of the store.
    pub(crate) fn store(doing: &'static str, path: &str) -> impl FnOnce(object_store::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Store { doing, path, source }
    }
}

impl From<parquet::errors::ParquetError> for LakeError {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self::Export(ExportError::Parquet(error))
    }
}

impl From<arrow_schema::ArrowError> for LakeError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Export(ExportError::Arrow(error))
    }
}
