//! How a call of a client returns its result: as an awaitable, or by blocking.

use std::future::Future;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use super::{bridge, process};

/// Interval at which a blocking call checks for signals. Ctrl-C takes effect within this time.
pub(super) const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// How a call returns its result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallStyle {
    /// As an awaitable of asyncio.
    Awaitable,
    /// By blocking until it is available.
    Blocking,
}

impl CallStyle {
    /// Runs `future` on the clients' runtime, and returns an awaitable or its result.
    pub(crate) fn run<'py, F, T>(self, py: Python<'py>, future: F) -> PyResult<Bound<'py, PyAny>>
    where
        F: Future<Output = PyResult<T>> + Send + 'static,
        T: for<'a> IntoPyObject<'a> + Send + 'static,
    {
        process::check()?;
        match self {
            Self::Awaitable => bridge::awaitable(py, future),
            Self::Blocking => wait(py, future)?.into_bound_py_any(py),
        }
    }
}

/// Waits for `future` without the interpreter lock. An exception of a signal handler cancels it.
fn wait<F, T>(py: Python<'_>, future: F) -> PyResult<T>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: Send,
{
    let runtime = pyo3_asyncio::tokio::get_runtime();
    let mut future = Box::pin(future);
    loop {
        let step = py.detach(|| {
            runtime.block_on(async { tokio::time::timeout(SIGNAL_INTERVAL, future.as_mut()).await })
        });
        match step {
            Ok(result) => return result,
            Err(_) => py.check_signals()?,
        }
    }
}
