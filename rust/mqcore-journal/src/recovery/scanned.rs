//! One segment during recovery: its bytes, what was found in them, and what other files say about it.

use super::report::DamageCause;
use crate::catalog::CatalogEntry;
use crate::format::{self, Record};
use crate::scan::SegmentScan;

/// One segment during recovery.
pub(super) struct ScannedSegment {
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) scan: SegmentScan,
    /// End and number of records, if a later segment lists them.
    pub(super) listed: Option<(u32, u32)>,
    /// Entry of the catalog, if no later segment lists it.
    pub(super) cataloged: Option<CatalogEntry>,
    pub(super) cause: Option<DamageCause>,
}

impl ScannedSegment {
    /// Whether the segment contains anything but copies of another segment's tail.
    ///
    /// Opening writes these copies first and makes them durable before anything else. A segment with nothing else results from
    /// an unfinished opening, so the other segment remains valid.
    pub(super) fn is_in_use(&self) -> bool {
        self.scan.records.iter().any(|span| {
            matches!(
                format::decode(&self.bytes[span.offset as usize..span.end() as usize]),
                Some(
                    Record::Put { moved: false, .. }
                        | Record::Mark { .. }
                        | Record::Seal { .. }
                        | Record::Begin { .. }
                        | Record::Drop { .. }
                )
            )
        })
    }
}

/// The part of a segment behind its header.
pub(super) fn content(bytes: &[u8]) -> &[u8] {
    bytes.get(format::records_start(bytes) as usize..).unwrap_or_default()
}

/// Whether the end of an open segment's file is missing. A segment whose end is recorded may be short.
pub(super) fn shortened(subject: &ScannedSegment, capacity: u32) -> Option<DamageCause> {
    let length = subject.bytes.len() as u64;
    let open = subject.listed.is_none() && !subject.scan.closed;
    (open && length < u64::from(capacity))
        .then_some(DamageCause::Shortened { length, capacity: u64::from(capacity) })
}
