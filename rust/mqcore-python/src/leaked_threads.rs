//! Threads of handlers whose call had not returned when their broker stopped.
//!
//! Such a thread ends when the call returns. If it returns while the interpreter is being finalized, the interpreter kills
//! it in the middle of Rust code, which aborts the process. So the end of the program waits for these threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::fields;

/// A thread that may be blocked in a call.
pub(crate) trait LeakedThread: Send + Sync {
    /// Waits for the end of the thread; false if it has not ended by `deadline`. Call it detached from the
    /// interpreter, which the thread needs in order to end.
    fn join(&self, deadline: Instant) -> bool;
}

type LeakedThreads = Vec<(u32, Arc<dyn LeakedThread>)>;

/// Threads, each with its process: after a fork the child has the list, but not the threads.
static LEAKED: Mutex<LeakedThreads> = Mutex::new(Vec::new());

fn leaked() -> MutexGuard<'static, LeakedThreads> {
    LEAKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a thread that was asked to end and has not.
pub(crate) fn add(thread: Arc<dyn LeakedThread>) {
    let mut leaked = leaked();
    leaked.retain(|(_, known)| !known.join(Instant::now()));
    leaked.push((std::process::id(), thread));
}

/// Waits up to `timeout` seconds for all of them; returns how many are still running.
#[pyfunction]
pub(crate) fn join_leaked_threads(py: Python<'_>, timeout: f64) -> PyResult<usize> {
    /// Interval between checks for Ctrl-C.
    const SLICE: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + fields::seconds(timeout, "timeout")?;
    let mut left = std::mem::take(&mut *leaked());
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
