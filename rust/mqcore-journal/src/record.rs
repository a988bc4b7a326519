//! Live records and notes, as the journal passes them to callbacks.

use crate::error::JournalError;

/// A live record, as passed to the callback of [`Journal::each_live`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live<'a> {
    /// Sequence number.
    pub sequence: u64,
    /// Queue id that the caller stored with the record.
    pub queue: u32,
    /// Payload of the put.
    pub payload: &'a [u8],
    /// Payload of the latest touch.
    pub touch: Option<&'a [u8]>,
}

/// A note: an opaque entry of the history, as passed to the callback of [`Journal::each_note`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'a> {
    /// Ascends in the order of writing. After a crash during housekeeping, a note may appear twice with the same number.
    pub number: u64,
    /// Time given by the caller, in milliseconds.
    pub time_ms: u64,
    /// Payload of the note.
    pub payload: &'a [u8],
}

/// Callback that receives the number and payload of a record, or the reason why it cannot be read.
pub type Show<'a> = dyn FnMut(u64, Result<&[u8], JournalError>) + 'a;
