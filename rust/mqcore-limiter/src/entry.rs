//! An entry of the store, which takes one cache line.

use crate::arena::NONE;
use crate::time::Nanos;

/// Maximum size in bytes of a key stored inside an entry.
pub(crate) const SHORT_KEY: usize = 16;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EntryKind {
    /// The place is free.
    #[default]
    Free,
    /// `value` is a quota.
    Counter,
    /// `value` is the place of a cell with bytes.
    Buffer,
    /// `value` is the place of a cell with a sliding window.
    Sliding,
    /// `value` is the place of a cell with a bucket.
    Bucket,
}

/// Adjacent entries in a doubly linked list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListLinks {
    pub(crate) previous: u32,
    pub(crate) next: u32,
}

impl Default for ListLinks {
    fn default() -> Self {
        Self { previous: NONE, next: NONE }
    }
}

/// One counter or buffer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry {
    pub(crate) value: u64,
    pub(crate) deadline: Nanos,
    /// Ascends with each creation in the whole store.
    pub(crate) sequence: u64,
    /// List of the wheel's slot, or of the due entries.
    pub(crate) wheel: ListLinks,
    /// List in order of creation.
    pub(crate) order: ListLinks,
    /// A short key; otherwise the first four bytes are the place of the key.
    pub(crate) key: [u8; SHORT_KEY],
    /// Slot of the wheel.
    pub(crate) slot: u16,
    pub(crate) key_bytes: u8,
    pub(crate) kind: EntryKind,
    /// Unit of the time to live.
    pub(crate) unit: u8,
    /// Width of a counter in bits, at which it wraps around.
    pub(crate) bits: u8,
    /// State of the entry with regard to persistence.
    pub(crate) marks: PersistenceMarks,
}

/// The state of an entry with regard to persistence, as bits so that the entry fits into a cache line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PersistenceMarks(u8);

impl PersistenceMarks {
    pub(crate) const NONE: Self = Self(0);
    /// The entry is persistent.
    pub(crate) const KEPT: Self = Self(1);
    /// The place is in the list of changes. The mark stays with the place when the entry is removed, so that a reused place
    /// is listed only once per fetch.
    pub(crate) const LISTED: Self = Self(2);
    /// A change of the entry was fetched, so its removal must be reported.
    pub(crate) const FETCHED: Self = Self(4);

    #[inline]
    pub(crate) const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    #[inline]
    pub(crate) const fn with(self, mark: Self) -> Self {
        Self(self.0 | mark.0)
    }

    #[inline]
    pub(crate) const fn without(self, mark: Self) -> Self {
        Self(self.0 & !mark.0)
    }

    /// Returns this mark alone, if it is set.
    #[inline]
    pub(crate) const fn only(self, mark: Self) -> Self {
        Self(self.0 & mark.0)
    }
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry is one cache line");

impl Entry {
    /// Returns the place of the key if it is too long for the entry.
    #[inline]
    pub(crate) fn long_key(&self) -> Option<u32> {
        let [a, b, c, d, ..] = self.key;
        (usize::from(self.key_bytes) > SHORT_KEY).then(|| u32::from_le_bytes([a, b, c, d]))
    }
}
