//! The archive: notes of a journal, which hold the history of messages, exported exactly once to Parquet files.
//!
//! The crate has no threads and no clock, and runs no broker: the caller decides when to archive and passes the time.
//!
//! | module | content |
//! |---|---|
//! | [`archive`] | from notes to files published by a manifest; retention; cleanup after a crash |
//! | [`manifest`] | the list of files in the archive, which is all that a reader must trust |
//! | [`conforming`] | rows of files with the types of these columns |
//! | [`tables`] | columns, and the conversion of rows to record batches |
//! | [`export`] | the same columns in one file, for the journal of a stopped broker |
//! | [`reading`] | archive and journal combined into one sequence of lifecycle events, for analysis |
//! | [`round`] | the notes that one round takes from a journal |
//! | [`tree`] | storage in nested directories |
//! | [`partition`] | the directory of a row |

pub mod archive;
pub mod conforming;
pub mod export;
pub mod manifest;
pub mod partition;
pub mod reading;
pub mod round;
pub mod tables;
pub mod tree;
