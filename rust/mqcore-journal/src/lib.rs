//! What must survive a crash: opaque records in, opaque records out.
//!
//! A [`journal::Journal`] is one shard's log of segment files. Records carry numbers that only ascend; a record is
//! live until it is settled, and what was synced is there again after any crash, in order and unchanged. There is
//! no thread, no clock and no word of the broker in here; `docs/storage.md` draws the bytes and argues the crashes.
//!
//! | module | what lives there |
//! |---|---|
//! | [`journal`] | opening, putting, settling, writing, syncing, reading |
//! | [`maintenance`] | housekeeping: what is unlinked, what is moved, what is set aside; `compaction`: all of it at once |
//! | [`recovery`] | what opening found, in words and numbers |
//! | [`inspection`] | the same without opening: reading alone |
//! | [`notes`] | the notes of sealed segments, read by others than the writer |
//! | [`following`] | the notes of segment files that may still grow, without the journal |
//! | [`snapshot`] | which parts of which files make a whole copy |
//! | [`storage`] | files: real ones, and some in memory that crash on demand |
//! | [`reading`] | many records at once, while others are written |
//! | [`options`], [`stats`], [`error`] | limits and sizes, what is counted, what can go wrong |

mod compaction;
pub mod error;
pub mod following;
mod format;
mod index;
pub mod inspection;
pub mod journal;
pub mod maintenance;
pub mod notes;
pub mod options;
pub mod reading;
pub mod recovery;
mod scan;
pub mod snapshot;
mod state;
pub mod stats;
pub mod storage;
mod writer;
