//! From what ends on a Tokio thread to the futures of asyncio.
//!
//! No Tokio thread ever takes the interpreter: attaching costs more than most answers take, and a thread that attaches
//! while Python ends takes the process down with it. One thread of our own stays attached, collects what has ended, and
//! wakes each event loop once for all of it. It is told to end, and waited for, before Python does.

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

/// Answers that are delivered with one wake-up of an event loop, at most.
const BURST_MAX: usize = 1024;

/// Makes the Python object of a result, once the interpreter is there.
type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// What has ended.
struct Ended {
    ticket: u64,
    make: Make,
}

/// A future of asyncio that waits, and the loop that it belongs to.
struct Waiting {
    future: Py<PyAny>,
    event_loop: Py<PyAny>,
}

/// The thread that delivers.
struct Courier {
    ended: Sender<Ended>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Bridge {
    courier: Option<Courier>,
    tickets: u64,
    /// Everything of Python stays in here until it is delivered or cancelled, so that no other thread ever drops it.
    waiting: HashMap<u64, Waiting>,
    closed: bool,
}

static BRIDGE: Mutex<Option<Bridge>> = Mutex::new(None);

/// Never held while Python is called: its code may want the lock on another thread that has the interpreter.
fn lock() -> MutexGuard<'static, Option<Bridge>> {
    BRIDGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An asyncio future that gets the result of `task`, which runs on the clients' runtime. Cancelling it cancels the task.
pub(super) fn awaitable<'py, F, T>(py: Python<'py>, task: F) -> PyResult<Bound<'py, PyAny>>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    let event_loop = running_loop(py)?;
    let future = event_loop.call_method0(pyo3::intern!(py, "create_future"))?;
    let waiting = Waiting { future: future.clone().unbind(), event_loop: event_loop.unbind() };
    let (ticket, ended) = take_ticket(waiting)?;
    let run = async move {
        let result = task.await;
        let make: Make = Box::new(move |py| result?.into_py_any(py));
        // Nobody takes it any more once the interpreter ends; then nobody waits either.
        drop(ended.send(Ended { ticket, make }));
    };
    let abort = pyo3_asyncio::tokio::get_runtime().spawn(run).abort_handle();
    let watch = Py::new(py, Watch { ticket, abort })?;
    future.call_method1(pyo3::intern!(py, "add_done_callback"), (watch,))?;
    Ok(future)
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.import(py, "asyncio", "get_running_loop")?.call0()
}

fn take_ticket(waiting: Waiting) -> PyResult<(u64, Sender<Ended>)> {
    let mut guard = lock();
    let bridge = guard.get_or_insert_with(Bridge::default);
    if bridge.closed {
        // Dropped by a thread that holds the interpreter, after the lock is let go.
        drop(guard);
        drop(waiting);
        return Err(PyRuntimeError::new_err("Python is ending: nothing can be awaited any more"));
    }
    let ended = match &bridge.courier {
        Some(courier) => courier.ended.clone(),
        None => {
            let courier = start()?;
            bridge.courier.insert(courier).ended.clone()
        }
    };
    bridge.tickets += 1;
    let ticket = bridge.tickets;
    bridge.waiting.insert(ticket, waiting);
    Ok((ticket, ended))
}

fn start() -> PyResult<Courier> {
    let (ended, arrivals) = crossbeam_channel::unbounded();
    let deliver = move || Python::attach(|py| deliver_all(py, &arrivals));
    let thread = std::thread::Builder::new().name("mqcore-courier".into()).spawn(deliver)?;
    Ok(Courier { ended, thread })
}

/// Delivers until nobody can send any more.
fn deliver_all(py: Python<'_>, arrivals: &Receiver<Ended>) {
    while let Ok(first) = py.detach(|| arrivals.recv()) {
        let mut burst = vec![first];
        burst.extend(arrivals.try_iter().take(BURST_MAX - 1));
        if burst.iter().any(|ended| ended.ticket == END) {
            return;
        }
        deliver(py, burst);
    }
}

/// The ticket of nobody: the courier ends when it comes.
const END: u64 = 0;

fn deliver(py: Python<'_>, burst: Vec<Ended>) {
    let mut by_loop: Vec<(Py<PyAny>, Bound<'_, PyList>)> = Vec::new();
    for Ended { ticket, make } in burst {
        let waiting = lock().as_mut().and_then(|bridge| bridge.waiting.remove(&ticket));
        // Cancelled meanwhile.
        let Some(Waiting { future, event_loop }) = waiting else { continue };
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
        // A loop that is closed has nobody left who waits.
        if !error.is_instance_of::<PyRuntimeError>(py) {
            error.write_unraisable(py, None);
        }
    }
}

/// Gives futures their results, on the thread of their loop. Those that were cancelled meanwhile stay so.
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

/// Ends the delivering, for good: Python is about to end. Whoever still waits, waits for ever.
#[pyfunction]
pub(crate) fn end_delivering(py: Python<'_>) {
    if super::process::check().is_err() {
        // The courier and whoever held the lock are the parent's.
        return;
    }
    let (courier, waiting) = {
        let mut guard = lock();
        let bridge = guard.get_or_insert_with(Bridge::default);
        bridge.closed = true;
        (bridge.courier.take(), std::mem::take(&mut bridge.waiting))
    };
    drop(waiting);
    let Some(Courier { ended, thread }) = courier else { return };
    let none: Make = Box::new(|py| Ok(py.None()));
    drop(ended.send(Ended { ticket: END, make: none }));
    // It may be waiting for the interpreter to deliver a last burst. A panic in it is its own.
    py.detach(|| drop(thread.join()));
}
