//! Vendors' extensions of MicroMessage2 in Python: the thread that runs a program's frame handlers.
//!
//! The thread attaches to the interpreter once and receives batches, like those of delivery handlers. It passes
//! awaitables to the event loop together, each with a reply object. A lost answer counts as a failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use mqcore_server::extension::{ExtensionAnswer, ExtensionFrame, ExtensionPort, ExtensionReply as Reply};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::leaked_threads::LeakedThread;
use crate::view::ClientView;

/// Maximum waiting batches of frames; further frames fail.
const BATCHES_MAX: usize = 16_384;
/// Maximum awaitables passed to the event loop at once.
const BURST_MAX: usize = 256;

/// A registered extension.
pub(crate) struct ExtensionDefinition {
    pub(crate) name: Box<str>,
    pub(crate) received: Py<PyAny>,
    pub(crate) timeout: Duration,
    /// Passes bursts of awaitables to the event loop.
    pub(crate) submit: Py<PyAny>,
}

impl ExtensionDefinition {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        let (received, submit) = (self.received.clone_ref(py), self.submit.clone_ref(py));
        Self { name: self.name.clone(), received, timeout: self.timeout, submit }
    }
}

/// The thread of all extensions of a broker.
pub(crate) struct ExtensionThread {
    /// `None` ends the thread.
    inbox: Sender<Option<Vec<ExtensionFrame>>>,
    timeouts: Vec<(Box<str>, Duration)>,
    stopping: Arc<AtomicBool>,
    /// Disconnects when the thread ends; no message is ever sent.
    ended: Receiver<()>,
}

impl ExtensionThread {
    /// Starts the thread.
    pub(crate) fn start(py: Python<'_>, definitions: &[ExtensionDefinition]) -> PyResult<Self> {
        let (inbox, frames) = crossbeam_channel::bounded(BATCHES_MAX);
        let (ending, ended) = crossbeam_channel::bounded(0);
        let stopping = Arc::new(AtomicBool::new(false));
        let timeouts = definitions.iter().map(|known| (known.name.clone(), known.timeout)).collect();
        let definitions: Vec<_> = definitions.iter().map(|known| known.clone_ref(py)).collect();
        let extensions = Extensions { definitions, stopping: stopping.clone(), waiting: Vec::new() };
        std::thread::Builder::new().name("mqcore-extension".into()).spawn(move || {
            run(extensions, &frames);
            drop(ending);
        })?;
        Ok(Self { inbox, timeouts, stopping, ended })
    }

    /// Ends the thread as soon as its current call returns.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // If the channel is full or closed, the thread sees the flag.
        let _ = self.inbox.try_send(None);
    }
}

impl LeakedThread for ExtensionThread {
    fn join(&self, deadline: Instant) -> bool {
        self.ended.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout)
    }
}

impl ExtensionPort for ExtensionThread {
    fn names(&self) -> Vec<Box<str>> {
        self.timeouts.iter().map(|(name, _)| name.clone()).collect()
    }

    fn timeout(&self, name: &str) -> Duration {
        self.timeouts
            .iter()
            .find(|(known, _)| **known == *name)
            .map_or(Duration::ZERO, |(_, timeout)| *timeout)
    }

    fn handle(&self, frames: Vec<ExtensionFrame>) {
        // A dropped batch counts as an answer.
        let _ = self.inbox.try_send(Some(frames));
    }
}

/// State of the thread.
struct Extensions {
    definitions: Vec<ExtensionDefinition>,
    stopping: Arc<AtomicBool>,
    /// By index of the extension.
    waiting: Vec<(usize, Py<PyAny>, Py<ExtensionReply>)>,
}

/// Runs the thread.
fn run(mut extensions: Extensions, frames: &Receiver<Option<Vec<ExtensionFrame>>>) {
    // `None`: the interpreter is ending and must not be used.
    let ran = Python::try_attach(|py| {
        while let Some(batch) = extensions.next(py, frames) {
            for frame in batch {
                if extensions.stopping.load(Ordering::Acquire) {
                    return;
                }
                extensions.handle(py, frame);
            }
        }
    });
    if ran.is_none() {
        std::mem::forget(extensions);
        return;
    }
    Python::try_attach(|_| drop(extensions));
}

