//! What is kept of a counter: one cache line.

use crate::arena::NONE;
use crate::time::Nanos;

/// Bytes of a key that fit into an entry.
pub(crate) const SHORT_KEY: usize = 16;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
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

/// Neighbours in a doubly linked list of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    pub(crate) previous: u32,
    pub(crate) next: u32,
}

impl Default for Links {
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
    /// In the slot of the wheel, or among those that are due.
    pub(crate) wheel: Links,
    /// In the order of creation.
    pub(crate) order: Links,
    /// The key, if it is short; otherwise the first four bytes say where it is.
    pub(crate) key: [u8; SHORT_KEY],
    /// The slot of the wheel.
    pub(crate) slot: u16,
    pub(crate) key_bytes: u8,
    pub(crate) kind: Kind,
    /// The unit of the time to live.
    pub(crate) unit: u8,
    /// Bits of the value: where a counter wraps.
    pub(crate) bits: u8,
    /// Where it stands with whoever keeps it.
    pub(crate) marks: Marks,
}

/// What persistence has to remember of an entry, as bits: an entry is a cache line, and has no room for flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    pub(crate) const NONE: Self = Self(0);
    /// It was made to be kept.
    pub(crate) const KEPT: Self = Self(1);
    /// Its place stands in the list of changes. Stays with the place when the entry goes, so that no place stands there
    /// twice, however often it is used again before anybody fetches.
    pub(crate) const LISTED: Self = Self(2);
    /// A change of it has been fetched before, so its removal has to be told.
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

    /// This one mark, if it is set.
    #[inline]
    pub(crate) const fn only(self, mark: Self) -> Self {
        Self(self.0 & mark.0)
    }
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry is one cache line");

impl Entry {
    /// Where its key is, if that is too long for an entry.
    #[inline]
    pub(crate) fn long_key(&self) -> Option<u32> {
        let [a, b, c, d, ..] = self.key;
        (usize::from(self.key_bytes) > SHORT_KEY).then(|| u32::from_le_bytes([a, b, c, d]))
    }
}
