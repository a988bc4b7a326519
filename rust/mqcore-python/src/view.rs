//! Arguments of delivery handlers besides the message: queue, clients and delivery.

use std::sync::Arc;

use mqcore_broker::model::client::{Client, ConnectionData};
use mqcore_broker::model::effect::AcknowledgementView;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::node::NodeInformation;
use mqcore_broker::model::observation::ChannelState;
use mqcore_broker::model::options::Status;
use mqcore_broker::model::stats::QueueInformation;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMappingProxy, PyString, PyTuple};

use crate::error;
use crate::inspector::Inspector;
use crate::message::{Message, text};
use crate::snapshot::queue_dict;

/// A queue at the moment of the question.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct QueueView {
    queue: Arc<QueueAddress>,
    status: Status,
    state: QueueState,
}

/// The source of the counts and options of a queue.
enum QueueState {
    /// From the broker, when they are asked for.
    Current(Inspector),
    /// From the moment of an event.
    Known(Box<QueueInformation>),
}

impl QueueView {
    /// The view of `queue` while it has `status`.
    pub(crate) fn new(queue: Arc<QueueAddress>, status: Status, inspector: Inspector) -> Self {
        Self { queue, status, state: QueueState::Current(inspector) }
    }

    /// The view of a queue at the moment of an event.
    pub(crate) fn of(information: &QueueInformation) -> Self {
        Self {
            queue: Arc::new(information.queue.clone()),
            status: information.options.status,
            state: QueueState::Known(Box::new(information.clone())),
        }
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
        status_of(py, self.status)
    }

    /// State and counters, as `mqcore.broker.QueueStats`.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static READ: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let dict = match &self.state {
            QueueState::Known(information) => queue_dict(py, information)?,
            QueueState::Current(inspector) => {
                let found = py.detach(|| inspector.queue(&self.queue));
                let found = found.ok_or_else(|| error::queue_removed(&self.queue))?;
                queue_dict(py, &found)?
            }
        };
        READ.import(py, "mqcore._broker_stats", "_queue")?.call1((dict,))
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

    fn data(&self) -> Option<&ConnectionData> {
        match &self.client {
            Peer::Connected(client) => client.data.as_deref(),
            Peer::Named(_) => None,
        }
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

    /// Further properties of its handshake.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(py);
        for (key, value) in self.data().into_iter().flat_map(|data| &data.properties) {
            dict.set_item(key, value)?;
        }
        Ok(PyMappingProxy::new(py, dict.as_mapping()).into_any())
    }

    /// The path of its handshake.
    #[getter]
    fn path(&self) -> Option<&str> {
        self.data().map(|data| data.path.as_str()).filter(|path| !path.is_empty())
    }

    /// The method of its handshake.
    #[getter]
    fn method(&self) -> Option<&str> {
        self.data().map(|data| data.method.as_str()).filter(|method| !method.is_empty())
    }

    /// Its protocol.
    #[getter]
    fn protocol(&self) -> Option<&'static str> {
        match &self.client {
            Peer::Connected(client) => Some(client.protocol),
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

/// A channel at the moment of an event.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ChannelView {
    channel: ChannelState,
}

impl ChannelView {
    /// Wraps `channel` for Python.
    pub(crate) fn new(channel: ChannelState) -> Self {
        Self { channel }
    }
}

#[pymethods]
impl ChannelView {
    #[getter]
    fn name(&self) -> &str {
        self.channel.name.as_str()
    }

    #[getter]
    fn clients(&self) -> u32 {
        self.channel.clients
    }

    #[getter]
    fn client_limit(&self) -> u32 {
        self.channel.client_limit
    }

    #[getter]
    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &*self.channel.queues)
    }

    fn __str__(&self) -> &str {
        self.name()
    }

    fn __repr__(&self) -> String {
        format!("<ChannelView {} queues={:?}>", self.channel.name, self.channel.queues)
    }
}

/// Another broker at the moment of an event.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct NodeView {
    node: NodeInformation,
}

impl NodeView {
    /// Wraps `node` for Python.
    pub(crate) fn new(node: NodeInformation) -> Self {
        Self { node }
    }
}

#[pymethods]
impl NodeView {
    #[getter]
    fn id(&self) -> &str {
        &self.node.id
    }

    #[getter]
    fn name(&self) -> &str {
        &self.node.name
    }

    #[getter]
    fn host(&self) -> &str {
        &self.node.host
    }

    #[getter]
    fn downstream(&self) -> bool {
        self.node.downstream
    }

    fn __repr__(&self) -> String {
        format!("<NodeView id={:?} name={:?} host={:?}>", self.node.id, self.node.name, self.node.host)
    }
}

/// The `mqcore.QueueStatus`.
pub(crate) fn status_of(py: Python<'_>, status: Status) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "mqcore.config", "QueueStatus")?.call1((status.as_str(),))
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
