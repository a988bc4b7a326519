//! An entry as a listing returns it.

use crate::time::Nanos;
use crate::uses::Usage;

/// An entry at the time when the listing copied it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    pub(crate) sequence: u64,
    /// Key.
    pub key: Box<[u8]>,
    /// Content size in bytes; `None` for a counter.
    pub buffer_bytes: Option<u64>,
    /// Unit of the time to live.
    pub unit: u8,
    /// Time of expiry.
    pub deadline: Nanos,
    /// Quota that a query would return.
    pub quota: u64,
    /// Usage; zeros without metrics.
    pub uses: Usage,
}
