//! Arguments of delivery handlers besides the message: queue, clients and delivery.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::effect::AcknowledgementView;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::options::Status;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::message::{Message, text};

/// A queue at the moment of the question.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct QueueView {
    queue: Arc<QueueAddress>,
    status: Status,
}

impl QueueView {
    /// The view of `queue` while it has `status`.
    pub(crate) fn new(queue: Arc<QueueAddress>, status: Status) -> Self {
        Self { queue, status }
    }

    /// Whether this view is still current.
    pub(crate) fn shows(&self, queue: &Arc<QueueAddress>, status: Status) -> bool {
        self.status == status && Arc::ptr_eq(&self.queue, queue)
    }
}

#[pymethods]
impl QueueView {
    #[getter]
    fn channel(&self) -> &str {
        self.queue.channel.as_str()
    }

    #[getter]
    fn id(&self) -> u16 {
        self.queue.id
    }

    #[getter]
    fn address(&self) -> String {
        self.queue.to_string()
    }

    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        CLASS.import(py, "mqcore.config", "QueueStatus")?.call1((self.status.as_str(),))
    }

    fn __str__(&self) -> String {
        self.address()
    }

    fn __repr__(&self) -> String {
        format!("<QueueView {} {}>", self.queue, self.status.as_str())
    }
}

/// A client of the broker.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ClientView {
    client: Peer,
}

enum Peer {
    Connected(Arc<Client>),
    /// The producer of a message from another node, of which only the id is known.
    Named(Box<[u8]>),
}

impl ClientView {
    /// The view of a client that is, or was, connected here.
    pub(crate) fn connected(client: Arc<Client>) -> Self {
        Self { client: Peer::Connected(client) }
    }

    /// The view of a client with a known id only.
    pub(crate) fn named(id: &[u8]) -> Self {
        Self { client: Peer::Named(id.into()) }
    }

    /// Whether this is the view of `client`.
    pub(crate) fn shows(&self, client: &Arc<Client>) -> bool {
        matches!(&self.client, Peer::Connected(shown) if Arc::ptr_eq(shown, client))
    }
}

#[pymethods]
impl ClientView {
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        match &self.client {
            Peer::Connected(client) => PyString::new(py, &client.id),
            Peer::Named(id) => text(py, id),
        }
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        match &self.client {
            Peer::Connected(client) => client.name.as_deref(),
            Peer::Named(_) => None,
        }
    }

    #[getter]
    fn kind(&self) -> Option<&str> {
        match &self.client {
            Peer::Connected(client) => client.kind.as_deref(),
            Peer::Named(_) => None,
        }
    }

    #[getter]
    fn admin(&self) -> bool {
        matches!(&self.client, Peer::Connected(client) if client.admin)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<ClientView id={:?} name={:?} kind={:?}>", self.id(py).to_string(), self.name(), self.kind())
    }
}

/// One attempt to deliver a message to a consumer.
#[pyclass(frozen, get_all, module = "mqcore._core")]
pub(crate) struct Delivery {
    message: Py<Message>,
    consumer: Py<ClientView>,
    attempt: u16,
}

impl Delivery {
    /// Attempt number `attempt`, from 1, to deliver `message` to `consumer`.
    pub(crate) fn new(message: Py<Message>, consumer: Py<ClientView>, attempt: u16) -> Self {
        Self { message, consumer, attempt }
    }
}

#[pymethods]
impl Delivery {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (message, consumer) = (self.message.bind(py).repr()?, self.consumer.bind(py).repr()?);
        Ok(format!("<Delivery attempt={} of {message} to {consumer}>", self.attempt))
    }
}

/// The acknowledgement of a delivery by its consumer.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Acknowledgement {
    view: Box<AcknowledgementView>,
}

impl Acknowledgement {
    /// Wraps `view` for Python.
    pub(crate) fn new(view: Box<AcknowledgementView>) -> Self {
        Self { view }
    }
}

#[pymethods]
impl Acknowledgement {
    #[getter]
    fn message_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        text(py, &self.view.message_id)
    }

    #[getter]
    fn positive(&self) -> bool {
        self.view.negative.is_none()
    }

    #[getter]
    fn reason(&self) -> Option<&str> {
        self.view.negative.as_deref()
    }

    fn __repr__(&self) -> String {
        let id = String::from_utf8_lossy(&self.view.message_id);
        match &self.view.negative {
            None => format!("<Acknowledgement positive message_id={id:?}>"),
            Some(reason) => format!("<Acknowledgement negative message_id={id:?} reason={reason:?}>"),
        }
    }
}
