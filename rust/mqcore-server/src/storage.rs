//! The data directory: written by a running broker, read and compacted while it is stopped.
//!
//! | module | contents |
//! |---|---|
//! | [`data_dir`] | its layout and its lock |
//! | `manifest` | the files that list its journals |
//! | `parts` | compares it with its manifest |
//! | [`loss`] | what journals have lost, until the operator accepts it |
//! | `journal_writer` | the shard's side of the thread that writes its journal |
//! | `journal_thread` | that thread |
//! | `journal_batch` | the shard's input to it |
//! | `body_reader` | reads message bodies back into memory |
//! | `archiver` | the thread that copies history to the archive |
//! | `object_archive` | the archive on object storage, as that thread uses it |
//! | `archive_location` | where the archive of a data directory is |
//! | [`backup`] | a consistent copy while the broker runs |
//! | `continuous_backup` | the thread that makes restore points on object storage |
//! | [`archive`] | that copy as a tar stream |
//! | [`history`] | events of messages, read while a broker runs |
//! | [`inspection`] | queues and messages of a stopped broker |
//! | [`export`] | the same as one file of rows |
//! | [`object_files`] | files on object storage, for backups |
//! | [`acceptance`] | accepts losses |
//! | [`compaction`] | rewrites the journals of a stopped broker |

pub mod acceptance;
pub mod archive;
pub mod backup;
pub mod compaction;
pub mod data_dir;
pub mod export;
pub mod history;
pub mod inspection;
pub mod loss;
pub mod object_files;

pub(crate) mod archive_location;
pub(crate) mod archiver;
pub(crate) mod body_reader;
pub(crate) mod continuous_backup;
pub(crate) mod journal_batch;
mod journal_thread;
pub(crate) mod journal_writer;
mod manifest;
pub(crate) mod object_archive;
mod parts;
