//! What came over one connection from a slave, and how much of it is confirmed.
//!
//! Queues confirm in any order; a slave is told only "everything up to here".

use std::collections::VecDeque;

/// Frames of one connection that may be unconfirmed. A slave of ours keeps far below ([`crate::link::LinkOptions::window`]).
pub const OPEN_MAX: usize = 1 << 17;

/// A slave sent more than [`OPEN_MAX`] frames ahead of what was confirmed, or numbers that do not ascend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// It does not wait for confirmations.
    #[error("a node sent {OPEN_MAX} frames beyond what was confirmed")]
    TooManyOpen,
}

/// The frames of one connection, in their order.
#[derive(Debug, Default)]
pub struct Receipts {
    /// Number, and how many parts of it are not done yet.
    open: VecDeque<(u64, u32)>,
    /// The highest number that came.
    last: u64,
    told: u64,
}

impl Receipts {
    /// Nothing came yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A frame of this number came, which makes so many parts (a message and its copies); none is fine.
    ///
    /// # Errors
    /// [`ReceiptError`]: end the connection.
    pub fn arrived(&mut self, number: u64, parts: u32) -> Result<(), ReceiptError> {
        if number <= self.last {
            // Once more on the same connection: its first arrival is confirmed, or will be.
            return Ok(());
        }
        if self.open.len() >= OPEN_MAX {
            return Err(ReceiptError::TooManyOpen);
        }
        self.last = number;
        self.open.push_back((number, parts));
        Ok(())
    }

    /// One part of a frame is done.
    pub fn done(&mut self, number: u64) {
        if let Ok(at) = self.open.binary_search_by_key(&number, |(number, _)| *number) {
            let (_, parts) = &mut self.open[at];
            *parts = parts.saturating_sub(1);
        }
    }

    /// What may be told now: everything up to and including this number is done. `None` if that was told before.
    pub fn confirm(&mut self) -> Option<u64> {
        let mut through = self.told;
        while let Some((number, 0)) = self.open.front().copied() {
            through = number;
            self.open.pop_front();
        }
        (through > std::mem::replace(&mut self.told, through)).then_some(through)
    }

    /// Frames that are not confirmed.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_nothing_open_before_it_is_confirmed() {
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
        assert_eq!(receipts.confirm(), None, "said once");
        receipts.done(4);
        assert_eq!(receipts.confirm(), Some(8), "what makes nothing is done at once");
    }

    #[test]
    fn a_slave_that_waits_for_nothing_is_told_off() {
        let mut receipts = Receipts::new();
        for number in 1..=OPEN_MAX as u64 {
            receipts.arrived(number, 1).expect("within the bound");
        }
        assert_eq!(receipts.arrived(OPEN_MAX as u64 + 1, 1), Err(ReceiptError::TooManyOpen));
    }
}
