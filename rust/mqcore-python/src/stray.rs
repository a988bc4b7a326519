//! Threads of handlers that did not come back from a call when their broker stopped.
//!
//! They end by themselves once the call returns. But a thread that comes back while the interpreter is being torn
//! down is killed by it in the middle of Rust code, which aborts the process; so the end of the program waits here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::config;
use crate::dispatcher::Dispatcher;

/// Each with the process that it is a thread of: after a fork the child has the list, but not the threads.
static STRAYS: Mutex<Vec<(u32, Arc<Dispatcher>)>> = Mutex::new(Vec::new());

fn strays() -> MutexGuard<'static, Vec<(u32, Arc<Dispatcher>)>> {
    STRAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a thread that was told to end and has not.
pub(crate) fn add(dispatcher: Arc<Dispatcher>) {
    let mut strays = strays();
    strays.retain(|(_, known)| !known.join(Instant::now()));
    strays.push((std::process::id(), dispatcher));
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
        py.detach(|| left.retain(|(_, dispatcher)| !dispatcher.join(until)));
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left.len());
        }
        py.check_signals()?;
    }
}
