//! A crash-safe journal of opaque records.
//!
//! A [`journal::Journal`] is one shard's log of segment files. Records have ascending numbers. A record is live until it is
//! settled. Every synced record is available after a crash, in order and unchanged. The crate has no threads and no clock,
//! and does not depend on the broker. `docs/storage-format.md` describes the file format and explains crash safety.
//!
//! | module | content |
//! |---|---|
//! | [`journal`] | open, put, settle, write, sync, read |
//! | [`record`] | live records and notes, as passed to callbacks |
//! | [`maintenance`] | housekeeping: remove, relocate and quarantine segments; `compaction`: all of it at once |
//! | [`recovery`] | what opening found, and its report |
//! | [`identity`] | which journal a directory holds, without opening it |
//! | [`inspection`] | the same without opening, read-only |
//! | [`notes`] | the notes of sealed segments, for archivers |
//! | [`following`] | the notes of segment files that still grow, without the journal |
//! | [`checking`] | one segment file alone |
//! | [`snapshot`] | the parts of the files that form a consistent copy |
//! | [`storage`] | files: real ones, and in-memory ones with simulated crashes |
//! | [`reading`] | batch reading while the journal is in use |
//! | [`varint`] | integers of variable length |
//! | [`options`], [`stats`], [`error`] | limits, statistics, errors |

mod catalog;
pub mod checking;
mod compaction;
pub mod error;
pub mod following;
mod format;
pub mod identity;
mod index;
pub mod inspection;
pub mod journal;
pub mod maintenance;
pub mod notes;
pub mod options;
pub mod reading;
pub mod record;
pub mod recovery;
mod relocation;
mod scan;
pub mod snapshot;
mod state;
pub mod stats;
pub mod storage;
pub mod varint;
mod writer;
