//! The progress of emptying a segment.

use crate::scan::Span;

/// A segment whose needed records are being copied. Each call of [`Journal::maintain`](crate::journal::Journal::maintain) continues where the last one
/// stopped.
#[derive(Debug)]
pub(crate) struct Relocation {
    pub(crate) segment: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Span>,
    pub(crate) next: usize,
}
