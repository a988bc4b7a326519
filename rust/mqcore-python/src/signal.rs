//! An event that happens once, for which any thread can wait.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// An event, pending until `set`.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    happened: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Marks the event as happened.
    pub(crate) fn set(&self) {
        *self.happened.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the event.
    pub(crate) fn wait(&self) {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed.wait_while(happened, |happened| !*happened).unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Waits for the event for at most `limit`; returns whether it has happened.
    pub(crate) fn wait_for(&self, limit: Duration) -> bool {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        let (happened, _) = self
            .changed
            .wait_timeout_while(happened, limit, |happened| !*happened)
            .unwrap_or_else(PoisonError::into_inner);
        *happened
    }
}
