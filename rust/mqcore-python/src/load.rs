//! The load of one handler, and its limits.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use mqcore_broker::model::decision::Step;
use mqcore_broker::model::durations::{Durations, SharedDurations};

/// Maximum waiting questions of one handler. Each holds a message, so this limits the memory of a stuck handler. For
/// further questions the handler's fallback decides at once.
pub(crate) const WAITING_MAX: usize = 262_144;

/// Maximum questions awaited on the event loop, each of which is a task.
pub(crate) const AWAITED_MAX: usize = 16_384;

/// Counters of one handler. Shared by the shards that ask, its dispatcher and the event loop.
#[derive(Debug, Default)]
pub(crate) struct Load {
    asked: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicUsize,
    awaited: Mutex<usize>,
    loop_thread: AtomicU64,
    fewer_awaited: Condvar,
}

/// How long the calls of one handler took, by step. Its thread counts, others read.
#[derive(Debug, Default)]
pub(crate) struct CallTimes {
    steps: Mutex<Vec<(Step, Arc<SharedDurations>)>>,
    gil_waits: SharedDurations,
}

impl CallTimes {
    /// Adds a step, and returns the times of its calls.
    pub(crate) fn add_step(&self, step: Step) -> Arc<SharedDurations> {
        let times = Arc::default();
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push((step, Arc::clone(&times)));
        times
    }

    /// Counts a wait for the interpreter.
    pub(crate) fn waited(&self, time: Duration) {
        self.gil_waits.add(time.as_micros() as u64);
    }

    /// The times of all steps, and of all waits for the interpreter.
    pub(crate) fn get(&self) -> (Vec<(Step, Durations)>, Durations) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        (steps.iter().map(|(step, times)| (*step, times.get())).collect(), self.gil_waits.get())
    }
}

/// The counters of [`Load`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    /// Accepted questions.
    pub(crate) asked: u64,
    /// Questions whose method raised, unless `exception_thrown` decided.
    pub(crate) failed: u64,
    /// Questions rejected because too many waited.
    pub(crate) refused: u64,
    /// Accepted questions without an answer.
    pub(crate) waiting: usize,
}

impl Load {
    /// Accepts up to `wanted` questions; returns the accepted number.
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

    /// Records `count` questions answered without awaiting.
    pub(crate) fn answered(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::AcqRel);
    }

    /// Records `count` questions that ended without a decision.
    pub(crate) fn failed(&self, count: u64) {
        self.failed.fetch_add(count, Ordering::Relaxed);
    }

    /// Records `count` questions passed to the event loop.
    pub(crate) fn awaited(&self, count: usize) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) += count;
    }

    /// Records `count` answered awaited questions.
    pub(crate) fn settled(&self, count: usize) {
        self.answered(count);
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let was_full = *awaited >= AWAITED_MAX;
        *awaited -= count;
        if was_full && *awaited < AWAITED_MAX {
            self.fewer_awaited.notify_all();
        }
    }

    /// The identifier in Python of the thread whose event loop awaits questions now; 0: it awaits none.
    pub(crate) fn loop_thread(&self) -> u64 {
        match *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) {
            0 => 0,
            _ => self.loop_thread.load(Ordering::Acquire),
        }
    }

    /// Learns from the event loop on which thread it runs. A handler has one loop.
    pub(crate) fn on_loop(&self, thread: impl FnOnce() -> u64) {
        if self.loop_thread.load(Ordering::Relaxed) == 0 {
            self.loop_thread.store(thread(), Ordering::Release);
        }
    }

    /// Whether the number of awaited questions is at its limit.
    pub(crate) fn is_full(&self) -> bool {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) >= AWAITED_MAX
    }

    /// Waits until fewer are awaited, at most for `limit`. Call it detached from the interpreter.
    pub(crate) fn wait_for_room(&self, limit: Duration) {
        let awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.fewer_awaited
                .wait_timeout_while(awaited, limit, |awaited| *awaited >= AWAITED_MAX)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// The current counters.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            asked: self.asked.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }
}
