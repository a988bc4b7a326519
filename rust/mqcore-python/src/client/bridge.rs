//! Delivers results of Tokio tasks to asyncio futures.
//!
//! No Tokio thread attaches to the interpreter: attaching costs more than most answers, and a thread that attaches
//! while Python ends aborts the process. One separate thread stays attached, collects finished results, and wakes each
//! event loop once per batch. It is stopped and joined before Python ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use tokio::task::AbortHandle;

/// Maximum answers per wake-up of an event loop.
const BURST_MAX: usize = 1024;

/// Creates the Python object of a result on the attached thread.
type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A finished task.
struct FinishedTask {
    ticket: u64,
    make: Make,
}

/// A waiting asyncio future and its loop.
struct WaitingFuture {
    future: Py<PyAny>,
    event_loop: Py<PyAny>,
}

/// The delivering thread.
struct DeliveryThread {
    ended: Sender<FinishedTask>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Bridge {
    thread: Option<DeliveryThread>,
    tickets: u64,
    /// Python objects stay here until they are delivered or cancelled, so that no other thread drops them.
    waiting: HashMap<u64, WaitingFuture>,
    closed: bool,
}

static BRIDGE: Mutex<Option<Bridge>> = Mutex::new(None);

/// Never held while calling Python, because another thread with the interpreter may wait for the lock.
fn lock() -> MutexGuard<'static, Option<Bridge>> {
    BRIDGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an asyncio future for the result of `task`, which runs on the clients' runtime. Cancelling the future
/// cancels the task.
pub(super) fn awaitable<'py, F, T>(py: Python<'py>, task: F) -> PyResult<Bound<'py, PyAny>>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    let event_loop = running_loop(py)?;
    let future = event_loop.call_method0(pyo3::intern!(py, "create_future"))?;
    let waiting = WaitingFuture { future: future.clone().unbind(), event_loop: event_loop.unbind() };
    let (ticket, ended) = take_ticket(waiting)?;
    let run = async move {
        let result = task.await;
        let make: Make = Box::new(move |py| result?.into_py_any(py));
        // The receiver is gone only when the interpreter ends, and then no future waits.
        drop(ended.send(FinishedTask { ticket, make }));
    };
    let abort = pyo3_asyncio::tokio::get_runtime().spawn(run).abort_handle();
    let watch = Py::new(py, Watch { ticket, abort })?;
    future.call_method1(pyo3::intern!(py, "add_done_callback"), (watch,))?;
    Ok(future)
}

/// The event loop of this thread. Fails if none runs.
pub(super) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.import(py, "asyncio", "get_running_loop")?.call0()
}

fn take_ticket(waiting: WaitingFuture) -> PyResult<(u64, Sender<FinishedTask>)> {
    let mut guard = lock();
    let bridge = guard.get_or_insert_with(Bridge::default);
    if bridge.closed {
        // Dropped by a thread that holds the interpreter, after releasing the lock.
        drop(guard);
        drop(waiting);
        return Err(PyRuntimeError::new_err("Python is ending; no call can be awaited any more"));
    }
    let ended = match &bridge.thread {
        Some(thread) => thread.ended.clone(),
        None => {
            let thread = start()?;
            bridge.thread.insert(thread).ended.clone()
        }
    };
    bridge.tickets += 1;
    let ticket = bridge.tickets;
    bridge.waiting.insert(ticket, waiting);
    Ok((ticket, ended))
}

fn start() -> PyResult<DeliveryThread> {
    let (ended, arrivals) = crossbeam_channel::unbounded();
    let deliver = move || Python::attach(|py| deliver_all(py, &arrivals));
    let thread = std::thread::Builder::new().name("mqcore-deliver".into()).spawn(deliver)?;
    Ok(DeliveryThread { ended, thread })
}

/// Delivers until the channel closes.
fn deliver_all(py: Python<'_>, arrivals: &Receiver<FinishedTask>) {
    while let Ok(first) = py.detach(|| arrivals.recv()) {
        let mut burst = vec![first];
        burst.extend(arrivals.try_iter().take(BURST_MAX - 1));
        if burst.iter().any(|ended| ended.ticket == END) {
            return;
        }
        deliver(py, burst);
    }
}

