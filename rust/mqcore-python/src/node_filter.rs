//! Node filters of a program: the thread of a filter, and its argument.
//!
//! Each filter has its own thread that stays attached to the interpreter and receives batches. A sleeping filter delays
//! only its own link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use mqcore_server::nodes::filter::{ForwardTarget, ForwardedFrame, NodeFilterPort, NodeQuestion};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBool;

use crate::fields::{duration, field};
use crate::leaked_threads::LeakedThread;
use crate::message::Message;
use crate::view::ClientView;

/// Maximum waiting batches of one filter; for further ones the fallback decides at once. A connection has at most one.
const BATCHES_MAX: usize = 16_384;

/// A frame to forward, as a filter sees it.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct NodeFrame {
    passage: ForwardedFrame,
    message: PyOnceLock<Py<Message>>,
}

impl NodeFrame {
    fn new(passage: &ForwardedFrame) -> Self {
        Self { passage: passage.clone(), message: PyOnceLock::new() }
    }
}

#[pymethods]
impl NodeFrame {
    #[getter]
    fn kind(&self) -> &'static str {
        self.passage.kind.as_str()
    }

    #[getter]
    fn channel(&self) -> Option<&str> {
        match &self.passage.goal {
            ForwardTarget::Queue(channel, _) => Some(channel),
            _ => None,
        }
    }

    #[getter]
    fn queue(&self) -> Option<u16> {
        match &self.passage.goal {
            ForwardTarget::Queue(_, queue) => Some(*queue),
            _ => None,
        }
    }

    #[getter]
    fn topic(&self) -> Option<&str> {
        match &self.passage.goal {
            ForwardTarget::Topic(topic) => Some(topic),
            _ => None,
        }
    }

    #[getter]
    fn router(&self) -> Option<&str> {
        match &self.passage.goal {
            ForwardTarget::Router(router) => Some(router),
            _ => None,
        }
    }

    #[getter]
    fn to(&self) -> Option<&str> {
        match &self.passage.goal {
            ForwardTarget::Client(client) => Some(client),
            _ => None,
        }
    }

    #[getter]
    fn message(&self, py: Python<'_>) -> PyResult<&Py<Message>> {
        self.message.get_or_try_init(py, || Py::new(py, Message::new(self.passage.message.clone())))
    }

    #[getter]
    fn producer(&self) -> ClientView {
        match &self.passage.client {
            Some(client) => ClientView::connected(Arc::clone(client)),
            None => ClientView::named(self.passage.message.source()),
        }
    }

    #[getter]
    fn node(&self) -> Option<&str> {
        self.passage.node.as_deref()
    }

    fn __repr__(&self) -> String {
        format!("<NodeFrame {} to {:?}>", self.passage.kind.as_str(), self.passage.goal)
    }
}

/// A configured filter, from which each start creates a thread.
pub(crate) struct FilterDefinition {
    /// For the log: `upstream tmqp://...`, `accept`.
    name: Box<str>,
    decide: Py<PyAny>,
    timeout: Duration,
    fallback: bool,
}

impl FilterDefinition {
    /// Reads a `mqcore.NodeFilter`; `None`: it has rules only.
    fn read(filter: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Self>> {
        let decide = filter.getattr("decide")?;
        if decide.is_none() {
            return Ok(None);
        }
        let (timeout, fallback) = (duration(filter, "timeout")?, field(filter, "fallback")?);
        Ok(Some(Self { name: name.into(), decide: decide.unbind(), timeout, fallback }))
    }
}

/// The filters of one configuration.
#[derive(Default)]
pub(crate) struct Definitions {
    pub(crate) accept: Option<FilterDefinition>,
    /// One per upstream broker.
    pub(crate) send: Vec<Option<FilterDefinition>>,
}

impl Definitions {
    /// Reads the filters of a `mqcore.BrokerConfig`.
    pub(crate) fn read(config: &Bound<'_, PyAny>) -> PyResult<Self> {
        let node = config.getattr("node")?;
        if node.is_none() {
            return Ok(Self::default());
        }
        let accept = FilterDefinition::read(&node.getattr("accept")?, "accept")?;
        let mut send = Vec::new();
        for upstream in node.getattr("upstreams")?.try_iter()? {
            let upstream = upstream?;
            let url: String = field(&upstream, "url")?;
            // A URL may contain a token, which must not be logged.
            let url = url.split('?').next().unwrap_or_default();
            send.push(FilterDefinition::read(&upstream.getattr("send")?, &format!("send to {url}"))?);
        }
        if send.iter().all(Option::is_none) {
            send.clear();
        }
        Ok(Self { accept, send })
    }

