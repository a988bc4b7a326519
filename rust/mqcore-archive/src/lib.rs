//! History for others to read: the notes of a journal become Parquet files, each exactly once.
//!
//! There is no thread, no clock and no broker in here: who calls decides when, and says what time it is.
//!
//! | module | what lives there |
//! |---|---|
//! | [`archive`] | notes to files, published by a manifest; retention; what a crash leaves |
//! | [`manifest`] | the list of what is in the archive: the only thing that a reader has to trust |
//! | [`tables`] | the columns, and rows to record batches |
//! | [`export`] | the same columns into one file, for a stopped broker's journal |
//! | [`reading`] | the archive and the journal behind it as one row of steps, for analysts |
//! | [`tree`] | directories of files |
//! | [`partition`] | where in the tree a row belongs |

pub mod archive;
pub mod export;
pub mod manifest;
pub mod partition;
pub mod reading;
pub mod tables;
pub mod tree;
