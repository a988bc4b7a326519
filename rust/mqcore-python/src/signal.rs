//! Something that happens once, and can be waited for from any thread.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Has not happened, until `set`.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    happened: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// It has happened.
    pub(crate) fn set(&self) {
        *self.happened.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for it.
    pub(crate) fn wait(&self) {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed.wait_while(happened, |happened| !*happened).unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Waits for it for at most `limit`; whether it has happened.
    pub(crate) fn wait_for(&self, limit: Duration) -> bool {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        let (happened, _) = self
            .changed
            .wait_timeout_while(happened, limit, |happened| !*happened)
            .unwrap_or_else(PoisonError::into_inner);
        *happened
    }
}
