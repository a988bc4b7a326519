//! Messages that a client received, for Python.

use std::sync::{Arc, Mutex, PoisonError};

use mqcore_client::consume::{Delivered, Settlement};
use mqcore_client::pull::Pulled as CorePulled;
use mqcore_client::received::Received as CoreReceived;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString};

use super::error;
use super::process::Owned;
use crate::fields::seconds;
use crate::message::{HeaderText, Headers, text};

/// A received message: a delivery, which can be settled, or a direct message, which cannot.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Received {
    message: CoreReceived,
    delivered: Option<Owned<Delivery>>,
    body: PyOnceLock<Py<PyBytes>>,
}

/// A delivery, alone or in a batch.
enum Delivery {
    Alone(Delivered),
    InBatch(Arc<Vec<Delivered>>, usize),
}

impl Owned<Delivery> {
    fn delivered(&self) -> PyResult<&Delivered> {
        Ok(match self.get()? {
            Delivery::Alone(delivered) => delivered,
            Delivery::InBatch(batch, index) => &batch[*index],
        })
    }
}

impl Received {
    /// A delivery.
    pub(crate) fn delivered(delivered: Delivered) -> Self {
        let message = delivered.message().clone();
        Self { message, delivered: Some(Owned::new(Delivery::Alone(delivered))), body: PyOnceLock::new() }
    }

    fn in_batch(batch: &Arc<Vec<Delivered>>, index: usize) -> Self {
        let delivery = Delivery::InBatch(batch.clone(), index);
        let message = batch[index].message().clone();
        Self { message, delivered: Some(Owned::new(delivery)), body: PyOnceLock::new() }
    }

    /// Any other message.
    pub(crate) fn plain(message: CoreReceived) -> Self {
        Self { message, delivered: None, body: PyOnceLock::new() }
    }

    /// The message itself.
    pub(crate) fn message(&self) -> PyResult<&CoreReceived> {
        Ok(&self.message)
    }
}

#[pymethods]
impl Received {
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        text(py, self.message.id())
    }

    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        let source = self.message.source();
        (!source.is_empty()).then(|| text(py, source))
    }

    #[getter]
    fn target<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        text(py, self.message.target())
    }

    #[getter]
    fn headers(&self) -> Headers {
        Headers::new(HeaderText::Received(self.message.clone()))
    }

    /// Copied at the first call, and cached.
    #[getter]
    fn body(&self, py: Python<'_>) -> &Py<PyBytes> {
        self.body.get_or_init(py, || PyBytes::new(py, self.message.body_slice()).unbind())
    }

    #[getter]
    fn content_type(&self) -> u16 {
        self.message.content_type()
    }

    #[getter]
    fn first_acquirer(&self) -> bool {
        self.message.first_acquirer()
    }

    #[getter]
    fn high_priority(&self) -> bool {
        self.message.high_priority()
    }

    #[getter]
    fn wants_acknowledge(&self) -> bool {
        self.message.wants_acknowledge()
    }

    #[getter]
    fn wants_response(&self) -> bool {
        self.message.wants_response()
    }

    #[getter]
    fn is_settled(&self) -> PyResult<bool> {
        self.delivered.as_ref().map_or(Ok(true), |delivered| Ok(delivered.delivered()?.is_settled()))
    }

    /// The outcome: `sent`, `not-asked`, `stale`, `already`, `late`.
    fn ack(&self) -> PyResult<&'static str> {
        match &self.delivered {
            Some(delivered) => Ok(settlement(delivered.delivered()?.ack())),
            None => Ok(settlement(Settlement::NotAsked)),
        }
    }

    /// Like `ack`.
    #[pyo3(signature = (reason, delay=None))]
    fn nack(&self, reason: &str, delay: Option<f64>) -> PyResult<&'static str> {
        let Some(delivered) = &self.delivered else { return Ok(settlement(Settlement::NotAsked)) };
        let delivered = delivered.delivered()?;
        let settled = match delay {
            None => delivered.nack(reason),
            Some(delay) => delivered.nack_after(reason, seconds(delay, "delay")?),
        };
        Ok(settlement(settled.map_err(error::client)?))
    }

    #[getter]
    fn attempt(&self) -> Option<u32> {
        self.message.attempt()
    }

    /// Like `ack`: asks for the whole acknowledge timeout again.
    fn working(&self) -> PyResult<&'static str> {
        match &self.delivered {
            Some(delivered) => Ok(settlement(delivered.delivered()?.working())),
            None => Ok(settlement(Settlement::NotAsked)),
        }
    }

    fn __len__(&self) -> usize {
        self.message.body_slice().len()
    }

    fn __bool__(&self) -> bool {
        true
    }
}

/// Deliveries that a program takes and settles together.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ReceivedBatch {
    messages: Owned<Arc<Vec<Delivered>>>,
}

impl ReceivedBatch {
    /// A batch of deliveries of one consumer or one pull.
    pub(crate) fn new(messages: Vec<Delivered>) -> Self {
        Self { messages: Owned::new(Arc::new(messages)) }
    }
}

#[pymethods]
impl ReceivedBatch {
    /// Its messages. Each call makes new objects.
    fn messages(&self) -> PyResult<Vec<Received>> {
        let messages = self.messages.get()?;
        Ok((0..messages.len()).map(|index| Received::in_batch(messages, index)).collect())
    }

    /// Copies of all bodies.
    fn bodies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let bodies =
            self.messages.get()?.iter().map(|message| PyBytes::new(py, message.message().body_slice()));
        PyList::new(py, bodies)
    }

    /// Acknowledges those that are not settled. Returns the number of acknowledgements that are sent in time.
    fn ack(&self) -> PyResult<usize> {
        Ok(Delivered::ack_all(self.messages.get()?))
    }

    /// Like `ack`.
    #[pyo3(signature = (reason, delay=None))]
    fn nack(&self, reason: &str, delay: Option<f64>) -> PyResult<usize> {
        let delay = delay.map(|delay| seconds(delay, "delay")).transpose()?;
        Delivered::nack_all(self.messages.get()?, reason, delay).map_err(error::client)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.messages.get()?.len())
    }

    fn __bool__(&self) -> bool {
        true
    }
}

/// The result of a pull. A program whose call is cancelled never takes the messages, and the client gives them back.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Pulled {
    core: Owned<Mutex<CorePulled>>,
    /// Remaining messages of high and of normal priority, if known.
    #[pyo3(get)]
    remaining: Option<(u64, u64)>,
    /// Whether the broker ended the pull.
    #[pyo3(get)]
    complete: bool,
}

impl Pulled {
    /// Wraps `core`.
    pub(crate) fn new(core: CorePulled) -> Self {
        let (remaining, complete) = (core.remaining, core.complete);
        Self { core: Owned::new(Mutex::new(core)), remaining, complete }
    }
}

#[pymethods]
impl Pulled {
    /// Takes the messages; a second call returns none.
    fn take(&self) -> PyResult<ReceivedBatch> {
        let mut core = self.core.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ReceivedBatch::new(CorePulled::take(&mut core)))
    }
}

fn settlement(settlement: Settlement) -> &'static str {
    match settlement {
        Settlement::Sent => "sent",
        Settlement::NotAsked => "not-asked",
        Settlement::Stale => "stale",
        Settlement::Already => "already",
        Settlement::Late => "late",
    }
}
