//! Messages about which a handler decides together: as a sequence, and as columns for NumPy and Arrow.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder, TimestampMillisecondBuilder};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray, UInt8Array, UInt64Array, ffi};
use arrow_buffer::Buffer;
use arrow_schema::ArrowError;
use bytes::Bytes;
use mqcore_broker::model::message::Message as BrokerMessage;
use mqcore_wire::tmqp::header;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyMemoryView, PySequence};

use crate::decision::Decision;
use crate::message::Message;

/// Longest value that an Arrow view holds by itself.
const INLINE_BYTES: usize = 12;

/// Messages of one queue that arrived together. Immutable; shares the broker's allocations.
#[pyclass(frozen, sequence, module = "mqcore._core")]
pub(crate) struct MessageBatch {
    messages: Vec<BrokerMessage>,
}

/// One column of a batch for Arrow.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct MessageColumn {
    values: ArrayRef,
}

/// One decision for each message of a batch, as an index into a few different ones. Immutable.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct Decisions {
    pub(crate) choices: Vec<Decision>,
    /// For each message the place of its decision in `choices`, which exists.
    pub(crate) index: Vec<u8>,
}

/// The body of a message, as the owner of a buffer.
struct Body(BrokerMessage);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.body()
    }
}

impl MessageBatch {
    pub(crate) fn new(messages: Vec<BrokerMessage>) -> Self {
        Self { messages }
    }

    /// Bodies longer than a view are not copied: each is a buffer of its own.
    fn body_views(&self) -> Result<ArrayRef, ArrowError> {
        let mut views = BinaryViewBuilder::with_capacity(self.messages.len());
        for message in &self.messages {
            let body = message.body();
            if body.len() <= INLINE_BYTES {
                views.append_value(body);
                continue;
            }
            let block = views.append_block(Buffer::from(Bytes::from_owner(Body(message.clone()))));
            views.try_append_view(block, 0, body.len() as u32)?;
        }
        Ok(Arc::new(views.finish()))
    }

    fn texts(&self, text: impl Fn(&BrokerMessage) -> Option<&[u8]>) -> ArrayRef {
        let mut views = StringViewBuilder::with_capacity(self.messages.len());
        for message in &self.messages {
            views.append_option(text(message).map(String::from_utf8_lossy));
        }
        Arc::new(views.finish())
    }

    fn received(&self) -> ArrayRef {
        let mut times = TimestampMillisecondBuilder::with_capacity(self.messages.len());
        for message in &self.messages {
            let received = message.received().0;
            times.append_option((received > 0).then(|| received.cast_signed()));
        }
        Arc::new(times.finish().with_timezone("UTC"))
    }

    fn table(&self) -> Result<RecordBatch, ArrowError> {
        let sizes = self.messages.iter().map(|message| message.body().len() as u64);
        let priorities = self.messages.iter().map(|message| message.properties().level());
        let columns: [(&str, ArrayRef); 6] = [
            ("id", self.texts(|message| Some(message.id()))),
            ("source", self.texts(|message| Some(message.source()).filter(|source| !source.is_empty()))),
            ("body", self.body_views()?),
            ("size", Arc::new(UInt64Array::from_iter_values(sizes))),
            ("priority", Arc::new(UInt8Array::from_iter_values(priorities))),
            ("received_at", self.received()),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
    }

    /// A read-only view of numbers of `width` bytes, with their format of the module `struct`.
    fn numbers<'py, const WIDTH: usize>(
        &self,
        py: Python<'py>,
        format: &str,
        number: impl Fn(&BrokerMessage) -> [u8; WIDTH],
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = PyBytes::new_with(py, self.messages.len() * WIDTH, |bytes| {
            for (place, message) in bytes.chunks_exact_mut(WIDTH).zip(&self.messages) {
                place.copy_from_slice(&number(message));
            }
            Ok(())
        })?;
        PyMemoryView::from(&bytes)?.call_method1("cast", (format,))
    }
}

#[pymethods]
impl MessageBatch {
    fn __len__(&self) -> usize {
        self.messages.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<Message> {
        let place = if index < 0 { index + self.messages.len().cast_signed() } else { index };
        let message = usize::try_from(place).ok().and_then(|place| self.messages.get(place));
        let message = message.ok_or_else(|| {
            PyIndexError::new_err(format!("index {index} of a batch of {} messages", self.messages.len()))
        })?;
        Ok(Message::new(message.clone()))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messages = self.messages.iter().map(|message| Message::new(message.clone()));
        let messages = messages.map(|message| Py::new(py, message)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, messages)?.try_iter()?.into_any())
    }