impl Extensions {
    /// Returns the next frames. Passes awaitables on before it waits.
    fn next(
        &mut self,
        py: Python<'_>,
        frames: &Receiver<Option<Vec<ExtensionFrame>>>,
    ) -> Option<Vec<ExtensionFrame>> {
        if self.waiting.len() >= BURST_MAX {
            self.hand_over(py);
        }
        match frames.try_recv() {
            Ok(batch) => return batch,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => self.hand_over(py),
        }
        py.detach(|| frames.recv()).ok().flatten()
    }

    fn handle(&mut self, py: Python<'_>, frame: ExtensionFrame) {
        if let Err(broken) = self.call(py, frame) {
            broken.write_unraisable(py, None);
        }
    }

    fn call(&mut self, py: Python<'_>, frame: ExtensionFrame) -> PyResult<()> {
        let ExtensionFrame { client, name, payload, reply } = frame;
        let Some(place) = self.definitions.iter().position(|known| known.name == name) else { return Ok(()) };
        let reply = Py::new(py, ExtensionReply { name, reply: Mutex::new(Some(reply)) })?;
        let received = self.definitions[place].received.bind(py);
        match received.call1((ClientView::connected(client), PyBytes::new(py, &payload))) {
            Ok(result) if result.get_type().hasattr(pyo3::intern!(py, "__await__"))? => {
                self.waiting.push((place, result.unbind(), reply));
                Ok(())
            }
            Ok(result) => match reply.get().settle(&result) {
                Ok(()) => Ok(()),
                Err(nonsense) => reply.get().raised(nonsense.value(py)),
            },
            Err(raised) => reply.get().raised(raised.value(py)),
        }
    }

    fn hand_over(&mut self, py: Python<'_>) {
        while let Some((place, _, _)) = self.waiting.first() {
            let place = *place;
            let (burst, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.waiting).into_iter().partition(|(other, ..)| *other == place);
            self.waiting = rest;
            let burst: Vec<_> = burst.into_iter().map(|(_, awaitable, reply)| (awaitable, reply)).collect();
            if let Err(broken) = self.definitions[place].submit.bind(py).call1((burst,)) {
                broken.write_unraisable(py, None);
            }
        }
    }
}

/// The reply for one frame. Dropping it without an answer reports a failure.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ExtensionReply {
    name: Box<str>,
    reply: Mutex<Option<Reply>>,
}

impl ExtensionReply {
    fn send(&self, answer: ExtensionAnswer) {
        let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reply) = reply {
            // The sender of the frame may be gone.
            let _ = reply.send(answer);
        }
    }
}

#[pymethods]
impl ExtensionReply {
    /// The extension of the awaited handler.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Settles with the handler's result: `None`, one payload, or several. Raises for anything else.
    fn settle(&self, result: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = |payload: &Bound<'_, PyAny>| -> Option<Vec<u8>> {
            Some(payload.cast::<PyBytes>().ok()?.as_bytes().to_vec())
        };
        let frames = if result.is_none() {
            Vec::new()
        } else if let Some(payload) = bytes(result) {
            vec![payload]
        } else {
            let payloads = result.try_iter().map_err(|_| nonsense(result))?;
            payloads
                .map(|payload| bytes(&payload?).ok_or_else(|| nonsense(result)))
                .collect::<PyResult<_>>()?
        };
        self.send(ExtensionAnswer::Frames(frames));
        Ok(())
    }

    /// Settles with the handler's exception: sends a refusal to the peer, and logs anything else.
    fn raised(&self, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        static REFUSED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static REPORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = exception.py();
        if exception.is_instance(REFUSED.import(py, "mqcore.extensions", "ExtensionRefused")?)? {
            self.send(ExtensionAnswer::Refused(exception.str()?.to_string()));
            return Ok(());
        }
        self.send(ExtensionAnswer::Failed);
        REPORT.import(py, "mqcore.extensions", "_report")?.call1((&*self.name, exception))?;
        Ok(())
    }

    /// Reports a failure without a reason.
    fn fail(&self) {
        self.send(ExtensionAnswer::Failed);
    }
}

fn nonsense(given: &Bound<'_, PyAny>) -> PyErr {
    let kind = given.get_type();
    let kind = kind.name().map_or_else(|_| "something".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("received returned a {kind}, not None, bytes or an iterable of bytes"))
}