    /// For the garbage collector.
    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let mut all = self.accept.iter().chain(self.send.iter().flatten());
        all.try_for_each(|definition| visit.call(&definition.decide))
    }
}

/// A running filter.
pub(crate) struct FilterThread {
    /// `None` ends the thread.
    inbox: Sender<Option<Arc<NodeQuestion>>>,
    timeout: Duration,
    fallback: bool,
    stopping: Arc<AtomicBool>,
    /// Disconnects when the thread ends; no message is ever sent.
    ended: Receiver<()>,
}

impl FilterThread {
    /// Starts the thread.
    pub(crate) fn start(py: Python<'_>, definition: &FilterDefinition) -> std::io::Result<Self> {
        let (inbox, questions) = crossbeam_channel::bounded(BATCHES_MAX);
        let (ending, ended) = crossbeam_channel::bounded(0);
        let stopping = Arc::new(AtomicBool::new(false));
        let filter = Filter {
            name: definition.name.clone(),
            decide: definition.decide.clone_ref(py),
            stopping: Arc::clone(&stopping),
        };
        std::thread::Builder::new().name("mqcore-filter".into()).spawn(move || {
            run(filter, &questions);
            drop(ending);
        })?;
        Ok(Self { inbox, timeout: definition.timeout, fallback: definition.fallback, stopping, ended })
    }

    /// Ends the thread as soon as its current call returns.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // If the channel is full or closed, the thread sees the flag.
        let _ = self.inbox.try_send(None);
    }
}

impl LeakedThread for FilterThread {
    fn join(&self, deadline: Instant) -> bool {
        self.ended.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout)
    }
}

impl NodeFilterPort for FilterThread {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn fallback(&self) -> bool {
        self.fallback
    }

    fn ask(&self, question: Arc<NodeQuestion>) -> bool {
        self.inbox.try_send(Some(question)).is_ok()
    }
}

/// State of the thread.
struct Filter {
    name: Box<str>,
    decide: Py<PyAny>,
    stopping: Arc<AtomicBool>,
}

/// Runs the thread.
fn run(filter: Filter, questions: &Receiver<Option<Arc<NodeQuestion>>>) {
    // `None`: the interpreter is ending and must not be used.
    let ran = Python::try_attach(|py| {
        while let Some(question) = py.detach(|| questions.recv()).ok().flatten() {
            filter.answer(py, &question);
            question.finish();
        }
    });
    if ran.is_none() {
        std::mem::forget(filter);
        return;
    }
    Python::try_attach(|_| drop(filter));
}

impl Filter {
    fn answer(&self, py: Python<'_>, question: &NodeQuestion) {
        // The first exception of the batch, and the number of exceptions.
        let mut failed: Option<(PyErr, u64)> = None;
        for (place, passage) in question.passages().iter().enumerate() {
            if question.is_given_up() || self.stopping.load(Ordering::Acquire) {
                break;
            }
            match self.decide(py, passage) {
                Ok(passes) => question.answer(place, passes),
                Err(exception) => match &mut failed {
                    Some((_, count)) => *count += 1,
                    None => failed = Some((exception, 1)),
                },
            }
        }
        if let Some((exception, count)) = failed {
            self.report(py, &exception, count);
        }
    }

    fn decide(&self, py: Python<'_>, passage: &ForwardedFrame) -> PyResult<bool> {
        let verdict = self.decide.bind(py).call1((NodeFrame::new(passage),))?;
        let passes = verdict.cast::<PyBool>().map_err(|_| {
            let kind = verdict.get_type();
            let kind = kind.name().map_or_else(|_| "something".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("a filter returned a {kind}, not a bool"))
        })?;
        Ok(passes.is_true())
    }

    fn report(&self, py: Python<'_>, exception: &PyErr, count: u64) {
        static REPORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let reported = REPORT
            .import(py, "mqcore.handlers", "_report_filter")
            .and_then(|report| report.call1((&*self.name, exception.value(py), count)));
        if let Err(broken) = reported {
            broken.write_unraisable(py, None);
        }
    }
}
