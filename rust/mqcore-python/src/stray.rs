//! Threads of handlers that did not come back from a call when their broker stopped.
//!
//! They end by themselves once the call returns. But a thread that comes back while the interpreter is being torn
//! down is killed by it in the middle of Rust code, which aborts the process; so the end of the program waits here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::config;

/// A thread that may not come back from a call.
pub(crate) trait Stray: Send + Sync {
    /// Waits for the end of the thread; false if it did not come by `deadline`. To be called detached from the
    /// interpreter, which the thread needs in order to end.
    fn join(&self, deadline: Instant) -> bool;
}

type Strays = Vec<(u32, Arc<dyn Stray>)>;

/// Each with the process that it is a thread of: after a fork the child has the list, but not the threads.
static STRAYS: Mutex<Strays> = Mutex::new(Vec::new());

fn strays() -> MutexGuard<'static, Strays> {
    STRAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a thread that was told to end and has not.
pub(crate) fn add(thread: Arc<dyn Stray>) {
    let mut strays = strays();
    strays.retain(|(_, known)| !known.join(Instant::now()));
    strays.push((std::process::id(), thread));
}

/// Waits up to `timeout` seconds for all of them; returns how many are still there.
#[pyfunction]
pub(crate) fn join_strays(py: Python<'_>, timeout: f64) -> PyResult<usize> {
    /// How often to look for Ctrl-C.
    const SLICE: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + config::seconds(timeout, "timeout")?;
    let mut left = std::mem::take(&mut *strays());
    left.retain(|(process, _)| *process == std::process::id());
    loop {
        let until = deadline.min(Instant::now() + SLICE);
        py.detach(|| left.retain(|(_, thread)| !thread.join(until)));
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left.len());
        }
        py.check_signals()?;
    }
}
