//! Frames received over one connection from a downstream broker, and how far they are confirmed.
//!
//! Queues confirm in any order, but the confirmation sent to the downstream broker is cumulative.

use std::collections::VecDeque;

/// Maximum number of unconfirmed frames on one connection. mqcore's own links stay far below it
/// ([`crate::link::LinkOptions::window`]).
pub const OPEN_MAX: usize = 1 << 17;

/// A violation of the link protocol by the downstream broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// The downstream broker does not wait for confirmations.
    #[error("a node sent more than {OPEN_MAX} unconfirmed frames")]
    TooManyOpen,
}

/// The frames of one connection, in order.
#[derive(Debug, Default)]
pub struct Receipts {
    /// Numbers, and how many parts of each are pending.
    open: VecDeque<(u64, u32)>,
    /// Highest number received.
    last: u64,
    confirmed: u64,
}

impl Receipts {
    /// Creates an empty tracker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a frame that consists of `parts` parts: a message and its copies, possibly none.
    ///
    /// # Errors
    /// [`ReceiptError`] if too many frames are unconfirmed; close the connection.
    pub fn arrived(&mut self, number: u64, parts: u32) -> Result<(), ReceiptError> {
        if number <= self.last {
            // A duplicate on the same connection: its first arrival is or will be confirmed.
            return Ok(());
        }
        if self.open.len() >= OPEN_MAX {
            return Err(ReceiptError::TooManyOpen);
        }
        self.last = number;
        self.open.push_back((number, parts));
        Ok(())
    }

    /// Records that one part of a frame is stored.
    pub fn done(&mut self, number: u64) {
        if let Ok(at) = self.open.binary_search_by_key(&number, |(number, _)| *number) {
            let (_, parts) = &mut self.open[at];
            *parts = parts.saturating_sub(1);
        }
    }

    /// Returns the number up to which all frames are stored, or `None` if that was already confirmed.
    pub fn confirm(&mut self) -> Option<u64> {
        let mut through = self.confirmed;
        while let Some((number, 0)) = self.open.front().copied() {
            through = number;
            self.open.pop_front();
        }
        (through > std::mem::replace(&mut self.confirmed, through)).then_some(through)
    }

    /// Number of unconfirmed frames.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_covers_only_frames_without_pending_predecessors() {
        let mut receipts = Receipts::new();
        for (number, parts) in [(3, 1), (4, 2), (7, 1), (8, 0)] {
            receipts.arrived(number, parts).expect("few");
        }
        assert_eq!(receipts.confirm(), None);
        receipts.done(7);
        receipts.done(4);
        assert_eq!(receipts.confirm(), None);
        receipts.done(3);
        assert_eq!(receipts.confirm(), Some(3));
        assert_eq!(receipts.confirm(), None, "confirmed only once");
        receipts.done(4);
        assert_eq!(receipts.confirm(), Some(8), "a frame without parts is complete immediately");
    }

    #[test]
    fn too_many_unconfirmed_frames_are_an_error() {
        let mut receipts = Receipts::new();
        for number in 1..=OPEN_MAX as u64 {
            receipts.arrived(number, 1).expect("within the bound");
        }
        assert_eq!(receipts.arrived(OPEN_MAX as u64 + 1, 1), Err(ReceiptError::TooManyOpen));
    }
}
