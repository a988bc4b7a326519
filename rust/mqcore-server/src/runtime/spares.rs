//! Large buffers that are reused, so that their memory stays mapped.
//!
//! A busy shard needs the same few buffers thousands of times a second. An allocator would return them to the system
//! and request them again, and the system would clear every page each time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mqcore_broker::model::command::Command;

/// Maximum buffers of one kind; each is as large as one batch of decoding or encoding.
const KEPT_MAX: usize = 16;

/// Smaller buffers are left to the allocator.
const BYTES_MIN: usize = 16 * 1024;

/// Larger buffers were needed for something unusual.
const BYTES_MAX: usize = 512 * 1024;

/// Empty vectors with capacity.
#[derive(Debug)]
pub(crate) struct Spares<T>(Mutex<Vec<Vec<T>>>);

/// For commands to a shard.
pub(crate) type SpareCommands = Spares<Command>;

/// For frames to a socket.
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

    /// Stores an unused vector if it is worth reusing.
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
