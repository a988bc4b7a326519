//! A message for Python: immutable, shared with the broker, with a body that is readable without a copy.

use std::ffi::c_int;
use std::time::Duration;

use mqcore_broker::model::message::Message as BrokerMessage;
use mqcore_client::received::Received;
use mqcore_wire::tmqp::header;
use pyo3::exceptions::PyKeyError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyString, PyTuple};

/// A published message. It shares the broker's allocation, so creating one copies nothing.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Message {
    message: BrokerMessage,
    saved: bool,
    attempt: u16,
    headers: PyOnceLock<Py<Headers>>,
    body: PyOnceLock<Py<PyBytes>>,
}

impl Message {
    /// Wraps `message` for Python.
    pub(crate) fn new(message: BrokerMessage) -> Self {
        Self::of_queue(message, false, 0)
    }

    /// A message of a queue: whether it is saved, and how often it was delivered.
    pub(crate) fn of_queue(message: BrokerMessage, saved: bool, attempt: u16) -> Self {
        Self { message, saved, attempt, headers: PyOnceLock::new(), body: PyOnceLock::new() }
    }

    /// The broker's message.
    pub(crate) fn inner(&self) -> &BrokerMessage {
        &self.message
    }
}

#[pymethods]
impl Message {
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
    fn headers(&self, py: Python<'_>) -> PyResult<&Py<Headers>> {
        self.headers
            .get_or_try_init(py, || Py::new(py, Headers::new(HeaderText::Message(self.message.clone()))))
    }

    /// Copied from the broker's allocation at the first call, and cached.
    #[getter]
    fn body(&self, py: Python<'_>) -> &Py<PyBytes> {
        self.body.get_or_init(py, || PyBytes::new(py, self.message.body()).unbind())
    }

    #[getter]
    fn high_priority(&self) -> bool {
        self.message.properties().high_priority
    }

    #[getter]
    fn pending_acknowledge(&self) -> bool {
        self.message.properties().pending_acknowledge
    }

    #[getter]
    fn pending_response(&self) -> bool {
        self.message.properties().pending_response
    }

    #[getter]
    fn content_type(&self) -> u16 {
        self.message.properties().content_type
    }

    /// Whether the broker has saved it.
    #[getter]
    fn saved(&self) -> bool {
        self.saved
    }

    /// Deliveries so far.
    #[getter]
    fn attempt(&self) -> u16 {
        self.attempt
    }

    /// When the first queue took it, in Unix seconds.
    #[getter]
    fn received_at(&self) -> Option<f64> {
        let received = self.message.received().0;
        (received > 0).then(|| Duration::from_millis(received).as_secs_f64())
    }

    #[getter]
    fn hops(&self) -> u8 {
        self.message.properties().hops
    }

    fn __len__(&self) -> usize {
        self.message.body().len()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        let (id, source) = (self.message.id(), self.message.source());
        format!(
            "<Message id={:?} source={:?} body={} bytes>",
            String::from_utf8_lossy(id),
            String::from_utf8_lossy(source),
            self.message.body().len(),
        )
    }

    /// For type checkers; Python itself adds it from 3.12 on.
    fn __buffer__<'py>(slf: &Bound<'py, Self>, _flags: i32) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(slf)
    }

    /// Exposes the body as a read-only buffer.
    #[allow(unsafe_code, reason = "the buffer protocol is a C interface; pyo3 has no safe form of it")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let body = slf.get().message.body();
        let length = body.len().cast_signed();
        // SAFETY: the bytes live as long as the message, which never changes, and `PyBuffer_FillInfo` makes the
        // view hold a reference to the object that owns it. It refuses writable views itself (readonly = 1).
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), body.as_ptr().cast_mut().cast(), length, 1, flags)
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// The headers of a message: a mapping whose keys compare without regard to ASCII case.
///
/// Parsing is lazy, and stops at the requested key.
#[pyclass(frozen, mapping, module = "mqcore._core")]
pub(crate) struct Headers {
    text: HeaderText,
}

/// The owner of the headers, which are shared and not copied.
pub(crate) enum HeaderText {
    /// A message in the broker.
    Message(BrokerMessage),
    /// A message that a client received.
    Received(Received),
}

impl Headers {
    /// The headers of `text`.
    pub(crate) fn new(text: HeaderText) -> Self {
        Self { text }
    }

    fn bytes(&self) -> &[u8] {
        match &self.text {
            HeaderText::Message(message) => message.headers(),
            HeaderText::Received(received) => received.header_text(),
        }
    }

    fn pairs(&self) -> header::Pairs<'_> {
        header::pairs(self.bytes())
    }

    /// Each key once, in its first spelling.
    fn first_pairs(&self) -> Vec<(&[u8], &[u8])> {
        let mut seen: Vec<(&[u8], &[u8])> = Vec::new();
        for (key, value) in self.pairs() {
            if !seen.iter().any(|(known, _)| known.eq_ignore_ascii_case(key)) {
                seen.push((key, value));
            }
        }
        seen
    }
}

#[pymethods]
impl Headers {
    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyString>> {
        match header::header_value(self.bytes(), key) {
            Some(value) => Ok(text(py, value)),
            None => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> bool {
        key.extract::<&str>().is_ok_and(|key| header::header_value(self.bytes(), key).is_some())
    }

    fn __len__(&self) -> usize {
        self.first_pairs().len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.keys(py)?.try_iter()?.into_any())
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        match header::header_value(self.bytes(), key) {
            Some(value) => Some(text(py, value).into_any()),
            None => default,
        }
    }

    /// All values of a key, in order.
    fn get_all<'py>(&self, py: Python<'py>, key: &str) -> Vec<Bound<'py, PyString>> {
        self.pairs()
            .filter(|(name, _)| name.eq_ignore_ascii_case(key.as_bytes()))
            .map(|(_, value)| text(py, value))
            .collect()
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.first_pairs().into_iter().map(|(key, _)| text(py, key)))
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.first_pairs().into_iter().map(|(_, value)| text(py, value)))
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items: PyResult<Vec<_>> = self
            .first_pairs()
            .into_iter()
            .map(|(key, value)| PyTuple::new(py, [text(py, key), text(py, value)]))
            .collect();
        PyList::new(py, items?)
    }

    fn __repr__(&self) -> String {
        let lines: Vec<_> = self
            .pairs()
            .map(|(key, value)| {
                format!("{:?}: {:?}", String::from_utf8_lossy(key), String::from_utf8_lossy(value))
            })
            .collect();
        format!("Headers({{{}}})", lines.join(", "))
    }
}

/// Names and header values are UTF-8 by the protocol. Invalid bytes become U+FFFD, so that a peer's bad text does not
/// prevent a handler from deciding.
pub(crate) fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text),
        Err(_) => PyString::new(py, &String::from_utf8_lossy(bytes)),
    }
}
