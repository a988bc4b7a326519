//! How results of the clients' runtime land in Python's event loops, and how the end of a program waits for those that
//! are on their way.
//!
//! A thread that hands a result to an event loop wakes that loop, and then needs the interpreter once more. If the
//! program ends upon that very result, the interpreter is gone by then, and CPython ends such a thread in a way that
//! aborts the process. So landings are counted, and the end waits for the last of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3_asyncio::TaskLocals;
use pyo3_asyncio::generic::{self, ContextExt, Runtime};
use pyo3_asyncio::tokio::get_runtime;
use tokio::task::{JoinError, JoinHandle};

/// Tasks that will need the interpreter, and have not come back from it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// One of them, as long as it lives.
struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The clients' runtime, counting.
struct Counted;

tokio::task_local! {
    static LOCALS: TaskLocals;
}

/// [`JoinError`], for the trait of another crate.
struct Failed(JoinError);

impl generic::JoinError for Failed {
    fn is_panic(&self) -> bool {
        self.0.is_panic()
    }

    fn into_panic(self) -> Box<dyn std::any::Any + Send + 'static> {
        self.0.into_panic()
    }
}

/// A spawned task.
struct Spawned(JoinHandle<()>);

impl Future for Spawned {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(Failed)
    }
}

impl Runtime for Counted {
    type JoinError = Failed;
    type JoinHandle = Spawned;

    fn spawn<F>(future: F) -> Spawned
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let under_way = UnderWay::begin();
        Spawned(get_runtime().spawn(async move {
            future.await;
            drop(under_way);
        }))
    }

    fn spawn_blocking<F>(land: F) -> Spawned
    where
        F: FnOnce() + Send + 'static,
    {
        let under_way = UnderWay::begin();
        Spawned(get_runtime().spawn_blocking(move || {
            land();
            drop(under_way);
        }))
    }
}

impl ContextExt for Counted {
    fn scope<F, R>(locals: TaskLocals, future: F) -> Pin<Box<dyn Future<Output = R> + Send>>
    where
        F: Future<Output = R> + Send + 'static,
    {
        Box::pin(LOCALS.scope(locals, future))
    }

    fn get_task_locals() -> Option<TaskLocals> {
        LOCALS.try_with(Clone::clone).ok()
    }
}

/// An awaitable of `future`'s result.
pub(crate) fn awaitable<F, T>(py: Python<'_>, future: F) -> PyResult<Bound<'_, PyAny>>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    generic::future_into_py::<Counted, _, T>(py, future)
}

/// Waits until no result is on its way to Python any more, for `timeout` seconds at most; returns how many still are.
#[pyfunction]
pub(crate) fn join_landings(py: Python<'_>, timeout: f64) -> usize {
    if super::process::check().is_err() {
        // The threads that would land are those of the parent.
        return 0;
    }
    let patience = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
    py.detach(|| {
        let deadline = Instant::now() + patience;
        loop {
            let left = UNDER_WAY.load(Ordering::Acquire);
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}