    /// The size of each body in bytes.
    #[getter]
    fn sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, "Q", |message| native(message.body().len() as u64))
    }

    /// The priority of each message.
    #[getter]
    fn priorities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, "B", |message| [message.properties().level()])
    }

    /// When a queue took each message first, in Unix seconds; 0 if none has.
    #[getter]
    fn received_at<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let seconds = |message: &BrokerMessage| Duration::from_millis(message.received().0).as_secs_f64();
        self.numbers(py, "d", |message| native(seconds(message).to_bits()))
    }

    #[getter]
    fn bodies(&self) -> PyResult<MessageColumn> {
        Ok(MessageColumn { values: self.body_views().map_err(failed)? })
    }

    #[getter]
    fn ids(&self) -> MessageColumn {
        MessageColumn { values: self.texts(|message| Some(message.id())) }
    }

    #[getter]
    fn sources(&self) -> MessageColumn {
        let values = self.texts(|message| Some(message.source()).filter(|source| !source.is_empty()));
        MessageColumn { values }
    }

    /// The first value of a header of each message; null where it is missing.
    fn header(&self, key: &str) -> MessageColumn {
        MessageColumn { values: self.texts(|message| header::header_value(message.headers(), key)) }
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        capsules(py, &StructArray::from(self.table().map_err(failed)?))
    }

    fn __repr__(&self) -> String {
        format!("<MessageBatch of {} messages>", self.messages.len())
    }
}

#[pymethods]
impl MessageColumn {
    fn __len__(&self) -> usize {
        self.values.len()
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        capsules(py, &*self.values)
    }

    fn __repr__(&self) -> String {
        format!("<MessageColumn of {} values of {}>", self.values.len(), self.values.data_type())
    }
}

#[pymethods]
impl Decisions {
    #[new]
    fn new(choices: &Bound<'_, PySequence>, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let choices = decisions(choices)?;
        let index = places(index)?;
        if let Some(wrong) = index.iter().find(|place| usize::from(**place) >= choices.len()) {
            return Err(PyValueError::new_err(format!(
                "the index names choice {wrong}, and there are {}",
                choices.len()
            )));
        }
        Ok(Self { choices, index })
    }

    fn __len__(&self) -> usize {
        self.index.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<Decision> {
        let place = self.index.get(index).copied();
        let place = place.ok_or_else(|| {
            PyIndexError::new_err(format!("index {index} of {} decisions", self.index.len()))
        })?;
        Ok(self.choices[usize::from(place)].clone())
    }

    fn __repr__(&self) -> String {
        format!("<Decisions about {} messages, {} different>", self.index.len(), self.choices.len())
    }
}

/// Eight bytes of a number, in the order of this machine, which is that of native formats of memory views.
#[expect(clippy::host_endian_bytes, reason = "both sides of the view are on this machine")]
fn native(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

/// The decisions of a sequence.
pub(crate) fn decisions(sequence: &Bound<'_, PySequence>) -> PyResult<Vec<Decision>> {
    let mut found = Vec::with_capacity(sequence.len()?);
    for item in sequence.try_iter()? {
        let item = item?;
        let Ok(decision) = item.cast::<Decision>() else {
            return Err(PyTypeError::new_err(format!("{} is not a mqcore.Decision", item.repr()?)));
        };
        found.push(decision.get().clone());
    }
    Ok(found)
}

/// Numbers of one byte each: of a buffer, such as a NumPy array of `bool` or `uint8`, or of a sequence of numbers.
fn places(index: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let py = index.py();
    let Ok(view) = PyMemoryView::from(index) else {
        let numbers = index.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let bytes = py.get_type::<PyBytes>().call1((PyList::new(py, numbers)?,))?;
        return Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec());
    };
    let width: usize = view.getattr("itemsize")?.extract()?;
    if width != 1 {
        let format = view.getattr("format")?;
        return Err(PyTypeError::new_err(format!(
            "the index has items of {width} bytes (format {format}); use one byte each, such as numpy's bool or uint8"
        )));
    }
    let bytes = view.call_method0("tobytes")?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// The array and its type for the C data interface.
fn capsules<'py>(
    py: Python<'py>,
    array: &dyn Array,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let (array, schema) = ffi::to_ffi(&array.to_data()).map_err(failed)?;
    let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
    Ok((schema, PyCapsule::new_with_value(py, array, c"arrow_array")?))
}

fn failed(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
