//! Large buffers that are used over and over, so that the memory behind them stays mapped.
//!
//! A busy shard needs the same few buffers many thousand times a second. Left to the allocator, they are handed back to
//! the system and asked for again, and every page is cleared anew each time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::command::Command;

/// Buffers of one kind that are kept at most; each is as large as what is decoded, or encoded, in one go.
const KEPT_MAX: usize = 16;

/// Smaller ones are the allocator's own business.
const BYTES_MIN: usize = 16 * 1024;

/// Larger ones were needed for something unusual.
const BYTES_MAX: usize = 512 * 1024;

/// Empty vectors with room.
#[derive(Debug)]
pub(crate) struct Spares<T>(Mutex<Vec<Vec<T>>>);

/// For commands on their way to a shard.
pub(crate) type SpareCommands = Spares<Command>;

/// For frames on their way to a socket.
pub(crate) type SpareBytes = Spares<u8>;

impl<T> Spares<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty vector for about `length` values.
    pub(crate) fn take(&self, length: usize) -> Vec<T> {
        let spare = if length * size_of::<T>() >= BYTES_MIN { self.lock().pop() } else { None };
        spare.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// Keeps a vector that is needed no more, if it is worth it.
    pub(crate) fn give(&self, mut spare: Vec<T>) {
        spare.clear();
        let bytes = spare.capacity() * size_of::<T>();
        if (BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            let mut kept = self.lock();
            if kept.len() < KEPT_MAX {
                kept.push(spare);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_vectors_of_a_useful_size_are_kept_and_only_so_many() {
        let spares = SpareBytes::new();
        spares.give(Vec::with_capacity(100));
        spares.give(Vec::with_capacity(BYTES_MAX + 1));
        assert_eq!(spares.take(BYTES_MIN).capacity(), BYTES_MIN);
        for _ in 0..2 * KEPT_MAX {
            spares.give(vec![1; BYTES_MAX]);
        }
        assert_eq!(spares.lock().len(), KEPT_MAX);
        let spare = spares.take(BYTES_MIN);
        assert_eq!((spare.len(), spare.capacity()), (0, BYTES_MAX));
    }
}
