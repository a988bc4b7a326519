//! How much one handler has to do, and how much of it may wait.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Questions that may wait for one handler. Each holds a message, so what a stuck handler can pin is bounded by
/// this; further questions are answered "gone" at once, and the handler's fallback decides.
pub(crate) const WAITING_MAX: usize = 262_144;

/// Of these, questions whose answers are being awaited on the event loop: each of them is a task there.
pub(crate) const AWAITED_MAX: usize = 16_384;

/// Counters of one handler. Shared by the shards that ask, its dispatcher and the event loop.
#[derive(Debug, Default)]
pub(crate) struct Load {
    asked: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicUsize,
    awaited: Mutex<usize>,
    fewer_awaited: Condvar,
}

/// What [`Load`] has counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    /// Questions taken.
    pub(crate) asked: u64,
    /// Questions whose method raised, unless `exception_thrown` decided.
    pub(crate) failed: u64,
    /// Questions not taken because too many waited.
    pub(crate) refused: u64,
    /// Questions taken and not answered yet.
    pub(crate) waiting: usize,
}

impl Load {
    /// Takes up to `wanted` questions; returns how many there was room for.
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let before = self.waiting.fetch_add(wanted, Ordering::AcqRel);
        let taken = wanted.min(WAITING_MAX.saturating_sub(before));
        if taken < wanted {
            self.waiting.fetch_sub(wanted - taken, Ordering::AcqRel);
            self.refused.fetch_add((wanted - taken) as u64, Ordering::Relaxed);
        }
        self.asked.fetch_add(taken as u64, Ordering::Relaxed);
        taken
    }

    /// `count` questions were answered without being awaited.
    pub(crate) fn answered(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::AcqRel);
    }

    /// `count` questions ended without a decision.
    pub(crate) fn failed(&self, count: u64) {
        self.failed.fetch_add(count, Ordering::Relaxed);
    }

    /// `count` questions went to the event loop.
    pub(crate) fn awaited(&self, count: usize) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) += count;
    }

    /// `count` awaited questions were answered.
    pub(crate) fn settled(&self, count: usize) {
        self.answered(count);
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let was_full = *awaited >= AWAITED_MAX;
        *awaited -= count;
        if was_full && *awaited < AWAITED_MAX {
            self.fewer_awaited.notify_all();
        }
    }

    /// Whether as many are awaited as may be.
    pub(crate) fn is_full(&self) -> bool {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) >= AWAITED_MAX
    }

    /// Waits until fewer are awaited, or for `limit`. To be called detached from the interpreter.
    pub(crate) fn wait_for_room(&self, limit: Duration) {
        let awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.fewer_awaited
                .wait_timeout_while(awaited, limit, |awaited| *awaited >= AWAITED_MAX)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// The counters as they are now.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            asked: self.asked.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }
}
