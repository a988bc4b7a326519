//! The broker's TMQP codec for Python tests and tools.

use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;

/// One TMQP/2.0 frame. Text parts are bytes, as on the wire.
#[pyclass(frozen, eq, hash, get_all, module = "mqcore._core")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    kind: u8,
    first_acquirer: bool,
    high_priority: bool,
    pending_response: bool,
    pending_acknowledge: bool,
    hops: u8,
    content_type: u16,
    id: Vec<u8>,
    source: Vec<u8>,
    target: Vec<u8>,
    headers: Vec<u8>,
    payload: Vec<u8>,
}

#[pymethods]
impl Frame {
    #[new]
    #[pyo3(signature = (
        kind, *, id=Vec::new(), source=Vec::new(), target=Vec::new(), headers=Vec::new(), payload=Vec::new(),
        content_type=0, first_acquirer=false, high_priority=false, pending_response=false,
        pending_acknowledge=false, hops=tmqp::HOPS_FRESH,
    ), text_signature = "(kind, *, id=b'', source=b'', target=b'', headers=b'', payload=b'', content_type=0, \
        first_acquirer=False, high_priority=False, pending_response=False, pending_acknowledge=False, hops=16)")]
    #[allow(clippy::too_many_arguments, reason = "a frame has that many parts, all of them named in Python")]
    fn new(
        kind: u8,
        id: Vec<u8>,
        source: Vec<u8>,
        target: Vec<u8>,
        headers: Vec<u8>,
        payload: Vec<u8>,
        content_type: u16,
        first_acquirer: bool,
        high_priority: bool,
        pending_response: bool,
        pending_acknowledge: bool,
        hops: u8,
    ) -> PyResult<Self> {
        let frame = Self {
            kind,
            first_acquirer,
            high_priority,
            pending_response,
            pending_acknowledge,
            hops,
            content_type,
            id,
            source,
            target,
            headers,
            payload,
        };
        frame.wire().check().map_err(|refused| error::wire(&refused))?;
        Ok(frame)
    }

    /// Keys and values of the header text, in their order.
    #[getter]
    fn header_pairs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        tmqp::header::pairs(&self.headers).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Frame kind={:#04x} content_type={} id={:?} source={:?} target={:?} headers={} bytes \
             payload={} bytes>",
            self.kind,
            self.content_type,
            String::from_utf8_lossy(&self.id),
            String::from_utf8_lossy(&self.source),
            String::from_utf8_lossy(&self.target),
            self.headers.len(),
            self.payload.len(),
        )
    }
}

impl Frame {
    fn wire(&self) -> tmqp::Frame<'_> {
        tmqp::Frame {
            first_acquirer: self.first_acquirer,
            high_priority: self.high_priority,
            kind: tmqp::Kind(self.kind),
            pending_response: self.pending_response,
            pending_acknowledge: self.pending_acknowledge,
            hops: self.hops,
            content_type: self.content_type,
            id: &self.id,
            source: &self.source,
            target: &self.target,
            headers: &self.headers,
            payload: &self.payload,
        }
    }
}

impl From<tmqp::Frame<'_>> for Frame {
    fn from(frame: tmqp::Frame<'_>) -> Self {
        Self {
            kind: frame.kind.0,
            first_acquirer: frame.first_acquirer,
            high_priority: frame.high_priority,
            pending_response: frame.pending_response,
            pending_acknowledge: frame.pending_acknowledge,
            hops: frame.hops,
            content_type: frame.content_type,
            id: frame.id.to_vec(),
            source: frame.source.to_vec(),
            target: frame.target.to_vec(),
            headers: frame.headers.to_vec(),
            payload: frame.payload.to_vec(),
        }
    }
}

/// Decodes one frame at the front of `data`. Returns the frame and its size in bytes, or `(None, 0)` if more bytes are
/// needed.
#[pyfunction]
#[pyo3(signature = (data, *, frame_bytes_max=None, header_bytes_max=None))]
pub(crate) fn tmqp_decode(
    data: &[u8],
    frame_bytes_max: Option<u64>,
    header_bytes_max: Option<u32>,
) -> PyResult<(Option<Frame>, usize)> {
    let default = Limits::default();
    let limits = Limits {
        frame_bytes_max: frame_bytes_max.unwrap_or(default.frame_bytes_max),
        header_bytes_max: header_bytes_max.unwrap_or(default.header_bytes_max),
    };
    match tmqp::decode(data, &limits).map_err(|broken| error::wire(&broken))? {
        Some((frame, consumed)) => Ok((Some(frame.into()), consumed)),
        None => Ok((None, 0)),
    }
}

/// Encodes `frame`.
#[pyfunction]
pub(crate) fn tmqp_encode<'py>(py: Python<'py>, frame: &Frame) -> Bound<'py, PyBytes> {
    let mut output = Vec::new();
    tmqp::encode(&frame.wire(), &mut output);
    PyBytes::new(py, &output)
}
