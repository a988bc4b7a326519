//! The ZMTP codec of the broker for Python's job clients and workers.

use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::zmtp::command::{Ready, SocketType, ZmtpCommand};
use mqcore_wire::zmtp::{self, Greeting, Item, ZmtpDecoder};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;

type Frames<'py> = Vec<Bound<'py, PyBytes>>;

/// Decodes the bytes after a ZMTP greeting into messages and commands, and encodes both.
#[pyclass(module = "mqcore._core")]
#[derive(Debug, Default)]
pub(crate) struct ZmtpCodec {
    decoder: ZmtpDecoder,
    /// Bytes of an incomplete message or command.
    rest: Vec<u8>,
    /// Size of `rest` from which on decoding can make progress.
    needed: usize,
}

#[pymethods]
impl ZmtpCodec {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Decodes `data`, which continues the data of previous calls: the completed messages, and the bodies of commands.
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<(Vec<Frames<'py>>, Frames<'py>)> {
        let limits = Limits::default();
        let (mut messages, mut commands) = (Vec::new(), Vec::new());
        let buffered = !self.rest.is_empty();
        if buffered {
            self.rest.extend_from_slice(data);
            if self.rest.len() < self.needed {
                return Ok((messages, commands));
            }
        }
        let input = if buffered { &self.rest[..] } else { data };
        let mut at = 0;
        while let Some((item, consumed)) =
            self.decoder.next(&input[at..], &limits).map_err(|broken| error::wire(&broken))?
        {
            match item {
                Item::Message(parts) => {
                    messages.push(parts.iter().map(|part| PyBytes::new(py, part)).collect());
                }
                Item::Command(body) => commands.push(PyBytes::new(py, body)),
            }
            at += consumed;
        }
        self.needed = self.decoder.needed(&input[at..], &limits);
        if buffered {
            self.rest.drain(..at);
        } else {
            self.rest.extend_from_slice(&data[at..]);
        }
        Ok((messages, commands))
    }

    /// The greeting of a peer with the NULL mechanism (ZMTP 3.0).
    #[staticmethod]
    fn greeting(py: Python<'_>) -> Bound<'_, PyBytes> {
        let mut bytes = Vec::with_capacity(zmtp::GREETING_BYTES);
        Greeting { minor: 0, as_server: false }.encode(&mut bytes);
        PyBytes::new(py, &bytes)
    }

    /// Checks the beginning of a peer's stream and returns whether it contains the whole greeting.
    #[staticmethod]
    fn has_greeting(data: &[u8]) -> PyResult<bool> {
        let found = Greeting::decode(data).map_err(|broken| error::wire(&broken))?;
        Ok(found.is_some())
    }

    /// Encodes a message.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 extracts borrowed bytes into a vector")]
    fn message<'py>(py: Python<'py>, frames: Vec<Bound<'py, PyBytes>>) -> Bound<'py, PyBytes> {
        let parts: Vec<&[u8]> = frames.iter().map(|frame| frame.as_bytes()).collect();
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 9).sum());
        zmtp::encode_message(&parts, &mut bytes);
        PyBytes::new(py, &bytes)
    }

    /// Encodes READY for a socket of type `kind`; an empty `token` is left out.
    #[staticmethod]
    fn ready<'py>(
        py: Python<'py>,
        kind: &[u8],
        identity: &[u8],
        token: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let unknown = WireError::Malformed { part: "READY", why: "unknown socket type" };
        let socket = SocketType::from_name(kind).ok_or_else(|| error::wire(&unknown))?;
        Ok(encoded(py, ZmtpCommand::Ready(Ready { socket, identity, token })))
    }

    /// Encodes PONG, the answer to a PING with this context.
    #[staticmethod]
    fn pong<'py>(py: Python<'py>, context: &[u8]) -> Bound<'py, PyBytes> {
        encoded(py, ZmtpCommand::Pong(context))
    }

    /// Parses the body of a command: its name, and the reason of ERROR, the context of PING, or nothing.
    #[staticmethod]
    fn command<'py>(py: Python<'py>, body: &[u8]) -> PyResult<(&'static str, Bound<'py, PyBytes>)> {
        let (name, data) = match ZmtpCommand::parse(body).map_err(|broken| error::wire(&broken))? {
            ZmtpCommand::Ready(_) => ("READY", &[][..]),
            ZmtpCommand::Error(reason) => ("ERROR", reason),
            ZmtpCommand::Ping { context, .. } => ("PING", context),
            ZmtpCommand::Pong(_)
            | ZmtpCommand::Subscribe(_)
            | ZmtpCommand::Cancel(_)
            | ZmtpCommand::Other(_) => ("", &[][..]),
        };
        Ok((name, PyBytes::new(py, data)))
    }
}

fn encoded<'py>(py: Python<'py>, command: ZmtpCommand<'_>) -> Bound<'py, PyBytes> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    PyBytes::new(py, &bytes)
}
