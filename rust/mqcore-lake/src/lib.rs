//! Object storage: the archive as Apache Iceberg tables, and backups.
//!
//! The broker uploads the history of messages as Parquet files, and commits them to two Iceberg tables, `messages` and
//! `steps`, which Spark, DuckDB, PyIceberg and others read directly. Each table stores in the same commit how far it
//! extends, so that every event is in it exactly once, whatever crashes.
//!
//! The crate has no threads and no clock: the caller decides when to archive and passes the time.
//!
//! | module | content |
//! |---|---|
//! | [`lake`] | rounds, retention and expiry of snapshots over both tables; fencing of other writers |
//! | `compaction` | small files merged into large ones |
//! | `table` | one Iceberg table: its current snapshot, and commits |
//! | `usage` | objects that the snapshots of a table use |
//! | `change` | the content of a commit |
//! | [`location`] | object store and catalog of an archive |
//! | `catalog` | which metadata of a table is the current one: in the object store, or at a REST catalog |
//! | `files` | Parquet files, and what Iceberg stores about them |
//! | `metadata` | manifests and manifest lists, in memory |
//! | `schema` | columns, partitions and sort order in Iceberg's terms |
//! | [`reading`] | the archive for readers |
//! | [`backup`] | continuous backups: restore points of a data directory |
//! | [`store`] | objects below one URL |
//! | [`transfer`] | whole files as objects, for backups |
//! | [`error`] | errors of this crate |

pub mod backup;
mod catalog;
mod change;
mod compaction;
pub mod error;
mod files;
pub mod lake;
pub mod location;
mod metadata;
pub mod reading;
mod schema;
pub mod store;
mod table;
pub mod transfer;
mod usage;