/// The ticket that ends the delivering thread.
const END: u64 = 0;

fn deliver(py: Python<'_>, burst: Vec<FinishedTask>) {
    let mut by_loop: Vec<(Py<PyAny>, Bound<'_, PyList>)> = Vec::new();
    for FinishedTask { ticket, make } in burst {
        let waiting = lock().as_mut().and_then(|bridge| bridge.waiting.remove(&ticket));
        // Cancelled in the meantime.
        let Some(WaitingFuture { future, event_loop }) = waiting else { continue };
        let outcome = match make(py) {
            Ok(value) => (future, value, true),
            Err(error) => (future, error.into_value(py).into_any(), false),
        };
        let list = match by_loop.iter().find(|(known, _)| known.is(&event_loop)) {
            Some((_, list)) => list,
            None => {
                by_loop.push((event_loop, PyList::empty(py)));
                let Some((_, list)) = by_loop.last() else { continue };
                list
            }
        };
        if let Err(error) = list.append(outcome) {
            error.write_unraisable(py, None);
        }
    }
    for (event_loop, list) in by_loop {
        wake(py, &event_loop, list);
    }
}

fn wake(py: Python<'_>, event_loop: &Py<PyAny>, list: Bound<'_, PyList>) {
    static SETTLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let settle =
        SETTLE.get_or_try_init(py, || Ok::<_, PyErr>(wrap_pyfunction!(settle, py)?.into_any().unbind()));
    let called = settle.and_then(|settle| {
        let call = pyo3::intern!(py, "call_soon_threadsafe");
        event_loop.call_method1(py, call, (settle, list))
    });
    if let Err(error) = called {
        // A closed loop has no waiting futures.
        if !error.is_instance_of::<PyRuntimeError>(py) {
            error.write_unraisable(py, None);
        }
    }
}

/// Sets the results of futures on the thread of their loop. Cancelled futures stay cancelled.
#[pyfunction]
fn settle(outcomes: &Bound<'_, PyList>) -> PyResult<()> {
    let py = outcomes.py();
    for outcome in outcomes {
        let outcome = outcome.cast_into::<PyTuple>()?;
        let (future, value, success): (Bound<'_, PyAny>, Bound<'_, PyAny>, bool) = outcome.extract()?;
        if future.call_method0(pyo3::intern!(py, "done"))?.is_truthy()? {
            continue;
        }
        let set = if success { pyo3::intern!(py, "set_result") } else { pyo3::intern!(py, "set_exception") };
        future.call_method1(set, (value,))?;
    }
    Ok(())
}

/// Cancels the task of a future that is cancelled.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Watch {
    ticket: u64,
    abort: AbortHandle,
}

#[pymethods]
impl Watch {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0(pyo3::intern!(future.py(), "cancelled"))?.is_truthy()? {
            self.abort.abort();
            let waiting = lock().as_mut().and_then(|bridge| bridge.waiting.remove(&self.ticket));
            drop(waiting);
        }
        Ok(())
    }
}

/// Ends the delivery before Python ends. Calls that still wait get no result.
#[pyfunction]
pub(crate) fn end_delivering(py: Python<'_>) {
    if super::process::check().is_err() {
        // The delivering thread and the holder of the lock belong to the parent.
        return;
    }
    let (thread, waiting) = {
        let mut guard = lock();
        let bridge = guard.get_or_insert_with(Bridge::default);
        bridge.closed = true;
        (bridge.thread.take(), std::mem::take(&mut bridge.waiting))
    };
    drop(waiting);
    let Some(DeliveryThread { ended, thread }) = thread else { return };
    let none: Make = Box::new(|py| Ok(py.None()));
    drop(ended.send(FinishedTask { ticket: END, make: none }));
    // It may be waiting for the interpreter to deliver a last batch. A panic in it is ignored.
    py.detach(|| drop(thread.join()));
}
